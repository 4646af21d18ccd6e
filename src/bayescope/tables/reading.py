"""Tables of any library, read into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from scipy import sparse

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.tables.arrays import Rows
from bayescope.tables.columns import Column
from bayescope.tables.dataset import TableDataset
from bayescope.tables.frames import Frame, frame_of


def read_table(
    X: Any,
    *,
    categorical: Sequence[str | int] | None = None,
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
        names: of the columns of a table that has no names itself; x0, x1, … by default.
        name: of the table, for messages.

    Returns:
        The columns in order, of N ≥ 0 rows each. Their numbers may lie in the caller's memory.

    Raises:
        InputTypeError: if X is no table, or a column holds what is neither a number nor a label.
        InputError: if X has no columns, two of one name or an infinite number, is sparse or not two-dimensional, or
            ``categorical`` names a column that X does not have.
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
    source: Frame | Rows = Rows(name, X) if frame is None else Frame(name, frame)
    titles = source.names or _unnamed(name, source.width, names)
    if not titles:
        raise InputError(
            f"{name}: Found array with 0 feature(s) (shape=({source.rows}, 0)) while a minimum of 1 is required."
        )
    _refuse_duplicates(name, titles)
    labels = _positions(titles, categorical)
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


def _positions(titles: list[str], categorical: Sequence[str | int] | None) -> set[int]:
    """The positions of the columns that ``categorical`` names."""
    if categorical is None:
        return set()
    checks.columns("categorical", categorical)
    positions = set()
    for column in categorical:
        if isinstance(column, str):
            if column not in titles:
                raise OptionError.unknown("categorical", column, titles)
            positions.add(titles.index(column))
        elif isinstance(column, bool) or not hasattr(column, "__index__") or not 0 <= column < len(titles):
            raise InputError(
                f"categorical: expected names of columns or positions 0…{len(titles) - 1}, got {column!r}."
            )
        else:
            positions.add(column.__index__())
    return positions
