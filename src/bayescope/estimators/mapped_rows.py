"""The rows of a table as a model takes them: one block in memory, or blocks of a table on disk, mapped in each pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from bayescope.estimators.base import RandomState, as_tensor
from bayescope.estimators.features import Features, feature_map
from bayescope.estimators.inputs import SCALE_ROWS, InputMap, Origin, parted, require_encoded, require_room
from bayescope.estimators.table_rows import RowBlock, TableRows
from bayescope.linear.table import Batch, RowTable
from bayescope.tables import Column
from bayescope.tables.column_sums import LabelsSeen
from bayescope.tables.encoding import CategoricalEncoding, refuse_groups
from bayescope.tables.order import column_order
from bayescope.tables.preprocessing import EncodingName, Preprocessing, ScalingName, TableSeen
from bayescope.tables.suspicion import warn_of_text

# The canonical form that a likelihood gives to the targets of some rows.
Canonical: TypeAlias = Callable[[np.ndarray], Tensor]

# What the rows that a transformer is fitted to take at most.
SAMPLE_BYTES = 2**26
# A table of no more bytes than this is kept after its first pass: a small one is passed over many times.
HELD_BYTES = 2**26


@final
@dataclass(frozen=True, eq=False)
class MappedRows:
    """The rows of a table, and the map from its columns to the inputs of a model, which was learnt from them.

    Attributes:
        source: the rows.
        inputs: the learnt map.
        values: the inputs of the rows in memory, shape (N, D); ``None`` for a table on disk.
        rows: how many of this process's rows count.
        total: how often they do.
        sampled: how many rows a transformer of features was fitted to; ``None`` without one.
    """

    source: TableRows
    inputs: InputMap
    values: np.ndarray | None
    rows: int
    total: float
    sampled: int | None

    @classmethod
    def fit(
        cls,
        source: TableRows,
        *,
        scaling: ScalingName | None,
        encoding: EncodingName,
        features: Features = None,
        random_state: RandomState = None,
        origin: Origin = "as_mapped",
        seed: int = 0,
        by_content: bool = False,
        sample_rows: int = SCALE_ROWS,
        sample_bytes: int = SAMPLE_BYTES,
    ) -> MappedRows:
        """Learns the map, from a table on disk in one pass.

        Args:
            source: the rows. Finite numbers in memory are not copied if they stay unchanged.
            scaling: of columns of numbers, as `Preprocessing` takes it.
            encoding: of labels, as `Preprocessing` takes it; on disk "one_hot" or "ordinal".
            features: the transformer, as `feature_map` takes it. On disk it is fitted to as many evenly spaced rows as
                take 64 MiB.
            random_state: of a named transformer.
            origin: what the model's inputs are measured from: "means", their means over a sample of the rows, which
                under a flat intercept changes nothing but the rounding; "zero", the columns as given, which scaling
                then does not move: for a model without an intercept; or "as_mapped".
            seed: of the five parts of the encoding "target".
            by_content: whether the inputs are in an order of what they hold (`column_order`), not in that of the
                table's columns, and the rows in memory in an order of these inputs; on disk by the sample of the rows.
            sample_rows: about how many rows of a table on disk are kept to find the inputs' scales and spread.
            sample_bytes: the most bytes of the rows that a transformer is fitted to.

        Raises:
            InputError: if a column cannot be used, or no row counts.
            MemoryBudgetError: if memory does not hold the inputs.
            UnsupportedError: for the encoding "target" of a table on disk.
        """
        transformer = feature_map(features, random_state)
        if source.held is None:
            stride = max(1, source.stored.rows // sample_rows)
            if transformer is not None:
                stride = max(1, math.ceil(8 * source.stored.rows * len(source.reader.names) / sample_bytes))
            preprocessing, numbers, sample, rows, total, groups, grouped = _survey(source, scaling, encoding, stride)
            inputs, mapped = InputMap.of(preprocessing, transformer, numbers, sample.weights, origin, groups, grouped)
            if by_content:
                inputs = inputs.narrowed(column_order(mapped.T, sample.others, sample.weights))
            return cls(source, inputs, None, rows, total, None if transformer is None else len(numbers))
        if by_content:  # sums over the rows, and what is drawn for them, then have the rows in one order as well
            plain = cls.fit(source, scaling=None, encoding="ordinal").values
            assert plain is not None
            order = _row_order(plain, source.held)
            source = source.changed(lambda rows: rows.taken(order))
        assert source.held is not None
        block, counts = source.held, source.held.weights if source.weighted else None
        require_room(block.features, encoding, source.groups)
        others, grouped = parted(block.features, source.groups)
        groups = tuple(CategoricalEncoding.fit(column, counts) for column in grouped)
        for group in groups:
            refuse_groups(group, len(block))
        preprocessing, numbers = Preprocessing.fit(
            others, block.target, scaling=scaling, encoding=encoding, weights=counts, random_state=seed
        )
        inputs, mapped = InputMap.of(preprocessing, transformer, numbers, counts, origin, groups, grouped)
        fresh = transformer is None and mapped is not block.features
        if by_content:
            inputs = inputs.narrowed(column_order(mapped.T, block.others, block.weights))
            mapped, fresh = mapped[:, inputs.kept], True
        values = inputs.centred(mapped, fresh=fresh)
        return cls(source, inputs, values, len(block), float(block.weights.sum()), None)

    def batches(self, targets: Canonical) -> Iterator[Batch]:
        """This process's rows, a block at a time; a process without rows has one block without rows.

        Args:
            targets: makes the likelihood's canonical form of targets.
        """
        rows = 0
        for block in self.source.blocks():
            if len(block):
                values = self.inputs(block.columns) if self.values is None else self.values
                weights = torch.from_numpy(block.weights) if self.source.weighted else None
                yield Batch(as_tensor(values), targets(block.target), weights)
                rows += len(block)
        if not rows:  # sums over no rows have a shape
            empty = torch.empty(0, dtype=torch.float64)
            features = empty.new_empty(0, len(self.inputs.names))
            yield Batch(features, targets(np.empty(0)), empty if self.source.weighted else None)

    def table(self, targets: Canonical, *, spread: bool = True, held_bytes: int | None = None) -> RowTable:
        """The rows of all processes as a linear model takes them.

        Args:
            targets: makes the likelihood's canonical form of targets.
            spread: whether each process sums a part of rows in memory, which all processes have.
            held_bytes: the most bytes of a part of a table on disk that is kept in memory; 64 MiB by default.

        Raises:
            InputError: if the processes were given different tables in memory.
        """
        if self.values is None:
            table = RowTable.streamed(lambda: self.batches(targets), self.rows, self.total)
            # All processes hold their parts or none does: one that reads blocks meets the others at other points.
            most = HELD_BYTES if held_bytes is None else held_bytes
            if 8 * max(self.source.of_parts(self.rows)) * len(self.inputs.names) <= most:
                table = table.every(1)
            return table.shared(self.source.processes)
        self.source.refuse_others()
        (batch,) = self.batches(targets)
        return RowTable.spread(batch) if spread else RowTable.of(batch)

    def notes(self, total: int) -> dict[str, str]:
        """What a summary says of the sample that a transformer of features was fitted to."""
        if self.sampled is None or self.sampled >= total:
            return {}
        return {"features": f"fitted to {self.sampled} evenly spaced rows of {total}"}


def _row_order(numbers: np.ndarray, rows: RowBlock) -> np.ndarray:
    """The places of rows in ascending order of their numbers, shape (N, D), in an order of what these hold."""
    columns = numbers[:, column_order(numbers.T, rows.others, rows.weights)]
    order: np.ndarray = np.lexsort((*rows.others.T[::-1], *columns.T[::-1]))
    return order


def _survey(
    source: TableRows, scaling: ScalingName | None, encoding: EncodingName, stride: int
) -> tuple[Preprocessing, np.ndarray, RowBlock, int, float, tuple[CategoricalEncoding, ...], list[Column]]:
    """Reads a table on disk once: what its columns hold, and every k-th row that counts.

    Returns:
        The preprocessing, these rows as numbers (n, D) and as they are, how many rows of this process's part count and
        how often, and the levels of groups and their columns.
    """
    before = source.counted_before()
    kinds = {name: kind for name, kind in source.kinds.items() if name not in source.groups}
    seen, levels = TableSeen(kinds, scaling=scaling, encoding=encoding), [LabelsSeen(name) for name in source.groups]
    kept, rows, total = [], 0, 0.0
    for block in source.blocks():
        weights = block.weights
        if not rows:
            warn_of_text(block.columns)
        others, grouped = parted(block.columns, source.groups)
        if not isinstance(others, np.ndarray):
            seen.add(others, weights, block.rows)
        for each, column in zip(levels, grouped, strict=True):
            each.add(column, weights)
        some = block.taken(np.arange(-(before + rows) % stride, len(block), stride))
        kept.append((some.columns, some.target, some.weights, some.offset, some.rows))
        rows, total = rows + len(weights), total + float(weights.sum())
    preprocessing, total_rows = source.joined(seen).preprocessing(), sum(source.of_parts(rows))
    groups = tuple(source.joined(each).encoding() for each in levels)
    for group in groups:
        refuse_groups(group, total_rows)
    parts = [RowBlock(*part) for parts in source.of_parts(kept) for part in parts]
    blocks = [block for block in parts if len(block)]
    if not blocks:
        raise source.nobody()
    require_encoded(preprocessing, source.stored, sum(map(len, blocks)), groups)
    sample = RowBlock.joined(blocks)
    others, grouped = parted(sample.columns, source.groups)
    numbers = preprocessing(others)
    preprocessing = preprocessing.with_spread(numbers, sample.weights, sum(source.of_parts(total)))
    return preprocessing, numbers, sample, rows, total, groups, grouped
