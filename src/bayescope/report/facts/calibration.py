"""Whether the model's uncertainty holds on the judged rows, and how sure so few rows let us be of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import stats

from bayescope import metrics
from bayescope.metrics import Reliability
from bayescope.report.facts.bootstrap import BLOCK_NUMBERS, TAILS, bootstrap, central
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.predictions import LEVELS, WIDE, Predictions

SIMULATIONS = 1000
BINS, FEW_BINS, FEW_ROWS = 15, 10, 500
PIT_BINS = 10


@final
@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """Of class probabilities.

    Attributes:
        reliability: accuracy in bins of confidence, with the band of a calibrated model.
        ece: the expected calibration error over 15 bins.
        expected: its mean over simulated truths from the model's own probabilities: what a calibrated model shows.
        limit: the 95 % quantile of those.
        share: the share of simulations with as large an error, the p-value of calibration.
        confidence: the mean probability of the predicted class.
        accuracy: how often that class was right.
        gap: confidence − accuracy: above 0 is overconfident.
        chance_low: the lower end of the central 95 % of the gaps that a calibrated model would show.
        chance_high: the upper end.
        sure: rows with a confidence of 0.9 and more: their number, mean confidence and accuracy.
        rows: how many rows.
    """

    reliability: Reliability
    ece: float
    expected: float
    limit: float
    share: float
    confidence: float
    accuracy: float
    gap: float
    chance_low: float
    chance_high: float
    sure: tuple[int, float, float]
    rows: int


@final
@dataclass(frozen=True, eq=False)
class NumberCalibration:
    """Of predictive distributions of numbers.

    Attributes:
        levels: of central intervals, ascending, shape (L,).
        coverage: the share of truths inside, shape (L,).
        low: the lower end of where 95 % of such shares fall if the intervals are right, shape (L,).
        high: its upper end.
        pit: truths in tenths of their predictive distributions, shape (10,).
        pit_low: the lower end of the band that 95 % of such counts fall in.
        pit_high: its upper end.
        bias: mean(y − prediction), in y's unit.
        bias_low: the lower end of its 95 % bootstrap interval.
        bias_high: the upper end.
        spread: the root mean square of (y − prediction)/sd: 1 where the sd is right.
        spread_low: the lower end of its 95 % bootstrap interval.
        spread_high: the upper end.
        width: the mean width of the 95 % interval, in y's unit.
        rows: how many rows.
    """

    levels: np.ndarray
    coverage: np.ndarray
    low: np.ndarray
    high: np.ndarray
    pit: np.ndarray
    pit_low: float
    pit_high: float
    bias: float
    bias_low: float
    bias_high: float
    spread: float
    spread_low: float
    spread_high: float
    width: float
    rows: int


def class_calibration(judged: Judged, told: Predictions, random_state: int) -> ClassCalibration:
    """Measures calibration, and simulates what a calibrated model with these probabilities would show.

    Args:
        judged: rows with classes.
        told: their predictions.
        random_state: of the simulation.
    """
    probs, y = told.mean, judged.y
    confidence, right = probs.max(1), probs.argmax(1) == y
    ece = metrics.ece(probs, y, BINS)
    simulated, chances = _of_calibrated(confidence, random_state)
    chance_low, chance_high = central(chances)
    sure = confidence >= 0.9
    told_of_sure = (float(confidence[sure].mean()), float(right[sure].mean())) if sure.any() else (np.nan, np.nan)
    return ClassCalibration(
        metrics.reliability(probs, y, FEW_BINS if len(y) < FEW_ROWS else BINS),
        ece,
        float(simulated.mean()),
        float(np.quantile(simulated, 0.95)),
        float((simulated >= ece).mean()),
        float(confidence.mean()),
        float(right.mean()),
        float((confidence - right).mean()),
        float(chance_low),
        float(chance_high),
        (int(sure.sum()), *told_of_sure),
        len(y),
    )


def number_calibration(judged: Judged, told: Predictions, random_state: int) -> NumberCalibration:
    """Measures the coverage of intervals at many levels, where in its distribution each truth fell, and the bias.

    Args:
        judged: rows with numbers.
        told: their predictions.
        random_state: of the bootstrap.
    """
    y, rows = judged.y, len(judged)
    quantiles = told.quantiles
    ends = [(quantiles[:, place], quantiles[:, -1 - place]) for place in range(len(LEVELS))]
    ends.insert(0, (told.interval[:, 0], told.interval[:, 1]))
    levels = np.array([WIDE, *LEVELS])[::-1]
    coverage = np.array([((low <= y) & (y <= high)).mean() for low, high in ends])[::-1]
    low, high = (np.asarray(stats.binom.ppf(tail, rows, levels)) / rows for tail in TAILS)
    tenths = np.bincount((y[:, None] > quantiles[:, 1::2]).sum(1), minlength=PIT_BINS)
    pit_low, pit_high = (float(stats.binom.ppf(tail, rows, 1 / PIT_BINS)) for tail in TAILS)
    residual = y - told.mean[:, 0]
    sd = np.hypot(told.epistemic[:, 0], told.aleatoric[:, 0])
    both = np.column_stack([residual, (residual / sd) ** 2])
    drawn = central(bootstrap(lambda weights: weights @ both / rows, rows, random_state))
    spread = np.sqrt([both[:, 1].mean(), *drawn[:, 1]])
    width = float((told.interval[:, 1] - told.interval[:, 0]).mean())
    return NumberCalibration(
        levels, coverage, low, high, tenths, pit_low, pit_high, float(residual.mean()), float(drawn[0, 0]),
        float(drawn[1, 0]), float(spread[0]), float(spread[1]), float(spread[2]), width, rows,
    )  # fmt: skip


def _of_calibrated(confidence: np.ndarray, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibration errors and gaps of rows that are right as often as they are said to be, each of shape (S,)."""
    generator = np.random.default_rng(random_state)
    where = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    in_bin = np.eye(BINS)[where]
    rows, size = len(confidence), max(1, BLOCK_NUMBERS // len(confidence))
    told = confidence @ in_bin
    errors, gaps = [], []
    for start in range(0, SIMULATIONS, size):
        count = min(size, SIMULATIONS - start)
        right = generator.random((count, rows)) < confidence
        apart = told - right @ in_bin
        errors.append(np.abs(apart).sum(1) / rows)
        gaps.append(apart.sum(1) / rows)
    return np.concatenate(errors), np.concatenate(gaps)
