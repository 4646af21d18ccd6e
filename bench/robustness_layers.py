"""Random small networks, each from its seed: layers that fit behind each other, rows, a likelihood, a batch size."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.curvature import reference
from tests.curvature.cases import DTYPE, LIKELIHOODS, Case, ChannelMean, Mean, draw_targets, fill
from tests.curvature.twins import attention, recurrence

# --- layers -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of a sequence to itself; written out where a reference reads it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.reading: reference.Reading | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to the same."""
        if self.reading is not None:
            return attention(self.reading, self.attention, x, x)[0]
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrence(nn.Module):
    """A recurrent layer with the states of all steps; written out where a reference reads it."""

    def __init__(self, core: nn.RNNBase) -> None:
        super().__init__()
        self.core = core
        self.reading: reference.Reading | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, T, H)."""
        return self.core(x)[0] if self.reading is None else recurrence(self.reading, self.core, x)


class Residual(nn.Module):
    """x + g(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that the body keeps."""
        return x + self.body(x)


class Tied(nn.Module):
    """Two layers with one matrix and bias, or one layer that has two names."""

    def __init__(self, width: int, again: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = self.first if again else nn.Linear(width, width)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to the same."""
        return self.second(torch.tanh(self.first(x)))


class Last(nn.Module):
    """The last position of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, D)."""
        return x[:, -1]


class Turned(nn.Module):
    """The second dimension last, or back."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, A, B) to (N, B, A)."""
        return x.transpose(1, 2)


def written_out(module: nn.Module, inputs: Any, reading: reference.Reading) -> Tensor:
    """The network as the reference reads it: layers that have no hook at their weights are written out."""
    readers = [part for part in module.modules() if isinstance(part, (Attention, Recurrence))]
    for part in readers:
        part.reading = reading
    try:
        return reference.call(module, inputs)
    finally:
        for part in readers:
            part.reading = None


def once_named(entry: Case) -> Case:
    """A copy for the reference: `torch.func.functional_call` does not put back a layer that has two names."""
    module = copy.deepcopy(entry.module)
    for part in module.modules():
        if isinstance(part, Tied) and part.second is part.first:
            del part._modules["second"]
            object.__setattr__(part, "second", part.first)
        elif isinstance(part, nn.ReLU):
            part.inplace = False  # the first layer would write into the rows
    return replace(entry, module=module)


# --- drawing a network ------------------------------------------------------------------------------------------------

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Softplus, nn.Sigmoid, nn.PReLU, nn.LeakyReLU,
    lambda: nn.ReLU(inplace=True), lambda: nn.Dropout(0.3),
)  # fmt: skip
Maker = Callable[[random.Random, tuple[int, ...]], nn.Module]


