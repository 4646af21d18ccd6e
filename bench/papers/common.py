"""What the paper-scale runs share: tasks that an interrupted run goes on with, networks from a seed, and tables."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import signal
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
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from bench.record import arguments, code, folder, load, made, origin_told, page
from bench.record import save as write

# Of Immer et al. (2021a).
SEEDS = (711, 1, 75, 359, 17, 420, 129, 666, 69, 36)

# A result says which code made it and when. One that took longer than was allowed has "over_seconds", and no scores.
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

    The committed results beside it, the .json of the same name, are shown until a result of the log takes their place.

    Attributes:
        path: the file.
        settings: what the results depend on beside the set and the seed.
        lasting: whether committed results need no new computation, because the model is somebody else's and our code
            has no part in them.
    """

    path: Path
    settings: Mapping[str, Any]
    lasting: bool = False

    @property
    def _own(self) -> Any:
        return json.loads(json.dumps(self.settings))

    def records(self) -> list[Record]:
        """The results so far, of these settings."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["settings"] == self._own]

    def committed(self) -> list[Record]:
        """Those of the .json, of these settings; what was written without settings has those of the whole file."""
        whole = load(self.path.parent, self.path.stem)
        common = {name: value for name, value in whole.items() if name not in ("made", "records")}
        return [each for each in flat(whole.get("records", [])) if each.get("settings", common) == self._own]

    def shown(self) -> list[Record]:
        """All there are: those of the log, and the committed ones that it has none in place of."""
        found = {key_of(record): record for record in [*self.committed(), *self.records()]}
        return list(found.values())

    def there(self) -> dict[Key, Record]:
        """What need not be computed."""
        records = [*(self.committed() if self.lasting else []), *self.records()]
        return {key_of(record): record for record in records}

    def forget(self, keys: Iterable[Key]) -> None:
        """Takes the results of these sets and seeds, of these settings, out of the file."""
        dropped = [record for record in self.records() if key_of(record) in set(keys)]
        if dropped:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line) not in dropped]
            self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def append(self, record: Record) -> None:
        """One more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"settings": self.settings, **record}) + "\n")


def key_of(record: Record) -> Key:
    """The set and the seed of a result."""
    return record["set"], record["seed"]


def flat(records: Sequence[Record] | Mapping[str, Sequence[Record]]) -> list[Record]:
    """Results that lie in one list, or in a list for each model."""
    return list(records) if isinstance(records, Sequence) else [each for own in records.values() for each in own]


class OverTimeError(BaseException):
    """A result takes longer than is allowed; no Exception, so that no model takes it for one of its own."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Ends a block after that time, by an alarm of the system; without one where there is no limit.

    Raises:
        OverTimeError: when it is over.
    """

    def over(_number: int, _frame: FrameType | None) -> NoReturn:
        raise OverTimeError

    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _work(task: Task, key: Key, of: str, limit: float | None) -> Record:
    """One result; a failure is one too, which the next run tries again."""
    torch.set_num_threads(1)
    record: Record = {"set": key[0], "seed": key[1], "code": of}
    with timed(record):
        try:
            with at_most(limit):
                record |= task(*key)
        except OverTimeError:
            record["over_seconds"] = limit
        except Exception:  # noqa: BLE001 - the other tasks go on
            record["failure"] = traceback.format_exc()
    return record | {"when": now()}


def _computed(task: Task, keys: Sequence[Key], of: str, chosen: argparse.Namespace) -> Iterator[Record]:
    """Results as they come, from as many processes as were asked for; with none, from this one."""
    if not chosen.jobs:
        yield from (_work(task, key, of, chosen.limit) for key in keys)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(chosen.jobs, len(keys)), mp_context=spawn) as pool:
        for future in as_completed([pool.submit(_work, task, key, of, chosen.limit) for key in keys]):
            yield future.result()


