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
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.record import arguments, code, folder, load, made, origin_text, page
from bench.record import save as write

# Of Immer et al. (2021a).
SEEDS = (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)

# A result says which code made it and when.
Record = dict[str, Any]
Key = tuple[str, int]
Task = Callable[[str, int], Record]
NOT_KEPT = "of an earlier version of the code; how it was made was not kept"


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

    The committed results, the .json of the same name, are shown until a result of the log takes their place.

    Attributes:
        path: the file.
        settings: what the results depend on besides the set and the seed.
        lasting: whether results of other code need no new computation, because the model is a peer's.
    """

    path: Path
    settings: Mapping[str, Any]
    lasting: bool = False

    def results(self) -> dict[Key, Record]:
        """All results there are of these settings; the later of a set and seed counts."""
        settings = json.loads(json.dumps(self.settings))
        whole = load(self.path.parent, self.path.stem)
        common = {name: value for name, value in whole.items() if name not in ("made", "records")}
        found = [each for each in flat(whole.get("records", [])) if each.get("settings", common) == settings]
        if self.path.exists():
            lines = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
            found += [line for line in lines if line["settings"] == settings]
        return {(record["set"], record["seed"]): record for record in found}

    def append(self, record: Record) -> None:
        """One more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"settings": self.settings, **record}) + "\n")


def flat(records: Sequence[Record] | Mapping[str, Sequence[Record]]) -> list[Record]:
    """Results that lie in one list, or in a list for each model."""
    return list(records) if isinstance(records, Sequence) else [each for some in records.values() for each in some]


def _work(task: Task, key: Key, of: str) -> Record:
    """One result; a failure is one too, which the next run tries again."""
    torch.set_num_threads(1)
    record: Record = {"set": key[0], "seed": key[1], "code": of}
    with timed(record):
        try:
            record |= task(*key)
        except Exception:  # noqa: BLE001 - the other tasks go on
            record["failure"] = traceback.format_exc()
    return record | {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M")}


def _computed(task: Task, keys: Sequence[Key], of: str, jobs: int) -> Iterator[Record]:
    """Results as they come, from several processes; with no jobs from this one."""
    if not jobs:
        yield from (_work(task, key, of) for key in keys)
        return
    with ProcessPoolExecutor(min(jobs, len(keys)), mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_work, task, key, of) for key in keys]):
            yield future.result()


def run(task: Task, keys: Iterable[Key], log: Log, chosen: argparse.Namespace) -> int:
    """Computes the results of the keys that the log lacks, in processes of one thread; returns how many failed.

    Failures are printed and not kept. Results of other code are computed anew, but those of a peer.

    Args:
        task: a function at module level of the set and the seed.
        keys: the sets and seeds.
        log: where results are found and kept.
        chosen: the benchmark (`module`), how many processes (`jobs`), whether existing results are computed once more
            (`again`), and whether nothing is computed (`show`).
    """
    if chosen.show:
        return 0
    wanted, of = list(keys), code(chosen.module)
    done = [key for key, each in log.results().items() if (log.lasting or each.get("code") == of) and not chosen.again]
    missing = [key for key in wanted if key not in done]
    failed = 0
    print(f"{log.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} results are there", file=sys.stderr)
    for record in _computed(task, missing, of, chosen.jobs) if missing else ():
        name = f"{record['set']}, {record['seed']}"
        if "failure" in record:
            print(f"  {name} failed:\n{record['failure']}", file=sys.stderr, flush=True)
            failed += 1
            continue
        log.append(record)
        print(f"  {name}: {record['seconds']:.1f} s", file=sys.stderr, flush=True)
    return failed


