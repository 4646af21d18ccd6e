"""The speed and memory of curvatures and predictive covariances, beside laplace-torch, backpack and curvlinops.

Everything that is compared runs in one process, in turn; what counts is the ratio of medians to a plain pass over as
many rows. A peer that would take minutes reads fewer, which its ratio takes into account and the table says.
Memory is measured in processes of their own: the highest resident size during the work less that before it.

    python -m bench.curvature [--repeats 5] [--peer-repeats 2] [--only mlp|cnn|head|memory] [--no-peers]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescope as bs
from bench.curvature_memory import memory

RESULTS = Path(__file__).parent / "results" / "curvature"
BATCH = 256
PRIOR = 1.0


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """Something to time on some rows.

    Attributes:
        name: what is done, the row of the table.
        who: by whom, the column.
        run: does it.
        rows: how many rows it reads; the unit's time is scaled to as many.
        unit: the plain pass that it is a multiple of.
        budget: the multiple that is allowed, and the one to try for.
        seconds: what each run took.
        failure: why it could not be run.
    """

    name: str
    who: str
    run: Callable[[], object]
    rows: int
    unit: str = "forward+backward"
    budget: str = ""
    seconds: list[float] = field(default_factory=list)
    failure: str | None = None


def time_in_turn(works: Sequence[Work], repeats: int, peer_repeats: int) -> None:
    """Runs all works once to warm up and then in turn, ours and the units ``repeats`` times, peers fewer."""
    for turn in range(-1, repeats):
        for work in works:
            if work.failure or (work.who not in ("bayescope", "unit") and turn >= peer_repeats):
                continue
            try:
                start = time.perf_counter()
                work.run()
            except Exception as error:  # a peer that refuses a network is a result
                if work.who in ("bayescope", "unit"):
                    raise
                work.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
                continue
            if turn >= 0:
                work.seconds.append(time.perf_counter() - start)
            print(f"  {work.name} [{work.who}] {time.perf_counter() - start:.3f} s", file=sys.stderr, flush=True)


def ratios(works: Sequence[Work]) -> list[dict[str, Any]]:
    """A record for each name: the ratio of ours, of the fastest variant of each peer, and the budget."""
    units = {work.name: median(work.seconds) / work.rows for work in works if work.who == "unit"}
    table: dict[str, dict[str, Any]] = {}
    for work in works:
        if work.who == "unit":
            continue
        record = table.setdefault(work.name, {"work": work.name, "unit": work.unit, "budget": work.budget, "peers": {}})
        if work.failure or not work.seconds:
            record["peers"][work.who] = {"failure": work.failure or "not run"}
            continue
        ratio = median(work.seconds) / work.rows / units[work.unit]
        if work.who == "bayescope":
            record |= {"ratio": ratio, "seconds": median(work.seconds), "all_seconds": work.seconds, "rows": work.rows}
        else:
            record["peers"][work.who] = {"ratio": ratio, "rows": work.rows, "seconds": median(work.seconds)}
    return list(table.values())


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of `BATCH` rows."""
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def forward(model: nn.Module, x: Tensor) -> None:
    """A pass without gradients over all rows."""
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            model(x[start : start + BATCH])


def forward_backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """An epoch of gradients without a step."""
    for xb, yb in batches(x, y):
        model.zero_grad()
        F.cross_entropy(model(xb), yb, reduction="sum").backward()


def fitted(model: nn.Module, x: Tensor, y: Tensor, structure: str, **options: Any) -> Any:
    """Our curvature, of rows read in batches of our choice."""
    return bs.fit_curvature(model, (x, y), likelihood="categorical", structure=structure, **options)


def predicted(curvature: Any, precision: Any, x: Tensor) -> None:
    """Our covariance of all outputs, of all rows."""
    for start in range(0, len(x), BATCH):
        curvature.network.latent_covariance(x[start : start + BATCH], precision)


# --- the peers --------------------------------------------------------------------------------------------------------


def laplace_backends() -> dict[str, Any]:
    """laplace-torch's backends for the exact GGN."""
    from laplace.curvature.asdl import AsdlGGN
    from laplace.curvature.backpack import BackPackGGN
    from laplace.curvature.curvlinops import CurvlinopsGGN

    return {"CurvlinopsGGN": CurvlinopsGGN, "BackPackGGN": BackPackGGN, "AsdlGGN": AsdlGGN}


