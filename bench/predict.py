"""The speed of predictions: covariances, probabilities, draws and the most probable classes, beside laplace-torch.

Everything takes turns in one process; what counts is the ratio to a plain forward pass of as many rows. The peer is
given few rows.

    python -m bench.predict [--turns 5] [--no-peers] [--quick]
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

import bayescope as bs
from bench import record, turns
from bench.curvature import fitted
from bench.floors import floor_of
from bench.networks import BATCH, forward, headed, layers_of, mlp
from bench.peers import laplace_predictions
from bench.turns import Machine, Work, in_turns, ratios, speed_table

PASS = "forward"
METHODS = {"kfac": "prediction", "diagonal": "diagonal prediction"}
PRIOR, SAMPLES = 1.0, 100


def in_batches(run: Any, x: torch.Tensor) -> None:
    """A call for each batch of rows."""
    for start in range(0, len(x), BATCH):
        run(x[start : start + BATCH])


def of_mlp(peers: bool, rows: int) -> list[Work]:
    """784-256-128-10 with tanh: 235,146 weights, ten outputs."""
    model, x, y = mlp(max(rows, 1024))
    fit, x_new, layers = (x[:1024], y[:1024]), x[:rows], layers_of(model, x)
    floor = {name: floor_of(method, rows, layers).flops for name, method in METHODS.items()}
    works = [Work(PASS, lambda: forward(model, x_new), PASS, rows=rows)]
    for name, (budget, goal) in {"kfac": (14.0, 9.0), "diagonal": (12.0, 0.0)}.items():
        curvature = fitted(model, *fit, name)
        precision, network = curvature.with_prior(PRIOR), curvature.network
        run = lambda p=precision, n=network: in_batches(lambda some: n.latent_covariance(some, p), x_new)  # noqa: E731
        title = f"MLP: {name} covariance of 10 outputs"
        works.append(Work(title, run, PASS, rows=rows, budget=budget, goal=goal, flops=floor[name]))
        if peers:
            works += laplace_predictions(title, PASS, name, model, (x[:16], y[:16]), x[:8])
    q = bs.laplace(model, fit, likelihood="categorical", prior_precision=PRIOR)
    probs, drawn = "MLP: probabilities, linearised", f"MLP: probabilities, {SAMPLES} draws of the weights"
    # The integral that is the peer's default.
    linearised = lambda: q.predict(x_new, integral="mackay").probs  # noqa: E731
    works.append(Work(probs, linearised, PASS, rows=rows, flops=floor["kfac"]))
    few = x_new[:BATCH]
    sampled = lambda: q.predict(few, method="sampled", samples=SAMPLES, generator=0).probs  # noqa: E731
    passes = SAMPLES * floor_of("forward", len(few), layers).flops
    works.append(Work(drawn, sampled, PASS, rows=len(few), flops=passes))
    if peers:
        answer = lambda posterior, some: posterior(some)  # noqa: E731
        works += laplace_predictions(probs, PASS, "kfac", model, (x[:16], y[:16]), x[:8], answer=answer)
    return works


def of_last_layer(classes: int, peers: bool, rows: int) -> list[Work]:
    """A last layer under a body of at least 20 times its flops."""
    model, x, y = headed(classes, rows)
    kfac = floor_of("last layer's prediction", rows, layers_of(model, x)).flops
    flops = {"kfac": kfac, "diagonal": floor_of("last layer, a diagonal fit", rows, layers_of(model, x)).flops}
    works = [Work(PASS, lambda: forward(model, x), PASS, rows=rows)]
    for name in ("kfac", "diagonal"):
        curvature = fitted(model, x[:512], y[:512], name, weights="last_layer")
        precision, network = curvature.with_prior(PRIOR), curvature.network
        run = lambda p=precision, n=network: in_batches(lambda some: n.latent_variance(some, p), x)  # noqa: E731
        title = f"last layer of {classes} classes: {name} variances"
        works.append(Work(title, run, PASS, rows=rows, budget=1.5, flops=flops[name]))
        if peers and classes <= 100:
            works += laplace_predictions(title, PASS, name, model, (x[:64], y[:64]), x[:2], "last_layer")
    return works


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    options = turns.chosen(parser)
    warnings.simplefilter("ignore")  # the peers' own
    torch.set_num_threads(2)
    peers = options.peers
    machine, found = Machine.measured(), []
    rows, last_rows = (256, 256) if options.quick else (2560, 4096)
    for make in (
        lambda: of_mlp(peers, rows),
        lambda: of_last_layer(100, peers, last_rows),
        lambda: of_last_layer(1000, False, last_rows),
    ):
        works = make()
        in_turns(works, options.turns)
        found += ratios(works, machine)
    how = (
        "Ratios of times to a plain forward pass of as many rows, in the same turn of one process: the median, and the "
        "least and greatest. A peer's is that of its fastest backend, on the few rows that it predicts in seconds."
    )
    record.publish(options, "bench.predict", "Predictions: speed", how, [speed_table(found)], {"ratios": found})


if __name__ == "__main__":
    main()
