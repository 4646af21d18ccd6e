"""What a fitted model remembers of its data: the values of each feature, and of each pair that has a term.

Effects, their centres and their importance are sums over the data in which each term reads one feature or two. So the
distinct points of single features and pairs are enough, with their weights, and no row is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.design import Design
from bayescope.additive.passes import Computed, RowValues
from bayescope.additive.problem import AdditiveProblem
from bayescope.additive.terms import EncodedRows
from bayescope.errors import InputError
from bayescope.storage import stored
from bayescope.tables.encoding import TableEncoding

# A pair with more distinct points is represented by this many rows, evenly spaced among the data.
MOST_CELLS = 4096


@stored("additive_values")
@final
@dataclass(frozen=True, eq=False)
class Values:
    """Distinct points of one feature or of two, as the model was fitted to them.

    Attributes:
        features: positions in the table, one or two.
        numbers: as the model takes them, shape (U, k) for k features.
        levels: as the model takes them, int64, shape (U, k).
        weights: how often each counts, shape (U,), above 0.
    """

    features: tuple[int, ...]
    numbers: Tensor
    levels: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        shape = (self.weights.shape[0], len(self.features))
        if self.numbers.shape != shape or self.levels.shape != shape or self.weights.ndim != 1:
            raise InputError(f"values: expected numbers and levels of shape {shape}, got others.")

    def of(self, feature: int) -> tuple[Tensor, Tensor]:
        """The numbers and levels of one of the features, shape (U,)."""
        place = self.features.index(feature)
        return self.numbers[:, place], self.levels[:, place]

    def rows(self, encoding: TableEncoding) -> EncodedRows:
        """U rows with these values; the other features are anywhere."""
        rows = anywhere(encoding, len(self.weights))
        rows.values[:, self.features], rows.levels[:, self.features] = self.numbers, self.levels
        return rows


@stored("additive_seen")
@final
@dataclass(frozen=True, eq=False)
class TrainingValues:
    """The values of all features and pairs.

    Attributes:
        features: of each feature, in the order of the table.
        pairs: of each pair that has a term.
    """

    features: tuple[Values, ...]
    pairs: tuple[Values, ...]

    @classmethod
    def of(cls, problem: AdditiveProblem, features: int, *, most: int = MOST_CELLS) -> TrainingValues:
        """From the rows and terms of a fit.

        Args:
            problem: the rows, as each term reads them.
            features: how many the table has.
            most: the distinct points of a pair; one with more is represented by this many rows, evenly spaced.
        """
        points: dict[int, tuple[Values, RowValues]] = {}
        pairs: list[tuple[int, ...]] = []
        *masses, _ = problem.scattered(problem.passes.computed(lambda rows: problem.weights[rows][:, None]))
        for family, design, mass in zip(problem.families, problem.designs, masses, strict=True):
            for place, term in enumerate(family.terms):
                if len(term.features) > 1:
                    pairs.append(term.features)
                    continue
                found = mass[place, :, 0].nonzero()[:, 0]  # the others fill up
                levels = design.points.levels[place, found]
                inputs = design.points.inputs[place, found]
                numbers = inputs[:, 0] if inputs.shape[1] else torch.zeros(len(found), dtype=torch.float64)
                values = Values(term.features, numbers[:, None], levels[:, None], mass[place, found, 0])
                points[term.features[0]] = values, _values_of_rows(design, place, found)
        return cls(
            tuple(points[feature][0] for feature in range(features)),
            tuple(_together(pair, points, problem, most) for pair in pairs),
        )

    def values(self, features: Sequence[int]) -> Values:
        """The values of a feature, or of a pair that has a term, in either order."""
        if len(features) == 1:
            return self.features[features[0]]
        return next(each for each in self.pairs if sorted(each.features) == sorted(features))


def anywhere(encoding: TableEncoding, count: int) -> EncodedRows:
    """Rows of a table in which no feature has a value that matters."""
    # Level 0 stands for the first label, or for a number that is missing. NumPy's zeros take no memory until written
    shape = count, len(encoding.features)
    return EncodedRows(torch.from_numpy(np.zeros(shape)), torch.from_numpy(np.zeros(shape, dtype=np.int64)))


def _values_of_rows(design: Design, term: int, found: Tensor) -> Computed:
    """Which of the points that were found a term has in each row."""
    kept = torch.full((design.mass.shape[1],), -1)
    kept[found] = torch.arange(len(found))
    return Computed(lambda rows: kept[design.place[term : term + 1, rows][0]])


def _together(
    features: tuple[int, ...], points: dict[int, tuple[Values, RowValues]], problem: AdditiveProblem, most: int
) -> Values:
    """The points of two features that occur in one row; where these are too many, those of rows evenly among all."""
    (first, at_first), (second, at_second) = (points[feature] for feature in features)
    count = len(second.weights)

    def cells(rows: slice) -> Tensor:
        return at_first[rows] * count + at_second[rows]

    def summed(rows: slice) -> list[Tensor]:
        mass = torch.zeros(len(first.weights) * count, dtype=torch.float64)
        return [mass.index_add_(0, cells(rows), problem.weights[rows])]

    (mass,) = problem.passes.summed(summed)
    found = mass.nonzero()[:, 0]
    mass = mass[found]
    if len(found) > most:
        some = problem.passes.evenly(lambda rows: torch.stack([cells(rows), problem.weights[rows]], 1), most)
        found, place = some[:, 0].long().unique(return_inverse=True)
        mass = torch.zeros(len(found), dtype=torch.float64).index_add_(0, place, some[:, 1])
        mass *= problem.rows() / some[:, 1].sum()
    a, b = found // count, found % count
    numbers = torch.cat([first.numbers[a], second.numbers[b]], 1)
    return Values(features, numbers, torch.cat([first.levels[a], second.levels[b]], 1), mass)
