"""The mode of the log joint of a linear model, by Newton's method, and Laplace's approximation there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, NotPositiveDefiniteError
from bayescope.linear.density import Again, LikelihoodExpansion, LinearDensity
from bayescope.posterior import GaussianPosterior, PointPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.storage import stored_function

# The Newton decrement √(gᵀA⁻¹g) is the distance to the mode in posterior standard deviations. Where the classes are
# separable the curvature changes by a hundred times itself within one of them, and A is wanted to eight digits or more.
TOLERANCE = 1e-12
# A table with many rows starts from the mode of every STRIDE-th of them; that is prime, to fall in step with few
# patterns of the rows.
SAMPLED_ROWS, SAMPLED_SHARE = 20_000, 400
STRIDE = 17
# Such a sample takes no more memory than this: of more rows fewer are taken, however many there are.
SAMPLE_BYTES = 2**25
SAMPLE_TOLERANCE = 0.3
# A large table stops within LARGE_TOLERANCE: the last step costs no pass and leaves about its square, and the precision
# is that of a point 1e-4 sds from the mode, where it differs by about 1e-4/√N < 3e-7 of itself.
LARGE_ROWS = 200_000
LARGE_TOLERANCE = 1e-4
MAX_STEPS = 200
ARMIJO = 1e-4
ROUNDING = 64 * torch.finfo(torch.float64).eps

Retune = Callable[[Tensor, LikelihoodExpansion], Prior]


@final
@dataclass(frozen=True)
class LinearMode:
    """A point of the climb to the mode of a log joint density; of the last one the mode.

    Attributes:
        density: what is climbed, under the prior at this point.
        theta: the weights, shape (P,).
        log_joint: log p(y, θ).
        precision: the negative Hessian of the log joint.
        reading: the likelihood alone, as last read, with the curvature that is definite together with the prior's.
        step: Newton's step from where the rows were last read.
        decrement: how far the last reading was from the mode, in posterior standard deviations.
        trace: "log_joint" and "decrement" of each step on all rows.
    """

    density: LinearDensity
    theta: Tensor
    log_joint: Tensor
    precision: DensePrecision
    reading: LikelihoodExpansion
    step: Tensor
    decrement: float
    trace: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, density: LinearDensity, theta: Tensor, reading: LikelihoodExpansion) -> LinearMode:
        """Solve for Newton's step from a reading of the rows at θ."""
        gradient = reading.gradient - density.prior_precision.multiply(theta - density.prior_mean)
        prior, name = density.prior_precision.to_dense(), "the precision of the log joint"
        try:
            precision = DensePrecision(reading.curvature + prior, name=name)
        except NotPositiveDefiniteError:
            # Away from the mode of a likelihood that is not log-concave its GGN gives a direction that ascends.
            reading = replace(reading, curvature=density.ggn(theta))
            precision = DensePrecision(reading.curvature + prior, name=name)
        step = precision.solve(gradient)
        log_joint = reading.log_likelihood + density.prior.log_prob(theta)
        decrement = (gradient @ step).clamp(min=0.0).sqrt()
        step, log_joint, decrement = density.table.agreed(step, log_joint, decrement)
        return cls(density, theta, log_joint, precision, reading, step, float(decrement))


