"""The hyperparameters of a likelihood, such as a dispersion or cutpoints, by evidence maximisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, ConvergenceWarning, NotPositiveDefiniteError
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity, OutputCovariance
from bayescope.linear.evidence import determinant_slope
from bayescope.linear.expectations import expected_log_likelihood
from bayescope.linear.mode import LARGE_ROWS, LinearMode, sample
from bayescope.linear.table import Batch
from bayescope.precision import DensePrecision, Precision
from bayescope.processes import warn_once

# The search ends this many standard deviations of the hyperparameters from the maximum of the evidence.
TOLERANCE = 1e-5
MAX_STEPS = 200
# The slope of the log evidence, per unit of a coordinate, that is taken for level.
LEVEL = 1e-2
# The slope at which the search ends whatever the curvature: over the whole range the evidence then moves by 1e-4.
FLAT = 1e-6
# The longest step in unconstrained coordinates, such as the log of a scale.
LONGEST = 2.0
SHORTEST = 1e-8
# The prior precision of a cutpoint.
CUTPOINT_PRECISION = 0.01
# A coordinate whose curvature is at most this counts as known: the data do not determine it.
KNOWN = 1e-6
# A hyperparameter is sought within this distance of its start: a positive one within a factor of 10¹⁰.
REACH = math.log(1e10)
ARMIJO = 1e-4
ROUNDING = 1e-12


def learn_hyperparameters(density: LinearDensity, fit: Callable[[LinearDensity], LinearMode]) -> Likelihood:
    """Finds the values of the likelihood's hyperparameters φ that are to be learnt, at a maximum of the log evidence.

    log Z(φ) = log p(y, θ̂; φ) + ½ P log 2π − ½ log∣A∣, with the mode θ̂, A and, where it is learnt, the prior precision
    all moving with φ. It climbs by the BFGS method with the exact gradient (`evidence_slope`). On a large table the
    climb begins on a sample of the rows. Under a flat prior, which defines no evidence, it is the maximum of the
    likelihood.

    Args:
        density: the table, the model and the likelihood.
        fit: the mode of a density under its prior, or under the one that maximises the log evidence.

    Returns:
        The likelihood with a value for each hyperparameter.

    Warns:
        ConvergenceWarning: if there is no maximum within `REACH`.

    Raises:
        ConvergenceError: if the maximum is not reached.
    """

    def evidence(some: LinearDensity, names: tuple[str, ...], u: Tensor) -> tuple[Tensor, Tensor]:
        mode = fit(some)
        log_evidence, slope = mode.log_joint, evidence_slope(mode, names, u)
        if is_flat(mode):
            return log_evidence, slope
        at = u.clone().requires_grad_()
        with torch.enable_grad():
            log_prior = log_hyperprior(some.likelihood, names, at)
        slope = slope + torch.autograd.grad(log_prior, at)[0]
        return log_evidence - 0.5 * mode.precision.logdet() + log_prior.detach(), slope

    return maximise_over_hyperparameters(
        density, evidence, lambda some, names: LearntUncertainty.at(fit(some), names).covariance
    )


def maximise_over_hyperparameters(
    density: LinearDensity,
    evidence: Callable[[LinearDensity, tuple[str, ...], Tensor], tuple[Tensor, Tensor]],
    covariance: Callable[[LinearDensity, tuple[str, ...]], Tensor | None] = lambda *_: None,
) -> Likelihood:
    """The likelihood with the hyperparameters at a maximum of an approximate log evidence.

    Args:
        density: the table, the model and the likelihood.
        evidence: its log evidence, and the slope in the coordinates u of the named hyperparameters, which it has at u.
        covariance: about the covariance of u, where something is known of it.

    Warns:
        ConvergenceWarning: if there is no maximum within `REACH`.

    Raises:
        ConvergenceError: if the maximum is not reached.
    """
    likelihood = density.likelihood
    if not likelihood.learnable:
        return likelihood
    names, likelihood = likelihood.learnable, likelihood.starting(density.some_targets)
    (u,) = density.table.agreed(likelihood.unconstrained(names))
    bounds, slope = (u - REACH, u + REACH), torch.zeros_like(u)
    tables = [sample(density), density] if density.table.count >= LARGE_ROWS else [density]
    inverse = covariance(tables[0].with_likelihood(likelihood), names)
    for some in tables:

        def evaluate(u: Tensor, some: LinearDensity = some) -> tuple[float, Tensor]:
            there = some.with_likelihood(likelihood.at_unconstrained(names, u))
            with warnings.catch_warnings():  # of a prior precision at an end of its range: the last fit warns of it
                warnings.simplefilter("ignore", ConvergenceWarning)
                value, slope = some.table.agreed(*evidence(there, names, u))
            return float(value), slope

        u, inverse, slope = _ascend(evaluate, u, inverse, bounds)
    if bool((slope.abs() > LEVEL).any()):  # at a bound, where a dispersion of nothing is no reason to warn
        warn_once(
            f"likelihood: the evidence of {', '.join(names)} has no maximum within range: y may be "
            "explained without noise. Give numbers.",
            ConvergenceWarning,
        )
    return likelihood.at_unconstrained(names, u)


def expected_hyperparameters(
    density: LinearDensity,
    names: tuple[str, ...],
    mean: Tensor,
    precision: Precision,
    inverse: Tensor | None,
    log_prior: Callable[[Tensor], tuple[Tensor, Tensor]],
    origin: Tensor,
) -> tuple[Tensor, Tensor]:
    """The u at which E_q[log p(y∣θ; φ(u))] + log p(u) is largest for q(θ) = N(mean, precision⁻¹).

    For Gaussian noise and a flat log p(u) this is the variance E_q‖y − f‖²/N.

    Args:
        density: its likelihood has the values where the climb begins.
        names: of the hyperparameters φ.
        mean: of q, shape (P,).
        precision: of q.
        inverse: of the negative Hessian, as the last climb left it; ``None`` for the first.
        log_prior: log p(u) and its slope, beside `log_hyperprior`.
        origin: u is sought within `REACH` of it, shape (U,).

    Returns:
        The unconstrained coordinates u of φ, shape (U,), and the inverse for the next climb, shape (U, U).
    """
    spread = OutputCovariance.under(density.model, precision)

    def evaluate(u: Tensor) -> tuple[float, Tensor]:
        value, slope = expected_slope(density, mean, spread, names, u)
        pull, known = torch.func.grad_and_value(partial(log_hyperprior, density.likelihood, names))(u)
        given, rate = log_prior(u)
        value, slope = value + known + given, slope + pull + rate
        value, slope = density.table.agreed(value, slope)
        return float(value), slope

    start = density.likelihood.unconstrained(names)
    u, inverse, _ = _ascend(evaluate, start, inverse, (origin - REACH, origin + REACH))
    return u, inverse


def expected_slope(
    density: LinearDensity, mean: Tensor, spread: OutputCovariance, names: Sequence[str], u: Tensor, nodes: int = 512
) -> tuple[Tensor, Tensor]:
    """E_q[log p(y∣θ; φ(u))] and its gradient in the coordinates u of hyperparameters, shape of u.

    At the q of the largest evidence lower bound the gradient is that of the bound.
    """

    def block(rows: Batch) -> tuple[Tensor, Tensor]:
        f, cov, point = density.model.forward(rows.features, mean), spread(rows.features), u.detach().clone()
        with torch.enable_grad():
            likelihood = density.likelihood.at_unconstrained(names, point.requires_grad_())
            each = expected_log_likelihood(likelihood, f, cov, rows.targets, nodes=nodes).log_prob
            total = rows.weighed(each).sum()
        return total.detach(), torch.autograd.grad(total, point)[0]

    value, slope = density.sum(block, size=len(u), copies=density.dim)
    return value, slope


def evidence_slope(mode: LinearMode, names: tuple[str, ...], u: Tensor) -> Tensor:
    """The gradient of Laplace's log evidence in the coordinates u of hyperparameters, at the mode at u, shape of u.

    The prior precision is where the log evidence is stationary. With H_n = J_n A⁻¹ J_nᵀ, c = ∂log∣A∣/∂θ and
    v = A⁻¹ c, the mode moves by dθ̂/du = A⁻¹ Σ_n J_nᵀ ∂_u ∂_f log p, so that

        d log Z/du = Σ_n ∂_u [log p(y_n∣f_n) − ½ tr(H_n Λ_n) − ½ (J_n v)·∂_f log p(y_n∣f_n)]    at fixed f_n,

    and under a flat prior the first term alone, the slope of the log likelihood.
    """
    density, flat = mode.density, is_flat(mode)
    spread = OutputCovariance.under(density.model, mode.precision)
    direction = mode.precision.solve(determinant_slope(mode))

    def block(rows: Batch) -> tuple[Tensor]:
        x, y, _ = rows
        f, along, point = density.model.forward(x, mode.theta), density.model.forward(x, direction), u.detach().clone()
        with torch.enable_grad():
            likelihood = density.likelihood.at_unconstrained(names, point.requires_grad_())
            each = likelihood.log_prob(f, y)
            if not flat:
                each = each - 0.5 * (spread(x) * likelihood.hessian(f, y)).sum((-2, -1))
                each = each - 0.5 * (along * likelihood.gradient(f, y)).sum(-1)
            total = rows.weighed(each).sum()
        return (torch.autograd.grad(total, point)[0],)

    return density.sum(block, size=len(u), copies=density.dim)[0]


def log_hyperprior(likelihood: Likelihood, names: Sequence[str], u: Tensor) -> Tensor:
    """log p(φ) but for a constant: cutpoints are N(0, 10²), as intercepts in log odds are; all else is flat.

    Where a plane separates ordered classes, the evidence rises with the scale of weights and cutpoints without it.
    """
    if "cutpoints" not in names:
        return 0.0 * u.sum()
    return -0.5 * CUTPOINT_PRECISION * likelihood.at_unconstrained(names, u).known("cutpoints").square().sum()


def is_flat(mode: LinearMode) -> bool:
    """Whether the prior of all weights is flat."""
    return mode.density.prior.flat == mode.density.dim


@final
@dataclass(frozen=True, eq=False)
class LearntUncertainty:
    """How uncertain hyperparameters that were learnt are, and how the weights move with them.

    Attributes:
        root: R of the covariance R Rᵀ of their unconstrained coordinates u, shape (U, U).
        moves: dθ̂/du, shape (U, P).
    """

    root: Tensor
    moves: Tensor

    @property
    def covariance(self) -> Tensor | None:
        """That of u, shape (U, U); ``None`` if some directions count as known."""
        covariance = self.root @ self.root.mT
        return covariance if bool((self.root != 0.0).any(0).all()) else None

    @classmethod
    def at(cls, mode: LinearMode, names: Sequence[str]) -> LearntUncertainty:
        """By Laplace's approximation of (θ, u) together, under the prior of u.

        With the negative Hessian A of the log joint in θ, B = ∂_u ∂_θ log p and C = −∂²_u log p, the mode moves by
        dθ̂/du = A⁻¹ B, and Cov[u] is the inverse of C − Bᵀ A⁻¹ B, the negative Hessian of the profile log joint.
        Directions of u in which this is not positive, such as that of a dispersion at 0, count as known.
        """
        density = mode.density
        u = density.likelihood.unconstrained(names)

        def block(rows: Batch) -> tuple[Tensor, Tensor]:
            x, y, _ = rows
            f, point = density.model.forward(x, mode.theta), u.clone().requires_grad_()
            with torch.enable_grad():
                likelihood = density.likelihood.at_unconstrained(names, point)
                slopes = rows.weighed(likelihood.gradient(f, y))
                at = torch.zeros_like(slopes, requires_grad=True)
                total = rows.weighed(likelihood.log_prob(f, y)).sum() + (at * slopes).sum()
                (slope,) = torch.autograd.grad(total, point, create_graph=True)
                parts = [torch.autograd.grad(each, (point, at), retain_graph=True) for each in slope]
            return torch.stack([a for a, _ in parts]), torch.stack([density.pull_back(x, b) for _, b in parts])

        second, mixed = density.sum(block, size=len(u) * density.dim, copies=len(u))
        if not is_flat(mode):
            second = second + torch.autograd.functional.hessian(partial(log_hyperprior, density.likelihood, names), u)
        moves = mode.precision.solve(mixed.mT).mT
        values, vectors = torch.linalg.eigh(-second - mixed @ moves.mT)
        return cls(*density.table.agreed(vectors * torch.where(values > KNOWN, values.rsqrt(), 0.0), moves))

    def widened(self, precision: Precision) -> DensePrecision:
        """The precision of θ that is marginal over u: the inverse of A⁻¹ + (dθ̂/du) Cov[u] (dθ̂/du)ᵀ."""
        matrix = precision.to_dense()
        spread = self.moves.mT @ self.root
        gain = matrix @ spread
        inner = torch.eye(len(self.root), dtype=torch.float64) + spread.mT @ gain
        return DensePrecision(matrix - gain @ torch.linalg.solve(inner, gain.mT), name="the precision of the weights")


def _ascend(
    evaluate: Callable[[Tensor], tuple[float, Tensor]],
    u: Tensor,
    inverse: Tensor | None,
    bounds: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Climbs by the BFGS method; the maximum, the learnt inverse of the negative Hessian, and the slope there.

    Raises:
        ConvergenceError: if the maximum is not reached.
    """
    low, high = bounds
    value, gradient = evaluate(u)
    eye = torch.eye(len(u), dtype=torch.float64)
    first, inverse = inverse is None, eye / max(1.0, float(gradient.norm())) if inverse is None else inverse
    for _ in range(MAX_STEPS):
        free = torch.where(gradient > 0.0, u < high, u > low)
        step = torch.where(free, inverse @ (free * gradient), 0.0)
        decrement = math.sqrt(max(float(gradient @ step), 0.0))
        if decrement <= TOLERANCE or bool((gradient.abs() <= FLAT).all()):
            return u, inverse, gradient
        length = min(1.0, LONGEST / float(step.abs().max()))
        while True:
            there = (u + length * step).clamp(low, high)
            moved = there - u
            ahead, slope = _forward(evaluate, there)
            if ahead >= value + ARMIJO * float(gradient @ moved) - ROUNDING * (1.0 + abs(value)):
                break
            length *= 0.5
            if length < SHORTEST and bool((gradient.abs() <= LEVEL).all()):
                return u, inverse, gradient
            if length < SHORTEST:
                raise ConvergenceError(
                    f"likelihood: the evidence does not rise along the search for its hyperparameters (slope "
                    f"{float(gradient.abs().max()):.3g}). Give them as numbers."
                )
        change = gradient - slope
        along = float(moved @ change)
        if along > 0.0:
            if first:
                inverse, first = eye * (along / float(change @ change)), False
            turn = eye - torch.outer(moved, change) / along
            inverse = turn @ inverse @ turn.mT + torch.outer(moved, moved) / along
        u, value, gradient = there, ahead, slope
    raise ConvergenceError(
        f"likelihood: expected its hyperparameters to come to rest within {MAX_STEPS} steps, got a slope of "
        f"{float(gradient.abs().max()):.3g} of the log evidence. Give them as numbers."
    )


def _forward(evaluate: Callable[[Tensor], tuple[float, Tensor]], u: Tensor) -> tuple[float, Tensor]:
    """The log evidence and its slope, or −∞ where no mode is found: a step goes too far."""
    try:
        return evaluate(u)
    except (ConvergenceError, NotPositiveDefiniteError):
        return -math.inf, torch.zeros_like(u)
