"""Directories, globs and large files of tables as blocks of rows: what pyarrow reads as one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from bayescope.cli.header import check_header
from bayescope.cli.parquet import ParquetBlock, kind_of_type, recut
from bayescope.cli.source import Kind
from bayescope.errors import InputError
from bayescope.tables.arrow import arrow_module
from bayescope.tables.dataset import TableDataset
from bayescope.tables.sources import dataset_of, reading, wild

# A Parquet file of so many bytes and more, or whose columns take so many as numbers, is fitted a block of rows at a
# time: columns that repeat themselves take next to nothing in the file.
LARGE_BYTES, LARGE_NUMBERS = 500_000_000, 2_000_000_000


@final
class DatasetSource:
    """A table in several files.

    Args:
        path: a directory or a glob, or one file.
        missing: what stands for a missing value, which nobody asks pyarrow for.

    Attributes:
        name: for messages.
        header: the names of the columns.
        share: how much of the table the present pass has read.

    Raises:
        InputError: if there are no such files, or they cannot be read as one table.
        MissingDependencyError: if pyarrow is not installed.
    """

    def __init__(self, path: Path, missing: Sequence[str] = ()) -> None:
        if missing:
            raise InputError(
                f"--missing: expected none for {path}, which pyarrow reads, got {missing[0]!r}. Leave such cells empty."
            )
        self.name = str(path)
        # As a single file is read: what is true or false there is a label like others.
        self._dataset = dataset_of(self.name, truths=False)
        self._table = TableDataset(self._dataset, name=self.name, truths=False)
        self.share = 0.0
        self.header = self._table.names
        check_header(self.name, self.header)

    def table(self, names: Sequence[str]) -> TableDataset:
        """Some of the columns, for a fit."""
        self.kinds(names)
        return TableDataset(self._dataset, columns=names, name=self.name, truths=False)

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """By the types of the columns: numbers are numeric, text and truth values are labels."""
        return {name: kind_of_type(self.name, name, self._table.type_of(name)) for name in names}

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[ParquetBlock]:
        """The rows in order; all but the last block have as many as asked for."""
        start = 0
        for batch in recut(self._table.batches(list(self.header if names is None else names), rows), rows):
            self.share = (start + batch.num_rows) / self._table.rows
            yield ParquetBlock(self.name, batch, start)
            start += batch.num_rows


def several(path: Path) -> bool:
    """Whether a path stands for files, and not for one."""
    return path.is_dir() or (wild(path) and not path.exists())


def large(path: Path) -> bool:
    """Whether a path is a Parquet file that is fitted a block of rows at a time."""
    if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
        return False
    try:
        with reading(str(path)):
            told = arrow_module("pyarrow.parquet").read_metadata(path)
    except InputError:
        return False  # what reads it says what is wrong
    return path.stat().st_size >= LARGE_BYTES or 8 * told.num_rows * told.num_columns >= LARGE_NUMBERS
