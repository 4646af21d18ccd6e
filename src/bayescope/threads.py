"""How many threads torch uses inside an operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside each operation, put back on leaving.

    For small operations, and for work that is parallel outside of them. Threads inside an operation wait for each
    other at its end, up to a hundred times longer than it runs when another process has one of the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
