"""Functions without weights whose backward pass torch does slowly, or one at a time, for many cotangents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayescope.errors import UnsupportedError

Function = Callable[..., Any]


def _refuse_second_derivatives() -> None:
    """φ′(x) is held as a number, so that its own derivative would be missing from a second one without a word."""
    if torch.is_grad_enabled():
        raise UnsupportedError("create_graph: expected False, got True. A reading gives first derivatives alone.")


class _Elementwise(torch.autograd.Function):
    """y = φ(x) entry by entry; the backward pass is g φ′(x), with φ′(x) worked out once for all cotangents."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], inplace: bool) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = function(leaf)
            (derivative,) = torch.autograd.grad(y, leaf, y.new_ones(()).expand_as(y))
        ctx.save_for_backward(derivative)
        if not inplace:
            return y.detach()
        ctx.mark_dirty(x)
        return x.copy_(y.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        _refuse_second_derivatives()
        (derivative,) = ctx.saved_tensors
        return gradient * derivative, None, None


def _elementwise(function: Function, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not x.requires_grad:
        return function(x, *args, **kwargs)
    inplace = False
    if inspect.isfunction(function) and "inplace" in inspect.signature(function).parameters:
        bound = inspect.signature(function).bind(x, *args, **kwargs)
        inplace = bool(bound.arguments.pop("inplace", False))
        bound.arguments.pop("input")
        args, kwargs = (), dict(bound.arguments)
    return _Elementwise.apply(x, lambda leaf: function(leaf, *args, **kwargs), inplace)


class _Scatter(torch.autograd.Function):
    """Adds the entries of g to those of zeros(shape) that the indices name; K cotangents share the indices."""

    @staticmethod
    def forward(gradient: Tensor, indices: Tensor, shape: Sequence[int]) -> Tensor:
        return gradient.new_zeros(shape).scatter_add_(-1, indices, gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, indices: Tensor, shape: Sequence[int]) -> tuple[Tensor, int]:
        gradient = gradient.movedim(in_dims[0], 0)
        count = info.batch_size
        return _Scatter.forward(gradient, indices.expand(count, *indices.shape), (count, *shape)), 0


class _MaxPool(torch.autograd.Function):
    """Max pooling whose winners are known: the backward pass hands each cotangent to its winner."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pooled: Tensor, winners: Tensor, spatial: int) -> Tensor:
        ctx.save_for_backward(winners.flatten(-spatial))
        ctx.shape, ctx.spatial = x.shape, spatial
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        _refuse_second_derivatives()
        (winners,) = ctx.saved_tensors
        flat = (*ctx.shape[: -ctx.spatial], ctx.shape[-ctx.spatial :].numel())
        spread = _Scatter.apply(gradient.flatten(-ctx.spatial), winners, flat)
        return spread.unflatten(-1, ctx.shape[-ctx.spatial :]), None, None, None


def _max_pool(spatial: int, with_winners: Function, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("return_indices", None)  # torch calls this function where they are not asked for
    pooled, winners = with_winners(x.detach(), *args, **kwargs)
    return _MaxPool.apply(x, pooled, winners, spatial) if x.requires_grad else pooled


_ELEMENTWISE: tuple[Function, ...] = (
    F.celu, F.elu, F.gelu, F.hardswish, F.leaky_relu, F.logsigmoid, F.mish, F.rrelu, F.selu, F.silu, F.softplus
)  # fmt: skip

# The function as a TorchFunctionMode sees it, and what to call in its place with the same arguments: the values are the
# same, and the backward pass takes K cotangents in one go under ``torch.func.vmap``.
POINTWISE: dict[Function, Function] = {
    **{function: partial(_elementwise, function) for function in _ELEMENTWISE},
    F.max_pool1d: partial(_max_pool, 1, F.max_pool1d_with_indices),
    F.max_pool2d: partial(_max_pool, 2, F.max_pool2d_with_indices),
    F.max_pool3d: partial(_max_pool, 3, F.max_pool3d_with_indices),
}
