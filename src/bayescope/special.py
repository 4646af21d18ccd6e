"""log Φ and its ratios, right in both tails and differentiable to any order that inference needs.

Φ and φ are the distribution function and the density of the standard normal. The derivatives form a chain,

    d log Φ(s)/ds = v(s),    v(s) = φ(s)/Φ(s)    (the inverse Mills ratio),
    d v(s)/ds = −w(s),       w(s) = v(s) (s + v(s)),

and each link is computed without cancellation, so automatic differentiation of `log_ndtr` is as accurate as the
functions here: about 1e-14 relative for s ≤ 0; for s > 0 the errors grow like s² times the rounding of s, which is
the condition number of Φ's upper tail. Nothing is clamped. Everything is elementwise and keeps the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

# s + v(s) loses a factor s² to cancellation, the continued fraction below converges faster the larger −s is: at −7 the
# first costs 2e-14 and eighteen terms of the second 1e-16.
_CROSSOVER = -7.0
_TERMS = 18
# From here on Stirling's series is right to 1e-16.
_STIRLING = 16.0
# Sizes of a negative binomial beyond which it is nearly a Poisson.
_SMALL_SIZE = 1e3


def log_ndtr(s: Tensor) -> Tensor:
    """log Φ(s). Its derivatives under autograd are `inverse_mills` and −`inverse_mills_slope`."""
    return _smooth_log_ndtr(s)


def inverse_mills(s: Tensor) -> Tensor:
    """v(s) = φ(s)/Φ(s) = d log Φ(s)/ds; for s → −∞ it tends to −s."""
    return _smooth_inverse_mills(s)


def inverse_mills_slope(s: Tensor) -> Tensor:
    """w(s) = v(s) (s + v(s)) = −d² log Φ(s)/ds², between 0 (s → ∞) and 1 (s → −∞)."""
    return inverse_mills(s) * shifted_inverse_mills(s)


def log_rising_factorial(r: Tensor, y: Tensor) -> Tensor:
    """log Γ(r + y)/(Γ(r) r^y) for r > 0 and y ≥ 0, without cancellation for large r, where it tends to 0.

    By Stirling's series of log Γ (Abramowitz & Stegun 6.1.41) above r = 16, of which five terms are right to 1e-16.
    """
    large = r > _STIRLING
    small = torch.where(large, 1.0, r)
    direct = torch.lgamma(small + y) - torch.lgamma(small) - y * small.log()
    big = torch.where(large, r, _STIRLING)
    series = (big + y - 0.5) * torch.log1p(y / big) - y + _stirling_rest(big + y) - _stirling_rest(big)
    return torch.where(large, series, direct)


def log_poisson(log_mean: Tensor, y: Tensor) -> Tensor:
    """y log μ − μ − log y!, for large y as −y (μ/y − 1 − log μ/y) − ½ log 2πy − …, without its cancellation."""
    large = y > _STIRLING
    big, small = torch.where(large, y, _STIRLING), torch.where(large, 1.0, y)
    ratio = log_mean - big.log()
    series = -big * (torch.expm1(ratio) - ratio) - 0.5 * (2.0 * math.pi * big).log() - _stirling_rest(big)
    return torch.where(large, series, small * log_mean - log_mean.exp() - torch.lgamma(small + 1.0))


def log_gamma_density(shape: Tensor, r: Tensor) -> Tensor:
    """The log density of r = log(G/shape) for G ~ Gamma(shape, 1), without cancellation for large shapes."""
    large = shape > _STIRLING
    big, small = torch.where(large, shape, _STIRLING), torch.where(large, 1.0, shape)
    series = 0.5 * (big / (2.0 * math.pi)).log() - _stirling_rest(big)
    constant = torch.where(large, series, small * small.log() - small - torch.lgamma(small))
    return constant - shape * (torch.expm1(r) - r)


def log_negative_binomial(log_mean: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """log Γ(y + r)/(Γ(r) y!) + r log p + y log(1 − p) with p = r/(r + μ), μ > 0 and size r > 0.

    For large y and small r by Stirling's series, y (log(1 + r/y) − log(1 + r/μ)) + …, whose terms do not cancel.
    """
    excess = log_mean - r.log()
    large = (y > _STIRLING) & (r < _SMALL_SIZE)
    big, size = torch.where(large, y, _STIRLING), torch.where(large, r, 1.0)
    gap = torch.where(large, excess, 0.0)
    whole = big + size
    series = big * (torch.log1p(size / big) - softplus(-gap)) + (size - 0.5) * whole.log() - 0.5 * big.log() - size
    series = series + _stirling_rest(whole) - _stirling_rest(big) - torch.lgamma(size) - size * softplus(gap)
    direct = y * log_mean - (y + r) * softplus(excess) + log_rising_factorial(r, y) - torch.lgamma(y + 1.0)
    return torch.where(large, series, direct)


def _stirling_rest(x: Tensor) -> Tensor:
    """log Γ(x) − (x − ½) log x + x − ½ log 2π."""
    square = x.square().reciprocal()
    total = torch.zeros_like(x)
    for term in reversed((1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)):
        total = term + square * total
    return total / x


def _inverse_mills(s: Tensor) -> Tensor:
    # φ(s)/Φ(s) = √(2/π) / erfcx(−s/√2), for Φ(s) = ½ erfc(−s/√2) and erfcx(x) = exp(x²) erfc(x).
    return math.sqrt(2 / math.pi) / torch.special.erfcx(-s * math.sqrt(0.5))


def shifted_inverse_mills(s: Tensor) -> Tensor:
    """E[s − z∣z < s] = s + v(s), by Laplace's continued fraction where the sum would cancel.

    With x = −s, v = x + 1/(x + 2/(x + 3/(x + …))) (Abramowitz & Stegun 26.2.14), so s + v is the fraction itself.
    Each branch of the choice is evaluated at arguments that suit it, which keeps the gradients finite.
    """
    far = s < _CROSSOVER
    x = torch.where(far, -s, -_CROSSOVER)
    fraction = torch.zeros_like(x)
    for k in range(_TERMS, 0, -1):
        fraction = k / (x + fraction)
    near = torch.where(far, _CROSSOVER, s)
    return torch.where(far, fraction, near + inverse_mills(near))


def _log_ndtr(s: Tensor) -> Tensor:
    scaled = s * math.sqrt(0.5)
    below = (0.5 * torch.special.erfcx(-scaled)).log() - scaled.square()
    return torch.where(s < -1.0, below, torch.log1p(-0.5 * torch.erfc(scaled)))


def _with_derivative(
    function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The function with its derivative given: that of the plain formula is inaccurate, or cancels far in a tail."""

    class Smooth(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(s: Tensor) -> Tensor:
            return function(s)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * derivative(*ctx.saved_tensors)

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * derivative(*ctx.saved_tensors)

    return Smooth.apply


_smooth_inverse_mills = _with_derivative(_inverse_mills, lambda s: -inverse_mills_slope(s))
_smooth_log_ndtr = _with_derivative(_log_ndtr, inverse_mills)
