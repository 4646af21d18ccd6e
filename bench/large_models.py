"""Large networks, on a GPU where there is one: every public path, the time of a fit and of predictions, host copies.

    python -m bench.large_models [--device cuda] [--images 4096] [--batch 128] [--only paths|resnet] [--quick]

ResNet-18 and ViT-Tiny at 1,000 classes and 3×224×224, all layers Kronecker with one sampled label. Paths are compared
with the CPU in float64. The results of a GPU carry its name; without one a few images are read on the CPU. Times are
of what a user waits for: the whole fit, with the network traced and the factors mirrored, over an epoch of forward and
backward passes on the same images, which lie on the device already; medians of runs in turn.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayescope as bs
from bayescope.memory import readable
from bench import record
from bench.turns import Work, in_turns
from tests.device_paths import EXACT, TRAINS, seeded
from tests.large_models import ResNet, VisionTransformer

NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet": ResNet, "transformer": VisionTransformer}
CLASSES, SIDE = 1000, 224
FIT_BUDGET, PREDICT_BUDGET = 6.0, 1.2
Report = dict[str, Any]


def waited(device: torch.device) -> None:
    """Lets the device finish what is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock of a GPU's work; a rehearsal on a CPU counts the seconds of the processor alone."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def medians(runs: dict[str, Callable[[], object]], device: torch.device, turns: int) -> dict[str, float]:
    """The median seconds of each, until the device has finished, over turns."""

    def finished(run: Callable[[], object]) -> None:
        run()
        waited(device)

    works = [Work(name, partial(finished, run), name) for name, run in runs.items()]
    in_turns(works, turns, clock=clock_of(device))
    return {work.name: median(work.seconds) for work in works}


# --- right ------------------------------------------------------------------------------------------------------------


def paths(device: torch.device) -> list[Report]:
    """Each public path on the device: its largest error relative to the largest entry, or why it failed."""
    found: list[Report] = []
    for name, run in (EXACT | TRAINS).items():
        record: Report = {"path": name, "compared": name in EXACT}
        try:
            answers = run(device.type)
            record["on_device"] = any(answer.device.type == device.type for answer in answers)
            record["finite"] = all(bool(answer.isfinite().all()) for answer in answers)
            if name in EXACT:
                record["error"] = max(map(largest_error, answers, run("cpu")))
        except Exception as error:  # noqa: BLE001 - one path that fails is a row of the table, not the end of it
            record["failure"] = f"{type(error).__name__}: {error}"
        found.append(record)
        print(f"{name:<28} {record.get('failure') or record.get('error', 'finite' if record['finite'] else 'NaN')}")
    return found


def largest_error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    found, wanted = found.detach().cpu().double(), wanted.detach().double()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-300))


# --- fast -------------------------------------------------------------------------------------------------------------


def images(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise with labels of no meaning, on the device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, SIDE, SIDE, generator=generator)
    return x.to(device), torch.randint(CLASSES, (count,), generator=generator).to(device)


