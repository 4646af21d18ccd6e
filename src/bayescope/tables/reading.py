"""Tables of any library, read into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.tables.cells import DATES, column_of_cells, numeric_column
from bayescope.tables.columns import Column
from bayescope.tables.dataset import TableDataset
from bayescope.tables.frames import Frame, frame_of

# Rows that are transposed at a time: as many as stay in a processor's cache.
CACHED_ROWS = 512


def read_table(
    X: object,
    *,
    categorical: Sequence[str | int] | None = None,
    groups: Sequence[str | int] | None = None,
    names: Sequence[str] | None = None,
    name: str = "X",
) -> list[Column]:
    """Reads a table into columns, each of numbers or of labels.

    Numbers of any kind, also ``Decimal`` and pandas' nullable ones, make a numeric column; text, truth values and
    what a library calls categorical make one of labels. Objects are looked at one by one. ``None``, NaN, NA and null
    are missing values; a column without any value is numeric unless its type says otherwise.

    Args:
        X: a frame of pandas, polars, pyarrow or any other library that narwhals knows, or one with ``__dataframe__``; a
            NumPy array, a torch tensor or a list of rows.
        categorical: columns, by name or position, whose numbers are labels, such as postcodes.
        groups: more of these, whose levels have random effects.
        names: of the columns of a table that has no names itself; x0, x1, … by default.
        name: of the table, for messages.

    Returns:
        The columns in order, of N ≥ 0 rows each. Their numbers may lie in the caller's memory.

    Raises:
        InputTypeError: if X is no table, or a column holds what is neither a number nor a label.
        InputError: if X has no columns, two of one name or an infinite number, is sparse or not two-dimensional, or
            ``categorical`` or ``groups`` names a column that X does not have.
    """
    if isinstance(X, TableDataset):
        raise InputTypeError(
            f"{name}: expected a table in memory, got one on disk. Take some rows at a time: "
            "table.frame(slice(0, 100_000))."
        )
    if sparse.issparse(X) or (isinstance(X, torch.Tensor) and X.layout != torch.strided):
        raise InputError(
            f"{name}: Sparse data not supported: expected a dense table, got {type(X).__name__}. Turn it into one with "
            ".toarray() or .to_dense()."
        )
    frame = frame_of(name, X)
    source: Frame | ArrayTable = ArrayTable(name, X) if frame is None else Frame(name, frame)
    titles = source.names or _unnamed(name, source.width, names)
    if not titles:
        raise InputError(
            f"{name}: Found array with 0 feature(s) (shape=({source.rows}, 0)) while a minimum of 1 is required."
        )
    _refuse_duplicates(name, titles)
    labels = label_positions(titles, categorical) | label_positions(titles, groups, "groups")
    return [source.column(j, title, labels=j in labels) for j, title in enumerate(titles)]


def _unnamed(table: str, width: int, names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [f"x{j}" for j in range(width)]
    if len(names) != width:
        # In the words that scikit-learn's check_estimator looks for.
        raise InputError(
            f"{table} has {width} features, but bayescope is expecting {len(names)} features as input: "
            f"{', '.join(map(repr, names))}."
        )
    return list(names)


def _refuse_duplicates(table: str, titles: list[str]) -> None:
    known: dict[str, int] = {}
    for j, title in enumerate(titles):
        if (first := known.setdefault(title, j)) < j:
            raise InputError(
                f"{table}: expected a name of its own for each column, got {title!r} at positions {first} and {j}. "
                "Rename one."
            )


def label_positions(
    titles: Sequence[str], columns: Sequence[str | int] | None, option: str = "categorical"
) -> set[int]:
    """The positions of the columns that an option names."""
    if columns is None:
        return set()
    checks.columns(option, columns)
    positions = set()
    for column in columns:
        if isinstance(column, str):
            if column not in titles:
                raise OptionError.unknown(option, column, titles)
            positions.add(titles.index(column))
        elif isinstance(column, bool) or not hasattr(column, "__index__") or not 0 <= column < len(titles):
            raise InputError(f"{option}: expected names of columns or positions 0…{len(titles) - 1}, got {column!r}.")
        else:
            positions.add(column.__index__())
    return positions


@final
class ArrayTable:
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

    def __init__(self, table: str, X: object) -> None:
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


def _array(table: str, X: object) -> np.ndarray:
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
    """Refuses anything but a table of numbers or labels, in words that scikit-learn's check_estimator looks for."""
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
        found = "dates" if array.dtype.kind == "M" else "lengths of time"
        raise InputTypeError(f"{table}: expected numbers or labels in column 'x0', got {found}. {DATES}.")
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
