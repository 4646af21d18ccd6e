"""Expectation propagation for a linear model with one output and a log-concave likelihood.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import ConvergenceError, UnsupportedError
from bayescope.likelihoods import IntegralName, Likelihood, Tilted, WithOffset
from bayescope.linear.density import Again, LinearDensity
from bayescope.linear.expectations import expected_log_likelihood
from bayescope.linear.hyperparameters import maximise_over_hyperparameters
from bayescope.linear.mode import find_mode
from bayescope.linear.tuning import tune_precision
from bayescope.linear.variational_bound import variational
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.quadrature import activation_nodes
from bayescope.special import inverse_mills, inverse_mills_slope, log_ndtr
from bayescope.storage import stored_function


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
class SiteFit:
    """q = N(mean, precision⁻¹) of given sites, and what one sweep over the rows tells of it.

    Attributes:
        density: the log joint.
        mean: m, shape (P,).
        precision: A.
        sites: the sites that q is made of.
        cavity: the means and the variances of the activations under q without one copy of their sites, each (N,).
        matched: the sites that would give q the tilted moments.
        residual: the largest difference between q's moments of an a_n and the tilted ones: of the means in standard
            deviations of q, of the variances relative to q's.
        log_evidence: log Z of expectation propagation, at the fixed point.
        trace: the residuals of the sweeps that led here.
    """

    density: LinearDensity
    mean: Tensor
    precision: DensePrecision
    sites: Sites
    cavity: tuple[Tensor, Tensor]
    matched: Sites
    residual: float
    log_evidence: Tensor
    trace: tuple[float, ...] = ()


@stored_function("expectation_propagation")
def expectation_propagation(
    density: LinearDensity,
    *,
    tuned: Tensor | None = None,
    damping: float = 0.0,
    tolerance: float = 1e-8,
    max_sweeps: int = 1000,
) -> GaussianPosterior:
    """The Gaussian that has every row's tilted moments, and its estimate of the log evidence.

    Args:
        density: the log joint, with one output and a log-concave likelihood, whose hyperparameters are learnt with the
            prior precision if they are "evidence"; its rows are in memory.
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
    model, likelihood = density.model, density.likelihood
    if not has_sites(density):
        raise UnsupportedError(
            f"posterior: expectation propagation expects two classes, or another log-concave likelihood with one "
            f"output and, if its density has a kink, without censored rows, got {likelihood.name} with {model.outputs} "
            "output(s). Others have posterior='variational'."
        )
    if density.weights is not None:
        checks.positive("weights", density.weights)
    least = checks.fraction("damping", damping) if damping != 0 else 0.0
    solve = partial(fixed_point, damping=least, max_sweeps=max_sweeps)
    trace: dict[str, list[float]] = {}
    notes: dict[str, str] = {}

    prior = density.prior

    def infer_under(density: LinearDensity) -> SiteFit:
        nonlocal prior
        if tuned is None:
            return solve(density, None, tolerance)
        # Every fit is exact: sites of a rough one may lead nowhere under the next precision.
        each = density.with_prior(prior)
        fit, tried = tune_precision(lambda each, start, _: solve(each, start, tolerance), each, tuned, tolerance)
        prior, trace["prior_precision"] = fit.density.prior, tried
        notes["prior precision"] = f"{tried[-1]:.6g}, learnt by maximising the log evidence"
        return fit

    def evidence(some: LinearDensity, names: tuple[str, ...], u: Tensor) -> tuple[Tensor, Tensor]:
        fit = infer_under(some)
        return fit.log_evidence, evidence_slope(fit, names, u)

    likelihood = maximise_over_hyperparameters(density, evidence)
    fit = infer_under(density.with_likelihood(likelihood))
    trace["residual"] = list(fit.trace)
    record = Record("ep", evidence=fit.log_evidence, notes=notes, trace=trace)
    infer = partial(expectation_propagation, damping=damping, tolerance=tolerance, max_sweeps=max_sweeps)
    return GaussianPosterior(fit.mean, fit.precision, record, model, likelihood, infer=Again(infer, model, likelihood))


def has_sites(density: LinearDensity) -> bool:
    """Whether expectation propagation is for the likelihood and the rows, which are in memory."""
    likelihood = density.likelihood
    if density.model.outputs != 1 or not likelihood.log_concave:
        return False
    # Beside a kink, censored rows have no formula, and truncated ones are not log-concave.
    return not likelihood.kinked or density.targets.shape[1] == 1 + isinstance(likelihood, WithOffset)


