"""The speed and memory of curvature fits, beside laplace-torch, backpack and curvlinops.

Everything that is compared takes turns in one process; what counts is the ratio to a plain pass over as many rows. A
peer that would take minutes reads fewer. Memory is measured in processes of their own.

    python -m bench.curvature [--turns 5] [--no-peers] [--quick]
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bench import record, turns
from bench.curvature_memory import memory
from bench.floors import Layer, floor_of
from bench.networks import BATCH, cnn, forward, forward_backward, headed, layers_of, mlp
from bench.peers import backpack_works, curvlinops_works, laplace_fits
from bench.turns import Machine, Work, in_turns, ratios, speed_table

EPOCH, PASS = "forward+backward", "forward"
METHODS = {"kfac": "Kronecker", "diagonal": "diagonal", "ekfac": "eigenvalue-corrected"}
LAST_LAYERS = {"kfac": "last layer, a fit", "diagonal": "last layer, a diagonal fit"}


def fitted(model: nn.Module, x: Tensor, y: Tensor, structure: str, **options: Any) -> Any:
    """Our curvature, of rows read in batches of our choice unless an option says how many."""
    return bs.fit_curvature(model, (x, y), likelihood="categorical", structure=structure, **options)


def fit_floor(structure: str, rows: int, layers: Sequence[Layer], labels: int | None = None) -> float:
    """Operations of the fit alone: `bench.floors` counts a gradient's backward pass with it."""
    whole, epoch, forward = (
        floor_of(name, rows, layers, labels=labels).flops
        for name in (METHODS[structure], "forward + backward", "forward")
    )
    return whole - epoch + forward


def of_mlp(peers: bool, rows: int) -> list[Work]:
    """A dense network, the rows in batches of our choice and in given ones."""
    model, x, y = mlp(rows)
    layers = layers_of(model, x)
    floors = {name: fit_floor(name, rows, layers) for name in METHODS}
    goals = {"kfac": (3.5, 2.5), "diagonal": (2.3, 1.7), "ekfac": (8.0, 0.0)}
    works = [Work(EPOCH, lambda: forward_backward(model, x, y), EPOCH, rows=rows)]
    for note, options in (("", {}), (f", in batches of {BATCH}", {"batch_size": BATCH})):
        for name, (budget, goal) in goals.items():
            run = lambda name=name, options=options: fitted(model, x, y, name, **options)  # noqa: E731
            title = f"MLP: {name} fit{note}"
            works.append(Work(title, run, EPOCH, rows=rows, budget=budget, goal=goal, flops=floors[name]))
    if peers:
        for name in ("kfac", "diagonal"):
            works += laplace_fits(f"MLP: {name} fit", EPOCH, name, model, x[: 10 * BATCH], y[: 10 * BATCH])
        some = x[:2560], y[:2560]
        names = [("MLP: kfac fit", "KFLR"), ("MLP: diagonal fit", "DiagGGNExact")]
        works += backpack_works(names, EPOCH, model, *some)
        kinds = [("MLP: kfac fit", False, "TYPE2"), ("MLP: ekfac fit", True, "TYPE2")]
        works += curvlinops_works(kinds, EPOCH, model, *some)
    return works


def of_cnn(peers: bool, rows: int) -> list[Work]:
    """A convolutional network."""
    model, x, y = cnn(rows)
    sampled: dict[str, Any] = {"curvature": "fisher", "generator": 0}
    drawn = "CNN: kfac fit, one sampled label"
    layers, epoch = layers_of(model, x), Work(EPOCH, lambda: forward_backward(model, x, y), EPOCH, rows=rows)

    def ours(name: str, structure: str, budget: float, labels: int | None = None, **options: Any) -> Work:
        run = lambda: fitted(model, x, y, structure, **options)  # noqa: E731
        flops = fit_floor(structure, rows, layers, labels)
        return Work(name, run, EPOCH, rows=rows, budget=budget, flops=flops)

    works = [
        epoch,
        ours("CNN: kfac fit", "kfac", 9.0),
        ours(drawn, "kfac", 5.0, labels=1, **sampled),
        ours("CNN: diagonal fit", "diagonal", 12.0),
    ]
    if peers:
        works += laplace_fits("CNN: kfac fit", EPOCH, "kfac", model, x[:256], y[:256])
        works += laplace_fits("CNN: diagonal fit", EPOCH, "diagonal", model, x[:32], y[:32])
        some = x[:256], y[:256]
        names = [("CNN: kfac fit", "KFLR"), ("CNN: diagonal fit", "DiagGGNExact"), (drawn, "KFAC")]
        works += backpack_works(names, EPOCH, model, *some)
        works += curvlinops_works([("CNN: kfac fit", False, "TYPE2"), (drawn, False, "MC")], EPOCH, model, *some)
    return works


def of_last_layer(classes: int, peers: bool, rows: int) -> list[Work]:
    """A last layer under a body."""
    model, x, y = headed(classes, rows)
    works, layers = [Work(PASS, lambda: forward(model, x), PASS, rows=rows)], layers_of(model, x)
    for name, method in LAST_LAYERS.items():
        run = lambda name=name: fitted(model, x, y, name, weights="last_layer")  # noqa: E731
        title = f"last layer of {classes} classes: {name} fit"
        flops = floor_of(method, rows, layers).flops
        works.append(Work(title, run, PASS, rows=rows, budget=1.3, goal=1.1, flops=flops))
        if peers and classes <= 100:
            few = 512 if name == "kfac" else 64
            works += laplace_fits(title, PASS, name, model, x[:few], y[:few], "last_layer")
    return works


def memory_table(found: dict[str, dict[str, float]]) -> str:
    """What each took at its highest."""
    rows = [[name, ", ".join(f"{key} {value:,.0f}" for key, value in each.items())] for name, each in found.items()]
    return "Growth of the process at its highest, in MB.\n\n" + record.table(["what", "measured"], rows)


def main() -> None:
    """Measures, prints and saves."""
    parser = turns.arguments(__doc__)
    options = turns.chosen(parser)
    warnings.simplefilter("ignore")  # the peers' own
    torch.set_num_threads(2)
    peers = options.peers
    sizes = (512, 32, 128) if options.quick else (10_000, 1024, 4096)
    works = (
        lambda: of_mlp(peers, sizes[0]), lambda: of_cnn(peers, sizes[1]), lambda: of_last_layer(100, peers, sizes[2]),
        lambda: of_last_layer(1000, False, sizes[2]),
    )  # fmt: skip
    machine, found = Machine.measured(), []
    for make in works:
        these = make()
        in_turns(these, options.turns)
        found += ratios(these, machine)
    held = {} if options.quick or not peers else memory()
    how = (
        "Ratios of times to a plain pass over as many rows, in the same turn of one process: the median, and the "
        "least and greatest. A peer's is that of its fastest backend; where it read fewer rows than we did, it is per "
        "row. laplace-torch's Kronecker fit has its eigenvectors, which ours computes when they are first asked for: "
        "laplace.md has both with them. The floor is what the formulas' operations take at the speed of a plain "
        "matrix product in the same run."
    )
    record.publish(
        options,
        "bench.curvature",
        "Curvatures: speed and memory",
        how,
        [speed_table(found), "## Memory", memory_table(held)],
        {"ratios": found, "memory": held},
    )


if __name__ == "__main__":
    main()
