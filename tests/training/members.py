"""Networks that begin apart, and rows for each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

MEMBERS = 3


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))


def made(make: Callable[[], nn.Module], count: int = MEMBERS) -> list[nn.Module]:
    """Networks that begin apart, in float64, with the global generator as it was."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return [make().double() for _ in range(count)]


def rows_of_each(rows: int = 6) -> Tensor:
    """Other rows for each member, (B, M, 2)."""
    return torch.randn(rows, MEMBERS, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
