"""Layers that have no hook at their weights, written out for the reference: attention, recurrence, bare parameters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.reference import ALL, Reading, Twin


def _linear(
    reading: Reading, x: Tensor, weight: Tensor, bias: Tensor | None, rows: slice = ALL, bias_rows: slice = ALL
) -> Tensor:
    y = F.linear(x, weight[rows], None if bias is None else bias[bias_rows])
    return reading.linear(x, y, reading.name(weight), reading.name(bias), rows, bias_rows)


def attention(reading: Reading, layer: nn.MultiheadAttention, query: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Multi-head attention, rows first: y and the weights (N, heads, L, S). One projection for each distinct input."""
    E, bias = layer.embed_dim, layer.in_proj_bias
    first, others = slice(0, E), slice(E, 3 * E)
    if query is memory:
        q, k, v = _linear(reading, query, layer.in_proj_weight, bias).chunk(3, -1)
    elif layer.in_proj_weight is not None:
        q = _linear(reading, query, layer.in_proj_weight, bias, first, first)
        k, v = _linear(reading, memory, layer.in_proj_weight, bias, others, others).chunk(2, -1)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        thirds = (slice(index * E, (index + 1) * E) for index in range(3))
        q, k, v = (
            _linear(reading, x, weight, None) + bias[third]  # a bias of three matrices joins none of them
            for x, weight, third in zip((query, memory, memory), weights, thirds, strict=True)
        )
    q, k, v = (part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.mT / math.sqrt(E // layer.num_heads)).softmax(-1)
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


def functional_linear(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """`FunctionalLinear`, its two products written as layers."""
    hidden = torch.sigmoid(_linear(reading, x, module.inner, module.offset))
    return _linear(reading, hidden, module.outer, None)


def bare_parameters(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """`BareParameters`: x @ W is a layer whose matrix is the transpose of W."""
    x = torch.cat([module.token.expand(x.shape[0], -1, -1), x * module.scale + module.shift], 1) + module.position
    x = torch.tanh(x).mean(1)
    return reading.linear(x, x @ module.matrix, "matrix", None, transposed=True)


def bilinear(module: nn.Module, inputs: tuple[Tensor, Tensor], reading: Reading) -> Tensor:
    """`TwoInputs`: a bilinear layer is linear in the products of its inputs."""
    layer = module.bilinear
    products = (inputs[0][:, :, None] * inputs[1][:, None, :]).flatten(1)
    y = F.linear(products, layer.weight.flatten(1), layer.bias)
    return module.head(torch.tanh(reading.linear(products, y, "bilinear.weight", "bilinear.bias")))


def encoder(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """A pre-norm `nn.TransformerEncoderLayer`, the mean over positions, a linear layer."""
    layer = module[0]
    normed = layer.norm1(x)
    x = x + attention(reading, layer.self_attn, normed, normed)[0]
    x = x + layer.linear2(F.gelu(layer.linear1(layer.norm2(x))))
    return module[2](x.mean(1))


def recurrence(reading: Reading, core: nn.RNNBase, x: Tensor) -> Tensor:
    """LSTM, GRU or RNN with rows first, shape (N, T, directions × hidden): W_ih and W_hh are a layer each."""
    for layer in range(core.num_layers):
        directions = []
        for suffix in ("", "_reverse")[: 2 if core.bidirectional else 1]:
            steps = list(x.unbind(1))
            states = _steps(reading, core, f"l{layer}{suffix}", steps[::-1] if suffix else steps)
            directions.append(torch.stack(states[::-1] if suffix else states, 1))
        x = torch.cat(directions, -1)
    return x


def _steps(reading: Reading, core: nn.RNNBase, suffix: str, steps: list[Tensor]) -> list[Tensor]:
    h = torch.zeros(steps[0].shape[0], core.hidden_size, dtype=steps[0].dtype)
    c, states = torch.zeros_like(h), []
    for x in steps:
        h, c = _step(reading, core, core.mode, f"_{suffix}", x, h, c)
        states.append(h)
    return states


def _step(
    reading: Reading, core: nn.Module, mode: str, suffix: str, x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of a recurrent layer or cell: the new h and c."""
    wi, wh = getattr(core, f"weight_ih{suffix}"), getattr(core, f"weight_hh{suffix}")
    bi, bh = (getattr(core, f"bias_{side}{suffix}") if core.bias else None for side in ("ih", "hh"))
    gates = {"LSTM": 4, "GRU": 3}.get(mode, 1)
    i, j = _linear(reading, x, wi, bi).chunk(gates, -1), _linear(reading, h, wh, bh).chunk(gates, -1)
    if mode == "LSTM":
        enter, forget, candidate, leave = (a + b for a, b in zip(i, j, strict=True))
        c = forget.sigmoid() * c + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * c.tanh(), c
    if mode == "GRU":
        reset, update = (i[0] + j[0]).sigmoid(), (i[1] + j[1]).sigmoid()
        return (1 - update) * (i[2] + reset * j[2]).tanh() + update * h, c
    return (i[0] + j[0]).tanh(), c


def cells(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """`Cells`, written out."""
    state, c = (torch.zeros(x.shape[0], module.lstm.hidden_size, dtype=x.dtype) for _ in range(2))
    h = torch.zeros(x.shape[0], module.gru.hidden_size, dtype=x.dtype)
    for step in x.unbind(1):
        state, c = _step(reading, module.lstm, "LSTM", "", step, state, c)
        h, _ = _step(reading, module.gru, "GRU", "", state, h, h)
    return module.head(h)


def recurrent(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """`Recurrent`, written out."""
    y = recurrence(reading, module.core, x)
    return module.head(y[:, -1])


def self_attention(module: nn.Module, x: Tensor, reading: Reading) -> Tensor:
    """`SelfAttention`, written out."""
    return module.head(attention(reading, module.attention, x, x)[0].mean(1))


def cross_attention(module: nn.Module, inputs: tuple[Tensor, Tensor], reading: Reading) -> Tensor:
    """`CrossAttention`, written out."""
    y, weights = attention(reading, module.attention, *inputs)
    return module.head(y.mean(1)) * (1.0 + weights.mean(1).square().mean((1, 2)))[:, None]


TWINS: dict[str, Twin] = {
    "functional linear": functional_linear,
    "bare parameters": bare_parameters,
    "tuple": bilinear,
    "transformer encoder": encoder,
    "cells": cells,
    "self-attention": self_attention,
    "self-attention, time first": self_attention,
    "cross-attention": cross_attention,
    "cross-attention of two widths": cross_attention,
    "lstm": recurrent,
    "lstm, two layers, both ways": recurrent,
    "gru": recurrent,
    "gru, both ways": recurrent,
    "rnn": recurrent,
}
