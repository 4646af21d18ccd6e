"""A sheet of a spreadsheet as delimited text, which is then read like any other text."""

from __future__ import annotations

import csv
import datetime
import io
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bayescope import checks
from bayescope.cli.header import hint
from bayescope.errors import BayescopeError, InputError, first_line
from bayescope.memory import require_memory

# Bytes of memory for each character of a sheet; rows between two looks at the memory.
CHARACTER_BYTES, ROWS = 8, 10_000
BREAK = re.compile(r"\r\n|\r|\n")
FORMULA = re.compile(rb"<f[ >/]")


def text_of_sheet(path: Path, sheet: str | None) -> tuple[bytes, list[int], tuple[str, ...]]:
    """The rows of a sheet as comma-separated text, the last line of each, and a remark where there are several sheets.

    Dates become 2024-05-01 or 2024-05-01 10:00:00, and formulas the values that were calculated last.

    Args:
        path: the file.
        sheet: its name, or its number from 1; the first one by default.

    Raises:
        InputError: if the file cannot be read, there is no such sheet, or a formula has no value.
        MissingDependencyError: if openpyxl is not installed.
    """
    with _workbook(path, data_only=True) as book:
        name = _named(path, sheet, book.sheetnames)
        rows = _trimmed(path, book[name])
    if _formulas(path):
        with _workbook(path, data_only=False) as book:
            _refuse_uncalculated(path, name, rows, book[name])
    text, ends, line = io.StringIO(newline=""), list[int](), 0
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        if all(cell is None for cell in row):
            text.write("\n")
        else:
            writer.writerow(map(_written, row))
        line += 1 + sum(len(BREAK.findall(cell)) for cell in row if isinstance(cell, str))
        ends.append(line)
    others = f"{path}: the sheet {name!r} is read, the first of {len(book.sheetnames)}; --sheet names another"
    return text.getvalue().encode(), ends, (others,) if sheet is None and len(book.sheetnames) > 1 else ()


@contextmanager
def _workbook(path: Path, *, data_only: bool) -> Iterator[Any]:
    """Opens the file for a while; whatever its parser raises becomes an `InputError`."""
    openpyxl: Any = checks.optional_package("openpyxl", extra="excel")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and charts, which are no part of a table
            with closing(openpyxl.load_workbook(path, read_only=True, data_only=data_only)) as book:
                yield book
    except BayescopeError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever the parser of an altered file meets
        raise InputError(
            f"{path}: expected a spreadsheet that can be read, got: {first_line(error)}. Save it again, or as .csv."
        ) from None


def _named(path: Path, sheet: str | None, names: Sequence[str]) -> str:
    if sheet is None:
        return names[0]
    if sheet in names:
        return sheet
    if sheet.isdecimal() and 1 <= int(sheet) <= len(names):
        return names[int(sheet) - 1]
    raise InputError(
        f"--sheet: expected a sheet of {path}, or its number from 1 to {len(names)}, got {sheet!r}; "
        f"{hint(sheet, names).replace('columns', 'sheets')}"
    )


def _trimmed(path: Path, sheet: Any) -> list[tuple[Any, ...]]:
    """The rows without the columns to the right that hold only colours and borders."""
    rows: list[tuple[Any, ...]] = []
    width = cells = 0
    for row in sheet.iter_rows(values_only=True):
        rows.append(row)
        there = [place for place, cell in enumerate(row, 1) if cell is not None]
        width, cells = max(width, *there[-1:], 0), cells + len(row)
        if len(rows) % ROWS == 0:
            require_memory(
                10 * CHARACTER_BYTES * cells, f"{path}, of more than {len(rows):,} rows,", "Save it as .csv."
            )
    return [(*row[:width], *[None] * (width - len(row))) for row in rows]


def _formulas(path: Path) -> bool:
    """Whether any cell of any sheet is a formula."""
    with zipfile.ZipFile(path) as archive:
        sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/") and name.endswith(".xml")]
        return any(FORMULA.search(archive.read(name)) for name in sheets)


def _refuse_uncalculated(path: Path, name: str, rows: Sequence[tuple[Any, ...]], sheet: Any) -> None:
    """Refuses formulas without a value, which would be taken for missing values."""
    for row, formulas in zip(rows, sheet.iter_rows(), strict=True):
        for value, cell in zip(row, formulas, strict=False):
            if value is None and cell.data_type == "f":
                raise InputError(
                    f"{path}: sheet {name!r}, cell {cell.coordinate}: expected a value, got a formula that was never "
                    "calculated. Open the file in a spreadsheet program and save it."
                )


def _written(cell: object) -> object:
    """A cell as text."""
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat() if cell.time() == datetime.time() else cell.isoformat(" ")
    return cell.isoformat() if isinstance(cell, datetime.date | datetime.time) else cell
