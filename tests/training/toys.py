"""Small tables and networks for the tests of training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


def seeded(seed: int, *layers: tuple[type[nn.Module], tuple[float, ...]]) -> nn.Sequential:
    """Layers in a row, initialised from a seed, with the global generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(*(kind(*arguments) for kind, arguments in layers))


def perceptron(inputs: int = 2, hidden: int = 8, outputs: int = 1, *, seed: int = 0) -> nn.Sequential:
    """One hidden layer of tanh units, in float64."""
    return seeded(seed, (nn.Linear, (inputs, hidden)), (nn.Tanh, ()), (nn.Linear, (hidden, outputs))).double()


def noisy_network(*, seed: int = 0) -> nn.Sequential:
    """Batch norm and dropout between its layers, in float64."""
    layers = [(nn.Linear, (2, 8)), (nn.BatchNorm1d, (8,)), (nn.ReLU, ()), (nn.Dropout, (0.3,)), (nn.Linear, (8, 1))]
    return seeded(seed, *layers).double()


class Killed(Exception):
    """What stands for a process that ends."""


class Mortal(nn.Module):
    """A network, by default a noisy one, that dies after so many forward passes of its training."""

    def __init__(self, left: int, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.left = body or noisy_network(), left

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        if self.left < 0:
            raise Killed
        out: Tensor = self.body(x)
        return out


def last_epoch_left(checkpoint: Path, epochs: int) -> None:
    """Rewrite the checkpoint of a killed run: all epochs but the last one are over, each like the first."""
    content = torch.load(checkpoint, weights_only=True)
    state = content["state"]
    state["epoch"] = state["kept"] = epochs - 1
    state["trace"] = {name: values[:1] * (epochs - 1) for name, values in state["trace"].items()}
    torch.save(content, checkpoint)


def line(rows: int = 40, features: int = 2, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """A linear regression with noise, shapes (N, D) and (N, 1)."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, dtype=torch.float64, generator=source)
    slopes = torch.randn(features, 1, dtype=torch.float64, generator=source)
    return x, x @ slopes + 0.5 + 0.3 * torch.randn(rows, 1, dtype=torch.float64, generator=source)


def classes(rows: int = 60, features: int = 2, count: int = 2, *, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Overlapping clusters, one a class, shapes (N, D) and (N,)."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(count, (rows,), generator=source)
    centres = 1.5 * torch.randn(count, features, dtype=torch.float64, generator=source)
    return centres[y] + torch.randn(rows, features, dtype=torch.float64, generator=source), y


def flat(module: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
