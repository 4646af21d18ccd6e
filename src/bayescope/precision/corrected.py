"""The eigenvalue-corrected Kronecker precision: the eigenvectors of a Kronecker curvature, the exact values in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.precision.accumulator import Sum
from bayescope.precision.precision import Precision
from bayescope.precision.product import KroneckerProduct
from bayescope.precision.ridge import Ridge
from bayescope.precision.spectrum import Spectrum
from bayescope.precision.sums import Summand, added, shared
from bayescope.storage import stored
from bayescope.tape import Tape


@stored(
    "corrected_precision",
    parts={"_basis": KroneckerProduct, "_eigenvalues": Tensor, "_ridge": Ridge, "_name": str},
    kept=("_spectrum",),
)
@final
class EigenvalueCorrectedPrecision:
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
    def dim(self) -> int:
        """P = G O D."""
        return self._basis.dim

    @property
    def shape(self) -> tuple[int, int, int]:
        """Groups, outputs and inputs of the layer, (G, O, D)."""
        return self._basis.shape

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
        precision = EigenvalueCorrectedPrecision(self._basis, self._eigenvalues, name=self._name)
        precision._ridge = self._ridge.plus(diagonal)
        return precision

    def scaled(self, factor: Tensor | float) -> EigenvalueCorrectedPrecision:
        """c A for a positive number c, in the same basis."""
        precision = EigenvalueCorrectedPrecision(self._basis, self._eigenvalues * factor, name=self._name)
        precision._ridge = self._ridge.scaled(factor)
        return precision

    def __add__(self, other: Precision) -> EigenvalueCorrectedPrecision:
        """Eigenvalues and diagonals added.

        Raises:
            UnsupportedError: if the two have not the same basis.
        """
        return added(self, other)

    def logdet(self) -> Tensor:
        """Σ log(s + δ). Differentiable in d."""
        return self._spectrum.logdet()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        rotated = self._basis.mT.apply(v).reshape(*self.shape, -1)
        curved = self._basis.apply((self._eigenvalues[..., None] * rotated).reshape(v.shape))
        return curved + self._ridge.multiply(v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return self._spectrum.solve(b)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """Q (s + δ)^{−½} z for z of shape (P,) or (P, K)."""
        return self._spectrum.sqrt_solve(z)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K), in the tape's dtype and then float64.

        Raises:
            UnsupportedError: if the tape's rows are not sums of outer products of this shape.
        """
        return self._spectrum.covariance_of(tape)

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        return self._spectrum.variance_of(tape)

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._basis.squares_apply(self._eigenvalues.flatten()) + self._ridge.flat()

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""
        return self._spectrum.marginal_variance()

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        dense = self._basis.to_dense()
        return (dense * self._eigenvalues.flatten()) @ dense.mT + torch.diag(self._ridge.flat())

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"ekfac: eigenvalues {self.shape}"

    def summand(self) -> Summand:
        """The eigenvalues, the two bases and what was added to the diagonal."""
        return [self._eigenvalues, self._basis.left, self._basis.right, self._ridge.given()]

    def joined(self, summands: Sequence[Summand]) -> EigenvalueCorrectedPrecision:
        """The precision with the sums of their eigenvalues, in the basis that they share."""
        eigenvalues, left, right, diagonals = zip(*summands, strict=True)
        basis = KroneckerProduct(shared("output_basis", left), shared("input_basis", right), self.shape)
        data = EigenvalueCorrectedPrecision(basis, reduce(add, eigenvalues), name=self._name)
        return data.add_diagonal(reduce(add, diagonals))

    @cached_property
    def _spectrum(self) -> Spectrum:
        values = self._eigenvalues + self._ridge.values()
        return Spectrum.checked(self._name, self._basis, values, values.new_zeros(()), self._ridge.residual)


@final
class CorrectedSum:
    """The diagonal of Σ_n U_nᵀ U_n in an eigenbasis (George et al. 2018, eq. 10).

    Args:
        basis: Q, the eigenvectors of a Kronecker product.
    """

    def __init__(self, basis: KroneckerProduct) -> None:
        self._basis, self._sum = basis, Sum()

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds the squares of the rotated U."""
        self._sum.add(self._basis.rotate(tape).squares())

    def totals(self) -> list[Tensor]:
        return [self._sum.total()]

    def finish(self) -> EigenvalueCorrectedPrecision:
        return EigenvalueCorrectedPrecision(self._basis, self._sum.taken())
