"""Likelihoods of amounts and lifetimes with the log link: log-normal, Weibull, exponential and Gamma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special, stats
from torch import Tensor

from bayescope.likelihoods.censoring import points
from bayescope.likelihoods.elementwise import ExponentialMoments, hyperparameter, one_or_each
from bayescope.likelihoods.likelihood import Moments
from bayescope.likelihoods.location import (
    DEPTH,
    Location,
    NormalErrors,
    Tail,
    Value,
    chosen,
    integrated_tail,
    remaining,
)
from bayescope.special import log_gamma_density
from bayescope.storage import stored

_NORMAL = NormalErrors()
_EULER = 0.5772156649015329
# Newton steps to the end of a tail.
_STEPS = 12
# Beyond this exp(−x) is nothing, and exp(x) still has a square.
_LARGEST = 300.0
# Below this the series of x/(exp(x) − 1) − 1 + x and of log Γ(1 + 2x) − 2 log Γ(1 + x) are right to 1e-13.
_SMALL = 0.02


class Lifetime(Location):
    """log y = f + s u for positive y: E(y∣f) = a eᶠ and Var(y∣f) = b e²ᶠ."""

    positive = True

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), each (..., N, D)."""
        return self.moments(f).conditional(f)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return self.moments(mean).averaged(mean, variance)

    def moments(self, f: Tensor) -> ExponentialMoments:
        """a and b, by E(eˢᵘ) and E(e²ˢᵘ)."""
        first, ratio = self.log_moments(f)
        return ExponentialMoments(first.exp(), (((2.0 * first).exp() * torch.expm1(ratio), 2.0),))

    def log_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """log E(eˢᵘ) and log(E(e²ˢᵘ)/E(eˢᵘ)²), which broadcast with f."""
        raise NotImplementedError


@stored("log_normal")
@final
@dataclass(frozen=True, eq=False)
class LogNormal(Lifetime):
    """log y ~ N(f, sd²): positive amounts whose factors multiply.

    The link is the logarithm, eᶠ is the median; E(y∣f) = exp(f + ½ sd²). With r = (log y − f)/sd,
    log p(y∣f) = −½ r² − ½ log 2π − log sd − log y. Under a Gaussian f, y is log-normal too: every integral is exact.
    Rows may be censored or truncated (`bs.Censored`; truncated ones are integrated to 1e-9).

    Args:
        sd: of log y, a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if the sd is not positive.
        OptionError: if it is another word than "evidence".
    """

    sd: Tensor | str = "evidence"

    name = "log_normal"
    hyperparameters: ClassVar[Mapping[str, str]] = {"sd": "positive"}

    def __init__(self, sd: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "sd", hyperparameter("sd", sd))

    def starting(self, y: Tensor) -> LogNormal:
        """The sd of the targets' logarithms."""
        return LogNormal(_log_sd(y)) if self.learnable else self

    def constant(self, y: Tensor) -> Tensor:
        """The mean of the targets' logarithms."""
        return points(y).log().mean(0)

    def spread(self, f: Tensor) -> Tensor:
        return self.value("sd", f)

    def error(self, r: Tensor) -> Value:
        return _NORMAL.error(r)

    def upper(self, r: Tensor) -> Tail:
        return _NORMAL.upper(r)

    def lower(self, r: Tensor) -> Tail:
        return _NORMAL.lower(r)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, 1/sd²."""
        return self.spread(f).square().reciprocal().expand(f.shape)

    def log_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """½ sd² and sd²."""
        square = self.spread(f).square()
        return 0.5 * square, square

    def distribution(self, f: np.ndarray) -> Any:
        return stats.lognorm(self.number("sd"), scale=np.exp(f))

    def entropy(self, f: Tensor) -> Tensor:
        """f + log sd + ½ log 2πe."""
        return f + self.spread(f).log() + 0.5 * (1.0 + math.log(2.0 * math.pi))

    def log_marginal(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        wide = self._wider(mean, variance)
        if y.shape[-1] == mean.shape[-1]:
            return wide.log_density(mean, y)
        truncated = (y[:, 2] > 0) | (y[:, 3] < math.inf)
        found = wide.log_density(mean, y)
        if truncated.any():
            rows = super().log_marginal(mean[truncated], variance[truncated], y[truncated])
            found = found.index_put((truncated,), rows)
        return found

    def marginal_cdf(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return self._wider(mean, variance).cdf(mean, y)

    def _wider(self, mean: Tensor, variance: Tensor) -> LogNormal:
        return LogNormal((self.spread(mean).square() + variance).sqrt()) if len(mean) else self


class ExtremeLifetime(Lifetime):
    """Lifetimes whose error u is the logarithm of a standard exponential variable."""

    def error(self, r: Tensor) -> Value:
        return _extreme(r)

    def upper(self, r: Tensor) -> Tail:
        return _above_extreme(r)

    def lower(self, r: Tensor) -> Tail:
        return _below_extreme(r)


@stored("weibull")
@final
@dataclass(frozen=True, eq=False)
class Weibull(ExtremeLifetime):
    """P(Y > y∣f) = exp(−(y/eᶠ)^shape): lifetimes whose hazard grows (shape > 1) or falls (shape < 1) with age.

    The link is the logarithm of the scale eᶠ, as in scipy.stats.weibull_min and lifelines' WeibullAFTFitter;
    E(y∣f) = Γ(1 + 1/shape) eᶠ. log p(y∣f) = shape r − exp(shape r) + log shape − log y with r = log y − f (Kalbfleisch
    & Prentice 2002, section 2.2). Moments under a Gaussian f are exact, log densities are integrated to 1e-9. Rows may
    be censored or truncated (`bs.Censored`).

    Args:
        shape: a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if the shape is not positive.
        OptionError: if it is another word than "evidence".
    """

    shape: Tensor | str = "evidence"

    name = "weibull"
    hyperparameters: ClassVar[Mapping[str, str]] = {"shape": "positive"}

    def __init__(self, shape: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "shape", hyperparameter("shape", shape))

    def starting(self, y: Tensor) -> Weibull:
        """π/√6 over the sd of the targets' logarithms."""
        return Weibull(math.pi / math.sqrt(6.0) / _log_sd(y)) if self.learnable else self

    def spread(self, f: Tensor) -> Tensor:
        return self.value("shape", f).reciprocal()

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, shape²."""
        return self.value("shape", f).square().expand(f.shape)

    def log_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """log Γ(1 + s) and log Γ(1 + 2s) − 2 log Γ(1 + s), s = 1/shape: for small s Σ ζ(k) (2ᵏ − 2) (−s)ᵏ/k, k ≥ 2."""
        s = self.spread(f.to(torch.float64))
        few = s < _SMALL
        little, first = torch.where(few, s, 0.0), torch.lgamma(1.0 + s)
        series = sum(special.zeta(k) * (2.0**k - 2.0) / k * (-little) ** k for k in range(2, 15))
        return first.to(f), torch.where(few, series, torch.lgamma(1.0 + 2.0 * s) - 2.0 * first).to(f)

    def distribution(self, f: np.ndarray) -> Any:
        return stats.weibull_min(self.number("shape"), scale=np.exp(f))

    def entropy(self, f: Tensor) -> Tensor:
        """γ (1 − 1/shape) + f − log shape + 1, with Euler's γ."""
        s = self.spread(f)
        return f + _EULER * (1.0 - s) + s.log() + 1.0


