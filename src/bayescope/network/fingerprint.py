"""A fingerprint of data: equal for the same rows in any order and any batches."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from bayescope.network.inputs import Inputs, tensors
from bayescope.processes import Processes

# Odd constants of 64 bits, as in SplitMix64 (Steele, Lea and Flood 2014): wrapping products of them scatter the bits.
GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@final
class Fingerprint:
    """The sum of a hash of each row over all rows that were added, modulo 2⁶⁴.

    A row is hashed as the numbers of its inputs and its target in float32, so that models of either precision see the
    same data. Integer arithmetic wraps exactly: neither order nor batch size tells.
    """

    def __init__(self) -> None:
        self._total = self._rows = 0

    def add(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """Adds the rows of a batch, and returns the hash of each, shape (N,), int64."""
        row = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
        for place, tensor in enumerate((*tensors(inputs), targets)):
            row = _scattered(row + _row_sums(tensor.detach().to(targets.device), place))
        self._total = (self._total + int(row.sum())) % 2**64
        self._rows += len(targets)
        return row

    def over(self, processes: Processes) -> Fingerprint:
        """That of the rows of all processes."""
        whole = Fingerprint()
        for total, rows in processes.gather((self._total, self._rows)):
            whole._total, whole._rows = (whole._total + total) % 2**64, whole._rows + rows
        return whole

    def hex(self) -> str:
        """The fingerprint as text, with the number of rows."""
        return f"{self._total:016x}-{self._rows}"


def _row_sums(tensor: Tensor, place: int) -> Tensor:
    """Σ_j c_j bits_j for each row, with an odd constant c_j for each column."""
    flat = tensor.reshape(len(tensor), -1)
    bits = (flat.to(torch.float32) + 0.0).contiguous().view(torch.int32).to(torch.int64)  # −0 is 0
    columns = torch.arange(1, flat.shape[1] + 1, device=flat.device) + place * 2**32
    return (bits * (_scattered(columns * GOLDEN) | 1)).sum(1)


def _scattered(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, with shifts that keep the sign."""
    x = (x ^ (x >> 30)) * FIRST
    x = (x ^ (x >> 27)) * SECOND
    return x ^ (x >> 31)
