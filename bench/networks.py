"""The networks that speeds are measured on, with their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.floors import Layer

BATCH = 256
WIDTHS = (784, 256, 128, 10)


def dense(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


def mlp(rows: int = 10_000, activation: type[nn.Module] = nn.Tanh) -> tuple[nn.Module, Tensor, Tensor]:
    """784-256-128-10."""
    return dense(WIDTHS, activation), torch.randn(rows, WIDTHS[0]), torch.randint(10, (rows,))


def cnn(rows: int = 1024) -> tuple[nn.Module, Tensor, Tensor]:
    """Three stages of two convolutions, 16-32-64 channels, on 3×32×32."""
    layers: list[nn.Module] = []
    for into, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    return model, torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))


def headed(classes: int, rows: int = 4096) -> tuple[nn.Module, Tensor, Tensor]:
    """A body of at least 20 times the flops of its last layer."""
    wide = 2048 if classes > 100 else 1024
    return dense((1024, wide, wide, 512, classes), nn.ReLU), torch.randn(rows, 1024), torch.randint(classes, (rows,))


def layers_of(model: nn.Module, x: Tensor) -> list[Layer]:
    """Linear layers and convolutions in the order of a row's pass, with the sizes that floors are counted from."""
    found: list[Layer] = []

    def note(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        into = int(layer.weight[0].numel()) + (layer.bias is not None)
        found.append(Layer(into, len(layer.weight), output[0].numel() // len(layer.weight)))

    hooks = [
        each.register_forward_hook(note) for each in model.modules() if isinstance(each, (nn.Linear, nn.Conv2d))
    ]  # fmt: skip
    with torch.no_grad():
        model(x[:1])
    for hook in hooks:
        hook.remove()
    return found


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of `BATCH` rows."""
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def forward(model: nn.Module, x: Tensor) -> None:
    """A pass without gradients over all rows."""
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            model(x[start : start + BATCH])


def forward_backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """An epoch of gradients without a step."""
    for xb, yb in batches(x, y):
        model.zero_grad()
        F.cross_entropy(model(xb), yb, reduction="sum").backward()
