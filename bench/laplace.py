"""The speed of a Laplace approximation from fit to prediction, beside laplace-torch with each of its backends.

Everything runs in one process, in turn: a Kronecker-factored fit, one step of tuning (the log evidence and its gradient
in a prior precision for each layer), the whole tuning, and linearised predictions, at 784-256-128-10 = 235,146 weights
and 10 classes. What counts is the ratio of the medians per row. The peer is given fewer rows to predict.

    python -m bench.laplace [--repeats 5] [--peer-repeats 2] [--no-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bench.curvature import PRIOR, Work, laplace_backends, laplace_fit, mlp, time_in_turn

RESULTS = Path(__file__).parent / "results" / "laplace"
PREDICTED, PEER_PREDICTED = 2560, 8
FIT, STEP, TUNE, PREDICT = "Kronecker fit", "one tuning step", "tuning by evidence", "linearised probabilities"
# By how many times the peer is to be beaten, or the most milliseconds.
TARGETS = {FIT: "≥ 3 × faster", STEP: "≤ 3 ms", TUNE: "", PREDICT: "≥ 100 × faster"}


def trained(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A few steps from the start, so that the curvature is not that of random weights."""
    q = bs.fit_map(
        model, (x, y), likelihood="categorical", prior_precision=PRIOR, epochs=3, progress=False, generator=0
    )
    return q.model


def tuning_step(fit: Any, names: Sequence[str]) -> None:
    """The log evidence and its gradient in log prior precisions, one a layer."""
    log_precisions = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in names]
    evidence = fit.log_evidence({name: value.exp() for name, value in zip(names, log_precisions, strict=True)})
    torch.autograd.grad(evidence, log_precisions)


def peer_tuning_step(posterior: Any) -> None:
    """The same by laplace-torch."""
    log_precisions = torch.zeros(posterior.n_layers, requires_grad=True)
    evidence = posterior.log_marginal_likelihood(prior_precision=log_precisions.exp())
    torch.autograd.grad(evidence, log_precisions)


def our_works(model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """Fit, tune, predict."""
    fit = lambda: bs.laplace(model, (x, y), likelihood="categorical", prior_precision=PRIOR)  # noqa: E731
    q, layers = fit(), [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    rows = x[:PREDICTED]
    return [
        Work(FIT, "bayescope", fit, len(x)),
        Work(STEP, "bayescope", lambda: tuning_step(q.fit, layers), 1),
        Work(TUNE, "bayescope", lambda: bs.tune_prior(q), 1),
        # The integral that is the peer's default.
        Work(PREDICT, "bayescope", lambda: q.predict(rows, integral="mackay").probs, len(rows)),
    ]


def peer_works(model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """The same by laplace-torch, predicting few rows, and tuned as by default: 100 steps of Adam."""
    works, rows = [], x[:PEER_PREDICTED]
    tune = {"method": "marglik", "prior_structure": "layerwise"}
    for label, backend in laplace_backends().items():
        who = f"laplace-torch, {label}"
        fit = lambda backend=backend: laplace_fit(model, x, y, "kron", backend)  # noqa: E731
        works.append(Work(FIT, who, fit, len(x)))
        try:
            posterior = fit()
        except Exception:  # noqa: BLE001 - the fit's own row says so
            continue
        works += [
            Work(STEP, who, lambda posterior=posterior: peer_tuning_step(posterior), 1),
            Work(TUNE, who, lambda posterior=posterior: posterior.optimize_prior_precision(**tune), 1),
            Work(PREDICT, who, lambda posterior=posterior: posterior(rows), PEER_PREDICTED),
        ]
    return works


def compared(works: Sequence[Work]) -> list[dict[str, Any]]:
    """For each work our median and that of the peer's fastest backend, in milliseconds a row, and the ratio."""
    records = []
    for name, target in TARGETS.items():
        own = [work for work in works if work.name == name]
        per_row = {work.who: 1e3 * median(work.seconds) / work.rows for work in own if work.seconds}
        ours = per_row.pop("bayescope")
        best = min(per_row, key=lambda who: per_row[who], default=None)
        record = {"work": name, "target": target, "milliseconds": ours, "peers": per_row, "best_peer": best}
        failures = {work.who: work.failure for work in own if work.failure}
        records.append(record | {"failures": failures, "ratio": per_row[best] / ours if best else None})
    return records


def markdown(results: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# Laplace: speed from fit to prediction",
        "",
        "Made by `python -m bench.laplace`. 784-256-128-10 with tanh, 235,146 weights, KFAC; medians in one "
        f"process, on {results['threads']} threads of {results['machine']}, torch {results['torch']}, load "
        f"{results['load']:.1f}.",
        f"All fit 10,000 rows; we predict {PREDICTED:,} and laplace-torch {PEER_PREDICTED}. Times of fits and of "
        "predictions are a row's.",
        "",
        "| work | target | bayescope | laplace-torch | its backend | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for record in results["speed"]:
        best = record["best_peer"]
        peer = "– | – | –"
        if best:
            peer = f"{record['peers'][best]:.3g} ms | {best.partition(', ')[2]} | {record['ratio']:,.1f}"
        lines.append(f"| {record['work']} | {record['target']} | **{record['milliseconds']:.3g} ms** | {peer} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=2)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    model, x, y = mlp()
    model = trained(model, x, y)
    works = our_works(model, x, y) + ([] if options.no_peers else peer_works(model, x, y))
    time_in_turn(works, options.repeats, options.peer_repeats)
    results = {
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "speed": compared(works),
    }
    text = markdown(results)
    print(text)
    if not options.no_peers:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
