"""Jacobians of the terms of a family, without the zeros of weights that belong to one output alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Jacobian:
    """∂f_c/∂θ of terms whose weights are shared by the outputs (S), or of which each output has its own (features φ).

    f_c depends on its own weights v_c as φᵀ v_c does, with the same φ for all c: ∂f_c/∂v_c′ is φ for c = c′, else 0. Of
    C outputs that saves almost all of a dense Jacobian. With one output there is no difference, and all is shared.

    Attributes:
        shared: S, shape (..., C, Q).
        separate: φ, shape (..., R).
        of_shared: the positions of the Q weights in a term's P = Q + C R, shape (Q,).
        of_separate: the positions of each output's own weights, shape (C, R).
    """

    shared: Tensor
    separate: Tensor
    of_shared: Tensor
    of_separate: Tensor

    @classmethod
    def of(cls, shared: list[Tensor], separate: list[Tensor], of_shared: Tensor, of_separate: Tensor) -> Jacobian:
        """Of columns side by side: S of shape (..., C, Q) in parts, and φ of shape (..., R) in parts."""
        if len(of_separate) > 1:
            return cls(torch.cat(shared, -1), torch.cat(separate, -1), of_shared, of_separate)
        joined = torch.cat([*shared, *[features[..., None, :] for features in separate]], -1)
        return cls(
            joined, joined.new_zeros(*joined.shape[:-2], 0), torch.cat([of_shared, of_separate[0]]), of_separate[:, :0]
        )

    def extended(self, separate: Tensor, of_separate: Tensor) -> Jacobian:
        """With more weights that each output has its own of: features (..., R′), positions (C, R′)."""
        return self.of(
            [self.shared], [self.separate, separate], self.of_shared, torch.cat([self.of_separate, of_separate], 1)
        )

    def dense(self) -> Tensor:
        """∂f/∂θ, shape (..., C, P)."""
        outputs, features = self.of_separate.shape
        if features == 0:
            return self._ordered(self.shared)
        identity = torch.eye(outputs, dtype=self.separate.dtype, device=self.separate.device)
        alone = (identity[:, :, None] * self.separate[..., None, None, :]).flatten(-2)
        return self._ordered(torch.cat([self.shared, alone], -1))

    def multiply(self, v: Tensor) -> Tensor:
        """J v at each point, shape (G, U, C), for v of shape (G, P)."""
        groups, points, outputs, _ = self.shared.shape
        # vᵀ Jᵀ, since MKL's batched J v takes several times as long.
        moved = torch.bmm(v[:, None, self.of_shared], self.shared.flatten(1, 2).mT).view(groups, points, outputs)
        return torch.baddbmm(moved, self.separate, v[:, self.of_separate].mT) if self.of_separate.shape[1] else moved

    def transpose_multiply(self, u: Tensor) -> Tensor:
        """Σ_u J_uᵀ u_u, shape (G, P), for u of shape (G, U, C)."""
        parts = torch.bmm(u.flatten(1)[:, None, :], self.shared.flatten(1, 2))[:, 0]
        if self.of_separate.shape[1]:
            parts = torch.cat([parts, torch.bmm(u.mT, self.separate).flatten(1)], 1)
        return self._ordered(parts)

    def curvature(self, middle: Tensor) -> Tensor:
        """Σ_u J_uᵀ Λ_u J_u, shape (G, P, P), for symmetric Λ of shape (G, U, C, C)."""
        if middle.shape[-1] == 1:
            scaled = self.shared[:, :, 0] * middle[:, :, 0]
            return self._ordered(self._ordered(scaled.mT @ self.shared[:, :, 0]).mT)
        shared, outputs = self.shared.shape[3], middle.shape[-1]
        scaled = middle @ self.shared
        cross = (scaled.flatten(2).mT @ self.separate).unflatten(1, (outputs, shared)).transpose(1, 2).flatten(2)
        above = torch.cat([scaled.flatten(1, 2).mT @ self.shared.flatten(1, 2), cross], 2)
        below = torch.cat([cross.mT, self._between(middle)], 2)
        return self._ordered(self._ordered(torch.cat([above, below], 1)).mT)

    def _between(self, middle: Tensor) -> Tensor:
        """Σ_u Λ_ucd φ_u φ_uᵀ for all c and d, shape (G, C R, C R): C (C + 1)/2 products, one row of them at a time."""
        groups, outputs, features = middle.shape[0], *self.of_separate.shape
        blocks = middle.new_empty(groups, outputs, features, outputs, features)
        for c in range(outputs):
            weighted = self.separate[:, :, None, :] * middle[:, :, c, c:, None]
            row = (weighted.flatten(2).mT @ self.separate).unflatten(1, (outputs - c, features))
            blocks[:, c, :, c:] = row.transpose(1, 2)
            blocks[:, c + 1 :, :, c] = row[:, 1:]
        return blocks.flatten(3).flatten(1, 2)

    def _ordered(self, values: Tensor) -> Tensor:
        return values if self._order is None else values[..., self._order]

    @cached_property
    def _order(self) -> Tensor | None:
        """Where each position stands among the shared and own weights, if not there already."""
        order = torch.cat([self.of_shared, self.of_separate.flatten()]).argsort()
        return None if bool((order == torch.arange(len(order))).all()) else order
