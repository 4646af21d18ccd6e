"""The first answer of the defaults: what a newcomer gets on everyday data.

Each point runs in a process of its own with a time limit.

    python -m bench.first_answer [--quick] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from bench import record
from bench.first_answer_points import Point, holds

MODULES = ("linear", "logistic", "tables", "mlp", "training", "laplace", "additive")


def points() -> list[Point]:
    """All points, in the order of the page."""
    return [point for name in MODULES for point in import_module(f"bench.first_answer_{name}").POINTS]


def answer(point: Point, options: argparse.Namespace) -> dict[str, float] | str:
    """The numbers of one point, or why there are none."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.first_answer", "--point", point.name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(record.ROOT / "src"), str(record.ROOT)])}
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


def parts(found: dict[str, Any]) -> list[str]:
    """The results as Markdown: a table for each point."""
    text = []
    heading = ""
    for point in points():
        if point.section != heading:
            heading = point.section
            text.append(f"## {heading}")
        got = found.get("after", {}).get(point.name, "not run")
        rows = []
        for measure, wanted in point.wanted.items():
            known = isinstance(got, dict)
            well = known and holds(got[measure], wanted)
            rows.append([measure, f"{got[measure]:.4g}" if known else got, wanted, "yes" if well else "**no**"])
        text.append(f"{point.about}\n\n{record.table(['', 'found', 'wanted', 'holds'], rows)}")
    return text


def main() -> None:
    """Runs the points and writes the page."""
    parser = record.arguments(__doc__)
    parser.add_argument("--only", nargs="*", help="the names of points")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        (point,) = [each for each in points() if each.name == options.point]
        print(json.dumps(point.measure(options.quick)))
        return
    found = record.load(record.folder(options), "first_answer").get("after", {})
    chosen = [point for point in points() if not options.only or point.name in options.only]
    for point in chosen:
        found[point.name] = answer(point, options)
        print(point.name, found[point.name], flush=True)
    how, results = "What the default options give on everyday data.", {"after": found}
    whole = len(chosen) == len(points())
    record.publish(options, "bench.first_answer", "The first answer", how, parts(results), results, whole=whole)


if __name__ == "__main__":
    main()
