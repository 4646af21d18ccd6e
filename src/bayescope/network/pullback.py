"""Gradients of one forward pass for many cotangents at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from bayescope.network.vectorising import vectorising


def pull_back(
    outputs: Tensor | GradientEdge, edges: Sequence[Tensor | GradientEdge], seeds: Tensor
) -> list[Tensor | None]:
    """The gradients of Σ s_k · f at points of the graph, for K cotangents s_k that travel together.

    ``torch.func.vmap`` around one backward pass, and not ``is_grads_batched=True``: the latter's older batching rules
    loop over the cotangents for tanh, layer norm, softmax, convolutions and most else, at twice the time.

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
        return tuple(gradient for gradient in gradients if gradient is not None)

    with vectorising():
        found = iter(torch.func.vmap(one)(seeds))
    return [next(found) if hit else None for hit in reached]
