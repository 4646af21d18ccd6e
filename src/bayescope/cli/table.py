"""Reads a table for the command line: every way in which it cannot be used ends in one line that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.errors import InputError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
MOST_CLASSES = 50
# Sums of fourth powers of such numbers, as in the variance of a squared feature, neither overflow nor underflow.
LARGEST, SMALLEST_SPREAD = 1e75, 1e-75
SHOWN = 8  # names or labels listed in a message


@final
@dataclass(frozen=True)
class Table:
    """A table that a classifier can be fitted to.

    Attributes:
        features: finite float64 columns, none constant, no two equal.
        target: the labels, without missing values, of at least two classes.
    """

    features: pd.DataFrame
    target: pd.Series


def read_table(path: Path, target: str) -> Table:
    """Reads a .csv or .tsv file with a header and checks it column by column.

    Args:
        path: the file.
        target: the name of the column to predict; all others are features.

    Raises:
        InputError: if the file, the target or a feature cannot be used; the message names file, column and row.
    """
    frame = _parse(path)
    if target not in frame.columns:
        raise InputError(f"{path}: expected a target column {target!r}, got {_hint(target, frame.columns)}")
    if len(frame) == 0:
        raise InputError(f"{path}: expected rows below the header, got none. Give a table with data.")
    if frame.shape[1] == 1:
        raise InputError(f"{path}: expected features beside the target, got only {target!r}. Add feature columns.")
    labels = frame.pop(target)
    _check_target(f"{path}: target {target!r}", labels)
    features = pd.DataFrame({name: _numbers(f"{path}: column {name!r}", frame[name]) for name in frame.columns})
    _check_no_twins(path, features)
    return Table(features, labels)


def _parse(path: Path) -> pd.DataFrame:
    separator = _check_file(path)
    first = _read(path, separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    _check_header(path, separator, [str(name) for name in first.iloc[0]])
    return _read(path, separator, low_memory=False)


def _read(path: Path, separator: str, **options: Any) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            # index_col=False: a row longer than the header is an error, and never an index that shifts all columns.
            return pd.read_csv(path, sep=separator, encoding="utf-8-sig", index_col=False, **options)
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: expected a header and rows, got an empty file. Give a table with data.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected text in UTF-8, got other bytes. Save the table as UTF-8 text.") from None
    except pd.errors.ParserWarning:
        raise InputError(
            f"{path}: expected as many values in a row as in the header, got more. Mend the rows."
        ) from None
    except (pd.errors.ParserError, OSError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise InputError(f"{path}: expected a table that can be read, got: {reason}. Mend the file.") from None


def _check_file(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a folder. Name the table inside it.")
    if not path.exists():
        beside = [file.name for file in path.parent.glob("*")] if path.parent.is_dir() else []
        close = get_close_matches(path.name, beside, n=1)
        raise InputError(
            f"{path}: expected a file, got nothing there.{f' Did you mean {close[0]!r}?' if close else ''}"
        )
    separator = SEPARATORS.get(path.suffix.lower())
    if separator is None:
        raise InputError(
            f"{path}: expected a file name that ends in .csv or .tsv, got {path.suffix!r}. Save it as one."
        )
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: expected a file that can be read, got: {error.strerror}.") from None
    if b"\0" in head:
        raise InputError(f"{path}: expected text, got binary data. Save the table as comma-separated text.")
    return separator


def _check_header(path: Path, separator: str, header: list[str]) -> None:
    other = [mark for mark in ",;\t|" if mark != separator and mark in header[0]]
    if len(header) == 1 and other:
        raise InputError(
            f"{path}: expected columns separated by {separator!r}, got one column whose name holds {other[0]!r}. "
            "Save it with commas as .csv or with tabs as .tsv."
        )
    if _looks_like_data(header):
        raise InputError(
            f"{path}: expected a header of column names, got numbers such as {_listed(header)}: the first row looks "
            "like data. Put a line of names above it."
        )
    unnamed = [str(place) for place, name in enumerate(header, 1) if not name.strip()]
    if unnamed:
        raise InputError(
            f"{path}: expected a name for every column, got none for column {', '.join(unnamed[:SHOWN])}. "
            "Name it, or drop it if it is a row index (pandas: to_csv(index=False))."
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(
            f"{path}: expected each column name once, got {_listed(twice)} more than once. Rename or drop."
        )


def _looks_like_data(header: list[str]) -> bool:
    """Whether most names are numbers, and not the running numbers that pandas gives to nameless columns."""
    numbers = pd.to_numeric(pd.Series(header), errors="coerce").dropna()
    running = bool((numbers.diff().dropna() == 1).all())
    return len(numbers) > len(header) / 2 and not running


def _check_target(what: str, labels: pd.Series) -> None:
    if labels.isna().any():
        raise InputError(
            f"{what}: expected a label in every row, got {_missing(labels)}. Drop the rows without a label."
        )
    classes = labels.unique()
    if len(classes) < 2:
        raise InputError(f"{what}: expected at least two classes, got only {classes[0]}. Add rows of another class.")
    numeric = pd.api.types.is_numeric_dtype(labels)
    measured = numeric and len(classes) > 2 and bool((labels.astype(np.float64) % 1 != 0).any())
    if measured or (numeric and len(classes) > MOST_CLASSES):
        raise InputError(
            f"{what}: expected classes, got a number with {len(classes)} distinct values, from {labels.min():g} to "
            f"{labels.max():g}. Cut it into classes; regression comes in a later version."
        )
    if len(classes) > MOST_CLASSES:
        raise InputError(
            f"{what}: expected at most {MOST_CLASSES} classes, got {len(classes)}, such as {_listed(classes)}. "
            "Merge rare classes, or name another target."
        )


def _numbers(what: str, column: pd.Series) -> pd.Series:
    """The column in float64, if it holds finite numbers that are not all the same."""
    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    text = numbers.isna() & column.notna()
    if text.any():
        row = int(np.argmax(text.to_numpy()))
        many = text.sum() > 0.5 * len(column)
        advice = (
            "Encode it as numbers (one column of 0 and 1 a category) or drop it; text features come in a later version."
            if many
            else "Replace or drop those rows; a code for missing values has to be filled in first."
        )
        raise InputError(
            f"{what}: expected numbers, got text in {text.sum()} of {len(column)} rows, first {column.iloc[row]!r} in "
            f"data row {row + 1}. {advice}"
        )
    if numbers.isna().any():
        raise InputError(
            f"{what}: expected a number in every row, got {_missing(numbers)}. "
            "Fill in or drop those rows, or drop the column; imputation comes in a later version."
        )
    if np.isinf(numbers).any():
        row = int(np.argmax(np.isinf(numbers.to_numpy())))
        raise InputError(
            f"{what}: expected finite numbers, got {numbers.iloc[row]} in data row {row + 1} "
            f"({np.isinf(numbers).sum()} such rows). Replace or drop them."
        )
    if (numbers.abs() > LARGEST).any():
        row = int(np.argmax(numbers.abs().to_numpy()))
        raise InputError(
            f"{what}: expected numbers of at most {LARGEST:g} in magnitude, whose squares can be summed, got "
            f"{numbers.iloc[row]:g} in data row {row + 1}. Replace it, or give the column another unit."
        )
    if numbers.nunique() == 1:
        raise InputError(
            f"{what}: expected more than one value, got {numbers.iloc[0]:g} in every row. Drop the column."
        )
    if numbers.std() < SMALLEST_SPREAD:
        raise InputError(
            f"{what}: expected a standard deviation of at least {SMALLEST_SPREAD:g}, whose square can be divided by, "
            f"got {numbers.std():g}. Give the column another unit."
        )
    return numbers


def _check_no_twins(path: Path, features: pd.DataFrame) -> None:
    seen: dict[bytes, str] = {}
    for name in features.columns:
        twin = seen.setdefault((features[name].to_numpy() + 0.0).tobytes(), name)  # −0.0 + 0.0 is +0.0
        if twin != name:
            raise InputError(
                f"{path}: expected different columns, got {twin!r} and {name!r} equal in every row. Drop one."
            )


def _missing(column: pd.Series) -> str:
    row = int(np.argmax(column.isna().to_numpy()))
    return f"{column.isna().sum()} of {len(column)} values missing, the first in data row {row + 1}"


def _hint(target: str, columns: Iterable[str]) -> str:
    names = [str(name) for name in columns]
    folded: Callable[[str], str] = str.casefold
    close = get_close_matches(folded(target), [folded(name) for name in names], n=1)
    hint = f" Did you mean {next(name for name in names if folded(name) == close[0])!r}?" if close else ""
    return f"the columns {_listed(names)}.{hint}"


def _listed(names: Iterable[object]) -> str:
    shown = [repr(name) if isinstance(name, str) else str(name) for name in names]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more
