"""J (H + δ I)⁻¹ Jᵀ for many δ at the price of reading and rotating J once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.precision import (
    DensePrecision,
    DiagonalPrecision,
    EigenvalueCorrectedPrecision,
    KroneckerPrecision,
    KroneckerProduct,
    Precision,
)
from bayescope.tape import Tape


class Shifts(Protocol):
    """A semidefinite H with anything added to its diagonal, the same for all of its weights."""

    def smallest(self) -> float:
        """The smallest eigenvalue of H: a δ has to be above its negative."""

    def covariances(self, tape: Tape, shifts: Tensor) -> Tensor:
        """J (H + δ I)⁻¹ Jᵀ per row, shape (M, N, K, K), float64, for δ of shape (M,)."""

    def variances(self, tape: Tape, shifts: Tensor) -> Tensor:
        """The diagonals of `covariances`, shape (M, N, K)."""


@singledispatch
def shifts_of(curvature: Precision) -> Shifts:
    """H in the form that answers for many δ; any structure can, by a precision for each of them."""
    return _Apart(curvature)


@shifts_of.register
def _(curvature: DensePrecision) -> Shifts:
    return _Dense(*torch.linalg.eigh(curvature.to_dense()))


@shifts_of.register
def _(curvature: DiagonalPrecision) -> Shifts:
    return _Rotated(None, curvature.diagonal())


@shifts_of.register(KroneckerPrecision)
@shifts_of.register(EigenvalueCorrectedPrecision)
def _(curvature: KroneckerPrecision | EigenvalueCorrectedPrecision) -> Shifts:
    return _Rotated(curvature.basis, curvature.eigenvalues.flatten())


@final
@dataclass(frozen=True, eq=False)
class _Rotated:
    """H = Q diag(s) Qᵀ for an orthonormal Q of Kronecker form, or ``None`` for the identity."""

    basis: KroneckerProduct | None
    values: Tensor

    def smallest(self) -> float:
        return float(self.values.min())

    def covariances(self, tape: Tape, shifts: Tensor) -> Tensor:
        rotated = tape if self.basis is None else self.basis.rotate(tape)
        return torch.stack([rotated.gram((self.values + shift).reciprocal()).to(torch.float64) for shift in shifts])

    def variances(self, tape: Tape, shifts: Tensor) -> Tensor:
        rotated = tape if self.basis is None else self.basis.rotate(tape)
        return torch.stack([rotated.norms((self.values + shift).reciprocal()).to(torch.float64) for shift in shifts])


@final
@dataclass(frozen=True, eq=False)
class _Dense:
    """H = V diag(s) Vᵀ."""

    values: Tensor
    vectors: Tensor

    def smallest(self) -> float:
        return float(self.values[0])

    def covariances(self, tape: Tape, shifts: Tensor) -> Tensor:
        blocks = []
        for rows in tape.blocks():
            u = tape.jacobian(rows).to(torch.float64) @ self.vectors
            blocks.append(torch.stack([(u / (self.values + shift)) @ u.mT for shift in shifts]))
        return torch.cat(blocks, 1)

    def variances(self, tape: Tape, shifts: Tensor) -> Tensor:
        inverses = (self.values + shifts[:, None]).reciprocal()
        squares = [(tape.jacobian(rows).to(torch.float64) @ self.vectors).square() for rows in tape.blocks()]
        return torch.cat([torch.einsum("nkp,mp->mnk", each, inverses) for each in squares], 1)


@final
@dataclass(frozen=True, eq=False)
class _Apart:
    """A precision for each δ."""

    curvature: Precision

    def smallest(self) -> float:
        return 0.0

    def covariances(self, tape: Tape, shifts: Tensor) -> Tensor:
        return torch.stack([precision.covariance_of(tape) for precision in self._at(shifts)])

    def variances(self, tape: Tape, shifts: Tensor) -> Tensor:
        return torch.stack([precision.variance_of(tape) for precision in self._at(shifts)])

    def _at(self, shifts: Tensor) -> list[Precision]:
        known = self._known
        return [known.setdefault(float(shift), self.curvature.add_diagonal(shift)) for shift in shifts]

    @cached_property
    def _known(self) -> dict[float, Precision]:
        return {}
