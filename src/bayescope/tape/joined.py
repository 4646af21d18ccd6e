"""The tape of a network: one tape for each of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.tape.selected import SelectedTape
from bayescope.tape.tape import Tape, row_blocks


@final
@dataclass(frozen=True)
class JoinedTape:
    """The tape of a network, whose parts (layers, mostly) own disjoint weights: U_nk is their rows side by side.

    Attributes:
        parts: the tapes of the parts, at least one, of the same rows and cotangents.
        indices: for each part the flat positions of its weights, in its own order. Together they are 0, …, P − 1.
        dim: P, the number of weights.
    """

    parts: tuple[Tape, ...]
    indices: tuple[Tensor, ...]
    dim: int

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.parts[0].rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.parts[0].outputs

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows whose Jacobians take at most `BLOCK_BYTES`."""
        return row_blocks(self.rows, 8 * self.outputs * self.dim)

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self._placed([part.jacobian(rows) for part in self.parts], -1)

    def squares(self) -> Tensor:
        return self._placed([part.squares() for part in self.parts], 0)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return reduce(add, (part.gram(scale[index]) for part, index in zip(self.parts, self.indices, strict=True)))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return reduce(add, (part.norms(scale[index]) for part, index in zip(self.parts, self.indices, strict=True)))

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return reduce(add, (part.multiply(v[index]) for part, index in zip(self.parts, self.indices, strict=True)))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self._placed([part.transpose_multiply(w) for part in self.parts], 0)

    def part(self, indices: Tensor) -> Tape:
        """The tape of a part, where ``indices`` are all of a part's in its order; else that of the selected weights."""
        for part, index in zip(self.parts, self.indices, strict=True):
            if index is indices:
                return part
        for part, index in zip(self.parts, self.indices, strict=True):
            if torch.equal(index, indices):
                return part
        return SelectedTape(self, indices)

    def _placed(self, values: list[Tensor], axis: int) -> Tensor:
        shape = list(values[0].shape)
        shape[axis] = self.dim
        placed = values[0].new_zeros(shape)
        for index, value in zip(self.indices, values, strict=True):
            placed.index_copy_(axis, index, value.to(placed))
        return placed
