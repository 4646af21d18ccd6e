"""Layers that use several weights inside one call, as the same mathematics in calls that each use one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bayescope.network.rewrites import attention, norms, recurrent

__all__ = ["NESTED", "OF_WEIGHTS", "REWRITES"]

# The function as a TorchFunctionMode sees it, and what to call in its place with the same arguments. The answer is the
# same up to rounding, or NotImplemented where the arguments ask for something that keeps no row by itself.
REWRITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: attention.multi_head_attention,
    F.layer_norm: norms.layer_norm,
    F.rms_norm: norms.rms_norm,
    F.group_norm: norms.group_norm,
    F.batch_norm: norms.batch_norm,
    F.instance_norm: norms.instance_norm,
    torch.prelu: norms.prelu,
    torch.Tensor.prelu: norms.prelu,
    F.bilinear: norms.bilinear,
    torch.lstm: recurrent.lstm,
    torch.gru: recurrent.gru,
    torch.rnn_tanh: recurrent.rnn_tanh,
    torch.rnn_relu: recurrent.rnn_relu,
    torch.lstm_cell: recurrent.lstm_cell,
    torch.gru_cell: recurrent.gru_cell,
    torch.rnn_tanh_cell: recurrent.rnn_tanh_cell,
    torch.rnn_relu_cell: recurrent.rnn_relu_cell,
}

# Functions of weights alone, which have the same answer, and a backward pass that takes many cotangents in less time.
OF_WEIGHTS: dict[Callable[..., Any], Callable[..., Any]] = {torch._weight_norm: norms.weight_norm}

# What has to be rewritten inside of two vmaps, over rows and over cotangents: torch's rule for the backward pass of
# prelu (2.13) takes the rows of one for those of the other, in silence, where both are as many.
NESTED: dict[Callable[..., Any], Callable[..., Any]] = dict.fromkeys(
    (torch.prelu, torch.Tensor.prelu, torch.ops.aten.prelu, torch.ops.aten.prelu.default), norms.prelu
)
