"""A linear model's inputs from a table on disk: the map learnt in one pass, and each pass after it as batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor

from bayescope.estimators.base import as_tensor
from bayescope.estimators.features import feature_map
from bayescope.estimators.inputs import SCALE_ROWS, InputMap, Origin, require_encoded
from bayescope.estimators.table_rows import TableRows
from bayescope.estimators.together import refuse_other_rows
from bayescope.linear.table import Batch, RowTable
from bayescope.processes import present
from bayescope.tables import Column
from bayescope.tables.dataset import TableDataset
from bayescope.tables.preprocessing import EncodingName, ScalingName, TableSeen
from bayescope.tables.suspicion import warn_of_numbers

# What the rows that a transformer is fitted to take at most.
SAMPLE_BYTES = 2**26
# A table of no more bytes than this is kept after its first pass: a small one is passed over many times.
HELD_BYTES = 2**26


@final
@dataclass(frozen=True, eq=False)
class TableInputs:
    """The inputs of a linear model from a table on disk.

    Attributes:
        source: the rows.
        inputs: the learnt map from columns.
        rows: how many of this process's rows count.
        total: how often they do.
        sampled: how many rows a transformer of features was fitted to; ``None`` where there is none.
    """

    source: TableRows
    inputs: InputMap
    rows: int
    total: float
    sampled: int | None

    @classmethod
    def fit(
        cls,
        source: TableRows,
        *,
        standardize: bool,
        features: Any,
        random_state: Any,
        encoding: Any,
        origin: Origin,
    ) -> TableInputs:
        """Learns the map in one pass.

        Args:
            source: the rows.
            standardize: whether columns of numbers are centred and scaled.
            features: the transformer, as `feature_map` takes it; it is fitted to as many evenly spaced rows as take
                64 MiB, in a table of no more to all.
            random_state: of a named transformer.
            encoding: of labels, "one_hot" or "ordinal".
            origin: what the model's inputs are measured from, as `InputMap.fit` takes it.
        """
        transformer = feature_map(features, random_state)
        scaling: ScalingName | None = "standard" if standardize else None
        seen = TableSeen(source.kinds, scaling=scaling, encoding=cast(EncodingName, encoding))
        stride = _stride(source, everything=transformer is not None)
        before = source.counted_before()
        kept, rows, total = [], 0, 0.0
        for block in source.blocks():
            weights = block.weights
            if not rows:
                warn_of_numbers(block.columns)
            seen.add(block.columns, weights, block.rows)
            some = slice(-(before + rows) % stride, None, stride)
            kept.append((_taken(block.columns, some), weights[some]))
            rows, total = rows + len(weights), total + float(weights.sum())
        preprocessing = reduce(TableSeen.joined, source.processes.gather(seen)).preprocessing()
        sample = [part for parts in source.processes.gather(kept) for part in parts if len(part[1])]
        if not sample:
            raise source.nobody()
        require_encoded(preprocessing, _stored(source), sum(len(part[1]) for part in sample))
        columns, each = zip(*sample, strict=True)
        numbers = preprocessing(columns[0] if len(columns) == 1 else list(map(_joined, zip(*columns, strict=True))))
        counts, everyone = np.concatenate(each), sum(source.processes.gather(total))
        preprocessing = preprocessing.with_spread(numbers, counts, everyone)
        inputs, _ = InputMap.of(preprocessing, transformer, numbers, counts, origin)
        sampled = len(numbers) if transformer is not None else None
        return cls(source, inputs, rows, total, sampled)

    def table(self, targets: Callable[[np.ndarray], Tensor]) -> RowTable:
        """The rows as a linear model takes them, over all processes.

        Args:
            targets: makes the likelihood's canonical form of targets.
        """
        table = RowTable.streamed(lambda: self._batches(targets), self.rows, self.total)
        processes = self.source.processes
        # All hold their parts or none does: whoever reads blocks meets the others at other points.
        if 8 * max(processes.gather(self.rows)) * len(self.inputs.names) <= HELD_BYTES:
            table = table.every(1)
        return table.shared(processes)

    def notes(self, total: int) -> dict[str, str]:
        """What a summary says of the map."""
        notes = self.inputs.notes()
        if self.sampled is not None and self.sampled < total:
            notes["features"] = f"fitted to {self.sampled} evenly spaced rows of {total}"
        return notes

    def _batches(self, targets: Callable[[np.ndarray], Tensor]) -> Iterator[Batch]:
        width = len(self.inputs.names)
        empty = True
        for block in self.source.blocks():
            if len(block):
                empty = False
                weights = torch.from_numpy(block.weights) if self.source.weighted else None
                yield Batch(as_tensor(self.inputs(block.columns)), targets(block.target), weights)
        if empty:  # a part without rows has sums all the same
            weights = torch.empty(0, dtype=torch.float64) if self.source.weighted else None
            yield Batch(torch.empty(0, width, dtype=torch.float64), targets(np.empty(0)), weights)


def rows_in_memory(inputs: np.ndarray, targets: Tensor, weights: np.ndarray | None, *, spread: bool = True) -> RowTable:
    """The rows; where several processes are given the same, each sums a part of its own.

    Args:
        inputs: of the model, shape (N, D).
        targets: in the likelihood's canonical form.
        weights: how often each row counts, shape (N,).
        spread: whether the rows are spread over the processes.

    Raises:
        InputError: if the processes were given different tables.
    """
    each = None if weights is None else torch.from_numpy(weights)
    batch = Batch(as_tensor(inputs), targets, each)
    processes = present()
    if processes.count == 1:
        return RowTable.of(batch)
    refuse_other_rows(processes, lambda: [inputs, targets.numpy(), *([] if weights is None else [weights])])
    if not spread:
        return RowTable.of(batch)
    part = processes.slice(len(inputs))
    mine = Batch(batch.features[part], batch.targets[part], None if each is None else each[part])
    return RowTable.of(mine).shared(processes)


def _stride(source: TableRows, *, everything: bool) -> int:
    """Which rows are kept: every k-th row."""
    rows = _stored(source).rows
    if everything:
        return max(1, math.ceil(8 * rows * len(source.reader.names) / SAMPLE_BYTES))
    return max(1, rows // SCALE_ROWS)


def _taken(columns: list[Column], rows: slice) -> list[Column]:
    return [replace(column, values=column.values[rows].copy()) for column in columns]


def _joined(pieces: tuple[Column, ...]) -> Column:
    return replace(pieces[0], values=np.concatenate([piece.values for piece in pieces]))


def _stored(source: TableRows) -> TableDataset:
    assert source.table is not None
    return source.table
