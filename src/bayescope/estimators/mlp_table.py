"""A table on disk as a network is trained on it: read twice, then from temporary files, in a new order each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bayescope.estimators.base import as_tensor
from bayescope.estimators.inputs import require_encoded
from bayescope.estimators.table_rows import TableRows
from bayescope.likelihoods import Likelihood, Weighted
from bayescope.processes import present
from bayescope.tables.preprocessing import SPREAD_ROWS, EncodingName, Preprocessing, ScalingName, TableSeen
from bayescope.tables.row_files import RowFile
from bayescope.tables.suspicion import warn_of_numbers
from bayescope.training.minibatches import OrderedLoader

Canonical: TypeAlias = Callable[[np.ndarray], np.ndarray]

# An epoch reads pieces of so many neighbouring rows in a new order, and shuffles the rows of so many pieces together.
PIECE_ROWS, WINDOW_PIECES = 4096, 16
# Rows at once where the order is the table's.
ORDERED_ROWS = 4096


@final
@dataclass(frozen=True, eq=False)
class NetworkFiles:
    """The rows of a process's part of a table, as a network takes them.

    Attributes:
        inputs: float64, shape (N, D).
        targets: canonical, with the rows' weights as a last column where these are not all 1.
        mean_weight: of the rows of all processes; ``None`` where all count once.
        rows: of all processes.
        longest: the rows of the process that has most.
        count: of processes.
    """

    inputs: RowFile
    targets: RowFile
    mean_weight: float | None
    rows: int
    longest: int
    count: int

    @classmethod
    def of(
        cls, source: TableRows, values: Canonical, scaling: ScalingName | None, encoding: EncodingName
    ) -> tuple[Preprocessing, NetworkFiles]:
        """Reads a table twice: what its columns hold, and each row as numbers, which go to files.

        Args:
            source: the table.
            values: makes the likelihood's canonical form of targets.
            scaling: of numbers, as `Preprocessing` takes it.
            encoding: of labels, as `Preprocessing` takes it.

        Raises:
            InputError: if a column cannot be used, or a process has no row.
            OptionError: if the scaling or the encoding is unknown.
            UnsupportedError: for the encoding "target".
        """
        processes = source.processes
        seen = TableSeen(source.kinds, scaling=scaling, encoding=encoding)
        total, rows, plain = 0.0, 0, True
        for place, block in enumerate(source.blocks()):
            if place == 0:
                warn_of_numbers(block.columns)
            if len(block):
                weights = block.weights
                seen.add(block.columns, weights, block.rows)
                total, rows = total + float(weights.sum()), rows + len(weights)
                plain = plain and bool((weights == 1.0).all())
        if not rows:
            raise source.nobody()
        preprocessing = reduce(TableSeen.joined, processes.gather(seen)).preprocessing()
        each = processes.gather((rows, total, plain))
        everyone = sum(count for count, *_ in each)
        assert source.table is not None
        require_encoded(preprocessing, source.table, 2 * SPREAD_ROWS)
        mean = None if all(once for *_, once in each) else sum(mass for _, mass, _ in each) / everyone
        inputs, targets = _written(source, values, preprocessing, weighted=mean is not None)
        some = np.concatenate(processes.gather(_evenly(inputs)))
        counts = None if mean is None else np.concatenate(processes.gather(_evenly(targets)[:, -1]))
        preprocessing = preprocessing.with_spread(some, counts, sum(mass for _, mass, _ in each))
        longest = max(count for count, *_ in each)
        return preprocessing, cls(inputs, targets, mean, everyone, longest, processes.count)

    @property
    def features(self) -> int:
        return self.inputs.shape[0]

    def notes(self) -> dict[str, str]:
        """What a summary says of them."""
        size = (self.inputs.nbytes + self.targets.nbytes) / 2**20
        window = PIECE_ROWS * WINDOW_PIECES
        return {
            "table": f"read twice from disk, then from temporary files of {size:,.0f} MiB, freed since; each epoch in "
            f"a new order of pieces of {PIECE_ROWS:,} rows, shuffled {window:,} rows at a time"
        }

    def likelihood(self, plain: Likelihood) -> Likelihood:
        """p(y∣f) to the power of each row's weight, where these are not all 1."""
        return plain if self.mean_weight is None else Weighted(plain, self.mean_weight)

    def loader(self, batch_size: int, seed: int, standardised: Callable[[Tensor], Tensor]) -> OrderedLoader:
        """The rows: minibatches of at most so many over all processes for training, in order for what sums over them.

        Args:
            batch_size: the most rows of a minibatch.
            seed: of the orders, of which each pass of training draws a new one.
            standardised: makes of targets what the network is trained on.
        """
        order = torch.Generator().manual_seed(seed)
        each = max(1, batch_size // self.count)
        steps = math.ceil(self.longest / each)
        minibatches = DataLoader(_Shuffled(self, steps, order, standardised), batch_size=None, generator=order)
        return OrderedLoader(_Ordered(self, standardised), minibatches)

    def some(self, most: int, seed: int, standardised: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """At most so many rows of all processes, in memory: as large a share of each process's rows.

        Args:
            most: how many.
            seed: what draws them.
            standardised: makes of targets what the network is trained on.
        """
        rows_here = len(self.inputs)
        count = min(rows_here, math.ceil(rows_here * most / self.rows))
        drawn = torch.randperm(rows_here, generator=torch.Generator().manual_seed(seed))[:count].sort().values.tolist()
        blocks = [slice(start, start + ORDERED_ROWS) for start in range(0, rows_here, ORDERED_ROWS)]
        slices = blocks if count == rows_here else [slice(row, row + 1) for row in drawn]
        parts = [self.read(rows, standardised) for rows in slices]
        here = [torch.cat(part) for part in zip(*parts, strict=True)]
        inputs, targets = (torch.cat(part) for part in zip(*present().gather(here), strict=True))
        return inputs, targets

    def read(self, rows: slice, standardised: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of neighbouring rows."""
        targets = self.targets[rows]
        if self.mean_weight is None:
            return self.inputs[rows], standardised(targets)
        return self.inputs[rows], torch.cat([standardised(targets[:, :-1]), targets[:, -1:]], 1)


def _written(
    source: TableRows, values: Canonical, preprocessing: Preprocessing, *, weighted: bool
) -> tuple[RowFile, RowFile]:
    """Inputs and targets of all rows."""
    inputs = RowFile((len(preprocessing.names),))
    targets: RowFile | None = None
    for block in source.blocks():
        if not len(block):
            continue
        canonical = as_tensor(values(block.target))
        if weighted:
            canonical = Weighted.join(canonical, as_tensor(block.weights))
        targets = targets or RowFile(tuple(canonical.shape[1:]), canonical.numpy().dtype)
        inputs.append(preprocessing(block.columns))
        targets.append(canonical.numpy())
    assert targets is not None
    return inputs, targets


def _evenly(rows: RowFile) -> np.ndarray:
    """Rows in pieces evenly among all, shape (n, D)."""
    every = max(1, len(rows) // SPREAD_ROWS)
    starts = range(0, len(rows), every * PIECE_ROWS)
    return np.concatenate([rows.array(slice(start, start + PIECE_ROWS)) for start in starts])


@final
class _Ordered(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches in the order of the table."""

    def __init__(self, files: NetworkFiles, standardised: Callable[[Tensor], Tensor]) -> None:
        self._files, self._standardised = files, standardised

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._files.inputs), ORDERED_ROWS):
            yield self._files.read(slice(start, start + ORDERED_ROWS), self._standardised)


@final
class _Shuffled(IterableDataset[tuple[Tensor, Tensor]]):
    """A number of minibatches, of sizes that differ by one at most, in an order that is drawn at each pass."""

    def __init__(
        self, files: NetworkFiles, steps: int, order: torch.Generator, standardised: Callable[[Tensor], Tensor]
    ) -> None:
        self._files, self._order, self._standardised = files, order, standardised
        rows = len(files.inputs)
        self._sizes = [rows * (k + 1) // steps - rows * k // steps for k in range(steps)]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        left: Sequence[Tensor] = ()
        windows = self._windows()
        for size in self._sizes:
            while not left or len(left[0]) < size:
                window = next(windows)
                left = [torch.cat(pair) for pair in zip(left, window, strict=True)] if left else window
            yield left[0][:size], left[1][:size]
            left = [part[size:] for part in left]

    def _windows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of several pieces, shuffled."""
        count = len(self._files.inputs)
        pieces = torch.randperm(math.ceil(count / PIECE_ROWS), generator=self._order)
        for some in pieces.split(WINDOW_PIECES):
            read = [
                self._files.read(slice(at * PIECE_ROWS, (at + 1) * PIECE_ROWS), self._standardised)
                for at in some.tolist()
            ]
            inputs, targets = (torch.cat(parts) for parts in zip(*read, strict=True))
            shuffled = torch.randperm(len(inputs), generator=self._order)
            yield inputs[shuffled], targets[shuffled]
