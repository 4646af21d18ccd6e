"""Rows that are more than memory holds, as an additive model is fitted to them: the points of each, in files.

A row is two bytes for each feature, its targets and, where it has them, its weight and its offset. All that terms read
are the points; so a pass over the rows looks up and adds up, a block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.design import MOST_CELLS, Design
from bayescope.additive.families import Points, TermFamily
from bayescope.additive.observed import Margin, RowsInMemory
from bayescope.additive.passes import ALL, CODED_ROWS, Computed, RowPasses, RowValues
from bayescope.additive.terms import EncodedRows, FeatureInput, Term
from bayescope.processes import Processes
from bayescope.tables.codes import Coded
from bayescope.tables.encoding import NO_LEVEL, TableEncoding
from bayescope.tables.row_files import RowFile

# How many grids of pairs are counted at a time: each may have a million cells.
TOGETHER = 8


@final
class Codes:
    """The points of N rows for T terms or features, in a file.

    Args:
        width: T.
        points: the most points of one of them.
    """

    def __init__(self, width: int, points: int) -> None:
        self._file = RowFile((width, CODED_ROWS), np.uint16 if points <= 2**16 else np.uint32)
        self._left = np.empty((width, 0), self._file.dtype)
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """What they take of the disk."""
        return self._file.nbytes

    @property
    def blocks(self) -> tuple[slice, ...]:
        """The rows that lie together."""
        return tuple(slice(at, min(at + CODED_ROWS, self.rows)) for at in range(0, self.rows, CODED_ROWS))

    def append(self, codes: np.ndarray) -> None:
        """More rows, shape (T, n)."""
        self.rows += codes.shape[1]
        left = np.concatenate([self._left, codes.astype(self._file.dtype)], axis=1)
        whole = left.shape[1] // CODED_ROWS
        for block in range(whole):
            self._file.append(left[None, :, block * CODED_ROWS : (block + 1) * CODED_ROWS])
        self._left = left[:, whole * CODED_ROWS :].copy()

    def read(self, rows: slice) -> np.ndarray:
        """The points at rows of one block, shape (T, n)."""
        block = rows.start // CODED_ROWS
        first, last = rows.start - block * CODED_ROWS, rows.stop - block * CODED_ROWS
        codes = self._left if block == len(self._file) else self._file.array(slice(block, block + 1))[0]
        return codes[:, first:last]


@final
class CodedPlaces:
    """The points that some terms read of each row.

    Args:
        codes: the file.
        which: of the terms or features in there.
    """

    def __init__(self, codes: Codes, which: Sequence[int]) -> None:
        self._codes, self._which = codes, np.array(which)
        self._last: tuple[slice, Tensor] | None = None

    def __getitem__(self, at: tuple[slice, slice]) -> Tensor:
        terms, rows = at
        if self._last is None or self._last[0] != rows:
            codes = self._codes.read(rows)[self._which]
            self._last = rows, torch.from_numpy(codes.astype(np.int64))
        return self._last[1][terms]


@final
@dataclass(frozen=True, eq=False)
class CodedData:
    """Rows in files, their part that this process has.

    Attributes:
        features: the points of each feature.
        codes: of each feature in each row.
        targets: canonical.
        weights: of the rows.
        offset: in the unit of the targets, or ``None``.
        scale: the outputs' unit in that of the targets, shape (C,).
        shift: the outputs' zero, shape (C,).
        log_unit: log∣dy/d target∣, summed over the targets of a row.
        processes: that have a part each.
    """

    features: tuple[Coded, ...]
    codes: Codes
    targets: RowValues
    weights: RowValues
    offset: RowValues | None
    scale: Tensor
    shift: Tensor
    log_unit: float
    processes: Processes

    @property
    def encoding(self) -> TableEncoding:
        """How the columns of the table become numbers."""
        return TableEncoding(tuple(feature.encoding for feature in self.features))

    @property
    def total(self) -> float:
        """The sum of the row weights, Σ w."""
        return float(self.features[0].weights.sum())

    def notes(self) -> dict[str, str]:
        """What a summary says of the files."""
        size = self.codes.nbytes / 2**20
        return {"table": f"read twice from disk, then from temporary files of {size:,.0f} MiB of codes, freed since"}

    @cached_property
    def passes(self) -> RowPasses:
        return RowPasses(self.codes.blocks, True, self.processes)

    @cached_property
    def values(self) -> EncodedRows:
        """The points of the features side by side; those of a feature with fewer are filled up with missing ones."""
        most = max(len(feature.numbers) for feature in self.features)
        numbers = torch.zeros(len(self.features), most, dtype=torch.float64)
        levels = torch.zeros(len(self.features), most, dtype=torch.int64)
        for place, feature in enumerate(self.features):
            numbers[place, : len(feature.numbers)] = torch.from_numpy(feature.numbers)
            levels[place, : len(feature.levels)] = torch.from_numpy(feature.levels)
        return EncodedRows(numbers.mT, levels.mT)

    def design(self, family: TermFamily) -> Design:
        """The points of a family whose terms all read one feature, or all two."""
        if all(len(term.features) == 1 for term in family.terms):
            return self._of_features(family)
        return self._of_pairs(family)

    def margin(self, column: FeatureInput, generator: torch.Generator) -> Margin:
        """A feature in a few groups of its points."""
        feature = self.features[column.feature]
        rows = self.values[: len(feature.numbers)]
        margin = Margin.of(column, rows, torch.from_numpy(feature.weights), generator)
        place, group = CodedPlaces(self.codes, [column.feature]), margin.group[ALL]
        return replace(margin, group=Computed(lambda some: group[place[ALL, some][0]]))

    def _of_features(self, family: TermFamily) -> Design:
        which = [term.features[0] for term in family.terms]
        most = max(len(self.features[feature].numbers) for feature in which)
        points = family.points(self.values[:most])
        mass = torch.zeros(len(which), most, dtype=torch.float64)
        for share, feature in zip(mass, which, strict=True):
            weights = torch.from_numpy(self.features[feature].weights)
            share[: len(weights)] = weights / weights.sum()
        grouped = tuple(term.name for term in family.terms if self.features[term.features[0]].grouped)
        return Design(points, CodedPlaces(self.codes, which), mass, family.centred(points).to(mass), grouped)

    def _of_pairs(self, family: TermFamily) -> Design:
        fine = [PairCells.of(term, self) for term in family.terms]
        pairs: list[tuple[PairCells, Tensor]] = []
        for some in (fine[at : at + TOGETHER] for at in range(0, len(fine), TOGETHER)):
            counted = self._masses(some)
            pairs += [grid.fitting(mass) for grid, mass in zip(some, counted, strict=True)]
        grids, masses = [grid for grid, _ in pairs], [mass for _, mass in pairs]
        found = [mass.nonzero()[:, 0] for mass in masses]
        kept = [grid.joined(cells) for grid, cells in zip(grids, found, strict=True)]
        most = max(len(cells) for cells in kept)
        points, mass = family.points(self.values[:0]), torch.zeros(len(grids), most, dtype=torch.float64)
        inputs = points.inputs.new_zeros(len(grids), most, points.inputs.shape[2])
        levels = torch.zeros(len(grids), most, dtype=torch.int64)
        places = []
        for at, (grid, cells, weights) in enumerate(zip(grids, kept, masses, strict=True)):
            read = grid.inputs(cells)
            inputs[at, : len(cells), : read.shape[1]] = read
            levels[at, : len(cells)] = torch.where(grid.gone[cells], 0, NO_LEVEL)
            place = torch.full((len(grid.gone),), -1)
            place[cells] = torch.arange(len(cells))
            place[grid.gone] = place[cells[-1]]
            places.append(place)
            mass[at].index_add_(0, place[found[at]], weights[found[at]] / weights.sum())
        codes = Codes(len(grids), most)
        for rows in self.passes.blocks:
            at_points = [place[grid.cells(rows)] for grid, place in zip(grids, places, strict=True)]
            codes.append(torch.stack(at_points).numpy())
        points = Points(inputs, levels)
        grouped = tuple(grid.name for grid in grids if grid.grouped)
        which = range(len(grids))
        return Design(points, CodedPlaces(codes, which), mass, family.centred(points).to(mass), grouped)

    def _masses(self, grids: Sequence[PairCells]) -> list[Tensor]:
        """How often each cell of some grids is there, over all rows."""
        return self.passes.summed(lambda rows: [grid.mass(self.weights[rows], rows) for grid in grids])


# What a model is fitted to: N rows, their targets, and the distinct points that terms read of them.
Observed: TypeAlias = RowsInMemory | CodedData


@final
@dataclass(frozen=True, eq=False)
class PairCells:
    """The cells of a pair of features, each in a few groups; a cell where one of them is missing has nothing to read.

    Attributes:
        name: of the term.
        sides: the two features.
        places: of the features in each row.
        grouped: whether numbers were replaced by means of groups.
    """

    name: str
    sides: tuple[_Side, _Side]
    places: CodedPlaces
    grouped: bool = False

    @classmethod
    def of(cls, term: Term, data: CodedData) -> PairCells:
        """A cell for any two values of the features."""
        first, second = (_Side.of(column, data) for column in term.columns)
        return cls(term.name, (first, second), CodedPlaces(data.codes, term.features))

    @cached_property
    def gone(self) -> Tensor:
        """Where there is nothing to read, shape (K,)."""
        first, second = self.sides
        return (first.absent[:, None] | second.absent).flatten()

    def fitting(self, mass: Tensor) -> tuple[PairCells, Tensor]:
        """The grid, or a coarser one if more cells have data than there is room for, and how often each is there."""
        if int(((mass > 0) & ~self.gone).sum()) + int(mass[self.gone].any()) <= MOST_CELLS:
            return self, mass
        numbers = [side for side in self.sides if side.column.slots is None]
        others = [side.count for side in self.sides if side.column.slots is not None]
        groups = int((MOST_CELLS / others[0] if others else MOST_CELLS) ** (1.0 / len(numbers)))
        first, second = (side if side.column.slots is not None else side.coarser(groups) for side in self.sides)
        coarse = PairCells(self.name, (first, second), self.places, grouped=True)
        onto = [side.onto(finer) for side, finer in zip(coarse.sides, self.sides, strict=True)]
        cells = (onto[0][:, None] * second.count + onto[1]).flatten()
        return coarse, torch.zeros(len(coarse.gone), dtype=torch.float64).index_add_(0, cells, mass)

    def cells(self, rows: slice) -> Tensor:
        """Of some rows, int64 of shape (n,)."""
        first, second = self.places[ALL, rows]
        return self.sides[0].group[first] * self.sides[1].count + self.sides[1].group[second]

    def mass(self, weights: Tensor, rows: slice) -> Tensor:
        """How often rows of these weights have each cell, shape (K,)."""
        return torch.zeros(len(self.gone), dtype=torch.float64).index_add_(0, self.cells(rows), weights)

    def joined(self, cells: Tensor) -> Tensor:
        """The cells that have something to read and, last, one for all that have not."""
        gone = self.gone[cells]
        return torch.cat([cells[~gone], cells[gone][:1]])

    def inputs(self, cells: Tensor) -> Tensor:
        """What a net reads in them, 0 where there is nothing, shape (n, k)."""
        first, second = self.sides
        both = torch.cat([first.means[cells // second.count], second.means[cells % second.count]], 1)
        return both.masked_fill(self.gone[cells][:, None], 0.0)


@final
@dataclass(frozen=True, eq=False)
class _Side:
    """One feature of a pair in K groups, of which those without a value are last.

    Attributes:
        column: how the net reads it.
        group: of each of the feature's points, int64 of shape (U,).
        means: what is read in each group, shape (K, k).
        absent: whether it has no value, shape (K,).
        weights: of the feature's points, shape (U,).
        inputs: what is read at each of them, shape (U, k).
    """

    column: FeatureInput
    group: Tensor
    means: Tensor
    absent: Tensor
    weights: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, column: FeatureInput, data: CodedData) -> _Side:
        """A group for each number or indicator; indicators in the order of what is read."""
        feature = data.features[column.feature]
        inputs, gone = column.read(data.values[: len(feature.numbers)])
        order = column.width - 1 - inputs.argmax(1) if column.slots is not None else torch.arange(len(inputs))
        return cls._grouped(column, torch.where(gone, -1, order), inputs, torch.from_numpy(feature.weights))

    @classmethod
    def _grouped(cls, column: FeatureInput, keys: Tensor, inputs: Tensor, weights: Tensor) -> _Side:
        """Groups of equal keys in their order; −1 is for no value, and comes last."""
        gone = keys < 0
        found, group = torch.where(gone, keys.max() + 1, keys).unique(return_inverse=True)
        mass = torch.zeros(len(found), dtype=torch.float64).index_add_(0, group, weights)
        sums = torch.zeros(len(found), inputs.shape[1], dtype=torch.float64)
        sums.index_add_(0, group, inputs * weights[:, None])
        absent = torch.zeros(len(found), dtype=torch.bool).index_fill_(0, group[gone], True)
        return cls(column, group, sums / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, None], absent, weights, inputs)

    @property
    def count(self) -> int:
        """How many values the side has, K."""
        return len(self.absent)

    def onto(self, finer: _Side) -> Tensor:
        """The group that each of a finer one's is in, int64 of shape (K,)."""
        return torch.empty(finer.count, dtype=torch.int64).index_copy_(0, finer.group, self.group)

    def coarser(self, groups: int) -> _Side:
        """With at most this many groups of like weight."""
        gone = self.absent[self.group]
        if self.count <= groups:
            return self
        room = groups - int(gone.any())
        weights = torch.where(gone, 0.0, self.weights)
        middle = (weights.cumsum(0) - 0.5 * weights) / weights.sum()
        keys = (middle * room).long().clamp(max=room - 1)
        return self._grouped(self.column, torch.where(gone, -1, keys), self.inputs, self.weights)
