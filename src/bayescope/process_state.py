"""Changes to state that all threads of the process share."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Generic, TypeVar, final

_Found = TypeVar("_Found")


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
