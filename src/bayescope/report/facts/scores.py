"""The headline figures, each with the interval that other rows of the same kind could have given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import erf

from bayescope import metrics
from bayescope.report.facts.bootstrap import Statistic, bootstrap, central
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.predictions import Predictions
from bayescope.report.facts.weights import NORMAL_95

Floats = np.ndarray


@final
@dataclass(frozen=True)
class Score:
    """One figure.

    Attributes:
        name: "accuracy", "auroc", "nll", "brier", "ece", "rmse", "crps" or "coverage".
        value: of the judged rows.
        low: the lower end of its 95 % interval: bootstrap over rows, and Wilson's for shares.
        high: the upper end.
        baseline: of a model that knows the target's distribution in these rows and no feature; NaN where it says
            nothing.
    """

    name: str
    value: float
    low: float
    high: float
    baseline: float = math.nan


def class_scores(judged: Judged, told: Predictions, random_state: int) -> tuple[Score, ...]:
    """Accuracy, AUROC (where every class occurs), NLL, Brier score and expected calibration error.

    Args:
        judged: rows with classes.
        told: their predictions.
        random_state: of the bootstrap.
    """
    probs, y = told.mean, judged.y
    shares = np.bincount(y, minlength=probs.shape[1]) / len(y)
    constant = np.broadcast_to(shares, probs.shape)
    by_row = np.column_stack([probs.argmax(1) == y, -told.log_prob, brier_rows(probs, y)])
    ends = _ends(bootstrap(lambda weights: weights @ by_row[:, 1:] / len(y), len(y), random_state))
    accuracy, nll, brier = by_row.mean(0)
    answers = [
        Score("accuracy", float(accuracy), *wilson(accuracy, len(y)), float(shares.max())),
        Score("nll", float(nll), *ends[0], -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())),
        Score("brier", float(brier), *ends[1], float(brier_rows(constant, y).mean())),
        _ece(probs, y, random_state),
    ]
    if (shares > 0).all():
        classes = [1] if probs.shape[1] == 2 else range(probs.shape[1])
        areas = [_areas(probs[:, k], y == k) for k in classes]
        drawn = bootstrap(lambda weights: np.column_stack([area(weights) for area in areas]), len(y), random_state)
        answers.insert(1, Score("auroc", metrics.auroc(probs, y), *_ends(drawn.mean(1, keepdims=True))[0], 0.5))
    return tuple(answers)


def number_scores(judged: Judged, told: Predictions, random_state: int) -> tuple[Score, ...]:
    """RMSE, CRPS and NLL, and the coverage of 95 % intervals. CRPS is that of a Gaussian with the same two moments.

    Args:
        judged: rows with numbers.
        told: their predictions.
        random_state: of the bootstrap.
    """
    y, mean = judged.y, told.mean[:, 0]
    sd = np.hypot(told.epistemic[:, 0], told.aleatoric[:, 0])
    inside = (told.interval[:, 0] <= y) & (y <= told.interval[:, 1])
    by_row = np.column_stack([(y - mean) ** 2, crps_rows(mean, sd, y), -told.log_prob])
    ends = _ends(bootstrap(lambda weights: weights @ by_row / len(y), len(y), random_state))
    square, crps, nll = by_row.mean(0).tolist()
    spread = float(y.std()) or math.nan
    flat = np.full_like(y, y.mean())
    return (
        Score("rmse", math.sqrt(square), math.sqrt(ends[0][0]), math.sqrt(ends[0][1]), spread),
        Score("crps", crps, *ends[1], float(crps_rows(flat, np.full_like(y, spread), y).mean())),
        Score("nll", nll, *ends[2], 0.5 * math.log(2.0 * math.pi * math.e * spread**2)),
        Score("coverage", float(inside.mean()), *wilson(inside.mean(), len(y))),
    )


def _ends(drawn: Floats) -> list[tuple[float, float]]:
    """The central 95 % of each statistic."""
    low, high = central(drawn)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def wilson(share: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a share that Wilson (1927) inverts the score test for: not empty at 0 and 1 either.

    The bootstrap's is: rows that are all right give resampled rows that are all right.
    """
    square = NORMAL_95**2 / rows
    middle, half = share + 0.5 * square, math.sqrt(share * (1.0 - share) * square + 0.25 * square**2)
    return float((middle - half) / (1.0 + square)), float((middle + half) / (1.0 + square))


def brier_rows(probs: Floats, y: Floats) -> Floats:
    """Σ_k (p_k − 1[y = k])² per row, halved for two classes, as `metrics.brier` has it, shape (N,)."""
    squares: Floats = ((probs - np.eye(probs.shape[1])[y]) ** 2).sum(1)
    return squares * (0.5 if probs.shape[1] == 2 else 1.0)


def crps_rows(mean: Floats, sd: Floats, y: Floats) -> Floats:
    """sd (z (2Φ(z) − 1) + 2φ(z) − π^(−½)) per row, z = (y − mean)/sd (Gneiting & Raftery 2007), shape (N,)."""
    z = (y - mean) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    answer: Floats = sd * (z * erf(z / math.sqrt(2.0)) + 2.0 * density - 1.0 / math.sqrt(math.pi))
    return answer


def gap_in_bins(probs: Floats, y: Floats, bins: int = 15) -> Statistic:
    """The expected calibration error of weighted rows, as a statistic."""
    confidence, right = probs.max(1), probs.argmax(1) == y
    where = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.zeros((len(y), bins))
    gaps[np.arange(len(y)), where] = right - confidence

    def weighted(weights: Floats) -> Floats:
        error: Floats = np.abs(weights @ gaps).sum(1, keepdims=True) / len(y)
        return error

    return weighted


def _ece(probs: Floats, y: Floats, random_state: int) -> Score:
    """With the bootstrap's interval moved back by its bias: the gaps of resampled bins are noisier, and so wider."""
    value = metrics.ece(probs, y)
    drawn = bootstrap(gap_in_bins(probs, y), len(y), random_state)
    low, high = central(drawn - drawn.mean() + value)[:, 0]
    return Score("ece", value, max(0.0, float(low)), float(high))


def _areas(score: Floats, positive: Floats) -> Callable[[Floats], Floats]:
    """The weighted area under the ROC curve, Σ_u P_u (N_{<u} + ½ N_u)/(P N) over distinct scores u, as a statistic."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(score[order]) > 0]))

    def weighted(weights: Floats) -> Floats:
        ranked = weights[:, order]
        up = np.add.reduceat(ranked * positive[order], starts, axis=1)
        down = np.add.reduceat(ranked * ~positive[order], starts, axis=1)
        below = np.cumsum(down, axis=1) - 0.5 * down
        with np.errstate(invalid="ignore"):
            area: Floats = (up * below).sum(1) / (up.sum(1) * down.sum(1))
        return area

    return weighted
