"""Densities integrated on fine grids, the truth of the pictures, and the Gaussians that are fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope import density
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record
from bayescope.precision import DensePrecision

LogDensityFunction = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True)
class Grid:
    """An unnormalised density on a grid, integrated by the trapezoidal rule (geometric for smooth tails that vanish).

    Attributes:
        points: shape (M, dim), float64.
        log_f: log f at them, shape (M,).
        log_cell: the log of each point's share of the volume, shape (M,).
    """

    points: Tensor
    log_f: Tensor
    log_cell: Tensor

    @cached_property
    def log_normaliser(self) -> float:
        """log Z = log ∫ f."""
        return float(torch.logsumexp(self.log_f + self.log_cell, 0))

    @property
    def log_p(self) -> Tensor:
        """log f − log Z, shape (M,)."""
        return self.log_f - self.log_normaliser

    @property
    def mass(self) -> Tensor:
        """The probability that each point stands for, shape (M,), summing to 1."""
        return (self.log_p + self.log_cell).exp()

    def expect(self, values: Tensor) -> Tensor:
        """E_p[values] for values of shape (M, ...)."""
        return torch.tensordot(self.mass, values, dims=1)

    @property
    def mean(self) -> Tensor:
        """The mean E_p[θ] over the grid, shape (dim,)."""
        return self.expect(self.points)

    @property
    def covariance(self) -> Tensor:
        """The covariance Cov_p[θ] over the grid, shape (dim, dim)."""
        centred = self.points - self.mean
        return (self.mass[:, None] * centred).mT @ centred

    def kl_from(self, log_q: Tensor) -> float:
        """KL(q‖p) in nats for log q at the points, shape (M,)."""
        return float(((log_q + self.log_cell).exp() * (log_q - self.log_p)).sum())

    def kl_to(self, log_q: Tensor) -> float:
        """KL(p‖q) in nats for log q at the points, shape (M,); points without mass count for 0."""
        inside = self.mass > 0
        return float((self.mass * (self.log_p - log_q))[inside].sum())


def grid(log_density: LogDensityFunction, *spans: tuple[float, float], size: int = 4001) -> Grid:
    """The density over the box that the spans make up.

    Args:
        log_density: takes points of shape (M, dim).
        spans: (low, high) of each coordinate.
        size: points along each coordinate.
    """
    axes = [torch.linspace(low, high, size, dtype=torch.float64) for low, high in spans]
    points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    steps = [(axis[1] - axis[0]).expand(size).clone() for axis in axes]
    for step in steps:
        step[[0, -1]] *= 0.5
    log_cell = torch.cartesian_prod(*steps).reshape(-1, len(axes)).log().sum(-1)
    return Grid(points, log_density(points), log_cell)


def curve(log_density: LogDensityFunction, x: np.ndarray) -> np.ndarray:
    """log f at the points x of a line, shape (M,)."""
    return log_density(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))[:, None]).numpy()


def laplace(log_density: LogDensityFunction, start: Sequence[float], transform: str | None = None) -> GaussianPosterior:
    """Laplace's approximation at the mode that the start leads to."""
    point = torch.tensor(start, dtype=torch.float64)
    return density.laplace(log_density, point, transform=transform)


def moment_match(p: Grid | MixturePosterior) -> GaussianPosterior:
    """The Gaussian with the mean and covariance of p: the optimum of KL(p‖q), and EP's answer for a single factor."""
    return GaussianPosterior(p.mean, DensePrecision(p.covariance.inverse()), Record("moment matching"))


def ellipse(q: GaussianPosterior, mass: float = 0.9) -> np.ndarray:
    """The contour of a two-dimensional Gaussian that holds the given mass, shape (2, 200)."""
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    radius = (-2 * np.log1p(-mass)) ** 0.5
    circle = radius * torch.stack([angle.cos(), angle.sin()])
    return (q.location[:, None] + q.precision.sqrt_solve(circle)).numpy()


def on_plane(log_density: LogDensityFunction, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log f on a lattice, shape (len(y), len(x))."""
    points = torch.cartesian_prod(torch.from_numpy(x), torch.from_numpy(y))
    return log_density(points).reshape(len(x), len(y)).numpy().T
