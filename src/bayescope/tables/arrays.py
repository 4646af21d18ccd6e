"""Arrays, tensors and lists of rows as columns."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from torch import Tensor

from bayescope.errors import InputError, InputTypeError
from bayescope.tables.cells import DATES, column_of_cells, numeric_column
from bayescope.tables.columns import Column

# Rows that are transposed at a time: as many as stay in a processor's cache.
CACHED_ROWS = 512


@final
class Rows:
    """A table without names.

    Args:
        table: its name, for messages.
        X: a NumPy array, a torch tensor, a list of rows or anything with ``__array__``.

    Attributes:
        names: ``None``.
        rows: how many.
        width: columns.

    Raises:
        InputTypeError: if X is no table.
        InputError: if X is not two-dimensional, complex or masked.
    """

    def __init__(self, table: str, X: Any) -> None:
        self._table = table
        array = _array(table, X)
        _check(table, array)
        self.names: list[str] | None = None
        self.rows, self.width = array.shape
        self._numeric = array.dtype.kind in "iuf"
        self._given, self._columns = array.T, _transposed(array) if self._numeric else array.T

    def column(self, position: int, name: str, *, labels: bool) -> Column:
        """The column at a position; ``labels`` says that its numbers are labels."""
        if self._numeric and not labels:
            return numeric_column(self._table, name, self._columns[position])
        return column_of_cells(self._table, name, self._given[position].astype(object), labels=labels)


def _array(table: str, X: Any) -> np.ndarray:
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        return (X.double() if X.is_floating_point() else X).numpy()
    if isinstance(X, np.ma.MaskedArray):
        raise InputTypeError(f"{table}: expected a plain array, got a masked one. Fill it: X.filled(numpy.nan).")
    if not isinstance(X, list | tuple):
        if isinstance(X, str | bytes | dict | set) or not hasattr(X, "__array__"):
            raise InputTypeError(
                f"{table}: expected a table (a DataFrame, an array or a list of rows), got {type(X).__name__}."
            )
        return np.asarray(X)
    lengths = {len(row) for row in X if not isinstance(row, str) and hasattr(row, "__len__")}
    if len(lengths) > 1:
        raise InputError(
            f"{table}: expected rows of one length, got a list of rows of {min(lengths)} to {max(lengths)}."
        )
    # As objects: NumPy would turn the numbers of a list that also holds text into text.
    return np.array(X, dtype=object)


def _check(table: str, array: np.ndarray) -> None:
    """Refuses what is no table of numbers or labels, in words that scikit-learn's check_estimator looks for."""
    if array.ndim < 2:
        raise InputError(
            f"{table}: Expected 2D array, got {array.ndim}D array instead. Reshape your data either using "
            "array.reshape(-1, 1) if it has a single feature or array.reshape(1, -1) if it contains a single sample."
        )
    if array.ndim > 2:
        raise InputError(f"{table}: Expected 2D array, got an array of shape {array.shape}. Flatten each row.")
    if array.dtype.kind == "c":
        raise InputError(f"{table}: Complex data not supported. Split each column into real and imaginary parts.")
    if array.dtype.kind in "mM":
        held = "dates" if array.dtype.kind == "M" else "lengths of time"
        raise InputTypeError(f"{table}: expected numbers or labels in column 'x0', got {held}. {DATES}.")
    if array.dtype.kind not in "biufUO":
        raise InputTypeError(
            f"{table}: expected numbers or labels, got dtype {array.dtype}. A DataFrame holds columns of several types."
        )


def _transposed(array: np.ndarray) -> np.ndarray:
    """The columns as float64, each in one piece of memory; no copy where they lie so already."""
    if array.dtype == np.float64 and array.T.flags.c_contiguous:
        return array.T
    columns = np.empty(array.shape[::-1])
    for start in range(0, array.shape[0], CACHED_ROWS):
        columns[:, start : start + CACHED_ROWS] = array[start : start + CACHED_ROWS].T
    return columns
