"""What one batched computation of all feature nets costs: beside a dense network, and beside a loop over the nets.

First, a training step (loss, gradient, Adam) on a minibatch of a table with 30 features, in float32: `AdditiveNetwork`
in training mode, the same nets as a Python loop over small modules, and dense networks with one and two hidden layers
of tanh with as many weights. Models take turns within one run; a ratio is that of the medians to the two-layer dense
network's. Then an epoch of the library's own fit: one damped Gauss-Newton step of all weights, the blocks of the
curvature and the evidence with its update, over all rows, beside an epoch of the dense network at batches of 128.

    python -m bench.additive [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from bayescope.additive.design import Design
from bayescope.additive.evidence import Evidence, first_precisions
from bayescope.additive.families import HiddenNets
from bayescope.additive.network import AdditiveNetwork
from bayescope.additive.newton import FIRST_DAMPING, step
from bayescope.additive.problem import Hyperparameters, Problem, State
from bayescope.additive.terms import Column, Rows, Term
from bayescope.likelihoods import Gaussian

RESULTS = Path(__file__).parent / "results" / "additive_speed"
FEATURES, HIDDEN = 30, 32
BATCHES = (128, 256, 1024)
ROUNDS = 200
ROWS = (500, 5000, 20000)
EPOCHS = 8
BASE = "dense, two hidden layers"
LOOP = "additive, a loop over nets"


@dataclass(frozen=True)
class Row:
    """A line of a table: seconds are medians, `fastest` the least of them; both ratios are to the dense network's."""

    work: str
    who: str
    weights: int
    size: int
    seconds: float
    fastest: float
    ratio: float
    ratio_of_fastest: float


class Loop(nn.Module):
    """The nets one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1, bias=False)) for _ in range(FEATURES)
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of all."""
        return self.bias + sum(net(x[:, j, None]) for j, net in enumerate(self.nets))


def dense(layers: int, weights: int) -> nn.Module:
    """A network of tanh layers of one width, as close to so many weights as it can be."""
    if layers == 1:
        width = round((weights - 1) / (FEATURES + 2))
        return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, 1))
    half = (FEATURES + 3) / 2
    width = round(math.sqrt(half**2 + weights - 1) - half)
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )  # fmt: skip


def count(module: nn.Module) -> int:
    """The number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


def trainer(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One training step."""
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimiser.zero_grad()
        (module(x) - y).square().mean().backward()
        optimiser.step()

    return run


def timed(run: Callable[[], object]) -> float:
    """Seconds of CPU time, which other work on the machine does not enter: on one thread the time that it takes."""
    start = time.process_time()
    run()
    return time.process_time() - start


def in_turns(work: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, taken in turns, the first tenth left out."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            seconds[name].append(timed(run))
    return {name: taken[rounds // 10 :] for name, taken in seconds.items()}


def steps() -> list[Row]:
    """The first table."""
    generator = torch.Generator().manual_seed(0)
    additive = AdditiveNetwork(FEATURES, hidden=HIDDEN, generator=generator)
    models = {
        "additive, batched": additive,
        LOOP: Loop(),
        "dense, one hidden layer": dense(1, count(additive)),
        BASE: dense(2, count(additive)),
    }
    rows = []
    for batch in BATCHES:
        x, y = torch.randn(batch, FEATURES, generator=generator), torch.randn(batch, 1, generator=generator)
        runs = {name: trainer(module, x, y) for name, module in models.items()}
        loop = {LOOP: runs.pop(LOOP)}  # by itself: its many small tensors would fall into the others' turns
        seconds = in_turns(runs, ROUNDS) | in_turns(loop, ROUNDS // 4)
        rows += [
            row(f"training step, batch {batch}", name, count(models[name]), batch, taken, seconds[BASE])
            for name, taken in seconds.items()
        ]
    return rows


def row(work: str, who: str, weights: int, size: int, taken: list[float], base: list[float]) -> Row:
    """A line with its ratios."""
    middle, least = median(taken), min(taken)
    return Row(work, who, weights, size, middle, least, middle / median(base), least / min(base))


def gauss_newton(x: Tensor, y: Tensor) -> Callable[[], None]:
    """An epoch of the fit of an additive model, which goes on from where the last one ended."""
    rows = Rows(x, torch.full(x.shape, -1))
    weights = torch.ones(len(x), dtype=torch.float64)
    family = HiddenNets.of([Term(f"x{j}", (Column(j),)) for j in range(FEATURES)], HIDDEN, 1)
    design = Design.of(family, rows, weights)
    first = family.start(design.points, design.mass, torch.Generator().manual_seed(0))
    problem = Problem((family,), (design,), y, weights, (first,), None)
    state = State((first,), torch.zeros(1, dtype=torch.float64))
    at = Hyperparameters(first_precisions(problem, inner=0.3, other=1.0), 1e-4, Gaussian(0.5))
    damping, linear = FIRST_DAMPING, problem.linearized(state, at.likelihood)

    def run() -> None:
        nonlocal state, at, damping, linear
        taken = step(problem, state, at, damping, linear)
        state, damping = taken.state, taken.damping
        linear = problem.linearized(state, at.likelihood, taken.f)
        evidence = Evidence.of(problem, state, at, linear)
        at = evidence.raised(problem, at, "layer", learn=True, fixed=False)
        linear = linear.under(at.likelihood)

    return run


def epochs() -> list[Row]:
    """The second table."""
    rows = []
    for n in ROWS:
        generator = torch.Generator().manual_seed(n)
        x = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
        f = torch.sin(2.0 * x[:, :1]) + x[:, 1:2].square() - 1.0
        y = (f + 0.3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)) / 1.6
        module = dense(2, count(AdditiveNetwork(FEATURES, hidden=HIDDEN, generator=0)))
        batches = zip(x.float().split(128), y.float().split(128), strict=True)
        runs = [trainer(module, some, target) for some, target in batches]

        def minibatches(runs: list[Callable[[], None]] = runs) -> None:
            for run in runs:
                run()

        who = {"additive, Gauss-Newton and evidence": gauss_newton(x, y), BASE: minibatches}
        seconds = in_turns(who, EPOCHS)
        rows += [
            row(f"epoch, {n:,} rows", name, count(module), n, taken, seconds[BASE]) for name, taken in seconds.items()
        ]
    return rows


def written(rows: list[Row], threads: int) -> str:
    """The tables, in Markdown."""
    lines = [
        f"# Additive models: {FEATURES} features, nets of {HIDDEN} hidden units",
        "",
        f"`python -m bench.additive --threads {threads}` on {platform.machine()}, {os.cpu_count()} CPUs, {threads} "
        f"thread(s), load {os.getloadavg()[0]:.1f}, torch {torch.__version__}. Ratios are to the dense network of two "
        "hidden layers in the same run. Times are of the CPU, so that other work on the machine does not enter but by "
        "the caches that it takes; the least stand beside the medians.",
        "",
        "| work | who | weights | median CPU ms | ratio | least | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.work} | {r.who} | {r.weights:,} | {1e3 * r.seconds:.3g} | {r.ratio:.2f} | {1e3 * r.fastest:.3g} | "
        f"{r.ratio_of_fastest:.2f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs both tables and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    # What a program that reads tables has long done: the allocator keeps memory of this size instead of giving it back.
    torch.empty(7_000_000)
    rows = [*steps(), *epochs()]
    RESULTS.with_suffix(".json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    text = written(rows, threads)
    RESULTS.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
