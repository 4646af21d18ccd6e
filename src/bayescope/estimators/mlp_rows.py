"""The rows that a network is trained on: tensors in memory, or temporary files that epochs read in a new order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bayescope.estimators.mapped_rows import Canonical, MappedRows
from bayescope.likelihoods import Likelihood, Weighted
from bayescope.network.batches import row_parts
from bayescope.process_state import threads_for
from bayescope.processes import Processes
from bayescope.tables.row_files import RowFile
from bayescope.training.minibatches import OrderedLoader

# What is done to targets that are read, such as giving them their own unit.
Change: TypeAlias = Callable[[Tensor], Tensor]

# An epoch reads pieces of this many neighbouring rows in a new order, and shuffles the rows of this many pieces
# together.
PIECE_ROWS, WINDOW_PIECES = 4096, 16
# Rows at once where the order is the table's.
ORDERED_ROWS = 4096


@final
@dataclass(frozen=True, eq=False)
class NetworkRows:
    """The rows of a process's part of a table, or all rows in memory, as a network takes them.

    Attributes:
        inputs: float64, shape (N, D).
        targets: canonical, standardised, with the rows' weights as a last column where these are not all 1.
        mean_weight: of the rows of all processes; ``None`` where all count once.
        rows: of all processes.
        longest: the rows of the process that has most.
        processes: that have a part of the rows each.
        piece_rows: how many neighbouring rows of a file are read together.
        window_pieces: how many pieces are shuffled together.
    """

    inputs: Tensor | RowFile
    targets: Tensor | RowFile
    mean_weight: float | None
    rows: int
    longest: int
    processes: Processes
    piece_rows: int = PIECE_ROWS
    window_pieces: int = WINDOW_PIECES

    @classmethod
    def of(cls, mapped: MappedRows, values: Canonical) -> NetworkRows:
        """The rows; those of a table on disk are read once and written to files.

        Args:
            mapped: the rows and the map to the network's inputs.
            values: makes the likelihood's canonical form of targets, standardised.

        Raises:
            InputError: if a process has no row.
        """
        processes, weighted = mapped.source.processes, mapped.source.weighted
        if not mapped.rows:
            raise mapped.source.nobody()
        inputs, targets = _kept(mapped, values)
        counts, totals = zip(*mapped.source.of_parts((mapped.rows, mapped.total)), strict=True)
        mean = sum(totals) / sum(counts) if weighted else None
        return cls(inputs, targets, mean, sum(counts), max(counts), processes)

    @property
    def features(self) -> int:
        """The number of the inputs, D."""
        return self.inputs.shape[-1]

    def likelihood(self, plain: Likelihood) -> Likelihood:
        """p(y∣f) to the power of each row's weight, where these are not all 1."""
        return plain if self.mean_weight is None else Weighted(plain, self.mean_weight)

    def data(self, batch_size: int, seed: int, change: Change | None = None) -> tuple[Tensor, Tensor] | OrderedLoader:
        """The rows as the functions of the library take them: tensors, or a loader of rows in files.

        The loader has minibatches for training, and larger blocks in order for what sums over the rows.

        Args:
            batch_size: the most rows of a minibatch over all processes.
            seed: of the orders in which rows in files are read.
            change: done to the targets.
        """
        if not isinstance(self.inputs, RowFile):
            return self.read(slice(None), change)
        order = torch.Generator().manual_seed(seed)
        passes = _PassDataset(lambda: self._shuffled(batch_size, order, change))
        minibatches = DataLoader(passes, batch_size=None, generator=order)
        return OrderedLoader(_PassDataset(lambda: self._ordered(change)), minibatches)

    def some(self, most: int, seed: int) -> list[Tensor]:
        """Inputs and standardised targets of at most this many rows, as large a share of each process's rows.

        Args:
            most: how many.
            seed: what draws them.
        """
        rows_here = len(self.inputs)
        count = min(rows_here, math.ceil(rows_here * most / self.rows))
        drawn = torch.randperm(rows_here, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        if isinstance(self.inputs, RowFile):
            each = [slice(row, row + 1) for row in drawn.tolist()]
            parts = self._ordered(None) if count == rows_here else map(self.read, each)
            here = [torch.cat(part) for part in zip(*parts, strict=True)]
        else:
            here = [part[drawn] for part in self.read(slice(None))]
        return [torch.cat(part) for part in zip(*row_parts(here), strict=True)]

    def read(self, rows: slice, change: Change | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of neighbouring rows."""
        inputs, targets = self.inputs[rows], self.targets[rows]
        if change is None:
            return inputs, targets
        if self.mean_weight is None:
            return inputs, change(targets)
        return inputs, torch.cat([change(targets[:, :-1]), targets[:, -1:]], 1)

    def threads(self, batch_size: int, widest: int) -> AbstractContextManager[None]:
        """The threads that an operation may take in a network whose widest layer has this many units.

        A table on disk has very many small blocks. What is found from rows in memory knows its small operations.
        """
        in_files = isinstance(self.inputs, RowFile)
        return threads_for(max(batch_size, ORDERED_ROWS) * widest) if in_files else nullcontext()

    def notes(self) -> dict[str, str]:
        """What a summary says of how the rows were read."""
        if not isinstance(self.inputs, RowFile) or not isinstance(self.targets, RowFile):
            return {}
        size = (self.inputs.nbytes + self.targets.nbytes) / 2**20
        return {
            "table": f"read twice from disk, then from temporary files of {size:,.0f} MiB, freed since; each epoch in "
            f"a new order of pieces of {self.piece_rows:,} rows, shuffled {self.piece_rows * self.window_pieces:,} "
            "rows at a time"
        }

    def _ordered(self, change: Change | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks in the order of the table."""
        for start in range(0, len(self.inputs), ORDERED_ROWS):
            yield self.read(slice(start, start + ORDERED_ROWS), change)

    def _shuffled(
        self, batch_size: int, order: torch.Generator, change: Change | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As many minibatches on each process, of sizes that differ by one at most, in an order that is drawn."""
        rows = len(self.inputs)
        steps = math.ceil(self.longest / max(1, batch_size // self.processes.count))
        left: Sequence[Tensor] = ()
        windows = self._windows(order, change)
        for step in range(steps):
            size = rows * (step + 1) // steps - rows * step // steps
            while not left or len(left[0]) < size:
                window = next(windows)
                left = [torch.cat(pair) for pair in zip(left, window, strict=True)] if left else window
            yield left[0][:size], left[1][:size]
            left = [part[size:] for part in left]

    def _windows(self, order: torch.Generator, change: Change | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of several pieces, shuffled."""
        size = self.piece_rows
        pieces = torch.randperm(math.ceil(len(self.inputs) / size), generator=order)
        for some in pieces.split(self.window_pieces):
            read = [self.read(slice(at * size, (at + 1) * size), change) for at in some.tolist()]
            inputs, targets = (torch.cat(parts) for parts in zip(*read, strict=True))
            shuffled = torch.randperm(len(inputs), generator=order)
            yield inputs[shuffled], targets[shuffled]


def _kept(mapped: MappedRows, values: Canonical) -> tuple[Tensor | RowFile, Tensor | RowFile]:
    """Inputs and targets of this process's rows: the one block in memory, or files of all blocks."""
    files: tuple[RowFile, RowFile] | None = None
    for batch in mapped.batches(values):
        joined = batch.targets if batch.weights is None else Weighted.join(batch.targets, batch.weights)
        if mapped.values is not None:
            return batch.features, joined
        numbers = batch.features.numpy(), joined.numpy()
        files = files or (RowFile(numbers[0].shape[1:]), RowFile(numbers[1].shape[1:], numbers[1].dtype))
        for file, rows in zip(files, numbers, strict=True):
            file.append(rows)
    assert files is not None
    return files


@final
class _PassDataset(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches, by a function that starts a pass over them."""

    def __init__(self, start: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._start()
