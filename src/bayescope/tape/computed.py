"""A tape whose Jacobian is computed anew, a block of rows at a time, for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.tape.selected import Selectable


@final
@dataclass(frozen=True)
class ComputedTape(Selectable):
    """The tape of weights whose U has no form but its own entries, too many of them to be held for all rows.

    Every verb computes all of U, block by block, and keeps none of it.

    Attributes:
        rows: N, the number of inputs read.
        outputs: K, the number of cotangents per input.
        dim: P, the number of weights.
        compute: U of a range of rows, shape (n, K, P), in ranges of its columns, which are not copied into one tensor
            where sums over rows are all that is asked for; with the right dtype and shape also of no rows.
    """

    rows: int
    outputs: int
    dim: int
    compute: Callable[[slice], Sequence[Tensor]]

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        columns = self.compute(rows)
        return columns[0] if len(columns) == 1 else torch.cat(list(columns), -1)

    def squares(self) -> Tensor:
        blocks = list(self.blocks()) or [slice(0, 0)]
        return reduce(add, (torch.cat([u.square().sum((0, 1)) for u in self.compute(rows)]) for rows in blocks))

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return torch.cat([(u * scale.to(u)) @ u.mT for _, u in self._jacobians()])

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return torch.cat([u.square() @ scale.to(u) for _, u in self._jacobians()])

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return torch.cat([u @ v.to(u) for _, u in self._jacobians()])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        products = (torch.tensordot(u, w[rows].to(u), dims=([0, 1], [0, 1])) for rows, u in self._jacobians())
        return reduce(add, products)

    def _jacobians(self) -> Iterator[tuple[slice, Tensor]]:
        return ((rows, self.jacobian(rows)) for rows in list(self.blocks()) or [slice(0, 0)])
