"""Log densities whose moments and normalisers are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Target:
    """A log density with its moments and log normaliser."""

    log_density: Callable[[Tensor], Tensor]
    mean: Tensor
    covariance: Tensor
    log_z: float


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gaussian(mean: Tensor, precision: Tensor) -> Target:
    log_z = 0.5 * (mean.shape[0] * math.log(2 * math.pi) - float(torch.logdet(precision)))

    def log_density(x: Tensor) -> Tensor:
        return -0.5 * (x - mean) @ precision @ (x - mean)

    return Target(log_density, mean, torch.linalg.inv(precision), log_z)


CORRELATED = gaussian(
    vector(1.0, -2.0, 0.5), torch.tensor([[2.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 4.0]], dtype=torch.float64)
)


def gamma_poisson(total: float, rows: int) -> Target:
    """λ ~ Gamma(2, 1) after counts that sum to ``total`` in ``rows`` rows: Gamma(2 + total, 1 + rows), unnormalised."""
    shape, rate = 2.0 + total, 1.0 + rows

    def log_density(x: Tensor) -> Tensor:
        return ((shape - 1.0) * x.log() - rate * x).sum()

    log_z = math.lgamma(shape) - shape * math.log(rate)
    return Target(log_density, vector(shape / rate), vector(shape / rate**2)[:, None], log_z)


def two_gaussians(weights: tuple[float, float], separation: float) -> Target:
    """Unit Gaussians at ∓separation in one dimension, normalised to Z = 1."""
    logs, centres = vector(*weights).log(), vector(-separation, separation)
    mean = float((logs.exp() * centres).sum())

    def log_density(x: Tensor) -> Tensor:
        return torch.logsumexp(logs - 0.5 * (x - centres).square(), 0) - 0.5 * math.log(2 * math.pi)

    return Target(log_density, vector(mean), vector(1.0 + separation**2 - mean**2)[:, None], 0.0)
