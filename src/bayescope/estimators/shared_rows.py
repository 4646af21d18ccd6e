"""Rows in memory as a linear model takes them: of one process, or a part for each of several."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bayescope.estimators.base import as_tensor
from bayescope.estimators.together import refuse_other_rows
from bayescope.linear.table import Batch, RowTable
from bayescope.processes import present


def rows_in_memory(inputs: np.ndarray, targets: Tensor, weights: np.ndarray | None, *, spread: bool = True) -> RowTable:
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
        return RowTable.of(batch)
    refuse_other_rows(processes, lambda: [inputs, targets.numpy(), *([] if weights is None else [weights])])
    if not spread:
        return RowTable.of(batch)
    part = processes.slice(len(inputs))
    own = Batch(batch.features[part], batch.targets[part], None if each is None else each[part])
    return RowTable.of(own).shared(processes)
