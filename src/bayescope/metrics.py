"""How good predictions are: proper scores, calibration and discrimination.

Predictions come first, the truth last. Inputs are arrays or tensors, answers are Python floats, averages over the rows.
Class probabilities are (N, K), each row summing to 1, or, for two classes, the probabilities of class 1 of shape (N,);
labels are integers 0…K−1 of shape (N,). Calibration is judged as in Guo et al. (2017): the confidence is the largest
probability of a row, its accuracy whether that class is the true one, and the bins have equal width in confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from sklearn.metrics import roc_auc_score

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError

__all__ = ["Reliability", "auroc", "brier", "coverage", "crps", "ece", "nll", "ood_auroc", "reliability"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

# Bins of confidence that a calibration error is over, wherever the library states one.
BINS = 15
# Probabilities may miss a sum of 1 by the rounding of float32 over many classes.
_SUM_TOLERANCE = 1e-4
# What scores a prediction p that is no table of one label a row.
_ELSEWHERE = " For several labels or positions a row, -p.log_prob(y).mean() of the prediction p scores them."


@final
@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: per bin of confidence, how often the predicted class was right. Arrays of shape (bins,).

    Attributes:
        edges: the bins' edges, shape (bins + 1,); a bin holds its upper edge, the first one 0 too.
        confidence: the mean confidence, NaN in an empty bin.
        accuracy: the share of rows whose most probable class is the true one, NaN in an empty bin.
        count: the number of rows.
        low: lower end of the 95 % band of the accuracy of a calibrated prediction, NaN in an empty bin: the binomial
            quantile for the bin's count and mean confidence.
        high: its upper end.
    """

    edges: Floats
    confidence: Floats
    accuracy: Floats
    count: Labels
    low: Floats
    high: Floats


@overload
def nll(probs: ArrayLike, y: ArrayLike, /) -> float: ...
@overload
def nll(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, /) -> float: ...
def nll(first: ArrayLike, second: ArrayLike, third: ArrayLike | None = None, /) -> float:
    """Mean negative log probability of the truth, in nats: ``nll(probs, y)`` or ``nll(mean, variance, y)``.

    Classes: −N⁻¹ Σ log p(y_n); infinite where a true label was given probability 0. Gaussian predictions:
    N⁻¹ Σ ½ (log 2π variance + (y − mean)²/variance), summed over the columns of outputs of shape (N, D).

    Args:
        first: a classifier's `Predictive`, class probabilities, shape (N, K) or (N,), or the means of Gaussians, shape
            (N,) or (N, D).
        second: labels 0…K−1, shape (N,), or the variances, of the means' shape.
        third: for Gaussians, the truths, of the means' shape.

    Raises:
        InputError: if shapes do not fit, labels or probabilities are out of range, or a variance is not positive.
    """
    if third is None:
        probs, labels = _classified(first, second)
        with np.errstate(divide="ignore"):
            return float(-np.log(probs[np.arange(len(labels)), labels]).mean())
    mean, variance, y = _gaussian(first, second, third)
    rows = 0.5 * (np.log(2 * math.pi * variance) + (y - mean) ** 2 / variance)
    return float(rows.reshape(len(rows), -1).sum(1).mean())


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """N⁻¹ Σ_n Σ_k (p_nk − [y_n = k])², halved for two classes, where it is the mean of (p_n1 − y_n)².

    Args:
        probs: a `Predictive`; or class probabilities, rows summing to 1, shape (N, K); or (N,), of class 1 of two.
        y: labels, shape (N,): 0…K−1, or those that the predictive's estimator was fitted to.

    Raises:
        InputError: if shapes do not fit or labels or probabilities are out of range.
    """
    table, labels = _classified(probs, y)
    squares = (table - np.eye(table.shape[1])[labels]) ** 2
    return float(squares.sum(1).mean() * (0.5 if table.shape[1] == 2 else 1.0))


