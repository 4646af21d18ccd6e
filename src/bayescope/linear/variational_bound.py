"""Variational inference for a linear model: the Gaussian that maximises the evidence lower bound.

For q(θ) = N(m, A⁻¹) and the prior N(m₀, P₀⁻¹) the bound is

    L(m, A) = Σ_n E[log p(y_n∣f_n)] + E[log p(θ)] + entropy(q) ≤ log p(y),    f_n ~ N(J_n m, J_n A⁻¹ J_nᵀ),

and depends on the data through the rows' outputs alone, so that it is computed without drawing random numbers. It is
stationary where (Opper & Archambeau 2009, The variational Gaussian approximation revisited, eqs. 16–17)

    Σ_n J_nᵀ E[∂ log p/∂f_n] = P₀ (m − m₀),    A = T = P₀ + Σ_n J_nᵀ E[Λ_n] J_n    (their diagonals, for a diagonal A).

A step goes from A to T, and in m by Newton's method for the expected Hessian; for a full covariance this is the natural
gradient with step 1 (Khan & Lin 2017, Conjugate-computation variational inference). Both parts ascend, so that a short
enough step raises the bound. Where classes are separable A to T overshoots in a few directions, which Anderson's
extrapolation from the last steps finds; it is what makes many weights affordable.

For classes the climb starts at the prior's mean, with the curvature there: that is the largest there is, so that q is
narrow and few rows are far from it. From Laplace's approximation, whose curvature vanishes as the classes become
separable, q would have to come back from a covariance that is far too wide. For numbers the climb starts there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import ConvergenceError, ConvergenceWarning, NotPositiveDefiniteError
from bayescope.linear.density import Again, LinearDensity, OutputCovariance
from bayescope.linear.expectations import expected_log_likelihood
from bayescope.linear.hyperparameters import expected_slope, maximise_over_hyperparameters
from bayescope.linear.mode import find_mode
from bayescope.linear.scales import integrate_scales
from bayescope.linear.table import Batch
from bayescope.linear.tuning import tune_precision
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision, DiagonalPrecision, Precision
from bayescope.processes import warn_once
from bayescope.progress import Report, progress_bar
from bayescope.sparse_priors import ScaleMixture
from bayescope.storage import stored_function

# The slope at a step's end is at least −OVERSHOOT times the slope at its start. On a quadratic this is Armijo's
# condition with the constant 0.1, and it keeps its meaning where differences of the bound drown in rounding.
OVERSHOOT = 0.8
# Rounding and the quadrature's error, relative to the bound: a smaller fall does not count.
SLACK = 1e-9
MAX_SHORTER = 40
# With more weights than this, the distance that may be left for each, in its standard deviations.
MANY = 200
SHARE = 0.05
SETTLED = 1e-3
# The factor between the precisions of the data that are tried where log p has a kink.
WIDER = 16.0
# The longest natural gradient that a result may have, with a warning: its bound is within 1e-6 of the maximum.
USABLE = 1e-3
# How many of the last steps an extrapolated step combines. It is taken if it ascends at this share of the plain
# step's slope, and raises the bound within SHORTER halvings.
MEMORY = 8
ASCENT = 0.1
SHORTER = 2
# Steps that are as nearly a combination of the others are left out of it.
DEPENDENT = 1e-12


@final
@dataclass(frozen=True)
class CovarianceFamily:
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
    "full": CovarianceFamily("variational", lambda matrix: matrix, lambda matrix: DensePrecision(matrix, name=_NAME)),
    "mean_field": CovarianceFamily(
        "mean_field",
        lambda matrix: torch.diag(matrix.diagonal()),
        lambda matrix: DiagonalPrecision(matrix.diagonal(), name=_NAME),
    ),
}


@final
@dataclass(frozen=True)
class BoundFit:
    """q = N(mean, precision⁻¹), with the bound and its derivatives there.

    Attributes:
        density: the log joint.
        mean: m, shape (P,).
        precision: A.
        covariance: A⁻¹, shape (P, P).
        terms: the three terms of the bound L.
        gradient: ∂L/∂m, shape (P,).
        target: T projected on the family, shape (P, P): ∂L/∂A⁻¹ = ½ (A − T).
        newton: T itself, shape (P, P): the expected negative Hessian of the log joint.
        trace: the bound at every step that led here.
        history: the last points on the way, from which a climb under another prior extrapolates.
    """

    density: LinearDensity
    mean: Tensor
    precision: Precision
    covariance: Tensor
    terms: dict[str, Tensor]
    gradient: Tensor
    target: Tensor
    newton: Tensor
    trace: tuple[float, ...] = ()
    history: tuple[BoundFit, ...] = ()

    @property
    def elbo(self) -> float:
        """The evidence lower bound, the sum of its terms."""
        return float(sum(self.terms.values()))

    @cached_property
    def _uphill(self) -> Tensor:
        """∂L/∂A = ½ A⁻¹(T − A) A⁻¹, shape (P, P)."""
        return 0.5 * self.covariance @ (self.target - self.precision.to_dense()) @ self.covariance

    @cached_property
    def natural(self) -> Direction:
        """To T in A, Newton's in m; with a full covariance its slope is the natural gradient's squared length."""
        try:
            mean = DensePrecision(self.newton).solve(self.gradient)
        except NotPositiveDefiniteError:  # far from the solution, a sum over few nodes need not be concave
            mean = self.precision.solve(self.gradient)
        (mean,) = self.density.table.agreed(mean)
        return Direction(mean, self.target - self.precision.to_dense())

    def slope(self, step: Direction) -> float:
        """dL for a change dm and a symmetric change dA: ∂L/∂m·dm + tr[∂L/∂A dA]."""
        (slope,) = self.density.table.agreed(self.gradient @ step.mean + (self._uphill * step.precision).sum())
        return float(slope)

    def under(self, density: LinearDensity, family: CovarianceFamily) -> BoundFit:
        """The same q for the same rows under another prior, which needs no pass over the rows."""
        prior, newton = density.prior_precision, self.newton - self.density.prior_precision.to_dense()
        pull = self.density.prior_precision.multiply(self.mean - self.density.prior_mean)
        terms = {**self.terms, "expected log prior": _expected_log_prior(density, self.mean, self.covariance)}
        gradient = self.gradient + pull - prior.multiply(self.mean - density.prior_mean)
        newton += prior.to_dense()
        moved = replace(self, density=density, terms=terms, gradient=gradient, newton=newton, history=())
        return replace(moved, target=family.project(newton))


@final
@dataclass(frozen=True)
class Direction:
    """A direction: a change of m and of A."""

    mean: Tensor
    precision: Tensor


@stored_function("linear_variational")
def variational(
    density: LinearDensity,
    *,
    family: Literal["full", "mean_field"] = "full",
    tuned: Tensor | None = None,
    mixture: ScaleMixture | None = None,
    learnt: tuple[str, ...] = (),
    nodes: int = 512,
    tolerance: float | None = None,
    max_iterations: int = 500,
) -> GaussianPosterior:
    """The Gaussian with the highest evidence lower bound.

    Args:
        density: the log joint, of classes or of numbers that depend on an output each; for a Gaussian likelihood the
            full family gives the exact posterior, and the bound is the evidence. Hyperparameters that are "evidence"
            are learnt by maximising the bound.
        family: "full" covariance, or "mean_field" for a diagonal one.
        tuned: a mask of shape (P,): these weights share one prior precision, which is learnt by maximising the bound.
        mixture: a sparse prior of the weights, in the place of the density's, whose scales the bound integrates over.
        learnt: with a mixture, the names of the likelihood's hyperparameters that are learnt by maximising the bound;
            their values are where the climb begins.
        nodes: quasi-Monte-Carlo points for more than two classes, a power of two.
        tolerance: the length of the natural gradient at the solution: what is left to go in m and in A, in standard
            deviations of q. The bound is then within about half its square of the maximum. It is 1e-8 by default, and
            for more than `MANY` weights `SHARE` for each, SHARE √P, where the last digits would take most of the time,
            or `SETTLED` with a mixture, whose scales would else come to rest too early.
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
    kind = FAMILIES[checks.choice("family", family, FAMILIES)]
    if tolerance is None:
        tolerance = 1e-8 if density.dim <= MANY else SHARE * math.sqrt(density.dim) if mixture is None else SETTLED
    notes = {"covariance": "full" if family == "full" else "diagonal (mean field)"}
    trace: dict[str, list[float]] = {}
    with progress_bar("variational inference:") as report:
        solve = partial(
            _maximise, family=kind, nodes=nodes, tolerance=tolerance, max_iterations=max_iterations, report=report
        )

        prior = density.prior

        def infer_under(density: LinearDensity) -> BoundFit:
            nonlocal prior
            if tuned is None:
                return solve(density, None, tolerance)
            fit, tried = tune_precision(solve, density.with_prior(prior), tuned, tolerance)
            prior, trace["prior_precision"] = fit.density.prior, tried
            notes["prior precision"] = f"{tried[-1]:.6g}, learnt by maximising the evidence lower bound"
            return fit

        def bound(some: LinearDensity, names: tuple[str, ...], u: Tensor) -> tuple[Tensor, Tensor]:
            fit = infer_under(some)
            spread = OutputCovariance.under(some.model, fit.precision)
            slope = expected_slope(some, fit.mean, spread, names, u, nodes)[1]
            return torch.tensor(fit.elbo, dtype=torch.float64), slope

        density = density.with_likelihood(maximise_over_hyperparameters(density, bound))
        if mixture is not None:
            fit, correction, trace["elbo"] = integrate_scales(solve, density, mixture, tolerance, learnt)
            fit.terms["expected log prior"] += correction
        else:
            fit = infer_under(density)
    record = Record(kind.method, elbo_terms=fit.terms, notes=notes, trace={"elbo": list(fit.trace), **trace})
    infer = partial(variational, family=family, nodes=nodes, tolerance=tolerance, max_iterations=max_iterations)
    likelihood = fit.density.likelihood
    again = Again(infer, density.model, likelihood)
    return GaussianPosterior(fit.mean, fit.precision, record, density.model, likelihood, infer=again)


