"""The tape of a linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.tape.selected import Selectable


@final
@dataclass(frozen=True)
class LinearTape(Selectable):
    """The tape of f = W a (+ b): the Jacobian is I ⊗ aᵀ, for the flat weights (W row-major, then b).

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

    def jacobian(self, rows: slice) -> Tensor:
        """∂f_c/∂W_{c'd} = [c = c'] a_d and ∂f_c/∂b_{c'} = [c = c'], shape (n, C, P)."""
        a = self.activations[rows]
        identity = torch.eye(self.outputs, dtype=a.dtype, device=a.device)
        weights = torch.einsum("nd,ck->nckd", a, identity).flatten(2)
        if not self.bias:
            return weights
        return torch.cat([weights, identity.expand(a.shape[0], -1, -1)], dim=-1)

    def squares(self) -> Tensor:
        """Σ_n a_nd² for each output, and N for each bias, shape (P,)."""
        weights = self.activations.square().sum(0).repeat(self.outputs)
        return torch.cat([weights, weights.new_full((self.outputs * self.bias,), float(self.rows))])

    def gram(self, scale: Tensor) -> Tensor:
        """Diagonal, since the outputs share no weights, shape (N, C, C)."""
        return torch.diag_embed(self.norms(scale))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_d a_nd² scale_cd (+ scale_c of the bias), shape (N, C)."""
        return self._affine(self.activations.square(), scale[:, None])[..., 0]

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, C, R), for v of shape (P, R): the linear model itself, with v for weights."""
        return self._affine(self.activations, v)

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, C, R)."""
        w = w.to(self.activations)
        weights = torch.einsum("nd,ncr->cdr", self.activations, w).flatten(0, 1)
        return torch.cat([weights, w.sum(0)]) if self.bias else weights

    def _affine(self, a: Tensor, v: Tensor) -> Tensor:
        features = a.shape[1]
        weights, bias = v.to(a).split([self.outputs * features, self.outputs * self.bias])
        f = torch.einsum("nd,cdr->ncr", a, weights.unflatten(0, (self.outputs, features)))
        return f + bias if self.bias else f
