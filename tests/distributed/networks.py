"""Small networks, their data and the forms in which several ranks are given them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bayescope.processes import present

ROWS, CLASSES = 31, 3  # the ranks' shares are not of one size
FIRST = 12  # the rows of rank 0, where the ranks have arrays of their own


def _filled(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return module


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Six inputs, eight tanh units, three classes."""
    layers = nn.utils.skip_init(nn.Linear, 6, 8), nn.Tanh(), nn.utils.skip_init(nn.Linear, 8, CLASSES)
    return _filled(nn.Sequential(*layers), dtype)


def cnn(dtype: torch.dtype = torch.float64) -> nn.Module:
    """The six inputs as an image of 2 × 3 pixels, a convolution, batch norm and a linear layer."""
    norm = nn.BatchNorm2d(4)
    layers = nn.utils.skip_init(nn.Conv2d, 1, 4, 2), norm, nn.Tanh(), nn.Flatten()
    return _filled(nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *layers, nn.utils.skip_init(nn.Linear, 8, CLASSES)), dtype)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn}


def examples(rows: int = ROWS, dtype: torch.dtype = torch.float64, *, seed: int = 2) -> tuple[Tensor, Tensor]:
    """X and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    return x.to(dtype), torch.randint(CLASSES, (rows,), generator=generator)


def _dealt_out(x: Tensor, y: Tensor) -> Any:
    data = TensorDataset(x, y)
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))


def _own_arrays(x: Tensor, y: Tensor) -> Any:
    """The first ranks have `FIRST` rows each, the next one the rest, and the others none."""
    own = slice(FIRST * present().rank, None if present().rank == present().count - 1 else FIRST * (present().rank + 1))
    return x[own], y[own]


# What each rank is given; one process alone gets (x, y).
FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arrays": lambda x, y: (x, y),
    "data set": TensorDataset,
    "batches": lambda x, y: list(zip(x.split(7), y.split(7), strict=True)),
    "sampler": _dealt_out,
    "own arrays": _own_arrays,
    "own loader": lambda x, y: DataLoader(TensorDataset(*_own_arrays(x, y)), batch_size=5),
}