def experiment(
    chosen: argparse.Namespace,
    name: str,
    settings: Mapping[str, Any],
    task: Task,
    keys: Iterable[Key],
    tables: Callable[[Sequence[Record]], Sequence[str]],
) -> None:
    """Computes what is missing, and writes the page and the numbers of all there is; ends with 1 where one failed.

    Args:
        chosen: the arguments.
        name: of the results.
        settings: what results depend on besides the set and the seed.
        task: computes one.
        keys: the sets and seeds that are wanted.
        tables: the lines of the page, from the results by set and seed.
    """
    log = Log(chosen.out / f"{name}.jsonl", settings)
    failed = run(task, keys, log, chosen)
    found = log.results()
    order = list(dict.fromkeys(each for each, _ in found))
    records = [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]
    if records:
        save(chosen.out / name, tables(records), {**settings, "records": records}, chosen.module, show=chosen.show)
    if failed:
        raise SystemExit(1)


def options(doc: str | None, sets: Sequence[str], seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The arguments that all runs have."""
    parser = arguments(doc)
    parser.add_argument("--sets", nargs="+", default=list(sets), choices=list(sets))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each; 0: this one alone")
    parser.add_argument("--again", action="store_true", help="compute also what is there")
    parser.add_argument("--show", action="store_true", help="write the page anew from what is there, compute nothing")
    return parser


def chosen_of(
    parser: argparse.ArgumentParser, module: str, argv: Sequence[str] | None, **quick: Any
) -> argparse.Namespace:
    """The arguments of a run.

    Args:
        parser: made by `options`.
        module: the benchmark, such as ``"bench.papers.mnist"``.
        argv: of the command line; ``None`` for those of the process.
        quick: values of a quick run, which takes the first set and seed alone.
    """
    chosen = parser.parse_args(argv)
    chosen.module = module
    if chosen.quick:
        # Another process would take longer to import what it needs than to do what a quick run has to do.
        chosen.sets, chosen.seeds, chosen.again, chosen.jobs = chosen.sets[:1], chosen.seeds[:1], True, 0
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

    def text(self, digits: int = 3, *, signed: bool = False) -> str:
        """As "0.123 ± 0.004"; the mean alone where there is no error."""
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if math.isnan(self.error) else f"{mean} ± {self.error:.{digits}f}"


def save(path: Path, lines: Sequence[str], results: Mapping[str, Any], module: str, *, show: bool = False) -> None:
    """Prints the lines, and writes them beside the numbers as .md and .json, and which code made how many of these.

    Args:
        path: of both, without an ending.
        lines: of the page, its title first.
        results: the numbers; those under ``"records"`` are results, in one list or in a list for each model.
        module: the benchmark that made them.
        show: write the page alone, from numbers that are there.
    """
    origin = origin_of(flat(results["records"]), load(path.parent, path.name).get("made"), module, show=show)
    origins = made_text(flat(results["records"]), origin)
    title, *rest = lines
    text = page(title.removeprefix("# "), None, "\n".join(rest), [origins])
    if show:
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        sys.stdout.write(text)
        return
    write(path.parent, path.name, ({"made": origin} if origin else {}) | dict(results), text)


def origin_of(records: Sequence[Record], before: Record | None, module: str, *, show: bool) -> Record | None:
    """How results count as made: as the last of them; None where none says how.

    Args:
        records: the results.
        before: what was said of them when they were last written.
        module: the benchmark that made them.
        show: whether nothing was computed now.
    """
    last = max((record["when"] for record in records if "when" in record), default=None)
    codes = {record.get("code") for record in records}
    if last is None or show or (before is not None and before["when"] >= last):
        return before
    return made(module) | {"when": last, "code": codes.pop() if len(codes) == 1 else "several"}


def made_text(records: Sequence[Record], origin: Record | None) -> str:
    """Which code made how many of the results, and on which machine the last were made."""
    codes = Counter(record.get("code") for record in records)
    parts = [f"{count} {f'of code {name}' if name else NOT_KEPT}" for name, count in codes.items()]
    if set(codes) == {None}:
        return f"Results: {NOT_KEPT}."
    return " ".join([*([origin_text(origin)] if origin else []), f"Results: {'; '.join(parts)}."])
