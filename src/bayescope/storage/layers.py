"""torch's layers that a file describes, each with the arguments that make another one like it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import nn

# By layer, the arguments of its constructor, which are attributes of it too; `bias` is whether there is one.
_ARGUMENTS = """
Linear: in_features out_features bias
Bilinear: in1_features in2_features out_features bias
Embedding: num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse
EmbeddingBag: num_embeddings embedding_dim max_norm norm_type scale_grad_by_freq mode sparse \
    include_last_offset padding_idx
Conv1d Conv2d Conv3d: in_channels out_channels kernel_size stride padding dilation groups bias padding_mode
ConvTranspose1d ConvTranspose2d ConvTranspose3d: in_channels out_channels kernel_size stride padding output_padding \
    groups bias dilation padding_mode
BatchNorm1d BatchNorm2d BatchNorm3d: num_features eps momentum affine track_running_stats bias
InstanceNorm1d InstanceNorm2d InstanceNorm3d: num_features eps momentum affine track_running_stats
LayerNorm: normalized_shape eps elementwise_affine bias
RMSNorm: normalized_shape eps elementwise_affine
GroupNorm: num_groups num_channels eps affine
LocalResponseNorm: size alpha beta k
Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout: p inplace
ReLU ReLU6 SELU SiLU Mish Hardsigmoid Hardswish: inplace
LeakyReLU: negative_slope inplace
ELU CELU: alpha inplace
GELU: approximate
Softplus: beta threshold
Softshrink Hardshrink: lambd
Hardtanh: min_val max_val inplace
Threshold: threshold value inplace
PReLU: num_parameters
Softmax LogSoftmax Softmin GLU: dim
Sigmoid Tanh LogSigmoid Tanhshrink Softsign Softmax2d Identity Sequential ModuleList ModuleDict:
MaxPool1d MaxPool2d MaxPool3d: kernel_size stride padding dilation return_indices ceil_mode
AvgPool1d: kernel_size stride padding ceil_mode count_include_pad
AvgPool2d AvgPool3d: kernel_size stride padding ceil_mode count_include_pad divisor_override
LPPool1d LPPool2d: norm_type kernel_size stride ceil_mode
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d: output_size
AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d: output_size return_indices
ConstantPad1d ConstantPad2d ConstantPad3d: padding value
ZeroPad1d ZeroPad2d ZeroPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d: padding
ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d CircularPad2d CircularPad3d: padding
Flatten: start_dim end_dim
Unflatten: dim unflattened_size
Upsample: size scale_factor mode align_corners recompute_scale_factor
PixelShuffle: upscale_factor
PixelUnshuffle: downscale_factor
ChannelShuffle: groups
Unfold: kernel_size dilation padding stride
Fold: output_size kernel_size dilation padding stride
CosineSimilarity: dim eps
RNN: input_size hidden_size num_layers nonlinearity bias batch_first dropout bidirectional
LSTM: input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size
GRU: input_size hidden_size num_layers bias batch_first dropout bidirectional
"""

# Recurrent layers make their layers one by one: a file is not to keep a machine busy with them.
MOST_INSIDE = 500
# Options that no tensor of the layer bears out, and that memory or time grows with: how large each number may be, and
# the numbers of one option multiplied.
GEOMETRY = ("kernel_size", "stride", "padding", "output_padding", "dilation", "output_size", "size", "scale_factor")
MOST, MOST_TOGETHER = 2**20, 2**26
# Layers that run one after another, for a row of 8 positions along each of 3 axes: how many positions a layer may
# answer at, which is 1 GiB a channel, and how many values all of them together may read, which takes minutes.
AXES, FEW_POSITIONS, MOST_POSITIONS, MOST_READ = 3, 8, 2**28, 2**34


@final
@dataclass(frozen=True)
class Layer:
    """How layers of a class are described.

    Attributes:
        type: the class.
        options: from a layer to the arguments that make another one like it.
        children: arguments that are layers themselves.
    """

    type: type[nn.Module]
    options: Callable[[Any], dict[str, Any]]
    children: tuple[str, ...] = ()

    def made(self, options: dict[str, Any]) -> nn.Module:
        """A layer whose tensors have shapes and no memory; nothing is drawn from torch's generator.

        Raises:
            ValueError: if it has more layers inside than any has, or takes more memory or time than any does.
        """
        if options.get("num_layers", 0) > MOST_INSIDE:
            raise ValueError(f"{options['num_layers']} layers in one")
        for name in GEOMETRY:
            _check_geometry(name, options.get(name))
        if "device" in options:
            raise ValueError("a layer that takes memory of its own")
        with torch.device("meta"):
            return self.type(**options, **{name: nn.Identity() for name in self.children})


def _check_geometry(name: str, option: Any) -> None:
    """Refuses numbers under which a small input takes all memory, or keeps a machine busy for hours."""
    numbers = option if isinstance(option, list | tuple) else [option]
    sizes = [abs(number) for number in numbers if isinstance(number, int | float)]
    if len(sizes) > 3:  # what is added on both sides of each axis
        sizes = [before + after for before, after in zip(sizes[::2], sizes[1::2], strict=True)]
    if not (all(size <= MOST for size in sizes) and math.prod(sizes) <= MOST_TOGETHER):
        raise ValueError(f"a layer with a {name} of {str(option)[:40]}")


def check_together(network: nn.Module) -> None:
    """Refuses a network whose layers together take more memory or time than one has, although each takes little.

    Raises:
        ValueError: if one of its layers answers at too many positions, or all of them read too many values.
        TypeError: if an option is not of the type that its layer takes.
        ArithmeticError: if a stride is 0, or a number is infinite.
    """
    _, read = _passed(network, [FEW_POSITIONS] * AXES)
    if read > MOST_READ:
        raise ValueError("layers that together take more time than any network does")


def _passed(module: nn.Module, lengths: list[int]) -> tuple[list[int], int]:
    """The lengths of the axes after a module, and how many values its layers read."""
    children = [child for child in module._modules.values() if child is not None]
    if not children:
        after, read = _lengths_after(module, lengths)
        if math.prod(after) > MOST_POSITIONS:
            raise ValueError("layers that together take more memory than any network does")
        return after, read * math.prod(after)
    together, longest = 0, lengths
    for child in children:
        after, read = _passed(child, lengths)
        together, longest = together + read, list(map(max, longest, after))
        if isinstance(module, nn.Sequential):
            lengths = longest = after
    return longest, together


def _lengths_after(layer: Any, lengths: list[int]) -> tuple[list[int], int]:
    """The lengths after one layer, and how many values it reads for each position of its answer."""
    kind = type(layer).__name__
    axes = {"linear": 1, "trilinear": 3, "Fold": 2, "Unfold": 2}.get(getattr(layer, "mode", kind), 2)
    axes = int(kind[-2]) if kind[-2:] in ("1d", "2d", "3d") else axes
    kept, changed = lengths[: AXES - axes], lengths[AXES - axes :]

    def each(name: str, default: Any = 1) -> list[Any]:
        """An option's number for each axis."""
        option = getattr(layer, name, None)
        option = default if option is None or isinstance(option, str) else option
        return list(option) if isinstance(option, list | tuple) else [option] * axes

    if "Pad" in kind:
        sides = layer.padding[::-1]  # those of the last axis come first
        after = [length + first + last for length, first, last in zip(changed, sides[::2], sides[1::2], strict=True)]
        return kept + after, 1
    for name in ("size", "output_size"):
        if kind != "LocalResponseNorm" and getattr(layer, name, None) is not None:
            return kept + [
                length if size is None else size for length, size in zip(changed, each(name), strict=True)
            ], 1
    if getattr(layer, "scale_factor", None) is not None:
        return kept + [
            math.ceil(length * scale) for length, scale in zip(changed, each("scale_factor"), strict=True)
        ], 1
    if not hasattr(layer, "kernel_size"):
        return lengths, layer.size if kind == "LocalResponseNorm" else 1
    kernel, padding, dilation = each("kernel_size"), each("padding", 0), each("dilation")
    stride, more = each("stride", kernel), each("output_padding", 0)
    after = []
    for length, size, step, rim, gap, rest in zip(changed, kernel, stride, padding, dilation, more, strict=True):
        reach = gap * (size - 1)
        transposed = kind.startswith("ConvTranspose")
        found = (length - 1) * step - 2 * rim + reach + rest if transposed else (length + 2 * rim - reach - 1) // step
        after.append(max(1, found + 1))
    return kept + after, 1 if hasattr(layer, "weight") else math.prod(kernel)


def _options(names: tuple[str, ...], layer: nn.Module) -> dict[str, Any]:
    return {name: _option(name, getattr(layer, name)) for name in names}


def _option(name: str, value: Any) -> Any:
    return value is not None if name == "bias" and not isinstance(value, bool) else value


def _table() -> dict[str, Layer]:
    found = {}
    for line in _ARGUMENTS.strip().splitlines():
        classes, _, arguments = line.partition(":")
        for name in classes.split():
            if hasattr(nn, name):  # the oldest torch lacks some
                kind = getattr(nn, name)
                found[name] = Layer(kind, partial(_options, tuple(_known(kind, arguments.split()))))
    return found


def _known(kind: type[nn.Module], names: Sequence[str]) -> list[str]:
    """The arguments that this torch's layer takes: some are younger than others. Recurrent ones do not tell."""
    parameters = inspect.signature(kind).parameters
    return [name for name in names if name in parameters or "kwargs" in parameters]


LAYERS = _table()
