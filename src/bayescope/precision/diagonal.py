"""A diagonal precision: independent weights."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.tape import Tape


@final
class DiagonalPrecision:
    """The matrix A = diag(a) with a > 0, in float64.

    Args:
        values: a, shape (P,).
        name: what the matrix is, for the message when it is not positive definite.

    Raises:
        NotPositiveDefiniteError: if an entry is not finite or not above 0.
    """

    def __init__(self, values: Tensor, *, name: str = "the precision") -> None:
        self._values = values.to(torch.float64)
        if not torch.isfinite(self._values).all():
            raise NotPositiveDefiniteError(f"{name}: expected finite entries, got NaN or infinity.")
        if self._values.numel() and self._values.min() <= 0:
            index = int(self._values.argmin())
            direction = torch.zeros_like(self._values)
            direction[index] = 1.0
            smallest = float(self._values[index])
            message = f"{name}: expected positive entries, got {smallest:.6g} at index {index}."
            raise NotPositiveDefiniteError(message, smallest, direction)

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._values.shape[0]

    def add_diagonal(self, diagonal: Tensor | float) -> DiagonalPrecision:
        """diag(a + d) for d a scalar or of shape (P,)."""
        return DiagonalPrecision(self._values + diagonal)

    def logdet(self) -> Tensor:
        """Σ log a_i."""
        return self._values.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._scale(self._values, v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return self._scale(self._values.reciprocal(), b)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """A^{−½} z for z of shape (P,) or (P, K)."""
        return self._scale(self._values.rsqrt(), z)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, C, C), a block of rows at a time."""
        root = self._values.rsqrt()
        blocks = [tape.jacobian(rows).to(torch.float64) * root for rows in tape.blocks()]
        if not blocks:
            return self._values.new_zeros(0, tape.outputs, tape.outputs)
        return torch.cat([block @ block.mT for block in blocks])

    def diagonal(self) -> Tensor:
        """a, shape (P,)."""
        return self._values

    def marginal_variance(self) -> Tensor:
        """1/a, shape (P,)."""
        return self._values.reciprocal()

    def to_dense(self) -> Tensor:
        """diag(a), shape (P, P)."""
        return torch.diag(self._values)

    @staticmethod
    def _scale(values: Tensor, v: Tensor) -> Tensor:
        return values * v if v.ndim == 1 else values[:, None] * v
