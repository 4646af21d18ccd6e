"""What one pass over a table of any length leaves of its columns: moments, extremes, labels, and a sample of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from bayescope.errors import InputError
from bayescope.storage import stored
from bayescope.tables.columns import Column
from bayescope.tables.encoding import CategoricalEncoding, NumericEncoding, Transform, binned, refuse_far, tally_of
from bayescope.tables.scaling import Quantiles, Standard, scale_of
from bayescope.tables.suspicion import refuse_labels_of_rows

# Different numbers of a column that are kept one by one; of a column with more a sample is kept.
MOST_VALUES = 1024
# Different labels of a column.
MOST_LABELS = 65_000
# Rows whose extremes are found side by side.
FOLDED = 64
# Rows of the sample.
SAMPLE_ROWS = 262_144


@stored("moments")
@final
@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Weighted sums over rows of D columns of numbers, NaN where missing.

    Attributes:
        size: how many numbers were there, shape (D,).
        missing: how many were missing, by weight.
        mass: the weight of those that were there.
        mean: theirs; 0 where there is none.
        squares: the weighted sum of squares about the mean.
        low: the smallest; infinity where there is none.
        high: the largest; −infinity where there is none.
    """

    size: np.ndarray
    missing: np.ndarray
    mass: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def none(cls, columns: int) -> ColumnMoments:
        """The moments of a table without rows."""
        return cls.of(np.empty((0, columns)), np.empty(0))

    @classmethod
    def of(cls, numbers: np.ndarray, weights: np.ndarray) -> ColumnMoments:
        """Of rows, shape (n, D), with weights above 0, shape (n,)."""
        absent = np.isnan(numbers)
        gaps, columns, filled = absent.any(), numbers.shape[1], numbers
        size, missing, mass = np.full(columns, len(numbers)), np.zeros(columns), np.full(columns, weights.sum())
        if gaps:
            size, missing, mass = (~absent).sum(0), weights @ absent, weights @ ~absent
            filled = np.where(absent, 0.0, numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers too far out are refused in the end
            mean = weights @ filled / np.where(mass > 0, mass, 1.0)
            apart = filled - mean
            if gaps:
                apart[absent] = 0.0
            squares = weights @ np.square(apart, out=apart)
        low, high = _extreme(np.fmin, np.inf, numbers), _extreme(np.fmax, -np.inf, numbers)
        return cls(size, missing, mass, mean, squares, low, high)

    def joined(self, other: ColumnMoments) -> ColumnMoments:
        """Those of both sets of rows (Chan, Golub & LeVeque 1983, eq. 2.1)."""
        mass = self.mass + other.mass
        share = other.mass / np.where(mass > 0, mass, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = other.mean - self.mean
            mean, squares = self.mean + apart * share, self.squares + other.squares + apart**2 * self.mass * share
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return ColumnMoments(self.size + other.size, self.missing + other.missing, mass, mean, squares, low, high)

    @property
    def scale(self) -> np.ndarray:
        """The standard deviations, 1 for a constant column."""
        return scale_of(self.mean, self.squares / np.where(self.mass > 0, self.mass, 1.0), self.size)

    @property
    def farthest(self) -> np.ndarray:
        """The largest number in size; 0 where there was none."""
        return np.maximum(np.maximum(-self.low, self.high), 0.0)


def _extreme(extreme: np.ufunc, initial: float, numbers: np.ndarray) -> np.ndarray:
    """The extreme of each column (n, D) but for NaN; NumPy reduces few long rows four times as fast as many short."""
    rows, columns = numbers.shape
    whole = rows // FOLDED * FOLDED
    folded = numbers[:whole].reshape(rows // FOLDED, FOLDED * columns)
    first = extreme.reduce(folded, 0, initial=initial).reshape(FOLDED, columns)
    return np.asarray(extreme.reduce(np.concatenate([first, numbers[whole:]]), 0, initial=initial))


@stored("tally", parts={"values": np.ndarray | None, "counts": np.ndarray})
@final
class Tally:
    """The different numbers of a column, added a block at a time.

    Attributes:
        values: ascending, or ``None`` where there are more than 1,024.
        counts: how often each was there, by weight.
    """

    def __init__(self) -> None:
        self.values: np.ndarray | None = np.empty(0)
        self.counts = np.empty(0)

    def add(self, numbers: np.ndarray, weights: np.ndarray) -> None:
        """Numbers, NaN where missing, and how often each counts, above 0; both of shape (n,)."""
        if self.values is None:
            return
        there = ~np.isnan(numbers)
        values, inverse = np.unique(np.concatenate([self.values, numbers[there]]), return_inverse=True)
        if len(values) > MOST_VALUES:
            self.values, self.counts = None, np.empty(0)
            return
        self.counts = np.bincount(inverse, np.concatenate([self.counts, weights[there]])).astype(np.float64)
        self.values = values

    def joined(self, other: Tally) -> Tally:
        """This, with what another pass has seen of other rows."""
        if other.values is None:
            self.values, self.counts = None, np.empty(0)
        else:
            self.add(other.values, other.counts)
        return self

    def known(self, sample: np.ndarray, moments: ColumnMoments, place: int) -> tuple[np.ndarray, np.ndarray]:
        """The different numbers and how often each was there; of more than 1,024 those of a sample, and their weights.

        A column that is mostly missing may have none in the sample: its extremes stand for it then.

        Args:
            sample: numbers of the column, NaN where missing, and their rows' weights, shape (n, 2).
            moments: of all columns.
            place: of the column among them.
        """
        if self.values is not None:
            return self.values, self.counts
        found = sample[~np.isnan(sample[:, 0])]
        if not len(found):
            return np.array([moments.low[place], moments.high[place]]), np.full(2, 0.5 * moments.mass[place])
        return found[:, 0], found[:, 1]


def numeric_encoding(
    name: str, transform: Transform, moments: ColumnMoments, place: int, known: tuple[np.ndarray, np.ndarray]
) -> NumericEncoding:
    """How a column is encoded; its histogram is still empty.

    Args:
        name: of the column.
        transform: "standard" or "quantile".
        moments: of all columns of numbers.
        place: of the column among them.
        known: its numbers, or some of them, and their weights, for the quantiles.

    Raises:
        InputError: if the numbers are so large that their squares are no floats.
    """
    refuse_far([name], moments.farthest[[place]])
    span = np.array([moments.low[place], moments.high[place]]) if moments.size[place] else np.empty(0)
    low, high = map(float, span) if len(span) else (np.nan, np.nan)
    standard = Standard(float(moments.mean[place]), float(moments.scale[place]))
    edges, counts = binned(span, low, high, np.zeros(len(span)))
    scaling = Quantiles.fit(*known) if transform == "quantile" else standard
    return NumericEncoding(name, transform, scaling, low, high, float(moments.missing[place]), edges, counts)


@stored("labels_seen", parts={"name": str, "tally": dict, "_declared": dict | None, "_rows": int, "_inferred": bool})
@final
class LabelsSeen:
    """A column of labels, added a block at a time.

    Args:
        name: of the column.

    Attributes:
        tally: how often each label was there, by weight; ``None`` stands for a missing one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally: dict[object, float] = {}
        self._declared: dict[object, None] | None = None
        self._rows, self._inferred = 0, False

    def add(self, column: Column, weights: np.ndarray) -> None:
        """Labels, and how often each counts, above 0.

        Raises:
            InputError: if there are more different labels than a model could have an effect for.
        """
        self._declare(column.categories)
        if column.values.size:
            self._rows += int((column.values != None).sum())  # noqa: E711
            self._inferred |= column.inferred
            self._merge(tally_of(column.values, weights))

    def joined(self, other: LabelsSeen) -> LabelsSeen:
        """This, with what another pass has seen of other rows."""
        self._declare(other._declared)
        self._merge(other.tally)
        self._rows, self._inferred = self._rows + other._rows, self._inferred or other._inferred
        return self

    def encoding(self) -> CategoricalEncoding:
        """How the column is encoded.

        Raises:
            InputError: if it is text that hardly ever recurs, and the caller has not named it.
        """
        if self._inferred:
            refuse_labels_of_rows(self.name, [label for label in self.tally if label is not None], self._rows)
        declared = None if self._declared is None else tuple(self._declared)
        return CategoricalEncoding.of(self.name, self.tally, declared)

    def _declare(self, labels: Iterable[object] | None) -> None:
        """The labels that files declare, in the order of the first, then of those that declare more."""
        if labels is not None:
            self._declared = (self._declared or {}) | dict.fromkeys(labels)
            self._refuse_many(len(self._declared))

    def _merge(self, tally: dict[object, float]) -> None:
        for label, count in tally.items():
            self.tally[label] = self.tally.get(label, 0.0) + count
        self._refuse_many(len(self.tally))

    def _refuse_many(self, labels: int) -> None:
        if labels > MOST_LABELS:
            raise InputError(
                f"column {self.name!r}: expected labels that rows share, got more than {MOST_LABELS:,} different ones. "
                "Leave the column out, or turn it into numbers or into fewer labels."
            )


@stored("sample", parts={"_parts": list, "_limit": int})
@final
class Sample:
    """A uniform sample of rows, added a block at a time: those whose numbers in the table have the smallest hashes.

    It depends on neither the blocks nor the parts that a table is read in; one of no more rows is all in it.

    Args:
        width: numbers of a row.
    """

    def __init__(self, width: int) -> None:
        # The numbers of some rows, the hashes and the rows' numbers in the table.
        self._parts = [(np.empty((0, width)), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))]
        self._limit = np.iinfo(np.uint64).max

    def add(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Rows, shape (n, D), and their numbers in the table."""
        keys = _hashes(rows)
        small = keys <= self._limit
        self._parts.append((numbers[small], keys[small], rows[small]))
        if sum(len(keys) for _, keys, _ in self._parts[1:]) > SAMPLE_ROWS // 4:
            self.numbers()

    def joined(self, other: Sample) -> Sample:
        """This, with the rows that another pass has drawn from others."""
        self._parts += other._parts
        return self

    def numbers(self) -> np.ndarray:
        """The numbers of the rows drawn so far, in the order of the table, shape (n, D)."""
        if len(self._parts) > 1:
            numbers, keys, rows = map(np.concatenate, zip(*self._parts, strict=True))
            few = np.argpartition(keys, SAMPLE_ROWS)[:SAMPLE_ROWS] if len(keys) > SAMPLE_ROWS else np.arange(len(keys))
            kept = few[np.argsort(rows[few])]
            self._parts = [(numbers[kept], keys[kept], rows[kept])]
            if len(kept) == SAMPLE_ROWS:
                self._limit = keys[kept].max()
        return self._parts[0][0]


def _hashes(rows: np.ndarray) -> np.ndarray:
    """64 bits of each number that look random (Steele, Lea & Flood 2014, SplitMix)."""
    z: np.ndarray = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
