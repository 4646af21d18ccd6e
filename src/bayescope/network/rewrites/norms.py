"""Normalisation layers, scales and gates: a part without weights, then a product and a sum entry by entry.

Derivatives of any order take many vectors at once, which those of the fused layers do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) / √(variance + ε) over the last dimensions, then ⊙ w + b."""
    return _affine(_normalised(input, len(normalized_shape), eps), weight, bias)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + ε) over the last dimensions, then ⊙ w."""
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _affine(_Normalised.apply(input, len(normalized_shape), eps, False), weight, None)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalised within each row's groups of channels, then ⊙ w + b by channel."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    return _channelwise(_normalised(groups, 1, eps).reshape(input.shape), weight, bias)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Any:
    """A fixed affine map by channel. Not implemented with the batch's own statistics: rows are mixed then."""
    if training or running_mean is None or running_var is None:
        return NotImplemented
    return _channelwise(_standardised(input, running_mean, running_var, eps), weight, bias)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    """Normalised within each row's channels, or by running statistics, then ⊙ w + b by channel."""
    if use_input_stats or running_mean is None or running_var is None:
        normalised = _normalised(input, input.ndim - 2, eps)
    else:
        normalised = _standardised(input, running_mean, running_var, eps)
    return _channelwise(normalised, weight, bias)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, w x elsewhere (also at 0, as torch takes the derivative there)."""
    positive = input > 0
    zero = input.new_zeros(())
    negative = torch.where(positive, zero, input)
    scaled = negative * weight if weight.numel() == 1 or input.ndim < 2 else _channelwise(negative, weight, None)
    return torch.where(positive, input, zero) + scaled


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W_o x₂ + b_o, which is linear in x₁ ⊗ x₂."""
    products = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    return F.linear(products, weight.flatten(1), bias)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channelwise(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Channels go last for the product, so that the weights take part as they are."""
    return x if weight is None and bias is None else _affine(x.movedim(1, -1), weight, bias).movedim(-1, 1)


class _Normalised(torch.autograd.Function):
    """x̂ = (x − m) r over the last axes, r = (mean of (x − m)² + ε)^−½, with m the mean or 0.

    ∂L/∂x = r (g − [mean of g] − x̂ · mean of g x̂), the bracket where m is the mean. What does not depend on g is worked
    out anew from x: once for all cotangents, and with a graph where a second derivative is asked for.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: int, eps: float, centre: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = tuple(range(-axes, 0)), eps, centre
        return _standard(x, *ctx.options)[0].to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        axes, _, centre = ctx.options
        standard, scale = _standard(x, *ctx.options)
        along = (g * standard).mean(axes, keepdim=True)
        rest = g - g.mean(axes, keepdim=True) if centre else g
        return (torch.addcmul(rest, standard, along, value=-1) * scale).to(x.dtype), None, None, None


def _standard(x: Tensor, axes: tuple[int, ...], eps: float, centre: bool) -> tuple[Tensor, Tensor]:
    """x̂ and r, in float32 at least, as the fused layers compute inside."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x - x.mean(axes, keepdim=True) if centre else x
    scale = (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return x * scale, scale


def _normalised(x: Tensor, axes: int, eps: float) -> Tensor:
    return _Normalised.apply(x, axes, eps, True)


def _standardised(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return ((x.movedim(1, -1) - mean) * (variance + eps).rsqrt()).movedim(-1, 1).to(x.dtype)


class _WeightNorm(torch.autograd.Function):
    """W = g v/‖v‖ by rows, v of shape (G, D), g of (G, 1): ∂L/∂g = u·v̂ and ∂L/∂v = (g/‖v‖) (u − (u·v̂) v̂) for u = ∂L/∂W.

    Torch's own backward pass writes about twice as many tensors of the size of u, and its derivative is wrong.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(v, g)
        return v * (g / torch.linalg.vector_norm(v, dim=1, keepdim=True))

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor]:
        v, g = ctx.saved_tensors
        norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        unit = v / norm
        along = torch.linalg.vecdot(u, unit)[:, None]
        return torch.addcmul(u, unit, along, value=-1) * (g / norm), along


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """W = g v/‖v‖, the norm over all axes but one, or over all of them where it is −1."""
    moved = v[None] if dim == -1 else v.movedim(dim, 0)
    w = _WeightNorm.apply(moved.flatten(1), g.reshape(-1, 1)).reshape(moved.shape)
    return w[0] if dim == -1 else w.movedim(0, dim)
