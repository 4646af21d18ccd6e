"""The rows of a table as the distinct points that each term reads: a term is computed once for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.families import Points, TermFamily
from bayescope.additive.passes import ALL
from bayescope.additive.terms import EncodedRows
from bayescope.tables.encoding import NO_LEVEL

# While a model is fitted, a term reads at most this many different points; the numbers of a feature that has more, or
# of a pair that has, are replaced by the means of groups of equal size. Answers are always at the numbers themselves.
MOST_POINTS = 1024
MOST_CELLS = 4096


class PointsOfRows(Protocol):
    """The points of rows, those of G terms."""

    def __getitem__(self, at: tuple[slice, slice], /) -> Tensor:
        """Of some terms at some rows, int64 of shape (g, n)."""


@final
@dataclass(frozen=True, eq=False)
class Design:
    """What the terms of a family read of N rows.

    Attributes:
        points: U for each term, those of a term with fewer filled up.
        place: the point of each row, int64 of shape (G, N), read by ``place[:, rows]``.
        mass: the share of the data at each point, shape (G, U), sums of 1; 0 where filled up.
        centred: 1 where the term has a value to read, else 0, shape (G, U).
        grouped: the names of terms whose numbers were replaced by means of groups.
    """

    points: Points
    place: PointsOfRows
    mass: Tensor
    centred: Tensor
    grouped: tuple[str, ...]

    @classmethod
    def of(cls, family: TermFamily, rows: EncodedRows, weights: Tensor) -> Design:
        """Finds the distinct points of all terms.

        Args:
            family: the terms.
            rows: N of them.
            weights: of the rows, shape (N,).
        """
        found = distinct_points(family.points(rows), np.ones(len(rows)))
        place = torch.from_numpy(np.stack([each.place for each in found]))
        return cls.joined(family, found, place, [weights.numpy()] * len(found))

    @classmethod
    def joined(
        cls, family: TermFamily, found: Sequence[DistinctPoints], place: PointsOfRows, weights: Sequence[np.ndarray]
    ) -> Design:
        """The points of all terms side by side.

        Args:
            family: the terms.
            found: the points of each.
            place: the point of each row.
            weights: for each term, of what its points were found among.
        """
        points = side_by_side(found)
        mass = _padded(
            np.bincount(each.place, share / share.sum(), len(each.levels))
            for each, share in zip(found, weights, strict=True)
        )
        grouped = tuple(term.name for term, each in zip(family.terms, found, strict=True) if each.grouped)
        return cls(points, place, mass, family.centred(points).to(mass), grouped)

    def gathered(self, values: Tensor, rows: slice = ALL) -> Tensor:
        """Σ_g v_g at the points of some rows, shape (n, C), for v of shape (G, U, C)."""
        # Flat look-ups: torch.gather takes five times as long.
        read = values.flatten(0, 1).index_select(0, self._flat[rows])
        return read.view(values.shape[0], -1, values.shape[2]).sum(0)

    def scattered(self, numbers: Tensor, rows: slice = ALL) -> Tensor:
        """Sums over some rows of each point, shape (G, U, ...), for numbers of shape (n, ...)."""
        groups, count = self.mass.shape
        places, columns = self._flat[rows], numbers.flatten(1).mT
        sums = columns.new_zeros(len(columns), groups * count)
        for total, column in zip(sums, columns, strict=True):  # flat, which takes half as long as scatter_add
            total.index_add_(0, places, column.repeat(groups))
        return sums.mT.unflatten(0, (groups, count)).unflatten(2, numbers.shape[1:])

    @cached_property
    def _flat(self) -> _FlatPlaces:
        return _FlatPlaces(self.place, *self.mass.shape)

    def mean(self, values: Tensor) -> Tensor:
        """What values (G, U, ...) are centred by, shape (2, G, ...): first where the term has a value, then elsewhere.

        First the mean over the data that have a value is subtracted there, so that a missing value's effect is
        separate from what values do on average; then the mean over all data everywhere.
        """
        flat = values.flatten(2)
        present = self.mass * self.centred
        share = present / present.sum(1, keepdim=True).clamp(min=torch.finfo(present.dtype).tiny)  # none: a mean of 0
        of_values = share[:, None, :] @ flat
        of_all = self.mass[:, None, :] @ flat - present.sum(1)[:, None, None] * of_values
        return torch.stack([of_values + of_all, of_all]).reshape(2, values.shape[0], *values.shape[2:])

    def less(self, values: Tensor, mean: Tensor) -> Tensor:
        """Values (G, U, ...) less what they are centred by, shape (2, G, ...)."""
        centred = self.centred.view(*self.centred.shape, *[1] * (values.ndim - 2))
        return values - (mean[1][:, None] + centred * (mean[0] - mean[1])[:, None])


@final
class _FlatPlaces:
    """The places of rows among the G U points of all terms; those asked for last are kept.

    Most are asked for twice in a row: to look up values there, and to add up values there.
    """

    def __init__(self, place: PointsOfRows, groups: int, count: int) -> None:
        self._place, self._first = place, torch.arange(0, groups * count, count)[:, None]
        self._last: tuple[slice, Tensor] | None = None

    def __getitem__(self, rows: slice) -> Tensor:
        """Those of some rows, int64 of shape (G n,)."""
        last = self._last  # another thread may replace it
        if last is None or last[0] != rows:
            self._last = last = rows, (self._place[:, rows] + self._first).flatten()
        return last[1]


@final
@dataclass(frozen=True, eq=False)
class DistinctPoints:
    """The distinct points of one term among n points, or means of groups of them where they are too many.

    Attributes:
        inputs: shape (U, k).
        levels: shape (U,).
        place: of each of the n points, int64 of shape (n,).
        grouped: whether numbers were replaced by means of groups.
    """

    inputs: np.ndarray
    levels: np.ndarray
    place: np.ndarray
    grouped: bool

    @classmethod
    def of(cls, inputs: np.ndarray, levels: np.ndarray, counts: np.ndarray | None = None) -> DistinctPoints:
        """Of inputs (n, k) and levels (n,); they are grouped only where it is given how often each counts."""
        if inputs.shape[1] == 0:
            distinct, place = np.unique(levels, return_inverse=True)
            return cls(inputs[: len(distinct)], distinct, place, False)
        present = levels == NO_LEVEL
        most = (MOST_POINTS if inputs.shape[1] == 1 else MOST_CELLS) - (not present.all())
        exact = [np.unique(column, return_inverse=True)[1] for column in inputs[present].T]
        groups = _joined(exact)
        grouped = counts is not None and bool(groups.max(initial=0) >= most)
        if counts is not None and grouped:
            groups = _grouped(exact, counts[present], most)
        codes = np.full(len(levels), groups.max(initial=-1) + 1)
        codes[present] = groups
        _, first, place = np.unique(codes, return_index=True, return_inverse=True)
        if counts is None or not grouped:
            return cls(inputs[first], levels[first], place, False)
        sums = np.stack([np.bincount(place, counts * column) for column in inputs.T], 1)
        return cls(sums / np.bincount(place, counts)[:, None], levels[first], place, True)


def distinct_points(read: Points, counts: np.ndarray | None = None) -> list[DistinctPoints]:
    """The distinct points of each of G terms."""
    pairs = zip(read.inputs.detach().cpu().numpy(), read.levels.cpu().numpy(), strict=True)
    return [DistinctPoints.of(inputs, levels, counts) for inputs, levels in pairs]


def side_by_side(found: Sequence[DistinctPoints]) -> Points:
    """The points of G terms; those of a term with fewer are filled up."""
    return Points(_padded(each.inputs for each in found), _padded(each.levels for each in found))


def _padded(parts: Iterable[np.ndarray]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part) for part in parts], True)


def _grouped(exact: Sequence[np.ndarray], counts: np.ndarray, most: int) -> np.ndarray:
    """The group of each point, among few enough of them."""
    # Columns of more than two values are numbers, which are cut into as many groups of equal size as there is room for.
    numbers = [place for place, column in enumerate(exact) if column.max() > 1]
    others = [column for place, column in enumerate(exact) if place not in numbers]
    room = max(2.0, most / (1 + _joined(others).max()) if others else most)
    groups = int(room ** (1.0 / len(numbers)))
    return _joined([*[_cut(exact[place], counts, groups) for place in numbers], *others])


def _cut(ranks: np.ndarray, counts: np.ndarray, groups: int) -> np.ndarray:
    """Groups of like size of ranked numbers: equal numbers stay together."""
    if ranks.max() < groups:
        return ranks
    below = np.cumsum(np.bincount(ranks, counts)) - counts.min()
    return np.unique((below * groups // counts.sum())[ranks], return_inverse=True)[1]


def _joined(columns: Sequence[np.ndarray]) -> np.ndarray:
    """One whole number, from 0 without gaps, for each combination of whole numbers that is there."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if most := int(column.max(initial=0)):
            codes = np.unique(codes * (most + 1) + column, return_inverse=True)[1]
    return codes