def run(task: Task, keys: Iterable[Key], log: Log, chosen: argparse.Namespace) -> int:
    """Sees that all results of the keys are in the log: those that are not are computed in processes of one thread.

    Failures are printed and not kept. Those of other code are computed anew, unless our code has no part in them, and
    those that were over a lower limit than today's. Returns how many failed.

    Args:
        task: a function at module level of the set and the seed.
        keys: the sets and seeds.
        log: where results are found and kept.
        chosen: how many processes (`jobs`), after how many seconds a result is given up (`limit`), and whether what is
            there is computed once more (`again`).
    """
    wanted, of, limit = list(keys), code(module_run()), chosen.limit
    if chosen.again:
        log.forget(wanted)
    there = {} if chosen.again else log.there()
    ours = {key: record for key, record in there.items() if log.lasting or record.get("code") == of}
    done = [key for key, record in ours.items() if not record.get("over_seconds", math.inf) < (limit or math.inf)]
    missing = [key for key in wanted if key not in done]
    log.forget(missing)
    failed = 0
    print(f"{log.path.stem}: {len(wanted) - len(missing)} of {len(wanted)} results are there", file=sys.stderr)
    for record in _computed(task, missing, of, chosen) if missing else ():
        key = key_of(record)
        if "failure" in record:
            print(f"  {key} failed:\n{record['failure']}", file=sys.stderr, flush=True)
            failed += 1
            continue
        log.append(record)
        told = "over time" if "over_seconds" in record else f"{record['seconds']:.1f} s"
        print(f"  {key[0]}, {key[1]}: {told}", file=sys.stderr, flush=True)
    return failed


def now() -> str:
    """The time of a result."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def options(doc: str | None, sets: Sequence[str], seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The arguments that all runs have."""
    parser = arguments(doc)
    parser.add_argument("--sets", nargs="+", default=list(sets), choices=list(sets))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each; 0: none beside this one")
    parser.add_argument("--again", action="store_true", help="compute also what is there")
    parser.add_argument("--limit", type=float, help="seconds after which a result is given up, and the others go on")
    parser.add_argument("--show", action="store_true", help="write the page anew from what is there, compute nothing")
    return parser


def chosen_of(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """What was asked for; of a quick run the first set and seed, and what else is said here."""
    chosen = parser.parse_args()
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

    def told(self, digits: int = 3, *, signed: bool = False) -> str:
        """As "0.123 ± 0.004"; the mean alone where there is no error."""
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if math.isnan(self.error) else f"{mean} ± {self.error:.{digits}f}"


def scored(records: Iterable[Record], sets: Sequence[str]) -> list[Record]:
    """Those that were not given up, by set and then by seed."""
    ended = [record for record in records if "over_seconds" not in record and record["set"] in sets]
    return sorted(ended, key=lambda record: (sets.index(record["set"]), record["seed"]))


def save(path: Path, lines: Sequence[str], results: Mapping[str, Any], *, show: bool = False) -> None:
    """Prints the lines, and writes them beside the numbers as .md and .json, and which code made how many of these.

    Args:
        path: of both, without an ending.
        lines: of the page, its title first.
        results: the numbers; those under ``"records"`` are results, in one list or in a list for each model.
        show: write the page alone, from numbers that are there.
    """
    origin = origin_of(flat(results["records"]), load(path.parent, path.name).get("made"), show=show)
    told = made_told(flat(results["records"]), origin)
    title, *rest = lines
    text = page(title.removeprefix("# "), None, "\n".join(rest), [told])
    if show:
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        sys.stdout.write(text)
        return
    write(path.parent, path.name, ({"made": origin} if origin else {}) | dict(results), text)


def origin_of(records: Sequence[Record], before: Record | None, *, show: bool) -> Record | None:
    """How results count as made: as the last of them; None where none says how.

    Args:
        records: the results.
        before: what was said of them when they were last written.
        show: whether nothing was computed now.
    """
    last = max((record["when"] for record in records if "when" in record), default=None)
    codes = {record.get("code") for record in records}
    if last is None or show or (before is not None and before["when"] >= last):
        return before
    return made(module_run()) | {"when": last, "code": codes.pop() if len(codes) == 1 else "several"}


def made_told(records: Sequence[Record], origin: Record | None) -> str:
    """Which code made how many of the results, and on which machine the last were made."""
    codes = Counter(record.get("code") for record in records)
    parts = [f"{count} {f'of code {name}' if name else NOT_KEPT}" for name, count in codes.items()]
    if set(codes) == {None}:
        return f"Results: {NOT_KEPT}."
    return " ".join([*([origin_told(origin)] if origin else []), f"Results: {'; '.join(parts)}."])
