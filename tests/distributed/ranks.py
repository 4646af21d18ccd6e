"""A function run by several processes at once that form a group of torch.distributed, as `torchrun` would start them.

To start a process takes seconds, most of them imports: one process makes these, and the others are forked from it.
They stay, waiting for the next function, with a new group for each, and end with the process that started them, and
once a function has failed.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any, final

import torch
from torch import distributed, multiprocessing

# Seconds: a process that waits for another is told by the group first, and ends by itself after the whole.
COLLECTIVE, WHOLE = 60.0, 100.0
# For the imports of a process, on a machine that does other work too.
START = 100.0
# What is imported once for all of them; the second is what torch's optimisers import when one is first used.
IMPORTED = ["bayescope", "torch._dynamo"]


@final
@dataclass(frozen=True)
class Outcome:
    """How one of the ranks ended.

    Attributes:
        value: what the function returned.
        error: the traceback of what it raised, or what its process did at its deadline; ``None`` where it returned.
        exitcode: ``None`` where the process lives on: the function returned or raised.
        seconds: from the call until then.
    """

    value: Any
    error: str | None
    exitcode: int | None
    seconds: float


def run(function: Callable[..., Any], ranks: int = 2, *args: Any, timeout: float = WHOLE) -> list[Any]:
    """What ``function(*args)`` returns on each of the ranks.

    Args:
        function: of a module's top level, so that another process can import it. Inside of it the group is initialised
            (gloo), torch has one thread, and warnings are errors.
        ranks: how many processes.
        args: to be pickled; the same for all.
        timeout: in seconds.

    Raises:
        AssertionError: with the tracebacks, if a rank has raised, died or taken too long.
    """
    outcomes = end(function, ranks, *args, timeout=timeout)
    failures = [
        f"rank {rank}, exit code {outcome.exitcode}:\n{outcome.error}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error is not None or outcome.exitcode is not None
    ]
    assert not failures, "\n".join(failures)
    return [outcome.value for outcome in outcomes]


def end(function: Callable[..., Any], ranks: int = 2, *args: Any, timeout: float = WHOLE) -> list[Outcome]:
    """How each rank ends that runs ``function(*args)``, also where it raises, dies or takes too long; see `run`."""
    workers = _started(ranks)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        for rank, worker in enumerate(workers):
            worker.pipe.send_bytes(pickle.dumps((function, args, rank, ranks, folder, timeout)))
        waiting, ended = dict(enumerate(workers)), {}
        while waiting:
            connection.wait([worker.pipe for worker in waiting.values()], timeout=1.0)
            seconds = time.monotonic() - started
            for rank, worker in list(waiting.items()):
                if seconds > timeout + 10:
                    worker.process.kill()
                    worker.process.join()
                if worker.pipe.poll() or not worker.process.is_alive():
                    ended[rank] = worker.outcome(Path(folder) / f"{rank}.txt", seconds)
                    del waiting[rank]
    if any(outcome.error is not None for outcome in ended.values()):
        _stop(workers)  # what they are left with is no start for the next function
    return [ended[rank] for rank in range(ranks)]


@final
@dataclass(frozen=True)
class _Worker:
    """A process that waits for functions, and the end of its pipe."""

    process: Any
    pipe: Any

    @classmethod
    def start(cls) -> _Worker:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # so that a process that has died is the end of the pipe
        return cls(process, ours)

    def outcome(self, log: Path, seconds: float) -> Outcome:
        """What the process has sent, or how it died."""
        try:
            value, error = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            return Outcome(None, log.read_text() if log.exists() else "died", self.process.exitcode, seconds)
        return Outcome(value, error, None, seconds)


_workers: list[_Worker] = []


def _started(ranks: int) -> list[_Worker]:
    """So many processes that have done their imports."""
    fresh = [_Worker.start() for _ in range(ranks - len(_workers))]
    for worker in fresh:
        assert worker.pipe.poll(START), f"a process has not started within {START:g} s"
        worker.pipe.recv_bytes()
    _workers.extend(fresh)
    return _workers[:ranks]


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        _workers.remove(worker)


def _serve(pipe: Any) -> None:
    """Runs functions until the process at the other end closes the pipe, or ends."""
    torch.set_num_threads(1)
    _loopback()
    pipe.send_bytes(b"ready")
    while True:
        try:
            job = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(_answered(job))


def _answered(job: bytes) -> bytes:
    try:
        function, args, rank, ranks, folder, timeout = pickle.loads(job)
        with _deadline(Path(folder) / f"{rank}.txt", timeout), _group(folder, rank, ranks), warnings.catch_warnings():
            warnings.simplefilter("error")
            return pickle.dumps((function(*args), None))
    except BaseException:  # noqa: BLE001 — the test is told
        return pickle.dumps((None, traceback.format_exc()))


@contextmanager
def _group(folder: str, rank: int, ranks: int) -> Iterator[None]:
    """Gloo's group of the ranks; the ranks leave it together, unless one has failed."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=COLLECTIVE),
    )  # fmt: skip
    try:
        yield
        distributed.barrier()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _deadline(log: Path, timeout: float) -> Iterator[None]:
    """The process ends by itself after so many seconds, and leaves the stacks of its threads."""
    with log.open("w") as file:
        faulthandler.dump_traceback_later(timeout, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _loopback() -> None:
    """Gloo finds its interface by the host's name, which not every machine can resolve."""
    names = {name for _, name in socket.if_nameindex()}
    for name in ("lo", "lo0"):
        if name in names:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
