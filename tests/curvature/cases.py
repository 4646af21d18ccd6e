"""Small networks, one for each kind of layer and of its use, with inputs and targets that curvatures are tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from bayescope.curvature import Curvature, fit_curvature
from bayescope.likelihoods import (
    Bernoulli,
    BradleyTerry,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)

ROWS = 7
BATCH = 3  # does not divide ROWS
DTYPE = torch.float64


# --- modules that are no plain sequence -------------------------------------------------------------------------------


class Mean(nn.Module):
    """The mean over all dimensions between the first and the last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1)


class ChannelMean(nn.Module):
    """The mean over all dimensions after the second."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


class BareParameters(nn.Module):
    """Scale, shift, position, class token and a product with a bare matrix."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(()))
        self.token, self.position = nn.Parameter(torch.empty(1, 1, 3)), nn.Parameter(torch.empty(3, 3))
        self.matrix = nn.Parameter(torch.empty(3, outputs))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x * self.scale + self.shift], 1) + self.position
        return torch.tanh(x).mean(1) @ self.matrix


class FunctionalLinear(nn.Module):
    """`F.linear` with a bare weight, and a contraction written by `torch.einsum`."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.inner, self.offset = nn.Parameter(torch.empty(4, 3)), nn.Parameter(torch.empty(4))
        self.outer = nn.Parameter(torch.empty(outputs, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nd,cd->nc", torch.sigmoid(F.linear(x, self.inner, bias=self.offset)), self.outer)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, then a linear layer on the mean."""

    def __init__(self, outputs: int, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.head = nn.Linear(4, outputs)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.head(y.mean(1 if self.batch_first else 0))


class CrossAttention(nn.Module):
    """Attention of one sequence to another of another width, with its weights asked for."""

    def __init__(self, outputs: int, batch_first: bool, width: int = 4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, kdim=width, vdim=width)
        self.head = nn.Linear(4, outputs)
        self.batch_first = batch_first

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        x, other = (x, other) if self.batch_first else (x.transpose(0, 1), other.transpose(0, 1))
        y, weights = self.attention(x, other, other)
        return self.head(y.mean(1 if self.batch_first else 0)) * (1.0 + weights.square().mean((1, 2)))[:, None]


class Recurrent(nn.Module):
    """A recurrent layer, then a linear layer on its last output."""

    def __init__(self, core: nn.Module, width: int, outputs: int, batch_first: bool) -> None:
        super().__init__()
        self.core, self.head = core, nn.Linear(width, outputs)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.core(x if self.batch_first else x.transpose(0, 1))
        return self.head(y[:, -1] if self.batch_first else y[-1])


class Cells(nn.Module):
    """Recurrent cells in a loop of the user's own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.lstm, self.gru, self.head = nn.LSTMCell(2, 3), nn.GRUCell(3, 2), nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        state, h = None, None
        for step in x.unbind(1):
            state = self.lstm(step, state)
            h = self.gru(state[0], h)
        return self.head(h)


class LanguageModel(nn.Module):
    """Dense outputs over a vocabulary, the output layer's weight being the embedding's."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.mixing = nn.Embedding(vocabulary, 3), nn.Linear(3, 3)
        self.decoder = nn.Linear(3, vocabulary)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.mixing(self.embedding(tokens))))


class TiedLinear(nn.Module):
    """Two layers that share weight and bias, and a third of their own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, outputs)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class CalledTwice(nn.Module):
    """A layer called twice, once on a sequence and once on a vector, and a residual sum in place."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x)).mean(1)
        y = self.layer(x)
        y += x
        return self.head(torch.tanh(y))


class LoRA(nn.Module):
    """A frozen layer with a trainable correction of rank two: y = W x + B A x."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * self.up(self.down(x))


class TextClassifier(nn.Module):
    """Takes its inputs by name, with a mask, as Hugging Face models do."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(6, 3), nn.LayerNorm(3), nn.Linear(3, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None].to(self.head.weight.dtype)
        x = self.norm(self.embedding(input_ids)) * mask
        return self.head(x.sum(1) / mask.sum(1))