def epoch(module: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """Forward and backward passes over all images."""
    for some, labels in zip(x.split(batch), y.split(batch), strict=True):
        functional.cross_entropy(module(some), labels, reduction="sum").backward()
        module.zero_grad()


@torch.no_grad()
def forward(module: nn.Module, x: Tensor, batch: int) -> None:
    """Forward passes over all images."""
    for some in x.split(batch):
        module(some)


def speed(name: str, device: torch.device, count: int, batch: int, turns: int) -> Report:
    """A network of full size: the fit with one sampled label, and last-layer predictions."""
    module = seeded(NETWORKS[name]).float().to(device)
    x, y = images(count, device)
    options: dict[str, Any] = {"likelihood": "categorical", "batch_size": batch}

    def fit() -> Any:
        return bs.fit_curvature(module, (x, y), curvature="fisher", generator=0, **options)

    plan = bs.plan(module, (x, y), curvature="fisher", **options)
    before = _allocated(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    last = bs.laplace(module, (x[:batch], y[:batch]), weights="last_layer", prior_precision=100.0, **options)
    half = x[: count // 2], y[: count // 2]
    runs: dict[str, Callable[[], object]] = {
        "epoch": lambda: epoch(module, x, y, batch),
        "fit": fit,
        "fit to half": lambda: bs.fit_curvature(module, half, curvature="fisher", generator=0, **options),
        "forward": lambda: forward(module, x, batch),
        "last layer": lambda: [last.predict(some, integral="mackay").probs for some in x.split(batch)],
    }
    seconds = medians(runs, device, turns)
    once = all_layers(
        module, x, y, device, {**options, "curvature": "fisher", "generator": 0, "prior_precision": 100.0}
    )
    return {
        "network": name,
        "weights": sum(weight.numel() for weight in module.parameters()),
        "images": count,
        "batch": batch,
        "rows_at_once": plan.rows,
        "seconds": seconds,
        "once": {"posterior": once[0], "5 classes of 2 images": once[1]},
        "fit_over_epoch": seconds["fit"] / seconds["epoch"],
        # What a further image costs beside its forward and backward pass, without what is paid once.
        "further_over_epoch": 2.0 * (seconds["fit"] - seconds["fit to half"]) / seconds["epoch"],
        "last_layer_over_forward": seconds["last layer"] / seconds["forward"],
        "planned_bytes": plan.bytes,
        "peak_bytes": _peak(device) - before if device.type == "cuda" else None,
        "host_copies_a_batch": host_copies(module, x, y, batch, options) if device.type == "cuda" else None,
    }


def all_layers(
    module: nn.Module, x: Tensor, y: Tensor, device: torch.device, options: dict[str, Any]
) -> tuple[float, float]:
    """Seconds of the posterior of all layers, with the eigenvectors of its factors, and of a prediction by it."""
    clock = clock_of(device)
    waited(device)
    start = clock()
    q = bs.laplace(module, (x, y), **options)
    waited(device)
    fitted = clock()
    q.predict(x[:2], top=5)
    waited(device)
    return fitted - start, clock() - fitted


def host_copies(module: nn.Module, x: Tensor, y: Tensor, batch: int, options: dict[str, Any]) -> float:
    """How many times a batch of a fit waits for the device or copies from it: what four batches have over two."""
    counts = []
    for batches in (2, 4):
        size = max(1, batch // 4)
        data = x[: batches * size], y[: batches * size]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            bs.fit_curvature(module, data, curvature="fisher", generator=0, **{**options, "batch_size": size})
        counts.append(sum(event.count for event in profiler.key_averages() if "Memcpy DtoH" in event.key))
    return (counts[1] - counts[0]) / 2


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device)


# --- report -----------------------------------------------------------------------------------------------------------


def device_name(device: torch.device) -> str:
    """The GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"a CPU ({record.processor()})"


def speeds(results: Report) -> str:
    """A row for each network."""
    header = [
        "network", "weights", "images", "forward and backward, s", "fit, s", f"over an epoch (budget {FIT_BUDGET:g})",
        "a further image, over its epoch", f"last layer over forward (budget {PREDICT_BUDGET:g})",
        "posterior with eigenvectors, s", "5 classes of 2 images through all layers, s", "planned", "peak",
        "host copies a batch",
    ]  # fmt: skip
    rows = []
    for found in results["speed"]:
        peak = "–" if found["peak_bytes"] is None else readable(found["peak_bytes"])
        copies = "–" if found["host_copies_a_batch"] is None else f"{found['host_copies_a_batch']:g}"
        rows.append(
            [
                found["network"],
                f"{found['weights'] / 1e6:.2f} million",
                f"{found['images']:,} in batches of {found['batch']}",
                f"{found['seconds']['epoch']:.2f}",
                f"{found['seconds']['fit']:.2f}",
                f"{found['fit_over_epoch']:.2f}",
                f"{found['further_over_epoch']:.2f}",
                f"{found['last_layer_over_forward']:.2f}",
                f"{found['once']['posterior']:.1f}",
                f"{found['once']['5 classes of 2 images']:.1f}",
                readable(found["planned_bytes"]),
                peak,
                copies,
            ]
        )
    return record.table(header, rows)


def paths_text(results: Report) -> str:
    """How many paths were run, the largest error, and those that failed."""
    failed = [path for path in results["paths"] if "failure" in path or not path["finite"]]
    errors = [path["error"] for path in results["paths"] if "error" in path]
    summary = f"{len(results['paths'])} public paths run, {len(failed)} failed."
    if errors:
        summary += f" The largest error beside the CPU in float64: {max(errors):.1e} of the largest entry."
    return "\n".join([summary, *(f"- {path['path']}: {path.get('failure', 'not finite')}" for path in failed)])


def main() -> None:
    """Runs what was asked for and writes it down."""
    parser = record.arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="the GPU where there is one")
    parser.add_argument("--images", type=int, help="4096, and 32 on a CPU")
    parser.add_argument("--batch", type=int, help="128, and 16 on a CPU")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=("paths", *NETWORKS))
    chosen = parser.parse_args()
    device = torch.device(chosen.device) if chosen.device else record.default_device()
    images_, batch = (4096, 128) if device.type == "cuda" else (32, 16)
    images_, batch = chosen.images or images_, chosen.batch or batch
    warnings.filterwarnings("ignore", category=bs.errors.ConvergenceWarning)  # the weights are random
    only = "paths" if chosen.quick else chosen.only
    results: Report = {"device": device_name(device), "paths": [], "speed": []}
    if only in (None, "paths"):
        results["paths"] = paths(device)
    for network in NETWORKS:
        if only in (None, network):
            results["speed"].append(speed(network, device, images_, batch, chosen.turns))
    origin, how = record.made("bench.large_models"), (__doc__ or "").split("\n\n")[2]
    origin = record.partly(origin) if only else origin
    name = record.on_gpu("large_models", record.gpu_of(device))
    parts = ["## Speed", speeds(results), "## Public paths", paths_text(results)]
    text = record.page(f"Large networks on {results['device']}", origin, how, parts)
    record.save(record.folder(chosen), name, {"made": origin, **results}, text)


if __name__ == "__main__":
    main()
