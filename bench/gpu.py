"""One page on a GPU: agreement with the CPU, speeds as multiples of a pass, and memory beside the plan.

Every public path of networks is run on the device with networks in float64 and in float32, and on the CPU in float32;
each is compared with the CPU in float64: the largest difference relative to the largest entry. Speeds are medians over
turns, each until the device has finished, divided by the median of a forward and backward pass, or of a forward pass,
over the same rows, which lie on the device. Memory is what the device holds at most during a fit, less what it held
before, beside `bs.plan`. Without a GPU the same is run on the CPU, where no memory is counted, and the page says so.

    python -m bench.gpu [--device cuda] [--turns 5] [--quick]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.memory import readable
from bench import record
from bench.laplace import tuning_step
from bench.large_models import device_name, largest_error, medians
from bench.networks import cnn, forward, forward_backward, headed, mlp
from bench.predict import in_batches
from tests.device_paths import EXACT, TRAINS, in_dtype

Report = dict[str, Any]
PASS, EPOCH = "forward", "forward+backward"
# What a quick run has: paths of each kind, and rows of each network.
FEW_PATHS = ("ggn-kfac", "laplace-diagonal", "queries", "variational-mean_field")
SIZES, QUICK_SIZES = (10_000, 4096, 1024), (256, 128, 32)
# The most that float64 may be off by, relative to the largest entry: rounding, and nothing else.
AGREEMENT = 1e-6


# --- right ------------------------------------------------------------------------------------------------------------


def agreement(device: torch.device, names: Sequence[str]) -> list[Report]:
    """The errors of each path, by the device and the type of the network; those of trainings are not compared."""
    found = []
    for name in names:
        row: Report = {"path": name, "errors": {}, "failures": {}}
        run = (EXACT | TRAINS)[name]
        wanted = run("cpu") if name in EXACT else []
        for where, dtype in ((device.type, torch.float64), (device.type, torch.float32), ("cpu", torch.float32)):
            kind = f"{where} {str(dtype).removeprefix('torch.')}"
            try:
                with in_dtype(dtype):
                    answers = run(where)
                if not all(bool(answer.isfinite().all()) for answer in answers):
                    row["failures"][kind] = "not finite"
                elif name in EXACT:
                    row["errors"][kind] = max(map(largest_error, answers, wanted))
            except Exception as error:  # noqa: BLE001 - one path that fails is a row of the table, not the end of it
                row["failures"][kind] = f"{type(error).__name__}: {error}"
        found.append(row)
        print(name, row["failures"] or row["errors"] or "finite", flush=True)
    return found


# --- fast -------------------------------------------------------------------------------------------------------------


def on(device: torch.device, made: tuple[nn.Module, Tensor, Tensor]) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with its rows on the device."""
    module, x, y = made
    return module.to(device), x.to(device), y.to(device)


def speeds(device: torch.device, rows: int, last_rows: int, turns: int) -> list[Report]:
    """The works of the budgets, as multiples of their unit."""
    module, x, y = on(device, mlp(rows))
    options: dict[str, Any] = {"likelihood": "categorical"}
    q = bs.laplace(module, (x, y), prior_precision=1.0, **options)
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    runs: dict[str, Callable[[], object]] = {
        EPOCH: lambda: forward_backward(module, x, y),
        PASS: lambda: forward(module, x),
        "MLP: kfac fit": lambda: bs.fit_curvature(module, (x, y), structure="kfac", **options),
        "MLP: diagonal fit": lambda: bs.fit_curvature(module, (x, y), structure="diagonal", **options),
        "MLP: linearised probabilities": lambda: in_batches(lambda some: q.predict(some, integral="mackay").probs, x),
        "MLP: one evidence step": lambda: tuning_step(q.fit, layers),
    }
    units = {"MLP: linearised probabilities": PASS}
    budgets = {
        "MLP: kfac fit": (3.5, 2.5), "MLP: diagonal fit": (2.3, 1.7), "MLP: linearised probabilities": (14.0, 9.0),
    }  # fmt: skip
    found = ratios(medians(runs, device, turns), units, budgets, rows)
    for classes in (100, 1000):
        found += last_layer(device, classes, last_rows, turns)
    return found


def last_layer(device: torch.device, classes: int, rows: int, turns: int) -> list[Report]:
    """A last layer under a body of at least 20 times its flops."""
    module, x, y = on(device, headed(classes, rows))
    options: dict[str, Any] = {"likelihood": "categorical", "weights": "last_layer"}
    q = bs.laplace(module, (x[:512], y[:512]), prior_precision=100.0, **options)
    fit, prediction = f"last layer of {classes} classes: kfac fit", f"last layer of {classes} classes: probabilities"
    runs: dict[str, Callable[[], object]] = {
        PASS: lambda: forward(module, x),
        fit: lambda: bs.fit_curvature(module, (x, y), structure="kfac", **options),
        prediction: lambda: in_batches(lambda some: q.predict(some, integral="mackay").probs, x),
    }
    return ratios(
        medians(runs, device, turns), dict.fromkeys(runs, PASS), {fit: (1.3, 1.1), prediction: (1.5, 1.1)}, rows
    )


