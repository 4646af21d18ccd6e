"""How many threads torch and NumPy use inside an operation.

Threads inside an operation wait for each other at its end, up to a hundred times longer than it runs when another
process has one of the cores. Small operations are fastest in one thread, and so is work that is parallel outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

from bayescope.process_state import WhileAnyone

# Tables of fewer numbers than this are small: an operation on all of one takes well under a millisecond.
SMALL = 2**19


def threads_for(numbers: int) -> AbstractContextManager[None]:
    """One thread inside each operation on a table of so many numbers if it is small, else the caller's setting."""
    return one_thread() if numbers < SMALL else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside each operation; the setting is put back when the last of our callers has left."""
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
    """One thread for BLAS, which has one setting for the process; yields torch's setting."""
    with _blas().limit(limits=1):
        yield torch.get_num_threads()


@cache
def _blas() -> ThreadpoolController:
    """NumPy's and SciPy's BLAS; torch's own is set through torch."""
    return ThreadpoolController().select(user_api="blas")


_ONE_OF_BLAS = WhileAnyone(_one_of_blas)
