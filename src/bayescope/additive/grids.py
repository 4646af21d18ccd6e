"""Grids in a column's own unit, as rows that a model reads, and how much of the data lies at each of their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.additive.additive import Additive
from bayescope.additive.families import has_values, values_of
from bayescope.additive.seen import Values, anywhere
from bayescope.additive.terms import EncodedRows, feature_term
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.tables.cells import column_of_cells
from bayescope.tables.encoding import NO_LEVEL, CategoricalEncoding, Feature, NumericEncoding

# Steps from the range of a column down to a float's last bit, and the digits that numbers are mostly written with.
BISECTIONS, DIGITS = 80, 12

# Values of the column, how many of them, or the usual ones.
Grid = int | Sequence[Any] | np.ndarray | None


@final
@dataclass(frozen=True, eq=False)
class Axis:
    """Values of one feature.

    Attributes:
        feature: its position in the table.
        described: its encoding.
        values: in the column's unit, or labels as objects, shape (n,).
        numbers: as the model takes them, shape (n,).
        levels: as the model takes them, shape (n,).
    """

    feature: int
    described: Feature
    values: np.ndarray
    numbers: Tensor
    levels: Tensor

    @classmethod
    def of(cls, additive: Additive, feature: int | str, grid: Grid, points: int) -> Axis:
        """Reads a grid.

        Args:
            additive: a fitted model.
            feature: by name or position.
            grid: values of the column, NaN or ``None`` for a missing one; or how many numbers, evenly from the smallest
                to the largest seen, of a feature whose values have effects of their own those seen that are nearest; or
                ``None``: ``points`` numbers, or the labels that were seen.
            points: of numbers.

        Raises:
            OptionError: if there is no feature of this name.
            InputError: if the position is outside the table, or a value cannot be computed with.
            InputTypeError: if the grid holds labels where numbers belong, or the reverse.
        """
        place = feature_position(additive, feature)
        described = additive.encoding.features[place]
        if isinstance(described, CategoricalEncoding):
            values = _labels(described, grid)
        else:
            values = _numbers(described, points if grid is None else grid, _values_seen(additive, place, described))
        numbers, levels = described.encode(values)
        return cls(place, described, values, torch.from_numpy(numbers), torch.from_numpy(levels))

    @property
    def categorical(self) -> bool:
        """Whether the values are labels."""
        return isinstance(self.described, CategoricalEncoding)

    def missing(self) -> Axis:
        """The axis whose one value is a missing one."""
        values = np.array([None] if self.categorical else [np.nan])
        numbers, levels = self.described.encode(values)
        return Axis(self.feature, self.described, values, torch.from_numpy(numbers), torch.from_numpy(levels))

    def nearest(self, seen: Values) -> np.ndarray:
        """The position on the axis that is nearest to each point of the data, in the model's numbers; −1 where none is.

        A label is nearest to itself alone, and a missing value to one that is missing.
        """
        numbers, levels = (part.numpy() for part in seen.of(self.feature))
        found = np.full(len(levels), -1)
        levels_here = self.levels.numpy()
        for position in np.flatnonzero(levels_here != NO_LEVEL):
            found[levels == levels_here[position]] = position
        positions = np.flatnonzero(levels_here == NO_LEVEL)
        if positions.size:
            order = positions[np.argsort(self.numbers.numpy()[positions], kind="stable")]
            along = self.numbers.numpy()[order]
            cells = np.searchsorted(0.5 * (along[1:] + along[:-1]), numbers)
            found = np.where(levels == NO_LEVEL, order[cells], found)
        return found


def feature_position(additive: Additive, feature: int | str) -> int:
    """The position of a feature in the table.

    Raises:
        OptionError: if there is none of that name.
        InputError: if the position is outside the table.
    """
    names = additive.encoding.names
    if isinstance(feature, str):
        if feature not in names:
            raise OptionError.unknown("feature", feature, names)
        return names.index(feature)
    if checks.count("feature", feature, least=0) >= len(names):
        raise InputError(f"feature: expected a name or a position from 0 to {len(names) - 1}, got {feature}.")
    return int(feature)


def rows_over(additive: Additive, axes: Sequence[Axis]) -> EncodedRows:
    """Rows at all combinations of the axes' values, the last running fastest; the other features are anywhere."""
    shape = [len(axis.values) for axis in axes]
    rows = anywhere(additive.encoding, int(np.prod(shape)))
    for place, axis in enumerate(axes):
        along = [1] * len(axes)
        along[place] = shape[place]
        rows.values[:, axis.feature] = axis.numbers.reshape(along).expand(shape).flatten()
        rows.levels[:, axis.feature] = axis.levels.reshape(along).expand(shape).flatten()
    return rows


def has_no_value(additive: Additive, axis: Axis) -> float:
    """The share of the data in which the axis's feature is missing."""
    seen = additive.seen.features[axis.feature]
    return float(shares(seen, axis.missing().nearest(seen), 1)[0])


def shares(seen: Values, places: np.ndarray, count: int) -> np.ndarray:
    """The share of the data at each place, shape (count,); points with the place −1 count nowhere."""
    weights, inside = seen.weights.numpy(), places >= 0
    return np.bincount(places[inside], weights[inside], minlength=count) / weights.sum()


def _numbers(described: NumericEncoding, grid: int | Sequence[Any] | np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    if isinstance(grid, int | np.integer):
        even = np.unique(described.grid(checks.count("grid", grid)))
        if seen is None:
            return even
        return seen if len(seen) <= grid else np.unique(seen[np.abs(seen - even[:, None]).argmin(1)])
    try:
        values: np.ndarray = np.asarray(grid, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError(f"grid: expected numbers of column {described.name!r}, got {grid!r}.") from None
    return _one_dimensional(described, values)


def _values_seen(additive: Additive, feature: int, described: NumericEncoding) -> np.ndarray | None:
    """The values of a feature in the column's unit, where they are few enough to have effects of their own."""
    seen, term = additive.seen.features[feature], feature_term(additive.encoding, feature)
    rows = seen.rows(additive.encoding)
    if not has_values(term, rows, float(seen.weights.sum())):
        return None
    numbers = values_of(term, rows).numpy()
    low, high = np.full(len(numbers), described.minimum), np.full(len(numbers), described.maximum)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        below = described.forward(middle) < numbers
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    # The model knows a value by its number to the last bit, which short decimals mostly give.
    short = np.array([float(f"{value:.{DIGITS}g}") for value in high])
    return np.where(described.forward(short) == numbers, short, high)


def _labels(described: CategoricalEncoding, grid: Grid) -> np.ndarray:
    if grid is None:
        values = np.empty(int((described.counts > 0).sum()), dtype=object)
        values[:] = [label for label, count in zip(described.categories, described.counts, strict=True) if count > 0]
        return values
    if isinstance(grid, int | np.integer | str):
        raise InputTypeError(f"grid: expected a list of labels of column {described.name!r}, got {grid!r}.")
    cells = np.empty(len(grid), dtype=object)
    cells[:] = list(grid)
    return column_of_cells("grid", described.name, cells, labels=True).values


def _one_dimensional(described: NumericEncoding, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1:
        raise InputError(f"grid: expected values of column {described.name!r} of shape (n,), got shape {values.shape}.")
    return values
