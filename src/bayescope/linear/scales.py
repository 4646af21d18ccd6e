"""The scales of a sparse prior in a linear model: the unit that they have, and variational inference for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, ConvergenceWarning
from bayescope.linear.density import LinearDensity
from bayescope.linear.hyperparameters import expected_hyperparameters
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
    def density(self) -> LinearDensity:
        """The log joint."""

    @property
    def elbo(self) -> float:
        """The bound."""


G = TypeVar("G", bound=BoundedGaussian)


class OutputUnits(NamedTuple):
    """The units that f has at the best constant model, with g = ∂ log p/∂f and Λ of the GGN there.

    Attributes:
        constant: its weights, shape (P,).
        spread: how far f varies between rows, √(mean g²)/mean Λ: the sd of the step that Newton's method takes for a
            single row. It is the sd of y for a Gaussian outcome, whatever its noise; 1/√(p(1 − p)) for log odds;
            sd(y)/E[y] for the logarithm of a mean.
        width: how far off f is that a row tells, 1/√(mean Λ): the sd of Gaussian noise; 1/√(p(1 − p)) for log odds.
    """

    constant: Tensor
    spread: float
    width: float

    @classmethod
    def of(cls, density: LinearDensity) -> OutputUnits:
        """By Newton's method."""
        outputs, likelihood = density.model.outputs, density.likelihood
        theta = density.constant.clone()

        def block(rows: Batch) -> tuple[Tensor, ...]:
            f = density.model.forward(rows.features, theta)
            slope, bend = likelihood.gradient(f, rows.targets), likelihood.ggn(f, rows.targets).dense()
            each = slope, slope.square(), bend.diagonal(dim1=-2, dim2=-1)
            return tuple(rows.weighed(part).sum(0) for part in each)

        spread = width = 1.0
        for _ in range(MAX_STEPS):
            slopes, squares, bends = density.table.agreed(*density.sum(block, size=outputs))
            step, bend = slopes / bends, float(bends.mean())
            spread = math.sqrt(float(squares.mean() * density.table.total)) / bend
            width = math.sqrt(density.table.total / bend)
            if not density.model.bias or float(step.abs().max()) <= AT_CONSTANT * spread:
                break
            theta[-outputs:] += step
        return cls(theta, spread or 1.0, width)