def linear(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Over the last dimension, some with normed weights."""
    layer = nn.Linear(shape[-1], source.randint(1, 4), bias=source.random() < 0.8)
    return parametrizations.weight_norm(layer) if source.random() < 0.1 else layer


def convolution(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """With groups, steps, gaps and borders; some transposed."""
    channels, dims = shape[1], len(shape) - 2
    groups = source.choice([each for each in range(1, channels + 1) if channels % each == 0])
    options: dict[str, Any] = {"groups": groups, "stride": source.randint(1, 2), "bias": source.random() < 0.7}
    options |= {"dilation": source.randint(1, 2), "padding": source.randint(0, 1)}
    if source.random() < 0.2:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[dims - 1]
    else:
        kind = (nn.Conv1d, nn.Conv2d)[dims - 1]
        options["padding_mode"] = source.choice(["zeros", "zeros", "reflect", "circular", "replicate"])
    return kind(channels, groups * source.randint(1, 2), source.randint(1, 3), **options)


def norm(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """One that fits the shape."""
    affine = source.random() < 0.8
    last: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(shape[-1], elementwise_affine=affine),
        lambda: nn.RMSNorm(shape[-1], eps=1e-3, elementwise_affine=affine),
    ]
    if len(shape) == 2:
        return source.choice([*last, lambda: nn.BatchNorm1d(shape[1], affine=affine)])()
    batch, instance = ((nn.BatchNorm1d, nn.InstanceNorm1d), (nn.BatchNorm2d, nn.InstanceNorm2d))[len(shape) - 3]
    groups = source.choice([each for each in range(1, shape[1] + 1) if shape[1] % each == 0])
    return source.choice([
        *last, lambda: batch(shape[1], affine=affine), lambda: instance(shape[1], affine=affine),
        lambda: nn.GroupNorm(groups, shape[1], affine=affine),
    ])()  # fmt: skip


def activation(source: random.Random, _shape: tuple[int, ...]) -> nn.Module:
    """One of those that torch has."""
    return source.choice(ACTIVATIONS)()


def residual(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Around a linear layer, or attention where there is a sequence."""
    inner: nn.Module = nn.Linear(shape[-1], shape[-1])
    if len(shape) == 3 and source.random() < 0.5:
        inner = Attention(shape[-1], 1)
    return Residual(nn.Sequential(inner, activation(source, shape)))


def tied(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """One matrix in two places."""
    return Tied(shape[-1], source.random() < 0.5)


def attended(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """Attention with one or two heads."""
    return Attention(shape[-1], 2 if shape[-1] % 2 == 0 and source.random() < 0.5 else 1)


def recurrent(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """LSTM, GRU or RNN, in one direction or both."""
    kind = source.choice([nn.LSTM, nn.GRU, nn.RNN])
    core = kind(shape[-1], source.randint(1, 2), bias=source.random() < 0.7, batch_first=True,
                bidirectional=source.random() < 0.3)  # fmt: skip
    return Recurrence(core)


def pooling(source: random.Random, shape: tuple[int, ...]) -> nn.Module:
    """The largest or the mean of two neighbours, or of all."""
    kinds = ((nn.MaxPool1d, nn.AvgPool1d), (nn.MaxPool2d, nn.AvgPool2d))[len(shape) - 3]
    adaptive = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[len(shape) - 3]
    return source.choice([*(lambda kind=kind: kind(2) for kind in kinds), lambda: adaptive(1)])()  # type: ignore[misc]


def turned(_source: random.Random, _shape: tuple[int, ...]) -> nn.Module:
    """A sequence as a row of pixels, or back."""
    return Turned()


MAKERS: dict[int, tuple[Maker, ...]] = {
    2: (linear, linear, activation, norm, residual, tied),
    3: (linear, activation, norm, residual, tied, attended, recurrent, convolution, convolution, pooling, turned),
    4: (convolution, convolution, activation, norm, pooling, linear, residual),
}


def layers(source: random.Random, first: nn.Module | None, x: Tensor, dense: bool) -> tuple[list[nn.Module], Tensor]:
    """Layers that fit behind each other, and what comes out of them."""
    found = [] if first is None else [first]
    x = x if first is None else first(x)
    for _ in range(source.randint(0, 4)):
        layer = source.choice(MAKERS[x.ndim])(source, tuple(x.shape)).to(DTYPE).eval()
        try:
            after = layer(x)
        except (RuntimeError, ValueError):
            continue  # a kernel larger than the picture
        if after.numel() and after[0].numel() <= 64:
            found, x = [*found, layer], after
    if x.ndim > 2 and not (dense and x.ndim == 3):
        means: tuple[nn.Module, ...] = (nn.Flatten(), Mean(), ChannelMean(), *([Last()] if x.ndim == 3 else []))
        ending = source.choice(means)
        found, x = [*found, ending], ending(x)
    return found, x


def drawn(seed: int) -> tuple[Case, int, str]:
    """The network of a seed with its rows and likelihood, its batch size, and its kind of curvature."""
    source, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, likelihood = source.randint(1, 9), source.choice(list(LIKELIHOODS))
    outputs, chosen = LIKELIHOODS[likelihood]
    kind, first = source.choice(["numbers", "tokens", "sequence", "pixels", "picture"]), None
    shape = {"numbers": (source.randint(1, 4),), "sequence": (source.randint(1, 3), source.randint(1, 4)),
             "pixels": (source.randint(1, 4), source.randint(2, 7)),
             "picture": (source.randint(1, 4), source.randint(2, 5), source.randint(2, 5))}.get(kind)  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their first weights from the global generator
        torch.default_generator.manual_seed(seed)
        if shape is None:
            inputs = torch.randint(5, (rows, source.randint(1, 4)), generator=generator)
            first = nn.Embedding(5, source.randint(1, 4), padding_idx=source.choice([None, 0])).to(DTYPE)
        else:
            inputs = torch.randn(rows, *shape, generator=generator, dtype=DTYPE)
        with torch.no_grad():
            found, x = layers(source, first, inputs.clone(), source.random() < 0.3)
        module = nn.Sequential(*found, nn.Linear(x.shape[-1], outputs, bias=source.random() < 0.8))
    fill(module, generator)
    for layer in found:
        written = any(isinstance(part, (Attention, Recurrence)) for part in layer.modules())
        for parameter in layer.parameters():  # those that the reference writes out are whole
            parameter.requires_grad_(written or source.random() > 0.05)
    targets = draw_targets(chosen, tuple(x.shape[:-1]), outputs, generator)
    kind = source.choice(["ggn", "ggn", "ggn", "empirical_fisher"])
    return Case(module, inputs, targets, chosen), source.randint(1, rows + 1), kind
