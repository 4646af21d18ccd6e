"""Slow, plain references in float64 and beyond: what the library is tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Joint, Likelihood, MultivariateGaussian, Poisson
from bayescope.likelihoods.elementwise import Elementwise

# --- special functions, activations and likelihoods: mpmath with 60 digits, and autograd ----------------------------


def log_ndtr_chain(s: float) -> tuple[Any, Any, Any]:
    """log Φ(s), v = φ/Φ and v(s + v) from the definition, to 60 digits after all cancellation."""
    with mpmath.workdps(60 + int(2 * math.log10(1 + abs(s)))):
        x = mpmath.mpf(s)
        upper = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        below = 1 - upper if x > 0 else mpmath.erfc(-x / mpmath.sqrt(2)) / 2
        ratio = mpmath.npdf(x) / below
        return mpmath.log1p(-upper) if x > 0 else mpmath.log(below), ratio, ratio * (x + ratio)


def relative_error(got: float, truth: Any) -> float:
    """∣got − truth∣/∣truth∣ with the difference taken at the truth's precision."""
    return float(abs((mpmath.mpf(got) - truth) / truth))


def gaussian_expectation(h: Callable[[Any], Any], mean: float, sd: float) -> Any:
    """E[h(a)], a ~ N(mean, sd²), by mpmath's adaptive quadrature on panels split at the mean and around a = 0."""
    with mpmath.workdps(30):
        m, s = mpmath.mpf(mean), mpmath.mpf(sd)
        if s == 0:
            return h(m)
        ends = [m + k * s for k in (-14, -8, -5, -2, 0, 2, 5, 8, 14)]
        around = [mpmath.mpf(k) for k in (-300, -80, -30, -12, -4, 0, 4, 12, 30, 80, 300)]
        panels = sorted(set(ends + [k for k in around if ends[0] < k < ends[-1]]))
        return mpmath.quad(lambda a: h(a) * mpmath.npdf(a, m, s), panels)


def log_expected_sigmoid(mean: float, sd: float) -> Any:
    """log E[σ(a)] by quadrature of the integrand over its maximum, which a bracketing search finds."""
    with mpmath.workdps(30):
        m, s = mpmath.mpf(mean), mpmath.mpf(sd)

        def log_integrand(a: Any) -> Any:
            return -mpmath.log1p(mpmath.exp(-a)) - ((a - m) / s) ** 2 / 2 if a > -100 else a - ((a - m) / s) ** 2 / 2

        low, high = m, m + s * s  # the derivative σ(−a) − (a − m)/s² changes sign between them
        for _ in range(200):
            middle = (low + high) / 2
            rising = 1 / (1 + mpmath.exp(middle)) > (middle - m) / s**2
            low, high = (middle, high) if rising else (low, middle)
        top = log_integrand(low)
        ends = [low + k * s for k in (-13, -6, -3, -1, 0, 1, 3, 6, 13)]
        around = [k for base in (0, low) for k in (base - 80, base - 30, base - 10, base + 10, base + 30, base + 80)]
        panels = sorted(set(ends + [k for k in around if ends[0] < k < ends[-1]]))
        total = mpmath.quad(lambda a: mpmath.exp(log_integrand(a) - top), panels)
        return top + mpmath.log(total / (s * mpmath.sqrt(2 * mpmath.pi)))


