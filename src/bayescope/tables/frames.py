"""Frames of any library as columns."""

from __future__ import annotations

from typing import Any, final

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd

from bayescope.errors import InputError, InputTypeError
from bayescope.process_state import ignoring
from bayescope.tables.arrow import in_unicode
from bayescope.tables.cells import DATES, column_of_cells, numeric_column
from bayescope.tables.columns import Column

# What a column holds whose type says that it is not one of numbers or labels.
_TIMES = {nw.Date: "dates", nw.Datetime: "dates", nw.Time: "times of day", nw.Duration: "lengths of time"}
# Types that say that a column holds labels, even where it has no value. Text does not: pandas' objects pass for it.
_LABELS = (nw.Boolean, nw.Categorical, nw.Enum)


@final
class Frame:
    """A table with named columns, each of its own type.

    Args:
        table: its name, for messages.
        frame: the frame, as narwhals sees it.

    Attributes:
        names: of the columns; ``None`` where they are only counted.
        rows: how many.
        width: columns.
    """

    def __init__(self, table: str, frame: nw.DataFrame[Any]) -> None:
        self._table, self._frame = table, frame
        self.rows, self.width = frame.shape
        self._titles: list[Any] = list(frame.columns)  # pandas also has numbers for names
        self.names = None if self._titles == list(range(self.width)) else [str(title) for title in self._titles]
        self._types = list(frame.schema.values())
        self._numbers = self._at_once() if self.width > self.rows else None

    def _at_once(self) -> np.ndarray | None:
        """All columns of a table of numbers, shape (D, N), float64; one by one, very many would take most of a fit."""
        if not all(dtype.is_numeric() for dtype in self._types):
            return None
        numbers = self._frame.to_numpy().T
        return np.ascontiguousarray(numbers, dtype=np.float64) if numbers.dtype.kind in "iuf" else None

    def column(self, position: int, name: str, *, labels: bool) -> Column:
        """The column at a position; ``labels`` says that its numbers are labels."""
        if self._numbers is not None and not labels:
            return numeric_column(self._table, name, self._numbers[position])
        series = self._frame.get_column(self._titles[position])  # by its place, narwhals lists all names each time
        dtype = self._types[position]
        if dtype.is_temporal():
            found = next((found for kind, found in _TIMES.items() if dtype == kind), "dates")
            raise InputTypeError(f"{self._table}: expected numbers or labels in column {name!r}, got {found}. {DATES}.")
        if dtype.is_numeric() and not labels:
            return numeric_column(self._table, name, np.ascontiguousarray(_floats(series)))
        cells = np.empty(len(series), dtype=object)
        cells[:] = in_unicode(self._table, name, series.to_list)
        typed = dtype in _LABELS
        return column_of_cells(
            self._table, name, cells, labels=labels or typed, categories=_declared(series) if typed else None
        )


def _floats(series: nw.Series[Any]) -> Any:
    """A column of numbers as float64; whole numbers beyond 2⁵³ are rounded, as NumPy does it."""
    if series.dtype == nw.Float64:  # pandas 2 copies in each cast
        return series.to_numpy()
    if series.implementation.is_pyarrow():
        return series.to_native().cast("float64", safe=False).to_numpy()
    return series.cast(nw.Float64).to_numpy()


def frame_of(table: str, X: object) -> nw.DataFrame[Any] | None:
    """X as narwhals sees it, or ``None`` where X is no frame.

    Raises:
        InputTypeError: if X is a query that has not been run.
        InputError: if two columns have one name.
    """
    try:
        seen = nw.from_native(X, pass_through=True)
        if hasattr(X, "__dataframe__") and not isinstance(seen, nw.DataFrame | nw.LazyFrame):
            seen = nw.from_native(_interchanged(X), eager_only=True)
    except nw.exceptions.DuplicateError as error:
        twice = " ".join(str(error).split())
        raise InputError(f"{table}: {twice}. Rename all but one.") from None
    if isinstance(seen, nw.LazyFrame):
        raise InputTypeError(f"{table}: expected a table, got {type(X).__name__}, a query. Run it: X.collect().")
    return seen if isinstance(seen, nw.DataFrame) else None


def library_of(X: object) -> str:
    """The library that a frame is of, by narwhals' name; "pandas" for what is no frame."""
    seen = nw.from_native(X, pass_through=True)
    return seen.implementation.name.lower() if isinstance(seen, nw.DataFrame) else "pandas"


def table_of(columns: dict[str, Any], library: str) -> Any:
    """A frame of this library."""
    if library == "pandas":
        return pd.DataFrame(columns)
    return nw.from_dict(columns, backend=nw.Implementation.from_string(library)).to_native()  # type: ignore[arg-type]


def _interchanged(X: object) -> pd.DataFrame:
    """What speaks the interchange protocol, as pandas: the way that works without a further package."""
    with ignoring("", Warning).inside():  # pandas asks library authors to leave a protocol that frames still speak
        return pd.api.interchange.from_dataframe(X)


def _declared(series: nw.Series[Any]) -> tuple[object, ...] | None:
    """The order of the labels that the type declares: other libraries' categoricals have the order of appearance."""
    if series.dtype == nw.Boolean:
        return (False, True)
    ordered = series.dtype == nw.Enum or (series.dtype == nw.Categorical and series.implementation.is_pandas_like())
    return tuple(series.cat.get_categories().to_list()) if ordered else None
