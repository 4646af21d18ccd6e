"""What a structured posterior precision is: the protocol that every structure fulfils."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from bayescope.tape import Tape


@runtime_checkable
class Precision(Protocol):
    """A symmetric positive definite P×P matrix A in some structure, float64, factorised once.

    Immutable: arithmetic returns a new precision.
    """

    @property
    def dim(self) -> int:
        """P, the number of rows."""

    def add_diagonal(self, diagonal: Tensor | float) -> Precision:
        """A + diag(d) for d a scalar or of shape (P,)."""

    def logdet(self) -> Tensor:
        """log∣A∣, a float64 scalar."""

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z with R Rᵀ = A⁻¹, for z of shape (P,) or (P, K): white noise becomes a posterior sample."""

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row of the tape, shape (N, C, C), without building J for all rows."""

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""

    def to_dense(self) -> Tensor:
        """A as a matrix of shape (P, P)."""
