"""Expectation propagation for a linear model of two classes.

Each row's likelihood p(y_n∣a_n), a_n = J_n θ, is replaced by a Gaussian site exp(ν_n a_n − ½ τ_n a_n²), so that

    q(θ) = N(m, A⁻¹),    A = P₀ + Σ_n τ_n J_nᵀJ_n,    A m = P₀ m₀ + Σ_n ν_n J_nᵀ.

Taking site n out leaves the cavity; the cavity times the row's own likelihood is the tilted distribution. At the fixed
point q has the tilted mean and variance of every a_n (Minka 2001; Rasmussen & Williams 2006, Gaussian Processes for
Machine Learning, §3.6, here in weight space). The sites are updated all at once.

A row that counts w times has k = max(1, w) copies of one site, each for the power e = w/k of its likelihood: for whole
w that is what w equal rows have, as their sites are equal, and for others power expectation propagation (Minka 2004,
"Power EP"), with the power 1/w of p^w for w > 1. Then A and A m have k τ and k ν, the cavity is without one copy, the
tilted distribution has p^e, and each of the k copies adds to log Z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.errors import ConvergenceError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.linear.density import LinearDensity
from bayescope.linear.laplace import compile_density
from bayescope.linear.mode import find_mode
from bayescope.linear.tilted import TILTED
from bayescope.linear.tuning import tune_precision
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.priors import Prior


@final
@dataclass(frozen=True)
class Sites:
    """The sites exp(ν a − ½ τ a²), each of shape (N,)."""

    precision: Tensor
    shift: Tensor

    def toward(self, other: Sites, step: float) -> Sites:
        """The sites moved toward others by a share of the way."""
        return Sites(
            self.precision + step * (other.precision - self.precision), self.shift + step * (other.shift - self.shift)
        )


@final
@dataclass(frozen=True)
class Fit:
    """q = N(mean, precision⁻¹) of given sites, and what one sweep over the rows tells of it.

    Attributes:
        mean: m, shape (P,).
        precision: A.
        sites: the sites that q is made of.
        matched: the sites that would give q the tilted moments.
        residual: the largest difference between q's moments of an a_n and the tilted ones: of the means in standard
            deviations of q, of the variances relative to q's.
        log_evidence: log Z of expectation propagation, at the fixed point.
        trace: the residuals of the sweeps that led here.
    """

    mean: Tensor
    precision: DensePrecision
    sites: Sites
    matched: Sites
    residual: float
    log_evidence: Tensor
    trace: tuple[float, ...] = ()


def expectation_propagation(
    model: LinearModel,
    likelihood: Likelihood,
    prior: Prior,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    tuned: Tensor | None = None,
    damping: float = 0.0,
    tolerance: float = 1e-8,
    max_sweeps: int = 1000,
) -> GaussianPosterior:
    """The Gaussian that has every row's tilted moments, and its estimate of the log evidence.

    Args:
        model: f = W x (+ b), with one output.
        likelihood: a Bernoulli, with either link.
        prior: p(θ); a dense precision and a mean other than zero are fine.
        X: shape (N, D).
        y: N labels, 0 or 1.
        weights: how often each row counts, shape (N,), more than 0; once by default.
        tuned: a mask of shape (P,): these weights share one prior precision, which is learnt by maximising log Z.
        damping: how much of the old sites every update keeps, at least; it is raised where the sweeps do not converge.
        tolerance: the largest difference left between q's moments of a row's activation and the tilted ones: of the
            means in standard deviations of q, of the variances relative to q's.
        max_sweeps: over the rows, for each prior precision that is tried.

    Returns:
        A `GaussianPosterior` with `log_evidence`, and the differences after each sweep in ``trace["residual"]``.

    Raises:
        UnsupportedError: for another likelihood or more than one output.
        InputError: if the damping is not in [0, 1), or a weight is 0.
        ConvergenceError: if the tolerance is not reached.
    """
    if likelihood.name not in TILTED or model.outputs != 1:
        raise UnsupportedError(
            f"posterior: expectation propagation expects two classes with one output and the logit or the probit link, "
            f"got {likelihood.name} with {model.outputs} output(s). More classes have posterior='variational' and "
            "'laplace'."
        )
    if weights is not None:
        checks.positive("weights", weights)
    least = checks.fraction("damping", damping) if damping != 0 else 0.0
    density = compile_density(model, likelihood, prior, X, y, weights)
    solve = partial(fixed_point, damping=least, max_sweeps=max_sweeps)
    trace: dict[str, list[float]] = {}
    notes: dict[str, str] = {}
    if tuned is None:
        fit = solve(density, None, tolerance)
    else:
        # Every fit is exact: sites of a rough one may lead nowhere under the next precision.
        tuning = tune_precision(lambda each, start, _: solve(each, start, tolerance), density, tuned, tolerance)
        fit, trace["prior_precision"] = tuning.fit, tuning.precisions
        notes["prior precision"] = f"{tuning.precisions[-1]:.6g}, learnt by maximising the log evidence"
    trace["residual"] = list(fit.trace)
    record = Record("ep", evidence=fit.log_evidence, notes=notes, trace=trace)
    options = partial(expectation_propagation, damping=damping, tolerance=tolerance, max_sweeps=max_sweeps)
    again = partial(options, model, likelihood)  # not a closure: a posterior can be pickled
    return GaussianPosterior(fit.mean, fit.precision, record, model, likelihood, infer=again)


def fixed_point(
    density: LinearDensity,
    start: Fit | None = None,
    tolerance: float = 1e-8,
    *,
    damping: float = 0.0,
    max_sweeps: int = 1000,
) -> Fit:
    """Sweeps over all rows until no residual is above the tolerance.

    Args:
        density: a table of two classes and its prior.
        start: the solution under another prior, whose sites are started from; by default Laplace's.
        tolerance: of `Fit.residual`.
        damping: how much of the old sites every update keeps, at least.
        max_sweeps: over the rows.

    Raises:
        ConvergenceError: if the tolerance is not reached.
    """
    fit = _sweep(density, _laplace_sites(density) if start is None else start.sites)
    trace, keep = [fit.residual], damping
    for _ in range(max_sweeps):
        if fit.residual <= tolerance:
            return replace(fit, trace=tuple(trace))
        fit = _sweep(density, fit.sites.toward(fit.matched, 1.0 - keep))
        keep = 0.5 * (1.0 + keep) if fit.residual > trace[-1] else max(damping, 0.9 * keep)
        trace.append(fit.residual)
    raise ConvergenceError(
        f"posterior: expected expectation propagation to match every row's moments to {tolerance:g}, got "
        f"{fit.residual:.3g} after {max_sweeps} sweeps. Raise the damping, max_sweeps or the prior precision."
    )


def _laplace_sites(density: LinearDensity) -> Sites:
    """The sites that make q Laplace's approximation: log p(y∣a), or its power, to second order at the mode.

    From no sites at all, many rows updated at once overshoot, and the sweeps may never recover.
    """
    f = density.outputs(find_mode(density).theta)
    precision = density.likelihood.hessian(f, density.targets)[:, 0, 0]
    slope = density.likelihood.gradient(f, density.targets)[:, 0]
    if density.weights is not None:
        power = density.weights.clamp(max=1.0)
        precision, slope = power * precision, power * slope
    return Sites(precision, slope + precision * f[:, 0])


def _sweep(density: LinearDensity, sites: Sites) -> Fit:
    """q from its sites, and the tilted moments of all rows.

    With k_n the copies of a site, a_n and σ_n² the mean and variance of an activation under q, μ_n and v_n those of its
    cavity, the sites drop out of log Z (Rasmussen & Williams 2006, eq. 3.65, here in weight space), because each
    Gaussian integral over a site is the integrand's value at its mean times a volume:

        Σ_n k_n [log Ẑ_n + (a_n − μ_n)²/(2 v_n) − ½ log(σ_n²/v_n)] + log p(m) + ½ P log 2π − ½ log∣A∣.
    """
    prior, weights = density.prior_precision, density.weights
    copies, power = (None, None) if weights is None else (weights.clamp(min=1.0), weights.clamp(max=1.0))
    gram = density.gram_of_all(_times(copies, sites.precision)[:, None, None])
    precision = DensePrecision(prior.to_dense() + gram, name="the precision of q")
    pull = density.pull_back(density.features, _times(copies, sites.shift)[:, None])
    mean = precision.solve(prior.multiply(density.prior_mean) + pull)
    activation, variance = density.outputs(mean)[:, 0], density.latent_variance(precision)[:, 0, 0]
    rest = 1.0 - sites.precision * variance  # σ²/v: above 0, as no site is stronger than q
    cavity_variance = variance / rest
    cavity_mean = (activation - sites.shift * variance) / rest
    sign = 2.0 * density.targets[:, 0] - 1.0
    tilted = TILTED[density.likelihood.name](sign * cavity_mean, cavity_variance, power)
    slope = sign * tilted.slope
    matched = Sites(tilted.bend / tilted.shrinkage, (slope + cavity_mean * tilted.bend) / tilted.shrinkage)
    offset = cavity_mean + cavity_variance * slope - activation
    residual = torch.maximum(offset.abs() * variance.rsqrt(), (tilted.shrinkage / rest - 1.0).abs()).max()
    rows = tilted.log_normaliser + 0.5 * (activation - cavity_mean).square() / cavity_variance - 0.5 * rest.log()
    gaussian = density.prior.log_prob(mean) + 0.5 * (density.dim * math.log(2 * math.pi) - precision.logdet())
    return Fit(mean, precision, sites, matched, float(residual), _times(copies, rows).sum() + gaussian)


def _times(copies: Tensor | None, each: Tensor) -> Tensor:
    return each if copies is None else copies * each
