"""The rows that a linear model is fitted to, wherever they lie: in memory, on disk, or spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.linear.rows import Rows
from bayescope.processes import Processes


class Batch(NamedTuple):
    """Rows of a table.

    Attributes:
        features: X, float64, shape (n, D), of any strides.
        targets: y in the likelihood's canonical form, of n rows.
        weights: how often each row counts, shape (n,); ``None`` counts each once.
    """

    features: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def weighed(self, each: Tensor) -> Tensor:
        """What each row has, shape (n, ...), times the row's weight."""
        return each if self.weights is None else each * self.weights.view(-1, *[1] * (each.ndim - 1))

    def every(self, stride: int, start: int) -> Batch:
        """The rows whose number is a multiple of ``stride``, that of the first being ``start``: a view, not a copy."""
        first = -start % stride
        weights = None if self.weights is None else self.weights[first::stride]
        return Batch(self.features[first::stride], self.targets[first::stride], weights)


Block = Callable[[Batch], tuple[Tensor, ...]]


class Table(Protocol):
    """N rows, which are read by sums over blocks of them."""

    @property
    def count(self) -> int:
        """The number of rows, N."""

    @property
    def total(self) -> float:
        """How many rows there are, by their weights."""

    def sum(self, block: Block, *, size: int, outputs: int = 1, copies: int = 1) -> list[Tensor]:
        """Σ over blocks of the tensors that ``block`` returns for some rows; they need no order.

        Args:
            block: a function of rows; it runs in several threads.
            size: how many numbers one of its answers holds.
            outputs: of the model.
            copies: for how many weight vectors at once the outputs are computed.
        """

    def largest(self, block: Callable[[Batch], Tensor]) -> float:
        """The largest of the numbers, 0 or more, that ``block`` returns, one for some rows."""

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The values, and where processes share the rows the first one's: each may have rounded in another way."""

    def every(self, stride: int, *, start: int = 0) -> Table:
        """The rows whose number is a multiple of ``stride``, in memory; the first row has the number ``start``."""

    def scaled(self, share: float) -> Table:
        """The same rows, with ``share`` times their weights; only of rows in memory.

        Raises:
            UnsupportedError: if they are not in memory.
        """

    def held(self) -> Batch:
        """All rows.

        Raises:
            UnsupportedError: if they are not in memory.
        """


@final
@dataclass(frozen=True, eq=False)
class HeldTable:
    """Rows in memory. They are read where they lie: they are not copied and get no column of ones.

    Attributes:
        batch: all of them.
    """

    batch: Batch

    def __post_init__(self) -> None:
        rows, targets = self.batch.features.shape[0], self.batch.targets.shape[0]
        if targets != rows:
            raise InputError(f"y: expected {rows} rows as X has, got {targets}.")

    @property
    def count(self) -> int:
        return self.batch.features.shape[0]

    @cached_property
    def total(self) -> float:
        """How many rows there are, by their weights."""
        return float(self.count if self.batch.weights is None else self.batch.weights.sum())

    def sum(self, block: Block, *, size: int, outputs: int = 1, copies: int = 1) -> list[Tensor]:
        """Σ over blocks of rows that stay in a core's cache, on all cores."""
        rows = Rows(self.count, self.batch.features.shape[1], outputs)
        if rows.are_one_block(copies):
            return list(block(self.batch))
        return rows.sum(lambda part: block(self._rows(part)), size=size, copies=copies)

    def largest(self, block: Callable[[Batch], Tensor]) -> float:
        """The largest number that ``block`` returns."""
        rows = Rows(self.count, self.batch.features.shape[1])
        return max((float(block(self._rows(part))) for part in rows.blocks()), default=0.0)

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        return values

    def every(self, stride: int, *, start: int = 0) -> HeldTable:
        """Every ``stride``-th row: a view, not a copy."""
        return HeldTable(self.batch.every(stride, start))

    def scaled(self, share: float) -> HeldTable:
        """The same rows, with ``share`` times their weights."""
        weights = self.batch.weights
        each = self.batch.features.new_ones(self.count) if weights is None else weights
        return HeldTable(self.batch._replace(weights=each * share))

    def held(self) -> Batch:
        return self.batch

    def _rows(self, part: slice) -> Batch:
        x, y, weights = self.batch
        return Batch(x[part], y[part], None if weights is None else weights[part])


