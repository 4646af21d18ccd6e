"""What one batched computation of all feature nets costs: beside a dense network, and beside a loop over the nets.

First, a training step (loss, gradient, Adam) on a minibatch of a table with 30 features, in float32: `AdditiveNetwork`
in training mode, the same nets as a Python loop over small modules, and dense networks with one and two hidden layers
of tanh with as many weights. Models take turns within one run; a ratio is that of the medians to the two-layer dense
network's. Then an epoch of the library's own fit: one damped Gauss-Newton step of all weights, the blocks of the
curvature and the evidence with its update, over all rows, beside an epoch of the dense network at batches of 128.

    python -m bench.additive [--threads 1] [--turns 5] [--quick]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.additive.design import Design
from bayescope.additive.families import HiddenNets
from bayescope.additive.fit import FIRST_DAMPING, BlockEvidence, first_precisions, step
from bayescope.additive.network import AdditiveNetwork
from bayescope.additive.problem import AdditiveHyperparameters, AdditiveProblem
from bayescope.additive.terms import EncodedRows, FeatureInput, Term
from bayescope.likelihoods import Gaussian
from bench import record, turns
from bench.turns import Machine, Work, in_turns, ratios, speed_table

FEATURES, HIDDEN = 30, 32
NET = 3 * HIDDEN  # weights of one net
BATCHES = (128, 256, 1024)
STEPS = 40
ROWS = (500, 5000, 20000)
BASE = "dense, two hidden layers"
LOOP = "a loop over nets"


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


def steps(times: int, machine: Machine) -> list[dict[str, Any]]:
    """Training steps on minibatches."""
    generator = torch.Generator().manual_seed(0)
    additive = AdditiveNetwork(FEATURES, hidden=HIDDEN, generator=generator)
    models = {"batched nets": additive, LOOP: Loop(), "dense, one hidden layer": dense(1, count(additive))}
    found = []
    for batch in BATCHES:
        x, y = torch.randn(batch, FEATURES, generator=generator), torch.randn(batch, 1, generator=generator)
        title = f"training step, batch {batch}"
        unit = f"{title}: {BASE}"
        base = Work(unit, trainer(dense(2, count(additive)), x, y), unit)
        works = {
            name: Work(f"{title}: {name}", trainer(module, x, y), unit, flops=6.0 * batch * count(module))
            for name, module in models.items()
        }
        works["batched nets"].budget = 2.0
        loop = works.pop(LOOP)  # by itself: its many small tensors would fall into the others' turns
        for together in ([base, *works.values()], [replace(base, seconds=[]), loop]):
            in_turns(together, times, clock=time.process_time, inner=lambda _: STEPS)
            found += ratios(together, machine)
    return found


def gauss_newton(x: Tensor, y: Tensor) -> Callable[[], None]:
    """An epoch of the fit of an additive model, which goes on from where the last one ended."""
    rows = EncodedRows(x, torch.full(x.shape, -1))
    weights = torch.ones(len(x), dtype=torch.float64)
    family = HiddenNets.of([Term(f"x{j}", (FeatureInput(j),)) for j in range(FEATURES)], HIDDEN, 1)
    design = Design.of(family, rows, weights)
    first = family.start(design.points, design.mass, torch.Generator().manual_seed(0))
    theta = torch.cat([first.flatten(), torch.zeros(1, dtype=torch.float64)])
    problem = AdditiveProblem((family,), (design,), y, weights, theta, None)
    at = AdditiveHyperparameters(first_precisions(problem, inner=0.3, other=1.0), 1e-4, Gaussian(0.5))
    damping, linear = FIRST_DAMPING, problem.linearized(theta, at.likelihood)

    def run() -> None:
        nonlocal theta, at, damping, linear
        taken = step(problem, theta, at, damping, linear)
        theta, damping = taken.theta, taken.damping
        linear = problem.linearized(theta, at.likelihood, taken.f)
        evidence = BlockEvidence.of(problem, theta, at, linear)
        at = evidence.raised(problem, at, "layer", learn=True, fixed=False)
        linear = linear.under(at.likelihood)

    return run


def epochs(times: int, machine: Machine) -> list[dict[str, Any]]:
    """Epochs of the library's own fit."""
    # Of each net the products of a pass, forwards and twice backwards, and its block JᵀΛJ, which is symmetric.
    weights, blocks = FEATURES * NET, FEATURES * NET**2
    found = []
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

        title = f"epoch, {n:,} rows"
        unit = f"{title}: {BASE}"
        works = [
            Work(unit, minibatches, unit),
            Work(f"{title}: Gauss-Newton and evidence", gauss_newton(x, y), unit, flops=n * (6.0 * weights + blocks)),
        ]
        in_turns(works, times, clock=time.process_time, inner=lambda _: 2)
        found += ratios(works, machine)
    return found


def main() -> None:
    """Runs both and writes them."""
    parser = turns.arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    options = turns.chosen(parser)
    torch.set_num_threads(options.threads)
    # What a program that reads tables has long done: the allocator keeps memory of this size instead of giving it back.
    torch.empty(7_000_000)
    found = [*steps(options.turns, Machine.measured()), *epochs(options.turns, Machine.measured(dtype=torch.float64))]
    how = (
        f"{FEATURES} features, nets of {HIDDEN} hidden units, beside a dense network of two hidden layers and as many "
        "weights, in the same turn of one process: the median, and the least and greatest. Times are of the CPU."
    )
    record.publish(options, "bench.additive", "Additive models: speed", how, [speed_table(found)], {"ratios": found})


if __name__ == "__main__":
    main()
