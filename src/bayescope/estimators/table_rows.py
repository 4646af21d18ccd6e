"""The rows that an estimator is fitted to: one block in memory, or blocks of a table on disk, a part a process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import validate_data

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.estimators.base import RandomState, TableEstimator, generator_from
from bayescope.estimators.exposure import Added
from bayescope.estimators.frames import FrameReader, columns_by_name, positions_of_labels
from bayescope.processes import Processes, present
from bayescope.tables import Column
from bayescope.tables.column_sums import LabelsSeen
from bayescope.tables.columns import Kind
from bayescope.tables.dataset import TableDataset, opened
from bayescope.tables.preprocessing import Table, TableSeen, taken
from bayescope.tables.reading import label_positions

TargetReader: TypeAlias = Callable[[object, int], np.ndarray]


_Value = TypeVar("_Value")
_Seen = TypeVar("_Seen", TableSeen, LabelsSeen)


@final
@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows that count.

    Attributes:
        features: columns, or finite numbers of shape (n, D).
        target: numbers or labels, shape (n,) or (n, K).
        weights: above 0, shape (n,).
        offset: shape (n,) or (n, C), or ``None``.
        rows: their numbers in the table, int64 of shape (n,).
    """

    features: Table
    target: np.ndarray
    weights: np.ndarray
    offset: np.ndarray | None
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def columns(self) -> list[Column]:
        """The features as columns."""
        assert not isinstance(self.features, np.ndarray)
        return list(self.features)

    def taken(self, some: np.ndarray) -> RowBlock:
        """Some of the rows, by a mask or by their places."""
        offset = None if self.offset is None else self.offset[some]
        return RowBlock(taken(self.features, some), self.target[some], self.weights[some], offset, self.rows[some])

    @property
    def others(self) -> np.ndarray:
        """Targets and offsets, shape (n, S)."""
        several = [part for part in (self.target, self.offset) if part is not None]
        return np.concatenate([part.reshape(len(self), -1) for part in several], axis=1)

    @classmethod
    def joined(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """The rows of several blocks of one table."""
        if len(blocks) == 1:
            return blocks[0]
        columns = [
            replace(pieces[0], values=np.concatenate([piece.values for piece in pieces]))
            for pieces in zip(*(block.columns for block in blocks), strict=True)
        ]
        offsets = [block.offset for block in blocks if block.offset is not None]
        return cls(
            columns,
            np.concatenate([block.target for block in blocks]),
            np.concatenate([block.weights for block in blocks]),
            np.concatenate(offsets) if offsets else None,
            np.concatenate([block.rows for block in blocks]),
        )

    def counted(self) -> RowBlock:
        """The rows of positive weight."""
        return self if self.weights.all() else self.taken(self.weights > 0)

    def digest(self) -> str:
        """A digest of the rows, to compare them with those of another process."""
        features = [self.features] if isinstance(self.features, np.ndarray) else map(_ranks, self.features)
        digest = hashlib.sha256()
        for array in [*features, self.target, self.weights, *([] if self.offset is None else [self.offset])]:
            digest.update(f"{array.shape}{array.dtype.kind}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@final
@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table that count: all of them in memory, or the part on disk that this process reads.

    Attributes:
        reader: what an estimator remembers of the table.
        groups: the names of the columns whose levels have random effects.
        held: the rows in memory; ``None`` for a table on disk.
        table: on disk; ``None`` for rows in memory.
        roles: the names of the target, the weights and the offset or the exposure in the table on disk.
        labels: whether the target holds labels.
        weighted: whether a row may count otherwise than once; in memory, whether one does.
        processes: that read a part each; a single one for rows in memory, which all processes have.
        change: what is done to each block that is read.
        added: what is added to f.
    """

    reader: FrameReader
    groups: tuple[str, ...]
    held: RowBlock | None
    table: TableDataset | None
    roles: tuple[str, str | None, str | None]
    labels: bool
    weighted: bool
    processes: Processes
    change: Callable[[RowBlock], RowBlock]
    added: Added

    @classmethod
    def of(
        cls, estimator: TableEstimator, X: object, y: object, sample_weight: object, offset: object = None,
        exposure: object = None, *, target: TargetReader, labels: bool = False, numbers: bool = False,
        groups: Sequence[str | int] | None = None,
    ) -> TableRows:  # fmt: skip
        """From the arguments of an estimator's ``fit``; scikit-learn's attributes of the estimator are set.

        Args:
            estimator: that is fitted.
            X: a table in memory or on disk.
            y: the target, or the name of its column.
            sample_weight: how often each row counts, or the name of a column.
            offset: added to f, or the name of a column.
            exposure: whose logarithm is added to f, or the name of a column.
            target: reads targets in memory.
            labels: whether the target holds labels.
            numbers: whether features in memory may be finite numbers, which are not copied.
            groups: columns, by name or position, whose levels have random effects.

        Raises:
            InputError: if an argument cannot be used, or no column is left for the features.
            InputTypeError: if the roles of a table on disk are not the names of columns.
            OptionError: if there is no such column, or an offset and an exposure are given.
        """
        table, added = opened(X), Added.of(offset, exposure)
        roles = {"y": y, "sample_weight": sample_weight, added.role: added.given}
        if table is not None:
            return cls._on_disk(estimator, table, roles, labels, groups, added)
        X, y, sample_weight, given = columns_by_name(X, **roles)
        reader, features = FrameReader.fit(
            estimator, X, y, categorical=estimator.categorical, groups=groups, numbers=numbers
        )
        count = len(features) if isinstance(features, np.ndarray) else len(features[0].values)
        values, weights = target(y, count), row_weights(sample_weight, count)
        sums = None if given is None else added.numbers(given)
        if sums is not None and sums.shape[:1] != (count,):
            raise InputError(f"{added.role}: expected shape ({count},), or a column an output, got {sums.shape}.")
        held = RowBlock(features, values, weights, sums, np.arange(count)).counted()
        grouped = tuple(reader.names[at] for at in sorted(label_positions(reader.names, groups, "groups")))
        return cls(reader, grouped, held, None, ("y", None, None), labels, _weighted(held), Processes(), _same, added)

    @classmethod
    def _on_disk(
        cls,
        estimator: TableEstimator,
        table: TableDataset,
        roles: dict[str, Any],
        labels: bool,
        groups: Sequence[str | int] | None,
        added: Added,
    ) -> TableRows:
        for role, name in roles.items():
            if name is None and role != "y":
                continue
            if not isinstance(name, str):
                several = " Fit a model to each column of y." if role == "y" and isinstance(name, list | tuple) else ""
                raise InputTypeError(
                    f"{role}: expected the name of a column for a table on disk, got {type(name).__name__}. Write its "
                    f"name in the table.{several}"
                )
            if name not in table.names:
                raise OptionError.unknown(role, name, table.names)
        names = tuple(name for name in table.names if name not in roles.values())
        if not names:
            raise InputError(f"X: expected a column beside {', '.join(map(repr, table.names))}, got none.")
        reader = FrameReader(names, positions_of_labels(names, estimator.categorical, groups))
        grouped = tuple(names[at] for at in sorted(label_positions(names, groups, "groups")))
        validate_data(estimator, pd.DataFrame(columns=list(names)), skip_check_array=True)
        target, weight, name = roles.values()
        weighted = weight is not None
        return cls(reader, grouped, None, table, (target, weight, name), labels, weighted, present(), _same, added)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each feature on disk holds, by its name; a column of another type is refused when it is read."""
        stored = self.stored.kinds
        return {name: "categorical" if name in self._categorical else stored[name] or "numeric" for name in self._names}

    @property
    def stored(self) -> TableDataset:
        """The table on disk."""
        assert self.table is not None
        return self.table

    @property
    def targets(self) -> np.ndarray | None:
        """The targets in memory; ``None`` for a table on disk."""
        return None if self.held is None else self.held.target

    @property
    def target_name(self) -> str:
        """What messages call the target."""
        return "y" if self.table is None else f"column {self.roles[0]!r}"

    def changed(self, change: Callable[[RowBlock], RowBlock], *, weighted: bool = False) -> TableRows:
        """The rows with something done to each block: in memory at once, on disk whenever a block is read."""
        if self.held is not None:
            held = change(self.held)
            return replace(self, held=held, weighted=_weighted(held))
        before = self.change
        return replace(self, change=lambda block: change(before(block)), weighted=self.weighted or weighted)

    def refuse_others(self) -> None:
        """Refuses processes that were given different rows in memory.

        Raises:
            InputError: if the rows of a process differ from those of the first one.
        """
        processes = present()
        if self.held is None or processes.count == 1:
            return
        found = processes.gather(self.held.digest())
        strange = [rank for rank, other in enumerate(found) if other != found[0]]
        if strange:
            raise InputError(
                f"X, y: expected the same table on every rank, got another on rank {strange[0]} than on rank 0. Give "
                "each rank the whole table; one that does not fit into memory is opened by bs.open_table."
            )

    def generator(self, random_state: RandomState) -> torch.Generator:
        """The generator of a fit, which is the same on all processes.

        Raises:
            InputError: if the processes were given different rows in memory.
        """
        self.refuse_others()
        return present().common_generator(generator_from(random_state))

    def distinct(self) -> TableRows:
        """Rows in memory with each combination of features, target and offset once, in an order of their own."""
        return self if self.held is None else self.changed(distinct)

    def blocks(self, *, features: bool = True) -> Iterator[RowBlock]:
        """The rows that have a weight above 0, in order; on disk those of this process's part.

        Args:
            features: whether the features are read; else there are no columns on disk.

        Raises:
            InputError: if a target is missing, or a weight is no number of at least 0.
        """
        if self.table is None:
            assert self.held is not None
            yield self.held
            return
        extra = [name for name in self.roles if name is not None]
        names = [*(self._names if features else ()), *extra]
        labels = [*self._categorical, *([self.roles[0]] if self.labels else [])]
        first, part = self._first, (self.processes.rank, self.processes.count)
        for columns in self.table.blocks(names, part=part, categorical=[name for name in labels if name in names]):
            by_name = {column.name: column for column in columns}
            count = len(columns[0].values)
            block = self._block(by_name, names[: len(names) - len(extra)], np.arange(first, first + count))
            yield self.change(block)
            first += count

    def counted_before(self) -> int:
        """How many of the rows before this process's part have a weight above 0: collective where there are weights."""
        if self.roles[1] is None:
            return self._first
        if self.processes.count == 1:
            return 0
        counted = sum(len(block) for block in self.blocks(features=False))
        return sum(self.processes.gather(counted)[: self.processes.rank])

    def of_parts(self, value: _Value) -> list[_Value]:
        """A value from each part of the table, in order: one for rows in memory."""
        return self.processes.gather(value)

    def joined(self, seen: _Seen) -> _Seen:
        """What was seen in all parts of the table."""
        return reduce(type(seen).joined, self.of_parts(seen))

    def nobody(self) -> InputError:
        """The error of a table in which no row counts."""
        return InputError(
            "sample_weight: expected a weight above 0 in some row of each process's part of the table, got none."
            if self.processes.count > 1
            else "sample_weight: expected a weight above 0 in some row, got none."
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return self.reader.names

    @property
    def _categorical(self) -> list[str]:
        return [self._names[place] for place in self.reader.categorical]

    @property
    def _first(self) -> int:
        """The number of this process's first row in the table."""
        return 0 if self.table is None else self.processes.rank * self.table.rows // self.processes.count

    def _block(self, columns: dict[str, Column], names: Sequence[str], rows: np.ndarray) -> RowBlock:
        name, weight, added = self.roles
        weights = np.ones(len(rows)) if weight is None else _numbers(columns[weight], rows)
        if (weights < 0).any():
            row = int(np.argmax(weights < 0))
            raise InputError(
                f"column {weight!r}: expected no negative weights, got {weights[row]:g} in row {rows[row]}."
            )
        target = columns[name].values if self.labels else _numbers(columns[name], rows)
        if self.labels and (gaps := pd.isna(target)).any():
            raise _missing(name, rows[np.argmax(gaps)])
        offset = None if added is None else self.added.numbers(_numbers(columns[added], rows))
        return RowBlock([columns[name] for name in names], target, weights, offset, rows).counted()


def row_weights(sample_weight: object, rows: int) -> np.ndarray:
    """Weights of the rows, shape (N,), 1 by default.

    Raises:
        InputError: if there is not one for each row, one is negative or not finite, or all are 0.
    """
    if sample_weight is None:
        return np.ones(rows)
    weights = checks.float64("sample_weight", sample_weight).numpy()
    if weights.shape != (rows,):
        raise InputError(f"sample_weight: expected one number for each of the {rows} rows, got shape {weights.shape}.")
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise InputError(f"sample_weight: expected no negative weights, got {weights[row]:g} in row {row}.")
    if not weights.any():
        # In words that scikit-learn's check_estimator looks for.
        raise InputError("sample_weight: Sample weights must contain at least one non-zero number, got zeros alone.")
    return weights


def row_offset(offset: object, rows: int, outputs: int) -> np.ndarray | None:
    """The offset of each row and output, shape (N, C), or ``None``; a number is that of all.

    Raises:
        InputError: if its shape does not fit or a number is not finite.
    """
    if offset is None:
        return None
    numbers = checks.float64("offset", offset).numpy()
    numbers = np.full((rows, outputs), numbers) if numbers.ndim == 0 else numbers
    columns = numbers[:, None] if numbers.ndim == 1 and outputs == 1 else numbers
    if columns.shape != (rows, outputs):
        expected = f"({rows},)" if outputs == 1 else f"({rows}, {outputs}), a column an output"
        raise InputError(f"offset: expected shape {expected}, got {numbers.shape}.")
    return columns


def with_offset(block: RowBlock) -> RowBlock:
    """The rows with their offset as one more column of the target."""
    offset = row_offset(block.offset, len(block), 1)
    assert offset is not None
    return replace(block, target=np.column_stack([block.target, offset]), offset=None)


def distinct(block: RowBlock) -> RowBlock:
    """Merge equal rows, whose weights add up, into one.

    A model that is fitted to the merged rows knows nothing of the order in which the rows came, and a row of weight 2
    is the same as two rows, bit for bit.
    """
    keys = np.stack([*map(_ranks, block.columns), *block.others.T])
    # The weights come last: in one order among equal rows, they have one sum.
    order = np.lexsort((block.weights, *keys[::-1]))
    keys = keys[:, order]
    differ = (keys[:, 1:] != keys[:, :-1]) & ~(np.isnan(keys[:, 1:]) & np.isnan(keys[:, :-1]))
    starts = np.flatnonzero(np.concatenate([[True], differ.any(0)]))
    return replace(block.taken(order[starts]), weights=np.add.reduceat(block.weights[order], starts))


def _same(block: RowBlock) -> RowBlock:
    return block


def _weighted(block: RowBlock) -> bool:
    return bool((block.weights != 1.0).any())


def _numbers(column: Column, rows: np.ndarray) -> np.ndarray:
    if column.kind != "numeric":
        raise InputTypeError(
            f"column {column.name!r}: expected numbers, got labels such as {column.values[0]!r}. Name another "
            "column, or turn it into numbers."
        )
    gaps = np.isnan(column.values)
    if gaps.any():
        raise _missing(column.name, rows[np.argmax(gaps)])
    return column.values


def _missing(name: str, row: int) -> InputError:
    return InputError(
        f"column {name!r}: expected a value in each row, got none in row {row}. Leave such rows out of the table."
    )


def _ranks(column: Column) -> np.ndarray:
    """The column's numbers, or the rank of each of its labels; NaN where missing."""
    if column.kind == "numeric":
        return column.values
    values = column.values.tolist()
    labels = sorted(set(values) - {None}, key=lambda label: (isinstance(label, str), label))
    ranks: dict[object, float] = {label: float(rank) for rank, label in enumerate(labels)}
    return np.array([ranks.get(value, np.nan) for value in values])
