"""Likelihoods of a number, or of its logarithm, that is f plus an error of a fixed shape: Student's t and Laplace."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope.likelihoods.censoring import INTERVAL, middle, points, read_intervals
from bayescope.likelihoods.curvatures import DiagonalLambdas
from bayescope.likelihoods.elementwise import Elementwise, hyperparameter, one_or_each
from bayescope.likelihoods.likelihood import Domain, Moments, Tilted
from bayescope.quadrature import gauss_legendre, log_integral
from bayescope.special import (
    inverse_mills,
    inverse_mills_slope,
    log_gamma_density,
    log_ndtr,
    log_rising_factorial,
    shifted_inverse_mills,
)
from bayescope.storage import stored

_HALF = -math.log(2.0)
# Tails are integrated to where they are exp(−DEPTH) of where they begin; their nodes, and the steps to that place.
DEPTH, _NODES = 42.0, 64
# Gaussians are integrated to this many sds.
_REACH = 8.5
# exp(−_NOTHING) of an interval's probability is nothing.
_NOTHING = 700.0
# Beyond this sinh and cosh of it have no squares in float64.
_LARGEST = 300.0


class Tail(NamedTuple):
    """A tail of an error R: ℓ = log P(R > r), h = −dℓ/dr and dh/dr; below r ℓ = log P(R ≤ r), h = dℓ/dr and −dh/dr."""

    log_mass: Tensor
    hazard: Tensor
    bend: Tensor


class Value(NamedTuple):
    """A log probability as a function of f, with its slope and its negative second derivative."""

    log_prob: Tensor
    slope: Tensor
    bend: Tensor


class Errors(ABC):
    """The distribution of an error R: its log density with two derivatives, and its tails."""

    @abstractmethod
    def error(self, r: Tensor) -> Value:
        """log p(r) of the error, its slope and its negative second derivative."""

    @abstractmethod
    def upper(self, r: Tensor) -> Tail:
        """The tail above r."""

    @abstractmethod
    def lower(self, r: Tensor) -> Tail:
        """The tail below r."""

    def between(self, a: Tensor, b: Tensor) -> Value:
        """log P(a < R ≤ b) with its derivatives by −r, where a may be −∞ and b ∞.

        By the tail that is less than ½, or else by both. In the upper one it is log S(a) + log(1 − q), q = S(b)/S(a).
        """
        has_low, has_high = a > -math.inf, b < math.inf
        a, b = torch.where(has_low, a, 0.0), torch.where(has_high, b, 0.0)
        above, below = (self.upper(a), self.upper(b)), (self.lower(b), self.lower(a))
        right = has_low & (above[0].log_mass < _HALF)
        left = has_high & (below[0].log_mass < _HALF) & ~right
        near, far = (chosen(right, *pair) for pair in zip(above, below, strict=True))
        either = _difference(near, far, (right & has_high) | (left & has_low))
        either = either._replace(slope=torch.where(right, either.slope, -either.slope))
        both = self._less_both(a, b, has_low & ~right & ~left, has_high & ~right & ~left)
        return Value(*(torch.where(right | left, x, y) for x, y in zip(either, both, strict=True)))

    def _less_both(self, a: Tensor, b: Tensor, has_low: Tensor, has_high: Tensor) -> Value:
        """log(1 − P(R ≤ a) − P(R > b)) with its derivatives by −r."""
        without = torch.where(has_low, self.lower(a).log_mass.exp(), 0.0)
        without = without + torch.where(has_high, self.upper(b).log_mass.exp(), 0.0)
        log_p = torch.log1p(-without)
        at_a, at_b = self.error(a), self.error(b)
        p_a = torch.where(has_low, (at_a.log_prob - log_p).exp(), 0.0)
        p_b = torch.where(has_high, (at_b.log_prob - log_p).exp(), 0.0)
        curved = torch.where(has_low, p_a * at_a.slope, 0.0) - torch.where(has_high, p_b * at_b.slope, 0.0)
        return Value(log_p, p_a - p_b, curved + (p_a - p_b).square())


class Location(Errors, Elementwise):
    """y = f + s u or log y = f + s u with an error u of a known distribution, of which rows may be censored.

    Canonical targets are float64 of shape (N, D), or of shape (N, 4) for one output: (lower, upper, entry, exit), with
    lower = upper for an exact number (density p), else P(lower < y ≤ upper); both divided by P(entry < y ≤ exit).

    A subclass writes s, and the error u.
    """

    positive: ClassVar[bool] = False

    @abstractmethod
    def spread(self, f: Tensor) -> Tensor:
        """The factor s, which broadcasts with f."""

    # What follows from these

    @property
    def domain(self) -> Domain:
        return Domain("numbers", low=0.0 if self.positive else -math.inf, closed=not self.positive, joined=INTERVAL)

    def targets(self, y: ArrayLike, outputs: int) -> Tensor:
        """Checks numbers, or times with events, and returns them in float64, shape (N, D) or (N, 4).

        Args:
            y: shape (N,) or (N, D); for one output also times and events (N, 2), or what `bs.Censored` returns.
            outputs: D.

        Raises:
            InputError: if the shape does not fit, or a number, an event or an interval is not allowed.
        """
        shape = tuple(getattr(y, "shape", ()))
        if outputs == 1 and len(shape) == 2 and shape[1] > 1:
            return read_intervals(y, self.positive)
        return super().targets(y, outputs)

    def in_unit(self, scale: Tensor) -> Self:
        """The scale of the errors times the scale; one number where all outputs have the same."""
        if self.positive:
            return super().in_unit(scale)
        if "scale" in self.learnable:
            return self
        spread = self.known("scale") * scale
        return self.with_hyperparameters(scale=spread if len(spread.unique()) > 1 else spread[0])

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y_d∣f_d), or the log probability of what is known of y."""
        return self._at(f, y).log_prob

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        return self._at(f, y).slope

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        return self._at(f, y).bend

    def ggn(self, f: Tensor, y: Tensor) -> DiagonalLambdas:
        """The observed Λ, or the expected one of an exact number if the density is not log-concave or has a kink.

        A censored or truncated row whose observed Λ is negative has the square of its slope instead.
        """
        if y.shape[-1] == f.shape[-1]:
            return super().ggn(f, y)
        at = self._at(f, y)
        entries = torch.where(at.bend < 0, at.slope.square(), at.bend)
        exact = (y[:, :1] == y[:, 1:2]) & torch.isinf(y[:, 2:3]) & torch.isinf(y[:, 3:])
        curved = self.log_concave and not self.kinked
        return DiagonalLambdas(entries if curved else torch.where(exact, self.fisher(f), entries))

    def place(self, y: Tensor) -> Tensor:
        """The f at which the error is 0, where its density is largest; of four columns that of an interval."""
        at = middle(y) if y.shape[-1] == INTERVAL else y
        return at.clamp_min(torch.finfo(at.dtype).tiny).log() if self.positive else at

    def constant(self, y: Tensor) -> Tensor:
        """f at the median; for positive numbers at their mean, per event."""
        at = points(y)
        if not self.positive:
            return at.median(0).values
        seen = (y[:, 0] == y[:, 1]).to(torch.float64).mean() if at.shape != y.shape else torch.ones(())
        return at.mean(0).log() - seen.clamp_min(1.0 / (len(y) + 1)).log()

    def _at(self, f: Tensor, y: Tensor) -> Value:
        y = y.to(f)
        if y.shape[-1] == f.shape[-1]:
            return self._exact(f, y)
        lower, upper, entry, exit_ = y.split(1, -1)
        f, seen = f.expand(torch.broadcast_shapes(f.shape, lower.shape)), lower == upper
        value = self._exact(f, torch.where(seen, lower, 1.0))
        s = self.spread(f).expand(f.shape)

        def between(rows: Tensor, low: Tensor, high: Tensor) -> Value:
            return self._between(f[..., rows, :], s[..., rows, :], low[rows], high[rows])

        # Tails are expensive: they are computed for censored and truncated rows only
        (censored,) = torch.nonzero(~seen[:, 0], as_tuple=True)
        known = between(censored, lower, upper)
        value = Value(*(a.index_copy(-2, censored, b) for a, b in zip(value, known, strict=True)))
        truncated = (entry > (0.0 if self.positive else -math.inf)) | (exit_ < math.inf)
        (some,) = torch.nonzero(truncated[:, 0], as_tuple=True)
        within = between(some, entry, exit_)
        return Value(*(a.index_add(-2, some, b, alpha=-1) for a, b in zip(value, within, strict=True)))

    def _exact(self, f: Tensor, y: Tensor) -> Value:
        s = self.spread(f)
        place = y.log() if self.positive else y
        log_p, slope, bend = self.error((place - f) / s)
        log_p = log_p - s.log()
        return Value(log_p - place if self.positive else log_p, -slope / s, bend / s.square())

    def _between(self, f: Tensor, s: Tensor, low: Tensor, high: Tensor) -> Value:
        """log P(low < y ≤ high)."""
        has_low, has_high = low > (0.0 if self.positive else -math.inf), high < math.inf
        a, b = torch.where(has_low, low, 1.0), torch.where(has_high, high, 1.0)
        if self.positive:
            a, b = a.log(), b.log()
        a, b = torch.where(has_low, (a - f) / s, -math.inf), torch.where(has_high, (b - f) / s, math.inf)
        log_prob, slope, bend = self.between(a, b)
        return Value(log_prob, slope / s, bend / s.square())


