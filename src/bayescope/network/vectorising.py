"""Many passes or cotangents at once: vectorised where torch can, one after another where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

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


def _mish(input: Tensor, inplace: bool = False) -> Tensor:
    x = input.clone() if inplace else input
    y = x * F.softplus(x).tanh()
    return input.copy_(y) if inplace else y


def _rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    if training:
        return F.rrelu(input, lower, upper, True, inplace)
    return F.leaky_relu(input, (lower + upper) / 2, inplace)


# The function as a TorchFunctionMode sees it, and what to call in its place with the same arguments: the values are the
# same, and the backward pass takes K cotangents in one go under ``torch.func.vmap``.
POINTWISE: dict[Function, Function] = {
    F.mish: _mish,
    F.rrelu: _rrelu,
}
