"""Minibatches for training: rows of arrays in a new order each epoch, or whatever a loader gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import Likelihood, warn_of_probabilities
from bayescope.network import Batches, reading
from bayescope.network.batches import as_data
from bayescope.network.inputs import Inputs, call, explained, first_not_finite, map_tensors, take_rows, tensors
from bayescope.network.shards import Fingerprint, require_same_function, same_on_all, set_epoch
from bayescope.private_draws import Cut
from bayescope.processes import alone, present
from bayescope.training.facts import digest
from bayescope.training.objective import canonical_targets
from bayescope.training.stack import for_each

_Value = TypeVar("_Value")

# Rows that are enough to see the network's outputs, or to trace it.
FEW = 8


@final
class OrderedLoader(DataLoader[Any]):
    """Rows as they come, in blocks, for whatever sums over them; training reads the same rows in another order.

    A sum over the rows, as a curvature is, asks for no order: in blocks of thousands of rows it is spared the calls of
    many minibatches.

    Args:
        blocks: the rows as they come, (inputs, targets).
        minibatches: the same rows in a new order at each pass.

    Attributes:
        minibatches: what `Minibatches` reads.
    """

    def __init__(self, blocks: IterableDataset[Any], minibatches: DataLoader[Any]) -> None:
        super().__init__(blocks, batch_size=None, generator=torch.Generator())
        self.minibatches = minibatches


@final
class Minibatches:
    """The rows of a data set, an epoch at a time, as (inputs, canonical targets).

    Each epoch cuts a new permutation of the rows of arrays, or of a ``Dataset``, into minibatches of sizes that differ
    by one at most: none is left over with a single row, which batch norm could not take. Those of a ``DataLoader`` or a
    list of batches are the caller's own. Arrays lie on the module's device as a whole.

    Under several processes that have all been given the same arrays, ``Dataset`` or list of batches, the minibatches
    are those of a single process, each cut into the processes' parts. Loaders, and data that differ between processes,
    are parts already, with an order of each process's own.

    Args:
        data: as in `Batches`; of an `OrderedLoader` its minibatches.
        module: the network.
        likelihood: p(y∣f), whose form the targets get.
        batch_size: the most rows of a minibatch of all processes; ``None`` for all rows at once.
        generator: draws the permutations; alike on all processes.

    Attributes:
        likelihood: p(y∣f).
        rows: N, over all processes. The batches of a loader are counted in a pass of their own.
        outputs: C.
        batch_size: the most rows of a minibatch: that of the caller's loader, where it has one.
        few: a few of this process's rows and their targets, as they were given; another's, for a process without rows,
            which tell it the shapes and are not its own.
        generators: those that the order of the rows comes from, beside torch's own.
        shared: whether every process has all rows, of which it reads a part.
        cut: where the rows that were given last are in a minibatch of all processes; ``None`` for one of their own.

    Raises:
        UnsupportedError: if all rows are asked for at once and the data come in batches.
    """

    def __init__(
        self, data: Any, module: nn.Module, likelihood: Likelihood, batch_size: int | None, generator: torch.Generator
    ) -> None:
        self._module, self.likelihood = module, likelihood
        self._processes = present()
        self.cut: Cut | None = None
        self._blocks = data if isinstance(data, OrderedLoader) else None
        if isinstance(data, OrderedLoader):
            data = data.minibatches
        data = as_data(data)
        if isinstance(data, TensorDataset) and len(data.tensors) in (2, 3):
            data = data.tensors
        in_memory = isinstance(data, Mapping | tuple)
        self.in_batches = not in_memory and (not isinstance(data, Dataset) or isinstance(data, IterableDataset))
        self.resize(batch_size)
        if isinstance(data, DataLoader):
            self.batch_size = data.batch_size
        if not in_memory and batch_size is None:
            raise UnsupportedError(
                f"data: expected (X, y) for steps on all rows at once, got a {type(data).__name__}. Give the arrays, "
                "or take an optimizer that steps on minibatches."
            )
        self.shared = same_on_all(self._processes, data)
        if self._processes.count > 1 and not self.shared:
            generator = torch.Generator().manual_seed(generator.initial_seed() + self._processes.rank)
        self.generators = [generator]
        self._orders, self._members = [generator], 0
        self._chosen: Tensor | None = None
        self._source = data
        self._whole: tuple[Inputs, Tensor] | None = None
        self._batches = self._read_by(data, generator, in_memory=in_memory)
        with reading(module), torch.no_grad():
            inputs, targets = self._batches.example()
            require_same_function(module, inputs)
            self._look(inputs, targets)
            if in_memory:
                local = slice(0, self._batches.rows)  # none of those that are lent
                self._whole = take_rows(inputs, local), self._canonical(targets)[local]
        self.rows = self._count()
        self.outputs = self._shape[-1] if self._shape else 0

    def resize(self, batch_size: int | None) -> None:
        """Take another size of the minibatches that are cut here."""
        self.batch_size = self._size = batch_size

    def stack(self, orders: Sequence[torch.Generator], chosen: Tensor | None = None) -> None:
        """From now on an epoch is for M networks: inputs (B, M, …), targets (B, M·S, …), with S positions in a row.

        Args:
            orders: a generator for the order of the rows of each network. Data in batches have one order for all.
            chosen: which rows each network is trained on, shape (M, N), as the bootstrap draws them; ``None`` for all.
        """
        self._members, self._chosen = len(orders), chosen
        if self.in_memory:
            self.generators = self._orders = list(orders)

    def _read_by(self, data: Any, generator: torch.Generator, *, in_memory: bool) -> Batches:
        if isinstance(data, DataLoader):
            self.generators += [data.generator] if data.generator is not None else []
        elif not in_memory and not self.in_batches:
            data = DataLoader(data, batch_sampler=_RowPlaces(self), generator=generator)
        size = sys.maxsize if in_memory else self._size or 1
        if not self.shared:
            return Batches(data, self._module, batch_size=size)
        with alone():  # the rows are cut here
            return Batches(data, self._module, batch_size=size)

    def _look(self, inputs: Inputs, targets: Tensor) -> None:
        """Takes some first rows, which the network has to be able to read."""
        module = self._module
        self.few = take_rows(inputs, slice(0, FEW)), targets[:FEW]
        with explained(module, inputs):
            f = call(module, self.few[0])
            row = first_not_finite(inputs)
            # A network may know what to do with NaN.
            if row is not None and not call(module, take_rows(inputs, slice(row, row + 1))).isfinite().all():
                raise _not_finite(row)
        warn_of_probabilities(self.likelihood, f)
        self._shape = f.shape

    @property
    def in_memory(self) -> bool:
        """Whether the rows are arrays, which can be read in any order."""
        return self._whole is not None

    @property
    def largest(self) -> int:
        """The rows of the largest minibatch, where they are cut here: of all processes if they share it."""
        size, rows = self._size, self._cut_from
        if size is not None and not self.shared:
            size = math.ceil(size / self._processes.count)
        return min(rows, size or rows)

    @property
    def steps(self) -> int:
        """How many minibatches an epoch has on this process, where they are cut here."""
        return math.ceil(self._cut_from / max(1, self.largest))

    @property
    def batches(self) -> int | None:
        """How many batches an epoch has, on the process that has most; ``None`` where a loader does not know."""
        try:
            number = len(self._source) if self.in_batches else self.steps
        except TypeError:
            number = None
        known = [each for each in self.of_parts(number) if each is not None]
        return max(known) if len(known) == self._processes.count else None

    @property
    def _cut_from(self) -> int:
        """The rows that minibatches are cut from: all of them, or this process's own."""
        if self._whole is not None:
            return len(self._whole[1])
        return self.rows if self.in_batches else len(self._source)

    def epoch(self, number: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """The minibatches of an epoch, of which several processes have a part each, or minibatches of their own.

        Args:
            number: of the epoch, from 0.

        Raises:
            InputError: if a loader gives other numbers of rows than in the pass that counted them.
        """
        if self._whole is not None and (self._chosen is not None or self._cut_from > self.largest):
            yield from map(self._taken, self.places())
            return
        for inputs, targets in self._in_batches(number) if self._whole is None else self._at_once(*self._whole):
            if self._members:
                yield for_each(inputs, self._members), for_each(targets, self._members).flatten(1, 2)
            else:
                yield inputs, targets

    def places(self) -> Iterator[Tensor]:
        """Where this process's rows of each minibatch are, shape (orders, B): those of an epoch in a new order."""
        rows = self._cut_from
        if self._whole is not None and rows == self.largest:
            orders = [[torch.arange(rows)] * bool(rows) for _ in self._orders]
        else:
            orders = [list(permuted(rows, self.largest, generator)) for generator in self._orders]
        for places in zip(*orders, strict=True):
            together = torch.stack(places) if len(places) > 1 else places[0][None]
            yield together[:, self._part(together.shape[1])] if self.shared else together

    def _at_once(self, inputs: Inputs, targets: Tensor) -> Iterator[tuple[Inputs, Tensor]]:
        """All rows in memory as one minibatch, if there are any."""
        if len(targets):
            local = self._part(len(targets))
            yield take_rows(inputs, local), targets[local]

    def _taken(self, places: Tensor) -> tuple[Inputs, Tensor]:
        """The rows in memory at places of shape (orders, B)."""
        inputs, targets = self.whole()
        chosen = places if self._chosen is None else torch.take_along_dim(self._chosen, places, 1)
        here = chosen.flatten().to(targets.device)

        def take(tensor: Tensor) -> Tensor:
            found = tensor.index_select(0, here)
            return found.unflatten(0, chosen.shape).transpose(0, 1) if self._members else found

        found = take(targets)
        return map_tensors(take, inputs), found.flatten(1, 2) if self._members else found

    def in_order(self, most: int = 1024) -> Iterator[tuple[Inputs, Tensor]]:
        """The same rows as they come, in blocks, for a validation that no randomness should reach.

        Several processes have a part of each block; one that has no row of a block passes it over.
        """
        if self._blocks is not None:
            yield from ((inputs, self._canonical(targets)) for inputs, targets in self._blocks)
            return
        if self._whole is None:
            for inputs, targets in self._in_batches(0):
                if self.cut is None or self.cut.count:
                    yield inputs, targets
            return
        inputs, targets = self._whole
        for start in range(0, len(targets), most):
            count = min(most, len(targets) - start)
            local = self._processes.slice(count) if self.shared else slice(0, count)
            self.cut = Cut(count, local) if self.shared else None
            rows = slice(start + local.start, start + local.stop)
            if local.start < local.stop:
                yield take_rows(inputs, rows), targets[rows]

    def whole(self) -> tuple[Inputs, Tensor]:
        """All rows that this process has in memory, with canonical targets."""
        assert self._whole is not None
        return self._whole

    def targets(self) -> Tensor:
        """The canonical targets of all rows that this process reads, positions counted as rows."""
        return self.joined(lambda _, targets: targets.flatten(0, 1))

    def joined(self, function: Callable[[Inputs, Tensor], Tensor]) -> Tensor:
        """What a function gives for this process's rows as they come, in one piece: shape (0, …) if it has none.

        Args:
            function: of inputs and canonical targets, with rows on the first axis of what it gives.
        """
        found = [function(inputs, targets) for inputs, targets in self.in_order()]
        if found:
            return torch.cat(found)
        inputs, targets = self.few
        return function(inputs, self._canonical(targets))[:0]

    def of_parts(self, value: _Value) -> list[_Value]:
        """A value from each part of the rows: from this process alone, or from all that fit together."""
        return self._processes.gather(value)

    def _part(self, rows: int) -> slice:
        """This process's rows of a minibatch, or one of another's where it has none: no rows at all are no batch."""
        if not self.shared:
            return slice(0, rows)
        self.cut = Cut(rows, self._processes.slice(rows))
        return self.cut.local if self.cut.count else slice(0, 1)

    def _in_batches(self, number: int) -> Iterator[tuple[Inputs, Tensor]]:
        if self._processes.count > 1:
            set_epoch(self._source, number)
        before = 0
        for inputs, targets in self._batches:
            local = self._part(len(targets)) if self.in_batches else slice(0, len(targets))
            yield take_rows(inputs, local), self._canonical(targets[local], before + local.start)
            before += len(targets)
        if self._processes.count == 1 and before != self.rows:
            raise InputError(
                f"data: expected {self.rows} rows in every epoch, as in the pass that counted them, got {before}. "
                "Give a loader that starts again at each pass."
            )

    def _count(self) -> int:
        """The number of rows of all processes, N."""
        if self._processes.count == 1:
            return self._batches.rows
        if self.shared and isinstance(self._source, Dataset):
            next(iter(self._batches))  # draws from the generator what the pass of a single process draws
            return len(self._source)  # type: ignore[arg-type]
        if self.shared:
            return self._batches.rows
        local = sum(len(targets) for _, targets in self._batches)
        self._batches.check_shards()
        return round(self._processes.sum_numbers(local)[0])

    def fingerprint(self) -> str:
        """What tells these rows from others, found without a trace on the order to come.

        Of arrays every bit and the order count. A loader may shuffle: its rows count in any order. They are read twice,
        and where they differ, as by random augmentation, nothing but that is known. Of rows that several processes have
        a part of each, rank 0 tells.
        """
        if self._whole is not None:
            inputs, targets = self._whole
            return digest([*tensors(inputs), targets])
        states = [generator.get_state() for generator in self.generators]
        with reading(self._module):
            found, again = self._read(), self._read()
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        return found if found == again else "other rows in each pass"

    def _read(self) -> str:
        rows = Fingerprint()
        for inputs, targets in self._batches:
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
        return canonical_targets(self.likelihood, targets, shape, before).to(targets.device)


@final
class _RowPlaces:
    """The places of the rows of each minibatch, for a ``DataLoader``."""

    def __init__(self, rows: Minibatches) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[list[int]]:
        return (places[0].tolist() for places in self._rows.places())

    def __len__(self) -> int:
        return self._rows.steps


def permuted(rows: int, batch_size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """The places of all rows in a new order, cut into as few parts of at most ``batch_size`` as there can be."""
    return torch.randperm(rows, generator=generator).tensor_split(math.ceil(rows / batch_size)) if rows else []


def _not_finite(row: int) -> InputError:
    return InputError(
        f"data: expected finite inputs, got NaN or infinity, first in row {row}. Impute or leave out such rows."
    )
