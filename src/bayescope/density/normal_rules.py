"""Fixed nodes for E[h(z)], z ~ N(0, I): deterministic objectives for variational inference."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from torch import Tensor

from bayescope.quadrature import gauss_hermite, normal_nodes

# A product rule needs this many nodes an axis to be worth its while, and has no use for more than the most.
_LEAST_AN_AXIS, _MOST_AN_AXIS = 8, 64
# Independent sets of fresh points; their scatter gives the standard error.
_FRESH_SETS = 8


@final
@dataclass(frozen=True)
class NormalRule:
    """E[h(z)] ≈ Σ w h(z), with Σ w z = 0 and Σ w z zᵀ = I to rounding.

    Attributes:
        nodes: z, shape (S, D).
        weights: w, shape (S,), summing to 1.
        name: what the nodes are.
    """

    nodes: Tensor
    weights: Tensor
    name: str

    def mean(self, values: Tensor) -> Tensor:
        """Σ w h for values h of shape (S,)."""
        return self.weights @ values


def standard_rule(dim: int, count: int, seed: int) -> NormalRule:
    """A product Gauss–Hermite rule of at most ``count`` nodes where 8 an axis fit; else quasi-Monte-Carlo points."""
    axis = _axis(dim, count)
    return _product(dim, axis) if axis >= _LEAST_AN_AXIS else _antithetic(dim, count, seed)


def fresh_rules(dim: int, count: int, seed: int) -> list[NormalRule]:
    """Rules to check with: two finer products, or eight further randomisations of the points."""
    axis = _axis(dim, count)
    if axis >= _LEAST_AN_AXIS:
        return [_product(dim, axis + 8), _product(dim, axis + 9)]
    return [_antithetic(dim, count, seed + offset) for offset in range(1, _FRESH_SETS + 1)]


def _axis(dim: int, count: int) -> int:
    return min(_MOST_AN_AXIS, int(count ** (1.0 / dim) + 1e-9))


@cache
def _product(dim: int, axis: int) -> NormalRule:
    nodes, log_weights = gauss_hermite(axis)
    points = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim)
    weights = torch.cartesian_prod(*[log_weights] * dim).reshape(-1, dim).sum(-1).exp()
    return NormalRule(points, weights / weights.sum(), f"{' × '.join(itertools.repeat(str(axis), dim))} Gauss–Hermite")


@cache
def _antithetic(dim: int, count: int, seed: int) -> NormalRule:
    """±z for scrambled Sobol' points z that are whitened to covariance I."""
    half = normal_nodes(dim, count // 2, seed=seed)
    factor = torch.linalg.cholesky(half.mT @ half / half.shape[0])
    white = torch.linalg.solve_triangular(factor, half.mT, upper=False).mT
    weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
    return NormalRule(torch.cat([white, -white]), weights, f"{count} quasi-Monte-Carlo points")
