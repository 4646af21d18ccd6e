"""Where predictions go: a file that is there in one step when all of it is written, or the standard output."""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from bayescope import checks
from bayescope.cli.arrow_source import several
from bayescope.cli.opening import COMPRESSED, STANDARD, separator_of
from bayescope.errors import InputError
from bayescope.files import staged, usable_folder
from bayescope.tables.sources import files_of

# What a spreadsheet takes for a formula: text that begins like one, is no number, and not + or - alone.
FORMULA = re.compile(r"(?![+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$)[=+\-@\t\r].", re.DOTALL)


# Takes rows, block by block, of the same columns each time.
Write = Callable[[pd.DataFrame], None]


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
        formulas: whether text that begins with one of =, +, -, @ stays unchanged. Spreadsheets take it for a formula,
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


def _no_formula(cell: object) -> Any:
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


@contextmanager
def sink(out: Path, *, formulas: bool = False) -> Iterator[Write]:
    """A function that writes rows: to "-" as they come; a file is there when the block ends, and not if it fails.

    Args:
        out: "-", or a file that ends in .csv, .tsv, .csv.gz, .tsv.gz or .parquet.
        formulas: as for `write_text`.

    Raises:
        InputError: if the file cannot be written.
    """
    if str(out) == STANDARD:
        yield _text(sys.stdout, ",", formulas=formulas)
        sys.stdout.flush()
        return
    separator = separator_of(out)
    with staged(out.absolute().parent) as stage, ExitStack() as stack:
        place = stage / out.name
        if separator is None:
            yield _parquet(place, stack)
        else:
            yield _text(stack.enter_context(_opened(place)), separator, formulas=formulas)


def _text(file: IO[str], separator: str, *, formulas: bool) -> Write:
    """Writes delimited text with one header."""
    headers = chain([True], repeat(False))
    return lambda rows: write_text(rows, file, separator, formulas=formulas, header=next(headers))


def _parquet(place: Path, stack: ExitStack) -> Write:
    """Writes a Parquet file with one row group per block; the types of the first block are those of all."""
    arrow: Any = checks.optional_package("pyarrow", extra="parquet")
    parquet: Any = checks.optional_package("pyarrow.parquet", extra="parquet")
    writers: list[Any] = []

    def write(rows: pd.DataFrame) -> None:
        schema = writers[0].schema if writers else None
        table = arrow.Table.from_pandas(rows, schema=schema, preserve_index=False)
        if not writers:
            writers.append(stack.enter_context(parquet.ParquetWriter(place, table.schema)))
        writers[0].write_table(table)

    return write


@contextmanager
def _opened(place: Path) -> Iterator[IO[str]]:
    if place.suffix.lower() != COMPRESSED:
        with place.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with gzip.open(place, "wt", encoding="utf-8", newline="", compresslevel=6) as packed:
        yield packed
