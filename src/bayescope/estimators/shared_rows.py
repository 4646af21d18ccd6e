"""Rows in memory as a linear model takes them: of one process, or a part for each of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.estimators.reading import as_tensor
from bayescope.linear.table import Batch, HeldTable, SharedTable, Table
from bayescope.processes import present


def rows_in_memory(inputs: np.ndarray, targets: Tensor, weights: np.ndarray | None, *, spread: bool = True) -> Table:
    """The rows; where several processes are given the same, each sums a part of its own.

    Args:
        inputs: of the model, shape (N, D).
        targets: in the likelihood's canonical form.
        weights: how often each row counts, shape (N,).
        spread: whether the rows are spread over the processes.

    Raises:
        InputError: if the processes were given different tables.
    """
    each = None if weights is None else torch.from_numpy(weights)
    batch = Batch(as_tensor(inputs), targets, each)
    processes = present()
    if processes.count == 1:
        return HeldTable(batch)
    found = processes.gather(_digest(batch))
    for rank, other in enumerate(found):
        if other != found[0]:
            raise InputError(
                f"X, y: expected the same table on every rank, which cuts its own part, got {found[0][0]} rows on rank "
                f"0 and {'others' if other[0] == found[0][0] else other[0]} on rank {rank}. Give each rank the whole "
                "table; one that does not fit into memory is opened by bs.open_table."
            )
    if not spread:
        return HeldTable(batch)
    part = processes.slice(len(inputs))
    own = Batch(batch.features[part], batch.targets[part], None if each is None else each[part])
    return SharedTable.of(HeldTable(own), processes)


def _digest(batch: Batch) -> tuple[Any, ...]:
    """What tells tables apart, cheaply."""
    order = torch.arange(1.0, len(batch.targets) + 1.0, dtype=torch.float64)
    flat = batch.targets.double().reshape(len(order), -1)
    counted = 0.0 if batch.weights is None else float(batch.weights @ order)
    return len(order), float(batch.features.sum()), tuple((order @ flat).tolist()), counted