def _maximise(
    density: LinearDensity,
    start: BoundFit | None,
    least: float,
    *,
    family: CovarianceFamily,
    nodes: int,
    tolerance: float,
    max_iterations: int,
    report: Report,
) -> BoundFit:
    """Climbs from another prior's or likelihood's solution, or from `_start`, until the natural gradient is short."""
    evaluate = partial(_evaluate, density, family, nodes)
    wanted = max(tolerance, least)
    history: list[BoundFit] = []
    if start is None:
        fit = evaluate(*_start(density, family))
        if density.likelihood.kinked:
            fit = _widened(fit, family, evaluate)
    elif start.density.likelihood is density.likelihood:
        *history, fit = (point.under(density, family) for point in (*start.history, start))
    else:
        fit = evaluate(start.mean, start.precision)
    trace, length = [fit.elbo], math.inf
    for _ in range(max_iterations):
        slope = fit.slope(fit.natural)
        length = math.sqrt(max(slope, 0.0))
        report(len(trace), None, f"{length:.2g} sds to go, {wanted:.2g} wanted")
        if length <= wanted:
            return replace(fit, trace=tuple(trace), history=tuple(history[-MEMORY:]))
        history = [*history[-MEMORY:], fit]
        fit = _climb(fit, _extrapolated(history), family, evaluate)
        trace.append(fit.elbo)
    message = (
        f"variational: expected a natural gradient of at most {wanted:g} sd, got {length:.3g} after "
        f"{max_iterations} iterations. Raise the prior precision or max_iterations, or rescale the inputs."
    )
    if length > max(USABLE, 10.0 * wanted):
        raise ConvergenceError(message)
    warn_once(message, ConvergenceWarning)
    return replace(fit, trace=tuple(trace))


