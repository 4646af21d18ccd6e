"""The matrices Λ of N rows, in the form that each likelihood gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor


class Lambdas(ABC):
    """Λ of each row, shape (..., N, C, C), held in fewer numbers."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Λ, shape (..., N, C, C)."""

    @abstractmethod
    def root(self) -> Tensor:
        """S with Λ = S Sᵀ, shape (..., N, C, K)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonals, shape (..., N, C)."""

    @abstractmethod
    def sum(self) -> Tensor:
        """Σ_n Λ_n, shape (..., C, C)."""

    @abstractmethod
    def times(self, weights: Tensor) -> Self:
        """Each row's Λ times its weight, for weights of shape (..., N)."""

    def root_below(self, matrix: Tensor) -> Tensor:
        """Wᵀ S for a root S and W of shape (C, H), shape (..., N, H, K)."""
        return matrix.mT @ self.root()


@final
@dataclass(frozen=True)
class DiagonalLambdas(Lambdas):
    """Diagonal matrices: outputs that are independent of each other.

    Attributes:
        entries: shape (..., N, C), at least 0.
    """

    entries: Tensor

    def dense(self) -> Tensor:
        return _diagonal(self.entries)

    def root(self) -> Tensor:
        return _diagonal(self.entries.sqrt())

    def diagonal(self) -> Tensor:
        return self.entries

    def sum(self) -> Tensor:
        return torch.diag_embed(self.entries.sum(-2))

    def times(self, weights: Tensor) -> DiagonalLambdas:
        return DiagonalLambdas(self.entries * weights[..., None])


@final
@dataclass(frozen=True)
class RootLambdas(Lambdas):
    """Any positive semi-definite matrices, as S Sᵀ.

    Attributes:
        factor: S, shape (..., N, C, K).
    """

    factor: Tensor

    def dense(self) -> Tensor:
        return self.factor @ self.factor.mT

    def root(self) -> Tensor:
        return self.factor

    def diagonal(self) -> Tensor:
        return self.factor.square().sum(-1)

    def sum(self) -> Tensor:
        return torch.einsum("...nck,...ndk->...cd", self.factor, self.factor)

    def times(self, weights: Tensor) -> RootLambdas:
        return RootLambdas(self.factor * weights.sqrt()[..., None, None])


@final
@dataclass(frozen=True)
class DenseLambdas(Lambdas):
    """Any symmetric matrices; those that have a root are positive semi-definite but for rounding.

    Attributes:
        entries: shape (..., N, C, C).
    """

    entries: Tensor

    def dense(self) -> Tensor:
        return self.entries

    def root(self) -> Tensor:
        values, vectors = torch.linalg.eigh(self.entries)
        return vectors * values.clamp_min(0.0).sqrt()[..., None, :]

    def diagonal(self) -> Tensor:
        return self.entries.diagonal(dim1=-2, dim2=-1)

    def sum(self) -> Tensor:
        return self.entries.sum(-3)

    def times(self, weights: Tensor) -> DenseLambdas:
        return DenseLambdas(self.entries * weights[..., None, None])


def _diagonal(entries: Tensor) -> Tensor:
    """Diagonal matrices; for one output without a copy."""
    return entries[..., None] if entries.shape[-1] == 1 else torch.diag_embed(entries)
