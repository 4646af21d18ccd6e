"""A diagonal precision: independent weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.precision.block import BlockPrecision, BlockSum
from bayescope.precision.precision import Precision, diagonal_times, not_positive, refuse_not_finite
from bayescope.precision.structure import FLOAT64, WITH_PRIOR, Bytes, Structure, StructureOptions, StructureReading, Sum
from bayescope.storage import stored
from bayescope.tape import Tape


@stored("diagonal_precision", parts={"_values": Tensor, "_name": str, "_semidefinite": bool}, kept=("_positive",))
@final
class DiagonalPrecision(Precision):
    """The matrix A = diag(a) with a > 0, in float64.

    Args:
        values: a, shape (P,).
        name: what the matrix is, for the message when it is not positive definite.
        semidefinite: whether entries may be 0, as in a curvature without its prior. They are then refused when the
            inverse is first needed; with a diagonal added the matrix is an ordinary precision again.

    Raises:
        NotPositiveDefiniteError: if an entry is not finite or not above 0.
    """

    def __init__(self, values: Tensor, *, name: str = "the precision", semidefinite: bool = False) -> None:
        self._values, self._name, self._semidefinite = values.to(torch.float64), name, semidefinite
        if not semidefinite:
            self._positive = _positive(self._values, name)

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._values.shape[0]

    def add_diagonal(self, diagonal: Tensor | float) -> DiagonalPrecision:
        """diag(a + d) for d a scalar or of shape (P,)."""
        values = torch.as_tensor(diagonal, dtype=torch.float64, device=self._values.device)
        return DiagonalPrecision(self._values + values, name=self._name)

    def scaled(self, factor: Tensor | float) -> DiagonalPrecision:
        """diag(c a) for a positive number c."""
        return DiagonalPrecision(self._values * factor, name=self._name, semidefinite=self._semidefinite)

    def logdet(self) -> Tensor:
        """The log determinant Σ log aᵢ, a float64 scalar."""
        return self._positive.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return diagonal_times(self._values, v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return diagonal_times(self._positive.reciprocal(), b)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """A^{−½} z for z of shape (P,) or (P, K)."""
        return diagonal_times(self._positive.rsqrt(), z)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K), in the tape's dtype and then float64."""
        return tape.gram(self._positive.reciprocal()).to(torch.float64)

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        return tape.norms(self._positive.reciprocal()).to(torch.float64)

    def diagonal(self) -> Tensor:
        """The entries a on the diagonal, shape (P,)."""
        return self._values.clone()

    def marginal_variance(self) -> Tensor:
        """The variance 1/a of each weight, shape (P,)."""
        return self._positive.reciprocal()

    def to_dense(self) -> Tensor:
        """The precision diag(a) as a matrix, shape (P, P)."""
        return torch.diag(self._values)

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"diagonal: values {tuple(self._values.shape)}"

    def _plus(self, other: DiagonalPrecision) -> DiagonalPrecision:
        singular = self._semidefinite and other._semidefinite
        return DiagonalPrecision(self._values + other._values, name=self._name, semidefinite=singular)

    @cached_property
    def _positive(self) -> Tensor:
        return _positive(self._values, self._name)


def _semidefinite(values: Tensor) -> Precision:
    return DiagonalPrecision(values, semidefinite=True)


@final
class SquareSum:
    """Σ_nk u_nkp², shape (P,), and what it becomes: a diagonal, or the diagonal in some basis.

    Args:
        turned: the tape whose squares are summed, from the tape that is read.
        made: the precision with these sums.
    """

    def __init__(
        self,
        turned: Callable[[Tape], Tape] = lambda tape: tape,
        made: Callable[[Tensor], Precision] = _semidefinite,
    ) -> None:
        self._turned, self._made, self._sum = turned, made, Sum()

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        self._sum.add(self._turned(tape).squares())

    def totals(self) -> list[Tensor]:
        return [self._sum.total()]

    def finish(self) -> Precision:
        return self._made(self._sum.taken())


def _positive(values: Tensor, name: str) -> Tensor:
    refuse_not_finite(name, values)
    if values.numel() and values.min() <= 0:
        raise not_positive(name, values, "positive entries")
    return values


def _read(reading: StructureReading) -> Precision:
    blocks = reading.read(BlockSum([SquareSum() for _ in reading.indices], reading.indices), moments=True)
    return _semidefinite(BlockPrecision(blocks, reading.indices, reading.dim).diagonal())


def _bytes(asked: StructureOptions, itemsize: int) -> Bytes:
    values = FLOAT64 * asked.dim
    # Besides the sum there are the terms that are added up before they go there.
    return Bytes(values + itemsize * asked.dim, 0, WITH_PRIOR * values, 2 * values)


DIAGONAL = Structure(
    "diagonal",
    _read,
    _bytes,
    hessian=lambda reading: _semidefinite(reading.hessian_diagonal()),
    writes="squares",
    moments=True,
)
