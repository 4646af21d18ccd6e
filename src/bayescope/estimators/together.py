"""Fits that several processes make of the same rows in memory: the same seeds on all, and no other rows on any."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bayescope.errors import InputError
from bayescope.processes import Processes, present


def same_for_all(own: torch.Generator, arrays: Callable[[], Sequence[np.ndarray]]) -> torch.Generator:
    """The first process's generator, for processes that have been given the same rows.

    Args:
        own: this process's generator.
        arrays: gives what tells the rows from others.

    Raises:
        InputError: if the rows of a process are others.
    """
    processes = present()
    refuse_other_rows(processes, arrays)
    return processes.common_generator(own)


def refuse_other_rows(processes: Processes, arrays: Callable[[], Sequence[np.ndarray]]) -> None:
    """Refuses processes that were given different rows.

    Args:
        processes: all of them.
        arrays: gives what tells the rows from others.

    Raises:
        InputError: if the rows of a process are others.
    """
    if processes.count == 1:
        return
    digest = hashlib.sha256()
    for array in arrays():
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    found = processes.gather(digest.hexdigest())
    strange = [rank for rank, other in enumerate(found) if other != found[0]]
    if strange:
        raise InputError(
            f"X, y: expected the same table on every rank, got another on rank {strange[0]} than on rank 0. Give "
            "each rank the whole table; one that does not fit into memory is opened by bs.open_table."
        )
