"""A table that memory is to hold as a whole is refused by its first rows where it is too large."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayescope.cli import Roles, open_source, read_training_table
from bayescope.cli.arrow_source import large
from bayescope.cli.source import CELL_BYTES, Source, all_blocks
from bayescope.errors import InputError, MemoryBudgetError
from bayescope.memory import memory_limit
from tests.cli.tables import run, written

ROWS = 2000


@pytest.fixture
def limit() -> Iterator[None]:
    """Memory for half of a table of so many rows with two columns."""
    with memory_limit(CELL_BYTES * ROWS):
        yield


def rows_of_blocks(opened: Source) -> Iterator[int]:
    """How many rows each block of a table has that is read as a whole, in blocks of 100 rows."""
    return (block.rows for block in all_blocks(opened, opened.header, 100))


def table(path: Path, rows: int) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.standard_normal(rows).round(6), "y": np.arange(rows) % 2})
    if path.suffix == "":
        path.mkdir()
        for part in range(3):
            frame.iloc[part * rows // 3 : (part + 1) * rows // 3].to_parquet(path / f"{part}.parquet")
        return path
    return written(path, frame)


def blocks_before_refusal(opened: Source) -> int:
    seen: list[int] = []
    with pytest.raises(MemoryBudgetError, match=r"with 2 columns, would take about .* Fit it with --stream"):
        seen.extend(rows_of_blocks(opened))
    return len(seen)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t"])
def test_what_is_far_too_large_is_refused_by_its_first_blocks(name: str, tmp_path: Path) -> None:
    assert blocks_before_refusal(open_source(table(tmp_path / name, 6 * ROWS))) <= 2


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t"])
def test_what_memory_holds_is_read_to_its_end(name: str, tmp_path: Path) -> None:
    opened = open_source(table(tmp_path / name, 800))
    assert sum(rows_of_blocks(opened)) == 800


@pytest.mark.usefixtures("limit")
def test_a_packed_table_whose_first_rows_are_all_alike_is_read_to_its_end(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with gzip.open(tmp_path / "t.csv.gz", "wt") as packed:
        packed.write("a,y\n" + "0,0\n" * 300)
        packed.writelines(f"{rng.bytes(20_000).hex()},1\n" for _ in range(200))
    opened = open_source(tmp_path / "t.csv.gz")
    assert sum(rows_of_blocks(opened)) == 500


@pytest.mark.usefixtures("limit")
def test_a_packed_table_is_refused_as_soon_as_its_rows_are_too_many(tmp_path: Path) -> None:
    """What its rows take when unpacked is not known before: a megabyte may hold a thousand."""
    bomb = tmp_path / "bomb.csv.gz"
    with gzip.open(bomb, "wt") as packed:
        packed.write("a,y\n")
        packed.writelines(repeat("1.5,0\n", 40 * ROWS))
    assert bomb.stat().st_size < 3000
    opened = open_source(bomb)
    assert blocks_before_refusal(opened) <= ROWS // 2 // 100
    with pytest.raises(MemoryBudgetError):
        read_training_table(opened, Roles("y"))


@pytest.mark.usefixtures("limit")
def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", 6 * ROWS)
    result = run("fit", path, "--target", "y", "--out", tmp_path / "model.bayes")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("bayescope: memory: expected at most 48 kB, but ")
    assert not (tmp_path / "model.bayes").exists()


def endless(pipe: Path, content: bytes, most: int) -> threading.Thread:
    """A writer that goes on until nobody reads, or much has been written."""

    def write() -> None:
        try:
            with pipe.open("wb", buffering=0) as into:
                for _ in range(most // len(content)):
                    into.write(content)
        except BrokenPipeError:
            pass

    os.mkfifo(pipe)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("limit")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names there")
def test_a_pipe_that_does_not_end_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    thread = endless(pipe, b"a,y\n" + b"1,2\n" * 1000, 10**8)
    with pytest.raises(MemoryBudgetError, match=r"of which more than 16\.8 MB have come, would take about"):
        open_source(pipe, again=True)
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device there")
@pytest.mark.parametrize("again", [False, True])
def test_bytes_without_end_are_no_table(again: bool) -> None:
    with pytest.raises(InputError, match="expected text, got a compressed or binary table"):
        open_source(Path("/dev/zero"), again=again)


def test_a_small_file_of_very_many_rows_is_fitted_in_blocks(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.zeros(300_000), "y": 1.0})
    many, few = written(tmp_path / "many.parquet", frame), written(tmp_path / "few.parquet", frame.iloc[:9])
    assert many.stat().st_size < 20_000
    assert large(many, least_numbers=1_000_000)
    assert not large(few, least_numbers=1_000_000)
    assert not large(written(tmp_path / "broken.parquet", b"PAR1"), least_numbers=1)
