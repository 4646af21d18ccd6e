"""What an additive model is fitted to: rows with targets in memory, and features in a few groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.additive.design import Design
from bayescope.additive.families import HiddenNets, Points, TermFamily
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.additive.terms import EncodedRows, FeatureInput, Term
from bayescope.tables.encoding import NO_LEVEL

# Numbers that are more than this are cut into as many groups of equal size, each represented by its mean.
GROUPS = 24
# A feature's own effect is made of this many hidden units; directions in which they move it by less than this share of
# the first one's are left out.
FEATURE_UNITS, NEGLIGIBLE = 24, 1e-3


@final
@dataclass(frozen=True, eq=False)
class Margin:
    """One feature in K groups: of its numbers, or of its categories; and the last group, of rows that have neither.

    Attributes:
        group: of each row, int64 of shape (N,).
        inputs: what a pair's net reads at each group, shape (K, k).
        share: of the data in each group, shape (K,).
        basis: functions of the feature that its own effect is made of, shape (K, m); the last tells the missing.
    """

    group: RowValues
    inputs: Tensor
    share: Tensor
    basis: Tensor

    @classmethod
    def of(cls, column: FeatureInput, rows: EncodedRows, weights: Tensor, generator: torch.Generator) -> Margin:
        """Groups a feature.

        Args:
            column: how nets read it.
            rows: N of them.
            weights: of the rows, shape (N,).
            generator: of the hidden units.
        """
        inputs, absent = column.read(rows)
        present = ~absent
        group = torch.empty(len(rows), dtype=torch.int64)
        found = inputs[present].argmax(1) if column.slots else _cut(inputs[present, 0], weights[present])
        count = int(found.max()) + 1 if len(found) else 0
        group[present], group[absent] = found, count
        mass = torch.zeros(count + 1, dtype=torch.float64).index_add_(0, group, weights)
        sums = torch.zeros(count + 1, inputs.shape[1], dtype=torch.float64)
        sums.index_add_(0, group, inputs * weights[:, None])
        means = torch.where(mass[:, None] > 0, sums / mass[:, None], 0.0)
        share = mass / mass.sum()
        return cls(group, means, share, _basis(column, means, share, generator))


def _cut(numbers: Tensor, weights: Tensor) -> Tensor:
    """Groups of like weight, in order: equal numbers stay together."""
    distinct, place = torch.unique(numbers, return_inverse=True)
    if len(distinct) <= GROUPS:
        return place
    mass = torch.zeros(len(distinct), dtype=torch.float64).index_add_(0, place, weights)
    middle = (mass.cumsum(0) - 0.5 * mass) / mass.sum()
    groups = torch.unique((middle * GROUPS).long(), return_inverse=True)[1]
    return groups[place]


def _basis(column: FeatureInput, inputs: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """Hidden units of a net of the feature alone, as uncorrelated functions, and the missing value's own."""
    net = HiddenNets.of([Term("", (column,))], FEATURE_UNITS, 1)
    levels = torch.full((1, len(share)), NO_LEVEL)
    levels[0, -1] = 0
    points = Points(inputs[None], levels)
    units = net.units(net.start(points, share[None], generator), points)[0]
    units[-1] = 0.0
    root = share.sqrt()[:, None]
    centred = units - share @ units
    _, sizes, directions = torch.linalg.svd(root * centred, full_matrices=False)
    kept = sizes > NEGLIGIBLE * sizes[0]
    functions = centred @ directions[kept].mT / sizes[kept]
    missing = torch.zeros(len(share), 1, dtype=torch.float64)
    missing[-1] = 1.0
    return torch.cat([functions, missing], 1)


@final
@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Rows in memory.

    Attributes:
        rows: encoded, their offset in the outputs' unit.
        targets: canonical.
        weights: of the rows, shape (N,).
        scale: the outputs' unit in that of the targets, shape (C,).
        shift: the outputs' zero, shape (C,).
        log_unit: log∣dy/d target∣, summed over the targets of a row.
    """

    rows: EncodedRows
    targets: Tensor
    weights: Tensor
    scale: Tensor
    shift: Tensor
    log_unit: float = 0.0

    @property
    def total(self) -> float:
        return float(self.weights.sum())

    @property
    def offset(self) -> Tensor | None:
        """In the unit of the targets."""
        return None if self.rows.offset is None else self.rows.offset / self.scale

    @property
    def passes(self) -> RowPasses:
        return RowPasses()

    @property
    def values(self) -> EncodedRows:
        return self.rows

    def design(self, family: TermFamily) -> Design:
        """The distinct points of a family."""
        return Design.of(family, self.rows, self.weights)

    def margin(self, column: FeatureInput, generator: torch.Generator) -> Margin:
        """One feature in a few groups."""
        return Margin.of(column, self.rows, self.weights, generator)
