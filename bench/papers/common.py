"""What the paper-scale runs share: tasks that an interrupted run goes on with, networks from a seed, and tables."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.record import arguments, code, folder, made, page
from bench.record import save as write

# Of Immer et al. (2021a).
SEEDS = (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)

Record = dict[str, Any]
Task = Callable[[str, int], Record]


# --- networks ---------------------------------------------------------------------------------------------------------


def initialised(module: nn.Module, seed: int) -> nn.Module:
    """The module with new weights, drawn as torch draws those of linear and convolutional layers, from a seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor):
            continue
        bound = 1.0 / math.sqrt(weight[0].numel())
        nn.init.uniform_(weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return module


def mlp(sizes: Sequence[int], activation: type[nn.Module], seed: int) -> nn.Module:
    """Linear layers of the given widths, inputs first, with an activation between them."""
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), activation()]
    return initialised(nn.Sequential(*layers[:-1]), seed)


def module_run() -> str:
    """The name of the benchmark that runs: ``"bench.papers.mnist"``."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "benchmarks are run by `python -m`"
    return spec.name


# --- running ----------------------------------------------------------------------------------------------------------


@contextmanager
def warned(record: Record) -> Iterator[None]:
    """Keeps the names of the warnings of a block under ``"warnings"``, instead of showing them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    record["warnings"] = sorted({warning.category.__name__ for warning in caught})


@contextmanager
def timed(record: Record) -> Iterator[None]:
    """Keeps the wall time of a block under ``"seconds"``."""
    start = time.perf_counter()
    yield
    record["seconds"] = round(time.perf_counter() - start, 3)


@dataclass(frozen=True)
class Log:
    """Results by (set, seed), one a line, appended as they come; those of other settings are left and not read.

    Attributes:
        path: the file.
        settings: what the results depend on beside the set and the seed.
    """

    path: Path
    settings: Mapping[str, Any]

    def records(self) -> list[Record]:
        """The results so far, of these settings."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["settings"] == json.loads(json.dumps(self.settings))]

    def forget(self, keys: Iterable[tuple[str, int]]) -> None:
        """Takes the results of these sets and seeds, of these settings, out of the file."""
        dropped = [record for record in self.records() if (record["set"], record["seed"]) in set(keys)]
        if dropped:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line) not in dropped]
            self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def append(self, record: Record) -> None:
        """One more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"settings": self.settings, **record}) + "\n")


def _work(task: Task, name: str, seed: int, of: str) -> Record:
    """One result, in a process of its own; a failure is a result too, which the next run tries again."""
    torch.set_num_threads(1)
    record: Record = {"set": name, "seed": seed, "code": of}
    with timed(record):
        try:
            record |= task(name, seed)
        except Exception:  # noqa: BLE001 - the other tasks go on
            record["failure"] = traceback.format_exc()
    return record


def run(task: Task, keys: Iterable[tuple[str, int]], log: Log, chosen: argparse.Namespace) -> list[Record]:
    """All results of the keys: those in the log, and the others computed in processes of one thread each.

    Args:
        task: a function at module level of the set and the seed.
        keys: the sets and seeds.
        log: where results are found and kept.
        chosen: how many processes (`jobs`), and whether what is there is computed once more (`again`).

    Returns:
        The results without failures, in the keys' order; failures are printed.
    """
    wanted, of = list(keys), code(module_run())
    if chosen.again:
        log.forget(wanted)
    found = {(record["set"], record["seed"]): record for record in log.records()}
    missing = [key for key in wanted if key not in found]
    print(f"{log.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} results are there", file=sys.stderr)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(chosen.jobs, max(1, len(missing))), mp_context=spawn) as pool:
        for future in as_completed([pool.submit(_work, task, name, seed, of) for name, seed in missing]):
            record = future.result()
            key = record["set"], record["seed"]
            if "failure" in record:
                print(f"  {key} failed:\n{record['failure']}", file=sys.stderr, flush=True)
                continue
            log.append(record)
            found[key] = record
            print(f"  {key[0]}, {key[1]}: {record['seconds']:.1f} s", file=sys.stderr, flush=True)
    return [found[key] for key in wanted if key in found]


def options(doc: str | None, sets: Sequence[str], seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The arguments that all runs have."""
    parser = arguments(doc)
    parser.add_argument("--sets", nargs="+", default=list(sets), choices=list(sets))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--again", action="store_true", help="compute also what is there")
    return parser


def chosen_of(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """What was asked for; of a quick run the first set and seed, and what else is said here."""
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sets, chosen.seeds, chosen.again = chosen.sets[:1], chosen.seeds[:1], True
        vars(chosen).update(quick)
    chosen.out = chosen.out or folder(chosen) / "papers"
    return chosen


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """From one value a seed; the error of a single one is not a number."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
        return cls(float(array.mean()), error)

    def told(self, digits: int = 3, *, signed: bool = False) -> str:
        """As "0.123 ± 0.004"."""
        sign = "+" if signed else ""
        return f"{self.mean:{sign}.{digits}f} ± {self.error:.{digits}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def save(path: Path, lines: Sequence[str], results: Mapping[str, Any]) -> None:
    """Prints the lines, and writes them beside the numbers as .md and .json, and which code made how many of these."""
    origin = made(module_run())
    records = results["records"]
    every = records if isinstance(records, list) else [each for own in records.values() for each in own]
    codes = Counter(each.get("code", "unknown") for each in every)
    told = ", ".join(f"{count} of code {name}" for name, count in codes.items())
    origin["code"] = next(iter(codes)) if len(codes) == 1 else "several"
    title, *rest = lines
    text = page(title.removeprefix("# "), origin, "\n".join(rest), [f"Results: {told}."])
    write(path.parent, path.name, {"made": origin, **results}, text)