def _start(density: LinearDensity, family: CovarianceFamily) -> tuple[Tensor, Precision]:
    """Where a climb begins: for classes the prior's mean, for numbers Laplace's approximation, if log p has no kink."""
    if density.likelihood.discrete or density.likelihood.kinked:
        mean = density.prior_mean if density.likelihood.discrete else density.constant
        precision = density.curvature(mean) + density.prior_precision.to_dense()
    else:
        mode = find_mode(density)
        mean, precision = mode.theta, mode.precision.to_dense()
    return mean, family.structure(family.project(precision))


def _widened(fit: BoundFit, family: CovarianceFamily, evaluate: Callable[[Tensor, Precision], BoundFit]) -> BoundFit:
    """Where a climb begins if log p has a kink: the first of ever wider q, with one mean, beyond which the bound falls.

    From a q so narrow that few rows are near their kink, no step is short enough.
    """
    prior = fit.density.prior_precision.to_dense()
    data = fit.precision.to_dense() - prior
    while True:
        data = data / WIDER
        wider = evaluate(fit.mean, family.structure(family.project(data + prior)))
        if not wider.elbo > fit.elbo:
            return fit
        fit = wider


def _evaluate(
    density: LinearDensity, family: CovarianceFamily, nodes: int, mean: Tensor, precision: Precision
) -> BoundFit:
    """The bound at q = N(mean, precision⁻¹), its terms and its derivatives."""
    prior, root = density.prior_precision, precision.sqrt_solve(torch.eye(density.dim, dtype=torch.float64))
    spread, covariance = OutputCovariance.of(density.model, root), root @ root.mT

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
        "expected log prior": _expected_log_prior(density, mean, covariance),
        "entropy": 0.5 * (density.dim * (1.0 + math.log(2 * math.pi)) - precision.logdet()),
    }
    gradient, *values = density.table.agreed(slope - prior.multiply(mean - density.prior_mean), *terms.values())
    terms = dict(zip(terms, values, strict=True))
    return BoundFit(density, mean, precision, covariance, terms, gradient, family.project(newton), newton)


