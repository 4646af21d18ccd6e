"""A tape whose Jacobian is there as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.tape.selected import Selectable


@final
@dataclass(frozen=True)
class DenseTape(Selectable):
    """The tape of weights that act entry by entry (the scale of a norm, a bare parameter), with U held as it is.

    Where all of the weights are in use, U takes no more than the cotangents of the activations that they act on.
    Weights that nothing depends on have a `ZeroTape`, those without such a bound a `ComputedTape`.

    Attributes:
        values: U, shape (N, K, P).
    """

    values: Tensor

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.values.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.values.shape[1]

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.values.shape[2]

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self.values[rows]

    def squares(self) -> Tensor:
        return self.values.square().sum((0, 1))

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return (self.values * scale.to(self.values)) @ self.values.mT

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self.values.square() @ scale.to(self.values)

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return self.values @ v.to(self.values)

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return torch.tensordot(self.values, w.to(self.values), dims=([0, 1], [0, 1]))
