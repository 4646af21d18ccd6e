"""Fits that several pictures make: Laplace's single Gaussian, and the Gaussian with a density's moments."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bayescope import density
from bayescope.gallery.exact import Grid, LogDensityFunction
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record
from bayescope.precision import DensePrecision


def laplace(log_density: LogDensityFunction, start: Sequence[float], transform: str | None = None) -> GaussianPosterior:
    """Laplace's approximation at the mode that the start leads to."""
    point = torch.tensor(start, dtype=torch.float64)
    return density.laplace(log_density, point, transform=transform)


def moment_match(p: Grid | MixturePosterior) -> GaussianPosterior:
    """The Gaussian with the mean and covariance of p: the optimum of KL(p‖q), and EP's answer for a single factor."""
    return GaussianPosterior(p.mean, DensePrecision(p.covariance.inverse()), Record("moment matching"))