def laplace_fit(model: nn.Module, x: Tensor, y: Tensor, structure: str, backend: Any, subset: str = "all") -> Any:
    """A Laplace approximation by laplace-torch, on its defaults."""
    from laplace import Laplace

    posterior = Laplace(
        copy.deepcopy(model), "classification", subset_of_weights=subset, hessian_structure=structure, backend=backend
    )  # fmt: skip
    posterior.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
    return posterior


def laplace_predict(posterior: Any, x: Tensor) -> None:
    """Its mean and covariance of the outputs."""
    for start in range(0, len(x), BATCH):
        posterior._glm_predictive_distribution(x[start : start + BATCH])


def backpack_pass(model: nn.Module, x: Tensor, y: Tensor, extension: Any) -> None:
    """An epoch of a backpack extension, summed over batches; backpack leaves hooks, so that it gets a copy."""
    from backpack import backpack, extend

    extended, loss = extend(copy.deepcopy(model)), extend(nn.CrossEntropyLoss(reduction="sum"))
    for xb, yb in batches(x, y):
        extended.zero_grad()
        with backpack(extension):
            loss(extended(xb), yb).backward()


def curvlinops_fit(model: nn.Module, x: Tensor, y: Tensor, corrected: bool, fisher: str) -> None:
    """curvlinops' Kronecker factors, weight and bias together."""
    import curvlinops

    kind = curvlinops.EKFACLinearOperator if corrected else curvlinops.KFACLinearOperator
    model = copy.deepcopy(model)
    operator = kind(
        model,
        nn.CrossEntropyLoss(reduction="sum"),
        list(model.parameters()),
        list(batches(x, y)),
        fisher_type=fisher,
        separate_weight_and_bias=False,
        check_deterministic=False,
        num_data=len(x),
        num_per_example_loss_terms=1,
    )
    operator.compute_kronecker_factors()
    if corrected:
        operator.compute_eigenvalue_correction()


def peer_fits(name: str, structure: str, unit: str, model: nn.Module, x: Tensor, y: Tensor, subset: str) -> list[Work]:
    """laplace-torch with each of its backends on the given rows."""
    short = {"kfac": "kron", "diagonal": "diag"}[structure]
    return [
        Work(
            name,
            f"laplace-torch, {label}",
            lambda backend=backend: laplace_fit(model, x, y, short, backend, subset),
            len(x),
            unit,
        )
        for label, backend in laplace_backends().items()
    ]


def peer_predictions(
    name: str, structure: str, model: nn.Module, x: Tensor, y: Tensor, rows: int, subset: str
) -> list[Work]:
    """laplace-torch's predictions of a few rows, from a fit to a few."""
    short, works = {"kfac": "kron", "diagonal": "diag"}[structure], []
    for label, backend in laplace_backends().items():
        try:
            posterior = laplace_fit(model, x[:16], y[:16], short, backend, subset)
        except Exception:  # noqa: BLE001 - the fit's own row says so
            continue
        run = lambda posterior=posterior: laplace_predict(posterior, x[:rows])  # noqa: E731
        works.append(Work(name, f"laplace-torch, {label}", run, rows, "forward"))
    return works


# --- the networks -----------------------------------------------------------------------------------------------------


def mlp() -> tuple[nn.Module, Tensor, Tensor]:
    """784-256-128-10 with tanh, 10,000 rows."""
    model = nn.Sequential(
        nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 10)
    )  # fmt: skip
    return model, torch.randn(10_000, 784), torch.randint(10, (10_000,))


def cnn() -> tuple[nn.Module, Tensor, Tensor]:
    """Three stages of two convolutions, 16-32-64 channels, on 3×32×32."""
    layers: list[nn.Module] = []
    for into, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    return model, torch.randn(1024, 3, 32, 32), torch.randint(10, (1024,))


