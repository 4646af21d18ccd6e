"""A small mixed table on disk and in memory: numbers with gaps, labels with gaps, truth values, weights and targets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

import bayescope as bs

TARGETS = ["y", "cls", "two"]


def frame(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    source = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": source.normal(50.0, 10.0, rows).round(),
            "dose": source.uniform(0.0, 1.0, rows).round(2),
            "kind": source.choice(["red", "green", "blue"], rows, p=[0.2, 0.3, 0.5]),
            "new": source.random(rows) < 0.3,
        }
    )
    age = (table["age"].to_numpy() - 50.0) / 8.0
    f = np.sin(age) + 0.9 * (table["kind"] == "red") + 1.5 * (table["dose"].to_numpy() - 0.5) * age
    table.loc[source.random(rows) < 0.1, "age"] = np.nan
    table["kind"] = table["kind"].where(source.random(rows) > 0.05)
    noisy = f.to_numpy() + 0.3 * source.normal(size=rows)
    table["y"] = 100.0 + 7.0 * noisy
    table["cls"] = np.array(["high", "low", "middle"])[np.digitize(noisy, [0.0, 0.8])]
    table["two"] = (noisy > 0.0).astype(int)
    table["w"] = source.integers(0, 4, rows).astype(float)
    return table


def stored(folder: Path, table: pd.DataFrame, parts: int = 3) -> Path:
    """The table as Parquet files of different lengths."""
    bounds = [0, *np.sort(np.random.default_rng(1).integers(1, len(table), parts - 1)).tolist(), len(table)]
    for part, (start, stop) in enumerate(pairwise(bounds)):
        table[start:stop].to_parquet(folder / f"part-{part}.parquet", row_group_size=110)
    return folder


def opened(folder: Path, target: str, *, weighted: bool = False, block_rows: int = 150) -> bs.TableDataset:
    columns = ["age", "dose", "kind", "new", target, *(["w"] if weighted else [])]
    return bs.open_table(str(folder), columns=columns, block_rows=block_rows)


def features(table: pd.DataFrame) -> pd.DataFrame:
    return table[["age", "dose", "kind", "new"]]


def open_files() -> int:
    """Temporary files without a name that this process holds."""
    held = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            held += "(deleted)" in str(link.readlink())
        except OSError:  # the descriptor of the listing itself
            continue
    return held
