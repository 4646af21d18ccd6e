"""The statistics of a report: scores with intervals, calibration against chance, and the rows that are in doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import erf

from bayescope import metrics
from bayescope.comparison.answers import share_below, share_inside
from bayescope.comparison.resampling import (
    BLOCK_NUMBERS,
    TAILS,
    bootstrap,
    brier_rows,
    central,
    gap_in_bins,
    judged_classes,
)
from bayescope.metrics import Reliability
from bayescope.report.judged import WIDE, Judged, Predictions

# Areas under a curve that differ by less are equal.
ROOM = 1e-9
NORMAL_95 = float(stats.norm.ppf(TAILS[1]))

Floats = np.ndarray


# Scores ---------------------------------------------------------------------------------------------------------------
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


def class_scores(judged: Judged, predicted: Predictions, random_state: int) -> tuple[Score, ...]:
    """Accuracy, AUROC (where every class occurs), NLL, Brier score and expected calibration error.

    Args:
        judged: rows with classes.
        predicted: their predictions.
        random_state: of the bootstrap.
    """
    probs, y = predicted.mean, judged.y
    shares = np.bincount(y, minlength=probs.shape[1]) / len(y)
    constant = np.broadcast_to(shares, probs.shape)
    # Of rows of one class nothing is known that a model without features would not know.
    known = math.nan if shares.max() == 1.0 else 1.0
    by_row = np.column_stack([probs.argmax(1) == y, -predicted.log_prob, brier_rows(probs, y)])
    ends = _ends(bootstrap(lambda weights: weights @ by_row[:, 1:] / len(y), len(y), random_state))
    accuracy, nll, brier = by_row.mean(0)
    answers = [
        Score("accuracy", float(accuracy), *wilson(accuracy, len(y)), known * float(shares.max())),
        Score("nll", float(nll), *ends[0], -known * float((shares[shares > 0] * np.log(shares[shares > 0])).sum())),
        Score("brier", float(brier), *ends[1], known * float(brier_rows(constant, y).mean())),
        _ece(probs, y, random_state),
    ]
    if (shares > 0).all():
        classes = judged_classes(probs.shape[1])
        of_classes = [metrics.auroc(probs[:, k], (y == k).astype(int)) for k in classes]
        each = [newcombe(area, y == k) for k, area in zip(classes, of_classes, strict=True)]
        # Of several classes the ends are averaged, as if their errors were one: never too narrow.
        low, high = (float(end) for end in np.mean(each, axis=0))
        answers.insert(1, Score("auroc", float(np.mean(of_classes)), low, high, 0.5))
    return tuple(answers)


def number_scores(judged: Judged, predicted: Predictions, random_state: int) -> tuple[Score, ...]:
    """RMSE, CRPS and NLL, and the coverage of 95 % intervals.

    CRPS is that of the predictive distribution; beside it stands that of a Gaussian with the moments of y.

    Args:
        judged: rows with numbers.
        predicted: their predictions.
        random_state: of the bootstrap.
    """
    y, mean = judged.y, predicted.mean[:, 0]
    inside = share_inside(predicted.pit_ends, np.array([WIDE])).mean()
    by_row = np.column_stack([(y - mean) ** 2, -predicted.log_prob, predicted.crps])
    ends = _ends(bootstrap(lambda weights: weights @ by_row / len(y), len(y), random_state))
    square, nll, crps = by_row.mean(0).tolist()
    spread = float(y.std()) or math.nan
    flat = np.full_like(y, y.mean())
    constant = float(crps_rows(flat, np.full_like(y, spread), y).mean())
    return (
        Score("rmse", math.sqrt(square), math.sqrt(ends[0][0]), math.sqrt(ends[0][1]), spread),
        Score("crps", crps, *ends[2], constant),
        Score("nll", nll, *ends[1], 0.5 * math.log(2.0 * math.pi * math.e * spread**2)),
        Score("coverage", float(inside), *wilson(inside, len(y))),
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


def crps_rows(mean: Floats, sd: Floats, y: Floats) -> Floats:
    """sd (z (2Φ(z) − 1) + 2φ(z) − π^(−½)) per row, z = (y − mean)/sd (Gneiting & Raftery 2007), shape (N,)."""
    z = (y - mean) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    answer: Floats = sd * (z * erf(z / math.sqrt(2.0)) + 2.0 * density - 1.0 / math.sqrt(math.pi))
    return answer


def _ece(probs: Floats, y: Floats, random_state: int) -> Score:
    """With the bootstrap's interval moved back by its bias: the gaps of resampled bins are noisier, and so wider."""
    value = metrics.ece(probs, y)
    drawn = bootstrap(gap_in_bins(probs, y), len(y), random_state)
    low, high = central(drawn - drawn.mean() + value)[:, 0]
    return Score("ece", value, max(0.0, float(low)), float(high))


