"""The rows that a linear model is fitted to, and sums over them.

Rows come in batches: one batch in memory, many from disk, and of several processes each has a part. Sums over a batch
go a block at a time, on all cores; nothing else knows how many batches or processes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.process_state import SMALL, one_thread
from bayescope.processes import Processes, present

# A block of the table and what is computed from it stay in a core's cache: the product of a block with itself then
# runs at the processor's speed and never waits for memory. Wide tables still get enough rows for a matrix product.
CACHE_BYTES = 3 * 2**19
LEAST_ROWS = 1024
# What one block may take beside the table: outputs of many weight vectors at once, Λ of many classes.
WORK_BYTES = 32 * 2**20
# A table that is not small is cut into parts that are summed side by side, each by one thread, if their sums take
# little memory compared with it.
PARALLEL_SIZE = SMALL
# Above this number of rows, what an operation leaves for the next one is no longer in cache.
FEW = 16_384
PARTS = 16
SUMS_SHARE = 16


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

    def part(self, rows: slice) -> Batch:
        """Some of the rows: a view, not a copy."""
        return Batch(self.features[rows], self.targets[rows], None if self.weights is None else self.weights[rows])

    def every(self, stride: int, first: int) -> Batch:
        """The rows whose number is a multiple of ``stride``, where ``first`` is the number of the first row: a view."""
        return self.part(slice(-first % stride, None, stride))


Block = Callable[[Batch], tuple[Tensor, ...]]
ONE = Processes()


@final
@dataclass(frozen=True, eq=False)
class RowTable:
    """N rows, which are read by sums over blocks of them; where processes share them, every sum is over all processes.

    Attributes:
        batches: starts a pass over this process's rows, a batch at a time.
        count: N, of all processes.
        total: how many rows there are by their weights, of all processes.
        rows_here: the numbers of this process's rows.
        memory: this process's rows, where they are in memory.
        processes: that have a part of the rows each.
    """

    batches: Callable[[], Iterable[Batch]]
    count: int
    total: float
    rows_here: range
    memory: Batch | None = None
    processes: Processes = ONE

    @classmethod
    def of(cls, batch: Batch) -> RowTable:
        """Rows in memory. They are read where they lie: they are not copied and get no column of ones.

        Raises:
            InputError: if there is not a target for each row.
        """
        rows, targets = batch.features.shape[0], batch.targets.shape[0]
        if targets != rows:
            raise InputError(f"y: expected {rows} rows as X has, got {targets}.")
        total = float(rows if batch.weights is None else batch.weights.sum())
        return cls(lambda: (batch,), rows, total, range(rows), batch)

    @classmethod
    def spread(cls, batch: Batch) -> RowTable:
        """Rows in memory that all processes have, of which each sums a part."""
        processes = present()
        if processes.count == 1:
            return cls.of(batch)
        return cls.of(batch.part(processes.slice(len(batch.features)))).shared(processes)

    @classmethod
    def streamed(cls, batches: Callable[[], Iterable[Batch]], count: int, total: float) -> RowTable:
        """Rows that come in batches, anew for each pass; one batch is in memory at a time."""
        return cls(batches, count, total, range(count))

    def shared(self, processes: Processes) -> RowTable:
        """The rows of all processes, of which these are this process's part; parts are in the order of the ranks."""
        if processes.count == 1:
            return self
        counts, totals = zip(*processes.gather((self.count, self.total)), strict=True)
        first = sum(counts[: processes.rank])
        rows_here = range(first, first + self.count)
        return replace(self, count=sum(counts), total=sum(totals), rows_here=rows_here, processes=processes)

    @property
    def in_memory(self) -> bool:
        """Whether this process has all rows in memory."""
        return self.memory is not None and self.processes.count == 1

    def sum(self, block: Block, *, size: int, outputs: int = 1, copies: int = 1) -> list[Tensor]:
        """Σ over blocks of the tensors that ``block`` returns for some rows; they need no order.

        Args:
            block: a function of rows; it runs in several threads.
            size: how many numbers one of its answers holds.
            outputs: of the model.
            copies: for how many weight vectors at once the outputs are computed.
        """

        def of_this_process() -> list[Tensor]:
            return _total(_sum(batch, block, size=size, outputs=outputs, copies=copies) for batch in self.batches())

        if self.processes.count == 1:  # samplers ask 100,000 times
            return of_this_process()
        with self.processes.agreed():
            part = of_this_process()
        return self.processes.sum(part)

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The first process's values: each process may have rounded them in another way."""
        return self.processes.same(*values)

    def every(self, stride: int) -> RowTable:
        """The rows whose number is a multiple of ``stride``, in memory; each process has those of its part."""
        with self.processes.agreed():
            taken = self._copied(stride) if self.memory is None else self.memory.every(stride, self.rows_here.start)
        return RowTable.of(taken).shared(self.processes)

    def narrowed(self, columns: Tensor) -> RowTable:
        """The same rows with some of their columns, by a mask of shape (D,)."""

        def narrow(batch: Batch) -> Batch:
            return batch._replace(features=batch.features[:, columns])

        if self.memory is None:
            return replace(self, batches=lambda: map(narrow, self.batches()))
        memory = narrow(self.memory)
        return replace(self, batches=lambda: (memory,), memory=memory)

    def scaled(self, share: float) -> RowTable:
        """The same rows, which are in memory, with ``share`` times their weights."""
        assert self.memory is not None
        weights = self.memory.weights
        each = self.memory.features.new_ones(len(self.memory.features)) if weights is None else weights
        return RowTable.of(self.memory._replace(weights=each * share)).shared(self.processes)

    def held(self) -> Batch:
        """All rows.

        Raises:
            UnsupportedError: if they are not in memory.
        """
        if self.processes.count > 1:
            raise UnsupportedError(
                "posterior: expected 'map', 'laplace', 'variational' or 'mean_field', which are sums over the rows, "
                "where processes share these. Fit the others inside bs.distributed.alone()."
            )
        if self.memory is None:
            raise UnsupportedError(
                "posterior: expected one that is found by sums over the rows, for a table that is read in blocks: "
                "'map', 'laplace', 'variational' or 'mean_field'. The others need all rows in memory: fit a DataFrame "
                "of a part."
            )
        return self.memory

    def _copied(self, stride: int) -> Batch:
        """Every k-th row, copied in one pass into memory that is laid out for them before."""
        start, filled = self.rows_here.start, 0
        rows, taken = len(range(-start % stride, len(self.rows_here), stride)), None
        for batch in self.batches():
            part = batch.every(stride, start)
            if taken is None:
                taken = Batch(_room(part.features, rows), _room(part.targets, rows), part.weights)
                taken = taken if part.weights is None else taken._replace(weights=_room(part.weights, rows))
            end = filled + len(part.features)
            for place, values in zip(taken, part, strict=True):
                if place is not None and values is not None:
                    place[filled:end] = values
            filled, start = end, start + len(batch.features)
        assert taken is not None
        return taken