def dense_derivatives(log_prob: Callable[[Tensor], Tensor], f: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (C,) and negative Hessian (C, C) of a scalar function of one row f (C,), by autograd."""
    gradient = torch.func.grad(log_prob)(f)
    return gradient, -torch.func.jacrev(torch.func.grad(log_prob))(f)


def expected_hessian(likelihood: Any, f: Tensor, values: Tensor) -> Tensor:
    """E[Λ∣f] per row of f (N, C), from the observed Λ: over all labels, or for a Gaussian y by Gauss–Hermite in y.

    Of outcomes that are independent given f it is the variance of the score of each, by sums over its quantiles.

    Args:
        likelihood: p(y∣f).
        f: shape (N, C).
        values: every label there is, for a discrete y.
    """
    if likelihood.discrete:
        weighted = [likelihood.log_prob(f, y).exp()[:, None, None] * likelihood.hessian(f, y) for y in _each(values, f)]
        return torch.stack(weighted).sum(0)
    if likelihood.parts:
        columns = zip(likelihood.parts, f.split(1, -1), values.split(1, -1), strict=True)
        return torch.diag_embed(torch.cat([expected_hessian(*each)[..., 0] for each in columns], -1))
    if isinstance(likelihood, Elementwise):
        return torch.diag_embed(_score_variance(likelihood, f))
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(5))
    weights = weights / weights.sum()
    mean, variance = likelihood.conditional(f)
    total = torch.zeros(*f.shape, f.shape[-1], dtype=f.dtype)
    for place in product(range(5), repeat=mean.shape[-1]):
        y = mean + nodes[list(place)] * variance.sqrt()
        total += weights[list(place)].prod() * likelihood.hessian(f, y)
    return total


def _score_variance(likelihood: Elementwise, f: Tensor) -> Tensor:
    """Σ or ∫ p(y∣f) slope(f, y)² over y, of each output."""
    low, high = (likelihood.quantile(f, level) for level in (1e-17, 1.0 - 1e-15))
    if likelihood.domain.integer:
        y = torch.arange(float(high.max()) + 50.0, dtype=torch.float64).reshape(-1, *[1] * f.ndim)
        return (likelihood.log_density(f, y).exp() * likelihood.slope(f, y).square()).sum(0)
    # By Gauss–Legendre panels on either side of f, in log y, the log odds of y or asinh(y − f)
    nodes, weights = (
        torch.from_numpy(part).reshape(-1, *[1] * f.ndim) for part in np.polynomial.legendre.leggauss(200)
    )
    total = torch.zeros_like(f)
    if likelihood.domain.atom:
        zero = torch.zeros_like(f)
        total = likelihood.log_density(f, zero).exp() * likelihood.slope(f, zero).square()
        low = low.clamp_min(1e-50)
    for end in (low, high):
        if likelihood.domain.high < math.inf:
            stop = torch.logit(end) - f
            t = f + 0.5 * stop * (nodes + 1.0)
            y, unit = torch.sigmoid(t), torch.sigmoid(t) * torch.sigmoid(-t)
        elif likelihood.domain.low == 0.0:
            stop = end.log() - f
            y = unit = (f + 0.5 * stop * (nodes + 1.0)).exp()
        else:
            stop = torch.asinh(end - f)
            t = 0.5 * stop * (nodes + 1.0)
            y, unit = f + torch.sinh(t), torch.cosh(t)
        terms = likelihood.log_density(f, y).exp() * likelihood.slope(f, y).square() * unit
        total += (terms * weights).sum(0) * 0.5 * stop.abs()
    return total


def heteroscedastic_outcome(
    parametrization: str, mean: Tensor, cov: Tensor
) -> tuple[torch.distributions.Normal, Tensor, float]:
    """y of one target given t = log σ² at 60,001 points within ±60 sds; their log densities, and the log of their step.

    Given t the other output is Gaussian, and y with it. In natural parameters it is m/σ², and t = −f₂.
    """
    sign = -1.0 if parametrization == "natural" else 1.0
    sd = cov[1, 1].sqrt()
    z = torch.linspace(-60, 60, 60_001, dtype=torch.float64)
    t = sign * mean[1] + sd * z
    slope = sign * cov[0, 1] / sd
    rest = cov[0, 0] - slope.square()
    centre, scale = mean[0] + slope * z, t.exp() if parametrization == "natural" else torch.ones_like(t)
    normal = torch.distributions.Normal(scale * centre, (t.exp() + scale.square() * rest).sqrt(), validate_args=False)
    return normal, -0.5 * (z.square() + math.log(2 * math.pi)), math.log(120 / 60_000)


def heteroscedastic_log_density(parametrization: str, mean: Tensor, cov: Tensor, y: float) -> float:
    """log ∫ N(y; m, σ²) N(f; mean, cov) df of one target, by a plain sum over t."""
    normal, log_density, log_step = heteroscedastic_outcome(parametrization, mean, cov)
    return float(torch.logsumexp(normal.log_prob(torch.tensor(y, dtype=torch.float64)) + log_density, 0)) + log_step


def heteroscedastic_probability(parametrization: str, mean: Tensor, cov: Tensor, y: float) -> float:
    """P(outcome < y) of one target, by a plain sum over t."""
    normal, log_density, log_step = heteroscedastic_outcome(parametrization, mean, cov)
    return float(normal.cdf(torch.tensor(y, dtype=torch.float64)) @ log_density.exp()) * math.exp(log_step)


def _each(values: Tensor, f: Tensor) -> Iterator[Tensor]:
    return (value.expand(len(f), *value.shape) for value in values)


# --- posteriors of two weights, by numerical integration over the plane ---------------------------------------------


@dataclass(frozen=True)
class Plane:
    """A normalised density on a grid of the plane.

    Attributes:
        nodes: shape (S, 2).
        weights: their probabilities, shape (S,).
        log_evidence: the log of the integral of the unnormalised density.
    """

    nodes: Tensor
    weights: Tensor
    log_evidence: Tensor

    @property
    def mean(self) -> Tensor:
        return self.weights @ self.nodes

    @property
    def covariance(self) -> Tensor:
        centred = self.nodes - self.mean
        return centred.mT @ (self.weights[:, None] * centred)

    def expect(self, values: Tensor) -> Tensor:
        """The mean of a function given by its values at the nodes, shape (S, ...)."""
        return torch.tensordot(self.weights, values, dims=1)


def integrate_plane(log_density: Callable[[Tensor], Tensor], start: Tensor, *, size: int = 321) -> Plane:
    """Integrates a log-concave density over the plane by the trapezoidal rule, which converges geometrically.

    The grid is laid along the principal axes of the Gaussian at the mode, then, until they agree, along those of the
    density's own covariance. A grid whose border holds mass is refused.
    """
    mode, covariance = _gaussian_at_mode(log_density, start)
    plane = _on_grid(log_density, mode, covariance, size)
    for _ in range(8):
        plane, before = _on_grid(log_density, plane.mean, plane.covariance, size), plane
        if abs(plane.log_evidence - before.log_evidence) < 1e-11:
            break
    edge = plane.weights.reshape(size, size)
    border = edge[0].sum() + edge[-1].sum() + edge[:, 0].sum() + edge[:, -1].sum()
    assert border < 1e-12, f"the grid cuts off mass: {float(border)}"
    return plane


def _on_grid(log_density: Callable[[Tensor], Tensor], centre: Tensor, covariance: Tensor, size: int) -> Plane:
    values, vectors = torch.linalg.eigh(covariance)
    axis = torch.linspace(-22.0, 22.0, size, dtype=torch.float64)
    nodes = centre + torch.cartesian_prod(axis, axis) * values.sqrt() @ vectors.mT
    logs = torch.cat([log_density(block) for block in nodes.split(1024)])
    cell = 2.0 * (axis[1] - axis[0]).log() + 0.5 * values.log().sum()
    return Plane(nodes, torch.softmax(logs, 0), torch.logsumexp(logs, 0) + cell)


def _gaussian_at_mode(log_density: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, Tensor]:
    theta = start
    for _ in range(200):
        gradient = torch.func.grad(lambda t: log_density(t[None])[0])(theta)
        covariance = torch.linalg.inv(-torch.func.jacrev(torch.func.grad(lambda t: log_density(t[None])[0]))(theta))
        step = covariance @ gradient
        if gradient @ step < 1e-16:
            break
        length = 1.0
        while log_density((theta + length * step)[None])[0] < log_density(theta[None])[0] - 1e-10:
            length *= 0.5
        theta = theta + length * step
    return theta, covariance


def binary_log_joint(
    link: str, jacobian: Tensor, labels: Tensor, prior_precision: Tensor, prior_mean: Tensor
) -> Callable[[Tensor], Tensor]:
    """log p(y, θ) of Bernoulli labels (N,) with activations Jθ, and of θ ~ N(mean, precision⁻¹), for θ (S, P)."""
    log_link = torch.special.log_ndtr if link == "probit" else torch.nn.functional.logsigmoid
    signs = 2.0 * labels - 1.0
    constant = 0.5 * torch.logdet(prior_precision / (2.0 * math.pi))

    def log_joint(theta: Tensor) -> Tensor:
        offset = theta - prior_mean
        prior = constant - 0.5 * (offset @ prior_precision * offset).sum(-1)
        return log_link(theta @ jacobian.mT * signs).sum(-1) + prior

    return log_joint


# --- any log density: conjugate evidence, finite differences, two-dimensional quadrature ------------------------------


def gamma_poisson_evidence(shape: float, rate: float, total: float, rows: int) -> float:
    """log ∫ λ^(shape−1+total) exp(−(rate+rows) λ) dλ: a Gamma prior and Poisson counts, without their constants."""
    return math.lgamma(shape + total) - (shape + total) * math.log(rate + rows)


def beta_bernoulli_evidence(a: float, b: float, ones: float, rows: int) -> float:
    """log ∫ x^(a−1+ones) (1−x)^(b−1+rows−ones) dx: a Beta prior and Bernoulli outcomes."""
    return math.lgamma(a + ones) + math.lgamma(b + rows - ones) - math.lgamma(a + b + rows)


def bivariate_expectation(h: Callable[[Tensor, Tensor], Tensor], mean: Tensor, covariance: Tensor) -> float:
    """E[h(a, b)], (a, b) ~ N(mean, covariance), by a trapezoidal sum of 801² points over ±12 sds in whitened units."""
    grid = torch.linspace(-12, 12, 801, dtype=torch.float64)
    weights = torch.softmax(-0.5 * grid.square(), 0)
    z, y = torch.meshgrid(grid, grid, indexing="ij")
    points = mean + torch.stack([z, y], -1) @ torch.linalg.cholesky(covariance).mT
    return float(weights @ h(points[..., 0], points[..., 1]) @ weights)


def central_gradient(log_prob: Callable[[Tensor], Tensor], theta: Tensor, step: float = 1e-5) -> Tensor:
    """(f(θ + h) − f(θ − h))/2h in each coordinate, shape (P,)."""
    moves = step * torch.eye(theta.shape[0], dtype=theta.dtype)
    return torch.stack([(log_prob(theta + move) - log_prob(theta - move)) / (2 * step) for move in moves])


# --- linear models: Laplace by dense autograd, regression in the space of functions ----------------------------------


@dataclass(frozen=True)
class DenseLaplace:
    """The mode of a log joint, the inverse of its negative Hessian there, and Laplace's log evidence."""

    mode: Tensor
    covariance: Tensor
    log_evidence: float


def dense_laplace(log_joint: Callable[[Tensor], Tensor], dim: int) -> DenseLaplace:
    """Laplace's approximation of a log-concave density of one θ (P,), with every derivative from autograd."""
    theta = torch.zeros(dim, dtype=torch.float64)
    for _ in range(100):
        gradient = torch.func.grad(log_joint)(theta)
        hessian = torch.func.jacrev(torch.func.grad(log_joint))(theta)
        step = -torch.linalg.solve(hessian, gradient)
        length = 1.0
        while not log_joint(theta + length * step) >= log_joint(theta) - 1e-9:  # also where it is no number
            length *= 0.5
        theta = theta + length * step
        if gradient @ step < 1e-24:
            break
    hessian = torch.func.jacrev(torch.func.grad(log_joint))(theta)
    evidence = log_joint(theta) - 0.5 * torch.logdet(-hessian / (2.0 * math.pi))
    return DenseLaplace(theta, torch.linalg.inv(-hessian), float(evidence))


def linear_log_joint(
    likelihood: Likelihood, jacobian: Tensor, targets: Tensor, precision: Tensor, mean: Tensor
) -> Callable[[Tensor], Tensor]:
    """log p(y, θ) with f = Jθ (N, C), independent priors, and each likelihood from its definition."""

    def log_joint(theta: Tensor) -> Tensor:
        prior = torch.distributions.Normal(mean, precision.rsqrt()).log_prob(theta).sum()
        return _log_likelihood(likelihood, jacobian @ theta, targets) + prior

    return log_joint


def _log_likelihood(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Tensor:
    match likelihood:
        case Categorical():
            return (f.gather(1, targets[:, None])[:, 0] - torch.logsumexp(f, 1)).sum()
        case Gaussian():
            noise = likelihood.noise_variance.expand(f.shape)
            return torch.distributions.Normal(f, noise.sqrt()).log_prob(targets).sum()
        case MultivariateGaussian():
            return torch.distributions.MultivariateNormal(f, likelihood.covariance).log_prob(targets).sum()
        case Poisson():
            return torch.distributions.Poisson(f.exp()).log_prob(targets).sum()
        case Joint(parts=parts):
            columns = zip(parts, f.split(1, 1), targets.split(1, 1), strict=True)
            return torch.stack([_log_likelihood(*each) for each in columns]).sum()
        case Bernoulli():
            log_link = torch.special.log_ndtr if likelihood.name == "probit" else torch.nn.functional.logsigmoid
            return log_link((2.0 * targets - 1.0) * f).sum()
    raise AssertionError(f"no definition of {likelihood.name!r} here")


def regression(
    jacobian: Tensor, y: Tensor, noise: Tensor, precision: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Posterior mean and covariance, and log N(y; J m₀, J P₀⁻¹ Jᵀ + noise), by conditioning the joint of θ and y.

    All rows of all outputs stand below each other: J is (M, P), y and noise are (M,).
    """
    prior = torch.diag(1.0 / precision)
    joint = jacobian @ prior @ jacobian.mT + torch.diag(noise)
    gain = torch.linalg.solve(joint, jacobian @ prior).mT
    marginal = torch.distributions.MultivariateNormal(jacobian @ mean, joint)
    return mean + gain @ (y - jacobian @ mean), prior - gain @ jacobian @ prior, float(marginal.log_prob(y))


# --- information: entropies by mpmath, and by plain sums over wide grids ----------------------------------------------


def bernoulli_information(link: Callable[[Any], Any], mean: float, sd: float) -> Any:
    """I(y; f) = H[E p] − E H[p] of p = link(f), f ~ N(mean, sd²), by mpmath; link(−f) is 1 − link(f)."""
    with mpmath.workdps(30):

        def entropy(p: Any, q: Any) -> Any:
            return -sum(part * mpmath.log(part) if part > 0 else 0 for part in (p, q))

        average, rest = (gaussian_expectation(lambda a, s=s: link(s * a), mean, sd) for s in (1, -1))
        return entropy(average, rest) - gaussian_expectation(lambda a: entropy(link(a), link(-a)), mean, sd)


def softmax_information(mean: Tensor, cov: Tensor) -> float:
    """I(y; f) = H[E p] − E H[p] of p = softmax(f), three outputs, by the trapezoidal rule in space."""
    axis = torch.linspace(-7, 7, 81, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis, axis)
    weights = torch.softmax(-0.5 * z.square().sum(1), 0)
    p = torch.softmax(mean + z @ torch.linalg.cholesky(cov).mT, 1)
    inner = -torch.xlogy(p, p).sum(1) @ weights
    average = weights @ p
    return float(-torch.xlogy(average, average).sum() - inner)


def density_entropy(log_density: Callable[[Tensor], Tensor], low: float, high: float, size: int) -> float:
    """−∫ p log p by the trapezoidal rule."""
    y = torch.linspace(low, high, size, dtype=torch.float64)
    log_p = log_density(y)
    return float(-(log_p.exp() * log_p).sum() * (y[1] - y[0]))


# --- one row's likelihood, or a power of it, times a Gaussian: sums over wide grids -----------------------------------


def tilted_moments(
    link: str, label: Tensor, mean: Tensor, variance: Tensor, power: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """log Ẑ, mean and variance of p(y∣a)^power N(a; mean, variance) by a trapezoidal sum of 40,001 points.

    The density is log-concave: the interval where it is above exp(−50) of its top is closed in on from a wider one.
    """
    log_link = torch.special.log_ndtr if link == "probit" else torch.nn.functional.logsigmoid

    def logs(offset: Tensor) -> Tensor:
        return power * log_link((2.0 * label - 1.0) * (mean + offset)) - 0.5 * offset.square() / variance

    high = 15.0 * variance.sqrt() + variance * (1.0 + mean.abs())
    low = -high
    for _ in range(30):
        offset = low + (high - low) * torch.linspace(0, 1, 2001, dtype=torch.float64)
        inside = torch.nonzero(logs(offset) > logs(offset).max() - 50.0)
        low, high = offset[max(0, int(inside[0]) - 1)], offset[min(2000, int(inside[-1]) + 1)]
    offset = low + (high - low) * torch.linspace(0, 1, 40001, dtype=torch.float64)
    weights = torch.softmax(logs(offset), 0)
    centre = weights @ offset
    volume = torch.logsumexp(logs(offset), 0) + ((high - low) / 40000).log()
    tilted_variance = weights @ (offset - centre).square()
    return volume - 0.5 * (2 * torch.pi * variance).log(), mean + centre, tilted_variance