class TwoInputs(nn.Module):
    """Takes two tensors."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bilinear, self.head = nn.Bilinear(3, 2, 3), nn.Linear(3, outputs)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bilinear(x, z)))


# --- inputs -----------------------------------------------------------------------------------------------------------

Draw = Callable[[torch.Generator], Any]


def numbers(*shape: int) -> Draw:
    """Standard normal inputs of the given shape after the rows."""
    return lambda generator: torch.randn(ROWS, *shape, generator=generator, dtype=DTYPE)


def tokens(vocabulary: int, length: int) -> Draw:
    """Token numbers, some of them repeated."""
    return lambda generator: torch.randint(vocabulary, (ROWS, length), generator=generator)


def masked_tokens(generator: torch.Generator) -> dict[str, Tensor]:
    """Token numbers with a mask of different lengths."""
    lengths = torch.arange(ROWS) % 3 + 2
    mask = (torch.arange(4) < lengths[:, None]).long()
    return {"input_ids": tokens(6, 4)(generator) * mask, "attention_mask": mask}


def both(first: Draw, second: Draw) -> Draw:
    """A tuple of two inputs."""
    return lambda generator: (first(generator), second(generator))


# --- the table --------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Model:
    """A network for C outputs and its inputs.

    Attributes:
        build: from C to a module, whose weights are filled afterwards.
        draw: from a generator to inputs of `ROWS` rows.
        positions: S, where outputs are (N, S, C).
        outputs: the numbers of outputs C it is tried with.
    """

    build: Callable[[int], nn.Module]
    draw: Draw
    positions: int | None = None
    outputs: tuple[int, ...] = (1, 3)


def _conv(c: int, dims: int, width: int, *args: Any, **options: Any) -> nn.Module:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(conv(2, width, *args, **options), nn.Tanh(), ChannelMean(), nn.Linear(width, c))


def _batch_norm(c: int) -> nn.Module:
    image = [nn.Conv2d(1, 2, 2, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*image, nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, c))


def _frozen(c: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, c))
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    return module


def _small_cnn(c: int) -> nn.Module:
    first = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    second = [nn.Conv2d(2, 3, 2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(3, c))


def _encoder(c: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=3, batch_first=True, norm_first=True, activation="gelu")
    return nn.Sequential(layer, Mean(), nn.Linear(4, c))


def _transposed(c: int) -> nn.Module:
    layers = [nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), nn.Tanh(), ChannelMean()]
    return nn.Sequential(*layers, nn.Linear(3, c))


def _transposed_groups(c: int) -> nn.Module:
    layers = [nn.ConvTranspose2d(2, 4, 2, stride=2, dilation=2, groups=2, bias=False), nn.Tanh(), ChannelMean()]
    return nn.Sequential(*layers, nn.Linear(4, c))


def _linear_relu(c: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, c, bias=False))


MODELS = {
    "mlp": Model(lambda c: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, c)), numbers(4)),
    "logistic": Model(lambda c: nn.Linear(3, c), numbers(3)),
    "deep linear": Model(
        lambda c: nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3), nn.Linear(3, c)), numbers(4)
    ),
    "relu in place": Model(_linear_relu, numbers(3)),
    "activations": Model(
        lambda c: nn.Sequential(
            nn.Linear(3, 3), nn.SiLU(), nn.Linear(3, 3), nn.ELU(), nn.Linear(3, 3), nn.Softplus(), nn.Linear(3, c)
        ),
        numbers(3),
    ),
    "prelu": Model(lambda c: nn.Sequential(nn.Linear(3, 3), nn.PReLU(3), nn.Linear(3, c)), numbers(3)),
    "linear on tokens": Model(
        lambda c: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Mean(), nn.Linear(4, c)), numbers(2, 2, 3)
    ),
    "dense outputs": Model(
        lambda c: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, c)), numbers(2, 3), positions=2
    ),
    "conv1d": Model(lambda c: _conv(c, 1, 3, 3, stride=2, padding=1, dilation=2), numbers(2, 9)),
    "conv1d reflect": Model(lambda c: _conv(c, 1, 3, 3, padding=1, padding_mode="reflect"), numbers(2, 5)),
    "conv2d groups": Model(lambda c: _conv(c, 2, 4, 2, stride=(1, 2), padding=(1, 0), groups=2), numbers(2, 3, 4)),
    "conv2d depthwise": Model(lambda c: _conv(c, 2, 2, 3, padding="same", groups=2, bias=False), numbers(2, 3, 3)),
    "conv3d": Model(lambda c: _conv(c, 3, 2, 2, stride=(2, 1, 1), padding=(0, 1, 0)), numbers(2, 2, 3, 2)),
    "conv transpose 1d": Model(_transposed, numbers(2, 4)),
    "conv transpose 2d groups": Model(_transposed_groups, numbers(2, 2, 2)),
    "cnn": Model(_small_cnn, numbers(1, 6, 6)),
    "embedding": Model(
        lambda c: nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Tanh(), Mean(), nn.Linear(3, c)), tokens(6, 5)
    ),
    "layer norm": Model(
        lambda c: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, c)), numbers(3)
    ),
    "group norm": Model(
        lambda c: nn.Sequential(nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), ChannelMean(), nn.Linear(4, c)),
        numbers(1, 5),
    ),
    "instance norm": Model(
        lambda c: nn.Sequential(
            nn.Conv1d(1, 3, 2), nn.InstanceNorm1d(3, affine=True), nn.Tanh(), ChannelMean(), nn.Linear(3, c)
        ),
        numbers(1, 5),
    ),
    "rms norm": Model(
        lambda c: nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4, eps=1e-3), nn.Tanh(), nn.Linear(4, c)), numbers(3)
    ),
    "batch norm": Model(_batch_norm, numbers(1, 3, 3)),
    "bare parameters": Model(BareParameters, numbers(2, 3)),
    "functional linear": Model(FunctionalLinear, numbers(3)),
    "self-attention": Model(lambda c: SelfAttention(c, batch_first=True), numbers(3, 4)),
    "self-attention, time first": Model(lambda c: SelfAttention(c, batch_first=False), numbers(3, 4)),
    "cross-attention": Model(lambda c: CrossAttention(c, batch_first=True), both(numbers(2, 4), numbers(3, 4))),
    "cross-attention of two widths": Model(
        lambda c: CrossAttention(c, batch_first=False, width=3), both(numbers(2, 4), numbers(3, 3))
    ),
    "transformer encoder": Model(_encoder, numbers(3, 4)),
    "lstm": Model(lambda c: Recurrent(nn.LSTM(2, 3, batch_first=True), 3, c, True), numbers(4, 2)),
    "lstm, two layers, both ways": Model(
        lambda c: Recurrent(nn.LSTM(2, 2, num_layers=2, bidirectional=True), 4, c, False), numbers(3, 2)
    ),
    "gru": Model(lambda c: Recurrent(nn.GRU(2, 3, bias=False), 3, c, False), numbers(4, 2)),
    "gru, both ways": Model(
        lambda c: Recurrent(nn.GRU(2, 2, batch_first=True, bidirectional=True), 4, c, True), numbers(3, 2)
    ),
    "rnn": Model(lambda c: Recurrent(nn.RNN(2, 3, batch_first=True), 3, c, True), numbers(4, 2)),
    "cells": Model(Cells, numbers(3, 2)),
    "tied embedding": Model(LanguageModel, tokens(4, 3), positions=3, outputs=(4,)),
    "tied linear": Model(TiedLinear, numbers(3)),
    "called twice": Model(CalledTwice, numbers(2, 3)),
    "frozen": Model(_frozen, numbers(3)),
    "lora": Model(lambda c: nn.Sequential(LoRA(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, c)), numbers(3)),
    "dict": Model(TextClassifier, masked_tokens),
    "tuple": Model(TwoInputs, both(numbers(3), numbers(2))),
    "weight norm": Model(
        lambda c: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, c)), numbers(3)
    ),
}

LIKELIHOODS: dict[str, tuple[int, Likelihood]] = {
    "logit": (1, Bernoulli("logit")),
    "categorical": (3, Categorical()),
    "probit": (1, Bernoulli("probit")),
    "logit, 3 labels": (3, Bernoulli("logit")),
    "probit, 3 labels": (3, Bernoulli("probit")),
    "gaussian": (1, Gaussian(0.3)),
    "gaussian, 2 outputs": (2, Gaussian([0.5, 2.0])),
    "bradley_terry": (2, BradleyTerry()),
    "heteroscedastic": (2, HeteroscedasticGaussian()),
    "natural": (2, HeteroscedasticGaussian("natural")),
}
# Those whose targets are one label for each observation, without an axis of outputs.
LABELS = ("categorical", "bradley_terry")


@final
@dataclass(frozen=True)
class Case:
    """A network with filled weights, its inputs, targets and likelihood, and which of its weights are random."""

    module: nn.Module
    inputs: Any
    targets: Tensor
    likelihood: Likelihood
    weights: Any = "all"

    def rows(self, chosen: Tensor | slice) -> Case:
        """The same network on some of the rows."""
        return replace(self, inputs=take(self.inputs, chosen), targets=self.targets[chosen])


def take(inputs: Any, chosen: Tensor | slice) -> Any:
    """Some rows of inputs that are a tensor, a tuple or a dict of them."""
    if isinstance(inputs, dict):
        return {name: value[chosen] for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(value[chosen] for value in inputs)
    return inputs[chosen]


def fill(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Gives every parameter and running statistic a value of its own, and puts the module in training mode."""
    module = module.to(DTYPE)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator, dtype=DTYPE))
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                start = 0.5 if name.endswith("running_var") else 0.0
                buffer.copy_(start + torch.rand(buffer.shape, generator=generator, dtype=DTYPE))
    return module.train()


