"""Speeds as ratios within one run: what is compared takes turns in one process, beside what it is a multiple of.

A ratio is that of a work's time per row to its unit's in the same turn; the median over the turns is what counts, and
the least and the greatest stand beside it. The floor is what the formulas ask for at least, operations or bytes, at the
speed of a plain matrix product and of a plain copy in the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from bench import record

OURS = "bayescope"
TURNS, PEER_TURNS = 5, 3


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Of a benchmark of speed: those of all, how many turns there are, and whether the peers take them too."""
    parser = record.arguments(doc)
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each is timed; of a quick run once")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="ours alone")
    return parser


def chosen(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was chosen; a quick run has one turn and no peers."""
    options = parser.parse_args()
    if options.quick:
        options.turns, options.peers = 1, False
    return options


@dataclass
class Work:
    """Something to time.

    Attributes:
        name: what is done, a row of the table.
        run: does it.
        unit: the name of the work that it is a multiple of; its own for a unit.
        who: by whom: ours, or a peer's name and, after a comma, which of its ways.
        rows: how many rows it reads; the unit's time is scaled to as many.
        budget: the most that the ratio may be, and 0 where none was set.
        goal: the ratio to try for.
        flops: the operations that the formulas ask for at least.
        bytes: the bytes that have to be read or written at least.
        seconds: what each turn took.
        failure: why it could not be run: of a peer that refuses, a result.
    """

    name: str
    run: Callable[[], object]
    unit: str
    who: str = OURS
    rows: int = 1
    budget: float = 0.0
    goal: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    seconds: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def is_unit(self) -> bool:
        """Whether others are multiples of it."""
        return self.name == self.unit


def in_turns(
    works: Sequence[Work],
    turns: int = TURNS,
    peer_turns: int = PEER_TURNS,
    clock: Callable[[], float] = time.perf_counter,
    inner: Callable[[Work], int] = lambda _: 1,
    measure: Callable[[Work], float] | None = None,
) -> None:
    """Runs all works once, to warm up, and then in turns: ours and the units ``turns`` times, peers fewer.

    Args:
        works: what is timed; the times are kept in them.
        turns: how often.
        peer_turns: how often a peer's, which may take minutes.
        clock: of the wall, or `time.process_time`.
        inner: how many times a work is run in one turn, for works of microseconds.
        measure: runs a work and says what it took, in the place of the clock, where that is not the time of the call.
    """
    for turn in range(-1, turns):
        for work in works:
            if work.failure or (work.who != OURS and turn >= peer_turns):
                continue
            try:
                taken = measure(work) if measure else _called(work, clock, inner(work))
            except Exception as error:
                if work.who == OURS:
                    raise
                first = str(error).splitlines()[0][:80] if str(error) else ""
                work.failure = f"{type(error).__name__}: {first}"
                continue
            if turn >= 0:
                work.seconds.append(taken)
            print(f"  {work.name} [{work.who}] {taken:.4g} s", file=sys.stderr, flush=True)


def _called(work: Work, clock: Callable[[], float], times: int) -> float:
    start = clock()
    for _ in range(times):
        work.run()
    return (clock() - start) / times


def fastest(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The least seconds of five runs, after one that warms up."""
    times = []
    for _ in range(6):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times[1:])


@dataclass(frozen=True)
class Machine:
    """What the machine does at best, in operations and bytes a second."""

    flops: float
    bytes: float

    @classmethod
    def measured(cls, size: int = 1024, dtype: torch.dtype = torch.float32) -> Machine:
        """By a plain product of square matrices, and by a copy that no cache holds; the best of five."""
        a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
        source = torch.ones(1 << 25)
        target = torch.empty_like(source)
        copied = 2 * source.nbytes / fastest(lambda: target.copy_(source))
        return cls(2.0 * size**3 / fastest(lambda: a @ b), copied)

    def floor(self, work: Work) -> float:
        """The seconds below which a work cannot be, 0 where nothing was counted."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


def ratios(works: Sequence[Work], machine: Machine | None = None) -> list[dict[str, Any]]:
    """A record for each thing that was done: ours, the fastest way of each peer, the budget and the floor."""
    units = {work.name: work for work in works if work.is_unit}
    found: dict[str, dict[str, Any]] = {}
    for work in works:
        if work.is_unit:
            continue
        empty = {"work": work.name, "unit": work.unit, "budget": 0.0, "goal": 0.0, "peers": {}}
        record = found.setdefault(work.name, empty)
        if work.who == OURS:
            record |= _ours(work, units[work.unit], machine)
        elif work.failure or not work.seconds:
            record["peers"][work.who] = {"failure": work.failure or "not run"}
        else:
            record["peers"][work.who] = {"rows": work.rows, **_spread(work, units[work.unit])}
    return list(found.values())


def _spread(work: Work, unit: Work) -> dict[str, Any]:
    each = [
        (taken / work.rows) / (other / unit.rows) for taken, other in zip(work.seconds, unit.seconds, strict=False)
    ]  # fmt: skip
    return {"ratio": median(each), "least": min(each), "greatest": max(each), "seconds": median(work.seconds)}


def _ours(work: Work, unit: Work, machine: Machine | None) -> dict[str, Any]:
    numbers = {"rows": work.rows, "budget": work.budget, "goal": work.goal, **_spread(work, unit)}
    floor = machine.floor(work) if machine else 0.0
    return numbers | ({"over_floor": min(work.seconds) / floor} if floor else {})


def speed_table(records: Sequence[dict[str, Any]]) -> str:
    """The table of the records under a heading, a column for each peer that is in one of them."""
    peers = sorted({who.partition(", ")[0] for record in records for who in record["peers"]})
    header = ["work", "× of", "budget", "bayescope", "least to greatest", "× its floor", *peers]
    return f"## Speed\n\n{record.table(header, [_row(each, peers) for each in records])}"


def _row(record: dict[str, Any], peers: Sequence[str]) -> list[str]:
    budget = f"≤ {record['budget']:g}" if record["budget"] else ""
    goal = f", goal {record['goal']:g}" if record["goal"] else ""
    floor = f"{record['over_floor']:.3g}" if "over_floor" in record else ""
    ours = [f"**{digits(record['ratio'])}**", f"{digits(record['least'])}–{digits(record['greatest'])}", floor]
    unit = record["unit"].removeprefix(record["work"].partition(": ")[0] + ": ")
    return [record["work"], unit, budget + goal, *ours, *(_peer(record, peer) for peer in peers)]


def _peer(record: dict[str, Any], peer: str) -> str:
    """The fastest of a peer's ways, or why there is none."""
    ways = {who: value for who, value in record["peers"].items() if who.partition(", ")[0] == peer}
    ran = {who: value for who, value in ways.items() if "ratio" in value}
    if not ran:
        return "refused" if ways else "–"
    who = min(ran, key=lambda name: ran[name]["ratio"])
    way = who.partition(", ")[2]
    few = f"{ran[who]['rows']:,} rows" if ran[who]["rows"] < record["rows"] else ""
    note = ", ".join(part for part in (way, few) if part)
    spread = f" [{digits(ran[who]['least'])}–{digits(ran[who]['greatest'])}]"
    return f"{digits(ran[who]['ratio'])}{spread}{f' ({note})' if note else ''}"


def digits(ratio: float) -> str:
    """Three digits, and a large ratio whole."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