def fixed_point(
    density: LinearDensity,
    start: SiteFit | None = None,
    tolerance: float = 1e-8,
    *,
    damping: float = 0.0,
    max_sweeps: int = 1000,
) -> SiteFit:
    """Sweeps over all rows until no residual is above the tolerance.

    Args:
        density: a table and its prior.
        start: the solution under another prior, whose sites are started from; by default Laplace's.
        tolerance: of `SiteFit.residual`.
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

    From no sites at all, many rows updated at once overshoot, and the sweeps may never recover. If log p has a kink,
    they are those of the variational posterior, and derivatives are expected ones.
    """
    likelihood, targets = density.likelihood, density.targets
    if likelihood.kinked:
        near = variational(density)
        f = density.outputs(near.mean)
        _, gradient, hessian = expected_log_likelihood(likelihood, f, density.latent_variance(near.precision), targets)
    else:
        f = density.outputs(find_mode(density).theta)
        gradient, hessian = likelihood.gradient(f, targets), likelihood.hessian(f, targets)
    precision, slope = hessian[:, 0, 0], gradient[:, 0]
    if density.weights is not None:
        power = density.weights.clamp(max=1.0)
        precision, slope = power * precision, power * slope
    return Sites(precision, slope + precision * f[:, 0])


def _sweep(density: LinearDensity, sites: Sites) -> SiteFit:
    """q from its sites, and the tilted moments of all rows.

    With k_n the copies of a site, a_n and σ_n² the mean and variance of an activation under q, μ_n and v_n those of its
    cavity, the sites drop out of log Z (Rasmussen & Williams 2006, eq. 3.65, here in weight space), because each
    Gaussian integral over a site is the integrand's value at its mean times a volume:

        Σ_n k_n [log Ẑ_n + (a_n − μ_n)²/(2 v_n) − ½ log(σ_n²/v_n)] + log p(m) + ½ P log 2π − ½ log∣A∣.
    """
    prior, (copies, power) = density.prior_precision, _copies(density)
    gram = density.gram_of_all(_times(copies, sites.precision)[:, None, None])
    precision = DensePrecision(prior.to_dense() + gram, name="the precision of q")
    pull = density.pull_back(density.features, _times(copies, sites.shift)[:, None])
    mean = precision.solve(prior.multiply(density.prior_mean) + pull)
    activation, variance = density.outputs(mean)[:, 0], density.latent_variance(precision)[:, 0, 0]
    rest = 1.0 - sites.precision * variance  # σ²/v: above 0, as no site is stronger than q
    cavity_variance = variance / rest
    cavity_mean = (activation - sites.shift * variance) / rest
    sign, tilted = _tilted(density, cavity_mean, cavity_variance, power)
    slope = sign * tilted.slope
    matched = Sites(tilted.bend / tilted.shrinkage, (slope + cavity_mean * tilted.bend) / tilted.shrinkage)
    offset = cavity_mean + cavity_variance * slope - activation
    residual = torch.maximum(offset.abs() * variance.rsqrt(), (tilted.shrinkage / rest - 1.0).abs()).max()
    rows = tilted.log_normaliser + 0.5 * (activation - cavity_mean).square() / cavity_variance - 0.5 * rest.log()
    gaussian = density.prior.log_prob(mean) + 0.5 * (density.dim * math.log(2 * math.pi) - precision.logdet())
    log_evidence, cavity = _times(copies, rows).sum() + gaussian, (cavity_mean, cavity_variance)
    return SiteFit(density, mean, precision, sites, cavity, matched, float(residual), log_evidence)


def evidence_slope(fit: SiteFit, names: Sequence[str], u: Tensor) -> Tensor:
    """The gradient of log Z in the coordinates u of hyperparameters, at the fixed point at u, shape of u.

    There log Z is stationary in the sites, and its gradient is that of Σ_n k_n log Ẑ_n at fixed cavities (Seeger 2005).
    """
    density, point = fit.density, u.detach().clone().requires_grad_()
    copies, power = _copies(density)
    with torch.enable_grad():
        moved = density.with_likelihood(density.likelihood.at_unconstrained(names, point))
        total = _times(copies, _tilted(moved, *fit.cavity, power)[1].log_normaliser).sum()
    return torch.autograd.grad(total, point)[0]


