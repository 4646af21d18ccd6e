"""Arrow's arrays as columns: the type of a column, and not what it holds, tells numbers from labels."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from bayescope import checks
from bayescope.errors import BayescopeError, InputError, InputTypeError
from bayescope.tables.cells import DATES, NUMBERS_OR_TEXT, column_of_cells, numeric_column
from bayescope.tables.columns import Column, Kind


def arrow_module(name: str = "pyarrow") -> ModuleType:
    """pyarrow, or a part of it.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    return checks.optional_package(name, extra="parquet")


def kind_of(kind: Any) -> Kind | None:
    """What a type of Arrow's holds: numbers, also where all are missing, or labels; ``None`` for anything else."""
    types = arrow_module().types
    if any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        return "numeric"
    if types.is_dictionary(kind):
        return None if types.is_nested(kind.value_type) or types.is_temporal(kind.value_type) else "categorical"
    texts = (types.is_boolean, types.is_string, types.is_large_string, types.is_string_view)
    return "categorical" if any(fits(kind) for fits in texts) else None


def family_of(kind: Any) -> str | None:
    """The same more closely: "numbers", "truth values", "text" or "numbers as labels"; files agree in it."""
    types = arrow_module().types
    if kind_of(kind) != "categorical":
        return None if kind_of(kind) is None else "numbers"
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_boolean(value):
        return "truth values"
    return "text" if kind_of(value) == "categorical" else "numbers as labels"


def refusal(table: str, fields: list[Any]) -> BayescopeError:
    """The error that names columns of types that are neither numbers nor labels."""
    types = arrow_module().types
    listed = ", ".join(f"{field.name!r} ({field.type})" for field in fields)
    advice = DATES if any(types.is_temporal(field.type) for field in fields) else NUMBERS_OR_TEXT
    return InputTypeError(f"{table}: expected columns of numbers or labels, got {listed}. {advice}, by columns=[…].")


def in_words(array: Any) -> Any:
    """Truth values as the words "True" and "False"; anything else unchanged."""
    if not arrow_module().types.is_boolean(array.type):
        return array
    return arrow_module("pyarrow.compute").if_else(array, "True", "False")


def column_of(table: str, name: str, array: Any, *, typed: Any, labels: bool, start: int) -> Column:
    """An array of a type that `kind_of` knows, as a column.

    Args:
        table: its name, for messages.
        name: of the column.
        array: the values.
        typed: the type that the column has in all files together: this one may have no value, or others no dictionary.
        labels: whether numbers are labels.
        start: the first value's row, for messages.

    Raises:
        InputError: if a number is infinite, or text is no UTF-8.
    """
    types = arrow_module().types
    if types.is_null(array.type) and (labels or kind_of(typed) == "categorical"):
        return Column(name, "categorical", np.full(len(array), None))
    if kind_of(array.type) == "categorical" or labels:
        return _labels(table, name, array, declared=types.is_dictionary(typed), numbers=labels)
    wide = array.cast("float32") if types.is_float16(array.type) else array
    # Whole numbers beyond 2⁵³ are rounded, as NumPy does it.
    values = np.ascontiguousarray(wide.cast("float64", safe=False).to_numpy(zero_copy_only=False))
    return numeric_column(table, name, values, start=start, missing="leave the cell empty")


def _labels(table: str, name: str, array: Any, *, declared: bool, numbers: bool) -> Column:
    """Each distinct label is looked at once."""
    types = arrow_module().types
    dictionary, truths = types.is_dictionary(array.type), types.is_boolean(array.type)
    order = _values(table, name, array.dictionary) if dictionary and declared else None
    if dictionary and len(array.dictionary) > len(array):  # that of the file, and not of the rows
        array = array.dictionary_decode()
    coded = array if types.is_dictionary(array.type) else array.dictionary_encode()
    known = order if order is not None and coded is array else _values(table, name, coded.dictionary)
    # The last place is what a missing value has: NumPy's −1.
    kept = np.array([*known, None], dtype=object)
    places = coded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    if truths:
        order = (False, True)
    return Column(name, "categorical", kept[places], order, inferred=not (numbers or dictionary or truths))


def in_unicode(table: str, name: str, cells: Callable[[], list[Any]]) -> list[Any]:
    """The cells of a column, whose texts pyarrow decodes as they are asked for.

    Raises:
        InputError: if one is no UTF-8.
    """
    try:
        return cells()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{table}: column {name!r}: expected text in UTF-8, got the byte {error.object[error.start]:#x}. Write "
            "the file again."
        ) from None


def _values(table: str, name: str, array: Any) -> tuple[object, ...]:
    """Labels as objects of Python's own types."""
    cells = np.empty(len(array), dtype=object)
    cells[:] = in_unicode(table, name, array.to_pylist)
    return tuple(column_of_cells(table, name, cells, labels=True).values)