def _difference(near: Tail, far: Tail, bounded: Tensor) -> Value:
    """log(S(a) − S(b)), S(b) only where the interval is bounded, with its derivatives by −r."""
    bounded = bounded & (near.log_mass - far.log_mass < _NOTHING)
    gap = torch.where(bounded, near.log_mass - far.log_mass, 1.0)
    odds = torch.where(bounded, torch.expm1(gap).reciprocal(), 0.0)
    rise = torch.where(bounded, near.hazard - far.hazard, 0.0)
    log_p = near.log_mass + torch.where(bounded, torch.log(-torch.expm1(-gap)), 0.0)
    curved = near.bend + odds * torch.where(bounded, near.bend - far.bend, 0.0)
    return Value(log_p, near.hazard + odds * rise, curved + odds * (1.0 + odds) * rise.square())


@final
class NormalErrors(Errors):
    """A standard normal error."""

    def error(self, r: Tensor) -> Value:
        return Value(-0.5 * r.square() - 0.5 * math.log(2.0 * math.pi), -r, torch.ones_like(r))

    def upper(self, r: Tensor) -> Tail:
        return self.lower(-r)

    def lower(self, r: Tensor) -> Tail:
        return Tail(log_ndtr(r), inverse_mills(r), inverse_mills_slope(r))


