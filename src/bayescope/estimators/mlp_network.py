"""The networks of the estimators: linear layers with an elementwise function between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope import checks
from bayescope.errors import InputError
from bayescope.layers.rescaled import Rescaled
from bayescope.tables.scaling import Standard

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


@final
@dataclass(frozen=True, eq=False)
class Units:
    """Of the targets of a regression: y = shift + scale · z, for each of D columns.

    Attributes:
        shift: the means, shape (D,).
        scale: the standard deviations, 1 where there is none, shape (D,).
    """

    shift: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, targets: np.ndarray, weights: np.ndarray) -> Units:
        """From targets (N, D) and how often each row counts, (N,)."""
        each = [Standard.fit(column, weights) for column in targets.T]
        return cls(np.array([one.mean for one in each]), np.array([one.scale for one in each]))

    def standardised(self, targets: np.ndarray) -> np.ndarray:
        """z of y, shape (N, D)."""
        return (targets - self.shift) / self.scale

    def given(self, standardised: Tensor) -> Tensor:
        """y of z, shape (N, D)."""
        return standardised * torch.from_numpy(self.scale) + torch.from_numpy(self.shift)

    def notes(self) -> dict[str, str]:
        """What a summary says of them."""
        each = (
            f"less {shift:.6g}, divided by {scale:.6g}" for shift, scale in zip(self.shift, self.scale, strict=True)
        )
        return {"y inside the network": "; ".join(each)}

    def restored(self, network: nn.Sequential) -> nn.Sequential:
        """A network for z as one for y, of the same layers."""
        return nn.Sequential(*network, Rescaled.of(self.shift, self.scale))

    def maker(self, make: Callable[[int], nn.Sequential]) -> Callable[[int], nn.Sequential]:
        """The same for a function that makes networks from seeds."""
        return lambda seed: self.restored(make(seed))


@final
@dataclass(frozen=True)
class Architecture:
    """What networks are made from.

    Attributes:
        features: columns of their inputs.
        hidden: units of each hidden layer.
        activation: the function after each of them, by name.
        outputs: C.
    """

    features: int
    hidden: tuple[int, ...]
    activation: str
    outputs: int

    @classmethod
    def checked(cls, features: int, hidden: Any, activation: Any, outputs: int) -> Architecture:
        """From the options of an estimator.

        Raises:
            InputError: if ``hidden`` is no sequence of positive whole numbers.
            OptionError: if the activation is unknown.
        """
        if isinstance(hidden, str) or not isinstance(hidden, Sequence | np.ndarray):
            raise InputError(f"hidden: expected the units of each layer, such as (50, 50), got {hidden!r}.")
        units = tuple(checks.count("hidden", each) for each in hidden)
        return cls(features, units, checks.choice("activation", activation, ACTIVATIONS), outputs)

    def network(self, seed: int) -> nn.Sequential:
        """A new network in float64.

        Weights and biases of hidden layers are uniform within ±1/√(inputs). Those of the last layer are 0, so that no
        class is ahead of another before the training.
        """
        source = torch.Generator().manual_seed(seed)
        sizes = [self.features, *self.hidden, self.outputs]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [_linear(inputs, outputs, source), ACTIVATIONS[self.activation]()]
        last = layers[-2]
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return nn.Sequential(*layers[:-1])

    def fan_in(self) -> dict[str, float]:
        """The inputs of each linear layer, by its name: the prior precisions under which no layer grows or shrinks."""
        return {str(2 * place): float(size) for place, size in enumerate((self.features, *self.hidden))}

    def __str__(self) -> str:
        sizes = "-".join(map(str, (self.features, *self.hidden, self.outputs)))
        return f"{sizes} units, {self.activation}" if self.hidden else f"{sizes} units: a linear model"


def _linear(inputs: int, outputs: int, source: torch.Generator) -> nn.Linear:
    """A layer whose first weights come from the generator alone."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float64)
    for parameter in layer.parameters():
        bound = 1.0 / math.sqrt(inputs)
        nn.init.uniform_(parameter, -bound, bound, generator=source)
    return layer
