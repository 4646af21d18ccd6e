"""A dense precision, held with its Cholesky factor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision.precision import Precision, refuse_not_finite
from bayescope.precision.structure import COPIES, FLOAT64, Bytes, Structure, StructureReading
from bayescope.process_state import one_thread
from bayescope.storage import stored
from bayescope.tape import Tape
from bayescope.tape.gram import add_gram, mirrored

# This many columns of L⁻¹ are there at once where nothing but their lengths is asked for.
COLUMNS = 128


class _LogDeterminant(torch.autograd.Function):
    """log∣A∣, its gradient A⁻¹ from the factor: a third of the time of differentiating the factorisation."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor.detach())
        return 2.0 * factor.detach().diagonal().log().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        matrix, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for
            return gradient * torch.linalg.inv(matrix), None
        return gradient * torch.cholesky_inverse(factor), None


@stored("dense_precision", parts={"_matrix": Tensor, "_name": str, "_semidefinite": bool}, kept=("_cholesky",))
@final
class DensePrecision(Precision):
    """A dense symmetric positive definite matrix A = L Lᵀ in float64.

    Args:
        matrix: A, shape (P, P). Only symmetric matrices are meaningful; the mean of A and Aᵀ is used.
        name: what the matrix is, for the message when it is not positive definite.
        semidefinite: whether A may be singular, as a curvature without its prior is. It is then factorised, and
            refused, when a factor is first needed; with a diagonal added it is an ordinary precision again.

    Raises:
        NotPositiveDefiniteError: with the smallest eigenvalue and its direction. Nothing is added to the diagonal.
    """

    def __init__(self, matrix: Tensor, *, name: str = "the precision", semidefinite: bool = False) -> None:
        symmetric = matrix.to(torch.float64)
        symmetric = (symmetric + symmetric.mT).mul_(0.5)
        self._matrix, self._name, self._semidefinite = symmetric, name, semidefinite
        if not semidefinite:
            self._cholesky = _cholesky(symmetric, name)

    @classmethod
    def from_covariance(cls, covariance: Tensor, *, name: str = "the covariance") -> DensePrecision:
        """A = Σ⁻¹ for a covariance Σ, shape (P, P), by its triangular factor alone: Σ is never inverted.

        With the rows and columns of Σ in reverse order, its Cholesky factor reversed back is upper triangular,
        Σ = U Uᵀ, and A = U⁻ᵀ U⁻¹ has the lower triangular factor L = U⁻ᵀ.

        Raises:
            NotPositiveDefiniteError: if Σ is not positive definite.
        """
        symmetric = covariance.to(torch.float64)
        symmetric = 0.5 * (symmetric + symmetric.mT)
        return cls._from_upper(_cholesky(symmetric.flip(0, 1), name).flip(0, 1), name)

    @classmethod
    def from_root(cls, root: Tensor, *, name: str = "the covariance") -> DensePrecision:
        """A = (R Rᵀ)⁻¹ for a square root R of a covariance, shape (P, P), which is never squared.

        R = U Q with U upper triangular and Q orthogonal, from the QR factors of R with its rows in reverse order; then
        A = U⁻ᵀ U⁻¹ has the lower triangular factor L = U⁻ᵀ. The condition number of R is the root of that of R Rᵀ.

        Raises:
            NotPositiveDefiniteError: if R is singular or not finite.
        """
        reverse = torch.linalg.qr(root.to(torch.float64).mT.flip(1), mode="r").R
        upper = reverse.mT.flip(0, 1)
        diagonal = upper.diagonal()
        if not bool((diagonal.isfinite() & (diagonal != 0)).all()):
            raise NotPositiveDefiniteError(
                f"{name}: expected a square root that is finite and invertible, got another."
            )
        return cls._from_upper(upper * diagonal.sign(), name)

    @classmethod
    def _from_upper(cls, upper: Tensor, name: str) -> DensePrecision:
        """A = (U Uᵀ)⁻¹ for U upper triangular with a positive diagonal."""
        precision = cls.__new__(cls)
        precision._name, precision._semidefinite = name, False
        identity = torch.eye(upper.shape[0], dtype=torch.float64, device=upper.device)
        precision._cholesky = torch.linalg.solve_triangular(upper.mT, identity, upper=False)
        precision._matrix = precision._cholesky @ precision._cholesky.mT
        return precision

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._matrix.shape[0]

    def add_diagonal(self, diagonal: Tensor | float) -> DensePrecision:
        """A + diag(d) for d a scalar or of shape (P,)."""
        values = torch.as_tensor(diagonal, dtype=torch.float64, device=self._matrix.device).expand(self.dim)
        precision = DensePrecision.__new__(DensePrecision)
        # A is symmetric already: the sum is the only matrix that is made beside its factor.
        precision._matrix = self._matrix.diagonal_scatter(self._matrix.diagonal() + values)
        precision._name, precision._semidefinite = self._name, False
        precision._cholesky = _cholesky(precision._matrix, self._name)
        return precision

    def _check_stored(self) -> None:
        shapes = {tuple(matrix.shape) for matrix in (self._matrix, vars(self).get("_cholesky", self._matrix))}
        if shapes != {(self.dim, self.dim)}:
            raise InputError(f"{self._name}: expected square matrices, got shapes {sorted(shapes)}.")

    def scaled(self, factor: Tensor | float) -> DensePrecision:
        """c A for a positive number c: its Cholesky factor is √c L."""
        precision = DensePrecision.__new__(DensePrecision)
        precision._matrix, precision._name = self._matrix * factor, self._name
        precision._semidefinite = self._semidefinite
        if not self._semidefinite:
            precision._cholesky = self._cholesky * factor**0.5
        return precision

    def logdet(self) -> Tensor:
        """log∣A∣ = 2 Σ log L_ii."""
        if self._matrix.requires_grad and torch.is_grad_enabled():
            return _LogDeterminant.apply(self._matrix, self._cholesky)
        return 2.0 * self._cholesky.diagonal().log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._matrix @ v

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b by two triangular solves, for b of shape (P,) or (P, K)."""
        half = torch.linalg.solve_triangular(self._cholesky, b.reshape(self.dim, -1), upper=False)
        return torch.linalg.solve_triangular(self._cholesky.mT, half, upper=True).reshape(b.shape)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """L⁻ᵀ z for z of shape (P,) or (P, K): (L⁻ᵀ)(L⁻ᵀ)ᵀ = (L Lᵀ)⁻¹."""
        return torch.linalg.solve_triangular(self._cholesky.mT, z.reshape(self.dim, -1), upper=True).reshape(z.shape)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K), as the Gram matrix of L⁻¹ Jᵀ, a block of rows at a time."""
        if tape.outputs == 1:  # a batch of dot products is slow as a batch of 1×P by P×1 products
            return self.variance_of(tape)[..., None]
        blocks = [whitened @ whitened.mT for whitened in self._whitened(tape)]
        return torch.cat(blocks) if blocks else self._matrix.new_zeros(0, tape.outputs, tape.outputs)

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K): the squared lengths of L⁻¹ Jᵀ's columns."""
        blocks = [whitened.square().sum(-1) for whitened in self._whitened(tape)]
        return torch.cat(blocks) if blocks else self._matrix.new_zeros(0, tape.outputs)

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._matrix.diagonal().clone()

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,): the squared lengths of the columns of L⁻¹, some of them at a time."""
        lengths = [self._matrix.new_zeros(0)]
        for start in range(0, self.dim, COLUMNS):
            unit = self._matrix.new_zeros(self.dim, min(COLUMNS, self.dim - start))
            unit[start:].fill_diagonal_(1.0)
            columns = torch.linalg.solve_triangular(self._cholesky, unit, upper=False)
            lengths.append(columns.square().sum(0))
        return torch.cat(lengths)

    def to_dense(self) -> Tensor:
        """A, shape (P, P): the matrix itself, which is not to be written to."""
        return self._matrix

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"full: matrix {tuple(self._matrix.shape)}"

    def _plus(self, other: DensePrecision) -> DensePrecision:
        singular = self._semidefinite and other._semidefinite
        return DensePrecision(self._matrix + other._matrix, name=self._name, semidefinite=singular)

    @cached_property
    def _cholesky(self) -> Tensor:
        return _cholesky(self._matrix, self._name)

    @cached_property
    def _inverse_root(self) -> Tensor:
        """L⁻¹, lower triangular: A⁻¹ = L⁻ᵀ L⁻¹.

        In one thread wherever it is asked for: a fit may ask inside of its own threads, a loaded posterior outside of
        any, and several threads round in another way.
        """
        identity = torch.eye(self.dim, dtype=torch.float64, device=self._matrix.device)
        with one_thread():
            return torch.linalg.solve_triangular(self._cholesky, identity, upper=False)

    def _whitened(self, tape: Tape) -> Iterator[Tensor]:
        """J L⁻ᵀ for blocks of rows, shape (n, K, P)."""
        for rows in tape.blocks():
            jacobian = tape.jacobian(rows)
            flat = jacobian.flatten(0, 1).to(torch.float64)  # one large product, not one a row
            yield (flat @ self._inverse_root.mT).reshape(jacobian.shape)


@final
class DenseSum:
    """Σ_n U_nᵀ U_n, shape (P, P)."""

    def __init__(self, dim: int, device: torch.device | None = None) -> None:
        self._dim, self._device = dim, device
        self._upper: Tensor | None = None

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        """Adds the Gram matrix of U, a block of rows at a time."""
        for rows in tape.blocks():
            # In float64: a small prior is to be seen beside the sum. Without a name U is gone before the next is there.
            self._upper = add_gram(self._upper, tape.jacobian(rows).flatten(0, 1).to(torch.float64).mT[None])

    def totals(self) -> list[Tensor]:
        if self._upper is None:
            self._upper = torch.zeros(1, self._dim, self._dim, dtype=torch.float64, device=self._device)
        return [self._upper]

    def finish(self) -> DensePrecision:
        ((matrix,),) = map(mirrored, self.totals())
        self._upper = None
        return DensePrecision(matrix, semidefinite=True)


def _cholesky(matrix: Tensor, name: str) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0 and bool(torch.isfinite(factor.diagonal()).all()):
        return factor
    refuse_not_finite(name, matrix)
    values, vectors = torch.linalg.eigh(matrix.detach())
    smallest, direction = float(values[0]), vectors[:, 0]
    raise NotPositiveDefiniteError(
        f"{name}: expected a positive definite matrix, got the smallest eigenvalue {smallest:.6g} along the direction "
        f"{[round(x, 4) for x in direction[:8].tolist()]}{'...' if matrix.shape[0] > 8 else ''}. "
        "Raise the prior precision, or start from another point.",
        smallest,
        direction,
    )


def _read(reading: StructureReading) -> DensePrecision:
    return reading.read(DenseSum(reading.dim, reading.device))


def _hessian(reading: StructureReading) -> DensePrecision:
    (matrix,) = reading.hessian_blocks([torch.arange(reading.dim, device=reading.device)])
    return DensePrecision(matrix, semidefinite=True)


def dense_bytes(sizes: Sequence[int], dim: int) -> Bytes:
    """The bytes of dense blocks of these sizes over P weights."""
    matrices = [FLOAT64 * size**2 for size in sizes]
    # The unit vectors, their solutions, and the squares of these are columns of L⁻¹.
    return Bytes(sum(matrices), max(matrices), COPIES * sum(matrices), 3 * FLOAT64 * dim * min(dim, COLUMNS))


FULL = Structure("full", _read, lambda asked, _: dense_bytes([asked.dim], asked.dim), (), _hessian, "jacobian")