@final
class LogisticErrors(Errors):
    """A standard logistic error."""

    def error(self, r: Tensor) -> Value:
        above, below = torch.sigmoid(-r), torch.sigmoid(r)
        return Value(logsigmoid(r) + logsigmoid(-r), above - below, 2.0 * above * below)

    def upper(self, r: Tensor) -> Tail:
        return self.lower(-r)

    def lower(self, r: Tensor) -> Tail:
        rest = torch.sigmoid(-r)
        return Tail(logsigmoid(r), rest, rest * torch.sigmoid(r))


def remaining(error: Value, other: Tail, side: float) -> Tail:
    """The tail whose mass is 1 less that of the other one: above r for side 1, below it for −1."""
    log_mass = torch.log1p(-other.log_mass.exp())
    hazard = (error.log_prob - log_mass).exp()
    return Tail(log_mass, hazard, hazard * (hazard + side * error.slope))


def chosen(condition: Tensor, first: Tail, second: Tail) -> Tail:
    """The tail that holds at each number."""
    return Tail(*(torch.where(condition, a, b) for a, b in zip(first, second, strict=True)))


def integrated_tail(log_prob: Tensor, ratio: Callable[[Tensor], tuple[Tensor, Tensor]], reach: Tensor) -> Tail:
    """A tail by Gauss–Legendre quadrature outward from r, on the side of the mode where the density falls.

    With ρ(t) = p(r + t)/p(r) and g the slope of log p, h = 1/∫ρ and dh/dr = h² ∫ (g(r) − g(r + t)) ρ, for
    ∫ g(r + t) ρ = −1: neither loses digits far out.

    Args:
        log_prob: log p(r).
        ratio: from a coordinate v of t, with nodes in front, to log(ρ dt/dv) and g(r) − g(r + t).
        reach: the v at which ρ is negligible.
    """
    nodes, weights = (part.to(reach).reshape(-1, *[1] * reach.ndim) for part in gauss_legendre(_NODES))
    length = reach.detach()
    log_ratio, fall = ratio(length * nodes.square())  # more of them near r, where a slow tail has structure
    density = 2.0 * nodes * weights * length * log_ratio.exp()
    mass = density.sum(0)
    hazard = mass.reciprocal()
    return Tail(log_prob + mass.log(), hazard, hazard.square() * (density * fall).sum(0))


