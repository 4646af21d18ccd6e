"""The speed of mean-field variational inference: a step against a plain SGD step, 100 samples against a forward pass.

784-256-128-10 with ReLU, 235,146 weights, in single precision and batches of 256. Everything runs in one process, in
turn. A step is the time from one forward pass in training to the next, as a hook on the network sees them, so that it
holds all that is done in between, whoever does it; what counts is the ratio of medians. Peers: bayesian-torch's layers,
and Pyro's stochastic variational inference with an AutoNormal guide.

    python -m bench.variational [--repeats 5] [--threads 2] [--no-peers]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayescope as bs

RESULTS = Path(__file__).parent / "results" / "variational"
BATCH, STEPS, SAMPLES = 256, 20, 100
ROWS = (STEPS + 1) * BATCH
LR = 1e-3
PLAIN, FORWARD = "plain SGD", "forward pass"
STEP, SGD_MAP, REPARAMETERIZED, FLIPOUT, ADAM = (
    "mean field, local reparameterisation", "fit_map", "mean field, reparameterisation", "mean field, flipout",
    "mean field, local reparameterisation, Adam",
)  # fmt: skip
PREDICT = f"predictions with {SAMPLES} samples"
BUDGETS = {STEP: "≤ 3, goal 2.2", PREDICT: "≤ 130, goal 60"}

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


def our_steps(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """Our trainings."""
    common: dict[str, Any] = {
        "likelihood": "categorical", "epochs": 1, "batch_size": BATCH, "lr": LR, "generator": 0, "progress": False,
    }  # fmt: skip

    def fit(estimator: str, optimizer: str = "sgd") -> Callable[[], object]:
        return lambda: bs.variational(module, (x, y), estimator=estimator, optimizer=optimizer, **common)

    return {
        SGD_MAP: lambda: bs.fit_map(module, (x, y), optimizer="sgd", **common),
        STEP: fit("local_reparameterization"),
        REPARAMETERIZED: fit("reparameterization"),
        FLIPOUT: fit("flipout"),
        ADAM: fit("local_reparameterization", "adam"),
    }


def layered_peer(module: nn.Module, kind: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """The network in bayesian-torch's layers of a kind, and their KL for a batch."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    peer = copy.deepcopy(module)
    options = {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0, "type": kind,
        "moped_enable": False, "moped_delta": 0.5,
    }  # fmt: skip
    dnn_to_bnn(peer, options)
    return peer, lambda m: get_kl_loss(m) / 60_000


def pyro_step(module: nn.Module) -> Callable[[Tensor, Tensor], object]:
    """A step of Pyro's SVI with independent Gaussians."""
    import pyro
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroSample
    from pyro.nn.module import to_pyro_module_

    peer = copy.deepcopy(module).train()
    to_pyro_module_(peer)
    for layer in peer.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            prior = pyro.distributions.Normal(torch.zeros_like(value), 1.0).to_event(value.ndim)
            setattr(layer, name, PyroSample(prior))

    def model(x: Tensor, y: Tensor) -> None:
        f = peer(x)
        with pyro.plate("rows", 60_000, subsample=x):
            pyro.sample("y", pyro.distributions.Categorical(logits=f), obs=y)

    pyro.clear_param_store()
    guide = AutoNormal(model, init_scale=0.05)
    return SVI(model, guide, pyro.optim.SGD({"lr": 1e-9}), TraceMeanField_ELBO()).step


def peer_steps(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """Steps of the peers that are there."""
    found: dict[str, Callable[[], object]] = {}
    for kind in ("Reparameterization", "Flipout"):
        peer, penalty = layered_peer(module, kind)
        found[f"bayesian-torch, {kind.lower()}"] = lambda peer=peer, penalty=penalty: plain_sgd(peer, x, y, penalty)
    step = pyro_step(module)

    def svi() -> None:
        for start in range(0, len(x), BATCH):
            step(x[start : start + BATCH], y[start : start + BATCH])

    return {**found, "Pyro, AutoNormal": svi}


def predictions(module: nn.Module, x: Tensor, y: Tensor, *, peers: bool) -> dict[str, Callable[[], object]]:
    """A forward pass of a batch, and as many predictive probabilities."""
    rows = x[:BATCH]
    q = bs.variational(module, (rows, y[:BATCH]), likelihood="categorical", epochs=1, generator=0, progress=False)
    plain = copy.deepcopy(module).eval()
    works: dict[str, Callable[[], object]] = {
        FORWARD: lambda: plain(rows),
        PREDICT: lambda: q.predict(rows, samples=SAMPLES, generator=0).probs,
    }
    if peers:
        layered = layered_peer(module, "Reparameterization")[0].eval()
        works["bayesian-torch, reparameterization, 100 passes"] = lambda: torch.stack(
            [layered(rows).softmax(-1) for _ in range(SAMPLES)]
        ).mean(0)
    return works


def table(title: str, unit: str, seconds: dict[str, Sequence[float]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines and records of ratios to a unit."""
    one = median(seconds[unit])
    lines, records = [f"| {title} | budget | median | ratio to {unit} |", "|---|---|---|---|"], []
    for name, times in seconds.items():
        middle = median(times)
        records.append({"work": name, "milliseconds": 1e3 * middle, "ratio": middle / one, "unit": unit})
        lines.append(f"| {name} | {BUDGETS.get(name, '')} | {1e3 * middle:.2f} ms | **{middle / one:.2f}** |")
    return [*lines, ""], records


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    module, x, y = network(), torch.randn(ROWS, 784), torch.randint(10, (ROWS,))
    trainings = {PLAIN: lambda: plain_sgd(module, x, y), **our_steps(module, x, y)}
    if not options.no_peers:
        trainings |= peer_steps(module, x, y)
    stepped: dict[str, list[float]] = {name: [] for name in trainings}
    passes = predictions(module, x, y, peers=not options.no_peers)
    predicted: dict[str, list[float]] = {name: [] for name in passes}
    with torch.random.fork_rng():
        for turn in range(-1, options.repeats):
            for name, run in trainings.items():
                stepped[name] += steps_of(run) if turn >= 0 else steps_of(run)[:0]
            for name, run in passes.items():
                with torch.no_grad():
                    for _ in range(20 if name == FORWARD else 1):
                        start = time.perf_counter()
                        run()
                        predicted[name] += [time.perf_counter() - start] if turn >= 0 else []
    steps, step_records = table("a step", PLAIN, stepped)
    samples, sample_records = table("a batch", FORWARD, predicted)
    head = [
        "# Variational inference: speed",
        "",
        "Made by `python -m bench.variational`. 784-256-128-10 with ReLU, 235,146 weights, float32, batches of 256; "
        f"medians in one process, on {options.threads} threads of {platform.processor() or platform.machine()}, "
        f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}.",
        "",
    ]
    text = "\n".join([*head, *steps, *samples])
    print(text)
    if not options.no_peers:
        RESULTS.parent.mkdir(exist_ok=True)
        records = {"threads": options.threads, "steps": step_records, "predictions": sample_records}
        RESULTS.with_suffix(".json").write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
