"""Parquet files of any types and of any bytes end in columns or in one line, in Python and on the command line."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.cli import Roles, open_source, read_training_table
from bayescope.errors import BayescopeError, InputError
from bayescope.tables import read_table
from tests.cli.tables import refused, run
from tests.tables.parquet import COLUMNS, ROWS, mutant, table, whole, written

MUTANTS = 150


def columns(path: Path) -> list[np.ndarray]:
    found = bs.open_table(path)
    blocks = [[column.values for column in block] for block in found.blocks()]
    assert sum(len(block[0]) for block in blocks) == found.rows
    return [np.concatenate(pieces) for pieces in zip(*blocks, strict=True)]


def kept(path: Path) -> int:
    """The rows that `predict` copies into its answer."""
    source, rows = open_source(path), 0
    for block in source.blocks(7):
        block.copied(source.header).to_csv(io.StringIO())
        rows += block.rows
    return rows


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_any_type_are_read_or_refused(name, tmp_path):
    column, right = COLUMNS[name]
    content = table().select(["age", "state"]).append_column("x", column)
    path = tmp_path / "t.parquet"
    path.write_bytes(written(content))
    if not right:
        for read in (columns, lambda _: read_table(content)):
            with pytest.raises(BayescopeError):
                read(path)
        fitted = run("fit", path, "--target", "state", "--out", tmp_path / "m.bayes")
        assert refused(fitted, "'x'")
        return
    expected = pd.Series(column.to_pylist(), dtype=object)
    streamed, held = columns(path)[2], read_table(content)[2].values
    trained = read_training_table(open_source(path, again=True), Roles(target="state")).features["x"]
    for values in (streamed, held, trained):
        assert len(values) == ROWS
        if not isinstance(column[0].as_py(), str | bool):
            np.testing.assert_array_equal(np.asarray(values, dtype=float), expected.astype(float))
        else:
            assert list(map(str, values)) == list(map(str, expected))


@pytest.mark.parametrize("how", range(4))
def test_altered_files_are_read_as_they_are_or_end_in_one_line(how, tmp_path):
    data, source, path = whole()[how], random.Random(how), tmp_path / "t.parquet"
    told = []
    for _ in range(MUTANTS):
        path.write_bytes(mutant(data, source))
        for read in (columns, kept, lambda path: read_training_table(open_source(path), Roles(target="state"))):
            try:
                read(path)
            except BayescopeError as error:
                told.append(str(error))
    assert len(told) > MUTANTS
    assert not [message for message in told if "\n" in message or len(message) > 1000]


def test_rows_that_the_footer_has_and_the_pages_have_not_are_missed(tmp_path):
    """A file whose row group has been taken for one of another file with fewer rows."""
    path, content = tmp_path / "t.parquet", table().select(["age"])
    data = written(content, compression="none", use_dictionary=False, write_statistics=False, store_schema=False)
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    count = bytes([0x16, 2 * ROWS])  # a field of type i64, as Thrift's compact protocol writes it: zigzag
    assert footer.count(count) >= 2
    path.write_bytes(data[: -8 - size] + footer.replace(count, bytes([0x16, 2 * ROWS + 6])) + data[-8:])
    for read in (columns, kept):
        with pytest.raises(InputError, match=r"t\.parquet: expected .*(63 rows|can be read)"):
            read(path)
