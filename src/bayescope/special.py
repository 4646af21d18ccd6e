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

# s + v(s) loses a factor s² to cancellation, the continued fraction below converges faster the larger −s is: at −7 the
# first costs 2e-14 and eighteen terms of the second 1e-16.
_CROSSOVER = -7.0
_TERMS = 18


def log_ndtr(s: Tensor) -> Tensor:
    """log Φ(s). Its derivatives under autograd are `inverse_mills` and −`inverse_mills_slope`."""
    return _smooth_log_ndtr(s)


def inverse_mills(s: Tensor) -> Tensor:
    """v(s) = φ(s)/Φ(s) = d log Φ(s)/ds; for s → −∞ it tends to −s."""
    return _smooth_inverse_mills(s)


def inverse_mills_slope(s: Tensor) -> Tensor:
    """w(s) = v(s) (s + v(s)) = −d² log Φ(s)/ds², between 0 (s → ∞) and 1 (s → −∞)."""
    return inverse_mills(s) * _shifted(s)


def _inverse_mills(s: Tensor) -> Tensor:
    # φ(s)/Φ(s) = √(2/π) / erfcx(−s/√2), for Φ(s) = ½ erfc(−s/√2) and erfcx(x) = exp(x²) erfc(x).
    return math.sqrt(2 / math.pi) / torch.special.erfcx(-s * math.sqrt(0.5))


def _shifted(s: Tensor) -> Tensor:
    """s + v(s), by Laplace's continued fraction where the sum would cancel.

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
