"""The checkpoint of a training run: one file, replaced as a whole, that a run goes on from."""

from __future__ import annotations

import inspect
import io
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, final

import torch

from bayescope.errors import InputError
from bayescope.files import only_writer, staged, usable_folder
from bayescope.processes import Processes, form, present
from bayescope.training.facts import of_seed, of_start

# The share of a run's time that writing checkpoints may take.
SHARE = 0.05
# Values of this many characters are quoted as a whole.
SHORT = 80
# Arguments that a run may go on with other values of: how long it is, and what the result does not depend on; and those
# that other facts tell of, the data, the network and the seed.
FREE = frozenset(
    ("self", "model", "make_model", "data", "validation", "generator", "random_state", "epochs", "draws", "inplace",
     "checkpoint", "progress")
)  # fmt: skip
SEEDS = frozenset(("generator", "random_state", "seed"))

_call: ContextVar[Mapping[str, Any] | None] = ContextVar("call", default=None)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@contextmanager
def named(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """A call whose arguments are written into every checkpoint inside, and have to be the same in a run that goes on.

    Of calls inside each other the outermost one that has a checkpoint counts.

    Args:
        name: of the function.
        options: its arguments by name; those in `FREE` may differ. Seeds and first weights may not, unless there is no
            seed.
    """
    if _call.get() is not None or options.get("checkpoint") is None:
        yield
        return
    facts = {"fit": name, "bayescope": version("bayescope"), **of_seed(options), **of_start(options)}
    token = _call.set(facts | {key: _plain(key, value) for key, value in options.items() if key not in FREE})
    try:
        yield
    finally:
        _call.reset(token)


def resumable(fit: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function that has ``checkpoint=``, or an estimator's fit, whose calls are `named`."""
    parameters = inspect.signature(fit).parameters
    defaults = {name: each.default for name, each in parameters.items()}

    @wraps(fit)
    def naming(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        given: dict[str, Any] = {**defaults, **dict(zip(parameters, arguments, strict=False)), **options}
        estimator = given.get("self")
        if estimator is None:
            name = fit.__name__
        else:
            name, given = type(estimator).__name__, estimator.get_params(deep=False)
        with named(name, given):
            return fit(*arguments, **options)

    return naming


def _plain(name: str, value: Any) -> Any:
    """An option as a checkpoint holds it: numbers and words as they are, all else in words."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if key not in FREE}
    return form(name, value)


def refuse_other_call(path: Path) -> None:
    """Refuses the checkpoint of a run that was called otherwise than the present one is.

    Raises:
        InputError: if it is one, or none at all.
    """
    _content(path, {})


def path_of_all(path: str | Path | None) -> Path | None:
    """Rank 0's path, on all processes: it alone reads and writes, so that the others need not name one.

    Raises:
        InputError: on all processes, if others name one and rank 0 does not.
    """
    paths = present().gather(None if path is None else str(path))
    if paths[0] is None and any(paths):
        raise InputError(
            "checkpoint: expected a file on rank 0, which reads and writes it for all, got None there and one on "
            "another rank. Give it on rank 0, or on all ranks."
        )
    return None if paths[0] is None else Path(paths[0])


@final
class Checkpoint:
    """A file that a run is saved to and goes on from.

    It is written beside its place and renamed, so that a run that is killed while it saves leaves the state before. It
    holds tensors, numbers and text, and is read by ``torch.load(weights_only=True)``: reading one runs no code of it.
    Of several processes rank 0 alone reads and writes it, and tells the others; all methods but `due` are collective.

    Args:
        path: the file, the same on all processes; ``None`` for no checkpoint. Its folder is made if it is missing.
        run: what has to be the same in a run that goes on, such as the number of rows.
        clock: returns the present time in seconds.

    Raises:
        InputError: if a file cannot be written there.
    """

    def __init__(
        self, path: Path | None, run: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._run, self._clock = dict(run), clock
        self._saved, self._took = clock(), 0.0
        self._processes = present()
        if self._path is not None and self._processes.first:
            usable_folder("checkpoint", self._path.parent, [self._path.name])

    @property
    def wanted(self) -> bool:
        """Whether there is to be one."""
        return self._path is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """A stretch in which no other run writes the file.

        Raises:
            InputError: if another one is writing it.
        """
        with ExitStack() as stack:
            if self._path is not None and self._processes.first:
                stack.enter_context(only_writer("checkpoint", self._path))
            yield

    def load(self) -> dict[str, Any] | None:
        """The state to go on from, or ``None`` where there is none yet.

        Raises:
            InputError: if the file is no checkpoint, or is one of another run.
        """
        if self._path is None:
            return None
        state: dict[str, Any] | None = None
        if self._processes.first:
            state = _content(self._path, self._run) if self._path.exists() else None
        return state if self._processes.count == 1 else _from_first(self._processes, state)

    def due(self) -> bool:
        """Whether saving now keeps to the share of the time that it may take."""
        return self._path is not None and self._clock() - self._saved >= self._took / SHARE

    def save(self, state: Mapping[str, Any]) -> None:
        """Replaces the file.

        Raises:
            InputError: if it cannot be written, as on a full disk; the file before it stays.
        """
        if self._path is None:
            return
        begun = self._clock()
        if self._processes.first:
            with staged(self._path.parent) as stage:
                content = {"call": dict(_call.get() or {}), "run": self._run, "state": dict(state)}
                _write(content, stage / self._path.name)
        self._saved = self._clock()
        self._took = self._saved - begun


def _content(path: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """The state in a file, which has to be of this run and of the present call."""
    advice = f"Give what that run was given, name another file, or remove {path}."
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of an altered file torch's reader raises whatever its bytes lead to
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"checkpoint: expected the file of an earlier run, got {reason}. {advice}") from error
    whole = isinstance(found, dict) and found.keys() == {"call", "run", "state"}
    if not whole or not all(isinstance(part, dict) for part in found.values()):
        raise InputError(f"checkpoint: expected the file of an earlier run, got something else. {advice}")
    call = _call.get() or {}
    compared = [
        ("call", SEEDS & call.keys(), call),
        ("run", run, run),
        ("call", call, call),
    ]  # what is easiest to mend first
    for part, names, facts in compared:
        for name in names:
            mine, other = facts[name], found[part].get(name)
            if mine != other:
                raise InputError(f"checkpoint: expected one of a run with {_unlike(name, mine, other)}. {advice}")
    state: dict[str, Any] = found["state"]
    return state


def _write(content: object, path: Path) -> None:
    """`torch.save`, with the file's own error: torch tells of a full disk as of a place in an archive."""
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _from_first(processes: Processes, state: dict[str, Any] | None) -> dict[str, Any] | None:
    """What rank 0 has, on every process."""
    content = io.BytesIO()
    torch.save(state, content)
    written = torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)
    (size,) = processes.same(torch.tensor(len(written)))
    received = written if processes.first else torch.zeros(int(size), dtype=torch.uint8)
    processes.share([received])
    found: dict[str, Any] | None = torch.load(io.BytesIO(received.numpy().tobytes()), weights_only=True)
    return state if processes.first else found


def _unlike(name: str, mine: object, found: object) -> str:
    """A difference in words: the values where they are short, else the first parts that are not the same."""
    if max(len(repr(mine)), len(repr(found))) <= SHORT:
        return f"{name} = {mine!r}, got {found!r}"
    pairs = zip_longest(*(re.split(r",\s+|\n\s*", str(value)) for value in (mine, found)), fillvalue="nothing")
    here, there = next(pair for pair in pairs if pair[0] != pair[1])
    return f"the same {name}, got {there[:SHORT]!r} in the place of {here[:SHORT]!r}"