@final
@dataclass(frozen=True, eq=False)
class MovingScale:
    """A sparse prior whose s is in the unit of the likelihood's width, as a function of its hyperparameters.

    Attributes:
        mixture: the prior at the density's likelihood.
        density: of the rows.
        learnt: the names of the hyperparameters.
        constant: the weights at which the width is measured, shape (P,).
    """

    mixture: ScaleMixture
    density: LinearDensity
    learnt: tuple[str, ...]
    constant: Tensor

    def at(self, u: Tensor) -> tuple[ScaleMixture, Tensor]:
        """The prior at the coordinates u of the hyperparameters, and d log s/du."""
        if not (self.learnt and self.mixture.moving):
            return self.mixture, torch.zeros_like(u)
        log_width, rate = self._log_width(u)
        return replace(self.mixture, scale=self.mixture.scale * math.exp(log_width - self._first)), rate

    def touching(self, u: Tensor, best: ScalePosterior, squares: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """A function below Φ, up to a constant and the slab's normaliser, that touches it at u; with its slope.

        By q(λ, τ/s) at u: w_j has a variance in proportion to s², so that with ℓ = log s/s(u) and
        M = Σ_j m_j E[1/τ²λ_j²] it is (∂Φ/∂ log s − M) ℓ − ½ M e^{−2ℓ}.
        """
        scale = self.at(u)[0].scale
        pulled = squares @ (best.precision - self.mixture.slab**-2.0)

        def below(there: Tensor) -> tuple[Tensor, Tensor]:
            mixture, rate = self.at(there)
            length = math.log(mixture.scale / scale)
            left = pulled * math.exp(-2.0 * length)
            return (best.slope - pulled) * length - 0.5 * left, (best.slope - pulled + left) * rate

        return below

    @cached_property
    def _first(self) -> float:
        return self._log_width(self.density.likelihood.unconstrained(self.learnt))[0]

    def _log_width(self, u: Tensor) -> tuple[float, Tensor]:
        density = self.density

        def block(rows: Batch) -> tuple[Tensor, Tensor]:
            f, point = density.model.forward(rows.features, self.constant), u.detach().clone()
            with torch.enable_grad():
                likelihood = density.likelihood.at_unconstrained(self.learnt, point.requires_grad_())
                bend = rows.weighed(likelihood.ggn(f, rows.targets).dense().diagonal(dim1=-2, dim2=-1)).sum()
            slope = torch.autograd.grad(bend, point)[0] if bend.requires_grad else torch.zeros_like(point)
            return bend.detach(), slope

        bend, slope = density.table.agreed(*density.sum(block, size=len(u)))
        return -0.5 * math.log(float(bend)), -0.5 * slope / bend


def weight_squares(model: LinearModel, mean: Tensor, precision: Precision) -> Tensor:
    """E‖w_j‖² of the weights of each input for all outputs, shape (D,), for θ ~ N(mean, precision⁻¹)."""
    second = mean.square() + precision.marginal_variance()
    return second[: model.outputs * model.features].unflatten(0, (model.outputs, -1)).sum(0)


class _Trial(NamedTuple):
    """A fit under the precisions of some scales and some hyperparameters, and what both are for this fit.

    Attributes:
        fit: q(w).
        ahead: log p_j of the best q(λ, τ) given q(w), then u of the best hyperparameters, shape (D + U,).
        correction: what the scales add to the bound of the fit.
        bound: with the scales.
    """

    fit: BoundedGaussian
    ahead: Tensor
    correction: Tensor
    bound: float


def integrate_scales(
    fit: Fitter[G], density: LinearDensity, mixture: ScaleMixture, tolerance: float, learnt: tuple[str, ...] = ()
) -> tuple[G, Tensor, list[float]]:
    """Finds q(w), q(λ, τ) and the likelihood's hyperparameters with a stationary bound.

    By turns the scales are integrated out, which gives each input a Gaussian prior, the hyperparameters go to their
    best values under q(w), and q(w) is fitted under both; each raises the bound. From two turns follows a longer step
    in the log precisions and the hyperparameters' coordinates, which is taken where it raises the bound as well
    (SQUAREM: Varadhan & Roland 2008, Simple and globally convergent methods for accelerating the convergence of any EM
    algorithm, scheme S3).

    Args:
        fit: the posterior of a density, started from the solution under another prior, or from ``None``, to within a
            distance in sds of q.
        density: its prior gives the precision of the intercept, and that of the weights where the search begins, as its
            likelihood gives the hyperparameters there.
        mixture: the prior of the weights.
        tolerance: the distance of the last fit.
        learnt: the names of the hyperparameters that are to be learnt.

    Returns:
        The fit under the last precisions; what is to be added to its expected log prior; and the bound after each step.

    Raises:
        ConvergenceError: if a fit fails.

    Warns:
        ConvergenceWarning: if the bound still rises after `MAX_CYCLES`.
    """
    outputs, features = density.model.outputs, density.model.features
    some = torch.arange(density.dim) < outputs * features
    distance, inverse = max(tolerance, ROUGH), None
    moving = MovingScale(mixture, density, learnt, OutputUnits.of(density).constant)
    first = torch.cat([density.prior.diagonal(density.dim)[:features].log(), density.likelihood.unconstrained(learnt)])

    def at(scales: Tensor, start: BoundedGaussian | None) -> _Trial:
        nonlocal inverse
        precision, u = scales[:features].exp(), scales[features:]
        prior = density.prior.with_precision(some, precision.repeat(outputs))
        likelihood = density.likelihood.at_unconstrained(learnt, u)
        found = fit(density.with_prior(prior).with_likelihood(likelihood), start, distance)  # type: ignore[arg-type]
        squares = weight_squares(density.model, found.mean, found.precision)

        best = ahead = moving.at(u)[0].posterior(squares, outputs)
        given = 0.5 * (outputs * (precision / (2.0 * math.pi)).log() - precision * squares).sum()
        if learnt:
            log_prior = moving.touching(u, best, squares)
            u, inverse = expected_hyperparameters(
                found.density, learnt, found.mean, found.precision, inverse, log_prior, first[features:]
            )
            ahead = moving.at(u)[0].posterior(squares, outputs)
        correction, each = density.table.agreed(best.log_prior - given, ahead.precision)
        return _Trial(found, torch.cat([each.log(), u]), correction, found.elbo + float(correction))

    here, before = at(first, None), first
    bounds, gain = [here.bound], math.inf
    for _ in range(MAX_CYCLES):
        middle = here.ahead
        ahead = at(middle, here.fit)
        step = middle - before
        bend = ahead.ahead - middle - step
        length = -max(1.0, float(step.norm() / bend.norm().clamp(min=1e-300)))
        longer = before + (-2.0 * length * step + length**2 * bend).clamp(-LONGEST, LONGEST)
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
