"""A table on disk as estimators are fitted to it: features, target, weights and offset, read block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.estimators.frames import FrameReader
from bayescope.processes import Processes, present
from bayescope.tables import Column
from bayescope.tables.columns import Kind
from bayescope.tables.dataset import TableDataset


@final
@dataclass(frozen=True, eq=False)
class Block:
    """Rows that count.

    Attributes:
        columns: of features.
        target: numbers, or labels as objects, shape (n,).
        weights: above 0, shape (n,).
        offset: shape (n,), or ``None``.
        rows: their numbers in the table, int64 of shape (n,).
    """

    columns: list[Column]
    target: np.ndarray
    weights: np.ndarray
    offset: np.ndarray | None
    rows: np.ndarray


@final
@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table on disk, the part of them that this process reads.

    Attributes:
        table: the table.
        names: of the features.
        target: the name of y.
        weight: the name of the rows' weights, or ``None``.
        offset: the name of what is added to f, or ``None``.
        categorical: features whose numbers are labels.
        labels: whether y holds labels.
        processes: that read a part each.
    """

    table: TableDataset
    names: tuple[str, ...]
    target: str
    weight: str | None
    offset: str | None
    categorical: tuple[str, ...]
    labels: bool
    processes: Processes

    @classmethod
    def of(
        cls, table: TableDataset, y: Any, sample_weight: Any, *, offset: Any = None, categorical: Any, labels: bool
    ) -> TableRows:
        """From the arguments of an estimator's ``fit``.

        Raises:
            InputTypeError: if the target, weights or offset are not told by the name of a column.
            OptionError: if there is no such column.
            InputError: if no column is left for the features.
        """
        roles = {"y": y, "sample_weight": sample_weight, "offset": offset}
        for role, name in roles.items():
            if name is None and role != "y":
                continue
            if not isinstance(name, str):
                raise InputTypeError(
                    f"{role}: expected the name of a column for a table on disk, got {type(name).__name__}. Write its "
                    "name in the table."
                )
            if name not in table.names:
                raise OptionError.unknown(role, name, table.names)
        names = tuple(name for name in table.names if name not in roles.values())
        if not names:
            raise InputError(f"X: expected a column beside {', '.join(map(repr, table.names))}, got none.")
        listed = _names("categorical", categorical, names)
        return cls(table, names, y, sample_weight, offset, listed, labels, present())

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each feature holds, by its name; a column of another type is refused when it is read."""
        told = self.table.kinds
        return {name: "categorical" if name in self.categorical else told[name] or "numeric" for name in self.names}

    @property
    def first(self) -> int:
        """The number of this process's first row in the table."""
        return self.processes.rank * self.table.rows // self.processes.count

    @property
    def reader(self) -> FrameReader:
        """What an estimator remembers of the table."""
        return FrameReader(self.names, tuple(self.names.index(name) for name in self.categorical))

    def describe(self, estimator: BaseEstimator) -> None:
        """Sets scikit-learn's attributes ``n_features_in_`` and ``feature_names_in_`` of an estimator."""
        validate_data(estimator, pd.DataFrame(columns=list(self.names)), skip_check_array=True)

    def blocks(self, *, features: bool = True) -> Iterator[Block]:
        """The rows of this process's part that have a weight above 0, in order.

        Args:
            features: whether the features are read; else there are no columns.

        Raises:
            InputError: if a target is missing, or a weight is no number of at least 0.
        """
        extra = [name for name in (self.target, self.weight, self.offset) if name is not None]
        names = [*(self.names if features else ()), *extra]
        labels = [*self.categorical, *([self.target] if self.labels else [])]
        first, part = self.first, (self.processes.rank, self.processes.count)
        for columns in self.table.blocks(names, part=part, categorical=[name for name in labels if name in names]):
            by_name = {column.name: column for column in columns}
            count = len(columns[0].values)
            yield self._block(by_name, names[: len(names) - len(extra)], np.arange(first, first + count))
            first += count

    def counted_before(self) -> int:
        """How many of the rows before this process's part have a weight above 0: collective where there are weights."""
        if self.weight is None:
            return self.first
        if self.processes.count == 1:
            return 0
        with self.processes.agreed():
            own = sum(len(block.rows) for block in self.blocks(features=False))
        return sum(self.processes.gather(own)[: self.processes.rank])

    def nobody(self) -> InputError:
        """What to say where no row counts."""
        return InputError(
            "sample_weight: expected a weight above 0 in some row of each process's part of the table, got none."
            if self.processes.count > 1
            else "sample_weight: expected a weight above 0 in some row, got none."
        )

    def _block(self, columns: dict[str, Column], names: Sequence[str], rows: np.ndarray) -> Block:
        weights = np.ones(len(rows)) if self.weight is None else self._numbers(columns[self.weight], rows)
        if (weights < 0).any():
            row = int(np.argmax(weights < 0))
            raise InputError(
                f"column {self.weight!r}: expected no negative weights, got {weights[row]:g} in row {rows[row]}."
            )
        target = columns[self.target].values if self.labels else self._numbers(columns[self.target], rows)
        if self.labels and (gaps := pd.isna(target)).any():
            raise self._missing(self.target, rows[np.argmax(gaps)])
        offset = None if self.offset is None else self._numbers(columns[self.offset], rows)
        features = [columns[name] for name in names]
        if (weights > 0).all():
            return Block(features, target, weights, offset, rows)
        some = weights > 0
        kept = [replace(column, values=column.values[some]) for column in features]
        return Block(kept, target[some], weights[some], None if offset is None else offset[some], rows[some])

    def _numbers(self, column: Column, rows: np.ndarray) -> np.ndarray:
        if column.kind != "numeric":
            raise InputTypeError(
                f"column {column.name!r}: expected numbers, got labels such as {column.values[0]!r}. Name another "
                "column, or turn it into numbers."
            )
        gaps = np.isnan(column.values)
        if gaps.any():
            raise self._missing(column.name, rows[np.argmax(gaps)])
        return column.values

    def _missing(self, name: str, row: int) -> InputError:
        return InputError(
            f"column {name!r}: expected a value in each row, got none in row {row}. Leave such rows out of the table."
        )


def _names(role: str, given: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Columns by name or position, as names."""
    if given is None:
        return ()
    checks.columns(role, given)
    found = []
    for each in given:
        if isinstance(each, str) and each in names:
            found.append(each)
        elif isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < len(names):
            found.append(names[int(each)])
        else:
            raise OptionError.unknown(role, str(each), names)
    return tuple(found)