def _copies(density: LinearDensity) -> tuple[Tensor | None, Tensor | None]:
    """k and e of each row, (N,); ``None`` where each is 1."""
    weights = density.weights
    return (None, None) if weights is None else (weights.clamp(min=1.0), weights.clamp(max=1.0))


def _tilted(
    density: LinearDensity, mean: Tensor, variance: Tensor, power: Tensor | None
) -> tuple[Tensor | float, Tilted]:
    """The tilted distributions of s = sign · a, and the sign: that of the class, or 1."""
    likelihood, targets = density.likelihood, density.targets
    if likelihood.domain.kind == "binary" and not isinstance(likelihood, WithOffset):
        sign = 2.0 * targets[:, 0] - 1.0
        return sign, TILTED[likelihood.integral(None, 1)](sign * mean, variance, power)
    each = torch.ones_like(mean) if power is None else power
    rows = zip(*(part.split(BLOCK_ROWS) for part in (mean, variance, each, targets)), strict=True)
    blocks = [log_concave_tilted(likelihood, *some) for some in rows]
    return 1.0, Tilted(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _times(copies: Tensor | None, each: Tensor) -> Tensor:
    return each if copies is None else copies * each


# Moments of one row's likelihood, or of a power of it, times a Gaussian: what expectation propagation matches.

# Rows whose quadrature is worked on at once: what is computed from it stays in a core's cache.
BLOCK_ROWS = 1024
# Newton's steps to the mode of a tilted distribution, which need not be known to the last digit.
MODE_STEPS = 6
PROBIT_MODE_STEPS = 20
MOST_HALVINGS = 100
# The square of a step, in sds of the tilted distribution, that is the last one.
NEAR = 0.01
# Nodes of the rule for powers of Φ, and how far below its peak it follows the integrand: 6e-19.
TWO_SIDED = 256
DEPTH = 42.0


Derivatives = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def probit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    """Moments of Φ(s)^e N(s; μ, v): in closed form for e = 1, else by quadrature.

    Rasmussen & Williams 2006, eqs. 3.58, 3.82–3.85.

    Args:
        mean: μ, shape (N,).
        variance: v, shape (N,).
        power: e, 0 < e ≤ 1, shape (N,); 1 by default.
    """
    root = torch.rsqrt(1.0 + variance)
    z = mean * root
    bend = inverse_mills_slope(z) * root.square()
    # 1 − v/(1 + v) w = 1/(1 + v) + v/(1 + v) (1 − w)
    shrinkage = root.square() * (1.0 + variance * (1.0 - inverse_mills_slope(z)))
    whole = Tilted(log_ndtr(z), inverse_mills(z) * root, bend, shrinkage)
    if power is None or not bool((power < 1.0).any()):
        return whole
    rows = torch.nonzero(power < 1.0)[:, 0]
    fractions = _in_blocks(_probit_power_tilted, mean[rows], variance[rows], power[rows])
    return Tilted(*(one.index_copy(0, rows, part) for one, part in zip(whole, fractions, strict=True)))


def logit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    """Moments of σ(s)^e N(s; μ, v) by quadrature, at any distance in the tails; arguments as for `probit_tilted`."""
    return (
        _in_blocks(_logit_tilted, mean, variance) if power is None else _in_blocks(_logit_tilted, mean, variance, power)
    )


# By the integral of p(y∣f) over a Gaussian f: it is exact for the probit link alone.
TILTED: dict[IntegralName, Callable[[Tensor, Tensor, Tensor | None], Tilted]] = {
    "quadrature": logit_tilted,
    "exact": probit_tilted,
}


def log_concave_tilted(likelihood: Likelihood, mean: Tensor, variance: Tensor, power: Tensor, y: Tensor) -> Tilted:
    """Moments of p(y∣a)^e N(a; μ, v) for a log-concave p, by quadrature or a formula of the likelihood.

    From the mode c on, log p(y∣a)^e N(a; μ, v) falls at least as fast as N(a; c, v): nodes c + s sinh t reach where
    that is exp(−`DEPTH`), and crowd at c on the scale s of the curvature there. Arguments are as for `probit_tilted`.
    """
    closed = likelihood.tilted(mean, variance, power, y)
    if closed is not None:
        return closed

    def derivatives(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f = a.mT[..., None]
        slope, bend = likelihood.gradient(f, y)[..., 0], likelihood.hessian(f, y)[..., 0, 0]
        return likelihood.log_prob(f, y).mT, slope.mT, bend.mT

    centre = _log_concave_mode(derivatives, mean, variance, power)
    scale = (power * derivatives(centre[:, None])[2][:, 0] + 1.0 / variance).rsqrt()

    def rule(centre: Tensor, variance: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        reach = (2.0 * DEPTH * variance).sqrt()
        return _crowded_nodes(centre, variance, scale, -reach, reach)

    return _by_quadrature(derivatives, mean, variance, power, centre, rule, narrow=scale.square() > 0.5 * variance)


def _log_concave_mode(derivatives: Derivatives, mean: Tensor, variance: Tensor, power: Tensor) -> Tensor:
    """The mode of p(a)^e N(a; μ, v), to well within the tilted sd: Newton's steps from μ, halved where they descend."""
    a, length = mean, torch.ones_like(mean)

    def joint(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob, slope, bend = (each[:, 0] for each in derivatives(a[:, None]))
        height = power * log_prob - 0.5 * (a - mean).square() / variance
        return height, power * slope - (a - mean) / variance, power * bend + 1.0 / variance

    here = joint(a)
    for _ in range(MOST_HALVINGS):
        step = here[1] / here[2]
        if bool((step.square() * here[2] < NEAR).all()):
            break
        there = a + length * step
        ahead = joint(there)
        rises = ahead[0] >= here[0]
        a, length = torch.where(rises, there, a), torch.where(rises, 1.0, 0.5 * length)
        here = tuple(torch.where(rises, new, old) for new, old in zip(ahead, here, strict=True))  # type: ignore[assignment]
    return a


def _in_blocks(tilted: Callable[..., Tilted], *rows: Tensor) -> Tilted:
    blocks = zip(*(each.split(BLOCK_ROWS) for each in rows), strict=True)
    return Tilted(*(torch.cat(parts) for parts in zip(*(tilted(*block) for block in blocks), strict=True)))


def _logit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    def derivatives(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        falling = torch.sigmoid(-s)
        return logsigmoid(s), falling, falling * (1.0 - falling)

    centre = _logit_mode(mean, variance, torch.ones_like(mean) if power is None else power)
    return _by_quadrature(derivatives, mean, variance, power, centre)


def _probit_power_tilted(mean: Tensor, variance: Tensor, power: Tensor) -> Tilted:
    def derivatives(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return log_ndtr(s), inverse_mills(s), inverse_mills_slope(s)

    centre = _probit_mode(mean, variance, power)
    # Below 0, Φ(s)^e falls as exp(−e s²/2), which nodes that know of the Gaussian alone may step over.
    found = [torch.empty_like(mean) for _ in Tilted._fields]
    for rule, chosen in ((None, centre >= 0.0), (_two_sided_nodes, centre < 0.0)):
        rows = torch.nonzero(chosen)[:, 0]
        if len(rows):
            some = _by_quadrature(derivatives, mean[rows], variance[rows], power[rows], centre[rows], rule)
            for whole, part in zip(found, some, strict=True):
                whole[rows] = part
    return Tilted(*found)


def _two_sided_nodes(centre: Tensor, variance: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes s = c + a sinh t that reach as far as Φ(s)^e N(s; μ, v) with its mode at c < 0 does, on either side.

    They crowd at c on the scale a of its curvature. To the left log Φ bends by 0.6 or more; to the right the density
    falls as the Gaussian and as exp(−k (s − c)), with k the slope of log Φ^e at c, or faster. The weights are those of
    N(c, v).
    """
    low = -(2.0 * DEPTH / (0.6 * power + 1.0 / variance)).sqrt()
    slope = power * inverse_mills(centre)
    high = torch.minimum((2.0 * DEPTH * variance).sqrt(), (DEPTH - power * log_ndtr(centre)) / slope)
    return _crowded_nodes(centre, variance, (power + 1.0 / variance).rsqrt(), low, high)


def _crowded_nodes(centre: Tensor, variance: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes c + a sinh t from c + low to c + high, and the log weights of N(c, v), each of shape (N, S)."""
    scale = scale[:, None]
    first, last = torch.asinh(low[:, None] / scale), torch.asinh(high[:, None] / scale)
    t = first + (last - first) * torch.linspace(0.0, 1.0, TWO_SIDED, dtype=centre.dtype)
    away = scale * torch.sinh(t)
    volume = scale * torch.cosh(t) * (last - first) / (TWO_SIDED - 1)
    log_density = -0.5 * away.square() / variance[:, None] - 0.5 * (2.0 * math.pi * variance[:, None]).log()
    return centre[:, None] + away, log_density + volume.log()


def _by_quadrature(
    derivatives: Derivatives,
    mean: Tensor,
    variance: Tensor,
    power: Tensor | None,
    centre: Tensor,
    rule: Rule | None = None,
    narrow: Tensor | None = None,
) -> Tilted:
    """A rule for N(s; c, v), with c near the tilted mode, integrates the rest of the integrand.

    As N(s; μ, v) = N(s; c, v) exp(−k (s − c) − k (c − μ)/2) with k = (c − μ)/v, the rest is p(s)^e exp(−k (s − c)). At
    the mode k is the slope of log p^e: for σ between 0 and 1, so that the structure of the rest is of unit size around
    s = 0, which `activation_nodes` resolve.

    Args:
        derivatives: log p(s), its first derivative, and its second one's negative.
        mean: μ.
        variance: v.
        power: e; 1 by default.
        centre: c.
        rule: nodes and log weights from c, v and e; `activation_nodes` by default.
        narrow: whether v is small beside the width of p; by default where it is below 1.
    """
    pull = (centre - mean) / variance
    if rule is None or power is None:
        nodes, log_weights = activation_nodes(centre, variance)
    else:
        nodes, log_weights = rule(centre, variance, power)
    log_prob, rising, bending = derivatives(nodes)
    if power is not None:
        log_prob, rising, bending = (power[:, None] * each for each in (log_prob, rising, bending))
    terms = log_weights + log_prob - pull[:, None] * (nodes - centre[:, None])
    log_sum = torch.logsumexp(terms, -1)
    weights = (terms - log_sum[:, None]).exp()
    slope = (weights * rising).sum(-1)
    tilted_mean = (weights * nodes).sum(-1)
    shrinkage = (weights * (nodes - tilted_mean[:, None]).square()).sum(-1) / variance
    # −∂² log Ẑ/∂μ² = E[Λ] − Var[∂ log p]: two terms that cancel for a wide cavity, as 1 − shrinkage does for a narrow.
    of_narrow = (weights * (bending - (rising - slope[:, None]).square())).sum(-1)
    bend = torch.where(variance < 1.0 if narrow is None else narrow, of_narrow, (1.0 - shrinkage) / variance)
    return Tilted(log_sum - 0.5 * pull * (centre - mean), slope, bend, shrinkage)


def _logit_mode(mean: Tensor, variance: Tensor, power: Tensor) -> Tensor:
    """The mode of σ(s)^e N(s; μ, v), to well within the tilted sd.

    It solves (s − μ)/v = e σ(−s). For μ ≥ −e v/2 it is between max(0, μ) and log(1 + e v) above that; otherwise
    σ(s) = eˢ σ(−s) makes it the mode of σ(−s)^e N(s; μ + e v, v), a mirror image of the first case.
    """
    reach = power * variance
    mirrored = mean < -0.5 * reach
    centre = torch.where(mirrored, -mean - reach, mean)
    low = centre.clamp_min(0.0)
    high = low + torch.log1p(reach)
    s = low
    for _ in range(MODE_STEPS):
        falling = torch.sigmoid(-s)
        excess = (s - centre) / variance - power * falling
        step = excess / (1.0 / variance + power * falling * (1.0 - falling))
        s = torch.minimum(high, torch.maximum(low, s - step))
    return torch.where(mirrored, -s, s)


def _probit_mode(mean: Tensor, variance: Tensor, power: Tensor) -> Tensor:
    """The mode of Φ(s)^e N(s; μ, v): (s − μ)/v = e m(s), with m = φ/Φ.

    m is convex, so that Newton's steps from s = μ, which is below the mode, never pass it.
    """
    s = mean
    for _ in range(PROBIT_MODE_STEPS):
        bend = 1.0 / variance + power * inverse_mills_slope(s)
        step = (power * inverse_mills(s) - (s - mean) / variance) / bend
        s = s + step
        if bool((step.square() * bend < NEAR).all()):
            break
    return s
