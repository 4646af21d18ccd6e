"""How estimators read their tables: of any library, with columns of numbers and labels, known again when predicting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, final

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.memory import require_memory
from bayescope.storage import stored
from bayescope.tables import Column, read_table
from bayescope.tables.dataset import TableDataset
from bayescope.tables.frames import frame_of
from bayescope.tables.preprocessing import Table, refuse_empty
from bayescope.tables.reading import label_positions
from bayescope.tables.suspicion import refuse_names_of_rows, warn_of_text


@stored("frame_reader")
@final
@dataclass(frozen=True)
class FrameReader:
    """What an estimator remembers of the table that it was fitted to, to read others like it.

    scikit-learn's rules hold: a table has as many columns as that one, and where both have names, the same in the same
    order. In a table without names, columns go by their positions.

    Attributes:
        names: of the columns: x0, x1, … where the table had none.
        categorical: positions of the columns whose numbers are labels, as the caller said, those of groups included.
    """

    names: tuple[str, ...]
    categorical: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        estimator: BaseEstimator,
        X: object,
        y: object,
        *,
        categorical: Sequence[str | int] | None = None,
        groups: Sequence[str | int] | None = None,
        numbers: bool = False,
    ) -> tuple[FrameReader, Table]:
        """Reads the table to fit; sets ``n_features_in_`` and, where the columns have names, ``feature_names_in_``.

        Args:
            estimator: that is being fitted.
            X: a table of any kind that `read_table` knows, of N ≥ 1 rows.
            y: is not looked at: scikit-learn reports its absence.
            categorical: columns, by name or position, whose numbers are labels.
            groups: columns, by name or position, whose levels have random effects.
            numbers: whether an array or a tensor of finite numbers is taken as it is: no column of it is copied.

        Raises:
            InputError: if X cannot be used, or the labels of a column hardly ever recur; the message names the column.
            InputTypeError: if X is no table, or a column holds what is neither a number nor a label, such as dates.

        Warns:
            BayescopeWarning: if text is mostly numbers.
        """
        X = dense(X)
        plain = finite_numbers(X) if numbers and categorical is None and groups is None else None
        if plain is not None:
            validate_data(estimator, plain, y, skip_check_array=True)
            return cls(tuple(f"x{j}" for j in range(plain.shape[1])), ()), plain
        _require_room(X)
        columns = read_table(X, categorical=categorical, groups=groups)
        warn_of_text(columns)
        refuse_names_of_rows(columns)
        refuse_empty(columns)
        validate_data(estimator, _sized(X, columns), y, skip_check_array=True)
        names = tuple(column.name for column in columns)
        return cls(names, positions_of_labels(names, categorical, groups)), columns

    def columns(self, estimator: BaseEstimator, X: object) -> list[Column]:
        """The columns of a table like the one that was fitted, by the names that they had there.

        Raises:
            InputError: if the table has more, fewer or other columns, in scikit-learn's words, or X cannot be used; the
                message names the column.
            InputTypeError: if X is no table, or a column holds what is neither a number nor a label.
        """
        X = dense(X)
        _require_room(X)
        columns = read_table(X, categorical=[at for at in self.categorical if at < _width(X)])
        _require_alike(estimator, _sized(X, columns))
        # Without names, or with names that were not there to be learnt, columns are known by their positions.
        return [replace(column, name=name) for column, name in zip(columns, self.names, strict=True)]

    def table(self, estimator: BaseEstimator, X: object) -> Table:
        """The same, but an array or a tensor of finite numbers is taken as it is."""
        X = dense(X)
        numbers = None if self.categorical else finite_numbers(X)
        if numbers is None:
            return self.columns(estimator, X)
        _require_alike(estimator, numbers)
        return numbers

    def blocks(self, table: TableDataset, others: Sequence[str] = ()) -> Iterator[list[Column]]:
        """The columns that were fitted of a table on disk, and others after them, a block of rows at a time.

        Raises:
            OptionError: if one is not there.
        """
        return table.blocks((*self.names, *others), categorical=[self.names[place] for place in self.categorical])


def positions_of_labels(
    names: Sequence[str], categorical: Sequence[str | int] | None, groups: Sequence[str | int] | None
) -> tuple[int, ...]:
    """The positions of the columns that ``categorical=`` and ``groups=`` name.

    Raises:
        OptionError: if there is no such column.
        InputError: if both name a column.
    """
    labels, grouped = label_positions(names, categorical), label_positions(names, groups, "groups")
    if both := sorted(labels & grouped):
        raise InputError(
            f"groups: expected columns that are not in categorical=, got {names[both[0]]!r}. The column of a group is "
            "one of labels anyway: leave it out of categorical=."
        )
    return tuple(sorted(labels | grouped))


def columns_by_name(X: object, **roles: Any) -> tuple[Any, ...]:
    """The features, and the target, the weights and the offset, which may be columns of the features by their names.

    Args:
        X: a table.
        roles: what is given as ``y``, ``sample_weight`` and ``offset``: values, or the name of a column.

    Raises:
        InputTypeError: if a name is given and X is no frame with names.
        OptionError: if no column has that name.
        InputError: if no column is left for the features.
    """
    named = {role: name for role, name in roles.items() if isinstance(name, str)}
    if not named:
        return X, *roles.values()
    frame = frame_of("X", X)
    for role, name in named.items():
        if frame is None:
            raise InputTypeError(
                f"{role}: expected a value for each row, or the name of a column where X is a frame, got {name!r} for "
                f"X of type {type(X).__name__}. Give the values."
            )
        if name not in frame.columns:
            raise OptionError.unknown(role, name, [str(column) for column in frame.columns])
    assert frame is not None
    features = frame.drop(list(named.values()))
    if not features.columns:
        raise InputError(f"X: expected a column beside {', '.join(map(repr, frame.columns))}, got none.")
    values = (_values(frame[name]) if role in named else name for role, name in roles.items())
    return features.to_native(), *values


def _values(series: nw.Series[Any]) -> Any:
    """A column as an array, with its order where its type declares one."""
    if series.dtype != nw.Enum:
        return series.to_numpy()
    categories = series.cat.get_categories().to_list()
    return pd.Series(pd.Categorical(series.to_list(), categories, ordered=True), name=series.name)


def dense(X: object) -> object:
    """A sparse matrix of SciPy as the array of its numbers, which has to fit into memory; any other table as it is."""
    if not sparse.issparse(X):
        return X
    _require_room(X)
    return cast(Any, X).toarray(order="C")


def finite_numbers(X: object) -> np.ndarray | None:
    """X as float64, shape (N, D), where it is an array or a tensor of finite numbers; else ``None``."""
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    if type(array) is not np.ndarray or array.ndim != 2 or array.dtype.kind not in "iuf" or 0 in array.shape:
        return None
    if array.dtype != np.float64:
        _require_room(array)
    table = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):  # the sum is finite only if all numbers are
        return table if np.isfinite(table.sum()) or np.isfinite(table).all() else None


def _require_alike(estimator: BaseEstimator, X: object) -> None:
    """Refuses a table with other columns than the one that was fitted, in scikit-learn's words, as an error of ours.

    A model from a file takes any other error for a sign that the file was altered.
    """
    try:
        validate_data(estimator, X, reset=False, skip_check_array=True)
    except ValueError as error:
        named = "feature names" in str(error) and "now missing" not in str(error)
        advice = "Give X[model.feature_names_in_].\n" if named else ""
        raise InputError(f"{error}{advice}") from None


def _require_room(X: object) -> None:
    """Refuses a table whose numbers, of eight bytes each, memory does not hold, before they are made of what it has.

    Raises:
        MemoryBudgetError: if it does not.
    """
    shape = getattr(X, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 2:
        require_memory(
            8 * shape[0] * shape[1],
            f"a table of {shape[0]:,} rows and {shape[1]:,} columns, as numbers of 8 bytes,",
            "Leave out rows or columns, or read the table in blocks: bs.open_table.",
        )


def _width(X: object) -> float:
    """Columns of a table that tells, else infinity."""
    shape = getattr(X, "shape", None)
    return float(shape[1]) if shape is not None and len(shape) == 2 else np.inf


def _sized(X: object, columns: Sequence[Column]) -> object:
    """The table as scikit-learn can tell its width and names: it knows nothing of frames without a shape."""
    if hasattr(X, "shape") or not hasattr(X, "__dataframe__"):
        return X
    return pd.DataFrame(columns=[column.name for column in columns])
