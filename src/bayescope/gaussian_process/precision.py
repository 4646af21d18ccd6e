"""A = c UᵀU + P₀ held over the m rows of U: all arithmetic is in matrices of shape m×m."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.gaussian_process.rows import BLOCKS, FLOAT64, KernelRows
from bayescope.precision import DiagonalPrecision, Precision
from bayescope.storage import stored
from bayescope.tape import Tape, block_bytes, row_blocks


@stored(
    "kernel_precision",
    parts={"_rows": KernelRows, "_base": Precision | None, "_constant": Tensor | None, "_factor": Tensor | float},
    kept=("_lower",),
)
@final
class KernelPrecision(Precision):
    """The posterior precision of a linear model as its Gaussian process has it.

    With K = c U P₀⁻¹ Uᵀ the prior's kernel between the rows and I + K = L Lᵀ,

        log∣A∣ = log∣P₀∣ + log∣I + K∣,   A⁻¹ = P₀⁻¹ − c P₀⁻¹Uᵀ (I + K)⁻¹ U P₀⁻¹,

    which for J A⁻¹ Jᵀ is the posterior kernel k(x, x′) − k(x, X)(I + K)⁻¹k(X, x′) of Rasmussen and Williams (2006, eq.
    2.24). As a difference of two like numbers that would lose digits wherever the data say much. A⁻¹ = R Rᵀ has none:
    with P₀⁻¹ = R₀R₀ᵀ,

        R = (I − c P₀⁻¹Uᵀ Y U) R₀,   Y = L⁻ᵀ(L + I)⁻¹  (Andrews 1968, "A square root formulation of the Kalman
    covariance equations"),

    so that covariances are Gram matrices, and a draw is R z.

    Args:
        rows: U, shape (m, P).
        base: P₀; ``None`` for a curvature without its prior.
        constant: δ, where P₀ = δI: then K = c UUᵀ/δ, and UUᵀ is computed once for all δ.
        factor: c.
    """

    def __init__(
        self,
        rows: KernelRows,
        base: Precision | None = None,
        *,
        constant: Tensor | None = None,
        factor: Tensor | float = 1.0,
    ) -> None:
        self._rows, self._base, self._constant = rows, base, constant
        self._factor = factor

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self._rows.dim

    def add_diagonal(self, diagonal: Tensor | float) -> KernelPrecision:
        """A + diag(d) for d a scalar or of shape (P,)."""
        # A tensor of its own: a file that found the prior's in two places would differ from that of its copy.
        added = torch.as_tensor(diagonal, dtype=torch.float64, device=self._rows.device).clone()
        if self._base is not None:
            return self._with(self._base.add_diagonal(added), None)
        return self._with(DiagonalPrecision(added.expand(self.dim)), added if added.ndim == 0 else None)

    def scaled(self, factor: Tensor | float) -> KernelPrecision:
        """c A for a positive number c."""
        base = None if self._base is None else self._base.scaled(factor)
        constant = None if self._constant is None else self._constant * factor
        return KernelPrecision(self._rows, base, constant=constant, factor=self._factor * factor)

    def __add__(self, other: Precision) -> KernelPrecision:
        """A plus the precision of a prior, in whatever structure it is."""
        return self._with(other if self._base is None else self._base + other, None)

    def logdet(self) -> Tensor:
        """log∣P₀∣ + 2 Σ log L_ii; differentiable in a diagonal P₀ and in c."""
        return self._prior.logdet() + 2.0 * _cholesky(self._shifted()).diagonal().log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        columns = v.reshape(self.dim, -1)
        seen = self._rows.transpose_multiply(self._rows.multiply(columns)) * self._factor
        return (seen if self._base is None else seen + self._base.multiply(columns)).reshape(v.shape)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b = R Rᵀ b for b of shape (P,) or (P, K)."""
        return self._forward(self._prior.solve(self._transposed(b.reshape(self.dim, -1)))).reshape(b.shape)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z for z of shape (P,) or (P, K)."""
        return self._forward(self._prior.sqrt_solve(z.reshape(self.dim, -1))).reshape(z.shape)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K)."""
        return torch.cat([left @ right.mT for left, right in self._whitened(tape)])

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        return torch.cat([(left * right).sum(-1) for left, right in self._whitened(tape)])

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        seen = self._rows.square_sums() * self._factor
        return seen if self._base is None else seen + self._base.diagonal()

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""
        identity = torch.eye(self.dim, dtype=torch.float64, device=self._lower.device)
        blocks = list(row_blocks(self.dim, FLOAT64 * self.dim))
        return torch.cat([(self.solve(identity[:, some]) * identity[:, some]).sum(0) for some in blocks])

    def to_dense(self) -> Tensor:
        return self.multiply(torch.eye(self.dim, dtype=torch.float64, device=self._rows.device))

    def _with(self, base: Precision, constant: Tensor | None) -> KernelPrecision:
        return KernelPrecision(self._rows, base, constant=constant, factor=self._factor)

    @property
    def _prior(self) -> Precision:
        if self._base is None:
            raise NotPositiveDefiniteError(
                f"the curvature: {self._rows.count} rows without a prior leave it singular. Add the prior's precision."
            )
        return self._base

    def _shifted(self) -> Tensor:
        """I + K, shape (m, m), in the graph of c and P₀."""
        prior = self._prior
        if self._constant is not None:
            kernel = self._rows.unit_kernel / self._constant
        elif isinstance(prior, DiagonalPrecision):
            kernel = self._rows.kernel(prior.diagonal().reciprocal())
        else:
            kernel = self._rows.kernel_of(prior.solve)
        return torch.eye(self._rows.count, dtype=kernel.dtype, device=kernel.device) + kernel * self._factor

    @cached_property
    def _lower(self) -> Tensor:
        """L, with L Lᵀ = I + K, detached."""
        with torch.no_grad():
            return _cholesky(self._shifted())

    def _forward(self, b: Tensor) -> Tensor:
        """(I − c P₀⁻¹UᵀYU) b, shape (P, R)."""
        shifted = self._lower + torch.eye(len(self._lower), dtype=self._lower.dtype, device=self._lower.device)
        inner = torch.linalg.solve_triangular(shifted, self._rows.multiply(b), upper=False)
        inner = torch.linalg.solve_triangular(self._lower.mT, inner, upper=True)
        return b - self._prior.solve(self._rows.transpose_multiply(inner)) * self._factor

    def _transposed(self, b: Tensor) -> Tensor:
        """(I − c UᵀYᵀU P₀⁻¹) b, shape (P, R)."""
        shifted = self._lower + torch.eye(len(self._lower), dtype=self._lower.dtype, device=self._lower.device)
        inner = torch.linalg.solve_triangular(self._lower, self._rows.multiply(self._prior.solve(b)), upper=False)
        inner = torch.linalg.solve_triangular(shifted.mT, inner, upper=True)
        return b - self._rows.transpose_multiply(inner) * self._factor

    def _whitened(self, tape: Tape) -> Iterator[tuple[Tensor, Tensor]]:
        """D and D P₀⁻¹ with J A⁻¹ Jᵀ = D P₀⁻¹ Dᵀ, shape (n, K, P) each, for blocks of rows.

        A block costs two passes over U, so that it is larger than what is read at once elsewhere.
        """
        for rows in row_blocks(tape.rows, FLOAT64 * tape.outputs * self.dim, BLOCKS * block_bytes()):
            jacobian = tape.jacobian(rows).to(torch.float64)
            turned = self._transposed(jacobian.flatten(0, 1).mT)
            yield turned.mT.reshape(jacobian.shape), self._prior.solve(turned).mT.reshape(jacobian.shape)


def _cholesky(matrix: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) or not bool(torch.isfinite(factor.diagonal()).all()):
        raise NotPositiveDefiniteError(
            "the kernel: expected I + K positive definite to working precision, got a kernel with a largest entry of "
            f"{float(matrix.abs().max()):.3g}. Raise the prior precision."
        )
    return factor
