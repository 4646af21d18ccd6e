"""Many passes or cotangents at once: vectorised where torch can, one after another where it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

from bayescope.errors import UnsupportedError
from bayescope.network.interception import Function
from bayescope.process_state import ignoring

# An operation without a batching rule is looped over, exactly, and the caller cannot change that. The first
# forward-mode derivative of a process has torch compile rules of its own by what it has since deprecated.
_IGNORED = (
    ignoring("There is a performance drop", UserWarning),
    ignoring(".*torch.jit.script.* is deprecated", DeprecationWarning),
)


@contextmanager
def vectorising() -> Iterator[None]:
    """Around ``torch.func.vmap``: our callers do not see its warnings about itself."""
    with _IGNORED[0].inside(), _IGNORED[1].inside():
        yield


def mapped(function: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """What a function returns for each entry of a leading axis: together, or one by one where torch cannot."""
    try:
        with vectorising():
            return torch.func.vmap(function)(*stacked)
    except (RuntimeError, ValueError):  # a loop over values, an operation that vmap does not know
        return torch.stack([function(*each) for each in zip(*stacked, strict=True)])


def pull_back(
    outputs: Tensor | GradientEdge, edges: Sequence[Tensor | GradientEdge], seeds: Tensor
) -> list[Tensor | None]:
    """The gradients of Σ s_k · f at points of the graph, for K cotangents s_k that travel together.

    ``torch.func.vmap`` around one backward pass, and not ``is_grads_batched=True``: the latter's older batching rules
    loop over the cotangents for tanh, layer norm, softmax, convolutions and most else, at twice the time. A backward
    pass that takes one cotangent at a time runs once for each.

    Args:
        outputs: f of any shape, with a graph, or the node behind it; the graph is kept.
        edges: the points: tensors of the graph, or their gradient edges.
        seeds: the cotangents, shape (K, *f.shape).

    Returns:
        Per point a tensor of shape (K, *shape of the point), or ``None`` where f does not depend on it.
    """
    points: Any = list(edges)
    of: Any = [outputs]
    reached: list[bool] = []

    def one(seed: Tensor) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(of, points, [seed], retain_graph=True, allow_unused=True)
        reached[:] = [gradient is not None for gradient in gradients]
        return tuple(dense(gradient) for gradient in gradients if gradient is not None)

    if len(seeds) != 1:
        try:
            with vectorising():
                found = iter(torch.func.vmap(one)(seeds))
            return [next(found) if hit else None for hit in reached]
        except RuntimeError:  # a backward pass that takes one cotangent at a time, or too little memory for all
            pass
    each = zip(*map(one, seeds), strict=True)
    found = iter([torch.stack(of_one) for of_one in each])
    return [next(found) if hit else None for hit in reached]


def dense(gradient: Tensor) -> Tensor:
    """A gradient with all its zeros: that of an embedding may come without them."""
    return gradient.to_dense() if gradient.is_sparse else gradient


# Functions without weights whose backward pass torch does slowly, or one at a time, for many cotangents.


def _refuse_second_derivatives() -> None:
    """φ′(x) is held as a number, so that its own derivative would be missing from a second one without a word."""
    if torch.is_grad_enabled():
        raise UnsupportedError("create_graph: expected False, got True. A reading gives first derivatives alone.")


class _EntryByEntry(torch.autograd.Function):
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
    return _EntryByEntry.apply(x, lambda leaf: function(leaf, *args, **kwargs), inplace)


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