def _expected_log_prior(density: LinearDensity, mean: Tensor, covariance: Tensor) -> Tensor:
    """E[log p(θ)] for θ ~ N(mean, covariance)."""
    return density.prior.log_prob(mean) - 0.5 * (density.prior_precision.to_dense() * covariance).sum()


def _extrapolated(history: list[BoundFit]) -> Direction | None:
    """Anderson's (1965) combination of the last steps, where it ascends well; else ``None``.

    With s the points and r their steps, s + r − Σ_j γ_j (Δs_j + Δr_j), with γ the least-squares fit of r by the Δr_j:
    the affine combination of the points whose own step is expected to be the shortest, and that step. Lengths are
    measured in the units of the weights' standard deviations.
    """
    fit, step = history[-1], history[-1].natural
    if len(history) == 1:
        return None
    scale = fit.newton.diagonal()
    metric = 1.0 / (scale * scale[:, None])
    pairs = list(pairwise(history))
    means = torch.stack([after.natural.mean - before.natural.mean for before, after in pairs])
    precisions = torch.stack([after.natural.precision - before.natural.precision for before, after in pairs])
    weighed, flat = means * scale, (precisions * metric).flatten(1)
    gram = weighed @ means.mT + flat @ precisions.flatten(1).mT
    along = weighed @ step.mean + flat @ step.precision.flatten()
    size = gram.diagonal().sqrt()
    if not bool((size > 0).all()):  # two steps are the same: rounding is all that is left
        return None
    gamma = torch.linalg.pinv(gram / size / size[:, None], rtol=DEPENDENT, hermitian=True) @ (along / size) / size
    (gamma,) = fit.density.table.agreed(gamma)
    mean, precision = step.mean - gamma @ means, step.precision - torch.tensordot(gamma, precisions, 1)
    for share, (before, after) in zip(gamma, pairs, strict=True):
        mean = mean - share * (after.mean - before.mean)
        precision = precision - share * (after.precision.to_dense() - before.precision.to_dense())
    found = Direction(mean, precision)
    return found if fit.slope(found) > ASCENT * fit.slope(step) else None


def _climb(
    fit: BoundFit,
    extrapolated: Direction | None,
    family: CovarianceFamily,
    evaluate: Callable[[Tensor, Precision], BoundFit],
) -> BoundFit:
    """The extrapolated step where it or a half of it raises the bound, else the first of ever shorter natural steps."""
    found = None if extrapolated is None else _raised(fit, extrapolated, family, evaluate, SHORTER)
    found = _raised(fit, fit.natural, family, evaluate, MAX_SHORTER) if found is None else found
    if found is None:
        raise ConvergenceError(
            f"variational: no step raises the bound from {fit.elbo:.6g} (slope {fit.slope(fit.natural):.3g}). Rescale "
            "the inputs or raise the prior precision."
        )
    return found


def _raised(
    fit: BoundFit,
    step: Direction,
    family: CovarianceFamily,
    evaluate: Callable[[Tensor, Precision], BoundFit],
    halvings: int,
) -> BoundFit | None:
    """The first of ever shorter steps that raises the bound; where rounding hides that, it must not overshoot."""
    slope, slack, length, current = fit.slope(step), SLACK * (1.0 + abs(fit.elbo)), 1.0, fit.precision.to_dense()
    for _ in range(halvings):
        try:
            trial = evaluate(fit.mean + length * step.mean, family.structure(current + length * step.precision))
        except NotPositiveDefiniteError:
            length *= 0.5
            continue
        if trial.elbo > fit.elbo + slack:
            return trial
        if trial.elbo >= fit.elbo - slack and trial.slope(step) >= -OVERSHOOT * slope:
            return trial
        length *= 0.5
    return None
