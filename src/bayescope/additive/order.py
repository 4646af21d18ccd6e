"""The order in which first weights are drawn: it follows from what the features hold, not from where they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.coded import Observed
from bayescope.additive.design import Design
from bayescope.additive.families import HiddenNets, Points, TermFamily
from bayescope.additive.terms import Term
from bayescope.tables.encoding import NO_LEVEL
from bayescope.tables.order import content_order


def feature_ranks(families: Sequence[TermFamily], designs: Sequence[Design], data: Observed) -> dict[int, int]:
    """The place of each feature in an order of their content (`content_order`), by its position in the table.

    Args:
        families: of terms of one feature each.
        designs: what each family reads.
        data: gives the targets.
    """
    numbers = [_standardised(design) for design in designs]

    def shared(rows: slice) -> Tensor:
        parts = [
            design.gathered(table.square()[..., None], rows) for design, table in zip(designs, numbers, strict=True)
        ]
        return torch.stack(parts).sum(0)

    def part(rows: slice) -> list[Tensor]:
        targets = data.targets[rows].to(torch.float64).reshape(len(data.weights[rows]), -1)
        targets = torch.where(targets.isfinite(), targets, 0.0)  # an end of an interval may be infinite
        others = torch.cat([targets, shared(rows)], 1) * data.weights[rows][:, None]
        return [design.scattered(others, rows) for design in designs]

    features, moments = [], []
    for family, table, design, sums in zip(families, numbers, designs, data.passes.summed(part), strict=True):
        features += [term.features[0] for term in family.terms]
        moments.append(_moments(table, design.mass, sums / data.total))
    width = max(part.shape[1] for part in moments)
    keys = torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in moments])
    return {features[place]: rank for rank, place in enumerate(content_order(keys.numpy()).tolist())}


def _standardised(design: Design) -> Tensor:
    """The number at each point in standard deviations, that of a level being its place; 0 of a missing one, (G, U)."""
    points = design.points
    if points.inputs.shape[2]:
        numbers, there = points.inputs[..., 0], (points.levels == NO_LEVEL).to(torch.float64)
    else:
        numbers, there = points.levels.to(torch.float64), torch.ones_like(design.mass)
    share = design.mass * there
    share = share / share.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    centred = there * (numbers - (share * numbers).sum(1, keepdim=True))
    variance = (share * centred.square()).sum(1, keepdim=True)
    return torch.where(variance > 0, centred * variance.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0.0)


def _moments(numbers: Tensor, mass: Tensor, sums: Tensor) -> Tensor:
    """Moments of each feature, shape (G, M), from sums over rows at each point, shape (G, U, S)."""
    alone = torch.stack([(mass * numbers**power).sum(1) for power in (2, 3, 4)], 1)
    joint = [torch.einsum("gu,gus->gs", numbers**power, sums) for power in (1, 2, 3)]
    return torch.cat([alone, *joint], 1)


def first_weights(family: TermFamily, design: Design, ranks: Mapping[int, int], generator: torch.Generator) -> Tensor:
    """The first weights of each term, shape (G, P), drawn in the order of `feature_ranks`.

    A pair's net reads its two features in the table's order. Its weights are drawn as if it read them in this one.
    """
    if not isinstance(family, HiddenNets):
        return family.start(design.points, design.mass, generator)
    order = sorted(
        range(len(family.terms)), key=lambda term: sorted(ranks[each] for each in family.terms[term].features)
    )
    columns = [_columns(family.terms[term], family.inputs, ranks) for term in order]
    places = zip(order, columns, strict=True)
    inputs = torch.stack([design.points.inputs[term][:, some] for term, some in places])
    sorting = torch.stack(
        [_sorting(some, design.points.levels[term]) for term, some in zip(order, inputs, strict=True)]
    )
    points = Points(
        torch.gather(inputs, 1, sorting[..., None].expand(-1, -1, family.inputs)),
        torch.gather(design.points.levels[order], 1, sorting),
    )
    drawn = family.only(order).start(points, torch.gather(design.mass[order], 1, sorting), generator)
    starts = torch.empty_like(drawn)
    units = family.hidden * family.inputs
    for term, some, weights in zip(order, columns, drawn, strict=True):
        inner = torch.empty(family.hidden, family.inputs, dtype=torch.float64)
        inner[:, some] = weights[:units].view(family.hidden, family.inputs)
        starts[term] = torch.cat([inner.flatten(), weights[units:]])
    return starts


def _columns(term: Term, inputs: int, ranks: Mapping[int, int]) -> list[int]:
    """The inputs of a term's net, those of the feature of the lower rank first."""
    first = np.cumsum([0, *[column.width for column in term.columns]]).tolist()
    parts = sorted(range(len(term.columns)), key=lambda place: ranks[term.features[place]])
    return [*[each for place in parts for each in range(first[place], first[place + 1])], *range(first[-1], inputs)]


def _sorting(inputs: Tensor, levels: Tensor) -> Tensor:
    """The order of points by their inputs, the first one first."""
    return torch.from_numpy(np.lexsort((levels.numpy(), *inputs.numpy().T[::-1])))
