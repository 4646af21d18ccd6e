"""How the rows of a problem are read: all at once from memory, or block by block from files.

Whatever has a row for each of N rows is asked for by a slice of them, be it a tensor or a file: `RowValues`. All sums
over rows are made in one place, `Passes.summed`, which knows how many blocks there are and who else has some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Part = Callable[[slice], Sequence[Tensor]]


class RowValues(Protocol):
    """Numbers of each of N rows."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Those of some rows, shape (n, ...)."""


class Passes(Protocol):
    """The blocks that rows are read in, and the sums and values over all of them."""

    @property
    def blocks(self) -> Sequence[slice]:
        """Which rows are read together."""

    @property
    def whole(self) -> bool:
        """Whether all rows are in memory, and none are elsewhere."""

    def kept(self, values: Callable[[slice], Tensor]) -> RowValues:
        """Numbers of all rows, computed once: in memory, or in a file."""

    def computed(self, values: Callable[[slice], Tensor]) -> RowValues:
        """The same, but where rows are not in memory computed whenever they are asked for."""

    def summed(self, part: Part) -> list[Tensor]:
        """Σ over blocks of what ``part`` gives for each."""

    def evenly(self, values: Callable[[slice], Tensor], most: int) -> Tensor:
        """Numbers of at most so many rows, the same distance apart: the values of a slice have shape (n, ...)."""


@final
@dataclass(frozen=True)
class InMemory:
    """All rows are in memory and read as one block."""

    blocks: tuple[slice, ...] = (slice(None),)
    whole: bool = True

    def kept(self, values: Callable[[slice], Tensor]) -> Tensor:
        return values(self.blocks[0])

    def computed(self, values: Callable[[slice], Tensor]) -> Tensor:
        return values(self.blocks[0])

    def summed(self, part: Part) -> list[Tensor]:
        """The one part there is."""
        return list(part(self.blocks[0]))

    def evenly(self, values: Callable[[slice], Tensor], most: int) -> Tensor:
        every = values(self.blocks[0])
        return every[:: -(-len(every) // most)]


@final
@dataclass(frozen=True, eq=False)
class Blockwise:
    """Rows that lie in files, read a block at a time; each process has a part of them.

    Attributes:
        blocks: which of this process's rows are read together.
        processes: that have a part each.
    """

    blocks: tuple[slice, ...]
    processes: Processes
    whole: bool = False

    def kept(self, values: Callable[[slice], Tensor]) -> RowFile:
        """The values of each row, written to a temporary file."""
        file: RowFile | None = None
        with one_thread():
            for rows in self.blocks:
                numbers = values(rows).numpy()
                file = file or RowFile(numbers.shape[1:])
                file.append(numbers)
        assert file is not None
        return file

    def computed(self, values: Callable[[slice], Tensor]) -> Computed:
        """The values of each row, computed again at each reading."""
        return Computed(values)

    def summed(self, part: Part) -> list[Tensor]:
        """The sums over the blocks of all processes."""
        total: list[Tensor] | None = None
        with one_thread():  # blocks are small
            for rows in self.blocks:
                own = list(part(rows))
                total = own if total is None else list(map(add, total, own))
        assert total is not None
        return self.processes.sum(total)

    def evenly(self, values: Callable[[slice], Tensor], most: int) -> Tensor:
        """Every so many-th row, those of a process after those of another."""
        (count,) = self.processes.sum_numbers(self.blocks[-1].stop)
        step = -(-int(count) // most)
        own = torch.cat([values(rows)[-rows.start % step :: step] for rows in self.blocks])
        return torch.cat(self.processes.gather(own))


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
