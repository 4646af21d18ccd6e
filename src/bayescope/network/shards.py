"""Which rows of a data set are one process's, where several fit together, and what their numbers are among all rows.

Every row is to count once. What all processes were given alike is cut into contiguous parts; what differs between them
is each one's own part already. A `DistributedSampler` deals the rows out in turn, and repeats some of them until all
processes have as many: those come last, and are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from bayescope.errors import InputError
from bayescope.network.fingerprint import Fingerprint
from bayescope.network.inputs import as_tensor, count_rows, map_arrays, map_tensors, pair_of
from bayescope.private_draws import private_draws
from bayescope.processes import Processes

_Answer = TypeVar("_Answer")
# This many rows, evenly spread, tell whether arrays are the same on all processes; and this many of a data set that has
# to be asked for each.
LOOKED_AT, ASKED_FOR = 1024, 32
# What to do about a loader that gives every process all rows.
SAMPLER = (
    "Give the DataLoader a DistributedSampler: DataLoader(data, batch_size=…, sampler=DistributedSampler(data, "
    "shuffle=False))."
)


@final
@dataclass(frozen=True)
class Shard:
    """One process's rows.

    Attributes:
        first: the number of the process's first row among those of all, ...
        step: ... and how far it is from each to the next.
        numbered: whether the numbers are known.
        limit: how many rows of a pass count; those after them are other processes', repeated.
        given: how many rows a pass gives with those; ``None`` where that is not known.
        missing: how many rows of the data set no process reads.
        most: the rows of the data set, where reading more in all means that some count twice.
    """

    first: int = 0
    step: int = 1
    numbered: bool = True
    limit: int | None = None
    given: int | None = None
    missing: int = 0
    most: int | None = None


def part_of(processes: Processes, data: Any, count: int) -> slice:
    """Which of ``count`` rows of arrays or of a data set, or batches of a list, are the process's.

    Raises:
        InputError: if some processes have the same, and others not.
    """
    return processes.slice(count) if same_on_all(processes, data) else slice(0, count)


def following(processes: Processes, rows: int) -> Shard:
    """This many rows of the process, after those of the processes before it."""
    return Shard(sum(processes.gather(rows)[: processes.rank]))


def shard_of(processes: Processes, loader: Any) -> Shard:
    """What a loader, or a data set that gives its rows one after another, gives the process.

    Raises:
        InputError: if it gives all processes the same, or its sampler is for other processes than these.
    """
    if processes.count == 1:
        return Shard()
    sampler = _sampler(loader)
    shard = _dealt(processes, loader, sampler)
    plain = isinstance(sampler, SequentialSampler | RandomSampler) and not isinstance(loader.dataset, IterableDataset)
    local = _fingerprint(loader.dataset) if plain else None
    everyone = processes.gather(local)
    if local is not None and everyone.count(local) == processes.count:
        raise InputError(
            f"data: expected other rows on each of {processes.count} processes, got all on each. {SAMPLER}"
        )
    return shard


def require_whole(source: Any) -> None:
    """Checks that what one process reads by itself is no share of the rows, as that of a `DistributedSampler` is.

    Raises:
        InputError: if it is.
    """
    replicas = getattr(_sampler(source), "num_replicas", None) or 1
    if replicas > 1:
        raise InputError(
            f"data: expected all rows for a process that fits by itself, got a sampler that deals out a share to each "
            f"of {replicas}. Give the data set, or a DataLoader without that sampler."
        )


def _sampler(loader: Any) -> Any:
    return getattr(getattr(loader, "batch_sampler", None), "sampler", getattr(loader, "sampler", None))


def _dealt(processes: Processes, loader: Any, sampler: Any) -> Shard:
    """What a sampler for several processes deals out."""
    replicas, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    if replicas is None or rank is None:
        return Shard(numbered=False)
    if (replicas, rank) != (processes.count, processes.rank):
        raise InputError(
            f"data: expected a sampler for rank {processes.rank} of {processes.count}, got one for rank {rank} of "
            f"{replicas}. Make it after the process group, without num_replicas= and rank=."
        )
    rows = len(loader.dataset)
    if type(sampler).__iter__ is not DistributedSampler.__iter__:
        return Shard(numbered=False, most=rows)
    if sampler.drop_last:
        missing = max(0, rows - sampler.total_size) if processes.first else 0
        return Shard(rank, replicas, given=len(sampler), missing=missing)
    return Shard(rank, replicas, limit=max(0, -(-(rows - rank) // replicas)), given=len(sampler))


def same_on_all(processes: Processes, data: Any) -> bool:
    """Whether all processes were given the same arrays, list of batches or data set.

    Never so for a loader, whose sampler says what it reads, and for a data set that cannot be asked for a row.

    Raises:
        InputError: if some processes have the same, and others not.
    """
    if processes.count == 1 or isinstance(data, DataLoader | IterableDataset):
        return False
    local = _fingerprint(data)
    everyone = processes.gather(local)
    if everyone.count(local) == processes.count:
        return True
    for rank, one in enumerate(everyone):
        _, rows, _ = one
        if one in everyone[:rank] and rows:
            raise InputError(
                f"data: expected the same on all {processes.count} processes or another part on each, got the same on "
                f"ranks {everyone.index(one)} and {rank} alone."
            )
    return False


def set_epoch(data: Any, number: int) -> None:
    """Tells the sampler of a loader, if it asks for it, that another epoch begins: each has an order of its own."""
    sampler = _sampler(data)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(number)


def _fingerprint(data: Any) -> tuple[str, int, str]:
    """What tells data apart: their form, the number of their rows, and a hash of some of these."""
    if isinstance(data, TensorDataset):
        return _of_rows(data.tensors, torch.zeros(len(data)))
    if isinstance(data, Subset):
        form, _, whole = _fingerprint(data.dataset)
        places = np.asarray(data.indices, dtype=np.int64)
        return form, len(data), f"{whole} {sha256(places.tobytes()).hexdigest()}"
    if isinstance(data, Dataset):
        return _of_dataset(data)
    if isinstance(data, list):
        return _of_batches(data)
    inputs, targets = pair_of(data)
    return _of_rows(map_arrays(inputs), as_tensor(targets))


def _of_rows(inputs: Any, targets: torch.Tensor) -> tuple[str, int, str]:
    rows, found = count_rows(inputs), Fingerprint()
    some = torch.tensor(_spread(rows, LOOKED_AT), dtype=torch.int64)
    if rows:
        found.add(map_tensors(lambda tensor: tensor[some.to(tensor.device)], inputs), targets[some.to(targets.device)])
    shapes: list[Any] = []
    map_tensors(lambda tensor: shapes.append((tuple(tensor.shape), str(tensor.dtype))), inputs)
    return str((*shapes, tuple(targets.shape))), rows, found.hex()


def _of_batches(batches: Sequence[Any]) -> tuple[str, int, str]:
    parts = []
    for place in _spread(len(batches), ASKED_FOR):
        inputs, targets = pair_of(batches[place])
        parts.append(_of_rows(map_arrays(inputs), as_tensor(targets)))
    return "batches", len(batches), str(parts)


def _of_dataset(data: Dataset[Any]) -> tuple[str, int, str]:
    rows = len(data)  # type: ignore[arg-type]  # torch declares no length
    asked = with_same_draws(lambda: [data[place] for place in _spread(rows, ASKED_FOR)])
    found: list[str] = []
    for one in asked:
        row = Fingerprint()
        row.add(*_as_rows(one))
        found.append(row.hex())
    return type(data).__qualname__, rows, " ".join(found)


def _as_rows(one: Any) -> tuple[Any, torch.Tensor]:
    """One row of a data set as a batch of one."""
    numbers: list[torch.Tensor] = []

    def gather(value: Any) -> None:
        if isinstance(value, Mapping):
            gather(list(value.values()))
        elif isinstance(value, tuple | list):
            for entry in value:
                gather(entry)
        else:
            numbers.append(as_tensor(value).reshape(1, -1))

    gather(one)
    return tuple(numbers), torch.zeros(1)


def _spread(rows: int, most: int) -> list[int]:
    """Places of at most this many rows, the first and the last among them."""
    count = min(rows, most)
    return [place * (rows - 1) // max(1, count - 1) for place in range(count)]


def with_same_draws(ask: Callable[[], _Answer]) -> _Answer:
    """The answer of a data set, whose random augmentation draws the same numbers on all processes.

    The global states of Python and NumPy are written, and put back, where the data set draws from them itself.
    """

    def states() -> tuple[Any, ...]:
        found = np.random.get_state(legacy=False)  # noqa: NPY002 — data sets draw from the global state
        return random.getstate(), str(found), found["state"]["key"].tobytes()

    before, of_python, of_numpy = states(), random.getstate(), np.random.get_state()  # noqa: NPY002
    with private_draws():
        answer = ask()
    if states() == before:
        return answer
    try:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        with private_draws():
            return ask()
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
