"""The speed of mean-field variational inference: a step against a plain SGD step, 100 samples against a forward pass.

784-256-128-10 with ReLU, 235,146 weights, in single precision and batches of 256. Everything runs in one process, in
turn. A step is the time from one forward pass in training to the next, as a hook on the network sees them, so that it
holds all that is done in between, whoever does it; what counts is the ratio of medians. Peers: bayesian-torch's layers,
and Pyro's stochastic variational inference with an AutoNormal guide.

    python -m bench.vi [--turns 5] [--threads 2] [--no-peers] [--quick]
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayescope as bs
from bench import record, turns
from bench.peers import bayesian_torch_network, pyro_step
from bench.turns import OURS, Machine, Work, in_turns, ratios, speed_table

BATCH, STEPS, SAMPLES = 256, 20, 100
ROWS = (STEPS + 1) * BATCH
LR = 1e-3
PLAIN, FORWARD = "plain SGD", "forward pass"
STEP, SGD_MAP, REPARAMETERIZED, FLIPOUT, ADAM = (
    "mean field, local reparameterisation", "fit_map", "mean field, reparameterisation", "mean field, flipout",
    "mean field, local reparameterisation, Adam",
)  # fmt: skip
PREDICT = f"predictions with {SAMPLES} samples"
# A product with the means and one with the variances, forwards and twice backwards; with drawn weights a single one.
WEIGHTS = 235_146
STEP_FLOPS = 6.0 * BATCH * WEIGHTS
FLOORS = {
    STEP: 2.0 * STEP_FLOPS, ADAM: 2.0 * STEP_FLOPS, REPARAMETERIZED: STEP_FLOPS, FLIPOUT: 2.0 * STEP_FLOPS,
    SGD_MAP: STEP_FLOPS, PREDICT: SAMPLES * 2.0 * BATCH * WEIGHTS,
}  # fmt: skip
BUDGETS = {STEP: (3.0, 2.2), PREDICT: (130.0, 60.0)}

Key = tuple[str, str]  # what is done, and by whom

_begun: list[float] = []


class _EnoughError(Exception):
    """As many steps as are timed have been made: what a training does after its last one is not waited for."""


def _note(module: nn.Module, _: Any) -> None:
    if not module.training:
        return
    _begun.append(time.perf_counter())
    if len(_begun) > STEPS:
        raise _EnoughError


def network() -> nn.Module:
    """The network, whose forward passes in training are noted."""
    module = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    module.register_forward_pre_hook(_note)
    return module


def steps_of(run: Callable[[], object]) -> list[float]:
    """Seconds from one forward pass in training to the next."""
    _begun.clear()
    with suppress(_EnoughError):
        run()
    return [after - before for before, after in pairwise(_begun)]


def plain_sgd(module: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor] | None = None) -> None:
    """A loop as one writes it."""
    module = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for start in range(0, len(x), BATCH):
        rows = slice(start, start + BATCH)
        optimizer.zero_grad()
        value = F.cross_entropy(module(x[rows]), y[rows])
        (value if loss is None else value + loss(module)).backward()
        optimizer.step()


def our_steps(module: nn.Module, x: Tensor, y: Tensor) -> dict[Key, Callable[[], object]]:
    """Our trainings."""
    common: dict[str, Any] = {
        "likelihood": "categorical", "epochs": 1, "batch_size": BATCH, "lr": LR, "generator": 0, "progress": False,
    }  # fmt: skip

    def fit(estimator: str, optimizer: str = "sgd") -> Callable[[], object]:
        return lambda: bs.variational(module, (x, y), estimator=estimator, optimizer=optimizer, **common)

    return {
        (SGD_MAP, OURS): lambda: bs.fit_map(module, (x, y), optimizer="sgd", **common),
        (STEP, OURS): fit("local_reparameterization"),
        (REPARAMETERIZED, OURS): fit("reparameterization"),
        (FLIPOUT, OURS): fit("flipout"),
        (ADAM, OURS): fit("local_reparameterization", "adam"),
    }


def peer_steps(module: nn.Module, x: Tensor, y: Tensor) -> dict[Key, Callable[[], object]]:
    """Steps of the peers that are there."""
    found: dict[Key, Callable[[], object]] = {}
    for name, kind in ((REPARAMETERIZED, "Reparameterization"), (FLIPOUT, "Flipout")):
        peer, penalty = bayesian_torch_network(module, kind)
        found[name, "bayesian-torch"] = lambda peer=peer, penalty=penalty: plain_sgd(peer, x, y, penalty)
    step = pyro_step(module)

    def svi() -> None:
        for start in range(0, len(x), BATCH):
            step(x[start : start + BATCH], y[start : start + BATCH])

    return {**found, (REPARAMETERIZED, "Pyro, AutoNormal"): svi}


def predictions(module: nn.Module, x: Tensor, y: Tensor, *, peers: bool) -> dict[Key, Callable[[], object]]:
    """A forward pass of a batch, and as many predictive probabilities."""
    rows = x[:BATCH]
    q = bs.variational(module, (rows, y[:BATCH]), likelihood="categorical", epochs=1, generator=0, progress=False)
    plain = copy.deepcopy(module).eval()
    works: dict[Key, Callable[[], object]] = {
        (FORWARD, OURS): lambda: plain(rows),
        (PREDICT, OURS): lambda: q.predict(rows, samples=SAMPLES, generator=0).probs,
    }
    if peers:
        layered = bayesian_torch_network(module, "Reparameterization")[0].eval()
        works[PREDICT, "bayesian-torch"] = lambda: torch.stack(
            [layered(rows).softmax(-1) for _ in range(SAMPLES)]
        ).mean(0)
    return works


def works_of(unit: str, runs: dict[Key, Callable[[], object]]) -> list[Work]:
    """What is timed, with its budget and its floor."""
    return [
        Work(name, run, unit, who, budget=budget, goal=goal, flops=FLOORS.get(name, 0.0))
        for (name, who), run in runs.items()
        for budget, goal in [BUDGETS.get(name, (0.0, 0.0))]
    ]


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    options = turns.chosen(parser)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    peers = options.peers
    module, x, y = network(), torch.randn(ROWS, 784), torch.randint(10, (ROWS,))
    trainings = {(PLAIN, OURS): lambda: plain_sgd(module, x, y), **our_steps(module, x, y)}
    if peers:
        trainings |= peer_steps(module, x, y)
    steps, passes = works_of(PLAIN, trainings), works_of(FORWARD, predictions(module, x, y, peers=peers))
    with torch.random.fork_rng():
        in_turns(steps, options.turns, options.turns, measure=lambda work: median(steps_of(work.run)))
        with torch.no_grad():
            in_turns(passes, options.turns, options.turns, inner=lambda work: 20 if work.is_unit else 1)
    machine = Machine.measured()
    found = ratios(steps, machine) + ratios(passes, machine)
    how = (
        "784-256-128-10 with ReLU, 235,146 weights, float32, batches of 256; ratios in the same turn of one process: "
        "the median, and the least and greatest. bayesian-torch and Pyro draw weights for a batch or by flipout; they "
        "have no local reparameterisation."
    )
    record.publish(options, "bench.vi", "Variational inference: speed", how, [speed_table(found)], {"ratios": found})


if __name__ == "__main__":
    main()
