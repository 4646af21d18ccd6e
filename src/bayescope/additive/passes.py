"""How the rows of a problem are read: all at once from memory, or block by block from files.

Whatever has a row for each of N rows is asked for by a slice of them, be it a tensor or a file: `RowValues`. All sums
over rows are made in one place, `RowPasses.summed`, which knows how many blocks there are and who else has some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import add
from typing import Protocol, final

import torch
from torch import Tensor

from bayescope.process_state import one_thread
from bayescope.processes import Processes
from bayescope.tables.row_files import RowFile

# The rows of a block of codes: numbers of twenty terms that stay in a processor's cache between two uses.
CODED_ROWS = 16_384
ALL = slice(None)
ONE = Processes()

Part = Callable[[slice], Sequence[Tensor]]


class RowValues(Protocol):
    """Numbers of each of N rows."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Those of some rows, shape (n, ...)."""


@final
@dataclass(frozen=True, eq=False)
class RowPasses:
    """The blocks that rows are read in, and the sums and values over all of them.

    Attributes:
        blocks: which of this process's rows are read together.
        in_files: whether the rows are in files, and what is computed from them is not kept in memory.
        processes: that have a part of the rows each.
    """

    blocks: tuple[slice, ...] = (ALL,)
    in_files: bool = False
    processes: Processes = ONE

    def kept(self, values: Callable[[slice], Tensor]) -> RowValues:
        """The values of each row, computed once: in memory, or in a temporary file."""
        if not self.in_files:
            return values(ALL)
        file: RowFile | None = None
        with one_thread():
            for rows in self.blocks:
                numbers = values(rows).numpy()
                file = file or RowFile(numbers.shape[1:])
                file.append(numbers)
        assert file is not None
        return file

    def computed(self, values: Callable[[slice], Tensor]) -> RowValues:
        """The values of each row: computed once in memory, and at each reading where rows are in files."""
        return Computed(values) if self.in_files else values(ALL)

    def summed(self, part: Part) -> list[Tensor]:
        """Σ of what ``part`` gives for each block, over the blocks of all processes."""
        total: list[Tensor] = []
        with one_thread() if self.in_files else nullcontext():  # blocks are small
            for rows in self.blocks:
                of_block = list(part(rows))
                total = list(map(add, total, of_block)) if total else of_block
        return self.processes.sum(total)

    def evenly(self, values: Callable[[slice], Tensor], most: int) -> Tensor:
        """Values (n, ...) of at most this many rows, the same distance apart, in the order of the processes."""
        (count,) = self.processes.sum_numbers(self.blocks[-1].stop or len(values(ALL)))
        step = -(-int(count) // most)
        chosen = torch.cat([values(rows)[-(rows.start or 0) % step :: step] for rows in self.blocks])
        return torch.cat(self.processes.gather(chosen))


@final
@dataclass(frozen=True, eq=False)
class Computed:
    """Numbers that are computed whenever they are asked for.

    Attributes:
        values: of the rows of a slice.
    """

    values: Callable[[slice], Tensor]

    def __getitem__(self, rows: slice) -> Tensor:
        return self.values(rows)
