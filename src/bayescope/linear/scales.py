"""The scales of a sparse prior in a linear model: the unit that they have, and variational inference for them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, ConvergenceWarning
from bayescope.linear.density import LinearDensity
from bayescope.linear.table import Batch
from bayescope.linear.tuning import FittedGaussian, Fitter
from bayescope.models import LinearModel
from bayescope.precision import Precision
from bayescope.processes import warn_once
from bayescope.sparse_priors import ScaleMixture, ScalePosterior

# Steps to the best constant model, the last of which is at most this share of how far outputs vary.
MAX_STEPS, AT_CONSTANT = 50, 1e-6
# The search ends where a cycle raises the bound by less than this, in nats.
TOLERANCE = 1e-6
MAX_CYCLES = 300
# The longest step in log p.
LONGEST = 10.0
# While a cycle raises the bound by more than FAR, fits are made to within ROUGH sds of their optimum.
FAR, ROUGH = 1e-2, 0.1


class BoundedGaussian(FittedGaussian, Protocol):
    """A fitted Gaussian with the evidence lower bound under its prior."""

    @property
    def elbo(self) -> float:
        """The bound."""


G = TypeVar("G", bound=BoundedGaussian)


def unit_of_outputs(density: LinearDensity) -> float:
    """How far f varies between rows: √(mean g²)/mean Λ, with g = ∂ log p/∂f and Λ of the GGN at the best constant.

    It is the sd of the step that Newton's method takes from the constant for a single row: the sd of y for a Gaussian
    outcome, whatever its noise; 1/√(p(1 − p)) for log odds; sd(y)/E[y] for the logarithm of a mean.
    """
    outputs, likelihood = density.model.outputs, density.likelihood
    theta = density.constant.clone()

    def block(rows: Batch) -> tuple[Tensor, ...]:
        f = density.model.forward(rows.features, theta)
        slope, bend = likelihood.gradient(f, rows.targets), likelihood.ggn(f, rows.targets).dense()
        each = slope, slope.square(), bend.diagonal(dim1=-2, dim2=-1)
        return tuple(rows.weighed(part).sum(0) for part in each)

    spread = 1.0
    for _ in range(MAX_STEPS):
        slopes, squares, bends = density.table.agreed(*density.sum(block, size=outputs))
        step = slopes / bends
        spread = math.sqrt(float(squares.mean() * density.table.total)) / float(bends.mean())
        if not density.model.bias or float(step.abs().max()) <= AT_CONSTANT * spread:
            break
        theta[-outputs:] += step
    return spread or 1.0


def weight_squares(model: LinearModel, mean: Tensor, precision: Precision) -> Tensor:
    """E‖w_j‖² of the weights of each input for all outputs, shape (D,), for θ ~ N(mean, precision⁻¹)."""
    second = mean.square() + precision.marginal_variance()
    return second[: model.outputs * model.features].unflatten(0, (model.outputs, -1)).sum(0)


class _Point(NamedTuple):
    """A fit under the precisions of some scales, and what the scales are for this fit.

    Attributes:
        fit: q(w).
        scales: q(λ, τ) given q(w).
        correction: what the scales add to the bound of the fit.
        bound: with the scales.
    """

    fit: BoundedGaussian
    scales: ScalePosterior
    correction: Tensor
    bound: float


def integrate_scales(
    fit: Fitter[G], density: LinearDensity, mixture: ScaleMixture, tolerance: float
) -> tuple[G, Tensor, list[float]]:
    """Finds q(w) and q(λ, τ) with a stationary bound.

    By turns the scales are integrated out, which gives each input a Gaussian prior, and q(w) is fitted under that; both
    raise the bound. From two turns follows a longer step in the log precisions, which is taken where it raises the
    bound as well (SQUAREM: Varadhan & Roland 2008, Simple and globally convergent methods for accelerating the
    convergence of any EM algorithm, scheme S3).

    Args:
        fit: the posterior of a density, started from the solution under another prior, or from ``None``, to within a
            distance in sds of q.
        density: its prior gives the precision of the intercept, and that of the weights where the search begins.
        mixture: the prior of the weights.
        tolerance: the distance of the last fit.

    Returns:
        The fit under the last precisions; what is to be added to its expected log prior; and the bound after each step.

    Raises:
        ConvergenceError: if a fit fails.

    Warns:
        ConvergenceWarning: if the bound still rises after `MAX_CYCLES`.
    """
    outputs, features = density.model.outputs, density.model.features
    some = torch.arange(density.dim) < outputs * features
    distance = max(tolerance, ROUGH)

    def at(precision: Tensor, start: BoundedGaussian | None) -> _Point:
        prior = density.prior.with_precision(some, precision.repeat(outputs))
        found = fit(density.with_prior(prior), start, distance)  # type: ignore[arg-type]
        squares = weight_squares(density.model, found.mean, found.precision)
        scales = mixture.posterior(squares, outputs)
        given = 0.5 * (outputs * (precision / (2.0 * math.pi)).log() - precision * squares).sum()
        log_prior, each, correction = density.table.agreed(scales.log_prior, scales.precision, scales.log_prior - given)
        return _Point(found, ScalePosterior(log_prior, each), correction, found.elbo + float(correction))

    first = density.prior.diagonal(density.dim)[:features]
    here, before = at(first, None), first
    bounds, gain = [here.bound], math.inf
    for _ in range(MAX_CYCLES):
        middle = here.scales.precision
        ahead = at(middle, here.fit)
        after = ahead.scales.precision
        step = (middle / before).log()
        bend = (after / middle).log() - step
        length = -max(1.0, float(step.norm() / bend.norm().clamp(min=1e-300)))
        leap_by = (-2.0 * length * step + length**2 * bend).clamp(-LONGEST, LONGEST)
        longer = before * leap_by.exp()
        with suppress(ConvergenceError):
            leap = at(longer, ahead.fit)
            if leap.bound > ahead.bound:
                ahead, middle = leap, longer
        gain, here, before = ahead.bound - here.bound, ahead, middle
        bounds.append(here.bound)
        if gain < FAR and distance > tolerance:
            distance = tolerance
        elif gain < TOLERANCE:
            return here.fit, here.correction, bounds  # type: ignore[return-value]
    warn_once(
        f"variational: expected the bound to come to rest within {MAX_CYCLES} cycles over the prior's scales, got a "
        f"rise of {gain:.2g} in the last. The weights of some inputs are next to nothing; leave these inputs out.",
        ConvergenceWarning,
    )
    return here.fit, here.correction, bounds  # type: ignore[return-value]
