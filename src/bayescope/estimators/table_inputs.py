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
from bayescope.estimators.table_rows import Block, TableRows
from bayescope.linear.table import Batch, RowTable
from bayescope.tables import Column
from bayescope.tables.preprocessing import EncodingName, ScalingName
from bayescope.tables.preprocessing_in_blocks import TableSeen
from bayescope.tables.suspicion import warn_of_numbers

# What the rows that a transformer is fitted to take at most.
SAMPLE_BYTES = 2**26
# A table of no more bytes than this is kept after its first pass: a small one is passed over many times.
HELD_BYTES = 2**26

Weigh = Callable[[Block], np.ndarray]


@final
@dataclass(frozen=True, eq=False)
class TableInputs:
    """The inputs of a linear model from a table on disk.

    Attributes:
        source: the rows.
        inputs: the learnt map from columns.
        rows: how many of this process's rows count.
        total: how often they do.
        weigh: how often each row of a block counts, shape (n,).
        counted_once: whether that is once for all rows.
        sampled: how many rows a transformer of features was fitted to; ``None`` where there is none.
    """

    source: TableRows
    inputs: InputMap
    rows: int
    total: float
    weigh: Weigh
    counted_once: bool
    sampled: int | None

    @classmethod
    def fit(
        cls,
        source: TableRows,
        weigh: Weigh,
        *,
        counted_once: bool,
        standardize: bool,
        features: Any,
        random_state: Any,
        encoding: Any,
        origin: Origin,
    ) -> TableInputs:
        """Learns the map in one pass.

        Args:
            source: the rows.
            weigh: how often each row of a block counts, shape (n,).
            counted_once: whether that is once for all rows.
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
        with source.processes.agreed():
            for block in source.blocks():
                weights = weigh(block)
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
        require_encoded(preprocessing, source.table, sum(len(part[1]) for part in sample))
        columns, each = zip(*sample, strict=True)
        numbers = preprocessing(columns[0] if len(columns) == 1 else list(map(_joined, zip(*columns, strict=True))))
        counts, everyone = np.concatenate(each), sum(source.processes.gather(total))
        preprocessing = preprocessing.with_spread(numbers, counts, everyone)
        inputs, _ = InputMap.of(preprocessing, transformer, numbers, counts, origin)
        sampled = len(numbers) if transformer is not None else None
        return cls(source, inputs, rows, total, weigh, counted_once, sampled)

    def table(self, targets: Callable[[Block], Tensor]) -> RowTable:
        """The rows as a linear model takes them, over all processes.

        Args:
            targets: of a block, in the likelihood's canonical form.
        """
        own = RowTable.streamed(lambda: self._batches(targets), self.rows, self.total)
        processes = self.source.processes
        # All hold their parts or none does: whoever reads blocks meets the others at other points.
        if 8 * max(processes.gather(self.rows)) * len(self.inputs.names) <= HELD_BYTES:
            with processes.agreed():
                own = own.every(1)
        return own.shared(processes)

    def notes(self, total: int) -> dict[str, str]:
        """What a summary says of the map."""
        notes = self.inputs.notes()
        if self.sampled is not None and self.sampled < total:
            notes["features"] = f"fitted to {self.sampled} evenly spaced rows of {total}"
        return notes

    def _batches(self, targets: Callable[[Block], Tensor]) -> Iterator[Batch]:
        width = len(self.inputs.names)
        empty = True
        for block in self.source.blocks():
            if len(block.rows):
                empty = False
                weights = None if self.counted_once else torch.from_numpy(self.weigh(block))
                yield Batch(as_tensor(self.inputs(block.columns)), targets(block), weights)
        if empty:  # a part without rows has sums all the same
            nothing = Block([], np.empty(0), np.empty(0), None, np.empty(0, dtype=np.int64))
            weights = None if self.counted_once else torch.empty(0, dtype=torch.float64)
            yield Batch(torch.empty(0, width, dtype=torch.float64), targets(nothing), weights)


def _stride(source: TableRows, *, everything: bool) -> int:
    """Which rows are kept: every k-th row."""
    rows = source.table.rows
    if everything:
        return max(1, math.ceil(8 * rows * len(source.names) / SAMPLE_BYTES))
    return max(1, rows // SCALE_ROWS)


def _taken(columns: list[Column], rows: slice) -> list[Column]:
    return [replace(column, values=column.values[rows].copy()) for column in columns]


def _joined(pieces: tuple[Column, ...]) -> Column:
    return replace(pieces[0], values=np.concatenate([piece.values for piece in pieces]))