def draw_targets(likelihood: Likelihood, shape: tuple[int, ...], outputs: int, generator: torch.Generator) -> Tensor:
    """Targets that the network has not seen: labels, or numbers."""
    if likelihood.name in LABELS:
        return torch.randint(outputs, shape, generator=generator)
    if not likelihood.discrete:
        columns = outputs // 2 if likelihood.name == "heteroscedastic_gaussian" else outputs
        return torch.randn(*shape, columns, generator=generator, dtype=DTYPE)
    return torch.randint(2, (*shape, outputs), generator=generator)


def case(model: str, likelihood: str | None = None, *, outputs: int = 3, weights: Any = "all") -> Case:
    """A case by names; without a likelihood it is the Bernoulli for one output and the categorical for several."""
    entry = MODELS[model]
    if likelihood is None:
        chosen: Likelihood = Bernoulli("logit") if outputs == 1 else Categorical()
    else:
        outputs, chosen = LIKELIHOODS[likelihood]
    generator = torch.Generator().manual_seed(sum(map(ord, model)) + outputs)
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their first weights from the global generator
        module = entry.build(outputs)
    module = fill(module, generator)
    shape = (ROWS,) if entry.positions is None else (ROWS, entry.positions)
    inputs = entry.draw(generator)
    return Case(module, inputs, draw_targets(chosen, shape, outputs, generator), chosen, weights)


NAMES = [(model, outputs) for model, entry in MODELS.items() for outputs in entry.outputs]


# --- what the tests ask of the library --------------------------------------------------------------------------------


def fit(entry: Case, structure: str, curvature: str = "ggn", **options: Any) -> Curvature:
    """The library's answer, read in batches that do not divide the rows."""
    options = {"likelihood": entry.likelihood, "weights": entry.weights, "batch_size": BATCH, **options}
    return fit_curvature(
        entry.module, (entry.inputs, entry.targets), curvature=curvature, structure=structure, **options
    )


def assert_close(got: Tensor, want: Tensor, tolerance: float = 1e-7) -> None:
    """Equal to a part of the largest entry, which is not 0."""
    assert got.shape == want.shape
    scale = want.abs().max()
    assert scale > 0
    error = float((got - want).abs().max() / scale)
    assert error < tolerance, f"off by {error:.2e} of the largest entry"
