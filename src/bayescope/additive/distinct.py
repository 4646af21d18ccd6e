"""The distinct points that the terms of a family read of some rows: what depends on them is computed once for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.families import Points


@final
@dataclass(frozen=True, eq=False)
class Distinct:
    """Points of which no two of a term are the same. Unlike those of a `Design` they are never grouped.

    Attributes:
        points: U for each of G terms, those of a term with fewer filled up with its first.
        counts: how many each term has.
        place: the point of each of N rows, int64 of shape (G, N).
    """

    points: Points
    counts: tuple[int, ...]
    place: Tensor

    @classmethod
    def of(cls, points: Points) -> Distinct:
        """Of one point a row, at least one row."""
        pairs = zip(points.inputs.detach().cpu().numpy(), points.levels.cpu().numpy(), strict=True)
        found = [_distinct(np.concatenate([inputs, levels[:, None]], 1)) for inputs, levels in pairs]
        first = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(rows) for rows, _ in found], True)
        inputs = torch.gather(points.inputs, 1, first[..., None].expand(-1, -1, points.inputs.shape[2]))
        place = torch.from_numpy(np.stack([inverse for _, inverse in found]))
        return cls(Points(inputs, torch.gather(points.levels, 1, first)), tuple(len(rows) for rows, _ in found), place)


def _distinct(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each kind, and the kind of each row."""
    codes = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        own, inverse = np.unique(column, return_inverse=True)
        if len(own) > 1:
            codes = np.unique(codes * len(own) + inverse, return_inverse=True)[1]
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse
