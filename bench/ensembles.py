"""Ensembles of five members: one training step of all of them, side by side and one after another.

Seconds are the processor's, in one thread, the medians of runs that take turns; a plain loop in PyTorch, with the same
minibatches and the same optimiser for one member after another, stands beside them.

    python -m bench.ensembles [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayescope.ensembles import ensemble
from bayescope.training.stack import MOST_PRODUCTS

RESULTS = Path(__file__).parent / "results" / "ensembles"
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


def seconds(works: Sequence[Callable[[], None]], repeats: int) -> list[float]:
    """The median processor time of each, taking turns; what is done once in a process is done before."""
    for work in works:
        work()
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, times in zip(works, taken, strict=True):
            begun = time.process_time()
            work()
            times.append(time.process_time() - begun)
    return [median(times) for times in taken]


def measure(size: Size, repeats: int) -> dict[str, Any]:
    """The line of a size, in milliseconds a step of all members."""
    data = data_of(size)
    together, apart, own, torch_loop = (
        1e3 * value / size.steps
        for value in seconds(
            [
                lambda: bayescope(size, data, side_by_side=True),
                lambda: bayescope(size, data, side_by_side=False),
                lambda: bayescope(size, data, side_by_side=None),
                lambda: plain(size, data),
            ],
            repeats,
        )
    )
    return {
        "widths": "-".join(map(str, size.widths)),
        "batch_size": size.batch_size,
        "weights": size.weights,
        "chosen": "side by side" if size.batch_size * size.weights <= MOST_PRODUCTS else "one after another",
        "side_by_side_ms": together,
        "one_after_another_ms": apart,
        "by_default_ms": own,
        "plain_torch_ms": torch_loop,
        "ratio": own / apart,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown."""
    head = [
        "| network | batch | side by side | one after another | by default | plain loop | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [
        f"| {r['widths']} | {r['batch_size']} | {r['side_by_side_ms']:.2f} ms | {r['one_after_another_ms']:.2f} ms "
        f"| {r['by_default_ms']:.2f} ms, {r['chosen']} | {r['plain_torch_ms']:.2f} ms | {r['ratio']:.2f} |"
        for r in rows
    ]
    return "\n".join(head + lines)


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    rows = [measure(size, repeats) for size in SIZES]
    text = table(rows)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    RESULTS.with_suffix(".json").write_text(json.dumps({**machine, "repeats": repeats, "rows": rows}, indent=1) + "\n")
    title = f"# A training step of {MEMBERS} members (processor time, one thread)\n\n"
    title += "The ratio is the default's to one after another's.\n\n"
    RESULTS.with_suffix(".md").write_text(title + text + "\n")


if __name__ == "__main__":
    main()
