"""Several processes that fit together: which rows are whose, and whether all have the same data and the same network.

Every row is to count once. What all processes were given alike is cut into contiguous parts; what differs between them
is each one's own part already. A `DistributedSampler` deals the rows out in turn, and repeats some of them until all
processes have as many: those come last, and are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
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
from bayescope.network.forward import reading
from bayescope.network.inputs import (
    Inputs,
    as_tensor,
    call,
    count_rows,
    explained,
    leaves,
    map_arrays,
    map_tensors,
    pair_of,
    placed,
    tensors,
)
from bayescope.network.interception import Args, Function, Kwargs, observed
from bayescope.private_draws import private_draws
from bayescope.processes import Processes, present

_Answer = TypeVar("_Answer")
# This many rows, evenly spread, tell whether arrays are the same on all processes; and this many of a data set that has
# to be asked for each.
LOOKED_AT, ASKED_FOR = 1024, 32
# What to do about a loader that gives every process all rows.
SAMPLER = (
    "Give the DataLoader a DistributedSampler: DataLoader(data, batch_size=…, sampler=DistributedSampler(data, "
    "shuffle=False))."
)
# Odd constants of 64 bits, as in SplitMix64 (Steele, Lea and Flood 2014): wrapping products of them scatter the bits.
GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
# Sums over the same weights differ by rounding where processes use other numbers of threads, which is far below this.
SAME = 1e-9
# Outputs differ by rounding, more so between kinds of processors: by less than this power of the coarsest type's
# precision, relative to the largest output. That is 1.7e-3 in float32, also where a GPU multiplies in TF32.
POWER = 0.4
# Rows of the first process that every process runs its network on.
ROWS = 8
# Calls that may name a device by its number.
MOVES = ("to", "cuda")


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


def part_of(processes: Processes, data: object, count: int) -> slice:
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


def require_whole(source: object) -> None:
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


def _sampler(loader: object) -> Any:
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


def same_on_all(processes: Processes, data: object) -> bool:
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


def set_epoch(data: object, number: int) -> None:
    """Tells the sampler of a loader, if it asks for it, that another epoch begins: each has an order of its own."""
    sampler = _sampler(data)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(number)


def _fingerprint(data: object) -> tuple[str, int, str]:
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


def _of_rows(inputs: Inputs, targets: Tensor) -> tuple[str, int, str]:
    rows, found = count_rows(inputs), Fingerprint()
    some = torch.tensor(_spread(rows, LOOKED_AT), dtype=torch.int64)
    if rows:
        found.add(map_tensors(lambda tensor: tensor[some.to(tensor.device)], inputs), targets[some.to(targets.device)])
    shapes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors(inputs)]
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
    found = []
    for one in asked:
        (row := Fingerprint()).add(tuple(as_tensor(value).reshape(1, -1) for value in leaves(one)), torch.zeros(1))
        found.append(row.hex())
    return type(data).__qualname__, rows, " ".join(found)


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


@final
class Fingerprint:
    """The sum of a hash of each row over all rows that were added, modulo 2⁶⁴.

    A row is hashed as the numbers of its inputs and its target in float32, so that models of either precision see the
    same data. Integer arithmetic wraps exactly: neither order nor batch size tells.
    """

    def __init__(self) -> None:
        self._total = self._rows = 0

    def add(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Adds the rows of a batch, and returns the hash of each, shape (N,), int64."""
        row = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
        for place, tensor in enumerate((*tensors(inputs), targets)):
            row = _scattered(row + _row_sums(tensor.detach().to(targets.device), place))
        self._total = (self._total + int(row.sum())) % 2**64
        self._rows += len(targets)
        return row

    def over(self, processes: Processes) -> Fingerprint:
        """That of the rows of all processes."""
        whole = Fingerprint()
        for total, rows in processes.gather((self._total, self._rows)):
            whole._total, whole._rows = (whole._total + total) % 2**64, whole._rows + rows
        return whole

    def hex(self) -> str:
        """The fingerprint as text, with the number of rows."""
        return f"{self._total:016x}-{self._rows}"


def _row_sums(tensor: Tensor, place: int) -> Tensor:
    """Σ_j c_j bits_j for each row, with an odd constant c_j for each column."""
    flat = tensor.reshape(len(tensor), -1)
    bits = (flat.to(torch.float32) + 0.0).contiguous().view(torch.int32).to(torch.int64)  # −0 is 0
    columns = torch.arange(1, flat.shape[1] + 1, device=flat.device) + place * 2**32
    return (bits * (_scattered(columns * GOLDEN) | 1)).sum(1)


