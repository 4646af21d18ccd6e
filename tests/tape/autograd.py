"""The rows of a tape by reverse-mode differentiation, one input at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def rows_of(layer: Callable[..., Tensor], inputs: Tensor, cotangents: Tensor, *weights: Tensor) -> list[Tensor]:
    """For each weight w the rows ∂(g_nkᵀ layer(x_n, w))/∂w, shape (N, K, numel), for g of shape (K, N, ...)."""
    rows: list[list[Tensor]] = [[] for _ in weights]
    for n in range(inputs.shape[0]):
        jacobians = torch.func.jacrev(lambda *w, n=n: layer(inputs[n : n + 1], *w)[0], tuple(range(len(weights))))(
            *weights
        )
        g = cotangents[:, n].flatten(1)
        for parts, jacobian in zip(rows, jacobians, strict=True):
            parts.append(g @ jacobian.reshape(g.shape[1], -1))
    none = [w.new_zeros(0, cotangents.shape[0], w.numel()) for w in weights]
    return [torch.stack(parts) if parts else empty for parts, empty in zip(rows, none, strict=True)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))
