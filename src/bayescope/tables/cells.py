"""A column of Python objects: what they are tells whether they are numbers or labels."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from bayescope.errors import BayescopeError, InputError, InputTypeError
from bayescope.tables.columns import Column

MIXED = "Make it one or the other (text throughout: .astype(str)), or name it in categorical= to take all as labels"
# Its last words are those that scikit-learn's check_estimator looks for.
NUMBERS_OR_TEXT = "Turn it into numbers or text, or leave the column out: an argument must be a string or a number"
DATES = "Turn it into numbers, such as days since a date, or into a column with the month, or leave it out"

# From the special to the general, as the first row that fits a type names it: a bool is an int, a timedelta64 too.
_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("date", (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period)),
    ("truth value", (bool, np.bool_)),
    ("text", (str,)),
    ("number", (numbers.Real, decimal.Decimal)),
    ("complex number", (numbers.Complex,)),
)


def column_of_cells(
    table: str,
    name: str,
    cells: np.ndarray,
    *,
    labels: bool = False,
    categories: tuple[object, ...] | None = None,
) -> Column:
    """The column that objects make: numbers alone are numeric, text alone and truth values alone are labels.

    Args:
        table: its name, for messages.
        name: of the column.
        cells: objects, shape (N,); ``None``, NaN and pandas' NA and NaT are missing values.
        labels: whether numbers are labels too, and may stand beside text.
        categories: the labels in their order, where it is declared.

    Raises:
        InputTypeError: if a value is neither a number nor a label, or both kinds occur.
        InputError: if a number is infinite, too large for a float, or complex.
    """
    missing = pd.isna(cells)
    present = cells[~missing]
    families = {_family(kind) for kind in set(map(type, present))}
    strange = families - _LABELS.keys()
    if strange:
        raise _refusal(table, name, min(strange), cells, missing)
    if labels or families in ({"text"}, {"truth value"}):
        values = _labels(table, name, cells, missing)
        declared = (False, True) if families == {"truth value"} else _declared(table, name, categories)
        return Column(name, "categorical", values, declared, inferred=not labels)
    if len(families) > 1:
        examples = " and ".join(repr(_first(family, cells, missing)[1]) for family in sorted(families))
        raise InputTypeError(
            f"{table}: expected numbers alone or labels alone in column {name!r}, got {examples}. {MIXED}."
        )
    values = np.full(cells.shape, np.nan)
    try:
        values[~missing] = present.astype(np.float64)
    except OverflowError:
        raise InputError(f"{table}: expected numbers below 1.8e308 in column {name!r}, got a larger one.") from None
    return numeric_column(table, name, values)


def numeric_column(table: str, name: str, values: np.ndarray, *, start: int = 0, missing: str = "put NaN") -> Column:
    """The column of float64 numbers with NaN where missing.

    Args:
        table: its name, for messages.
        name: of the column.
        values: shape (N,).
        start: the first value's row, for messages.
        missing: how a missing value is marked in the table.

    Raises:
        InputError: if one is infinite.
    """
    infinite = np.isinf(values)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise _infinite(table, name, float(values[row]), start + row, missing)
    return Column(name, "numeric", values)


def _labels(table: str, name: str, cells: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Labels as Python's own str, bool, int and float, equal ones alike, so that all can be written out."""
    given = [None if gone else cell for cell, gone in zip(cells.tolist(), missing.tolist(), strict=True)]
    kept: dict[Any, object] = {label: _LABELS[_family(type(label))](label) for label in set(given) - {None}}
    for endless in {math.inf, -math.inf} & kept.keys():
        raise _infinite(table, name, endless, given.index(endless))
    kept[None] = None
    values = np.empty(cells.shape, dtype=object)
    values[:] = [kept[label] for label in given]
    return values


def _number(label: Any) -> int | float:
    """Whole numbers as int: a column of them becomes one of floats when a value is missing, and 3.0 is to read 3."""
    return int(label) if isinstance(label, numbers.Integral) or float(label).is_integer() else float(label)


# What labels of each family are kept as.
_LABELS: dict[str, Callable[[Any], object]] = {"truth value": bool, "text": str, "number": _number}


def _declared(table: str, name: str, categories: tuple[object, ...] | None) -> tuple[object, ...] | None:
    """The declared labels, checked and kept as those that occur."""
    if categories is None:
        return None
    cells = np.empty(len(categories), dtype=object)
    cells[:] = categories
    return tuple(column_of_cells(table, name, cells, labels=True).values)


def _family(kind: type) -> str:
    """What values of this type are called."""
    return next((name for name, types in _FAMILIES if issubclass(kind, types)), kind.__name__)


def _refusal(table: str, name: str, family: str, cells: np.ndarray, missing: np.ndarray) -> BayescopeError:
    row, value = _first(family, cells, missing)
    got = f"got {value!r} ({type(value).__name__}) in row {row}"
    # The first words are those that scikit-learn's check_estimator looks for.
    if family == "complex number":
        return InputError(f"{table}: Complex data not supported: in column {name!r}, {got}. Split it into two columns.")
    advice = DATES if family == "date" else NUMBERS_OR_TEXT
    return InputTypeError(f"{table}: expected numbers or labels in column {name!r}, {got}. {advice}.")


def _infinite(table: str, name: str, value: float, row: int, missing: str = "put NaN") -> InputError:
    return InputError(
        f"{table}: expected finite numbers in column {name!r}, got {value} in row {row}. Where it stands for a missing "
        f"value, {missing}."
    )


def _first(family: str, cells: np.ndarray, missing: np.ndarray) -> tuple[int, object]:
    """The first value of a family, with its row."""
    return next(
        (row, value)
        for row, (value, gone) in enumerate(zip(cells.tolist(), missing.tolist(), strict=True))
        if not gone and _family(type(value)) == family
    )
