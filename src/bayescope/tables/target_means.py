"""Labels as the mean of the target among the rows that have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from bayescope.storage import stored

# The mean of a label counts so many rows of the overall mean beside its own.
PRIOR_ROWS = 10.0
# Each row is encoded by the targets of the other parts.
FOLDS = 5


@stored("target_means")
@final
@dataclass(frozen=True, eq=False)
class TargetMeans:
    """Levels as the mean of the targets among the rows that have them, (Σ w y + m ȳ)/(Σ w + m) with m = 10.

    It is shrunk towards that of all, ȳ, as if m more rows had that: Micci-Barreca (2001), "A preprocessing scheme for
    high-cardinality categorical attributes", eqs. 3–4. scikit-learn's encoder does the same but knows no weights.

    Attributes:
        means: for each column of levels, those of its K levels and of M targets, shape (K, M).
    """

    means: tuple[np.ndarray, ...]

    @classmethod
    def fit(
        cls, sizes: Sequence[int], levels: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> TargetMeans:
        """Learns the means.

        Args:
            sizes: how many levels each column may have; those that do not occur have the mean of all.
            levels: shape (N, D), N ≥ 1.
            targets: shape (N, M).
            weights: how often each row counts, shape (N,).
        """
        each = np.ones(len(levels)) if weights is None else weights
        overall = each @ targets / each.sum()
        means = []
        for size, column in zip(sizes, levels.T, strict=True):
            counts = np.bincount(column, each, minlength=size)
            sums = np.stack([np.bincount(column, each * y, minlength=size) for y in targets.T], axis=1)
            means.append((sums + PRIOR_ROWS * overall) / (counts + PRIOR_ROWS)[:, None])
        return cls(tuple(means))

    def transform(self, levels: np.ndarray) -> np.ndarray:
        """The means of the levels of D columns, column by column, shape (N, D M)."""
        return np.hstack([means[column] for means, column in zip(self.means, levels.T, strict=True)])


def out_of_fold(
    sizes: Sequence[int], levels: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, random_state: int
) -> tuple[TargetMeans, np.ndarray]:
    """The means over all rows, and for each row those over the parts that it is not in.

    Args:
        sizes: how many levels each column may have.
        levels: shape (N, D).
        targets: class codes as integers or numbers, shape (N,), or numbers, shape (N, M).
        weights: how often each row counts, shape (N,).
        random_state: of the five parts.
    """
    columns = _columns(targets)
    encoder = TargetMeans.fit(sizes, levels, columns, weights)
    codes = encoder.transform(levels)
    parts = np.random.default_rng(random_state).permutation(len(levels)) % FOLDS
    for part in range(min(FOLDS, len(levels)) if len(levels) > 1 else 0):
        inside, rest = parts == part, parts != part
        others = TargetMeans.fit(sizes, levels[rest], columns[rest], None if weights is None else weights[rest])
        codes[inside] = others.transform(levels[inside])
    return encoder, codes


def _columns(targets: np.ndarray) -> np.ndarray:
    """What means are taken of, shape (N, M): numbers as they are, the second of two classes, each of more."""
    if targets.ndim == 2:
        return targets.astype(np.float64)
    if targets.dtype.kind in "iu" and targets.max() > 1:
        return np.eye(int(targets.max()) + 1)[targets]
    return targets.astype(np.float64)[:, None]
