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

from bayescope.additive.design import Design, DistinctPoints
from bayescope.additive.families import TermFamily
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
        """The cells that the points of two features make, of which those that rows have are found like rows."""
        pairs = [PairCells.of(term, self) for term in family.terms]
        found, places, weights = [], [], []
        for some in (pairs[at : at + TOGETHER] for at in range(0, len(pairs), TOGETHER)):
            for pair, mass in zip(some, self._masses(some), strict=True):
                cells = mass.nonzero()[:, 0]
                points = pair.points(cells, mass[cells])
                found.append(points)
                weights.append(mass[cells].numpy())
                places.append(torch.zeros(len(mass), dtype=torch.int64))
                places[-1][cells] = torch.from_numpy(points.place)
        codes = Codes(len(pairs), max(len(points.levels) for points in found))
        for rows in self.passes.blocks:
            at_points = [place[pair.cells(rows)] for pair, place in zip(pairs, places, strict=True)]
            codes.append(torch.stack(at_points).numpy())
        return Design.joined(family, found, CodedPlaces(codes, range(len(pairs))), weights)

    def _masses(self, pairs: Sequence[PairCells]) -> list[Tensor]:
        """How often each cell of some pairs is there, over all rows."""

        def counted(rows: slice) -> list[Tensor]:
            weights = self.weights[rows]
            return [
                torch.zeros(pair.count, dtype=torch.float64).index_add_(0, pair.cells(rows), weights) for pair in pairs
            ]

        return self.passes.summed(counted)


# What a model is fitted to: N rows, their targets, and the distinct points that terms read of them.
Observed: TypeAlias = RowsInMemory | CodedData


@final
@dataclass(frozen=True, eq=False)
class PairCells:
    """A cell for any two points of a pair of features.

    Attributes:
        term: of the pair, whose features are the columns of `values`.
        values: the points of the two features, side by side.
        places: the points of each row.
        sizes: how many points the two features have.
    """

    term: Term
    values: EncodedRows
    places: CodedPlaces
    sizes: tuple[int, int]

    @classmethod
    def of(cls, term: Term, data: CodedData) -> PairCells:
        """The cells of a term of two features."""
        first, second = term.features
        columns = tuple(replace(column, feature=place) for place, column in enumerate(term.columns))
        values = EncodedRows(data.values.values[:, [first, second]], data.values.levels[:, [first, second]])
        sizes = (len(data.features[first].numbers), len(data.features[second].numbers))
        return cls(Term(term.name, columns), values, CodedPlaces(data.codes, term.features), sizes)

    @property
    def count(self) -> int:
        return self.sizes[0] * self.sizes[1]

    def cells(self, rows: slice) -> Tensor:
        """Of some rows, int64 of shape (n,)."""
        first, second = self.places[ALL, rows]
        return first * self.sizes[1] + second

    def points(self, cells: Tensor, mass: Tensor) -> DistinctPoints:
        """The distinct points of some cells, which count this often."""
        at = torch.stack([cells // self.sizes[1], cells % self.sizes[1]], 1)
        inputs, gone = self.term.read(EncodedRows(self.values.values.gather(0, at), self.values.levels.gather(0, at)))
        return DistinctPoints.of(inputs.numpy(), torch.where(gone, 0, NO_LEVEL).numpy(), mass.numpy())
