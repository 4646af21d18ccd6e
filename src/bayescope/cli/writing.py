"""Where predictions go: a file that is there in one step when all of it is written, or the standard output."""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol, final

import pandas as pd
from pandas.api.types import is_numeric_dtype

from bayescope import checks
from bayescope.cli.dataset import several
from bayescope.cli.opening import COMPRESSED, STANDARD, separator_of
from bayescope.errors import InputError
from bayescope.files import staged, usable_folder
from bayescope.tables.sources import files_of

# What a spreadsheet takes for a formula: text that begins like one, is no number, and not + or - alone.
FORMULA = re.compile(r"(?![+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$)[=+\-@\t\r].", re.DOTALL)


class Sink(Protocol):
    """Takes rows, block by block."""

    def write(self, rows: pd.DataFrame) -> None:
        """Adds rows of the same columns as those before."""
        ...


def check_files(folder: Path, names: Sequence[str], *inputs: Path) -> None:
    """Refuses files that cannot be written, or that are among those that are read.

    Args:
        folder: where they are to lie.
        names: of the files.
        inputs: what is read: files, directories, globs, or "-".

    Raises:
        InputError: if one is read or is a folder, or the folder cannot be written to.
    """
    usable_folder("--out", folder, names)
    there = [place for name in names if (place := folder / name).exists()]
    for given in inputs if there else ():
        for read in files_of(given) if several(given) else [given]:
            if read.exists() and any(place.samefile(read) for place in there):
                raise InputError(f"--out: expected another file, got the one that is read, {read}. Name a new one.")


def check_file(out: Path, *inputs: Path) -> None:
    """Checks one output file as `check_files` does."""
    check_files(out.absolute().parent, [out.name], *inputs)


def check_out(out: Path, *inputs: Path) -> None:
    """Refuses a place that predictions cannot be written to, before the work begins.

    Args:
        out: the place.
        inputs: what is read, which is not to be written over.

    Raises:
        InputError: if it is one of the inputs or a folder, lies in none that can be written to, or its name ends in
            something else.
        MissingDependencyError: if it is Parquet, and pyarrow is not installed.
    """
    if str(out) == STANDARD:
        return
    check_file(out, *inputs)
    if separator_of(out) is None:
        checks.optional_package("pyarrow.parquet", extra="parquet")


def write_text(
    rows: pd.DataFrame, file: IO[str] | Path, separator: str = ",", *, formulas: bool, header: bool = True
) -> None:
    """Writes rows as delimited text, the numbers so that reading them gives the same number again.

    Args:
        rows: to write.
        file: where to.
        separator: between cells.
        formulas: whether text that begins with one of =, +, -, @ stays as it is. Spreadsheets take it for a formula,
            which may call programs and addresses, so that it is otherwise written behind an apostrophe.
        header: whether to write the names of the columns.
    """
    text = {
        name: column if formulas else column.map(_no_formula)
        for name, column in rows.items()
        if not is_numeric_dtype(column)
    }
    rows = pd.DataFrame({name: text.get(name, column) for name, column in rows.items()})
    if not formulas:
        rows = rows.rename(columns=_no_formula)
    # The csv module quotes a carriage return only from Python 3.13 on, and readers take a bare one for the line's end.
    returns = any("\r" in str(cell) for cell in chain(rows.columns, *text.values()))
    quoting = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    rows.to_csv(file, sep=separator, index=False, header=header, lineterminator="\n", quoting=quoting)  # type: ignore[call-overload]


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


@contextmanager
def sink(out: Path, *, formulas: bool = False) -> Iterator[Sink]:
    """A place for rows: "-" is written to as they come, a file is there when the block ends, and not where it fails.

    Args:
        out: "-", or a file that ends in .csv, .tsv, .csv.gz, .tsv.gz or .parquet.
        formulas: as for `write_text`.

    Raises:
        InputError: if the file cannot be written.
    """
    if str(out) == STANDARD:
        yield Text(sys.stdout, ",", formulas=formulas)
        sys.stdout.flush()
        return
    separator = separator_of(out)
    with staged(out.absolute().parent) as stage:
        place = stage / out.name
        if separator is None:
            with Parquet(place) as parquet:
                yield parquet
        else:
            with _opened(place) as file:
                yield Text(file, separator, formulas=formulas)


@final
class Text:
    """Delimited text with a header.

    Args:
        file: to write to.
        separator: between cells.
        formulas: as for `write_text`.
    """

    def __init__(self, file: IO[str], separator: str, *, formulas: bool) -> None:
        self._file, self._separator, self._formulas, self._begun = file, separator, formulas, False

    def write(self, rows: pd.DataFrame) -> None:
        write_text(rows, self._file, self._separator, formulas=self._formulas, header=not self._begun)
        self._begun = True


@final
class Parquet:
    """A Parquet file, of a row group a block; the types of the first block are those of all.

    Args:
        place: the file.
    """

    def __init__(self, place: Path) -> None:
        self._arrow = checks.optional_package("pyarrow", extra="parquet")
        self._parquet = checks.optional_package("pyarrow.parquet", extra="parquet")
        self._place = place
        self._writer: Any = None

    def __enter__(self) -> Parquet:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: pd.DataFrame) -> None:
        schema = None if self._writer is None else self._writer.schema
        table: Any = self._arrow.Table.from_pandas(rows, schema=schema, preserve_index=False)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._place, table.schema)
        self._writer.write_table(table)


@contextmanager
def _opened(place: Path) -> Iterator[IO[str]]:
    if place.suffix.lower() != COMPRESSED:
        with place.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with gzip.open(place, "wt", encoding="utf-8", newline="", compresslevel=6) as packed:
        yield packed