def newcombe(area: float, positive: Floats) -> tuple[float, float]:
    """The 95 % interval of an area A under the ROC curve: all θ with (A − θ)² ≤ z² V(θ).

    V(θ) = θ(1 − θ) (1 + (N/2 − 1) ((1 − θ)/(2 − θ) + θ/(1 + θ)))/(N₀ N₁), as for exponential scores (Newcombe 2006,
    "Confidence intervals for an effect size measure based on the Mann-Whitney statistic", part 2, method 5). As
    Wilson's of a share, the interval is not empty where all positive rows are above all negative ones; the bootstrap's
    is, since resampled rows are separated too.

    Args:
        area: A.
        positive: which of the N rows are positive, shape (N,); N₁ are.
    """
    ones = int(np.sum(positive))
    pairs, rows = ones * (len(positive) - ones), len(positive)

    def beyond(theta: float) -> float:
        spread = 1.0 + (0.5 * rows - 1.0) * ((1.0 - theta) / (2.0 - theta) + theta / (1.0 + theta))
        return (area - theta) ** 2 - NORMAL_95**2 * theta * (1.0 - theta) * spread / pairs

    # At 0 and 1 the area itself is a root, from which the interval begins.
    low = float(brentq(beyond, 0.0, area - ROOM)) if area > ROOM else 0.0
    high = float(brentq(beyond, area + ROOM, 1.0)) if area < 1.0 - ROOM else 1.0
    return low, high


# Calibration ----------------------------------------------------------------------------------------------------------
SIMULATIONS = 1000
PIT_BINS = 10
EDGES = np.linspace(0.0, 1.0, PIT_BINS + 1)[1:-1]
# The probabilities of the central intervals whose coverage is measured.
LEVELS = np.array([*EDGES, WIDE])


@final
@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """The calibration of class probabilities.

    Attributes:
        reliability: accuracy in bins of confidence, with the band of a calibrated model.
        ece: the expected calibration error over the bins of `reliability`.
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
    """The calibration of predictive distributions of numbers.

    Attributes:
        levels: of central intervals, ascending, shape (L,).
        coverage: the share of truths inside, as `share_inside` counts them, shape (L,).
        low: the lower end of where 95 % of such shares fall if the intervals are right, shape (L,); more than 95 % of
            them if numbers have probabilities.
        high: its upper end.
        pit: truths in tenths of their predictive distributions, shape (10,): of numbers that have probabilities the
            shares in each tenth.
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
        partly: whether a number that has a probability, such as a count, is among the truths.
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
    partly: bool


def class_calibration(judged: Judged, predicted: Predictions, random_state: int) -> ClassCalibration:
    """Measures calibration, and simulates what a calibrated model with these probabilities would show.

    Args:
        judged: rows with classes.
        predicted: their predictions.
        random_state: of the simulation.
    """
    probs, y = predicted.mean, judged.y
    confidence, right = probs.max(1), probs.argmax(1) == y
    ece = metrics.ece(probs, y)
    simulated, chances = _of_calibrated(confidence, random_state)
    chance_low, chance_high = central(chances)
    sure = confidence >= 0.9
    of_sure = (float(confidence[sure].mean()), float(right[sure].mean())) if sure.any() else (np.nan, np.nan)
    return ClassCalibration(
        metrics.reliability(probs, y),
        ece,
        float(simulated.mean()),
        float(np.quantile(simulated, 0.95)),
        float((simulated >= ece).mean()),
        float(confidence.mean()),
        float(right.mean()),
        float((confidence - right).mean()),
        float(chance_low),
        float(chance_high),
        (int(sure.sum()), *of_sure),
        len(y),
    )