def _room(like: Tensor, rows: int) -> Tensor:
    return like.new_empty(rows, *like.shape[1:])


def blocks(count: int, columns: int, outputs: int = 1, copies: int = 1, first: int = 0) -> Iterator[slice]:
    """Ranges of rows that keep one block of the table in cache and its outputs for ``copies`` weights in bounds.

    Args:
        count: the number of the last row, and one.
        columns: D, of the table.
        outputs: C, of the model.
        copies: for how many weight vectors at once the outputs are computed.
        first: the number of the first row.
    """
    rows = max(LEAST_ROWS, CACHE_BYTES // (8 * max(1, columns)))
    rows = max(1, min(rows, WORK_BYTES // (8 * outputs * max(outputs, copies))))
    for start in range(first, count, rows):
        yield slice(start, min(start + rows, count))


def _sum(batch: Batch, block: Block, *, size: int, outputs: int, copies: int) -> list[Tensor]:
    """Σ over blocks of rows in memory, on all cores.

    The parts are the same on every machine and are added in order, so that the sum is, to the last bit.
    """
    count, columns = batch.features.shape
    small = count * columns < PARALLEL_SIZE and count <= FEW
    if not count or (small and 8 * count * outputs * max(outputs, copies) <= WORK_BYTES):
        return list(block(batch))  # to start each operation twice would take more time than the cache saves

    def part(low: int, high: int) -> list[Tensor]:
        if low == high:  # the sum over no rows has a shape, too
            return list(block(batch.part(slice(low, high))))
        return _total(block(batch.part(rows)) for rows in blocks(high, columns, outputs, copies, low))

    parts = min(PARTS, count * columns // (SUMS_SHARE * max(1, size)))
    if count * columns < PARALLEL_SIZE or parts < 2:
        return part(0, count)
    bounds = [k * count // parts for k in range(parts + 1)]
    threads = torch.get_num_threads()
    if threads == 1:
        return _total(map(part, bounds[:-1], bounds[1:]))
    # torch's setting belongs to a thread, and new threads are born with the last one made: leaving puts that right.
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return _total(pool.map(part, bounds[:-1], bounds[1:]))


def _total(parts: Iterator[tuple[Tensor, ...]] | Iterator[list[Tensor]]) -> list[Tensor]:
    """Sums tuples of tensors, the first in place."""
    total = list(next(iter(parts)))
    for part in parts:
        torch._foreach_add_(total, list(part))
    return total