def ece(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error Σ_b (n_b/N) ∣accuracy_b − confidence_b∣ over bins of equal width (Guo et al. 2017).

    Args:
        probs: a `Predictive`; or class probabilities, rows summing to 1, shape (N, K); or (N,), of class 1 of two.
        y: labels, shape (N,): 0…K−1, or those that the predictive's estimator was fitted to.
        bins: how many, over [0, 1].

    Raises:
        InputError: if shapes do not fit or labels or probabilities are out of range.
    """
    diagram = reliability(probs, y, bins)
    filled = diagram.count > 0
    gaps = np.abs(diagram.accuracy - diagram.confidence)[filled]
    return float((diagram.count[filled] * gaps).sum() / diagram.count.sum())


def bin_of(confidence: Floats, bins: int = BINS) -> Labels:
    """The bin of each confidence among bins of equal width over [0, 1], which hold their upper edges, shape (N,)."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)


def reliability(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> Reliability:
    """Confidence and accuracy in bins of equal width, with the bands that a calibrated prediction stays in.

    Args:
        probs: a `Predictive`; or class probabilities, rows summing to 1, shape (N, K); or (N,), of class 1 of two.
        y: labels, shape (N,): 0…K−1, or those that the predictive's estimator was fitted to.
        bins: how many, over [0, 1].

    Raises:
        InputError: if shapes do not fit or labels or probabilities are out of range.
    """
    table, labels = _classified(probs, y)
    edges = np.linspace(0.0, 1.0, checks.count("bins", bins) + 1)
    confidence, right = table.max(1), table.argmax(1) == labels
    where = bin_of(confidence, bins)
    count = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(where, confidence, minlength=bins) / count
        accuracy = np.bincount(where, right, minlength=bins) / count
    # Rounding may carry a mean of ones past 1.
    level = np.minimum(mean_confidence, 1.0)
    low, high = (stats.binom.ppf(tail, count, level) / np.maximum(count, 1) for tail in (0.025, 0.975))
    return Reliability(edges, mean_confidence, accuracy, count, low, high)


def auroc(probs: ArrayLike, y: ArrayLike) -> float:
    """Area under the ROC curve, ties counted half; for K > 2 classes the mean over classes of one against the rest.

    Args:
        probs: a `Predictive`; or class probabilities, rows summing to 1, shape (N, K); or (N,), of class 1 of two.
        y: labels, shape (N,): 0…K−1, or those that the predictive's estimator was fitted to.

    Raises:
        InputError: if shapes do not fit, labels or probabilities are out of range, or a class has no rows.
    """
    table, labels = _classified(probs, y)
    absent = np.setdiff1d(np.arange(table.shape[1]), labels)
    if absent.size:
        raise InputError(f"y: expected rows of every class for the AUROC, got none of class {absent[0]}.")
    classes = [1] if table.shape[1] == 2 else range(table.shape[1])
    return float(np.mean([roc_auc_score(labels == k, table[:, k]) for k in classes]))


def ood_auroc(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """How well a score tells other data from the data at hand: P(out > in) + ½ P(out = in).

    Args:
        score_in: scores of inputs like the training data, shape (N,).
        score_out: scores of other inputs, shape (M,). Larger means less certain, such as an entropy or a variance.

    Raises:
        InputError: if either is empty or not one-dimensional.
    """
    scores = [_floats(name, value) for name, value in (("score_in", score_in), ("score_out", score_out))]
    for name, score in zip(("score_in", "score_out"), scores, strict=True):
        if score.ndim != 1 or score.size == 0:
            raise InputError(f"{name}: expected shape (N,) with N ≥ 1, got {score.shape}.")
    outside = np.repeat([0, 1], [scores[0].size, scores[1].size])
    return float(roc_auc_score(outside, np.concatenate(scores)))


def coverage(low: ArrayLike, high: ArrayLike, y: ArrayLike) -> float:
    """The share of truths in their closed intervals, over all entries.

    Args:
        low: lower ends, any shape.
        high: upper ends, the same shape.
        y: the truths, the same shape.

    Raises:
        InputError: if shapes differ or a lower end is above its upper end.
    """
    bottom, top, truth = _same_shape(("low", low), ("high", high), ("y", y))
    if (bottom > top).any():
        raise InputError("low: expected each at most its high, got intervals whose low is above their high.")
    return float(((bottom <= truth) & (truth <= top)).mean())


def crps(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean continuous ranked probability score of N(mean, variance), in the unit of y, over all entries.

    With z = (y − mean)/sd, it is sd (z (2Φ(z) − 1) + 2φ(z) − π^(−½)) (Gneiting & Raftery 2007, negated).

    Raises:
        InputError: if shapes differ or a variance is not positive.
    """
    centre, spread, truth = _gaussian(mean, variance, y)
    sd = np.sqrt(spread)
    z = (truth - centre) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return float((sd * (z * special.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean())


def _floats(name: str, value: ArrayLike) -> Floats:
    array: Floats = checks.float64(name, value).cpu().numpy()
    return array


def _classified(probs: ArrayLike, y: ArrayLike) -> tuple[Floats, Labels]:
    """Checked probabilities (N, K) and labels (N,)."""
    if callable(coded := getattr(probs, "codes", None)):  # a predictive
        if cast(Any, probs).top is not None:
            raise UnsupportedError(
                "probs: expected a prediction of all classes, got the most probable ones alone. Predict without top=."
            )
        probs, y = cast(Any, probs).probs, coded(y)
    table = _floats("probs", probs)
    try:
        labels = _floats("y", y)
    except InputTypeError as error:
        raise InputTypeError(
            f"{error} Give predict_distribution(X) in the place of its probabilities, or the column of each row's "
            "class: np.searchsorted(estimator.classes_, y)."
        ) from None
    if table.ndim == 1:
        table = np.stack([1.0 - table, table], axis=1)
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] < 2:
        advice = _ELSEWHERE if table.ndim > 2 else ""
        raise InputError(
            f"probs: expected shape (N, K) with K ≥ 2, or (N,) for two classes, got {table.shape}.{advice}"
        )
    if (table < 0).any() or (table > 1).any():
        row = int(np.nonzero(((table < 0) | (table > 1)).any(1))[0][0])
        raise InputError(f"probs: expected numbers between 0 and 1, got {table[row].tolist()} in row {row}.")
    sums = table.sum(1)
    if (np.abs(sums - 1) > _SUM_TOLERANCE).any():
        row = int(np.argmax(np.abs(sums - 1)))
        raise InputError(f"probs: expected rows that sum to 1, got the sum {sums[row]:.6g} in row {row}.{_ELSEWHERE}")
    if labels.shape != (table.shape[0],):
        advice = _ELSEWHERE if labels.ndim > 1 else ""
        raise InputError(f"y: expected class labels of shape ({table.shape[0]},), got {labels.shape}.{advice}")
    wrong = (labels < 0) | (labels >= table.shape[1]) | (labels != np.floor(labels))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"y: expected class labels 0…{table.shape[1] - 1}, got {labels[row]:g} in row {row}.")
    return table, labels.astype(np.int64)


def _gaussian(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats, Floats]:
    centre, spread, truth = _same_shape(("mean", mean), ("variance", variance), ("y", y))
    if (spread <= 0).any():
        raise InputError(f"variance: expected positive numbers, got {spread.min():g}.")
    return centre, spread, truth


def _same_shape(*named: tuple[str, Any]) -> tuple[Floats, Floats, Floats]:
    first, second, third = (_floats(name, value) for name, value in named)
    if not first.shape == second.shape == third.shape or first.size == 0 or first.ndim == 0:
        shapes = ", ".join(
            f"{name} {array.shape}" for (name, _), array in zip(named, (first, second, third), strict=True)
        )
        raise InputError(f"expected arrays of one shape (N,) or (N, D) with N ≥ 1, got {shapes}.")
    return first, second, third
