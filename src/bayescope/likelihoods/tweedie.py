"""Amounts that are often exactly 0: a Poisson number of Gamma amounts, the Tweedie family with powers from 1 to 2."""

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

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.elementwise import Elementwise, ExponentialMoments, hyperparameter
from bayescope.likelihoods.likelihood import Domain, Moments
from bayescope.likelihoods.numbers import quantile_of_numbers
from bayescope.special import log_gamma_density, log_poisson
from bayescope.storage import stored

# Terms of a sum over the number of amounts are followed down to exp(−_DEPTH) of the largest; beyond _TERMS of them, or
# _FINE standard deviations of the narrowest factor apart, the sum is a trapezoidal rule.
_DEPTH, _TERMS, _FINE = 42.0, 128, 0.5
# The width of the numbers of a Poisson down to that depth, in standard deviations.
_RANGE = 18.4
_BLOCK = 512
# Below this dispersion in the unit of y, where more than _SMOOTH² amounts differ, the asymptotic series is right to
# 1e-11.
_SMALL, _SMOOTH = 1e-3, 2.0
# Means of so many amounts are normal.
_MANY = 1e12
# Steps of a search for bounds of a quantile, after which exp(1.5^steps) is infinite, and the least positive number.
_STRIDES, _TINY = 17, 1e-300
# Nodes of an interpolation between entropies; of fewer f there is none.
_INTERPOLATED = 129


