"""Seconds and memory of a fit to Parquet files of ever more rows, read a block at a time.

Each size is fitted in a process of its own, which has fitted a few rows before, so that libraries are loaded. Memory
is the highest resident size during the fit, which the kernel notes, less what was resident before it. The files are
written to a temporary folder and deleted.

    python -m bench.large_tables [--model logistic mlp] [--rows 100000 1000000] [--columns 20] [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bayescope as bs
from bench import record
from bench.memory import peak_growth

# Rows that are made and written at a time, a row group of the file each.
GROUP = 100_000
TARGET = "y"
# Rows that are not measured: what they would take is said.
FORETOLD = 10**8

MODELS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: bs.BayesianLogisticRegression(prior_precision="evidence", standardize=True),
    "additive": lambda: bs.NeuralAdditiveClassifier(random_state=0),
    "mlp": lambda: bs.BayesianMLPClassifier(random_state=0),
}


def write(path: Path, rows: int, columns: int) -> None:
    """A table of correlated normal columns, and labels from a logistic model."""
    rng = np.random.default_rng(0)
    mixing = np.eye(columns) + 0.5 * rng.standard_normal((columns, columns)) / np.sqrt(columns)
    weights = 0.3 * rng.standard_normal(columns)
    names = [f"x{j}" for j in range(columns)]
    schema = pa.schema([*((name, pa.float64()) for name in names), (TARGET, pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, GROUP):
            x = rng.standard_normal((min(GROUP, rows - start), columns)) @ mixing
            y = rng.random(len(x)) < 1.0 / (1.0 + np.exp(-(x @ weights + 0.3)))
            arrays = [*(pa.array(np.ascontiguousarray(column)) for column in x.T), pa.array(y.astype(np.int64))]
            writer.write_table(pa.table(arrays, schema=schema))


def measure(model: str, path: Path, warm: Path) -> dict[str, float]:
    """Seconds and memory of one fit, in this process."""
    MODELS[model]().fit(bs.open_table(warm), TARGET)
    table = bs.open_table(path)
    fitted: list[Any] = []
    start, computed = time.perf_counter(), time.process_time()
    grown = peak_growth(lambda: fitted.append(MODELS[model]().fit(table, TARGET)))
    took, computed = time.perf_counter() - start, time.process_time() - computed
    start = time.perf_counter()
    for _ in table.blocks():
        pass
    return {
        "rows": table.rows,
        "file_mb": path.stat().st_size / 1e6,
        "seconds": took,
        "cpu_seconds": computed,
        "read_once_seconds": time.perf_counter() - start,
        "peak_growth_mb": grown / 1e6,
        "log_evidence": fitted[0].log_evidence_,
    }


def measure_all(model: str, sizes: list[int], columns: int) -> dict[str, Any]:
    """All sizes, each in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm.parquet"
        write(warm, 5_000, columns)
        for rows in sizes:
            path = Path(folder) / "table.parquet"
            write(path, rows, columns)
            command = [sys.executable, "-m", "bench.large_tables", "--one", model, str(path), str(warm)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found.append(json.loads(answer.splitlines()[-1]))
            print(model, found[-1], flush=True)
            path.unlink()
    return {"columns": columns, "sizes": found, "foretold": foretold(found)}


def foretold(sizes: list[dict[str, float]]) -> dict[str, float]:
    """What 10⁸ rows would take, in proportion to the largest size: extrapolated, and not measured."""
    largest = sizes[-1]
    share = FORETOLD / largest["rows"]
    return {"rows": FORETOLD, "seconds": largest["seconds"] * share, "cpu_seconds": largest["cpu_seconds"] * share}


def table_of(results: dict[str, Any]) -> str:
    """The results in Markdown."""
    header = [
        "model", "rows × columns", "file, MB", "seconds", "seconds of a core", "µs of a core a row", "one reading, s",
        "memory over the start, MB",
    ]  # fmt: skip
    rows = []
    for model, found in results.items():
        rows += [
            [model, f"{size['rows']:,} × {found['columns']}", f"{size['file_mb']:.0f}", f"{size['seconds']:.1f}",
             f"{size['cpu_seconds']:.1f}", f"{1e6 * size['cpu_seconds'] / size['rows']:.1f}",
             f"{size['read_once_seconds']:.1f}", f"{size['peak_growth_mb']:.0f}"]
            for size in found["sizes"]
        ]  # fmt: skip
        more = foretold(found["sizes"])
        taken = [f"{more[key]:.0f}" for key in ("seconds", "cpu_seconds")]
        rows.append([model, f"{more['rows']:,} × {found['columns']}, extrapolated", "", *taken, "", "", ""])
    return record.table(header, rows)


def main() -> None:
    """Measures, and writes what was found."""
    parser = record.arguments(__doc__)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=[10**5, 10**6, 10**7])
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "PATH", "WARM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, path, warm = options.one
        print(json.dumps(measure(model, Path(path), Path(warm))))
        return
    into, sizes = record.folder(options), [20_000] if options.quick else options.rows
    for model in options.model[:1] if options.quick else options.model:
        models = record.load(into, "large_tables").get("models", {}) | {
            model: measure_all(model, sizes, options.columns)
        }
        origin = record.made("bench.large_tables")
        if model != options.model[-1] or list(options.model) != list(MODELS):
            origin = record.partly(origin)
        how = (
            "Parquet, read in blocks of 65,536 rows by one process. Seconds of a core are what the fit itself "
            "computed. 10⁸ rows are in proportion to the most that were measured."
        )
        text = record.page("Fits to tables on disk", origin, how, [table_of(models)])
        record.save(into, "large_tables", {"made": origin, "models": models}, text)


if __name__ == "__main__":
    main()
