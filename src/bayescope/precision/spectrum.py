"""Inverses through a Kronecker basis: what every Kronecker structure is once its prior is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.precision.product import KroneckerProduct
from bayescope.tape import Tape


@final
@dataclass(frozen=True, eq=False)
class Spectrum:
    """A⁻¹ = B diag(s)⁻¹ Bᵀ with B = L ⊗ R, of which an orthonormal eigenbasis is one case.

    Attributes:
        basis: B.
        values: s, shape (G, O, D).
        log_scale: −2 log∣det B∣, so that log∣A∣ = Σ log s + log_scale; 0 for an orthonormal basis.
        residual: a diagonal of value 0 whose gradient counts, or ``None`` (see `Ridge`).
    """

    basis: KroneckerProduct
    values: Tensor
    log_scale: Tensor
    residual: Tensor | None = None

    @classmethod
    def checked(
        cls, name: str, basis: KroneckerProduct, values: Tensor, log_scale: Tensor, residual: Tensor | None
    ) -> Spectrum:
        """The spectrum, where all its values are positive.

        Raises:
            NotPositiveDefiniteError: with the smallest value and its direction, the column of B that belongs to it.
        """
        smallest, largest = torch.aminmax(values.detach())
        if not (smallest > 0 and largest < torch.inf):  # NaN fails both
            raise _not_positive(name, basis, values.detach().flatten())
        return cls(basis, values, log_scale, residual)

    def logdet(self) -> Tensor:
        """Σ log s + log_scale, a float64 scalar.

        Where single weights' d_p require a gradient, ∂ log∣A∣/∂d_p = (A⁻¹)_pp holds also in the directions in which the
        diagonal would lose its form; second derivatives there, and derivatives of the other verbs, are left out.
        """
        value = self.values.log().sum() + self.log_scale
        if self.residual is None:
            return value
        return value + (self.marginal_variance().detach() * self.residual.flatten()).sum()

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return self.basis.apply(_scaled(self._inverse(), self.basis.mT.apply(b)))

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """B s^{−½} z for z of shape (P,) or (P, K)."""
        return self.basis.apply(_scaled(self.values.rsqrt().flatten(), z))

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K): the Gram matrix of J B under s⁻¹."""
        return self.basis.rotate(tape).gram(self._inverse()).to(torch.float64)

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        return self.basis.rotate(tape).norms(self._inverse()).to(torch.float64)

    def marginal_variance(self) -> Tensor:
        """(B ∘ B) s⁻¹, shape (P,)."""
        return self.basis.squares_apply(self._inverse())

    def _inverse(self) -> Tensor:
        return self.values.reciprocal().flatten()


def _scaled(values: Tensor, v: Tensor) -> Tensor:
    return values * v if v.ndim == 1 else values[:, None] * v


def _not_positive(name: str, basis: KroneckerProduct, values: Tensor) -> NotPositiveDefiniteError:
    if not torch.isfinite(values).all():
        return NotPositiveDefiniteError(f"{name}: expected finite entries, got NaN or infinity.")
    index = int(values.argmin())
    smallest, unit = float(values[index]), torch.zeros_like(values)
    unit[index] = 1.0
    direction = basis.apply(unit).detach()
    return NotPositiveDefiniteError(
        f"{name}: expected a positive definite matrix, got the smallest eigenvalue {smallest:.6g}. "
        "Add a prior precision, or raise it.",
        smallest,
        direction / direction.norm(),
    )
