"""Columns of any length as small whole numbers: the place of each value among the few points that a model reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, final

import numpy as np

from bayescope.tables.columns import Column, values_of_kind
from bayescope.tables.encoding import NO_LEVEL, CategoricalEncoding, NumericEncoding, binned


@final
@dataclass(frozen=True, eq=False)
class Coded:
    """The points of a column, as a model takes them.

    Attributes:
        encoding: of the column.
        numbers: of each point, 0 where it is a level, shape (U,).
        levels: of each point, −1 where it is a number, int64 of shape (U,).
        weights: how often each was there, shape (U,).
        grouped: whether numbers were replaced by means of groups.
    """

    encoding: NumericEncoding | CategoricalEncoding
    numbers: np.ndarray
    levels: np.ndarray
    weights: np.ndarray
    grouped: bool


@final
class LabelCoder:
    """The levels that a column of labels has, in their order.

    Args:
        encoding: of the column.
    """

    def __init__(self, encoding: CategoricalEncoding) -> None:
        self._encoding = encoding
        counts = np.append(encoding.counts, encoding.missing)
        self._levels = np.flatnonzero(counts)
        self._place = np.full(len(counts) + 1, -1)
        self._place[self._levels] = np.arange(len(self._levels))
        self._weights = np.zeros(len(self._levels))

    @property
    def points(self) -> int:
        return len(self._levels)

    def codes(self, column: Column, weights: np.ndarray) -> np.ndarray:
        """The point of each label."""
        codes = self._place[self._encoding.encode(values_of_kind(column, "categorical"))[1]]
        self._weights += np.bincount(codes, weights, self.points)
        return codes

    def sums(self) -> list[np.ndarray]:
        """How often each was there."""
        return [self._weights]

    def coded(self, sums: list[np.ndarray]) -> Coded:
        return Coded(self._encoding, np.zeros(self.points), self._levels, sums[0], False)


@final
class NumberCoder:
    """Numbers in ascending order, each by itself or in groups of like size; last, where there is one, a missing value.

    Args:
        encoding: of the column, whose histogram is filled.
        values: all its different numbers, or a sample of them, in any order and as often as they were drawn.
        whole: whether these are all its numbers.
        most: how many points there may be.
    """

    def __init__(self, encoding: NumericEncoding, values: np.ndarray, whole: bool, most: int) -> None:
        self._encoding = encoding
        self._missing = int(encoding.missing > 0)
        room = most - self._missing
        distinct, ranks = np.unique(values, return_inverse=True)
        self._grouped = not (whole and len(distinct) <= room)
        self._starts = distinct[_first_of_groups(ranks, room)] if self._grouped else distinct
        self._weights, self._sums = np.zeros(self.points), np.zeros(len(self._starts))
        self._counts, self._bins = np.zeros(len(self._starts)), np.zeros(len(encoding.counts))

    @property
    def points(self) -> int:
        return len(self._starts) + self._missing

    def codes(self, column: Column, weights: np.ndarray) -> np.ndarray:
        """The point of each number."""
        x = values_of_kind(column, "numeric")
        missing = np.isnan(x)
        codes = np.searchsorted(self._starts[1:], x, side="right")  # NaN comes last, and is replaced
        if missing.any():
            codes[missing] = len(self._starts)
            x, present, there = x[~missing], codes[~missing], weights[~missing]
        else:
            present, there = codes, weights
        self._weights += np.bincount(codes, weights, self.points)
        if self._grouped:
            self._sums += np.bincount(present, self._encoding.forward(x), len(self._starts))
            self._counts += np.bincount(present, minlength=len(self._starts))
        if x.size:
            self._bins += binned(x, self._encoding.minimum, self._encoding.maximum, there)[1]
        return codes

    def sums(self) -> list[np.ndarray]:
        """Weights of the points; sums and counts of the numbers in groups; and the histogram."""
        return [self._weights, self._sums, self._counts, self._bins]

    def coded(self, sums: list[np.ndarray]) -> Coded:
        """The points, of which some may have been seen in the sample alone, by a process of other rows."""
        weights, numbers, counts, bins = sums
        encoding = replace(self._encoding, counts=bins)
        means = numbers / np.maximum(counts, 1.0) if self._grouped else encoding.forward(self._starts)
        gone = np.zeros(self._missing)
        levels = np.concatenate([np.full(len(means), NO_LEVEL), gone.astype(np.int64)])
        return Coded(encoding, np.concatenate([means, gone]), levels, weights, self._grouped)


# Codes a column, a block at a time.
Coder: TypeAlias = LabelCoder | NumberCoder


def _first_of_groups(ranks: np.ndarray, groups: int) -> np.ndarray:
    """The smallest rank of each of this many groups of like size: equal numbers stay together."""
    counts = np.bincount(ranks)
    if len(counts) <= groups:
        return np.arange(len(counts))
    last = np.cumsum(counts) - 1
    return np.unique(last * groups // len(ranks), return_index=True)[1]
