"""Precisions in a Kronecker basis: the algebra that every Kronecker structure has once its prior is known."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.precision.precision import Precision, diagonal_times, refuse_not_finite
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.ridge import Ridge
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

    def checked(self, name: str) -> Spectrum:
        """The spectrum, where all its values are positive.

        Raises:
            NotPositiveDefiniteError: with the smallest value and its direction, the column of B that belongs to it.
        """
        values = self.values.detach().flatten()
        smallest, largest = torch.aminmax(values)
        if smallest > 0 and largest < torch.inf:  # NaN fails both
            return self
        refuse_not_finite(name, values)
        unit = torch.zeros_like(values)
        unit[values.argmin()] = 1.0
        direction = self.basis.apply(unit).detach()
        raise NotPositiveDefiniteError(
            f"{name}: expected a positive definite matrix, got the smallest eigenvalue {float(smallest):.6g}. "
            "Add a prior precision, or raise it.",
            float(smallest),
            direction / direction.norm(),
        )

    def _check_stored(self) -> None:
        if tuple(self.values.shape) != self.basis.shape or self.log_scale.ndim:
            raise InputError(f"spectrum: expected values of shape {self.basis.shape}, got {tuple(self.values.shape)}.")

    @property
    def inverse(self) -> Tensor:
        """The eigenvalues of A⁻¹ in the basis, s⁻¹, shape (P,)."""
        return self.values.reciprocal().flatten()

    @property
    def differentiated(self) -> Tensor | None:
        """ρ, shape (P,), where its gradient counts."""
        return None if self.residual is None or not torch.is_grad_enabled() else self.residual.flatten()

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b at ρ = 0, for b of shape (P,) or (P, K)."""
        return self.basis.apply(diagonal_times(self.inverse, self.basis.mT.apply(b)))

    def lost(self, tape: Tape, residual: Tensor, product: str) -> Tensor:
        """J A⁻¹ diag(ρ) A⁻¹ Jᵀ, rows written out a block at a time, and again in the backward pass."""

        def block(residual: Tensor, rows: slice) -> Tensor:
            u = tape.jacobian(rows).to(torch.float64)
            turned = self.solve(u.flatten(0, 1).mT).mT.reshape(u.shape)
            return torch.einsum(product, turned, residual, turned)

        blocks = [
            checkpoint(block, residual, rows, use_reentrant=False, preserve_rng_state=False) for rows in tape.blocks()
        ]
        return torch.cat(blocks)


class Spectral(Precision):
    """The verbs of A = Q diag(s) Qᵀ + diag(d) with an orthonormal Q = Q_out ⊗ Q_in, per group."""

    _ridge: Ridge

    @property
    @abstractmethod
    def basis(self) -> KroneckerProduct:
        """Q, one pair of factors a group."""

    @property
    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """s in `basis`, shape (G, O, D), without what was added to the diagonal."""

    @property
    @abstractmethod
    def _spectrum(self) -> Spectrum:
        """The inverse of A, in its factors."""

    @property
    def spectrum(self) -> Spectrum:
        """The inverse of A, in its factors.

        Raises:
            NotPositiveDefiniteError: if A is not positive definite.
        """
        return self._spectrum

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the layer, (G, O, D)."""
        return self._ridge.shape

    @property
    def dim(self) -> int:
        """P = G O D."""
        groups, outputs, inputs = self.shape
        return groups * outputs * inputs

    def logdet(self) -> Tensor:
        """Σ log of the eigenvalues, a float64 scalar. Differentiable in d."""
        spectrum = self._spectrum
        value, residual = spectrum.values.log().sum() + spectrum.log_scale, spectrum.differentiated
        return value if residual is None else value + self._variances().detach() @ residual

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        rotated = diagonal_times(self.eigenvalues.flatten(), self.basis.mT.apply(v))
        return self.basis.apply(rotated) + self._ridge.multiply(v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        x, residual = self._spectrum.solve(b), self._spectrum.differentiated
        return x if residual is None else x - self._spectrum.solve(diagonal_times(residual, x))

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """B s^{−½} z for z of shape (P,) or (P, K); (I − ½ A⁻¹ diag(ρ)) B s^{−½} is a root to first order too."""
        spectrum = self._spectrum
        x = spectrum.basis.apply(diagonal_times(spectrum.values.rsqrt().flatten(), z))
        residual = spectrum.differentiated
        return x if residual is None else x - 0.5 * spectrum.solve(diagonal_times(residual, x))

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K), in the tape's dtype and then float64: the Gram matrix of J B under s⁻¹.

        Raises:
            UnsupportedError: if the tape's rows are not sums of outer products of this shape.
        """
        spectrum = self._spectrum
        value = spectrum.basis.rotate(tape).gram(spectrum.inverse).to(torch.float64)
        residual = spectrum.differentiated
        return value if residual is None else value - spectrum.lost(tape, residual, "nkp,p,nlp->nkl")

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        spectrum = self._spectrum
        value = spectrum.basis.rotate(tape).norms(spectrum.inverse).to(torch.float64)
        residual = spectrum.differentiated
        return value if residual is None else value - spectrum.lost(tape, residual, "nkp,p,nkp->nk")

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self.basis.squares_apply(self.eigenvalues.flatten()) + self._ridge.flat()

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, (B ∘ B) s⁻¹, shape (P,).

        Raises:
            UnsupportedError: where a derivative in single weights is asked for: it is A⁻¹ ∘ A⁻¹, a P×P matrix.
        """
        if self._spectrum.differentiated is not None:
            raise UnsupportedError(
                "marginal_variance: expected a diagonal of one number per group where a gradient is asked for, got one "
                "that requires it weight by weight. Give a number or one per block, or call it under torch.no_grad()."
            )
        return self._variances()

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        dense = self.basis.to_dense()
        return (dense * self.eigenvalues.flatten()) @ dense.mT + torch.diag(self._ridge.flat())

    def _variances(self) -> Tensor:
        return self._spectrum.basis.squares_apply(self._spectrum.inverse)