@stored("tweedie")
@final
@dataclass(frozen=True, eq=False)
class Tweedie(Elementwise):
    """Amounts of at least 0, of which many are exactly 0: E(y∣f) = μ = eᶠ and Var(y∣f) = dispersion · μ^power.

    y is the sum of N Gamma variables, such as the claims of a year: N ~ Poisson(λ), λ = μ^(2−p)/(φ(2 − p)), and each
    has the shape α = (2 − p)/(p − 1) and the scale φ(p − 1) μ^(p−1), with p the power and φ the dispersion (Jørgensen
    1997, chapter 4). So P(y = 0∣f) = exp(−λ), and for y > 0 there is a density:

        log p(y∣f) = (y μ^(1−p)/(1 − p) − μ^(2−p)/(2 − p))/φ + log a(y; φ, p).

    `log_prob` is the log probability of a 0 and the log density of other numbers, the entropy −P₀ log P₀ − ∫ p log p:
    both refer to the unit of y. a is the series of Dunn & Smyth (2005), right to 1e-10. Moments under a Gaussian f are
    exact, log densities are integrated to 1e-9.

    Args:
        power: p, strictly between 1 (a Poisson) and 2 (a Gamma), or "evidence" if it is to be learnt, between 1.01 and
            1.99. Shape (D,) for one for each output.
        dispersion: φ, a positive number, shape (D,) for one for each output, or "evidence".

    Raises:
        InputError: if the power is not between 1 and 2, or the dispersion is not positive.
        OptionError: if one is another word than "evidence".
    """

    power: Tensor | str = "evidence"
    dispersion: Tensor | str = "evidence"

    name = "tweedie"
    domain = Domain("numbers", low=0.0, atom=True)
    hyperparameters: ClassVar[Mapping[str, str]] = {"power": "between_1_and_2", "dispersion": "positive"}

    def __init__(
        self,
        power: ArrayLike | Literal["evidence"] = "evidence",
        dispersion: ArrayLike | Literal["evidence"] = "evidence",
    ) -> None:
        object.__setattr__(self, "power", hyperparameter("power", power, _between))
        object.__setattr__(self, "dispersion", hyperparameter("dispersion", dispersion))

    def starting(self, y: Tensor) -> Tweedie:
        """The power 1.5, and for each output the dispersion with which a constant mean has the variance of y.

        Raises:
            InputError: if all amounts of an output are 0.
        """
        if not self.learnable:
            return self
        empty = torch.nonzero((y == 0).all(0))
        if len(empty):
            raise InputError(
                f"y: expected amounts of which one is not 0, got 0 in all rows of column {int(empty[0])}, from which "
                f"no {' and no '.join(self.learnable)} can be learnt. Leave the column out, or give them as numbers."
            )
        mean, columns = y.mean(0).clamp_min(_TINY), y.shape[-1]
        relative = (y.var(0, correction=0) / mean.square()).clamp(1e-4, 1e4)
        power = self.power if isinstance(self.power, Tensor) else torch.full_like(mean, 1.5)
        dispersion = self.dispersion if isinstance(self.dispersion, Tensor) else relative * mean ** (2.0 - power)
        return Tweedie(*(each[0] if each.shape == (1,) and columns == 1 else each for each in (power, dispersion)))

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """−λ at 0, else −d/(2φ) + log p(y∣log y), with the unit deviance d of y and μ."""
        p, phi = self._constants(f)
        above = y > 0
        log_y = torch.where(above, y, 1.0).log()
        r = f - log_y.to(f)
        deviance = torch.expm1((1.0 - p) * r) / (p - 1.0) + torch.expm1((2.0 - p) * r) / (2.0 - p)
        unit = ((2.0 - p) * log_y.to(f)).exp() / phi
        at_zero = -((2.0 - p) * f).exp() / ((2.0 - p) * phi)
        return torch.where(above, self._at_mean(log_y).to(f) - unit * deviance, at_zero)

    def slope(self, f: Tensor, y: Tensor) -> Tensor:
        """∂ log p/∂f = (y μ^(1−p) − μ^(2−p))/φ."""
        p, phi = self._constants(f)
        return (y.to(f) * ((1.0 - p) * f).exp() - ((2.0 - p) * f).exp()) / phi

    def bend(self, f: Tensor, y: Tensor) -> Tensor:
        """−∂² log p/∂f² = ((p − 1) y μ^(1−p) + (2 − p) μ^(2−p))/φ > 0."""
        p, phi = self._constants(f)
        return ((p - 1.0) * y.to(f) * ((1.0 - p) * f).exp() + (2.0 - p) * ((2.0 - p) * f).exp()) / phi

    def fisher(self, f: Tensor) -> Tensor:
        """The Fisher information of f, μ^(2−p)/φ."""
        p, phi = self._constants(f)
        return ((2.0 - p) * f).exp() / phi

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In closed form, by E exp(k f) = exp(k mean + ½ k² variance)."""
        p, phi = self._constants(mean)

        def gain(k: Tensor) -> Tensor:
            return (k * mean).exp() * torch.expm1(0.5 * k.square() * variance) / phi

        claims, rate = y * gain(1.0 - p), gain(2.0 - p)
        return (
            self.log_density(mean, y) - claims / (p - 1.0) - rate / (2.0 - p),
            self.slope(mean, y) + claims - rate,
            self.bend(mean, y) + (p - 1.0) * claims + (2.0 - p) * rate,
        )

    def conditional(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E(y∣f) = μ and Var(y∣f) = φ μ^p, each (..., N, D)."""
        return self._moments(f).conditional(f)

    def averaged(self, mean: Tensor, variance: Tensor) -> Moments:
        return self._moments(mean).averaged(mean, variance)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draws a Poisson number of amounts and their sum, each by inversion."""
        levels = torch.rand((2, *f.shape), dtype=torch.float64, device=generator.device, generator=generator)
        return self._sums(f).drawn(levels.clamp_min(2.0**-54).cpu()).to(f.device)

    def entropy(self, f: Tensor) -> Tensor:
        """−P₀ log P₀ − ∫ p log p dy over y > 0, by quadrature; of many f by interpolation between 129 of them."""
        if f[..., 0].numel() <= _INTERPOLATED:
            return super().entropy(f)
        middle, half = 0.5 * (f.max() + f.min()), 0.5 * (f.max() - f.min()).clamp_min(_TINY)
        angles = torch.pi * torch.arange(_INTERPOLATED, dtype=f.dtype, device=f.device) / (_INTERPOLATED - 1)
        at = middle + half * angles.cos()
        values = super().entropy(at[:, None].expand(-1, f.shape[-1]))
        signs = torch.where(torch.arange(_INTERPOLATED, device=f.device) % 2 == 0, 1.0, -1.0).to(f)
        signs[[0, -1]] *= 0.5
        gaps = f[..., None] - at  # Berrut & Trefethen (2004), equation 5.4
        inverse = signs / torch.where(gaps == 0, _TINY, gaps)
        return torch.einsum("...ds,sd->...d", inverse, values) / inverse.sum(-1)

    def distribution(self, f: np.ndarray) -> Any:
        return self._sums(torch.from_numpy(np.asarray(f, dtype=np.float64)))

    def place(self, y: Tensor) -> Tensor:
        """log y, or the f with λ = ½."""
        p, phi = self._constants(y)
        return torch.where(y > 0, y.clamp_min(_TINY).log(), (0.5 * (2.0 - p) * phi).log() / (2.0 - p))

    def constant(self, y: Tensor) -> Tensor:
        """log ȳ."""
        return y.mean(0).clamp_min(_TINY).log()

    def _constants(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.value("power", f), self.value("dispersion", f)

    def _moments(self, f: Tensor) -> ExponentialMoments:
        p, phi = self._constants(f)
        return ExponentialMoments(1.0, ((phi, p),))

    def _sums(self, f: Tensor) -> _Sums:
        at = f.detach().to("cpu", torch.float64)
        p, phi = self._constants(at)
        log_rate = (2.0 - p) * at - (phi * (2.0 - p)).log()
        scale = phi * (p - 1.0) * ((p - 1.0) * at).exp()
        return _Sums(log_rate, ((2.0 - p) / (p - 1.0)).expand(at.shape), scale)

    def _at_mean(self, log_y: Tensor) -> Tensor:
        """log p(y∣log y): with the dispersion ξ = φ y^(p−2) in the unit of y it is a function of ξ, less log y."""
        p, phi = self._constants(log_y)
        log_xi = phi.log() - (2.0 - p) * log_y
        shape = (2.0 - p) / (p - 1.0)
        log_rate = -log_xi - (2.0 - p).log()
        with torch.no_grad():
            few = (log_xi > math.log(_SMALL)) | (log_rate + (p - 1.0).log() < 2.0 * math.log(_SMOOTH))
        xi = torch.where(few, 0.0, log_xi).exp()
        curve = 1.0 + 0.5 * (p - 1.0) * (2.0 - p) * xi
        found = -0.5 * (math.log(2.0 * math.pi) + log_xi) - p * (3.0 - p) / 24.0 * xi * curve
        if few.any():
            rows = (log_rate[few], shape.expand(few.shape)[few])
            found = found.index_put((few,), _series(*rows))
        return found - log_y


@final
@dataclass(frozen=True)
class _Sums:
    """Sums of a Poisson number of Gamma variables with the mean exp(log_rate) of the number, a shape and a scale."""

    log_rate: Tensor
    shape: Tensor
    scale: Tensor

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation."""
        rate, each = self.log_rate.exp(), self.shape * self.scale
        return rate * each, each * (rate * (1.0 + 1.0 / self.shape)).sqrt()

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """P₀ + Σ_j Poisson(j) P(jα, y/scale)."""
        found: np.ndarray = self.below(torch.from_numpy(np.asarray(y, dtype=np.float64))).numpy()
        return found

    def below(self, y: Tensor) -> Tensor:
        """The same of tensors."""
        parts = torch.broadcast_tensors(self.log_rate, self.shape, self.scale, y)
        log_rate, shape, scale, y = (part.reshape(-1) for part in parts)
        order = log_rate.argsort()
        found = torch.zeros_like(y)
        for some in order.split(_BLOCK):
            found[some] = _below(log_rate[some], shape[some], y[some] / scale[some])
        mean, sd = self.moments
        normal = torch.special.ndtr((parts[3] - mean) / sd)
        found = torch.where(parts[0] > math.log(_MANY), normal, found.reshape(parts[3].shape))
        return torch.where(parts[3] < 0, 0.0, found)

    def ppf(self, level: np.ndarray) -> np.ndarray:
        """0 up to the probability of 0, else a search by `cdf` between Chernoff's bounds."""
        wanted = torch.as_tensor(level, dtype=torch.float64).expand(self.log_rate.shape)
        mean = self.moments[0]
        low = mean * self._bound(wanted, -1.0)
        high = mean * self._bound(1.0 - wanted, 1.0)
        finite = high.isfinite()
        found = quantile_of_numbers(self.below, low, torch.where(finite, high, low), wanted, integer=False)
        atom = (-self.log_rate.exp()).exp() >= wanted
        result: np.ndarray = torch.where(atom, 0.0, torch.where(finite, found, high)).numpy()
        return result

    def _bound(self, tail: Tensor, side: float) -> Tensor:
        """A ratio y/μ beyond which, above or below 1, there is at most a probability.

        P(Y ≥ y) and P(Y ≤ y) are at most exp(−d/2φ), with the unit deviance d of y and μ; with r = log(y/μ), d/2φ is
        λ (α eʳ + 1 − (1 + α) exp(α r/(1 + α))).
        """
        a, wanted = self.shape, -tail.clamp_min(_TINY).log() / self.log_rate.exp()
        r = side * (2.0 * wanted * (1.0 + a) / a).sqrt().clamp(max=1.0)
        for _ in range(_STRIDES):
            r = torch.where(a * torch.expm1(r) - (1.0 + a) * torch.expm1(a / (1.0 + a) * r) < wanted, 1.5 * r, r)
        return r.exp()

    def drawn(self, levels: Tensor) -> Tensor:
        """Their sums where the number and the total are at two levels, (2, ...)."""
        number, level = levels.numpy()
        count = stats.poisson.ppf(number, self.log_rate.exp().clamp(max=_MANY).numpy())
        total = special.gammaincinv(np.maximum(count, 1.0) * self.shape.numpy(), level) * self.scale.numpy()
        mean, sd = self.moments
        normal = (mean + sd * torch.special.ndtri(levels[1])).clamp_min(0.0)
        return torch.where(self.log_rate > math.log(_MANY), normal, torch.from_numpy(np.where(count > 0, total, 0.0)))