@final
@dataclass(frozen=True, eq=False)
class StreamedTable:
    """Rows that come in blocks, anew for each pass; one block is in memory at a time.

    Attributes:
        batches: starts a pass.
        count: N.
        total: how many rows there are, by their weights.
    """

    batches: Callable[[], Iterator[Batch]]
    count: int
    total: float

    def sum(self, block: Block, *, size: int, outputs: int = 1, copies: int = 1) -> list[Tensor]:
        """Σ over the blocks, each summed as rows in memory are."""
        total: list[Tensor] = []
        for batch in self.batches():
            part = HeldTable(batch).sum(block, size=size, outputs=outputs, copies=copies)
            if total:
                torch._foreach_add_(total, part)
            else:
                total = part
        return total

    def largest(self, block: Callable[[Batch], Tensor]) -> float:
        """The largest number that ``block`` returns."""
        return max((HeldTable(batch).largest(block) for batch in self.batches()), default=0.0)

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        return values

    def every(self, stride: int, *, start: int = 0) -> HeldTable:
        """Every ``stride``-th row, copied in one pass into memory that is laid out for them before."""
        rows, filled = len(range(-start % stride, self.count, stride)), 0
        taken: Batch | None = None
        for batch in self.batches():
            part = batch.every(stride, start)
            taken = _empty(part, rows) if taken is None else taken
            end = filled + part.features.shape[0]
            for place, values in zip(taken, part, strict=True):
                if place is not None and values is not None:
                    place[filled:end] = values
            filled, start = end, start + batch.features.shape[0]
        assert taken is not None
        return HeldTable(taken)

    def scaled(self, share: float) -> HeldTable:
        """Refused: it is asked of rows in memory alone."""
        return HeldTable(self.held()).scaled(share)

    def held(self) -> Batch:
        raise UnsupportedError(
            "posterior: expected one that is found by sums over the rows, for a table that is read in blocks: 'map', "
            "'laplace', 'variational' or 'mean_field'. The others need all rows in memory: fit a DataFrame of a part."
        )


@final
@dataclass(frozen=True, eq=False)
class SharedTable:
    """Rows of which each process has a part: every sum is one over the processes, the same on all of them.

    Attributes:
        own: this process's part.
        processes: all of them.
        start: the number of the part's first row.
        count: N, of all parts.
        total: how many rows there are in all, by their weights.
    """

    own: Table
    processes: Processes
    start: int
    count: int
    total: float

    @classmethod
    def of(cls, own: Table, processes: Processes) -> SharedTable:
        """Of parts in the order of the ranks."""
        counts, totals = zip(*processes.gather((own.count, own.total)), strict=True)
        return cls(own, processes, sum(counts[: processes.rank]), sum(counts), sum(totals))

    def sum(self, block: Block, *, size: int, outputs: int = 1, copies: int = 1) -> list[Tensor]:
        """Σ over the rows of all processes."""
        with self.processes.agreed():
            part = self.own.sum(block, size=size, outputs=outputs, copies=copies)
        return self.processes.sum(part)

    def largest(self, block: Callable[[Batch], Tensor]) -> float:
        """The largest number that ``block`` returns on any process."""
        with self.processes.agreed():
            part = self.own.largest(block)
        return max(self.processes.gather(part))

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The values of the first process, so that all go on with the same."""
        copies = tuple(value.clone() for value in values)
        self.processes.share(copies)
        return copies

    def every(self, stride: int, *, start: int = 0) -> SharedTable:
        """Every ``stride``-th row of all, each process those of its part."""
        with self.processes.agreed():
            part = self.own.every(stride, start=self.start + start)
        return SharedTable.of(part, self.processes)

    def scaled(self, share: float) -> SharedTable:
        """The same rows, with ``share`` times their weights."""
        return replace(self, own=self.own.scaled(share), total=self.total * share)

    def held(self) -> Batch:
        raise UnsupportedError(
            "posterior: expected 'map', 'laplace', 'variational' or 'mean_field', which are sums over the rows, where "
            "processes share these. Fit the others inside bs.distributed.alone()."
        )


def _empty(like: Batch, rows: int) -> Batch:
    """Room for so many rows."""
    x, y, weights = like
    return Batch(
        x.new_empty(rows, *x.shape[1:]), y.new_empty(rows, *y.shape[1:]), None if weights is None else x.new_empty(rows)
    )
