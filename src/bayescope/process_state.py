"""State of the process and of torch while our code runs: shared settings, warnings, threads, inference mode.

Threads inside an operation wait for each other at its end, up to a hundred times longer than it runs when another
process has one of the cores. Small operations are fastest in one thread, and so is work that is parallel outside.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from typing import Generic, ParamSpec, TypeVar, final

import torch
from threadpoolctl import ThreadpoolController

_Found = TypeVar("_Found")
_Arguments = ParamSpec("_Arguments")

# Tables of fewer numbers than this are small: an operation on all of one takes well under a millisecond.
SMALL = 2**19


@final
class WhileAnyone(Generic[_Found]):
    """A change that is there while any thread is inside, and is taken back when the last one leaves.

    Were each thread to put back what it found itself, the last one would put back what the first had changed.

    Args:
        change: makes the change, and takes it back.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[_Found]]) -> None:
        self._change, self._lock, self._count = change, threading.Lock(), 0
        self._end = ExitStack()
        self._found: _Found

    @contextmanager
    def inside(self) -> Iterator[_Found]:
        """The time of one thread; what it yields is what the first one was given."""
        with self._lock:
            if not self._count:
                self._found = self._end.enter_context(self._change())
            self._count += 1
        try:
            yield self._found
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._end.close()


@cache
def ignoring(message: str, category: type[Warning]) -> WhileAnyone[None]:
    """The warnings whose text begins as a regular expression says, which nobody sees while someone is inside.

    ``warnings.catch_warnings`` puts back the filters that one thread found, and so what another had changed.
    """
    entry = ("ignore", re.compile(message, re.IGNORECASE), category, None, 0)

    @contextmanager
    def change() -> Iterator[None]:
        filters: list[object] = warnings.filters  # type: ignore[assignment]  # a list, whatever its declared type
        filters.insert(0, entry)
        try:
            yield
        finally:
            present: list[object] = warnings.filters  # type: ignore[assignment]
            for each in (filters, present):  # two lists, where a caller has entered or left `catch_warnings` meanwhile
                if entry in each:
                    each.remove(entry)

    return WhileAnyone(change)


def threads_for(numbers: int) -> AbstractContextManager[None]:
    """One thread inside each operation on a small table, which has this many numbers; else the caller's setting."""
    return one_thread() if numbers < SMALL else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside each operation of torch and NumPy; the last caller to leave restores the setting."""
    if _alone.get():
        yield
        return
    token = _alone.set(True)
    try:
        with _ONE_OF_BLAS.inside() as threads:
            torch.set_num_threads(1)  # of this thread, and of those that begin from now on
            try:
                yield
            finally:
                torch.set_num_threads(threads)
    finally:
        _alone.reset(token)


_alone: ContextVar[bool] = ContextVar("operations of this thread run in one thread", default=False)


@contextmanager
def _one_of_blas() -> Iterator[int]:
    """One thread for the BLAS of NumPy and SciPy, which has one setting for the process; yields torch's setting."""
    with _blas().limit(limits=1):
        yield torch.get_num_threads()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


_ONE_OF_BLAS = WhileAnyone(_one_of_blas)


def outside_inference_mode(function: Callable[_Arguments, _Found]) -> Callable[_Arguments, _Found]:
    """Run a function as under ``torch.no_grad()`` when it is called under ``torch.inference_mode()``.

    Tensors that are made in inference mode can never take part in autograd again: a posterior made of them could not be
    tuned, nor conditioned on more data.
    """

    @wraps(function)
    def outside(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Found:
        if not torch.is_inference_mode_enabled():
            return function(*arguments, **options)
        with torch.inference_mode(False), torch.no_grad():
            return function(*arguments, **options)

    return outside
