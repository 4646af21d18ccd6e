"""Very many outputs: what is planned, what is taken, and how long it takes; each case in a process of its own.

Memory is the growth of the process at its highest, in MB, beside the network and its data; the plan is that of
`bs.plan`, which counts tensors, where the growth has what libraries and the allocator take besides.

    python -m bench.large_outputs [CASE …] [--quick]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayescope as bs
from bench import record
from bench.memory import peak_growth


class Pixels(nn.Module):
    """A small fully convolutional network, (N, 3, H, W) → (N, H, W, 21)."""

    def __init__(self, classes: int = 21, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The classes of each pixel last."""
        return self.head(self.body(x)).movedim(1, -1)


def classifier(classes: int, width: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A last layer of so many classes over a body of one layer."""
    model = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, classes))
    return model, torch.randn(512, 64), torch.randint(classes, (512,))


def images(count: int = 2) -> tuple[nn.Module, Tensor, Tensor]:
    """Pictures of 512 × 512 pixels in 21 classes."""
    return Pixels(), torch.randn(count, 3, 512, 512), torch.randint(21, (count, 512, 512))


def sequences(count: int = 8) -> tuple[nn.Module, Tensor, Tensor]:
    """Sequences of 1,024 tokens in 1,000 classes."""
    model = nn.Sequential(nn.Embedding(1000, 128), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1000))
    return model, torch.randint(1000, (count, 1024)), torch.randint(1000, (count, 1024))


class Case(NamedTuple):
    """A posterior and predictions from it.

    Attributes:
        make: the network and its data.
        fit: options of `laplace`.
        predict: options of predictions, by what they are called.
        rows: how many are predicted, and read in a batch.
        tuned: whether the prior precision is learnt as well.
    """

    make: Callable[[], tuple[nn.Module, Tensor, Tensor]]
    fit: Mapping[str, Any]
    predict: Mapping[str, Mapping[str, Any]]
    rows: int
    tuned: bool = True


VARIANCES = {"all classes": {"integral": "mackay"}}
TOP = {"5 classes": {"top": 5}}
LAST: dict[str, Any] = {"weights": "last_layer"}
CASES = {
    "1,000 classes, last layer, kfac": Case(lambda: classifier(1000, 512), LAST, {**VARIANCES, **TOP}, 256),
    "1,000 classes, last layer, diagonal": Case(
        lambda: classifier(1000, 512), {**LAST, "structure": "diagonal"}, {**VARIANCES, **TOP}, 256
    ),
    "50,000 classes, last layer, kfac, diagonal output factor": Case(
        lambda: classifier(50_000, 256), {**LAST, "output_factor": "diagonal"}, {**VARIANCES, **TOP}, 256
    ),
    "50,000 classes, last layer, diagonal": Case(
        lambda: classifier(50_000, 256), {**LAST, "structure": "diagonal"}, {**VARIANCES, **TOP}, 256
    ),
    "50,000 classes, all layers, kfac of one sampled label, diagonal output factor": Case(
        lambda: classifier(50_000, 256),
        {"curvature": "fisher", "generator": 0, "output_factor": {"2": "diagonal"}},
        TOP,
        64,
    ),
    "21 classes of 512 × 512 pixels, last layer, kfac": Case(images, LAST, VARIANCES, 1),
    "21 classes of 512 × 512 pixels, last layer, diagonal": Case(
        images, {**LAST, "structure": "diagonal"}, VARIANCES, 1
    ),
    "21 classes of 512 × 512 pixels, all layers, kfac of one sampled label": Case(
        images, {"curvature": "fisher", "generator": 0}, {"20 draws": {"method": "sampled", "samples": 20}}, 1
    ),
    "1,000 classes of 1,024 tokens, last layer, kfac": Case(sequences, LAST, {**VARIANCES, **TOP}, 4),
}


def peak(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """The growth of the process at its highest in MB, the seconds, and the result."""
    held: list[Any] = []
    ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of freed memory would hide the growth
    start = time.perf_counter()
    grown = peak_growth(lambda: held.append(work()))
    return grown / 1e6, time.perf_counter() - start, held[0]


def measure(case: Case) -> dict[str, Any]:
    """One case, in this process, after a small fit has loaded what torch loads once."""
    warnings.simplefilter("ignore")
    small, x = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300)), torch.randn(300, 64)
    q = bs.laplace(small, (x, torch.arange(300)), likelihood="categorical", weights=["2.*"], prior_precision="evidence")
    _ = q.predict(x, integral="mackay").probs, q.predict(x, top=2).probs
    del q
    model, x, y = case.make()
    options = {"likelihood": "categorical", "batch_size": case.rows, **case.fit}
    asked = {name: value for name, value in options.items() if name != "generator"}
    planned = bs.plan(model, (x, y), **asked)
    found: dict[str, Any] = {"weights": planned.weights, "rows": len(x), "planned_mb": planned.bytes / 1e6}
    found["measured_mb"], found["seconds"], q = peak(lambda: bs.laplace(model, (x, y), **options))
    if case.tuned:
        found["tuning_mb"], found["tuning_seconds"], q = peak(lambda: bs.tune_prior(q))
    found["predictions"] = {}
    for name, how in case.predict.items():
        grown, seconds, _ = peak(partial(answered, q, x[: case.rows], how))
        found["predictions"][name] = {"measured_mb": grown, "seconds": seconds}
    found["predicted_rows"], found["planned_variances_mb"] = case.rows, planned.variance_bytes / 1e6
    found["planned_covariances_mb"] = planned.prediction_bytes / 1e6
    return found


def answered(q: Any, x: Tensor, how: Mapping[str, Any]) -> tuple[Any, Any]:
    """Probabilities and their epistemic variances."""
    predictive = q.predict(x, generator=0, **how)
    return predictive.probs, predictive.epistemic


def refused() -> str:
    """What a fit says whose dense output factor does not fit."""
    model, x, y = classifier(50_000, 256)
    try:
        bs.laplace(model, (x, y), likelihood="categorical", weights="last_layer", memory=16 * 10**9)
    except bs.errors.MemoryBudgetError as error:
        return str(error)
    raise AssertionError("it was not refused")


def markdown(results: Mapping[str, Any]) -> list[str]:
    """The tables, and what a fit says that does not fit."""
    fits, predictions = [], []
    for name, found in results["cases"].items():
        tuned = "tuning_mb" in found
        tuning = [f"{found['tuning_mb']:,.0f}", f"{found['tuning_seconds']:.1f}"] if tuned else ["–", "–"]
        sizes = [f"{found[key]:,.0f}" for key in ("weights", "planned_mb", "measured_mb")]
        fits.append([name, *sizes, f"{found['seconds']:.1f}", *tuning])
        for asked, value in found["predictions"].items():
            planned = f"{found['planned_variances_mb']:,.0f}" if asked in VARIANCES else "–"
            taken = [f"{value['measured_mb']:,.0f}", f"{value['seconds']:.2f}"]
            predictions.append([name, found["predicted_rows"], asked, planned, *taken])
    return [
        record.table(["`bs.laplace`", "weights", "planned", "measured", "seconds", "`tune_prior`", "seconds"], fits),
        record.table(["`predict`", "rows", "asked for", "planned", "measured", "seconds"], predictions),
        "With a dense output factor and `memory=16e9`:",
        f"> {results['refused']}",
    ]


def main() -> None:
    """Measures cases, and saves them beside the results that there are of the others."""
    parser = record.arguments(__doc__)
    parser.add_argument("names", nargs="*", help="of the cases; all of them")
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.here:
        torch.default_generator.manual_seed(0)
        print(json.dumps(measure(CASES[options.here])))
        return
    into = record.folder(options)
    known = record.load(into, "large_outputs").get("cases", {})
    for name in options.names or list(CASES)[: 1 if options.quick else None]:
        command = [sys.executable, "-m", "bench.large_outputs", "--here", name]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
        if answer.returncode:
            raise RuntimeError(f"{name}: {answer.stderr}")
        known[name] = json.loads(answer.stdout)
        print(name, json.dumps(known[name]), flush=True)
    origin = record.made("bench.large_outputs")
    origin = record.partly(origin) if options.names else origin
    results = {"made": origin, "cases": {name: known[name] for name in CASES if name in known}, "refused": refused()}
    explanation = record.method_in(__doc__)
    text = record.page("Very many outputs: memory and seconds", origin, explanation, markdown(results))
    record.save(into, "large_outputs", results, text)


if __name__ == "__main__":
    main()
