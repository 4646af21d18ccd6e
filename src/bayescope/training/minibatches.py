"""Minibatches for training: rows of arrays in a new order each epoch, or whatever a loader gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.likelihoods.targets import warn_of_probabilities
from bayescope.network.batches import Batches
from bayescope.network.fingerprint import Fingerprint
from bayescope.network.forward import reading
from bayescope.network.inputs import call, explained, first_not_finite, map_tensors, take_rows
from bayescope.training.objective import canonical_targets

# Rows that are enough to see the network's outputs, or to trace it.
FEW = 8


class Rows(Protocol):
    """What a training loop reads, an epoch at a time.

    Attributes:
        generators: those that the order of the rows comes from, beside torch's own.
    """

    generators: list[torch.Generator]

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch, where they are cut here."""

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch, with canonical targets whose first axis is over the rows."""

    def require_finite(self) -> None:
        """Reads the inputs for NaN and infinity.

        Raises:
            InputError: if there is one.
        """


@final
class Minibatches:
    """The rows of a data set, an epoch at a time, as (inputs, canonical targets).

    Each epoch cuts a new permutation of the rows of arrays, or of a ``Dataset``, into minibatches of sizes that differ
    by one at most: none is left over with a single row, which batch norm could not take. Those of a ``DataLoader`` or a
    list of batches are the caller's own. Arrays lie on the module's device as a whole.

    Args:
        data: as in `Batches`.
        module: the network.
        likelihood: p(y∣f), whose form the targets get.
        batch_size: the most rows of a minibatch; ``None`` for all rows at once.
        generator: draws the permutations.

    Attributes:
        rows: N. The batches of a loader are counted in a pass of their own.
        outputs: C.
        batch_size: the most rows of a minibatch: that of the caller's loader, where it has one.
        few: a few rows and their targets, as they were given.
        generators: those that the order of the rows comes from, beside torch's own.

    Raises:
        UnsupportedError: if all rows are asked for at once and the data come in batches.
    """

    def __init__(
        self, data: Any, module: nn.Module, likelihood: Likelihood, batch_size: int | None, generator: torch.Generator
    ) -> None:
        self._module, self._likelihood, self._generator, self._size = module, likelihood, generator, batch_size
        self.batch_size: int | None = data.batch_size if isinstance(data, DataLoader) else batch_size
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
        elif isinstance(data, Dataset) and not isinstance(data, IterableDataset):  # which has an order of its own
            rows = len(data)  # type: ignore[arg-type]  # torch declares none, and cannot do without either
            places = _EvenBatches(rows, batch_size or rows, generator)
            data = DataLoader(data, batch_sampler=places, generator=generator)
        self._batches = Batches(data, module, batch_size=sys.maxsize if in_memory else batch_size or 1)
        with reading(module), torch.no_grad():
            inputs, targets = self._batches.first()
            self.few = take_rows(inputs, slice(0, FEW)), targets[:FEW]
            with explained(module, inputs):
                f = call(module, self.few[0])
                row = first_not_finite(inputs)
                # A network may know what to do with NaN.
                if row is not None and not call(module, take_rows(inputs, slice(row, row + 1))).isfinite().all():
                    raise _not_finite(row)
            warn_of_probabilities(likelihood, f)
            self._shape = f.shape
        self.rows = self._batches.rows
        self.outputs = self._shape[-1] if self._shape else 0
        self._whole = (inputs, self._canonical(targets)) if in_memory else None

    @property
    def in_memory(self) -> bool:
        """Whether the rows are arrays, which can be read in any order."""
        return self._whole is not None

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch, where they are cut here."""
        return min(self.rows, self._size or self.rows)

    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch."""
        if self._whole is None:
            before = 0
            for inputs, targets in self._batches:
                yield inputs, self._canonical(targets, before)
                before += len(targets)
            return
        inputs, targets = self._whole
        if self.rows == self.largest:
            yield inputs, targets
            return
        for chosen in permuted(self.rows, self.largest, self._generator):
            here = chosen.to(targets.device)
            yield _selected(inputs, here), targets.index_select(0, here)

    def in_order(self, most: int = 1024) -> Iterator[tuple[Any, Tensor]]:
        """The same rows as they come, in blocks, for a validation that no randomness should reach."""
        if self._whole is None:
            yield from self.epoch()
            return
        inputs, targets = self._whole
        for start in range(0, self.rows, most):
            rows = slice(start, start + most)
            yield take_rows(inputs, rows), targets[rows]

    def fingerprint(self) -> str:
        """What tells these rows from others, whatever their order, found without a trace on the order to come.

        It takes two passes over a loader: of rows that come out differently in each, as random augmentation makes them,
        nothing but that is known.
        """
        states = [generator.get_state() for generator in self.generators]
        with reading(self._module):
            found = self._read()
            again = found if self._whole is not None else self._read()
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        return found if found == again else "other rows in each pass"

    def _read(self) -> str:
        rows = Fingerprint()
        for inputs, targets in [self._whole] if self._whole is not None else self._batches:
            rows.add(inputs, targets)
        return rows.hex()

    def require_finite(self) -> None:
        """Reads the inputs for NaN and infinity.

        Raises:
            InputError: if there is one; the message has the first row, in the order in which the data came.
        """
        before = 0
        for inputs, targets in [self._whole] if self._whole is not None else self._batches:
            row = first_not_finite(inputs)
            if row is not None:
                raise _not_finite(before + row)
            before += len(targets)

    def _canonical(self, targets: Tensor, before: int = 0) -> Tensor:
        shape = torch.Size((len(targets), *self._shape[1:]))
        return canonical_targets(self._likelihood, targets, shape, before).to(targets.device)


@final
class _EvenBatches:
    """The places of the rows of each minibatch, for a ``DataLoader``."""

    def __init__(self, rows: int, batch_size: int, generator: torch.Generator) -> None:
        self._rows, self._size, self._generator = rows, batch_size, generator

    def __iter__(self) -> Iterator[list[int]]:
        for chosen in permuted(self._rows, self._size, self._generator):
            yield chosen.tolist()

    def __len__(self) -> int:
        return math.ceil(self._rows / self._size)


def permuted(rows: int, batch_size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """The places of all rows in a new order, cut into as few parts of at most ``batch_size`` as there can be."""
    return torch.randperm(rows, generator=generator).tensor_split(math.ceil(rows / batch_size))


def _not_finite(row: int) -> InputError:
    return InputError(
        f"data: expected finite inputs, got NaN or infinity, first in row {row}. Impute or leave out such rows."
    )


def _selected(inputs: Any, chosen: Tensor) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.index_select(0, chosen)
    return map_tensors(lambda tensor: tensor.index_select(0, chosen), inputs)
