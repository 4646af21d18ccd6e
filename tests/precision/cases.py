"""Precisions in every structure, each with a prior, and tapes of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayescope.precision import (
    BlockPrecision,
    DensePrecision,
    DiagonalPrecision,
    KroneckerPrecision,
    LowRankCovariance,
    LowRankPrecision,
    Precision,
)
from bayescope.tape import DenseTape, JoinedTape, LookupTape, OuterTape, Tape

Shape = tuple[int, int, int]


class Calls(TorchDispatchMode):
    """How many operations of torch run inside whose name contains a word, such as "eigh"."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.count = word, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += self.word in func.__name__
        return func(*args, **(kwargs or {}))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, g: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=g)


def positive(*shape: int, g: torch.Generator) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=g) + 0.3


def gram(groups: int, width: int, rank: int, g: torch.Generator) -> Tensor:
    root = normal(groups, width, rank, g=g)
    return root @ root.mT


def dense(shape: Shape, g: torch.Generator) -> DensePrecision:
    groups, outputs, inputs = shape
    dim = groups * outputs * inputs
    return DensePrecision(gram(1, dim, dim // 2 + 1, g)[0], semidefinite=True)


def diagonal(shape: Shape, g: torch.Generator) -> DiagonalPrecision:
    values = positive(shape[0] * shape[1] * shape[2], g=g)
    values[0] = 0.0
    return DiagonalPrecision(values, semidefinite=True)


def low_rank(shape: Shape, g: torch.Generator, rank: int = 3) -> LowRankPrecision:
    return LowRankPrecision(normal(shape[0] * shape[1] * shape[2], rank, g=g), 3 * positive(rank, g=g))


def covariance(shape: Shape, g: torch.Generator, rank: int = 3) -> LowRankCovariance:
    dim = shape[0] * shape[1] * shape[2]
    return LowRankCovariance(0.03 * positive(dim, g=g) ** 4, 0.3 * normal(dim, rank, g=g))


def kronecker(shape: Shape, g: torch.Generator, rank: int = 7) -> KroneckerPrecision:
    groups, outputs, inputs = shape
    return KroneckerPrecision(gram(groups, inputs, rank, g), gram(groups, outputs, rank, g), 3.5)


def counted(shape: Shape, g: torch.Generator) -> KroneckerPrecision:
    """An input factor that is a diagonal, some entries of which nothing was counted for."""
    groups, outputs, inputs = shape
    counts = torch.arange(groups * inputs, dtype=torch.float64).reshape(groups, inputs) % 4
    return KroneckerPrecision(counts, gram(groups, outputs, 7, g), 5.0)


def corrected(shape: Shape, g: torch.Generator, factors: Callable[..., KroneckerPrecision] = kronecker) -> Precision:
    return factors(shape, g).corrected(2 * positive(shape[0] * shape[1] * shape[2], g=g))


def separable(shape: Shape, g: torch.Generator) -> Tensor:
    groups, outputs, inputs = shape
    return (positive(groups, outputs, 1, g=g) * positive(groups, 1, inputs, g=g)).flatten()


def per_group(shape: Shape, g: torch.Generator) -> Tensor:
    return positive(shape[0], 1, 1, g=g).expand(shape).flatten()


def any_diagonal(shape: Shape, g: torch.Generator) -> Tensor:
    return positive(shape[0] * shape[1] * shape[2], g=g)


@dataclass(frozen=True)
class Case:
    """A curvature, the prior that goes with it, and the shape of its weights."""

    shape: Shape
    curvature: Callable[[Shape, torch.Generator], Precision]
    prior: Callable[[Shape, torch.Generator], Tensor | float]
    adds: bool = True

    @property
    def dim(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    def data(self, seed: int = 0) -> Precision:
        return self.curvature(self.shape, seeded(seed))

    def precision(self, seed: int = 0) -> Precision:
        return self.data(seed).add_diagonal(self.prior(self.shape, seeded(99)))


def number(shape: Shape, g: torch.Generator) -> float:  # noqa: ARG001
    return 0.7


CASES = {
    "dense": Case((1, 3, 4), dense, any_diagonal),
    "dense, one weight": Case((1, 1, 1), dense, number),
    "diagonal": Case((1, 3, 4), diagonal, any_diagonal),
    "low rank": Case((1, 3, 4), low_rank, number),
    "low rank, any diagonal": Case((2, 3, 2), low_rank, any_diagonal),
    "low rank, more vectors than weights": Case((1, 2, 2), lambda s, g: low_rank(s, g, 6), any_diagonal),
    "low rank, no vectors": Case((1, 2, 2), lambda s, g: low_rank(s, g, 0), number),
    "covariance": Case((1, 3, 4), covariance, number, adds=False),
    "covariance, any diagonal": Case((2, 3, 2), covariance, any_diagonal, adds=False),
    "covariance, more columns than weights": Case((1, 2, 2), lambda s, g: covariance(s, g, 6), number, adds=False),
    "covariance, no columns": Case((1, 2, 2), lambda s, g: covariance(s, g, 0), any_diagonal, adds=False),
    "kronecker": Case((1, 3, 5), kronecker, number),
    "kronecker, square": Case((1, 4, 4), kronecker, number),
    "kronecker, one weight": Case((1, 1, 1), kronecker, number),
    "kronecker, one output": Case((1, 1, 5), kronecker, separable),
    "kronecker, groups": Case((3, 2, 4), kronecker, per_group),
    "kronecker, separable prior": Case((2, 4, 3), kronecker, separable),
    "kronecker, singular factors": Case((2, 4, 3), lambda s, g: kronecker(s, g, 1), number),
    "kronecker, counted inputs": Case((1, 3, 6), counted, number),
    "kronecker, counted inputs, separable prior": Case((1, 3, 6), counted, separable),
    "eigenvalue-corrected": Case((2, 4, 3), corrected, per_group),
    "eigenvalue-corrected, counted inputs": Case((1, 3, 6), lambda s, g: corrected(s, g, counted), number),
}


ADDING = [name for name, case in CASES.items() if case.adds]


def outer_tape(shape: Shape, rows: int, positions: int, outputs: int, dtype: torch.dtype) -> OuterTape:
    groups, o, d = shape
    g = seeded(5)
    a, b = normal(rows, positions, groups, d, g=g), normal(outputs, rows, positions, groups, o, g=g)
    return OuterTape(a.to(dtype), b.to(dtype))


def lookup_tape(shape: Shape, rows: int, positions: int, outputs: int, dtype: torch.dtype) -> LookupTape:
    g = seeded(6)
    tokens = torch.randint(0, shape[2], (rows, positions), generator=g)
    return LookupTape(tokens, normal(outputs, rows, positions, shape[1], g=g).to(dtype), shape[2])


# Three blocks of weights that lie scattered among each other.
BLOCKS = {"kronecker": (2, 2, 3), "dense": (1, 1, 4), "diagonal": (1, 1, 5), "eigenvalue-corrected": (1, 3, 2)}


def block_indices() -> tuple[Tensor, ...]:
    sizes = [g * o * d for g, o, d in BLOCKS.values()]
    return torch.randperm(sum(sizes), generator=seeded(3)).split(sizes)


def blocks(seed: int = 0) -> BlockPrecision:
    """Without a prior."""
    g = seeded(seed)
    parts = [CASES[name].curvature(shape, g) for name, shape in BLOCKS.items()]
    return BlockPrecision(parts, block_indices(), sum(part.dim for part in parts))


def joined_tape(rows: int, dtype: torch.dtype) -> JoinedTape:
    def part(name: str, shape: Shape) -> Tape:
        outer = outer_tape(shape, rows, 2, 3, dtype)
        return outer if name != "dense" else DenseTape(outer.jacobian(slice(None)))

    parts = tuple(part(name, shape) for name, shape in BLOCKS.items())
    return JoinedTape(parts, block_indices(), sum(part.dim for part in parts))
