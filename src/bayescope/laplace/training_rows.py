"""A sample of the training rows that is the same in whatever order, batches or processes they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from bayescope.network.batches import row_parts
from bayescope.network.inputs import Inputs, map_tensors, tensors

# The most rows that are kept, and the most bytes of them.
ROWS = 512
BYTES = 64 * 2**20


# Some of the rows that a network was trained on, as pairs (inputs, targets): the rows of one shape together, in the
# order of their hashes. Of several processes each holds those that it read.
TrainingRows = tuple[tuple[Inputs, Tensor], ...]


class _HashedRows(NamedTuple):
    """Rows of a batch, with the hash of each on the CPU."""

    hashes: Tensor
    inputs: Inputs
    targets: Tensor

    def take(self, chosen: Tensor) -> _HashedRows:
        rows = chosen.nonzero()[:, 0]
        return _HashedRows(
            self.hashes[rows],
            map_tensors(lambda tensor: tensor[rows.to(tensor.device)], self.inputs),
            self.targets[rows.to(self.targets.device)],
        )


@final
class RowSample:
    """Keeps the labelled rows with the smallest hashes that are added.

    Args:
        rows: how many at most.
        size: bytes that they take at most.
    """

    def __init__(self, rows: int = ROWS, size: int = BYTES) -> None:
        self._parts: list[_HashedRows] = []
        self._limit, self._bytes = rows, size

    def add(self, hashes: Tensor, inputs: Inputs, targets: Tensor, labelled: Tensor | None) -> None:
        """Adds the rows of a batch by their hashes, int64 of shape (N,).

        Args:
            hashes: one for each row.
            inputs: of the network.
            targets: of shape (N, ...).
            labelled: which of the targets are labels, of their shape; ``None`` for all.
        """
        size = sum(tensor.nbytes for tensor in tensors(inputs)) // len(targets)
        self._limit = min(self._limit, max(1, self._bytes // max(1, size)))
        self._parts.append(_HashedRows(hashes.cpu(), inputs, targets))
        every = torch.cat([part.hashes for part in self._parts])
        wanted = torch.ones(len(every), dtype=torch.bool)
        if labelled is not None:
            wanted[len(every) - len(targets) :] = labelled.flatten(1).any(1) if labelled.ndim > 1 else labelled
        rows = wanted.nonzero()[:, 0]
        chosen = torch.zeros_like(wanted)
        chosen[rows[every[rows].argsort(stable=True)[: self._limit]]] = True
        self._keep(chosen)

    def over_all(self) -> TrainingRows:
        """This process's rows among those with the smallest hashes of all processes."""
        read_here = torch.cat([part.hashes for part in self._parts] or [torch.zeros(0, dtype=torch.int64)])
        gathered = row_parts((read_here.tolist(), self._limit))
        every = sorted(value for hashes, _ in gathered for value in hashes)
        limit = min(limit for _, limit in gathered)
        self._keep(read_here <= every[min(limit, len(every)) - 1] if every else read_here < 0)
        return tuple(self._joined())

    def _keep(self, chosen: Tensor) -> None:
        masks = chosen.split([len(part.hashes) for part in self._parts])
        self._parts = [part.take(mask) for part, mask in zip(self._parts, masks, strict=True) if mask.any()]

    def _joined(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The rows, those of one shape in one batch."""
        alike: dict[tuple[torch.Size, ...], list[_HashedRows]] = {}
        for part in self._parts:
            shapes = tuple(tensor.shape[1:] for tensor in (*tensors(part.inputs), part.targets))
            alike.setdefault(shapes, []).append(part)
        for parts in alike.values():
            columns = [torch.cat(same) for same in zip(*(tensors(part.inputs) for part in parts), strict=True)]
            order = torch.cat([part.hashes for part in parts]).argsort(stable=True)  # whatever order they came in
            columns = [column[order.to(column.device)] for column in columns]
            targets = torch.cat([part.targets for part in parts])
            yield _filled(parts[0].inputs, iter(columns)), targets[order.to(targets.device)]


def _filled(inputs: Inputs, columns: Iterator[Tensor]) -> Inputs:
    """The inputs with other tensors in the place of theirs, in order."""
    return map_tensors(lambda _: next(columns), inputs)
