"""Minibatches for training: rows of arrays in a new order each epoch, or whatever a loader gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.inputs import call, map_tensors, take_rows
from bayescope.training.objective import canonical_targets

# Rows that are enough to see the network's outputs, or to trace it.
FEW = 8


@final
class Minibatches:
    """The rows of a data set, an epoch at a time, as (inputs, canonical targets).

    Arrays lie on the module's device as a whole, and each epoch cuts a new permutation of the rows into minibatches of
    sizes that differ by one at most: the last is never a single row, which batch norm could not take. Those of a
    ``DataLoader`` or a list of batches are the caller's own.

    Args:
        data: as in `Batches`.
        module: the network.
        likelihood: p(y∣f), whose form the targets get.
        batch_size: the most rows of a minibatch; ``None`` for all rows at once.
        generator: draws the permutations.

    Attributes:
        rows: N. The batches of a loader are counted in a pass of their own.
        outputs: C.
        few: a few rows and their targets, as they were given.
        generators: those that the order of the rows comes from, beside torch's own.

    Raises:
        UnsupportedError: if all rows are asked for at once and the data come in batches.
    """

    def __init__(
        self, data: Any, module: nn.Module, likelihood: Likelihood, batch_size: int | None, generator: torch.Generator
    ) -> None:
        self._likelihood, self._generator, self._size = likelihood, generator, batch_size
        self.generators = [generator]
        if isinstance(data, TensorDataset) and len(data.tensors) == 2:
            data = data.tensors
        in_memory = isinstance(data, Mapping | tuple)
        if not in_memory and batch_size is None:
            raise UnsupportedError(
                f"data: expected (X, y) for steps on all rows at once, got a {type(data).__name__}. Give the arrays, "
                "or take an optimizer that steps on minibatches."
            )
        if isinstance(data, DataLoader):
            self.generators += [data.generator] if data.generator is not None else []
        elif isinstance(data, Dataset):
            data = DataLoader(data, batch_size=batch_size, shuffle=True, generator=generator)
        self._batches = Batches(data, module, batch_size=sys.maxsize if in_memory else 1)
        with reading(module), torch.no_grad():
            inputs, targets = self._batches.first()
            self.few = take_rows(inputs, slice(0, FEW)), targets[:FEW]
            self._shape = call(module, self.few[0]).shape
        self.rows = self._batches.rows
        self.outputs = self._shape[-1] if self._shape else 0
        self._whole = (inputs, self._canonical(targets)) if in_memory else None

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch, where they are cut here."""
        return min(self.rows, self._size or self.rows)

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch."""
        if self._whole is None:
            for inputs, targets in self._batches:
                yield inputs, self._canonical(targets)
            return
        inputs, targets = self._whole
        pieces = -(-self.rows // self.largest)
        if pieces == 1:
            yield inputs, targets
            return
        order = torch.randperm(self.rows, generator=self._generator).to(targets.device)
        for chosen in order.tensor_split(pieces):
            yield _selected(inputs, chosen), targets.index_select(0, chosen)

    def in_order(self, most: int = 1024) -> Iterator[tuple[Any, Tensor]]:
        """The same rows as they come, in blocks, for a validation that no randomness should reach."""
        if self._whole is None:
            yield from self.epoch()
            return
        inputs, targets = self._whole
        for start in range(0, self.rows, most):
            rows = slice(start, start + most)
            yield take_rows(inputs, rows), targets[rows]

    def _canonical(self, targets: Tensor) -> Tensor:
        shape = torch.Size((len(targets), *self._shape[1:]))
        return canonical_targets(self._likelihood, targets, shape).to(targets.device)


def _selected(inputs: Any, chosen: Tensor) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.index_select(0, chosen)
    return map_tensors(lambda tensor: tensor.index_select(0, chosen), inputs)