def _scattered(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, with shifts that keep the sign."""
    x = (x ^ (x >> 30)) * FIRST
    x = (x ^ (x >> 27)) * SECOND
    return x ^ (x >> 31)


def require_same_shapes(module: nn.Module) -> None:
    """Checks that the parameters and buffers have the same names, shapes and types on all processes.

    Raises:
        InputError: on all processes, with the first one that differs.
    """
    processes = present()
    if processes.count > 1:
        forms = {name: f"{tuple(tensor.shape)} {_dtype(tensor)}" for name, tensor in _held(module).items()}
        _require_alike("parameters and buffers", processes.gather(forms))


def require_same_weights(module: nn.Module, *, private: bool = False) -> None:
    """Checks that all processes have the same weights and buffers; of a single one there is nothing to check.

    Args:
        module: the network.
        private: whether it is a copy that nobody else holds. Buffers are then rank 0's everywhere, as they are with
            `DistributedDataParallel`, under which the statistics of batch norm differ between processes.

    Raises:
        InputError: on all processes, with the first parameter or buffer that differs.
    """
    processes = present()
    if processes.count == 1:
        return
    require_same_shapes(module)
    buffers = dict(module.named_buffers())
    everyone = processes.gather({name: _sums(tensor) for name, tensor in _held(module).items()})
    for rank, sums in enumerate(everyone):
        for name, theirs in sums.items():
            if not (private and name in buffers) and not _alike(everyone[0][name], theirs):
                raise InputError(
                    f"model: expected the same weights and buffers on all {processes.count} processes, got others in "
                    f"{name!r} on rank {rank} than on rank 0. Load the same state_dict everywhere, or let "
                    "DistributedDataParallel share them; its buffers, such as the statistics of batch norm, differ "
                    "after a training until rank 0's are broadcast."
                )
    if private:
        processes.share(list(buffers.values()))


def require_same_function(module: nn.Module, inputs: Inputs) -> None:
    """Checks that all processes make the same calls to torch on rank 0's first rows, and get the same outputs.

    Outputs are not compared where the network draws random numbers of its own.

    Args:
        module: the network, with the same weights on all processes.
        inputs: some rows of this process.

    Raises:
        InputError: on all processes, with the first call that differs, or the outputs.
    """
    processes = present()
    if processes.count == 1:
        return
    lent = processes.gather([tensor[:ROWS].detach().cpu() for tensor in tensors(inputs)])
    _require_alike("inputs", [{"number of tensors": str(len(each))} for each in lent])
    first = iter(lent[0])
    common = placed(map_tensors(lambda _: next(first), inputs), module)
    made: dict[str, str] = {}
    coarsest = [0.0]

    def note(func: Function, args: Args, kwargs: Kwargs, result: object) -> None:
        """Notes a call that returns a tensor: its name, and the shapes and options that it was given.

        Numbers with a fraction are left out: computed from rows, they differ by rounding, and the outputs show them.
        Devices are left out: each process may have another one.
        """
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if found:
            name = getattr(func, "__name__", type(func).__name__)
            given = [_described(leaf) for leaf in tree_leaves((args, kwargs))]
            made[f"call {len(made) + 1}"] = f"{name}({', '.join(given[: 1 if name in MOVES else None])})"
        coarsest.extend(torch.finfo(leaf.dtype).eps for leaf in found if leaf.is_floating_point())

    def answer() -> Tensor:
        return call(module, common).detach().cpu().double()

    def answer_observed() -> Tensor:
        made.clear()
        with observed(note):
            return answer()

    with reading(module), torch.no_grad(), explained(module, common):
        answers = [with_same_draws(answer), with_same_draws(answer_observed)]
    random = not torch.equal(*answers) and not answers[0].isnan().any()
    digests = processes.gather(sha256(str(made).encode()).hexdigest())
    if len(set(digests)) > 1:
        _require_alike("calls to torch", processes.gather(made))
    everyone = processes.gather((bool(random), max(coarsest), answers[0]))
    if any(drawn for drawn, _, _ in everyone):
        return
    outputs = [each for *_, each in everyone]
    _require_alike("outputs", [{"shape": str(tuple(each.shape))} for each in outputs])
    tolerance = max(eps for _, eps, _ in everyone) ** POWER
    largest = max(outputs[0][outputs[0].isfinite()].abs().tolist(), default=0.0)
    for rank, each in enumerate(outputs):
        if not torch.allclose(each, outputs[0], rtol=tolerance, atol=tolerance * largest, equal_nan=True):
            raise InputError(
                f"model: expected the same outputs for the same rows on all {processes.count} processes, got others on "
                f"rank {rank} than on rank 0, by up to {float((each - outputs[0]).abs().max()):.3g}. Run the same code "
                "with the same constants on every rank."
            )


def _require_alike(what: str, everyone: list[Mapping[str, str]]) -> None:
    """Checks that texts by name are the same on all processes."""
    for rank, theirs in enumerate(everyone):
        for ours, other in zip_longest(everyone[0].items(), theirs.items(), fillvalue=("", "")):
            if ours != other:
                one, another = (" ".join(each) or "none" for each in (ours, other))
                raise InputError(
                    f"model: expected the same {what} on all {len(everyone)} processes, got {one} on rank 0 and "
                    f"{another} on rank {rank}. Make the same network by the same code on every rank."
                )


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {_dtype(value)}"
    if isinstance(value, str):
        return repr(value.partition(":")[0])  # of "cuda:1" the type
    return repr(value) if value is None or isinstance(value, bool | int) else type(value).__name__


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _held(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _sums(tensor: Tensor) -> list[float]:
    """Σ θ, Σ |θ| and Σ θ²."""
    values = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
    sums = [part.sum(dtype=torch.float64) for part in (values, values.abs(), values.square())]
    return torch.stack(sums).tolist()


def _alike(one: list[float], other: list[float]) -> bool:
    """Whether sums differ by no more than rounding. A NaN among them is for the pass over the data to report."""
    scales = one[1:2] + one[1:]  # Σ |θ| for Σ θ
    return not any(abs(a - b) > SAME * scale for a, b, scale in zip(one, other, scales, strict=True))
