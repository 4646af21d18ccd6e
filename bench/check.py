"""Whether anything has become slower than the committed results say: more than a fifth fails.

    python -m bench.check [NAME ...]

The speed benchmarks run again, into a folder of their own, and each of our ratios is compared with the committed one. A
ratio that is over is measured once more, since machines are noisy, and fails only if the less of both is over too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, ROOT, load
from bench.suite import SUITE, Benchmark

ALLOWED = 1.2


def our_ratios(results: dict[str, Any]) -> dict[str, float]:
    """Those of a benchmark's results, by what was done."""
    return {record["work"]: record["ratio"] for record in results.get("ratios", ()) if "ratio" in record}


def slower(committed: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """The growth of each ratio that has grown by more than is allowed; infinite where it is no longer measured."""
    grown = {work: now.get(work, float("inf")) / ratio for work, ratio in committed.items()}
    return {work: growth for work, growth in grown.items() if growth > ALLOWED}


def least(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """The less of both runs."""
    return {work: min(ratio, second.get(work, ratio)) for work, ratio in first.items()}


def measured(benchmark: Benchmark, folder: Path) -> dict[str, float]:
    """The ratios of one run."""
    command = [sys.executable, "-m", benchmark.module, "--no-peers", "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return our_ratios(load(folder, benchmark.result.rpartition("/")[2]))


def check(benchmark: Benchmark, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The committed ratios and those of now, of a second run where the first is over."""
    committed = our_ratios(load(RESULTS, benchmark.result))
    now = measured(benchmark, folder)
    return committed, least(now, measured(benchmark, folder)) if slower(committed, now) else now


def table(lines: Iterable[tuple[str, str, float, float]]) -> Table:
    """What was compared, the ones that have grown in red."""
    told = Table("benchmark", "work", "committed", "now", box=None)
    for name, work, before, now in lines:
        told.add_row(name, work, f"{before:.3g}", f"{now:.3g}", style="red" if now > ALLOWED * before else None)
    return told


def main() -> int:
    """Compares; 1 where something has become slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compared = {each.name: each for each in SUITE if each.compared}
    parser.add_argument("names", nargs="*", default=list(compared), choices=[*compared, []], metavar="NAME")
    console, lines, over = Console(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in parser.parse_args().names:
            console.print(f"{name} …")
            committed, now = check(compared[name], Path(folder))
            lines += [(name, work, ratio, now.get(work, float("inf"))) for work, ratio in committed.items()]
            over += [f"{name}: {work}, {growth:.2f} times" for work, growth in slower(committed, now).items()]
    console.print(table(lines))
    for line in over:
        console.print(f"slower: {line}", style="red")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
