"""Directories, globs and large files of tables as blocks of rows: what pyarrow reads as one dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from bayescope import checks
from bayescope.cli.header import check_header
from bayescope.cli.parquet import ParquetBlock, kind_of_type, recut
from bayescope.cli.source import Kind
from bayescope.errors import InputError
from bayescope.tables.dataset import TableDataset, open_table

# A Parquet file of so many bytes and more is fitted a block of rows at a time.
LARGE_BYTES = 500_000_000
WILD = "*?["


@final
class DatasetSource:
    """A table in several files.

    Args:
        path: a directory or a glob, or one file.
        missing: what stands for a missing value, which nobody asks pyarrow for.

    Attributes:
        name: for messages.
        header: the names of the columns.

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
        self._table = open_table(str(path))
        self.header = self._table.names
        check_header(self.name, self.header)

    def table(self, names: Sequence[str]) -> TableDataset:
        """Some of the columns, for a fit."""
        self.kinds(names)
        return open_table(self.name, columns=names)

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """By the types of the columns: numbers are numeric, text and truth values are labels."""
        return {name: kind_of_type(self.name, name, self._table.type_of(name)) for name in names}

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[ParquetBlock]:
        """The rows in order; all but the last block have as many as asked for."""
        types = checks.optional_package("pyarrow", extra="parquet").types
        start = 0
        for batch in recut(self._table.batches(list(self.header if names is None else names), rows), rows):
            yield ParquetBlock(self.name, types, batch, start)
            start += batch.num_rows


def several(path: Path) -> bool:
    """Whether a path stands for files, and not for one."""
    return path.is_dir() or (any(mark in str(path) for mark in WILD) and not path.exists())


def large(path: Path) -> bool:
    """Whether a path is a Parquet file that is fitted a block of rows at a time."""
    return path.suffix.lower() in (".parquet", ".pq") and path.is_file() and path.stat().st_size >= LARGE_BYTES
