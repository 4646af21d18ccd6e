"""Likelihoods of counts with the log link: Poisson, negative binomial and zero-inflated Poisson."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch import Tensor
from torch.nn.functional import softplus

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.elementwise import Elementwise, ExponentialMoments, hyperparameter, one_or_each
from bayescope.likelihoods.likelihood import Domain, Moments
from bayescope.special import log_negative_binomial, log_poisson
from bayescope.storage import stored

_COUNTS = Domain("numbers", low=0.0, integer=True)
# The log mean above which a Poisson's entropy is a series.
_LARGE = 14.0
_LOG_FACTORIALS = torch.lgamma(torch.arange(1.0, 257.0, dtype=torch.float64))


@stored("poisson")
@final
@dataclass(frozen=True)
class Poisson(Elementwise):
    """p(y∣f) = Π_d μ_d^y_d exp(−μ_d)/y_d!, with the log link μ = eᶠ: counts of events (McCullagh & Nelder 1989).

    For f ~ N(m, v) the moments are exact: E[y] = exp(m + v/2), of which the variance is exp(m + v/2) +
    exp(2m + v)(eᵛ − 1). Log densities are integrated to 1e-9.
    """

    name = "poisson"
    domain = _COUNTS

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """y f − eᶠ − log y!."""
        return log_poisson(f, y.to(f))

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = y − eᶠ."""
        return y.to(f) - f.exp()

    def log_prob_and_gradient(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one eᶠ, with log y! from a table, for counts that are so small that nothing cancels."""
        if not len(y) or y.max() >= len(_LOG_FACTORIALS):
            return self.log_prob(f, y), self.gradient(f, y)
        rate, counts = f.exp(), y.to(f)
        log_prob = torch.addcmul(-_LOG_FACTORIALS.to(f)[y.long()], counts, f) - rate
        return log_prob.sum(-1), counts - rate

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² = eᶠ, whatever y is."""
        return self.fisher(f)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, eᶠ."""
        return f.exp()

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) and Var(y∣f), eᶠ both, each (..., N, D)."""
        return self._moments.conditional(f)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return self._moments.averaged(mean, variance)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In closed form: E eᶠ = exp(mean + variance/2)."""
        rate = (mean + 0.5 * variance).exp()
        return self.log_density(mean, y) + mean.exp() - rate, y - rate, rate

    def entropy(self, f: Tensor) -> Tensor:
        """By sums over y, or for large means ½ log 2πeμ − 1/(12 μ) − 1/(24 μ²), which is then right to 1e-18."""
        series = 0.5 * (1.0 + math.log(2.0 * math.pi) + f) - (-f).exp() / 12.0 - (-2.0 * f).exp() / 24.0
        return torch.where(f > _LARGE, series, super().entropy(f.clamp(max=_LARGE)))

    def distribution(self, f: np.ndarray) -> Any:
        return stats.poisson(np.exp(f))

    def place(self, y: Tensor) -> Tensor:
        return y.clamp_min(0.5).log()

    @property
    def _moments(self) -> ExponentialMoments:
        return ExponentialMoments(1.0, ((1.0, 1.0),))


@stored("negative_binomial")
@final
@dataclass(frozen=True, eq=False)
class NegativeBinomial(Elementwise):
    """Counts with more variance than a Poisson's: E(y∣f) = μ = eᶠ and Var(y∣f) = μ + dispersion · μ².

    It is a Poisson whose mean is μ times a Gamma variable of mean 1 and variance ``dispersion`` (NB2; Cameron & Trivedi
    2013, section 3.3). With r = 1/dispersion, p(y∣f) = Γ(y + r)/(Γ(r) y!) (r/(r + μ))^r (μ/(r + μ))^y.

    Args:
        dispersion: a positive number, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if the dispersion is not positive.
        OptionError: if it is another word than "evidence".
    """

    dispersion: Tensor | str = "evidence"

    name = "negative_binomial"
    domain = _COUNTS
    hyperparameters: ClassVar[Mapping[str, str]] = {"dispersion": "positive"}

    def __init__(self, dispersion: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "dispersion", hyperparameter("dispersion", dispersion))

    def starting(self, y: Tensor) -> NegativeBinomial:
        """The dispersion with which a constant mean has the variance of the targets, at least .01, for each output."""
        if not self.learnable:
            return self
        mean, variance = y.mean(0), y.var(0, correction=0)
        each = ((variance - mean) / mean.square().clamp_min(1e-12)).clamp(0.01, 100.0)
        return NegativeBinomial(one_or_each(each))

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """y f − (y + r) log(1 + μ/r) + log Γ(y + r)/(Γ(r) r^y) − log y!."""
        y, r = y.to(f), self._size(f)
        return log_negative_binomial(f, r, y)

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = y σ(−s) − r σ(s), with s = f − log r."""
        r = self._size(f)
        log_odds = f - r.log()
        return y.to(f) * torch.sigmoid(-log_odds) - r * torch.sigmoid(log_odds)

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² = (y + r) σ(s) σ(−s), with s = f − log r."""
        r = self._size(f)
        log_odds = f - r.log()
        return (y.to(f) + r) * torch.sigmoid(log_odds) * torch.sigmoid(-log_odds)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, μ r/(r + μ)."""
        r = self._size(f)
        return r * torch.sigmoid(f - r.log())

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = μ and Var(y∣f) = μ + dispersion · μ², each (..., N, D)."""
        return self._moments(f).conditional(f)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return self._moments(mean).averaged(mean, variance)

    def distribution(self, f: np.ndarray) -> Any:
        r = self._size(torch.zeros((), dtype=torch.float64)).numpy()
        return stats.nbinom(r, 1.0 / (1.0 + np.exp(f) / r))

    def place(self, y: Tensor) -> Tensor:
        return y.clamp_min(0.5).log()

    def _size(self, f: Tensor) -> Tensor:
        return self.value("dispersion", f).reciprocal()

    def _moments(self, f: Tensor) -> ExponentialMoments:
        return ExponentialMoments(1.0, ((1.0, 1.0), (self.value("dispersion", f), 2.0)))


@stored("zero_inflated_poisson")
@final
@dataclass(frozen=True, eq=False)
class ZeroInflatedPoisson(Elementwise):
    """Counts of which a share is 0 whatever f is: p(0∣f) = π + (1 − π) exp(−μ), else (1 − π) Poisson(y; μ), μ = eᶠ.

    Lambert (1992), with one π = ``zero_probability`` for all rows. E(y∣f) = (1 − π) μ, Var(y∣f) = (1 − π) μ (1 + π μ).
    The observed Λ may be negative at y = 0, so the GGN takes the expected one. Moments under a Gaussian f are exact,
    log densities are integrated to 1e-9.

    Args:
        zero_probability: π between 0 and 1, shape (D,) for one for each output, or "evidence" if it is to be learnt.

    Raises:
        InputError: if it is not between 0 and 1.
        OptionError: if it is another word than "evidence".
    """

    zero_probability: Tensor | str = "evidence"

    name = "zero_inflated_poisson"
    domain = _COUNTS
    log_concave = False
    hyperparameters: ClassVar[Mapping[str, str]] = {"zero_probability": "unit_interval"}

    def __init__(self, zero_probability: ArrayLike | Literal["evidence"] = "evidence") -> None:
        object.__setattr__(self, "zero_probability", hyperparameter("zero_probability", zero_probability, _probability))

    def starting(self, y: Tensor) -> ZeroInflatedPoisson:
        """Each output's share of zeros beyond a Poisson's with the mean of the other counts, between .01 and .99."""
        if not self.learnable:
            return self
        zeros, counts = (y == 0).to(y).mean(0), y.sum(0) / (y > 0).sum(0).clamp_min(1)
        few = (-counts).exp()
        beyond = (zeros - few) / torch.where(counts > 0, 1.0 - few, 1.0)
        return ZeroInflatedPoisson(one_or_each(beyond.clamp(0.01, 0.99)))

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        y, pi = y.to(f), self.value("zero_probability", f)
        counted = torch.log1p(-pi) + log_poisson(f, y)
        return torch.where(y == 0, pi.log() + softplus(self._log_odds(f)), counted)

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = y − μ, or −μ w at 0, w being the probability that a 0 is the Poisson's."""
        return torch.where(y == 0, -f.exp() * self._counted(f), y.to(f) - f.exp())

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² = μ, or μ w (1 − μ (1 − w)) at 0."""
        mean, w = f.exp(), self._counted(f)
        rest = torch.sigmoid(-self._log_odds(f))
        return torch.where(y == 0, mean * w * (1.0 - mean * rest), mean)

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, (1 − π) μ (1 − μ e⁻ᵘ (1 − w)), u = μ."""
        mean = f.exp()
        rest = torch.sigmoid(-self._log_odds(f))
        return (1.0 - self.value("zero_probability", f)) * mean * (1.0 - mean * (-mean).exp() * rest)

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = (1 − π) μ and Var(y∣f) = (1 − π) μ (1 + π μ), each (..., N, D)."""
        return self._moments(f).conditional(f)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return self._moments(mean).averaged(mean, variance)

    def distribution(self, f: np.ndarray) -> Any:
        return _Inflated(stats.poisson(np.exp(f)), self.number("zero_probability"))

    def quantile(self, f: Tensor, level: float | Tensor) -> Tensor:
        """0 for a level up to π, and beyond it the Poisson's quantile at (level − π)/(1 − π)."""
        levels = torch.as_tensor(level, dtype=torch.float64, device=f.device)
        pi = self.value("zero_probability", levels)
        counted = Poisson().quantile(f, ((levels - pi) / (1.0 - pi)).clamp_min(2.0**-54).expand_as(f))
        return torch.where(levels <= pi, 0.0, counted)

    def entropy(self, f: Tensor) -> Tensor:
        """From that of the Poisson: −p₀ log p₀ − (1 − π)(1 − e⁻ᵘ) log(1 − π) + (1 − π)(H − μ e⁻ᵘ), u = μ, p₀ = P(0)."""
        pi, mean = self.value("zero_probability", f), f.exp()
        none = (-mean).exp()
        log_zero = pi.log() + softplus(self._log_odds(f))
        counted = (1.0 - pi) * (Poisson().entropy(f) - (f - mean).exp() - (1.0 - none) * torch.log1p(-pi))
        return counted - log_zero.exp() * log_zero

    def place(self, y: Tensor) -> Tensor:
        return y.clamp_min(0.5).log()

    def constant(self, y: Tensor) -> Tensor:
        """log(ȳ/(1 − π))."""
        pi = self.starting(y).value("zero_probability", y)
        return (y.mean(0).clamp_min(0.5 / len(y)) / (1.0 - pi)).log()

    def _log_odds(self, f: Tensor) -> Tensor:
        """The log odds that a 0 comes from the Poisson part."""
        pi = self.value("zero_probability", f)
        return torch.log1p(-pi) - pi.log() - f.exp()

    def _counted(self, f: Tensor) -> Tensor:
        return torch.sigmoid(self._log_odds(f))

    def _moments(self, f: Tensor) -> ExponentialMoments:
        pi = self.value("zero_probability", f)
        return ExponentialMoments(1.0 - pi, ((1.0 - pi, 1.0), (pi * (1.0 - pi), 2.0)))


@final
@dataclass(frozen=True)
class _Inflated:
    """The distribution function of counts that are 0 with the probability π, and else of a distribution of scipy."""

    counts: Any
    pi: np.ndarray

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return np.where(y >= 0, self.pi + (1.0 - self.pi) * self.counts.cdf(y), 0.0)


def _probability(name: str, value: Any) -> Tensor:
    """Numbers strictly between 0 and 1.

    Raises:
        InputError: if one is not.
    """
    found = checks.positive(name, value)
    if (found >= 1).any():
        raise InputError(f"{name}: expected a probability below 1, got {float(found.max()):g}.")
    return found