def find_mode(
    density: LinearDensity,
    start: Tensor | None = None,
    *,
    retune: Retune | None = None,
    tolerance: float | None = None,
    steps: int = MAX_STEPS,
) -> LinearMode:
    """Climbs to argmax_θ log p(y, θ) by Newton's method, with the exact Hessian and Armijo backtracking.

    The log joint of a log-concave likelihood under a Gaussian prior has one mode and a positive definite precision
    everywhere, so that the climb converges from any start, on separable data too. For other likelihoods a step takes
    the GGN where the Hessian is not definite, and the climb ends at the mode that is uphill of the start. Where rows
    abound the climb begins on a fixed choice of them, each counting for those left out, and from a choice of those.

    Args:
        density: the log joint.
        start: where to begin, shape (P,); the best constant model by default.
        retune: called with θ and the reading there after each pass; the climb goes on under the prior that it
            returns. The fixed point is a mode under the prior that `retune` returns at the mode.
        tolerance: the decrement to stop at; `TOLERANCE`, or `LARGE_TOLERANCE` for a large table, by default.
        steps: the most Newton steps on all rows.

    Raises:
        ConvergenceError: if the mode is not reached.
        NotPositiveDefiniteError: if the curvature is not positive definite: columns are linear combinations of others,
            and nothing holds their weights.
    """
    if start is None and density.table.count >= max(SAMPLED_ROWS, SAMPLED_SHARE * density.dim):
        sampled = find_mode(sample(density), retune=retune, tolerance=SAMPLE_TOLERANCE)
        start, density = sampled.theta, density.with_prior(sampled.density.prior)
    if tolerance is None:
        tolerance = LARGE_TOLERANCE if density.table.count >= LARGE_ROWS else TOLERANCE
    theta = density.constant if start is None else start
    point = _retuned(LinearMode.of(density, theta, density.read(theta)), retune)
    trace: dict[str, list[float]] = {"log_joint": [], "decrement": []}
    for _ in range(steps):
        trace["log_joint"].append(float(point.log_joint))
        trace["decrement"].append(point.decrement)
        if point.decrement <= tolerance or _stalled(trace["decrement"], point):
            # The last step needs no pass: what it changes is below the tolerance.
            log_joint = point.log_joint + 0.5 * point.decrement**2
            return replace(point, theta=point.theta + point.step, log_joint=log_joint, trace=trace)
        point = _advance(point, retune)
    raise ConvergenceError(
        f"mode: expected a Newton decrement of at most {tolerance:g} within {steps} steps, got "
        f"{point.decrement:.3g}. Raise the prior precision or standardise the features."
    )


def sample(density: LinearDensity) -> LinearDensity:
    """Every `STRIDE`-th row of a table, or fewer where these take more than `SAMPLE_BYTES`, counting for all."""
    held = 8 * density.table.count * density.model.features
    return density.every(max(STRIDE, math.ceil(held / SAMPLE_BYTES)))


def _advance(point: LinearMode, retune: Retune | None) -> LinearMode:
    """Newton's step, halved until the log joint rises by a share of what its slope promises."""
    density, length = point.density, 1.0
    while length >= 1e-10:
        theta = point.theta + length * point.step
        reading = density.read(theta)
        log_joint = reading.log_likelihood + density.prior.log_prob(theta)
        slack = ROUNDING * (1.0 + abs(float(point.log_joint)))
        if log_joint >= point.log_joint + ARMIJO * length * point.decrement**2 - slack:
            return _retuned(LinearMode.of(density, theta, reading), retune)
        length *= 0.5
    raise ConvergenceError(
        f"mode: the log joint does not rise along Newton's step (decrement {point.decrement:.3g}). "
        "The likelihood may not be log-concave, or the features differ too much in scale: standardise them."
    )


def _retuned(point: LinearMode, retune: Retune | None) -> LinearMode:
    """The same weights under the prior that ``retune`` returns."""
    if retune is None:
        return point
    return LinearMode.of(point.density.with_prior(retune(point.theta, point.reading)), point.theta, point.reading)


def _stalled(decrements: list[float], point: LinearMode) -> bool:
    """Whether rounding keeps the decrement from falling: it no longer halves, and its square changes no digit."""
    if len(decrements) < 2 or decrements[-1] < 0.5 * decrements[-2]:
        return False
    return point.decrement**2 <= ROUNDING * (1.0 + abs(float(point.log_joint)))


@stored_function("linear_laplace")
def laplace(density: LinearDensity) -> GaussianPosterior:
    """q(θ) = N(θ̂, A⁻¹) with θ̂ the mode and A = −∂² log p(y, θ̂), exact; log Z by Laplace.

    log p(y) ≈ log p(y, θ̂) + ½ P log 2π − ½ log∣A∣ (Bishop 2006, eq. 4.137).

    Raises:
        ConvergenceError: if the mode is not reached.
    """
    return laplace_at(find_mode(density))


def laplace_at(
    mode: LinearMode, *, method: str = "laplace", infer: Callable[[LinearDensity], GaussianPosterior] = laplace
) -> GaussianPosterior:
    """Laplace's approximation at a mode that is known; `condition` calls ``infer``."""
    density, dim = mode.density, mode.density.dim
    evidence = mode.log_joint + 0.5 * (dim * math.log(2.0 * math.pi) - mode.precision.logdet())
    record = Record(method, evidence=evidence, trace=mode.trace)
    again = Again(infer, density.model, density.likelihood)
    return GaussianPosterior(mode.theta, mode.precision, record, density.model, density.likelihood, infer=again)


def map_at(mode: LinearMode) -> PointPosterior:
    """The point posterior at a mode that is known."""
    density = mode.density
    return PointPosterior(mode.theta, Record("map", trace=mode.trace), density.model, density.likelihood)
