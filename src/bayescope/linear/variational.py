"""Variational inference for a linear model: the Gaussian that maximises the evidence lower bound.

For q(θ) = N(m, A⁻¹) and the prior N(m₀, P₀⁻¹) the bound is

    L(m, A) = Σ_n E[log p(y_n∣f_n)] + E[log p(θ)] + entropy(q) ≤ log p(y),    f_n ~ N(J_n m, J_n A⁻¹ J_nᵀ),

and depends on the data through the rows' outputs alone, so that it is computed without drawing random numbers. It is
stationary where (Opper & Archambeau 2009, The variational Gaussian approximation revisited, eqs. 16–17)

    Σ_n J_nᵀ E[∂ log p/∂f_n] = P₀ (m − m₀),    A = T = P₀ + Σ_n J_nᵀ E[Λ_n] J_n    (their diagonals, for a diagonal A).

A step goes from A to T, and in m by Newton's method for the expected Hessian; for a full covariance this is the natural
gradient with step 1 (Khan & Lin 2017, Conjugate-computation variational inference). Both parts ascend, so that a short
enough step raises the bound. Near the solution the last steps are combined by Anderson's extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import ConvergenceError, ConvergenceWarning, NotPositiveDefiniteError
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity, Spread
from bayescope.linear.expectations import expected_log_likelihood
from bayescope.linear.laplace import compile_density
from bayescope.linear.mode import find_mode
from bayescope.linear.table import Batch
from bayescope.linear.tuning import tune_precision
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision, DiagonalPrecision, Precision
from bayescope.priors import Prior
from bayescope.processes import warn_once

# The slope at a step's end is at least −OVERSHOOT times the slope at its start. On a quadratic this is Armijo's
# condition with the constant 0.1, and it keeps its meaning where differences of the bound drown in rounding.
OVERSHOOT = 0.8
# Rounding and the quadrature's error, relative to the bound: a fall by less is none.
SLACK = 1e-9
MAX_SHORTER = 40
# The longest natural gradient that a result may have, with a warning: its bound is within 1e-6 of the maximum.
USABLE = 1e-3
# Steps are extrapolated from when they are this long (in standard deviations of q) or shorter, over as many of the last
# ones, if the extrapolated step ascends at least at this share of the plain one's slope.
NEAR = 0.3
MEMORY = 6
ASCENT = 0.1
# Where as many steps have not come near, as where rows of very different weights leave q wide and far from Laplace's,
# the mean follows each step of the covariance by up to FOLLOW of Newton's, each worth more than WORTH nats.
PATIENCE = 40
FOLLOW = 2
WORTH = 1e-4


@final
@dataclass(frozen=True)
class Family:
    """Which covariances q may have.

    Attributes:
        method: the name that posteriors of this family carry.
        project: the part of a symmetric matrix that a precision of the family can represent.
        structure: the precision with a given matrix.
    """

    method: str
    project: Callable[[Tensor], Tensor]
    structure: Callable[[Tensor], Precision]


_NAME = "the variational precision"
FAMILIES = {
    "full": Family("variational", lambda matrix: matrix, lambda matrix: DensePrecision(matrix, name=_NAME)),
    "mean_field": Family(
        "mean_field",
        lambda matrix: torch.diag(matrix.diagonal()),
        lambda matrix: DiagonalPrecision(matrix.diagonal(), name=_NAME),
    ),
}


@final
@dataclass(frozen=True)
class Fit:
    """q = N(mean, precision⁻¹), with the bound and its derivatives there.

    Attributes:
        density: the log joint.
        mean: m, shape (P,).
        precision: A.
        terms: the three terms of the bound L.
        gradient: ∂L/∂m, shape (P,).
        target: T projected on the family, shape (P, P): ∂L/∂A⁻¹ = ½ (A − T).
        newton: T itself, shape (P, P): the expected negative Hessian of the log joint.
        trace: the bound at every step that led here.
    """

    density: LinearDensity
    mean: Tensor
    precision: Precision
    terms: dict[str, Tensor]
    gradient: Tensor
    target: Tensor
    newton: Tensor
    trace: tuple[float, ...] = ()

    @property
    def elbo(self) -> float:
        """The bound L."""
        return float(sum(self.terms.values()))

    def slope(self, mean: Tensor, precision: Tensor) -> float:
        """dL for a change dm and dA: dA⁻¹ = −A⁻¹ dA A⁻¹, so that dL = ∂L/∂m·dm + ½ tr[A⁻¹(T − A) A⁻¹ dA]."""
        ahead = self.precision.solve(self.target - self.precision.to_dense())
        along = self.precision.solve(precision)
        (slope,) = self.density.table.agreed(self.gradient @ mean + 0.5 * (ahead * along.mT).sum())
        return float(slope)


@final
@dataclass(frozen=True)
class Step:
    """A direction: a change of m, of A, and the slope of the bound along it."""

    mean: Tensor
    precision: Tensor
    slope: float


def variational(
    model: LinearModel,
    likelihood: Likelihood,
    prior: Prior,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    family: str = "full",
    tuned: Tensor | None = None,
    nodes: int = 512,
    tolerance: float = 1e-8,
    max_iterations: int = 500,
) -> GaussianPosterior:
    """The Gaussian with the highest evidence lower bound.

    Args:
        model: f = W x (+ b).
        likelihood: a Bernoulli with one output (either link), a Categorical or a Gaussian; for the last the full family
            gives the exact posterior, and the bound is the evidence.
        prior: p(θ); a dense precision and a mean other than zero are fine.
        X: shape (N, D).
        y: N targets, as the likelihood takes them.
        weights: how often each row counts, shape (N,); once by default.
        family: "full" covariance, or "mean_field" for a diagonal one.
        tuned: a mask of shape (P,): these weights share one prior precision, which is learnt by maximising the bound.
        nodes: quasi-Monte-Carlo points for more than two classes, a power of two.
        tolerance: the length of the natural gradient at the solution: what is left to go in m and in A, in standard
            deviations of q. The bound is then within about half its square of the maximum.
        max_iterations: for each prior precision that is tried.

    Returns:
        A `GaussianPosterior` with `elbo` and its terms, and the bound at each iteration in ``trace["elbo"]``; the
        precisions tried, the learnt one last, are in ``trace["prior_precision"]``.

    Raises:
        OptionError: if the family is unknown.
        UnsupportedError: for another likelihood.
        ConvergenceError: if the natural gradient is longer than `USABLE` after all iterations.

    Warns:
        ConvergenceWarning: if it is longer than the tolerance.
    """
    checks.choice("family", family, FAMILIES)
    density = compile_density(model, likelihood, prior, X, y, weights)
    return variational_of(
        density, family=family, tuned=tuned, nodes=nodes, tolerance=tolerance, max_iterations=max_iterations
    )


def variational_of(
    density: LinearDensity,
    *,
    family: str = "full",
    tuned: Tensor | None = None,
    nodes: int = 512,
    tolerance: float = 1e-8,
    max_iterations: int = 500,
) -> GaussianPosterior:
    """The same for a log joint; arguments as for `variational`."""
    kind = FAMILIES[family]
    solve = partial(_maximise, family=kind, nodes=nodes, tolerance=tolerance, max_iterations=max_iterations)
    notes = {"covariance": "full" if family == "full" else "diagonal (mean field)"}
    trace: dict[str, list[float]] = {}
    if tuned is None:
        fit = solve(density, None)
    else:
        tuning = tune_precision(solve, density, tuned)
        fit, trace["prior_precision"] = tuning.fit, tuning.precisions
        notes["prior precision"] = f"{tuning.precisions[-1]:.6g}, learnt by maximising the evidence lower bound"
    trace["elbo"] = list(fit.trace)
    record = Record(kind.method, elbo_terms=fit.terms, notes=notes, trace=trace)
    options = partial(variational, family=family, nodes=nodes, tolerance=tolerance, max_iterations=max_iterations)
    again = partial(options, density.model, density.likelihood)  # not a closure: a posterior can be pickled
    return GaussianPosterior(fit.mean, fit.precision, record, density.model, density.likelihood, infer=again)


def _maximise(
    density: LinearDensity, start: Fit | None, *, family: Family, nodes: int, tolerance: float, max_iterations: int
) -> Fit:
    """Climbs from another prior's solution, or from Laplace's approximation."""
    evaluate = partial(_evaluate, density, family, nodes)
    if start is None:
        mode = find_mode(density)
        fit = evaluate(mode.theta, family.structure(mode.precision.to_dense()))
    else:
        fit = evaluate(start.mean, start.precision)
    history: list[tuple[Fit, Step]] = []
    trace, length = [fit.elbo], math.inf
    for iteration in range(max_iterations):
        step = _natural(fit)
        length = math.sqrt(max(step.slope, 0.0))
        if length <= tolerance:
            return replace(fit, trace=tuple(trace))
        history = [*history[-MEMORY:], (fit, step)]
        chosen = _extrapolated(history) if length <= NEAR else step
        fit = _climb(fit, chosen, family, evaluate, follow=length > NEAR and iteration >= PATIENCE)
        trace.append(fit.elbo)
    message = (
        f"variational: expected a natural gradient of at most {tolerance:g} sd, got {length:.3g} after "
        f"{max_iterations} iterations. Raise the prior precision or max_iterations, or rescale the inputs."
    )
    if length > USABLE:
        raise ConvergenceError(message)
    warn_once(message, ConvergenceWarning)
    return replace(fit, trace=tuple(trace))


def _evaluate(density: LinearDensity, family: Family, nodes: int, mean: Tensor, precision: Precision) -> Fit:
    """The bound at q = N(mean, precision⁻¹), its terms and its derivatives."""
    prior, spread = density.prior_precision, Spread.of(density.model, precision)

    def block(rows: Batch) -> tuple[Tensor, ...]:
        f = density.model.forward(rows.features, mean)
        expected = expected_log_likelihood(density.likelihood, f, spread(rows.features), rows.targets, nodes=nodes)
        return (
            rows.weighed(expected.log_prob).sum(),
            density.pull_back(rows.features, rows.weighed(expected.gradient)),
            density.gram(rows.features, rows.weighed(expected.curvature)),
        )

    log_likelihood, slope, curvature = density.sum(block, size=density.dim**2, copies=density.dim)
    newton = curvature + prior.to_dense()
    terms = {
        "expected log likelihood": log_likelihood,
        "expected log prior": density.prior.log_prob(mean) - 0.5 * precision.solve(prior.to_dense()).trace(),
        "entropy": 0.5 * (density.dim * (1.0 + math.log(2 * math.pi)) - precision.logdet()),
    }
    gradient, *values = density.table.agreed(slope - prior.multiply(mean - density.prior_mean), *terms.values())
    terms = dict(zip(terms, values, strict=True))
    return Fit(density, mean, precision, terms, gradient, family.project(newton), newton)


def _natural(fit: Fit) -> Step:
    """To T in A, Newton's in m; with a full covariance its slope is the natural gradient's squared length."""
    try:
        mean = DensePrecision(fit.newton).solve(fit.gradient)
    except NotPositiveDefiniteError:  # far from the solution, a sum over few nodes need not be concave
        mean = fit.precision.solve(fit.gradient)
    (mean,) = fit.density.table.agreed(mean)
    precision = fit.target - fit.precision.to_dense()
    return Step(mean, precision, fit.slope(mean, precision))


def _extrapolated(history: list[tuple[Fit, Step]]) -> Step:
    """Anderson's (1965) combination of the last steps, where it ascends well; else the last step.

    With s the points and r their steps, s + r − Σ_j γ_j (Δs_j + Δr_j), with γ the least-squares fit of r by the Δr_j:
    the affine combination of the points whose own step is expected to be the shortest, and that step. Lengths are
    measured in the units of the weights' standard deviations.
    """
    fit, step = history[-1]
    if len(history) == 1:
        return step
    scale = fit.newton.diagonal().sqrt()
    points = torch.stack([_flat(point.mean, point.precision.to_dense(), scale) for point, _ in history])
    steps = torch.stack([_flat(each.mean, each.precision, scale) for _, each in history])
    bend = steps.diff(dim=0)
    gamma = torch.linalg.lstsq(bend.mT, steps[-1], driver="gelsd").solution
    flat = steps[-1] - gamma @ (points.diff(dim=0) + bend)
    (flat,) = fit.density.table.agreed(flat)
    mean, precision = flat.split([scale.shape[0], scale.shape[0] ** 2])
    mean, precision = mean / scale, precision.view_as(fit.newton) * scale * scale[:, None]
    slope = fit.slope(mean, precision)
    return Step(mean, precision, slope) if slope > ASCENT * step.slope else step


def _flat(mean: Tensor, precision: Tensor, scale: Tensor) -> Tensor:
    return torch.cat([mean * scale, (precision / scale / scale[:, None]).flatten()])


def _climb(
    fit: Fit, step: Step, family: Family, evaluate: Callable[[Tensor, Precision], Fit], *, follow: bool = False
) -> Fit:
    """The first of ever shorter steps that raises the bound and, where the mean does not follow, does not overshoot."""
    floor = fit.elbo - SLACK * (1.0 + abs(fit.elbo))
    length, current = 1.0, fit.precision.to_dense()
    for _ in range(MAX_SHORTER):
        shorter = 0.5
        try:
            trial = evaluate(fit.mean + length * step.mean, family.structure(current + length * step.precision))
            trial = _followed(trial, evaluate) if follow else trial
        except NotPositiveDefiniteError:
            length *= shorter
            continue
        slope = trial.slope(step.mean, step.precision)
        if trial.elbo >= floor and (follow or slope >= -OVERSHOOT * step.slope):
            return trial
        if slope < 0:  # where it would vanish if it were linear
            shorter = min(0.5, max(0.25, step.slope / (step.slope - slope)))
        length *= shorter
    raise ConvergenceError(
        f"variational: no step raises the bound from {fit.elbo:.6g} (slope {step.slope:.3g}). Rescale the inputs or "
        "raise the prior precision."
    )


def _followed(fit: Fit, evaluate: Callable[[Tensor, Precision], Fit]) -> Fit:
    """The mean moved towards the best one for the covariance that it has."""
    for _ in range(FOLLOW):
        step = DensePrecision(fit.newton).solve(fit.gradient)
        step, gain = fit.density.table.agreed(step, step @ fit.gradient)
        if float(gain) <= WORTH:
            return fit
        moved = evaluate(fit.mean + step, fit.precision)
        if moved.elbo < fit.elbo:
            return fit
        fit = moved
    return fit