def median_deviation(y: Tensor) -> Tensor:
    """The median of ∣y − median∣ of each column, shape (D,), or else its sd, or 1."""
    each = (y - y.median(0).values).abs()
    median, sd = each.median(0).values, each.square().mean(0).sqrt()
    return torch.where(median > 0, median, torch.where(sd > 0, sd, 1.0))


@stored("student_t")
@final
@dataclass(frozen=True, eq=False)
class StudentT(Location):
    """y = f + scale · t with Student's t: numbers with outliers, which a Gaussian would follow (Lange et al. 1989).

    log p(y∣f) = log Γ((ν + 1)/2) − log Γ(ν/2) − ½ log νπ − log scale − ½ (ν + 1) log(1 + r²/ν), r = (y − f)/scale.

    The link is the identity. The observed Λ is negative for ∣r∣ > √ν, so the GGN takes the expected one,
    (ν + 1)/((ν + 3) scale²). E(y∣f) = f, the median for ν ≤ 1; Var(y∣f) = scale² ν/(ν − 2), infinite for ν ≤ 2. Under
    f ~ N(m, v), y is a mixture of Gaussians with variances v + scale²/w, w ~ Gamma(ν/2, ν/2): its log density is
    integrated over w, to 1e-9. Rows may be censored (`bs.Censored`).

    Args:
        scale: a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.
        degrees_of_freedom: ν, likewise. Near 1 outliers are common, above 30 it is nearly Gaussian; what is learnt ends
            at 10⁶, beyond which nothing changes.

    Raises:
        InputError: if one is not positive.
        OptionError: if one is another word than "evidence".
    """

    scale: Tensor | str = "evidence"
    degrees_of_freedom: Tensor | str = "evidence"

    name = "student_t"
    log_concave = False
    hyperparameters: ClassVar[Mapping[str, str]] = {"scale": "positive", "degrees_of_freedom": "up_to_a_million"}

    def __init__(
        self,
        scale: ArrayLike | Literal["evidence"] = "evidence",
        degrees_of_freedom: ArrayLike | Literal["evidence"] = "evidence",
    ) -> None:
        object.__setattr__(self, "scale", hyperparameter("scale", scale))
        object.__setattr__(self, "degrees_of_freedom", hyperparameter("degrees_of_freedom", degrees_of_freedom))

    def starting(self, y: Tensor) -> StudentT:
        """Five degrees of freedom, and the scale that gives each output's median absolute deviation."""
        scale = one_or_each(1.376 * median_deviation(points(y)))
        values = {"scale": scale, "degrees_of_freedom": torch.full_like(scale, 5.0)}
        return self.with_hyperparameters(**{name: values[name] for name in self.learnable})

    def spread(self, f: Tensor) -> Tensor:
        return self.value("scale", f)

    def error(self, r: Tensor) -> Value:
        nu = self.value("degrees_of_freedom", r)
        # Γ((ν + 1)/2)/(Γ(ν/2) √(ν/2)) without cancellation for many degrees of freedom
        half = torch.full_like(nu, 0.5)
        constant = log_rising_factorial(0.5 * nu, half) - 0.5 * math.log(2.0 * math.pi)
        total = nu + r.square()
        power = nu + 1.0
        bend = power * (nu - r.square()) / total.square()
        return Value(constant - 0.5 * power * torch.log1p(r.square() / nu), -power * r / total, bend)

    def upper(self, r: Tensor) -> Tail:
        """By quadrature of the farther tail, with r = √ν sinh w."""
        nu, size = self.value("degrees_of_freedom", r), r.abs()
        w = torch.asinh(size / nu.sqrt())
        steep = torch.tanh(w)

        def ratio(v: Tensor) -> tuple[Tensor, Tensor]:
            # log cosh(w + v) − log cosh w
            log_growth = v + torch.log1p(0.5 * (1.0 - steep) * torch.expm1(-2.0 * v))
            ahead = 2.0 * nu.sqrt() * torch.cosh(w + 0.5 * v) * torch.sinh(0.5 * v)
            x = size + ahead
            fall = (nu + 1.0) * ahead * (nu - size * x) / ((nu + x.square()) * (nu + size.square()))
            return -nu * log_growth + 0.5 * (nu + size.square()).log(), fall

        depth = DEPTH / nu
        even = depth + torch.log1p((-torch.expm1(-2.0 * depth)).sqrt())
        reach = torch.minimum(even, depth / steep.clamp_min(1e-300)).clamp(max=_LARGEST)
        far = integrated_tail(self.error(size).log_prob, ratio, reach)
        return chosen(r >= 0, far, remaining(self.error(r), far, 1.0))

    def lower(self, r: Tensor) -> Tail:
        return self.upper(-r)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, (ν + 1)/((ν + 3) scale²)."""
        nu = self.value("degrees_of_freedom", f)
        return ((nu + 1.0) / ((nu + 3.0) * self.spread(f).square())).expand(f.shape)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = f and Var(y∣f) = scale² ν/(ν − 2), infinite for ν ≤ 2, each (..., N, D)."""
        nu = self.value("degrees_of_freedom", f)
        factor = torch.where(nu > 2.0, nu / torch.where(nu > 2.0, nu - 2.0, 1.0), math.inf)
        return f, (self.spread(f).square() * factor).expand(f.shape)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return Moments(mean, self.conditional(mean)[1], variance)

    def distribution(self, f: np.ndarray) -> Any:
        return stats.t(self.number("degrees_of_freedom"), loc=f, scale=self.number("scale"))

    def entropy(self, f: Tensor) -> Tensor:
        """½ (ν + 1)(ψ(½(ν + 1)) − ψ(½ν)) − log p(0) of the error, plus log scale."""
        nu, zero = self.value("degrees_of_freedom", f), torch.zeros_like(f)
        spread = 0.5 * (nu + 1.0) * (torch.digamma(0.5 * (nu + 1.0)) - torch.digamma(0.5 * nu))
        return spread - self.error(zero).log_prob + self.spread(f).log()

    def log_marginal(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        if y.shape[-1] != mean.shape[-1]:
            return super().log_marginal(mean, variance, y)

        def log_density(score: Tensor, log_variance: Tensor) -> Tensor:
            return -0.5 * (score.square() + log_variance + math.log(2.0 * math.pi))

        return self._over_weight(mean, variance, y.to(mean), log_density)

    def marginal_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        found = self._over_weight(mean, variance, y.to(mean), lambda score, _: log_ndtr(score)).exp()
        return torch.where(variance > 0, found, self.lower((y - mean) / self.spread(mean)).log_mass.exp())

    def _over_weight(
        self, mean: Tensor, variance: Tensor, y: Tensor, log_value: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """log E exp(log_value) of the Gaussian with variance v + scale² exp(−z), over z = log w."""
        shape, square = 0.5 * self.value("degrees_of_freedom", mean), self.spread(mean).square()
        shape, square = shape.expand(mean.shape), square.expand(mean.shape)
        apart = torch.log1p((y - mean).square() / square)

        def log_integrand(z: Tensor) -> Tensor:
            total = variance[..., None] + square[..., None] * (-z).exp()
            score = (y - mean)[..., None] / total.sqrt()
            return log_value(score, total.log()) + log_gamma_density(shape[..., None], z)

        low = -apart - 1.2 * DEPTH / shape - 1.0
        return log_integral(log_integrand, low, torch.log1p(DEPTH / shape) + 3.0)


@stored("laplace_noise")
@final
@dataclass(frozen=True, eq=False)
class LaplaceNoise(Location):
    """p(y∣f) = exp(−∣y − f∣/scale)/(2 scale): numbers whose median is f, with outliers.

    The link is the identity; the most probable f minimises absolute errors. The density has a kink at y = f, which
    holds all the curvature: the observed Λ is 0 elsewhere, so the GGN takes the expected one, 1/scale². Var(y∣f) is
    2 scale². Under f ~ N(m, v) the density and the distribution function of y, the expected log density and the tilted
    moments of expectation propagation are closed forms. Rows may be censored (`bs.Censored`).

    Args:
        scale: a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if the scale is not positive.
        OptionError: if it is another word than "evidence".
    """

    scale: Tensor | str = "evidence"

    name = "laplace_noise"
    kinked = True
    hyperparameters: ClassVar[Mapping[str, str]] = {"scale": "positive"}

    def __init__(self, scale: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "scale", hyperparameter("scale", scale))

    def starting(self, y: Tensor) -> LaplaceNoise:
        """The mean distance of each output's targets from their median."""
        if not self.learnable:
            return self
        at = points(y)
        mean = (at - at.median(0).values).abs().mean(0)
        return LaplaceNoise(one_or_each(torch.where(mean > 0, mean, 1.0)))

    def spread(self, f: Tensor) -> Tensor:
        return self.value("scale", f)

    def error(self, r: Tensor) -> Value:
        return Value(_HALF - r.abs(), -torch.sign(r), torch.zeros_like(r))

    def upper(self, r: Tensor) -> Tail:
        far = Tail(_HALF - r.abs(), torch.ones_like(r), torch.zeros_like(r))
        return chosen(r >= 0, far, remaining(self.error(r), far, 1.0))

    def lower(self, r: Tensor) -> Tail:
        return self.upper(-r)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, 1/scale²."""
        return self.spread(f).square().reciprocal().expand(f.shape)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = f and Var(y∣f) = 2 scale², each (..., N, D)."""
        return f, (2.0 * self.spread(f).square()).expand(f.shape)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return Moments(mean, self.conditional(mean)[1], variance)

    def distribution(self, f: np.ndarray) -> Any:
        return stats.laplace(loc=f, scale=self.number("scale"))

    def entropy(self, f: Tensor) -> Tensor:
        """1 + log(2 scale)."""
        return (1.0 + (2.0 * self.spread(f)).log()).expand(f.shape)

    def log_marginal(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        if y.shape[-1] != mean.shape[-1]:
            return super().log_marginal(mean, variance, y)
        above, below = _sides(y.to(mean) - mean, variance, self.spread(mean))
        found = torch.logaddexp(above, below) - (2.0 * self.spread(mean)).log()
        return torch.where(variance > 0, found, self.log_density(mean, y))

    def marginal_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        above, below = _sides(y.to(mean) - mean, variance, self.spread(mean))
        sd = torch.where(variance > 0, variance, 1.0).sqrt()
        found = torch.special.ndtr((y - mean) / sd) - 0.5 * (above.exp() - below.exp())
        return torch.where(variance > 0, found.clamp(0.0, 1.0), self.lower((y - mean) / self.spread(mean))[0].exp())

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Closed forms, by E∣y − f∣ = d erf(d/√(2v)) + 2 v φ and the density φ of y − f at 0, d = y − mean."""
        if y.shape[-1] != mean.shape[-1]:
            exact = (y[:, 0] == y[:, 1]) & torch.isinf(y[:, 2:]).all(1)
            (rows,) = torch.nonzero(~exact, as_tuple=True)
            some = self._over_pieces(mean[rows], variance[rows], y[rows])
            value, slope, bend = self.expected_log_density(mean, variance, middle(y))
            return (
                value.index_copy(0, rows, some[0]),
                slope.index_copy(0, rows, some[1]),
                bend.index_copy(0, rows, some[2]),
            )
        s, d = self.spread(mean), y.to(mean) - mean
        v = torch.where(variance > 0, variance, 1.0)
        at_kink = torch.where(variance > 0, (-0.5 * d.square() / v).exp() * (2.0 * math.pi * v).rsqrt(), 0.0)
        side = torch.where(variance > 0, torch.erf(d * (2.0 * v).rsqrt()), torch.sign(d))
        return -(d * side + 2.0 * v * at_kink) / s - (2.0 * s).log(), side / s, 2.0 * at_kink / s

    def _over_pieces(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The expectations for censored or truncated rows, by Gauss–Legendre quadrature between the places of y.

        They are right to 1e-8 for an sd of up to six scales.
        """
        sd, y = variance.sqrt(), y.to(mean)
        z = ((y - mean) / torch.where(sd > 0, sd, 1.0)).clamp(-_REACH, _REACH).sort(-1).values
        z = torch.cat([torch.full_like(mean, -_REACH), z, torch.full_like(mean, _REACH)], -1)
        nodes, weights = gauss_legendre(_NODES)
        length = z.diff(dim=-1)[..., None]
        at = (z[..., :-1, None] + length * nodes).flatten(1)
        weight = ((length * weights).flatten(1) * (-0.5 * at.square()).exp() / math.sqrt(2.0 * math.pi)).mT[..., None]
        value, slope, bend = ((weight * each).sum(0) for each in self._at((mean + sd * at).mT[..., None], y))
        kink = LaplaceNoise(1.0).expected_log_density(mean, variance, y[:, :1])[2]
        return value, slope, bend + torch.where(y[:, :1] == y[:, 1:2], kink / self.spread(mean), 0.0)

    def tilted(self, mean: Tensor, variance: Tensor, power: Tensor, y: Tensor) -> Tilted | None:
        """Two truncated Gaussians: N(mean + v/s, v) below y and N(mean − v/s, v) above it, with s = scale/power."""
        if y.shape[-1] != 1:
            return None
        d, v, whole = y[:, 0].to(mean) - mean, variance, self.spread(mean)
        s = whole / power
        above, below = _sides(d, v, s)
        log_sum = torch.logaddexp(above, below)
        up, down = torch.sigmoid(above - below), torch.sigmoid(below - above)
        x, z = ((side * d - v / s) * v.rsqrt() for side in (1.0, -1.0))
        to_x, to_z = shifted_inverse_mills(x), shifted_inverse_mills(z)
        within = up * (1.0 - to_x * inverse_mills(x)) + down * (1.0 - to_z * inverse_mills(z))
        shrinkage = within + up * down * (to_x + to_z).square()
        # bend = E[Λ] − Var[∂ log p]: two terms that cancel for a wide cavity, as 1 − shrinkage does for a narrow one.
        of_slopes = 4.0 * up * down / s.square()
        at_kink = (-0.5 * d.square() / v - log_sum).exp() * (2.0 * math.pi * v).rsqrt()
        bend = torch.where(of_slopes * v < 1.0, 2.0 * at_kink / s - of_slopes, (1.0 - shrinkage) / v)
        return Tilted(log_sum - power * (2.0 * whole).log(), (up - down) / s, bend, shrinkage)


def _sides(d: Tensor, variance: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """log of exp(v/(2s²) ∓ d/s) Φ((±d − v/s)/√v): 2s p(y∣f) over f ~ N(y − d, v) below y, and above it."""
    v = torch.where(variance > 0, variance, 1.0)

    def side(d: Tensor) -> Tensor:
        x = (d - v / s) / v.sqrt()
        low = x < 0
        negative = torch.where(low, x, -1.0)
        inside = -0.5 * d.square() / v + (0.5 * torch.special.erfcx(-negative * math.sqrt(0.5))).log()
        return torch.where(low, inside, 0.5 * v / s.square() - d / s + log_ndtr(torch.where(low, 0.0, x)))

    return side(d), side(-d)
