"""Rows that lack values, for an additive model: predictions are integrated over the values that the data have there.

A feature that had a value in all rows takes the data's values in turn, for its own effect and those of its pairs. A
number that was missing in n rows, a share s of the data, has an effect f_m of its own for that, which is the mean of n
rows and says nothing of their spread: f_m + √(1 − s + 1/n) (f(x) − E f(x)) takes its place, x being the data's values.
The noise that was learnt has the share s of Var f(x) already, and 1/n is the error of the mean. A missing label that
the data have, too, is a label of its own; one that was never seen keeps the prior of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.additive import Additive
from bayescope.additive.seen import Values
from bayescope.additive.terms import EncodedRows
from bayescope.posterior import InputRows, Missing
from bayescope.quadrature import normal_nodes
from bayescope.tables.encoding import CategoricalEncoding

# A row that lacks values is predicted at this many nodes, or at as many as twice the terms that lack one.
LEAST_NODES, MOST_NODES = 64, 256
# No level of a row.
NEVER = -2


@final
@dataclass(frozen=True, eq=False)
class _GapEffect:
    """What a term adds to the numbers of a row.

    Attributes:
        when: where the row lacks one of these features.
        cumulative: the distribution function over the U values that the data have, shape (U,).
        columns: which numbers change.
        changes: by how much, at each value, shape (U, k).
        effects: by how much f changes, shape (U, C): of mean 0 over the data, and made so over the nodes.
    """

    when: tuple[int, ...]
    cumulative: Tensor
    columns: tuple[int, ...]
    changes: Tensor
    effects: Tensor


def with_gaps(additive: Additive, rows: EncodedRows) -> InputRows:
    """Encoded rows with what the data say of the values that they lack.

    The numbers of `Missing` are the D values of a row, its D levels and the C offsets.
    """
    levels = _missing_levels(additive)
    lacking: np.ndarray = (rows.levels == levels).numpy()
    at = np.flatnonzero(lacking.any(1))
    if not len(at):
        return InputRows(rows)
    some, width = rows[torch.from_numpy(at)], len(levels)
    offset = some.values.new_zeros(len(at), additive.model.outputs) if some.offset is None else some.offset
    numbers = torch.cat([some.values, some.levels.to(some.values), offset], 1).numpy()

    def mapped(nodes: np.ndarray) -> EncodedRows:
        values, levels, offset = torch.from_numpy(nodes).tensor_split([width, 2 * width], 1)
        return EncodedRows(values, levels.round().long(), offset)

    changes = partial(_changes, _sources(additive, np.flatnonzero(lacking.any(0))), numbers.shape[1])
    return InputRows(rows, Missing(at, lacking[at], additive.encoding.names, numbers, mapped, changes))


def _missing_levels(additive: Additive) -> Tensor:
    """The level of each feature that stands for a missing value; `NEVER` where that is a label of its own."""
    return torch.tensor(
        [
            0 if not isinstance(each, CategoricalEncoding) else NEVER if each.missing else len(each.categories)
            for each in additive.encoding.features
        ]
    )


def _sources(additive: Additive, lacking: np.ndarray) -> list[_GapEffect]:
    """Those that take part where some of these features are lacking."""
    found: list[_GapEffect] = []
    gapped = [feature.missing > 0 for feature in additive.encoding.features]
    for place, term in enumerate(additive.model.terms):
        one = len(term.features) == 1
        # A pair's features without gaps in the data have a value at each node, and so has the pair.
        when = tuple(feature for feature in term.features if one or gapped[feature])
        if set(when) & set(lacking.tolist()):
            found += _source(additive, place, when, additive.seen.values(term.features))
    return found


def _source(additive: Additive, place: int, when: tuple[int, ...], values: Values) -> list[_GapEffect]:
    """That of one term, from the data's values of its features; none where these are all missing."""
    rows, width = values.rows(additive.encoding), len(additive.encoding.features)
    numeric = not isinstance(additive.encoding.features[when[0]], CategoricalEncoding)
    there = ~additive.model.terms[place].read(rows)[1] if numeric else torch.ones_like(values.weights, dtype=torch.bool)
    if not there.any():
        return []
    gaps, total = values.weights[~there].sum(), values.weights.sum()
    share = values.weights[there] / (total - gaps)
    effects = additive.model.contributions(rows, additive.posterior.location)[place][there]
    effects = effects - share @ effects
    if gaps > 0:
        effects = (1.0 - gaps / total + 1.0 / gaps.clamp_min(1.0)).sqrt() * effects
        columns, changes = tuple(range(2 * width, 2 * width + effects.shape[1])), effects
    else:
        columns = (when[0], width + when[0])
        changes = torch.cat([values.numbers, (values.levels - _missing_levels(additive)[when[0]]).to(share)], 1)
    return [_GapEffect(when, share.cumsum(0), columns, changes, effects)]


def _changes(sources: Sequence[_GapEffect], width: int, lacking: np.ndarray) -> np.ndarray:
    """What is added to the numbers of a row that lacks some features, at each node, shape (M, width)."""
    used = [each for each in sources if lacking[list(each.when)].any()]
    if not used:
        return np.zeros((1, width))
    count = min(MOST_NODES, max(LEAST_NODES, 1 << (2 * len(used) - 1).bit_length()))
    found = np.zeros((count, width))
    for each, place in zip(used, torch.special.ndtr(normal_nodes(len(used), count)).mT.contiguous(), strict=True):
        chosen = torch.searchsorted(each.cumulative, place).clamp_max(len(each.cumulative) - 1)
        found[:, each.columns] += each.changes[chosen].numpy()
        found[:, -each.effects.shape[1] :] -= each.effects[chosen].mean(0).numpy()
    return found
