"""The networks of the estimators: linear layers with an elementwise function between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import nn

from bayescope import checks
from bayescope.errors import InputError
from bayescope.layers.outputs import Rescaled

Activation: TypeAlias = Literal["tanh", "relu", "sigmoid", "softplus", "silu", "gelu"]
ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


@final
@dataclass(frozen=True)
class Architecture:
    """What networks are made from.

    Attributes:
        features: columns of their inputs.
        hidden: units of each hidden layer.
        activation: the function after each of them, by name.
        outputs: C.
        rescaled: the last layer, where outputs have an origin and a unit of their own; else ``None``.
    """

    features: int
    hidden: tuple[int, ...]
    activation: Activation
    outputs: int
    rescaled: Rescaled | None = None

    @classmethod
    def checked(
        cls,
        features: int,
        hidden: Sequence[int],
        activation: Activation,
        outputs: int,
        rescaled: Rescaled | None = None,
    ) -> Architecture:
        """From the options of an estimator.

        Raises:
            InputError: if ``hidden`` is no sequence of positive whole numbers.
            OptionError: if the activation is unknown.
        """
        if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
            raise InputError(f"hidden: expected the units of each layer, such as (50, 50), got {hidden!r}.")
        units = tuple(checks.count("hidden", each) for each in hidden)
        return cls(features, units, checks.choice("activation", activation, ACTIVATIONS), outputs, rescaled)

    def network(self, seed: int) -> nn.Sequential:
        """A new network in float64.

        Weights of hidden layers are uniform within ±√(6/(inputs + outputs)), which keeps the size of activations and
        gradients from layer to layer (Glorot and Bengio 2010, eq. 16), and biases within ±1/√(inputs). Weights and
        biases of the last layer are 0, so that no class is ahead of another before the training.
        """
        source = torch.Generator().manual_seed(seed)
        sizes = [self.features, *self.hidden, self.outputs]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [_linear(inputs, outputs, source), ACTIVATIONS[self.activation]()]
        last = layers[-2]
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return nn.Sequential(*layers[:-1], *([] if self.rescaled is None else [deepcopy(self.rescaled)]))

    def fan_in(self) -> dict[str, float]:
        """The inputs of each linear layer, by its name: the prior precisions under which no layer grows or shrinks."""
        return {str(2 * place): float(size) for place, size in enumerate((self.features, *self.hidden))}

    def __str__(self) -> str:
        sizes = "-".join(map(str, (self.features, *self.hidden, self.outputs)))
        return f"{sizes} units, {self.activation}" if self.hidden else f"{sizes} units: a linear model"


def _linear(inputs: int, outputs: int, source: torch.Generator) -> nn.Linear:
    """A layer whose first weights come from the generator alone."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float64)
    bounds = math.sqrt(6.0 / (inputs + outputs)), 1.0 / math.sqrt(inputs)
    for parameter, bound in zip((layer.weight, layer.bias), bounds, strict=True):
        nn.init.uniform_(parameter, -bound, bound, generator=source)
    return layer
