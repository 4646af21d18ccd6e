"""The tape: what one read of a model on one batch leaves behind for curvatures and variances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

# A block of Jacobian rows is kept near this size: large enough for the matrix product to dominate, small
# enough to stay far from the memory of the machine.
BLOCK_BYTES = 32 * 2**20


class Tape(Protocol):
    """The Jacobian J of N rows of outputs (N, C) in the P random weights, given in blocks of rows."""

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""

    @property
    def outputs(self) -> int:
        """C, the number of outputs per input."""

    @property
    def dim(self) -> int:
        """P, the number of random weights."""

    def blocks(self) -> Iterator[slice]:
        """Consecutive ranges of rows whose Jacobians fit the memory budget."""

    def jacobian(self, rows: slice) -> Tensor:
        """∂f/∂θ for the given rows, shape (n, C, P)."""


@final
@dataclass(frozen=True)
class LinearTape:
    """The tape of f = W a (+ b): the Jacobian is a ⊗ I, for the flat weights (W row-major, then b).

    Attributes:
        activations: the inputs a of the layer, shape (N, D).
        outputs: C.
        bias: whether a bias b of shape (C,) follows W.
    """

    activations: Tensor
    outputs: int
    bias: bool

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.activations.shape[0]

    @property
    def dim(self) -> int:
        """P = C D (+ C)."""
        return self.outputs * (self.activations.shape[1] + self.bias)

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows whose Jacobians take at most `BLOCK_BYTES`."""
        size = max(1, BLOCK_BYTES // max(1, 8 * self.outputs * self.dim))
        for start in range(0, self.rows, size):
            yield slice(start, min(start + size, self.rows))

    def jacobian(self, rows: slice) -> Tensor:
        """∂f_c/∂W_{c'd} = [c = c'] a_d and ∂f_c/∂b_{c'} = [c = c'], shape (n, C, P)."""
        a = self.activations[rows]
        identity = torch.eye(self.outputs, dtype=a.dtype, device=a.device)
        weights = torch.einsum("nd,ck->nckd", a, identity).flatten(2)
        if not self.bias:
            return weights
        return torch.cat([weights, identity.expand(a.shape[0], -1, -1)], dim=-1)