def number_calibration(judged: Judged, predicted: Predictions, random_state: int) -> NumberCalibration:
    """Measures the coverage of intervals at many levels, where in its distribution each truth fell, and the bias.

    Args:
        judged: rows with numbers.
        predicted: their predictions.
        random_state: of the bootstrap.
    """
    y, rows = judged.y, len(judged)
    coverage = share_inside(predicted.pit_ends, LEVELS).mean(0)
    low, high = (np.asarray(stats.binom.ppf(tail, rows, LEVELS)) / rows for tail in TAILS)
    tenths = np.diff(share_below(predicted.pit_ends, EDGES).sum(0), prepend=0.0, append=rows)
    pit_low, pit_high = (float(stats.binom.ppf(tail, rows, 1 / PIT_BINS)) for tail in TAILS)
    residual = y - predicted.mean[:, 0]
    both = np.column_stack([residual, (residual / predicted.sd[:, 0]) ** 2])
    drawn = central(bootstrap(lambda weights: weights @ both / rows, rows, random_state))
    spread = np.sqrt([both[:, 1].mean(), *drawn[:, 1]])
    width = float((predicted.interval[:, 1] - predicted.interval[:, 0]).mean())
    return NumberCalibration(
        LEVELS, coverage, low, high, tenths, pit_low, pit_high, float(residual.mean()), float(drawn[0, 0]),
        float(drawn[1, 0]), float(spread[0]), float(spread[1]), float(spread[2]), width, rows,
        bool(np.ptp(predicted.pit_ends, axis=1).any()),
    )  # fmt: skip


def _of_calibrated(confidence: np.ndarray, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibration errors and gaps of rows that are right as often as they are said to be, each of shape (S,)."""
    generator = np.random.default_rng(random_state)
    in_bin = np.eye(metrics.BINS)[metrics.bin_of(confidence)]
    rows, size = len(confidence), max(1, BLOCK_NUMBERS // len(confidence))
    expected = confidence @ in_bin
    errors, gaps = [], []
    for start in range(0, SIMULATIONS, size):
        count = min(size, SIMULATIONS - start)
        right = generator.random((count, rows)) < confidence
        apart = expected - right @ in_bin
        errors.append(np.abs(apart).sum(1) / rows)
        gaps.append(apart.sum(1) / rows)
    return np.concatenate(errors), np.concatenate(gaps)


# Doubt ----------------------------------------------------------------------------------------------------------------
LISTED = 15
# Rows that can be looked at; intervals of three classes and more are integrals that take their time.
SHOWN, SHOWN_OF_MANY = 250, 120


@final
@dataclass(frozen=True, eq=False)
class Doubt:
    """Uncertainty row by row.

    Attributes:
        epistemic: whether ``sd`` is the epistemic part; a point posterior has none, and then it is the whole.
        sd: of the predicted class's probability, or of the mean of y, shape (N,).
        predicted: the predicted class's code, or the mean of y, shape (N,).
        error: 1 where the predicted class is wrong, or ∣y − mean∣, shape (N,).
        listed: places of the rows with the largest sd, largest first.
        explorable: places of the rows that can be looked at one by one: those listed, then others at random.
        most: the mean error (for numbers the RMSE) of the tenth of the rows with the largest sd.
        rest: the mean error of all other rows.
        association: P(sd of a wrong row > sd of a right one), or the rank correlation of sd and ∣y − mean∣; NaN where
            it is undefined.
    """

    epistemic: bool
    sd: np.ndarray
    predicted: np.ndarray
    error: np.ndarray
    listed: np.ndarray
    explorable: np.ndarray
    most: float
    rest: float
    association: float


def doubt(judged: Judged, outputs: Predictions, random_state: int) -> Doubt:
    """Ranks the rows by their epistemic uncertainty and compares the errors of the most uncertain with the others'.

    Args:
        judged: the rows.
        outputs: their predictions.
        random_state: of the rows that are added to those listed.
    """
    rows = np.arange(len(judged))
    classes = bool(judged.classes)
    predicted = outputs.mean.argmax(1) if classes else outputs.mean[:, 0]
    column = predicted if classes else np.zeros(len(rows), dtype=int)
    sd = outputs.epistemic[rows, column]
    epistemic = bool((sd > 0).any())
    if not epistemic:
        sd = outputs.sd[rows, column]
    error = (predicted != judged.y).astype(np.float64) if classes else np.abs(judged.y - predicted)
    order = np.argsort(-sd, kind="stable")
    listed = order[:LISTED]
    most = SHOWN if outputs.mean.shape[1] <= 2 else SHOWN_OF_MANY
    others = np.random.default_rng(random_state).permutation(order[LISTED:])[: most - len(listed)]
    tenth = max(1, len(rows) // 10)
    mean = np.mean if classes else _root_mean_square
    return Doubt(
        epistemic, sd, predicted, error, listed, np.concatenate([listed, np.sort(others)]),
        float(mean(error[order[:tenth]])), float(mean(error[order[tenth:]])), _association(classes, sd, error),
    )  # fmt: skip


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _association(classes: bool, sd: np.ndarray, error: np.ndarray) -> float:
    if np.ptp(error) == 0 or np.ptp(sd) == 0:
        return math.nan
    if not classes:
        return float(stats.spearmanr(sd, error).statistic)
    return metrics.ood_auroc(sd[error == 0], sd[error == 1])
