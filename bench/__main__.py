"""Every benchmark, one after another, each in a process of its own.

    python -m bench [NAME ...] [--quick] [--again] [--list]

Those whose results are of the code as it is are left out, so that a run that was stopped goes on where it was;
`--again` computes all of them anew. `--quick` runs each at small sizes, one on each core at a time, and leaves the
results alone. A benchmark that fails is named at the end, and the others run all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console
from rich.table import Table

from bench.record import QUICK, RESULTS, ROOT, code, load, partly
from bench.suite import SUITE, Benchmark

REFERENCE_DATA = ROOT.parent / "shared" / "data"


def state(benchmark: Benchmark) -> str:
    """Whether its results are there, and of which code."""
    found = load(RESULTS, benchmark.result)
    if not found:
        return "not run"
    made = found.get("made", {})
    if made.get("code") == code(benchmark.module):
        return "of this code"
    return f"of other code, {made.get('when', 'undated')}"


def listed(benchmarks: Sequence[Benchmark]) -> Table:
    """What there is, and how it stands."""
    listing = Table("benchmark", "proves", "minutes", "results", box=None)
    for each in benchmarks:
        listing.add_row(each.name, each.part, f"{each.minutes:g}", state(each))
    return listing


def run(benchmark: Benchmark, *, quick: bool, again: bool, console: Console) -> bool:
    """Runs one, and says whether it ended well and how long it took; what it printed is shown where it did not."""
    if not quick:
        console.print(f"{benchmark.name}, about {benchmark.minutes:g} minutes …")
    begun = time.monotonic()
    folder = QUICK if quick else RESULTS
    log = QUICK / "logs" / f"{benchmark.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", benchmark.module, "--out", str((folder / benchmark.result).parent)]
    if again and ".papers." in benchmark.module:
        command.append("--again")  # they keep single results, and would go on with those
    command += ["--quick"] if quick else []
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if quick else {})
    with log.open("w", encoding="utf-8") as written:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=written, stderr=subprocess.STDOUT, check=False
        )  # fmt: skip
    if ended.returncode:
        sys.stderr.write("".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-15:]))
        results = load((folder / benchmark.result).parent, benchmark.result.rpartition("/")[2])
        if results.get("made", {}).get("code") == code(
            benchmark.module
        ):  # it wrote them and says that they are not right: they are due again
            path = folder / f"{benchmark.result}.json"
            path.write_text(
                json.dumps(results | {"made": partly(results["made"])}, indent=1, ensure_ascii=False) + "\n",
                encoding="utf-8",
            )
    came = "FAILED" if ended.returncode else "done"
    console.print(f"{benchmark.name}: {came} in {time.monotonic() - begun:.0f} s")
    return ended.returncode == 0


def main() -> int:
    """Runs what was asked for; 1 where one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in SUITE))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args()
    unknown = set(options.names) - {each.name for each in SUITE}
    if unknown:
        parser.error(f"expected names of benchmarks, got {', '.join(sorted(unknown))}. `--list` has them all.")
    chosen = [each for each in SUITE if not options.names or each.name in options.names]
    console = Console()
    if options.list:
        console.print(listed(chosen))
        return 0
    anew = options.quick or options.again or bool(options.names)
    due = [each for each in chosen if anew or state(each) != "of this code"]
    console.print(f"{len(chosen) - len(due)} of {len(chosen)} results are of this code (--again computes them anew).")
    if not REFERENCE_DATA.is_dir():
        absent = [each.name for each in due if each.data]
        console.print(f"Left out, for there is no reference data at {REFERENCE_DATA}: {', '.join(absent) or 'none'}")
        due = [each for each in due if not each.data]
    if not options.quick:
        console.print(f"{len(due)} to run, about {sum(each.minutes for each in due) / 60:.1f} hours.")
    work = partial(run, quick=options.quick, again=options.again, console=console)
    with ThreadPoolExecutor((os.cpu_count() or 1) if options.quick else 1) as pool:  # speeds are measured alone
        failed = [each.name for each, well in zip(due, pool.map(work, due), strict=True) if not well]
    if failed:
        console.print(f"Failed: {', '.join(failed)}. What they printed lies in {QUICK / 'logs'}.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
