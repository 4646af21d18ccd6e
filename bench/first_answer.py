"""The first answer of the defaults: what a newcomer gets on everyday data, before and after the defaults were changed.

Each point runs in a process of its own with a time limit, because the older code did not always come back. `--before`
runs the same points on the source tree of an older commit and keeps them as the column "before":

    git worktree add /tmp/before 5b501f4
    python -m bench.first_answer --before /tmp/before/src
    python -m bench.first_answer [--quick] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import record
from bench.first_answer_points import Point, holds

MODULES = tuple(
    f"bench.first_answer_{name}"
    for name in (
        "linear",
        "logistic",
        "tables",
        "integrals",
        "mlp",
        "training",
        "laplace",
        "architectures",
        "additive",
    )
)


def points() -> list[Point]:
    """All points, in the order of the page."""
    return [point for module in MODULES for point in import_module(module).POINTS]


def answer(point: Point, options: argparse.Namespace) -> dict[str, float] | str:
    """The numbers of one point, or why there are none."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.first_answer", "--point", point.name]
    source = options.before or record.ROOT / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(record.ROOT)])}
    try:
        done = subprocess.run(
            command + ["--quick"] * options.quick,
            capture_output=True,
            text=True,
            check=False,
            timeout=point.limit,
            env=environment,
            cwd=record.ROOT,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {point.limit:g} s"
    if done.returncode:
        last = done.stderr.strip().splitlines()
        return last[-1][:160] if last else f"the process ended with exit code {done.returncode}"
    numbers: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return numbers


def row(point: Point, measure: str, found: dict[str, Any]) -> list[str]:
    """One row of the table: the measure, before, after, what was wanted and whether it holds."""
    cells = []
    for when in ("before", "after"):
        got = found.get(when, {}).get(point.name, "not run")
        cells.append(f"{got[measure]:.4g}" if isinstance(got, dict) and measure in got else str(got))
    after = found.get("after", {}).get(point.name)
    verdict = "yes" if isinstance(after, dict) and holds(after[measure], point.wanted[measure]) else "**no**"
    return [measure, *cells, point.wanted[measure], verdict]


def parts(found: dict[str, Any]) -> list[str]:
    """The results as Markdown: a table for each point."""
    text = []
    heading = ""
    for point in points():
        if point.section != heading:
            heading = point.section
            text.append(f"## {heading}")
        rows = [row(point, measure, found) for measure in point.wanted]
        text.append(f"{point.about}\n\n{record.table(['', 'before', 'after', 'wanted', 'holds'], rows)}")
    return text


def main() -> None:
    """Runs the points and writes the page."""
    parser = record.arguments(__doc__)
    parser.add_argument("--before", type=Path, help="the source folder of an older commit: fills the column 'before'")
    parser.add_argument("--only", nargs="*", help="the names of points")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        (point,) = [each for each in points() if each.name == options.point]
        print(json.dumps(point.measure(options.quick)))
        return
    found = record.load(record.folder(options), "first_answer")
    chosen = [point for point in points() if not options.only or point.name in options.only]
    column = found.setdefault("before" if options.before else "after", {})
    for point in chosen:
        column[point.name] = answer(point, options)
        print(point.name, column[point.name], flush=True)
    whole = len(chosen) == len(points()) and not options.before
    made = record.made("bench.first_answer")
    found["made"] = made if whole else record.partly(made)
    intro = "What the default options give on everyday data; both columns are measured, 'before' at commit 5b501f4."
    text = record.page("The first answer", found["made"], intro, parts(found))
    record.save(record.folder(options), "first_answer", found, text)


if __name__ == "__main__":
    main()
