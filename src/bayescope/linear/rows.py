"""Sums over the rows of a table, a block at a time, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.process_state import SMALL, one_thread

# A block of the table and what is computed from it stay in a core's cache: the product of a block with itself then
# runs at the processor's speed and never waits for memory. Wide tables still get enough rows for a matrix product.
CACHE_BYTES = 3 * 2**19
LEAST_ROWS = 1024
# What one block may take beside the table: outputs of many weight vectors at once, Λ of many classes.
WORK_BYTES = 32 * 2**20
# A table that is not small is cut into parts that are summed side by side, each by one thread, if their sums take
# little memory beside it.
PARALLEL_SIZE = SMALL
# Above so many rows, what an operation leaves for the next one is no longer in cache, however few the columns.
FEW = 16_384
PARTS = 16
SUMS_SHARE = 16

Block = Callable[[slice], tuple[Tensor, ...]]


@final
@dataclass(frozen=True)
class Rows:
    """The rows of a table with N rows and D columns, for models with C outputs.

    Attributes:
        count: N.
        columns: D.
        outputs: C.
    """

    count: int
    columns: int
    outputs: int = 1

    def blocks(self, copies: int = 1) -> Iterator[slice]:
        """Ranges that keep one block of the table in cache and its outputs for ``copies`` weights in bounds."""
        return self._blocks(0, self.count, copies)

    def are_one_block(self, copies: int = 1) -> bool:
        """Whether the table is small: to start each operation twice would take more time than the cache saves."""
        outputs = self.outputs * max(self.outputs, copies)
        small = self.count * self.columns < SMALL and self.count <= FEW
        return small and 8 * self.count * outputs <= WORK_BYTES

    def sum(self, block: Block, *, size: int, copies: int = 1) -> list[Tensor]:
        """Σ over blocks of the tensors that ``block`` returns for a range of rows; they need no order.

        The parts are the same on every machine and are added in order, so that the sum is, to the last bit.

        Args:
            block: a function of a range of rows; it runs in several threads.
            size: how many numbers one of its answers holds.
            copies: for how many weights at once it computes outputs.
        """
        parts = min(PARTS, self.count * self.columns // (SUMS_SHARE * max(1, size)))
        if self.count * self.columns < PARALLEL_SIZE or parts < 2:
            return self._sum(block, 0, self.count, copies)

        def part(low: int, high: int) -> list[Tensor]:
            return self._sum(block, low, high, copies)

        bounds = [k * self.count // parts for k in range(parts + 1)]
        threads = torch.get_num_threads()
        if threads == 1:
            return _total(map(part, bounds[:-1], bounds[1:]))
        # torch's setting belongs to a thread, and new threads are born with the last one made: leaving puts that right.
        with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return _total(pool.map(part, bounds[:-1], bounds[1:]))

    def _sum(self, block: Block, low: int, high: int, copies: int) -> list[Tensor]:
        if low == high:  # the sum over no rows has a shape, too
            return list(block(slice(low, high)))
        return _total(block(rows) for rows in self._blocks(low, high, copies))

    def _blocks(self, low: int, high: int, copies: int) -> Iterator[slice]:
        rows = max(LEAST_ROWS, CACHE_BYTES // (8 * max(1, self.columns)))
        rows = max(1, min(rows, WORK_BYTES // (8 * self.outputs * max(self.outputs, copies))))
        for start in range(low, high, rows):
            yield slice(start, min(start + rows, high))


def _total(parts: Iterator[tuple[Tensor, ...]] | Iterator[list[Tensor]]) -> list[Tensor]:
    """Sums tuples of tensors, the first in place."""
    total = list(next(iter(parts)))
    for part in parts:
        torch._foreach_add_(total, list(part))
    return total