def _series(log_rate: Tensor, shape: Tensor) -> Tensor:
    """log Σ_j Poisson(j; λ) p_j(1) over j ≥ 1, p_j the Gamma density of shape jα and scale 1/(λα), (K,)."""
    order = log_rate.detach().argsort()
    parts = [_block_of_series(log_rate[some], shape[some]) for some in order.split(_BLOCK)]
    return torch.cat(parts)[order.argsort()]


def _block_of_series(log_rate: Tensor, shape: Tensor) -> Tensor:
    with torch.no_grad():
        j, step = _numbers(log_rate, _DEPTH / (1.0 + shape), _TERMS)
    terms = log_poisson(log_rate, j) + log_gamma_density(j * shape, log_rate - j.log())
    return terms.logsumexp(0) + step.log()


def _below(log_rate: Tensor, shape: Tensor, x: Tensor) -> Tensor:
    """P(sum ≤ x) for scale 1, (K,)."""
    widest = float(shape.amax().clamp_min(1.0).sqrt())
    j, step = _numbers(log_rate, torch.full_like(shape, _DEPTH), max(_TERMS, int(_RANGE / _FINE * widest)))
    terms = log_poisson(log_rate, j).exp() * torch.special.gammainc(j * shape, x.expand_as(j))
    return ((-log_rate.exp()).exp() + step * terms.sum(0)).clamp(max=1.0)


def _numbers(log_rate: Tensor, depth: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The numbers j ≥ 1 with λ − j + j log(j/λ) ≤ depth, (S, K), and their distance: 1, or more of more than ``most``.

    Bounded by Bernstein's inequality, and by that of Gauss below λ.
    """
    rate = log_rate.exp()
    low = (rate - (2.0 * depth * rate).sqrt()).floor().clamp_min(1.0)
    high = (rate + depth / 3.0 + (depth.square() / 9.0 + 2.0 * depth * rate).sqrt()).ceil()
    size = min(most, int((high - low).amax()) + 1)
    step = ((high - low) / max(1, size - 1)).clamp_min(1.0)
    return low + step * torch.arange(size, dtype=rate.dtype, device=rate.device)[:, None], step


def _between(name: str, value: Any) -> Tensor:
    """Numbers strictly between 1 and 2.

    Raises:
        InputError: if one is not.
    """
    found = checks.positive(name, value)
    wrong = (found <= 1) | (found >= 2)
    if wrong.any():
        got = float(found[wrong].reshape(-1)[0])
        raise InputError(
            f"{name}: expected numbers strictly between 1 and 2, got {got:g}. Take 'poisson' for 1 and 'gamma' for 2."
        )
    return found