@stored("exponential")
@final
@dataclass(frozen=True)
class Exponential(ExtremeLifetime):
    """P(Y > y∣f) = exp(−y e⁻ᶠ): waiting times of events with a constant hazard, whose mean is eᶠ.

    The link is the logarithm. log p(y∣f) = −f − y e⁻ᶠ. Moments under a Gaussian f are exact, log densities are
    integrated to 1e-9. Rows may be censored or truncated (`bs.Censored`).
    """

    name = "exponential"

    def spread(self, f: Tensor) -> Tensor:
        return f.new_ones(())

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, 1."""
        return torch.ones_like(f)

    def log_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """0 and log 2."""
        return f.new_zeros(()), f.new_tensor(math.log(2.0))

    def distribution(self, f: np.ndarray) -> Any:
        return stats.expon(scale=np.exp(f))

    def entropy(self, f: Tensor) -> Tensor:
        """1 + f."""
        return 1.0 + f


@stored("gamma")
@final
@dataclass(frozen=True, eq=False)
class Gamma(Lifetime):
    """Positive amounts with the mean μ = eᶠ and the variance μ²/shape: the Gamma of generalised linear models.

    log p(y∣f) = shape log(shape/μ) − log Γ(shape) + (shape − 1) log y − shape y/μ (McCullagh & Nelder 1989, chapter 8);
    the link is the logarithm. Moments under a Gaussian f are exact, log densities are integrated to 1e-9. Rows may be
    censored or truncated (`bs.Censored`), by tails that are integrated to 1e-12.

    Args:
        shape: a positive number, 1/shape being the dispersion; shape (D,) for one for each output, or "evidence" if it
            is to be learnt.

    Raises:
        InputError: if the shape is not positive.
        OptionError: if it is another word than "evidence".
    """

    shape: Tensor | str = "evidence"

    name = "gamma"
    hyperparameters: ClassVar[Mapping[str, str]] = {"shape": "positive"}

    def __init__(self, shape: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "shape", hyperparameter("shape", shape))

    def starting(self, y: Tensor) -> Gamma:
        """The shape of each output's constant mean from d = log ȳ − mean log y, right to 1.5 % (Minka 2002)."""
        if not self.learnable:
            return self
        at = points(y)
        d = (at.mean(0).log() - at.log().mean(0)).clamp_min(1e-6)
        return Gamma(one_or_each((3.0 - d + ((d - 3.0).square() + 24.0 * d).sqrt()) / (12.0 * d)))

    def spread(self, f: Tensor) -> Tensor:
        return f.new_ones(())

    def error(self, r: Tensor) -> Value:
        shape = self.value("shape", r)
        return Value(log_gamma_density(shape, r), -shape * torch.expm1(r), shape * r.exp())

    def upper(self, r: Tensor) -> Tail:
        """By quadrature above the mode, and as what the other tail leaves below it."""
        return chosen(
            r >= 0, self._above(r.clamp_min(0.0)), remaining(self.error(r), self._below(r.clamp(max=0.0)), 1.0)
        )

    def lower(self, r: Tensor) -> Tail:
        """By quadrature below the mode, and as what the other tail leaves above it."""
        return chosen(
            r <= 0, self._below(r.clamp(max=0.0)), remaining(self.error(r), self._above(r.clamp_min(0.0)), -1.0)
        )

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, the shape."""
        return self.value("shape", f).expand(f.shape)

    def log_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """0 and log(1 + 1/shape)."""
        return f.new_zeros(()), torch.log1p(self.value("shape", f).reciprocal())

    def distribution(self, f: np.ndarray) -> Any:
        shape = self.number("shape")
        return stats.gamma(shape, scale=np.exp(f) / shape)

    def entropy(self, f: Tensor) -> Tensor:
        """f + shape − log shape + log Γ(shape) + (1 − shape) ψ(shape)."""
        shape = self.value("shape", f)
        return f + shape - shape.log() + torch.lgamma(shape) + (1.0 - shape) * torch.digamma(shape)

    def _above(self, r: Tensor) -> Tail:
        """The tail above r ≥ 0, where the density has fallen by exp(−shape (eʳ(eᵛ − 1) − v)) at r + v."""
        shape = self.value("shape", r)
        with torch.no_grad():
            depth, top = DEPTH / shape, r.exp()
            even = (2.0 * depth / top).sqrt()
            v = torch.minimum(even, torch.log1p((depth + even) / top))
            for _ in range(_STEPS):
                v = v - (top * torch.expm1(v) - v - depth) / (top * v.exp() - 1.0)

        def ratio(v: Tensor) -> tuple[Tensor, Tensor]:
            fall = shape * r.exp() * torch.expm1(v)
            return shape * v - fall, fall

        return integrated_tail(self.error(r).log_prob, ratio, v)

    def _below(self, r: Tensor) -> Tail:
        """The tail below r ≤ 0, where the density has fallen by exp(−shape (v + eʳ(e⁻ᵛ − 1))) at r − v."""
        shape = self.value("shape", r)
        with torch.no_grad():
            depth, top = DEPTH / shape, r.exp()
            v = depth + 1.0
            for _ in range(_STEPS):
                v = v - (v + top * torch.expm1(-v) - depth) / (1.0 - top * (-v).exp())

        def ratio(v: Tensor) -> tuple[Tensor, Tensor]:
            rise = -shape * r.exp() * torch.expm1(-v)
            return rise - shape * v, rise

        return integrated_tail(self.error(r).log_prob, ratio, v)


def _log_sd(y: Tensor) -> Tensor:
    """The sd of the logarithms of each output's targets, or 1."""
    logs = points(y).log()
    found = (logs - logs.mean(0)).square().mean(0).sqrt()
    return one_or_each(torch.where(found > 0, found, 1.0))


