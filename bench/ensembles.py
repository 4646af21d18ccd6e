"""Ensembles of five members: one training step of all of them, side by side and one after another.

Seconds are the processor's, in one thread, the medians of runs that take turns; a plain loop in PyTorch, with the same
minibatches and the same optimiser for one member after another, stands beside them.

    python -m bench.ensembles [--turns 5] [--quick]
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayescope.ensembles import ensemble
from bench import record, turns
from bench.turns import Machine, Work, in_turns, ratios, speed_table

MEMBERS, NOISE = 5, 1.0


class Size(NamedTuple):
    """A network by the widths of its layers, its minibatches, and how many steps are timed."""

    widths: tuple[int, ...]
    batch_size: int
    steps: int

    @property
    def weights(self) -> int:
        """P of a member."""
        return sum(wide * (narrow + 1) for narrow, wide in pairwise(self.widths))

    def make(self) -> nn.Module:
        """A member: rectified linear units."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(self.widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


SIZES = [
    Size((8, 50, 1), 128, 400),
    Size((1, 50, 50, 1), 32, 400),
    Size((20, 100, 100, 2), 128, 150),
    Size((50, 200, 200, 10), 128, 80),
    Size((784, 256, 128, 10), 128, 20),
    Size((784, 256, 128, 10), 256, 20),
]


def data_of(size: Size) -> tuple[Tensor, Tensor]:
    """Rows for ten steps an epoch."""
    source = torch.Generator().manual_seed(0)
    rows = 10 * size.batch_size
    return torch.randn(rows, size.widths[0], generator=source), torch.randn(rows, size.widths[-1], generator=source)


def bayescope(size: Size, data: tuple[Tensor, Tensor], *, side_by_side: bool | None) -> None:
    """The ensemble."""
    ensemble(
        size.make, data, likelihood="gaussian", members=MEMBERS, side_by_side=side_by_side, epochs=size.steps // 10,
        batch_size=size.batch_size, generator=0, progress=False,
    )  # fmt: skip


def plain(size: Size, data: tuple[Tensor, Tensor]) -> None:
    """One member after another as a user would write it: a shuffled epoch, the loss with its penalty, Adam."""
    x, y = data
    for _ in range(MEMBERS):
        module = size.make()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)
        for _ in range(size.steps // 10):
            for rows in torch.randperm(len(x)).split(size.batch_size):
                optimizer.zero_grad()
                penalty = torch.stack([parameter.square().sum() for parameter in module.parameters()]).sum()
                loss = 0.5 * (module(x[rows]) - y[rows]).square().sum() / len(rows) / NOISE + 0.5 * penalty / len(x)
                loss.backward()
                optimizer.step()


def works_of(size: Size) -> list[Work]:
    """The ways to train five members, beside a plain loop."""
    data, name = data_of(size), f"{'-'.join(map(str, size.widths))}, batch {size.batch_size}"
    unit, flops = f"{name}: plain loop", MEMBERS * size.steps * 6.0 * size.batch_size * size.weights
    ways = {"side by side": True, "one after another": False, "by default": None}
    return [
        Work(unit, lambda: plain(size, data), unit),
        *(Work(f"{name}: {way}", partial(bayescope, size, data, side_by_side=chosen), unit, flops=flops)
          for way, chosen in ways.items()),
    ]  # fmt: skip


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    options = turns.chosen(parser)
    torch.set_num_threads(1)
    machine = Machine.measured()
    found: list[dict[str, Any]] = []
    for size in SIZES[:2] if options.quick else SIZES:
        works = works_of(size)
        in_turns(works, options.turns, clock=time.process_time)
        found += ratios(works, machine)
    how = (
        f"A training of {MEMBERS} members for some epochs, as a ratio of the processor's time to that of a plain loop "
        "in PyTorch over the members, in the same turn: the median, and the least and greatest. One thread."
    )
    record.publish(options, "bench.ensembles", "Ensembles: speed", how, [speed_table(found)], {"ratios": found})


if __name__ == "__main__":
    main()
