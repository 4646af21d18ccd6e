"""Data in batches, whatever form it comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import (
    Inputs,
    as_tensor,
    checked_pair,
    map_arrays,
    map_tensors,
    pair_of,
    placed,
    refuse_graphs,
    take_rows,
)
from bayescope.network.shards import SAMPLER, Fingerprint, Shard, following, part_of, require_whole, shard_of
from bayescope.private_draws import drawn_privately
from bayescope.processes import present

# Rows of a batch that another process lends to one that has none.
LENT = 8
FORMS = LOADER, ARRAYS, DATA_SET, BATCHES = ("loader", "arrays", "data set", "list of batches")


# Rows of a data set that are read together where the caller says no number.
DATASET_ROWS = 256


def row_totals(*here: float) -> tuple[float, ...]:
    """Sums over all rows, in float64, of the sums that a process has found over those that it reads."""
    return present().sum_numbers(*here)


def row_total(here: Tensor) -> Tensor:
    """The sum over all rows of a tensor that a process has summed over those that it reads."""
    return present().sum([here])[0]


T = TypeVar("T")


class RowsByPlace(Protocol):
    """What has a length and gives rows by their places, as a data set of Hugging Face does."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


# A loader, a data set, a pair (X, y), a dict with its targets, a list of batches, or a function that gives such: see
# `Batches`.
Data = Iterable[Any] | Dataset[Any] | Mapping[str, Any] | RowsByPlace | Callable[[], Iterable[Any]]


def row_parts(here: T) -> list[T]:
    """What each process has found over the rows that it reads, by rank: one entry where one process reads all rows."""
    return present().gather(here)


