"""Features on a coarse scale: a grid of cells for each pair, on which sums over all rows cost one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.additive.families import HiddenNets, Points
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.additive.terms import EncodedRows, FeatureInput, Term
from bayescope.tables.encoding import NO_LEVEL

# Numbers that are more than this are cut into as many groups of equal size, each told by its mean.
GROUPS = 24
# A feature's own effect is made of so many hidden units; directions in which they move it by less than this share of
# the first one's are left out.
UNITS, NEGLIGIBLE = 24, 1e-3


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
    net = HiddenNets.of([Term("", (column,))], UNITS, 1)
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
class Grids:
    """Several pairs of features, each on the U = K² cells that their groups make; unused cells have no data.

    Attributes:
        points: what a net of the pair reads in each cell, U points for each of G pairs.
        share: of the data in each cell, shape (G, U).
        basis: the constant and both features' own functions in each cell, shape (G, U, M).
        sums: over the rows of each cell, shape (G, U, S).
    """

    points: Points
    share: Tensor
    basis: Tensor
    sums: Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[Margin, Margin]], summed: RowValues, passes: RowPasses) -> Grids:
        """Adds up the rows.

        Args:
            pairs: of margins, whose nets all have as many inputs.
            summed: what is added up, shape (N, S); its first column holds the rows' weights.
            passes: how the rows are read.
        """
        side = max(len(margin.share) for pair in pairs for margin in pair)
        wide = 1 + max(first.basis.shape[1] + second.basis.shape[1] for first, second in pairs)
        width = pairs[0][0].inputs.shape[1] + pairs[0][1].inputs.shape[1]
        count = len(pairs)
        inputs = torch.zeros(count, side, side, width, dtype=torch.float64)
        basis = torch.zeros(count, side, side, wide, dtype=torch.float64)
        gone = torch.ones(count, side, side, dtype=torch.bool)
        basis[..., 0] = 1.0
        for place, (first, second) in enumerate(pairs):
            rows, columns = len(first.share), len(second.share)
            edge, middle = first.inputs.shape[1], 1 + first.basis.shape[1]
            inputs[place, :rows, :, :edge] = first.inputs[:, None]
            inputs[place, :, :columns, edge:] = second.inputs
            basis[place, :rows, :, 1:middle] = first.basis[:, None]
            basis[place, :, :columns, middle : middle + second.basis.shape[1]] = second.basis
            gone[place, : rows - 1, : columns - 1] = False
        (sums,) = passes.summed(lambda rows: [_sums(pairs, side, summed[rows], rows)])
        share = sums[..., 0] / sums[..., 0].sum(1, keepdim=True)
        points = Points(inputs.flatten(1, 2), torch.where(gone.flatten(1), 0, NO_LEVEL))
        return cls(points, share, basis.flatten(1, 2), sums)


def _sums(pairs: Sequence[tuple[Margin, Margin]], side: int, numbers: Tensor, rows: slice) -> Tensor:
    """Of some rows' numbers (n, S) over the cells of each pair, shape (G, U, S)."""
    groups = {id(margin): margin.group[rows] for pair in pairs for margin in pair}
    sums = torch.zeros(len(pairs), side * side, numbers.shape[1], dtype=torch.float64)
    for place, (first, second) in enumerate(pairs):
        sums[place].index_add_(0, groups[id(first)] * side + groups[id(second)], numbers)
    return sums
