"""Inverses through a Kronecker basis: what every Kronecker structure is once its prior is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.precision.diagonals import diagonal_times, refuse_not_finite
from bayescope.precision.product import KroneckerProduct
from bayescope.storage import stored
from bayescope.tape import Tape


@stored("spectrum")
@final
@dataclass(frozen=True, eq=False)
class Spectrum:
    """A⁻¹ = B diag(s)⁻¹ Bᵀ with B = L ⊗ R, of which an orthonormal eigenbasis is one case.

    Where single weights' d_p require a gradient, most directions leave the form that the diagonal has at the point
    itself. A + diag(ρ) at ρ = 0 has the inverse A⁻¹ − A⁻¹ diag(ρ) A⁻¹ to first order, which makes first derivatives
    right; second ones in those directions are left out.

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
            refuse_not_finite(name, values)
            raise _not_positive(name, basis, values.detach().flatten())
        return cls(basis, values, log_scale, residual)

    def _check_stored(self) -> None:
        if tuple(self.values.shape) != self.basis.shape or self.log_scale.ndim:
            raise InputError(f"spectrum: expected values of shape {self.basis.shape}, got {tuple(self.values.shape)}.")

    def logdet(self) -> Tensor:
        """Σ log s + log_scale, a float64 scalar."""
        value = self.values.log().sum() + self.log_scale
        residual = self._differentiated
        return value if residual is None else value + self._variances().detach() @ residual

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        x = self._solve(b)
        residual = self._differentiated
        return x if residual is None else x - self._solve(diagonal_times(residual, x))

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """B s^{−½} z for z of shape (P,) or (P, K); (I − ½ A⁻¹ diag(ρ)) B s^{−½} is a root to first order too."""
        x = self.basis.apply(diagonal_times(self.values.rsqrt().flatten(), z))
        residual = self._differentiated
        return x if residual is None else x - 0.5 * self._solve(diagonal_times(residual, x))

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K): the Gram matrix of J B under s⁻¹."""
        value = self.basis.rotate(tape).gram(self._inverse()).to(torch.float64)
        residual = self._differentiated
        return value if residual is None else value - self._lost(tape, residual, "nkp,p,nlp->nkl")

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        value = self.basis.rotate(tape).norms(self._inverse()).to(torch.float64)
        residual = self._differentiated
        return value if residual is None else value - self._lost(tape, residual, "nkp,p,nkp->nk")

    def marginal_variance(self) -> Tensor:
        """(B ∘ B) s⁻¹, shape (P,).

        Raises:
            UnsupportedError: where a derivative in single weights is asked for: it is A⁻¹ ∘ A⁻¹, a P×P matrix.
        """
        if self._differentiated is not None:
            raise UnsupportedError(
                "marginal_variance: expected a diagonal of one number per group where a gradient is asked for, got one "
                "that requires it weight by weight. Give a number or one per block, or call it under torch.no_grad()."
            )
        return self._variances()

    @property
    def _differentiated(self) -> Tensor | None:
        """ρ, shape (P,), where its gradient counts."""
        return None if self.residual is None or not torch.is_grad_enabled() else self.residual.flatten()

    def _solve(self, b: Tensor) -> Tensor:
        return self.basis.apply(diagonal_times(self._inverse(), self.basis.mT.apply(b)))

    def _variances(self) -> Tensor:
        return self.basis.squares_apply(self._inverse())

    def _lost(self, tape: Tape, residual: Tensor, product: str) -> Tensor:
        """J A⁻¹ diag(ρ) A⁻¹ Jᵀ, rows written out a block at a time, and again in the backward pass."""

        def block(residual: Tensor, rows: slice) -> Tensor:
            u = tape.jacobian(rows).to(torch.float64)
            turned = self._solve(u.flatten(0, 1).mT).mT.reshape(u.shape)
            return torch.einsum(product, turned, residual, turned)

        blocks = [
            checkpoint(block, residual, rows, use_reentrant=False, preserve_rng_state=False) for rows in tape.blocks()
        ]
        return torch.cat(blocks)

    def _inverse(self) -> Tensor:
        return self.values.reciprocal().flatten()


def _not_positive(name: str, basis: KroneckerProduct, values: Tensor) -> NotPositiveDefiniteError:
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
