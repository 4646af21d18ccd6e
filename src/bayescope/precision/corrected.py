"""The eigenvalue-corrected Kronecker precision: the eigenvectors of a Kronecker curvature, the exact values in them."""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.precision.precision import shared
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.ridge import Ridge
from bayescope.precision.spectrum import Spectral, Spectrum
from bayescope.storage import stored


@stored(
    "corrected_precision",
    parts={"_basis": KroneckerProduct, "_eigenvalues": Tensor, "_ridge": Ridge, "_name": str},
    kept=("_spectrum",),
)
@final
class EigenvalueCorrectedPrecision(Spectral):
    """A = Q diag(s) Qᵀ + δ I with Q = Q_out ⊗ Q_in, per group, in float64 (George et al. 2018, section 3).

    Q are the eigenvectors of a Kronecker curvature, s the second moments of the rows of U Q, so that the diagonal of A
    in that basis is exact, and with it the trace.

    Args:
        basis: Q, orthonormal, in canonical order (G, O, D): `KroneckerPrecision.basis`.
        eigenvalues: s, shape (P,), such as ``basis.rotate(tape).squares()`` summed over the data.
        name: what the matrix is, for messages.

    Raises:
        InputError: if the shapes do not fit.
    """

    def __init__(self, basis: KroneckerProduct, eigenvalues: Tensor, *, name: str = "the precision") -> None:
        if eigenvalues.numel() != basis.dim:
            raise InputError(f"{name}: expected {basis.dim} eigenvalues, got {eigenvalues.numel()}.")
        self._basis, self._name = basis, name
        self._eigenvalues = eigenvalues.to(torch.float64).reshape(basis.shape)
        self._ridge = Ridge.zero(name, basis.shape, eigenvalues.device, separable=False)

    @property
    def basis(self) -> KroneckerProduct:
        """Q, the eigenvectors of the Kronecker curvature, one pair of factors a group."""
        return self._basis

    @property
    def eigenvalues(self) -> Tensor:
        """s in `basis`, shape (G, O, D), without what was added to the diagonal."""
        return self._eigenvalues

    def add_diagonal(self, diagonal: Tensor | float) -> EigenvalueCorrectedPrecision:
        """A + diag(d) for d a scalar, or of shape (P,) and constant over each group.

        Raises:
            UnsupportedError: if the diagonal that results is not: it would turn the eigenvectors.
        """
        return self._with(self._eigenvalues, self._ridge.plus(diagonal))

    def scaled(self, factor: Tensor | float) -> EigenvalueCorrectedPrecision:
        """c A for a positive number c, in the same basis."""
        return self._with(self._eigenvalues * factor, self._ridge.scaled(factor))

    def _with(self, eigenvalues: Tensor, ridge: Ridge) -> EigenvalueCorrectedPrecision:
        precision = EigenvalueCorrectedPrecision(self._basis, eigenvalues, name=self._name)
        precision._ridge = ridge
        return precision

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"ekfac: eigenvalues {self.shape}"

    def _plus(self, other: EigenvalueCorrectedPrecision) -> EigenvalueCorrectedPrecision:
        left = shared("output_basis", self._basis.left, other._basis.left)
        right = shared("input_basis", self._basis.right, other._basis.right)
        basis, values = KroneckerProduct(left, right, self.shape), self._eigenvalues + other._eigenvalues
        data = EigenvalueCorrectedPrecision(basis, values, name=self._name)
        return data.add_diagonal(self._ridge.given() + other._ridge.given())

    @cached_property
    def _spectrum(self) -> Spectrum:
        values = self._eigenvalues + self._ridge.values()
        return Spectrum(self._basis, values, values.new_zeros(()), self._ridge.residual).checked(self._name)