def headed(classes: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A body of at least 20 times the flops of its last layer."""
    wide = 2048 if classes > 100 else 1024
    model = nn.Sequential(
        nn.Linear(1024, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 512), nn.ReLU(),
        nn.Linear(512, classes),
    )  # fmt: skip
    return model, torch.randn(4096, 1024), torch.randint(classes, (4096,))


def bench_mlp(peers: bool) -> list[Work]:
    """The first network."""
    model, x, y = mlp()
    curvatures = {name: fitted(model, x[:1024], y[:1024], name) for name in ("kfac", "diagonal")}
    precisions = {name: curvature.with_prior(PRIOR) for name, curvature in curvatures.items()}
    rows = x[:2560]
    fits = {"kfac": "≤ 3.5, goal 2.5", "diagonal": "≤ 2.3, goal 1.7", "ekfac": "≤ 8"}
    budgets = {"kfac": "≤ 14, goal 9", "diagonal": "≤ 12"}
    works = [
        Work("forward+backward", "unit", lambda: forward_backward(model, x, y), len(x)),
        Work("forward", "unit", lambda: forward(model, x), len(x)),
    ]
    works += [
        Work(f"MLP: {name} fit", "bayescope", lambda name=name: fitted(model, x, y, name), len(x), budget=budget)
        for name, budget in fits.items()
    ]
    works += [
        Work(
            f"MLP: {name} fit, in batches of {BATCH}",
            "bayescope",
            lambda name=name: fitted(model, x, y, name, batch_size=BATCH),
            len(x),
            budget=budget,
        )
        for name, budget in fits.items()
    ]
    works += [
        Work(
            f"MLP: {name} covariance of 10 outputs",
            "bayescope",
            lambda name=name: predicted(curvatures[name], precisions[name], rows),
            len(rows),
            "forward",
            budget,
        )
        for name, budget in budgets.items()
    ]
    if peers:
        few = 256
        for name in ("kfac", "diagonal"):
            works += peer_fits(f"MLP: {name} fit", name, "forward+backward", model, x[:few], y[:few], "all")
            title = f"MLP: {name} covariance of 10 outputs"
            works += peer_predictions(title, name, model, x, y, 8, "all")
        works += backpack_works("MLP", model, x[:2560], y[:2560])
        works += curvlinops_works("MLP", model, x[:2560], y[:2560])
    return works


def backpack_works(title: str, model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """backpack by itself; its Kronecker factors are those of each batch."""
    from backpack.extensions import KFAC, KFLR, DiagGGNExact

    named = {"kfac fit": KFLR, "diagonal fit": DiagGGNExact, "kfac fit, one sampled label": KFAC}
    return [
        Work(f"{title}: {name}", "backpack", lambda kind=kind: backpack_pass(model, x, y, kind()), len(x))
        for name, kind in named.items()
        if title == "CNN" or "sampled" not in name
    ]


def curvlinops_works(title: str, model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """curvlinops by itself."""
    from curvlinops import FisherType

    kinds = {
        "kfac fit": (False, FisherType.TYPE2),
        "ekfac fit": (True, FisherType.TYPE2),
        "kfac fit, one sampled label": (False, FisherType.MC),
    }
    return [
        Work(f"{title}: {name}", "curvlinops", lambda kind=kind: curvlinops_fit(model, x, y, *kind), len(x))
        for name, kind in kinds.items()
        if (title == "CNN") == ("sampled" in name) or name == "kfac fit"
    ]


def bench_cnn(peers: bool) -> list[Work]:
    """The convolutional network."""
    model, x, y = cnn()
    works = [
        Work("forward+backward", "unit", lambda: forward_backward(model, x, y), len(x)),
        Work("CNN: kfac fit", "bayescope", lambda: fitted(model, x, y, "kfac"), len(x), budget="≤ 9"),
        Work(
            "CNN: kfac fit, one sampled label",
            "bayescope",
            lambda: fitted(model, x, y, "kfac", curvature="fisher", generator=0),
            len(x),
            budget="≤ 5",
        ),
        Work("CNN: diagonal fit", "bayescope", lambda: fitted(model, x, y, "diagonal"), len(x), budget="≤ 12"),
    ]
    if peers:
        works += peer_fits("CNN: kfac fit", "kfac", "forward+backward", model, x[:256], y[:256], "all")
        works += peer_fits("CNN: diagonal fit", "diagonal", "forward+backward", model, x[:32], y[:32], "all")
        works += backpack_works("CNN", model, x[:256], y[:256])
        works += curvlinops_works("CNN", model, x[:256], y[:256])
    return works


def bench_head(classes: int, peers: bool) -> list[Work]:
    """A last layer under a body."""
    model, x, y = headed(classes)
    works = [Work("forward", "unit", lambda: forward(model, x), len(x))]
    for name in ("kfac", "diagonal"):
        curvature = fitted(model, x[:512], y[:512], name, weights="last_layer")
        precision, network = curvature.with_prior(PRIOR), curvature.network
        fit = lambda name=name: fitted(model, x, y, name, weights="last_layer")  # noqa: E731

        def predict(precision: Any = precision, network: Any = network) -> None:
            for start in range(0, len(x), BATCH):
                network.latent_variance(x[start : start + BATCH], precision)

        title = f"last layer of {classes} classes: {name}"
        works.append(Work(f"{title} fit", "bayescope", fit, len(x), "forward", "≤ 1.3, goal 1.1"))
        works.append(Work(f"{title} variances", "bayescope", predict, len(x), "forward", "≤ 1.5"))
        if peers and classes <= 100:
            few = 512 if name == "kfac" else 64
            works += peer_fits(f"{title} fit", name, "forward", model, x[:few], y[:few], "last_layer")
            works += peer_predictions(f"{title} variances", name, model, x, y, 2, "last_layer")
    return works


# --- the answer -------------------------------------------------------------------------------------------------------


def cell(record: dict[str, Any], peer: str) -> str:
    """The fastest variant of a peer, or why there is none."""
    variants = {who: value for who, value in record["peers"].items() if who.startswith(peer)}
    ran = {who: value for who, value in variants.items() if "ratio" in value}
    if not ran:
        return "refused" if variants else "–"
    who = min(ran, key=lambda name: ran[name]["ratio"])
    rows = f", {ran[who]['rows']} rows" if ran[who]["rows"] < record["rows"] else ""
    label = who.partition(", ")[2]
    return f"{ran[who]['ratio']:,.1f} ({label}{rows})" if label else f"{ran[who]['ratio']:,.1f} ({rows[2:] or 'all'})"


def markdown(results: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Curvatures: speed and memory",
        "",
        "Made by `python -m bench.curvature`. Ratios of medians in one process, on "
        f"{results['threads']} threads of {results['machine']}, torch {results['torch']}, load {results['load']:.1f}.",
        "A peer's ratio is that of its fastest backend; where it read fewer rows than we did, the ratio is per row.",
        "",
        "| work | multiple of | budget | bayescope | laplace-torch | backpack | curvlinops |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in results["speed"]:
        peers = " | ".join(cell(record, peer) for peer in ("laplace-torch", "backpack", "curvlinops"))
        lines.append(
            f"| {record['work']} | {record['unit']} | {record['budget']} | **{record['ratio']:.2f}** | {peers} |"
        )
    lines += [
        "",
        "## Memory",
        "",
        "Growth of the process at its highest, in MB.",
        "",
        "| what | measured |",
        "|---|---|",
    ]
    for name, values in results["memory"].items():
        told = ", ".join(f"{key} {value:,.0f}" for key, value in values.items())
        lines.append(f"| {name} | {told} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=2)
    parser.add_argument("--only", choices=["mlp", "cnn", "head", "memory"])
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    peers = not options.no_peers
    parts: dict[str, list[Callable[[], list[Work]]]] = {
        "mlp": [lambda: bench_mlp(peers)],
        "cnn": [lambda: bench_cnn(peers)],
        "head": [lambda: bench_head(100, peers), lambda: bench_head(1000, peers)],
    }
    speed: list[dict[str, Any]] = []
    for name, makers in parts.items():
        for make in makers if options.only in (None, name) else []:
            works = make()
            time_in_turn(works, options.repeats, options.peer_repeats)
            speed += ratios(works)
    results = {
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "speed": speed,
        "memory": memory() if options.only in (None, "memory") else {},
    }
    text = markdown(results)
    print(text)
    if options.only is None and peers:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
