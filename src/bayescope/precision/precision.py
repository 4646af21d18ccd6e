"""What a structured posterior precision is: the protocol that every structure fulfils."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from bayescope.tape import Tape


@runtime_checkable
class Precision(Protocol):
    """A symmetric P×P matrix A in some structure, float64, on the device of its tensors, factorised at most once.

    The verbs that need a factor (`logdet`, `solve`, `sqrt_solve`, `covariance_of`, `variance_of`, `marginal_variance`)
    raise `NotPositiveDefiniteError` where A is not positive definite, as the curvature of a few data without its prior.

    Immutable: arithmetic returns a new precision. Tensors that require a gradient stay in the graph.
    """

    @property
    def dim(self) -> int:
        """P, the number of rows."""

    def add_diagonal(self, diagonal: Tensor | float) -> Precision:
        """A + diag(d) for d a scalar or of shape (P,)."""

    def scaled(self, factor: Tensor | float) -> Precision:
        """c A for a positive number c, in the graph of a tensor. What has been factorised stays so."""

    def __add__(self, other: Precision) -> Precision:
        """The sum with a precision of the same structure: the curvatures of two sets of data are that of both."""

    def logdet(self) -> Tensor:
        """The log determinant log∣A∣, a float64 scalar."""

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z with R Rᵀ = A⁻¹, for z of shape (P,) or (P, K): white noise becomes a posterior sample."""

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row of the tape, shape (N, K, K), without building J for all rows."""

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K), without the rest of it."""

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""

    def to_dense(self) -> Tensor:
        """A as a matrix of shape (P, P)."""
