"""Whether anything has become slower than the committed results say: more than a fifth fails.

    python -m bench.check [NAME ...]

The speed benchmarks run again, ours alone, into a folder of their own, and each of our ratios is compared with the
committed one. Where one is over, all are measured twice more, since machines are noisy, and the median of three counts.
A benchmark without committed ratios fails, for it was compared with nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, ROOT, load
from bench.suite import SUITE, Benchmark

ALLOWED = 1.2

# Runs a benchmark into a folder, and returns its ratios by what was done.
Measure = Callable[[Benchmark, Path], dict[str, float]]


def our_ratios(results: dict[str, Any]) -> dict[str, float]:
    """Those of a benchmark's results, by what was done."""
    return {record["work"]: record["ratio"] for record in results.get("ratios", ()) if "ratio" in record}


def slower(committed: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """The growth of each ratio that has grown by more than is allowed; infinite where it is no longer measured."""
    grown = {work: now.get(work, float("inf")) / ratio for work, ratio in committed.items()}
    return {work: growth for work, growth in grown.items() if growth > ALLOWED}


def middle(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each ratio over the runs."""
    return {work: median(run.get(work, float("inf")) for run in runs) for work in runs[0]}


def measured(benchmark: Benchmark, folder: Path) -> dict[str, float]:
    """The ratios of one run."""
    command = [sys.executable, "-m", benchmark.module, "--no-peers", "--out", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{benchmark.name} failed:\n{ended.stderr[-2000:]}")
    return our_ratios(load(folder, benchmark.result.rpartition("/")[2]))


def check(
    benchmark: Benchmark, folder: Path, results: Path, measure: Measure
) -> tuple[dict[str, float], dict[str, float]]:
    """The committed ratios and the present ones, which are medians of three runs if the first run is over."""
    committed = our_ratios(load(results, benchmark.result))
    if not committed:
        raise SystemExit(
            f"{benchmark.name}: expected committed ratios, got none. Run python -m bench {benchmark.name}."
        )
    now = measure(benchmark, folder)
    if not slower(committed, now):
        return committed, now
    return committed, middle([now, measure(benchmark, folder), measure(benchmark, folder)])


def table(lines: Iterable[tuple[str, str, float, float]]) -> Table:
    """What was compared, the ones that have grown in red."""
    compared = Table("benchmark", "work", "committed", "now", box=None)
    for name, work, before, now in lines:
        compared.add_row(name, work, f"{before:.3g}", f"{now:.3g}", style="red" if now > ALLOWED * before else None)
    return compared


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS, measure: Measure = measured) -> int:
    """Compare with the committed ratios.

    Args:
        arguments: of the command line; ``None`` for those of the process.
        results: the folder of the committed ratios.
        measure: measures one benchmark.

    Returns:
        1 if something has become slower, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compared = {each.name: each for each in SUITE if each.compared}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(compared))
    names = parser.parse_args(arguments).names or list(compared)
    unknown = set(names) - set(compared)
    if unknown:
        parser.error(f"expected names of benchmarks of speed, got {', '.join(sorted(unknown))}.")
    console, lines, over = Console(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            console.print(f"{name} …")
            committed, now = check(compared[name], Path(folder), results, measure)
            lines += [(name, work, ratio, now.get(work, float("inf"))) for work, ratio in committed.items()]
            over += [f"{name}: {work}, {growth:.2f} times" for work, growth in slower(committed, now).items()]
    console.print(table(lines))
    for line in over:
        console.print(f"slower: {line}", style="red")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
