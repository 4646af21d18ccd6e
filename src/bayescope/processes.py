"""The processes that work on one fit: their sums, and how an error of one reaches the others.

They are those of torch.distributed's default group, where one is initialised (`torchrun` and
``torch.distributed.init_process_group``). Without one there is a single process, for which nothing here costs or
changes anything. Under a group every fit is collective: each process calls it, each with its share of the data, and all
of them end with the same result.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import partial, wraps
from hashlib import sha256
from importlib.metadata import version
from inspect import signature
from itertools import groupby
from types import CodeType
from typing import Any, ParamSpec, TypeVar, final

import numpy as np
import torch
from torch import Tensor, distributed

from bayescope import checks
from bayescope.errors import BayescopeWarning, InputError, ProcessError, UnsupportedError, warn
from bayescope.storage import MalformedError, fits, from_message, to_message

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# The variable of the environment that says how many seconds a process waits for the others, and how many it waits
# without it.
VARIABLE, SECONDS = "BAYESCOPE_TIMEOUT", 300.0
# A process that says that its message is longer is refused before anybody takes the memory for it.
MOST_BYTES = 2**32
SAME_CODE = "Start every rank with the same bayescope and the same script."
# What each process says that it is about to do: a name, and what has to be the same on all of them.
WORK = tuple[str, dict[str, str]]
# What has to be the same on all processes, whatever they call.
VERSIONS = {
    "version of bayescope": version("bayescope"),
    "version of torch": str(torch.__version__).partition("+")[0],  # a build for CPUs beside one for GPUs
}
# Tensors of one sum travel together, up to about this many bytes at once: the copy that this takes stays small.
BUCKET_BYTES = 2**26
# Arguments that `called` does not compare, since each process has its own or rank 0's is taken; and those of
# which it compares only whether they are given.
OWN = frozenset(
    ("self", "model", "make_model", "data", "generator", "random_state", "checkpoint", "memory", "progress")
)
GIVEN = frozenset(("validation",))

_alone: ContextVar[bool] = ContextVar("alone", default=False)
# The function that all processes are in.
_step: ContextVar[str] = ContextVar("step", default="")


@contextmanager
def alone() -> Iterator[None]:
    """What is called inside is this process's own affair: nothing is summed over processes or waits for another.

    Under an initialised process group of torch.distributed every fit is collective. A fit that one process makes by
    itself, such as an evaluation on rank 0, is called inside of this:

        if torch.distributed.get_rank() == 0:
            with bs.distributed.alone():
                q = bs.laplace(other, held_out, likelihood="categorical")

    It holds for the thread that it is called in. Predictions, evidences, samples and files do without: they never wait.
    """
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


@final
@dataclass(frozen=True)
class Processes:
    """The processes of a group, and which of them this is.

    Every method but `slice` and `agreed` is collective: each process has to call it, in the same order. For a single
    process each returns what it was given. Before they exchange tensors the processes meet: an error of one of them, or
    different work, ends all of them there.

    Attributes:
        rank: this process's place, from 0.
        count: how many there are.
        group: torch.distributed's group; ``None`` is the default one.
    """

    rank: int = 0
    count: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""
        return self.rank == 0

    def slice(self, n: int) -> slice:
        """This process's contiguous part of ``n`` things; the parts differ by one thing at most, and may be empty."""
        return slice(n * self.rank // self.count, n * (self.rank + 1) // self.count)

    def sum(self, tensors: Sequence[Tensor], *, meet: bool = True) -> list[Tensor]:
        """The sums over the processes, in the order given; equal to the last bit on all of them.

        Args:
            tensors: of the same shapes, types and kinds of device on every process.
            meet: whether the processes meet first. The steps of a training do not: their sums say who has failed.

        Raises:
            ProcessError: if another process has failed or died, or does other work.
        """
        if self.count == 1:
            return list(tensors)
        if meet:
            self.meet("sum", _shapes(tensors))
        return self._reduced(tensors, distributed.ReduceOp.SUM, "sum")

    def sum_numbers(self, *numbers: float) -> tuple[float, ...]:
        """The sums of numbers over the processes, in float64."""
        (total,) = self.sum([torch.tensor(numbers, dtype=torch.float64)])
        return tuple(total.tolist())

    def share(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Writes one process's tensors into those of all others.

        Args:
            tensors: of the same shapes and types on every process; they are written to, without a gradient.
            source: the rank whose tensors are taken.

        Raises:
            ProcessError: if another process has failed or died, or does other work.
        """
        if self.count > 1:
            self.meet("share", _shapes(tensors))
            self._broadcast(tensors, source)

    def same(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Rank 0's values. Unlike machines round alike sums in different ways, which may lead searches apart."""
        if self.count == 1:
            return values
        copies = tuple(value.detach().clone() for value in values)
        self.share(copies)
        return copies

    def common_seed(self, source: torch.Generator) -> int:
        """A seed that is the same on all processes: rank 0 draws it, the others' generators move on by as much."""
        (seed,) = self.same(torch.tensor(checks.seed_from(source)))
        return int(seed)

    def own_seed(self, source: torch.Generator) -> int:
        """A seed for this process, from rank 0's generator; for a single process `common_seed` itself.

        It is one of as many drawn seeds as there are processes: torch's generator ignores all but 32 bits of a seed, so
        that seeds with a large distance are no better than random ones.
        """
        common = self.common_seed(source)
        if self.count == 1:
            return common
        drawn = torch.Generator().manual_seed(common)
        return [checks.seed_from(drawn) for _ in range(self.count)][self.rank]

    def common_generator(self, local: torch.Generator) -> torch.Generator:
        """The generator itself, which continues from the state of rank 0's on every process."""
        if self.count > 1:
            local.set_state(*self.same(local.get_state()))
        return local

    def gather(self, value: _Result) -> list[Any]:
        """The values of all processes by rank, with tensors on the CPU.

        They travel as JSON and tensors, so that no process runs code that another one has sent.

        Args:
            value: what a file could hold; see `bayescope.storage`.

        Raises:
            ProcessError: also if a process sends something else, or more than `MOST_BYTES`.
            UnsupportedError: if a file could not hold the value, on all processes.
        """
        if self.count == 1:
            return [value]
        with self.agreed():
            message = to_message(value)
        self.meet("gathering", {})
        return self._gathered(message)

    def meet(self, name: str, forms: Mapping[str, str], error: BaseException | None = None) -> None:
        """Waits until every process is about to do the same, which takes one small message.

        Args:
            name: what this process is about to do.
            forms: what has to be the same on all processes, as texts by name.
            error: what this process has failed with instead.

        Raises:
            ProcessError: on all processes, with the rank and message of those that failed, or with what differs. If all
                have failed with the same error, that error is raised unchanged.
        """
        if self.count == 1:
            return
        digest = int.from_bytes(sha256(str((name, sorted(forms.items()))).encode()).digest()[:7])
        state = torch.tensor([int(error is not None), digest, -digest])
        (state,) = self._reduced([state], distributed.ReduceOp.MAX, "meeting")
        failed, most, least = state.tolist()
        if failed:
            messages = self._gathered(to_message(_message(error)))
            if error is not None and (len(set(messages)) == 1 or not isinstance(error, Exception)):
                raise error
            raise _failed(messages) from error
        if most != -least:
            work = self._gathered(to_message((name, dict(forms))))
            if not all(fits(each, WORK) for each in work):
                raise ProcessError(f"{name}: expected all processes to say what they do. {SAME_CODE}")
            _require_alike(work)

    def agree(self, error: BaseException | None) -> None:
        """Raises on all processes if one has failed.

        Args:
            error: what this process has failed with, or ``None``. A `ProcessError` is raised unchanged, since the
                others know of it or cannot be reached.

        Raises:
            ProcessError: as by `meet`.
        """
        if error is not None and (self.count == 1 or isinstance(error, ProcessError)):
            raise error
        self.meet("end", {}, error)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Work of each process by itself. If it fails on one, the others raise where they meet next."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 — of an interrupt, too, the others have to learn
            try:
                self.agree(error)
            except ProcessError:
                if isinstance(error, Exception):
                    raise
                raise error from None  # an interrupt, which counts for more than that the others are gone by then

    def _gathered(self, message: Tensor) -> list[Any]:
        """What the messages of all processes say, by rank."""
        sizes = torch.zeros(self.count, dtype=torch.int64)
        sizes[self.rank] = len(message)
        (sizes,) = self._reduced([sizes], distributed.ReduceOp.SUM, "sum")
        for rank, size in enumerate(sizes.tolist()):
            if not 0 < size <= MOST_BYTES:
                raise ProcessError(
                    f"processes: expected a message of at most {MOST_BYTES:,} bytes, got one of {size:,} from rank "
                    f"{rank}. {SAME_CODE}"
                )
        everyone = []
        for rank, size in enumerate(sizes.tolist()):
            theirs = message if rank == self.rank else torch.zeros(size, dtype=torch.uint8)
            self._broadcast([theirs], rank)
            try:
                everyone.append(from_message(theirs))
            except MalformedError as error:
                raise ProcessError(
                    f"processes: expected a message of bayescope from rank {rank}, got other bytes ({_line(error)}). "
                    f"{SAME_CODE}"
                ) from None
        return everyone

    def _reduced(self, tensors: Sequence[Tensor], operation: Any, work: str) -> list[Tensor]:
        options = distributed.AllreduceOptions()
        options.reduceOp = operation
        return self._in_buckets(tensors, work, options, lambda bucket, group: group.allreduce([bucket], options))

    def _broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        options = distributed.BroadcastOptions()
        options.rootRank = source
        shared = self._in_buckets(tensors, "share", options, lambda bucket, group: group.broadcast([bucket], options))
        if self.rank == source:
            return
        with torch.no_grad():
            for tensor, received in zip(tensors, shared, strict=True):
                tensor.detach().copy_(received)

    def _in_buckets(
        self, tensors: Sequence[Tensor], work: str, options: Any, begin: Callable[[Tensor, Any], Any]
    ) -> list[Tensor]:
        """Copies of the tensors after a collective that works in place on flat buckets of them."""
        done: list[Tensor] = [tensor.detach() for tensor in tensors]
        kinds = sorted(range(len(done)), key=lambda i: (str(done[i].dtype), str(done[i].device), i))
        for _, same in groupby(kinds, key=lambda i: (done[i].dtype, done[i].device)):
            for bucket in _bucketed(list(same), done):
                flat = torch.cat([done[i].reshape(-1) for i in bucket])
                staged = flat.to(self._device(flat.device))
                self._wait(work, options, partial(begin, staged))
                pieces = staged.to(flat.device).split([done[i].numel() for i in bucket])
                for i, piece in zip(bucket, pieces, strict=True):
                    local = piece if len(bucket) == 1 else piece.clone()  # none keeps the bucket
                    done[i] = local.reshape(done[i].shape)
        return done

    def _wait(self, work: str, options: Any, begin: Callable[[Any], Any]) -> None:
        """Takes part in a collective call of torch.distributed, and waits for the others no longer than `timeout`.

        Gloo itself has to give up by then as well: a call of its that still waits would hold the process at its end.
        """
        seconds = timeout()
        options.timeout = timedelta(seconds=seconds)
        if hasattr(options, "asyncOp"):  # torch 2.6 has calls that are always so
            options.asyncOp = True
        try:
            begin(self.group or distributed.group.WORLD).wait(options.timeout)
        except RuntimeError as error:
            during = f" of {_step.get()}" if _step.get() else ""
            raise ProcessError(
                f"processes: expected all to take part in a {work}{during} within {seconds:g} s, got: {_line(error)}. "
                "Another process has died or is stopped, or does other work than this one: look at what it said, and "
                "call every fit on every rank, or inside bs.distributed.alone(). Where a rank needs longer, set "
                f"{VARIABLE} to more seconds on all of them."
            ) from error

    def _device(self, device: torch.device) -> torch.device:
        """Where a tensor of a device has to be for the group's backend: NCCL takes tensors of its GPUs alone."""
        served = [pair.partition(":")[0] for pair in distributed.get_backend_config(self.group).split(",")]
        if device.type in served:
            return device
        return torch.device(served[0], torch.cuda.current_device()) if served[0] == "cuda" else torch.device(served[0])


def present(group: Any = None) -> Processes:
    """The processes of torch.distributed's default group, or of another; else this one alone.

    Args:
        group: of torch.distributed; ``None`` for the default one.
    """
    if _alone.get() or not distributed.is_available() or not distributed.is_initialized():
        return Processes()
    count = distributed.get_world_size(group)
    return Processes(distributed.get_rank(group), count, group) if count > 1 else Processes()


@contextmanager
def called(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """A function that all processes call: it begins and ends on all of them, or on none.

    Calls that differ end at once, and not when the group gives up waiting.

    Args:
        name: of the function.
        options: its arguments by name. Those in `OWN` may differ; those in `GIVEN` may differ unless one of them is
            ``None``; numbers in tensors and arrays may differ by rounding.

    Raises:
        ProcessError: on all processes, if they call different functions or with different options, or one fails.
    """
    processes = present()
    if processes.count == 1:
        yield
        return
    token = _step.set(name)
    try:
        forms = {key: form(key, value) for key, value in options.items() if key not in OWN}
        with processes.agreed():
            processes.meet(name, VERSIONS | forms)
            yield
        processes.agree(None)
    finally:
        _step.reset(token)


def collective(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes a function one that all processes call, with the same arguments; see `called`."""

    @wraps(function)
    def by_all(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if present().count == 1:
            return function(*args, **kwargs)
        call = signature(function).bind(*args, **kwargs)
        call.apply_defaults()
        options = {**call.arguments, **call.arguments.get("options", {})}
        options.pop("options", None)
        with called(function.__qualname__, options):
            return function(*args, **kwargs)

    return by_all


def same(*values: Tensor) -> tuple[Tensor, ...]:
    """Rank 0's values: unlike machines round in different ways, which may lead searches apart."""
    return present().same(*values)


def by_first(compute: Callable[[], _Result]) -> _Result:
    """What the first process computes by itself, for all of them; a value that a file could hold."""
    processes = present()
    if processes.count == 1:
        return compute()
    with alone():
        found = compute() if processes.first else None
    result: _Result = processes.gather(found)[0]
    return result


def same_value(value: _Result) -> _Result:
    """Rank 0's value, which a file could hold; its tensors are on the CPU."""
    return present().gather(value)[0]


def timeout() -> float:
    """How many seconds a process waits for the others: what `BAYESCOPE_TIMEOUT` says, else five minutes.

    Raises:
        InputError: if it says no positive number.
    """
    given = os.environ.get(VARIABLE, SECONDS)
    try:
        return checks.positive_number(VARIABLE, float(given))
    except ValueError:
        raise InputError(f"{VARIABLE}: expected a positive number of seconds, got {given!r}.") from None


def warn_once(message: str, category: type[BayescopeWarning]) -> None:
    """Warns on rank 0 alone, of what is the same on all processes.

    Args:
        message: what was expected, what was got and what to do.
        category: of the warning.
    """
    if present().first:
        warn(message, category)


def refuse_several(name: str, reason: str, advice: str) -> None:
    """Refuses to be called by several processes that fit together.

    Args:
        name: of the function.
        reason: why it cannot be spread over processes.
        advice: what else to do.

    Raises:
        UnsupportedError: if there are several.
    """
    count = present().count
    if count > 1:
        raise UnsupportedError(
            f"{name}: expected one process, got {count} that fit together: {reason}. Call it on one of them inside "
            f"bs.distributed.alone(), with all rows, or {advice}."
        )


def _message(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _failed(messages: Sequence[Any]) -> ProcessError:
    """The error that names the processes that have failed."""
    failed = [(rank, str(message).rstrip(".")) for rank, message in enumerate(messages) if message is not None]
    failures = [f"rank {rank} failed with {_printable(message)}" for rank, message in failed]
    return ProcessError(
        f"processes: expected all {len(messages)} to succeed; {'; '.join(failures)}. Mend that there: the others "
        "stopped with it."
    )


def _require_alike(work: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Checks that all processes are about to do the same with the same options."""
    first, options = work[0]
    for rank, (name, others) in enumerate(work):
        if name != first:
            raise ProcessError(
                f"processes: expected all {len(work)} to call the same, got {_printable(first)} on rank 0 and "
                f"{_printable(name)} on rank {rank}. Call every fit on every rank, or inside bs.distributed.alone()."
            )
        for option, form in options.items():
            other = others.get(option, "none")
            if other != form:
                raise ProcessError(
                    f"{name}: expected the same {option} on all {len(work)} processes, got {_printable(form)} on rank "
                    f"0 and {_printable(other)} on rank {rank}. Call it alike on every rank, or inside "
                    "bs.distributed.alone()."
                )


def _shapes(tensors: Sequence[Tensor]) -> dict[str, str]:
    return {"tensors": "; ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)}


def form(name: str, value: object) -> str:
    """A value of an option as a short text, by which those of two processes are compared."""
    if name in GIVEN:
        return "None" if value is None else "one"
    if name == "q":  # a posterior, of which the weights count
        return f"{type(value).__qualname__} of shape {tuple(getattr(getattr(value, 'location', None), 'shape', ()))}"
    return json.dumps(_in_order(value), default=lambda each: _in_order(_described(each)), ensure_ascii=False)


def _in_order(value: object) -> object:
    """The value with sorted dicts and floats to 12 digits.

    The order of a dict says when a key was added, and the last digits of a float which processor computed it.
    """
    if isinstance(value, float) and math.isfinite(value):
        rounded = float(f"{value:.12g}")
        return int(rounded) if rounded.is_integer() else rounded
    if isinstance(value, list | tuple):
        return [_in_order(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _in_order(value[key]) for key in sorted(value, key=str)}
    return value


def _described(value: object) -> object:
    """What JSON cannot hold: numbers by their shape and a sum, records by their fields, all else by its type."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        flat = value.detach().to("cpu", torch.float64).abs().flatten()
        total = f"{float(flat @ torch.arange(1.0, 1 + len(flat), dtype=torch.float64)):.6g}"
        return f"numbers of shape {tuple(value.shape)} with Σ n |v_n| = {total}" if value.ndim else float(total)
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    named = value if hasattr(value, "__qualname__") else type(value)
    name = named.__qualname__
    if str(named.__module__).partition(".")[0] not in ("bayescope", "builtins", "torch"):  # the caller's, by its code
        functions = vars(named).values() if isinstance(named, type) else [named]
        codes = [each.__code__ for each in functions if hasattr(each, "__code__")]
        name += f" {_hash(*codes)}" if codes else ""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: [getattr(value, field.name) for field in fields(value)]}
    return name


def _hash(*codes: CodeType) -> str:
    """What tells functions from others of their names: a hash of the instructions, also of functions inside."""
    held = [
        (each.co_code, each.co_names, [_hash(c) if isinstance(c, CodeType) else form("", c) for c in each.co_consts])
        for each in codes
    ]
    return sha256(str(held).encode()).hexdigest()[:8]


def _line(error: BaseException) -> str:
    """An error of torch in one line, without the place in its sources."""
    return _printable(re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]))[:200].rstrip(".")


def _printable(text: str) -> str:
    """A text of another process in one line, without what steers a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _bucketed(places: list[int], tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Places of tensors, consecutive ones together as long as they take no more than `BUCKET_BYTES`."""
    bucket: list[int] = []
    size = 0
    for place in places:
        extent = tensors[place].numel() * tensors[place].element_size()
        if bucket and size + extent > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(place)
        size += extent
    if bucket:
        yield bucket
