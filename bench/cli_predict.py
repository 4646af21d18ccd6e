"""`bayescope predict` on long tables: memory that does not grow with the rows, and time that grows as they do.

Tables of 20 columns (16 of numbers, 4 of labels, some values missing) are written as CSV and as Parquet, and predicted
by models that were fitted to 5,000 rows. Each prediction is a process of its own; its peak is the kernel's count of
resident memory, Python and torch included, and its CPU time is what other work on the machine does not enter.

    python -m bench.cli_predict [--rows 100000 1000000] [--longest 10000000] [--models linear additive] [--folder /tmp]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bench import record

NUMBERS, LABELS, TOGETHER = 16, 4, 250_000
FITTED_ROWS = 5_000
LIMIT = 1e9  # bytes
COLOURS = np.array(["red", "green", "blue", "yellow", "black"], dtype=object)
Row = dict[str, Any]


def table(rows: int, seed: int) -> pd.DataFrame:
    """Numbers with two decimals, labels, and one value in fifty missing in two columns."""
    generator = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"n{j}": generator.normal(50.0, 20.0, rows).round(2) for j in range(NUMBERS)}
    columns |= {f"l{j}": COLOURS[generator.integers(len(COLOURS), size=rows)] for j in range(LABELS)}
    frame = pd.DataFrame(columns)
    frame.loc[generator.random(rows) < 0.02, "n0"] = np.nan
    frame.loc[generator.random(rows) < 0.02, "l0"] = None
    return frame


def target(frame: pd.DataFrame, seed: int) -> pd.Series:
    """Classes that some of the columns tell."""
    noise = np.random.default_rng(seed).logistic(size=len(frame))
    f = 0.05 * (frame["n1"] - 50) + np.sin(frame["n2"] / 15) + (frame["l1"] == "red") * 1.0
    return pd.Series(np.where(f + noise > 0, "yes", "no"), name="y")


def write_table(path: Path, rows: int) -> None:
    """A table of so many rows, part after part, so that writing it takes little memory too."""
    writer: Any = None
    for part, start in enumerate(range(0, rows, TOGETHER)):
        batch = pa.Table.from_pandas(table(min(TOGETHER, rows - start), 1 + part), preserve_index=False)
        if writer is None:
            parquet = path.suffix == ".parquet"
            writer = (pa.parquet.ParquetWriter if parquet else pa.csv.CSVWriter)(path, batch.schema)
        writer.write_table(batch)
    writer.close()


def command(*arguments: object) -> Row:
    """Runs a command; its seconds and its peak of resident memory."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bayescope_command", *map(str, arguments)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, arguments))} ended with {status}")
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024}  # fmt: skip


def fit_models(folder: Path, models: list[str]) -> None:
    """A file for each model."""
    sample = table(FITTED_ROWS, 0)
    sample.assign(y=target(sample, 0)).to_csv(folder / "fitted.csv", index=False)
    for model in models:
        given = ["--target", "y", "--model", model, "--test-size", "0", "--out", folder / f"{model}.bayes"]
        command("fit", folder / "fitted.csv", *given)


def measure(folder: Path, models: list[str], rows: int, ending: str) -> list[Row]:
    """Every model on one table."""
    path, out = folder / f"table{ending}", folder / f"predictions{ending}"
    write_table(path, rows)
    measured: list[Row] = []
    for model in models:
        found = command("predict", folder / f"{model}.bayes", path, "--out", out)
        sizes = {"in_bytes": path.stat().st_size, "out_bytes": out.stat().st_size}
        measured.append({"model": model, "rows": rows, "format": ending[1:], **sizes, **found})
        print(f"{model:9} {rows:>10,} {ending:8} {found['seconds']:8.1f} s {found['peak_bytes'] / 1e6:7.0f} MB")
    path.unlink()
    out.unlink()
    return measured


def markdown(measured: list[Row]) -> str:
    """The measurements as a table, and what they say."""
    header = ["model", "rows", "format", "table", "predictions", "seconds", "CPU seconds", "peak memory"]
    cells = [
        [row["model"], f"{row['rows']:,}", row["format"], *(_mb(row[key]) for key in ("in_bytes", "out_bytes")),
         f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", _mb(row["peak_bytes"])]
        for row in measured
    ]  # fmt: skip
    most = max(row["peak_bytes"] for row in measured)
    verdict = "below" if most < LIMIT else "ABOVE"
    peak = f"The largest peak is {_mb(most)}, {verdict} the {LIMIT / 1e9:.0f} GB that it may be."
    return "\n\n".join([record.table(header, cells), peak, "\n".join(slopes(measured))])


def _mb(count: float) -> str:
    return f"{count / 1e6:.0f} MB"


def slopes(measured: list[Row]) -> list[str]:
    """CPU time a million rows, from the shortest and the longest table."""
    texts = []
    for model, ending in dict.fromkeys((row["model"], row["format"]) for row in measured):
        some = sorted((r for r in measured if (r["model"], r["format"]) == (model, ending)), key=lambda r: r["rows"])
        if len(some) > 1:
            first, last = some[0], some[-1]
            per_row = (last["cpu_seconds"] - first["cpu_seconds"]) / (last["rows"] - first["rows"])
            texts.append(f"- {model}, {ending}: {1e6 * per_row:.0f} CPU seconds a million rows")
    return texts


def main() -> None:
    """Measures and writes the results."""
    parser = record.arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--longest", type=int, default=10_000_000, help="of the first model and format alone; 0: none")
    parser.add_argument("--models", nargs="+", default=["linear", "additive"])
    parser.add_argument("--formats", nargs="+", default=[".csv", ".parquet"])
    parser.add_argument("--folder", type=Path, help="for the tables, which are taken away at the end")
    given = parser.parse_args()
    rows, longest = ([20_000], 0) if given.quick else (given.rows, given.longest)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        fit_models(folder, given.models)
        cases = [(given.models, size, ending) for size in rows for ending in given.formats]
        cases += [([given.models[0]], longest, given.formats[0])] if longest else []
        measured: list[Row] = []
        for models, size, ending in cases:
            measured += measure(folder, models, size, ending)
            origin, how = record.made("bench.cli_predict"), record.method_in(__doc__)
            if (models, size, ending) != cases[-1]:
                origin = record.partly(origin)
            text = record.page("`bayescope predict` on long tables", origin, how, [markdown(measured)])
            record.save(record.folder(given), "cli_predict", {"made": origin, "rows": measured}, text)


if __name__ == "__main__":
    main()