@final
class _Passes(IterableDataset[Any]):
    """Batches, by a function that starts a pass over them."""

    def __init__(self, start: Callable[[], Iterable[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return iter(self._start())


@final
class _Rows(Dataset[Any]):
    """The rows of an object that has a length and gives dicts or tuples by their places, such as those of datasets."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Any:
        row = self._rows[place]
        if isinstance(row, Mapping):
            return {name: as_tensor(value) for name, value in row.items()}
        return tuple(map_arrays(value) for value in row)


def as_data(data: Any) -> Any:
    """Data in a form that torch knows: rows by their places as a ``Dataset``, passes over batches as a ``DataLoader``.

    Raises:
        InputTypeError: if the data can be read once only.
    """
    if isinstance(data, Iterator):
        raise InputTypeError(
            f"data: expected batches that can be read in several passes, got a {type(data).__name__}, which is empty "
            "after one. Give list(batches), or a function without arguments that returns the batches again."
        )
    refuse_graphs(data)
    if isinstance(data, Dataset | DataLoader | Mapping | Sequence) or hasattr(data, "__array__"):
        return data
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data):
        return _Rows(data) if isinstance(data[0], Mapping | tuple | list) else data
    if callable(data) and not isinstance(data, type | nn.Module):
        return DataLoader(_Passes(data), batch_size=None, generator=torch.Generator())
    return data


@final
class Batches:
    """Pairs (inputs, targets) of a data set, on the device and in the floating-point type of a network.

    Inputs are a tensor, a tuple of positional or a dict of keyword arguments of the module's ``forward``, each with the
    rows on its first axis. Floating-point inputs get the type of the module's parameters; whole numbers (tokens,
    labels) stay whole, in arrays and data frames too: quantities that happen to be whole are given as
    ``X.astype(float)``.

    Where several processes fit together, each reads its own rows, and every row is read once; see `shards`. Batches are
    made by all of them at once then.

    Args:
        data: a ``DataLoader``; a ``Dataset``; a pair (X, y) of arrays, tensors or data frames, where X may be a dict or
            a tuple; a list of batches; or a function without arguments that starts a pass over batches. An object that
            gives dicts by their places, as those of Hugging Face's datasets do, is a ``Dataset``. A batch is a pair, or
            a dict with its targets under a name of `TARGETS`. Triples (X, y, weights of the rows) give targets that
            have the weight beside each number.
        module: the network.
        batch_size: rows at once where the data is not in batches already.

    Attributes:
        shard: which rows of all these are.

    Raises:
        InputTypeError: if the data has none of these forms.
        InputError: if it is empty, inputs and targets differ in length, or several processes read the same rows.
    """

    def __init__(self, data: Data, module: nn.Module, *, batch_size: int = 256) -> None:
        self._module = module
        self._processes = present()
        self._arrays: tuple[Inputs, Tensor] | None = None
        self._source: Iterable[Any] = ()
        self._rows: int | None = None
        self._seen: Fingerprint | None = None
        self._size = checks.count("batch_size", batch_size)
        self.shard = Shard()
        given = as_data(data)
        form = _form(given)
        if form not in FORMS:
            raise InputTypeError(f"data: expected a DataLoader, Dataset, pair (X, y) or list of batches, got {form}.")
        self._processes.meet("data", {"form": form})
        if form == LOADER:
            self._source = given if isinstance(given, DataLoader) else self._loader(given)
            self.shard = shard_of(self._processes, self._source)
        elif form == ARRAYS:
            self._take_arrays(given)
        else:
            local = part_of(self._processes, given, len(given))
            whole = local == slice(0, len(given))
            if form == DATA_SET:
                self._source = self._loader(given if whole else Subset(given, range(local.start, local.stop)))
                self._rows = local.stop - local.start
            else:
                self._source = given[local]
            if self._processes.count > 1:
                self._number(self.rows)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """One pass over the data. Batches without rows are passed over.

        Raises:
            InputError: if there is not a single row, a loader gives other numbers of rows than its sampler, or its
                sampler deals out a share to each of several processes, where this one reads by itself.
        """
        if self._processes.count == 1:
            require_whole(self._source)
        yield from self._read()

    def _read(self) -> Iterator[tuple[Inputs, Tensor]]:
        seen = Fingerprint()
        rows = given = 0
        for batch in self._pairs():
            given += len(batch[1])
            inputs, targets = self._counted(*batch, before=rows)
            if not len(targets):
                continue
            rows += len(targets)
            if self._unproven:
                seen.add(inputs, targets)
            device = next((p.device for p in self._module.parameters()), targets.device)
            yield placed(inputs, self._module), targets.to(device, non_blocking=True)
        if not rows and self._processes.count == 1:
            raise InputError("data: expected at least one row, got none.")
        self._check_given(given)
        self._rows, self._seen = rows, seen

    @property
    def rows(self) -> int:
        """N, the number of this process's rows: known for arrays, and after a full pass; otherwise a pass counts."""
        if self._rows is None:
            rows = sum(len(targets) for _, targets in self._pairs())
            self._rows = rows if self.shard.limit is None else min(rows, self.shard.limit)
        return self._rows

    @property
    def dropped(self) -> int:
        """How many rows a loader with ``drop_last`` leaves out of every pass, where that is known."""
        sampler = getattr(self._source, "batch_sampler", None)
        if not isinstance(sampler, BatchSampler) or not sampler.drop_last or not isinstance(sampler.sampler, Sized):
            return self.shard.missing
        due = len(sampler.sampler) if self.shard.limit is None else self.shard.limit
        return max(0, due - self.rows) + self.shard.missing

    def first(self) -> tuple[Inputs, Tensor]:
        """The first batch of this process.

        Raises:
            InputError: if it has no rows.
        """
        for batch in self._read():
            return batch
        raise InputError("data: expected at least one row on each process, got none here.")

    def example(self) -> tuple[Inputs, Tensor]:
        """The first batch; for a process without rows, some of another's. All processes ask for it at once.

        Raises:
            InputError: if there is not a single row.
        """
        local = next(iter(self), None)
        (lacking,) = self._processes.sum_numbers(local is None)
        if not lacking:
            assert local is not None
            return local
        lent = self._processes.gather(None if local is None else _few(*local))
        found = next((batch for batch in lent if batch is not None), None)
        if found is None:
            raise InputError("data: expected at least one row, got none.")
        if local is not None:
            return local
        device = next((p.device for p in self._module.parameters()), torch.device("cpu"))
        return placed(found[0], self._module), found[1].to(device)

    def lent(self) -> tuple[Inputs, Tensor] | None:
        """An example of rows for a process that may have none; ``None`` where one process reads all rows."""
        return self.example() if self._processes.count > 1 else None

    def sum(self, totals: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all rows of tensors that this process has summed over its rows."""
        return self._processes.sum(totals)

    def seed(self, source: torch.Generator) -> int:
        """A seed for draws that belong to rows: rows with numbers among those of all processes share one."""
        draw = self._processes.common_seed if self.shard.numbered else self._processes.own_seed
        return draw(source)

    def generator(self, source: torch.Generator) -> torch.Generator:
        """What draws for the rows of this process: the source itself, where one process reads all rows."""
        if self._processes.count == 1:
            return source
        return torch.Generator().manual_seed(self._processes.own_seed(source))

    def check_shards(self) -> None:
        """Checks after a pass that no row was read by two processes, as far as that is known; all ask at once.

        Raises:
            InputError: on all processes, if there was one.
        """
        if self._processes.count == 1:
            return
        proof = self._seen.hex() if self._unproven and self._seen and self._rows else None
        everyone = self._processes.gather((proof, self._rows or 0, self.shard.most))
        proofs = [proof for proof, _, _ in everyone if proof is not None]
        if len(set(proofs)) < len(proofs):
            raise InputError(f"data: expected other rows on each process, got the same on two of them. {SAMPLER}")
        rows, most = sum(rows for _, rows, _ in everyone), max(most or 0 for _, _, most in everyone)
        if most and rows > most:
            raise InputError(
                f"data: expected each of the {most} rows of the data set once, got {rows} in all: the sampler repeats "
                "some, to give every process as many. Take torch's DistributedSampler, whose repeats are known."
            )

    @property
    def _unproven(self) -> bool:
        """Whether nothing but the rows themselves can tell that processes read other ones."""
        return self._processes.count > 1 and not self.shard.numbered

    def _counted(self, inputs: Inputs, targets: Tensor, *, before: int) -> tuple[Inputs, Tensor]:
        """The rows of a batch that count, after this many before it."""
        left = len(targets) if self.shard.limit is None else max(0, self.shard.limit - before)
        if left >= len(targets):
            return inputs, targets
        return take_rows(inputs, slice(0, left)), targets[:left]

    def _take_arrays(self, data: object) -> None:
        inputs, targets = pair_of(data)
        inputs, targets = checked_pair(map_arrays(inputs), as_tensor(targets))
        if self._processes.count > 1:
            local = part_of(self._processes, (inputs, targets), len(targets))
            inputs, targets = take_rows(inputs, local), targets[local]
            self._number(len(targets))
        self._arrays, self._rows = (inputs, targets), len(targets)

    def _number(self, rows: int) -> None:
        if self._processes.count > 1:
            self.shard = following(self._processes, rows)

    def _loader(self, data: Any) -> DataLoader[Any]:
        return DataLoader(data, batch_size=self._size, generator=torch.Generator())

    def _check_given(self, given: int) -> None:
        """Where rows are left out by their place, there have to be as many as there are places."""
        sampler = getattr(self._source, "batch_sampler", None)
        if self.shard.given is None or getattr(sampler, "drop_last", False) or given == self.shard.given:
            return
        raise InputError(
            f"data: expected a row for each of the {self.shard.given} that the DistributedSampler names, got {given}: "
            "the loader's collate_fn or batch sampler makes other ones, and which of them are repeated is unknown. "
            "Take drop_last=False and a data set whose rows are those of the batches."
        )

    def _pairs(self) -> Iterator[tuple[Inputs, Tensor]]:
        if self._arrays is None:
            for batch in drawn_privately(self._source):
                inputs, targets = pair_of(batch)
                yield checked_pair(map_arrays(inputs), as_tensor(targets))
            return
        inputs, targets = self._arrays
        for start in range(0, len(targets), self._size):
            rows = slice(start, start + self._size)
            yield take_rows(inputs, rows), targets[rows]


def _form(data: object) -> str:
    """Which form the data have, of which there are four; anything else is called by its type."""
    if isinstance(data, DataLoader | IterableDataset):
        return LOADER
    if isinstance(data, Dataset):
        return DATA_SET
    if isinstance(data, Mapping) or (isinstance(data, tuple) and len(data) in (2, 3)):
        return ARRAYS
    batches = isinstance(data, list) and all(isinstance(batch, Mapping | tuple | list) for batch in data)
    return BATCHES if batches else type(data).__name__


def _few(inputs: Inputs, targets: Tensor) -> tuple[Inputs, Tensor]:
    """A few rows, to be sent to another process."""
    return map_tensors(lambda tensor: tensor[:LENT].detach().cpu().clone(), inputs), targets[:LENT].cpu().clone()