def ratios(
    seconds: dict[str, float], units: dict[str, str], budgets: dict[str, tuple[float, float]], rows: int
) -> list[Report]:
    """Each work's seconds, and as multiples of its unit; the unit is an epoch unless another is named."""
    found = []
    for name, each in seconds.items():
        unit = units.get(name, EPOCH)
        budget, goal = budgets.get(name, (None, None))
        row = {"work": name, "rows": rows, "seconds": each, "unit": unit, "ratio": each / max(seconds[unit], 1e-12)}
        found.append({**row, "budget": budget, "goal": goal})
    return found


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(device: torch.device, rows: int, images: int) -> list[Report]:
    """The peak of each fit beside its plan; on a CPU the plan alone."""
    found = []
    for network, made in (("MLP", mlp(rows)), ("CNN", cnn(images))):
        module, x, y = on(device, made)
        for structure in ("kfac", "diagonal", "ekfac"):
            options: dict[str, Any] = {"likelihood": "categorical", "structure": structure}
            plan = bs.plan(module, (x, y), **options)
            peak = None
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                bs.laplace(module, (x, y), prior_precision=1.0, **options)
                torch.cuda.synchronize(device)
                peak = torch.cuda.max_memory_allocated(device) - before
            found.append({"network": network, "structure": structure, "planned": plan.bytes, "peak": peak})
    return found


# --- report -----------------------------------------------------------------------------------------------------------


def agreement_text(found: Sequence[Report], device: torch.device) -> str:
    """The errors of each path, and those that failed or differ by more than rounding."""
    kinds = list(dict.fromkeys([f"{device.type} float64", f"{device.type} float32", "cpu float32"]))
    exact = f"{device.type} float64"
    failed = [(row["path"], kind, why) for row in found for kind, why in row["failures"].items()]
    far = [row["path"] for row in found if row["errors"].get(exact, 0.0) > AGREEMENT]
    lines = [
        f"{len(found)} public paths: {len(failed)} failed, {len(far)} differ in float64 by more than {AGREEMENT:g} of "
        "the largest entry. Trainings draw other numbers on a GPU: theirs are checked to be finite.",
        *(f"- {path} ({kind}): {why}" for path, kind, why in failed),
        *(f"- {path}: differs in float64" for path in far),
    ]
    cells = [
        [row["path"], *(f"{row['errors'][kind]:.1e}" if kind in row["errors"] else "–" for kind in kinds)]
        for row in found
    ]
    return "\n".join(lines) + "\n\n" + record.table(["path", *kinds], cells)


def speeds_text(found: Sequence[Report]) -> str:
    """A row for each work."""
    rows = [
        [
            row["work"], f"{row['rows']:,}", f"{1000 * row['seconds']:.2f}", f"{row['ratio']:.2f} × {row['unit']}",
            "–" if row["budget"] is None else f"{row['budget']:g}", "–" if row["goal"] is None else f"{row['goal']:g}",
        ]
        for row in found
    ]  # fmt: skip
    note = "The budget of one evidence step is 3 ms, its goal 1 ms."
    return record.table(["work", "rows", "ms", "ratio", "budget", "goal"], rows) + "\n\n" + note


def memory_text(found: Sequence[Report]) -> str:
    """A row for each fit."""
    rows = [
        [
            row["network"], row["structure"], readable(row["planned"]),
            "–" if row["peak"] is None else readable(row["peak"]),
            "–" if row["peak"] is None else f"{row['peak'] / row['planned']:.2f}",
        ]
        for row in found
    ]  # fmt: skip
    return record.table(["network", "structure", "planned", "peak", "peak over plan"], rows)


def main() -> None:
    """Runs all three on a device and writes them down."""
    parser = record.arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="the GPU where there is one")
    parser.add_argument("--turns", type=int, default=5, help="how often each is timed; of a quick run once")
    options = parser.parse_args()
    device = torch.device(options.device) if options.device else record.default_device()
    warnings.filterwarnings("ignore", category=bs.errors.ConvergenceWarning)  # the weights are random
    rows, last_rows, images = QUICK_SIZES if options.quick else SIZES
    started = time.perf_counter()
    paths = agreement(device, FEW_PATHS if options.quick else [*EXACT, *TRAINS])
    timed = speeds(device, rows, last_rows, 1 if options.quick else options.turns)
    held = memory(device, rows, images)
    minutes = (time.perf_counter() - started) / 60.0
    record.publish(
        options,
        "bench.gpu",
        f"Networks on {device_name(device)}",
        record.method_in(__doc__) + f" The run took {minutes:.1f} minutes.",
        [
            "## Agreement with the CPU in float64", agreement_text(paths, device),
            "## Speed", speeds_text(timed), "## Memory", memory_text(held),
        ],
        {"device": device_name(device), "agreement": paths, "speed": timed, "memory": held, "minutes": minutes},
        name=record.on_gpu("gpu", record.gpu_of(device)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
