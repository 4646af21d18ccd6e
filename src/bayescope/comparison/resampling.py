"""The bootstrap over rows: statistics of weighted rows, for many weightings at once, and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bayescope import metrics

DRAWS, LEAST_DRAWS = 1000, 200
# Weights held at a time, and drawn in all.
BLOCK_NUMBERS, MOST_NUMBERS = 2**22, 2**25
TAILS = (0.025, 0.975)

Floats = np.ndarray

# From weights (B, N), each row of them summing to N, to statistics (B, S).
Statistic = Callable[[np.ndarray], np.ndarray]


def bootstrap(statistic: Statistic, rows: int, random_state: int) -> np.ndarray:
    """The statistics of resampled rows, shape (draws, S).

    Args:
        statistic: of weighted rows, for many weightings at once.
        rows: N.
        random_state: the seed; one seed draws the same rows for every statistic.
    """
    generator = np.random.default_rng(random_state)
    draws = int(np.clip(MOST_NUMBERS // rows, LEAST_DRAWS, DRAWS))
    size = max(1, BLOCK_NUMBERS // rows)
    answers = []
    for start in range(0, draws, size):
        count = min(size, draws - start)
        picked = generator.integers(rows, size=(count, rows)) + rows * np.arange(count)[:, None]
        weights = np.bincount(picked.ravel(), minlength=count * rows).reshape(count, rows).astype(np.float64)
        answers.append(statistic(weights))
    return np.concatenate(answers)


def central(draws: np.ndarray) -> np.ndarray:
    """The ends of the central 95 % of each statistic, shape (2, S); NaN draws, undefined statistics, do not count."""
    ends: np.ndarray = np.nanquantile(draws, TAILS, axis=0)
    return ends


def gap_in_bins(probs: Floats, y: Floats) -> Statistic:
    """The expected calibration error of weighted rows, as a statistic."""
    confidence, right = probs.max(1), probs.argmax(1) == y
    gaps = np.zeros((len(y), metrics.BINS))
    gaps[np.arange(len(y)), metrics.bin_of(confidence)] = right - confidence

    def weighted(weights: Floats) -> Floats:
        error: Floats = np.abs(weights @ gaps).sum(1, keepdims=True) / len(y)
        return error

    return weighted


def brier_rows(probs: Floats, y: Floats) -> Floats:
    """Σ_k (p_k − 1[y = k])² per row, halved for two classes, as `metrics.brier` has it, shape (N,)."""
    squares: Floats = ((probs - np.eye(probs.shape[1])[y]) ** 2).sum(1)
    return squares * (0.5 if probs.shape[1] == 2 else 1.0)


def weighted_auroc(score: Floats, positive: Floats) -> Callable[[Floats], Floats]:
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


def mean_auroc(probs: Floats, y: Floats) -> Statistic:
    """The mean weighted area of each class against the rest, as a statistic; of two classes that of the second."""
    areas = [weighted_auroc(probs[:, k], y == k) for k in judged_classes(probs.shape[1])]
    return lambda weights: np.mean([area(weights) for area in areas], axis=0)[:, None]


def judged_classes(classes: int) -> Sequence[int]:
    """The classes whose areas are averaged: of two the second alone, since the first has the same area."""
    return [1] if classes == 2 else range(classes)


def mean_of(rows: Floats) -> Statistic:
    """The mean over the rows, as a statistic."""
    return lambda weights: (weights @ rows / len(rows))[:, None]


def root_mean_of(squares: Floats) -> Statistic:
    """The root of the mean over the rows, as a statistic."""
    return lambda weights: np.sqrt(mean_of(squares)(weights))


def evenly(rows: int, most: int) -> Floats:
    """The places of at most ``most`` of N rows, in even steps from the first to the last."""
    places: Floats = np.linspace(0, rows - 1, min(rows, most)).round().astype(int)
    return places