def _extreme(r: Tensor) -> Value:
    """The log density of the logarithm of a standard exponential variable."""
    return Value(r - r.exp(), -torch.expm1(r), r.exp())


def _above_extreme(r: Tensor) -> Tail:
    x = r.exp()
    return Tail(-x, x, x)


def _below_extreme(r: Tensor) -> Tail:
    """With x = eʳ, h = x/(eˣ − 1) and −dh/dr = h (h − 1 + x); for small x, h is 1 − ½x + x²/12 − x⁴/720."""
    x = r.exp()
    small = x < _SMALL
    large, little = torch.where(small, 1.0, x).clamp(max=_LARGEST), torch.where(small, x, 0.0)
    direct = large / torch.expm1(large)
    series = 1.0 - 0.5 * little + little.square() / 12.0 - little.pow(4) / 720.0
    hazard = torch.where(small, series, direct)
    rest = torch.where(small, little * (0.5 + little / 12.0 - little.pow(3) / 720.0), direct - 1.0 + large)
    log_mass = r - 0.5 * x + torch.where(small, little.square() / 24.0 - little.pow(4) / 2880.0,
                                         (torch.sinh(0.5 * large) / (0.5 * large)).log())  # fmt: skip
    log_mass = torch.where(x < 1.0, log_mass, torch.log(-torch.expm1(-torch.where(x < 1.0, 1.0, x))))
    return Tail(log_mass, hazard, hazard * rest)
