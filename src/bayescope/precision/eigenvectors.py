"""Eigenvectors of Kronecker factors, found by several processes at once: each factor by one of them, for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from torch import Tensor

from bayescope.precision.kronecker import KroneckerFactors, KroneckerPrecision
from bayescope.processes import Processes


@final
class _Task(NamedTuple):
    """One factor's eigenvectors.

    Attributes:
        factors: what it is a factor of.
        name: of the property that holds them.
        factor: shape (G, D, D).
    """

    factors: KroneckerFactors
    name: str
    factor: Tensor

    @property
    def cost(self) -> int:
        """The number of multiplications to leading order, G D³."""
        return self.factor.shape[0] * self.factor.shape[1] ** 3

    def found(self) -> list[Tensor]:
        """The eigenvalues and the eigenvectors."""
        # In the order that the others have them in: products of another layout round otherwise.
        return [tensor.contiguous() for tensor in getattr(self.factors, self.name)]

    def room(self) -> list[Tensor]:
        """Where another process's are written."""
        shape = self.factor.shape
        return [self.factor.new_empty(shape[:2]), self.factor.new_empty(shape)]


def share_eigenvectors(processes: Processes, precisions: Sequence[KroneckerPrecision]) -> None:
    """Finds the eigenvectors of all factors, which are the same on all processes, and gives them to each.

    The largest factors are dealt out first, each to the process that has the least to do: so that the time is close to
    the sum over the number of processes, or that of the largest factor.

    Args:
        processes: that have the same precisions.
        precisions: of the data, summed over the processes.

    Raises:
        NotPositiveDefiniteError: on all processes, if a factor has entries that are not finite.
    """
    if processes.count == 1:
        return
    tasks = [task for precision in precisions for task in _tasks(precision)]
    owners = dealt([task.cost for task in tasks], processes.count)
    with processes.agreed():
        found = [
            task.found() if owner == processes.rank else task.room() for task, owner in zip(tasks, owners, strict=True)
        ]
    for rank in range(processes.count):
        theirs = [eigen for eigen, owner in zip(found, owners, strict=True) if owner == rank]
        processes.share([tensor for eigen in theirs for tensor in eigen], rank)
    for task, eigen in zip(tasks, found, strict=True):
        task.factors.__dict__[task.name] = tuple(eigen)  # where a cached property looks first


def dealt(costs: Sequence[int], count: int) -> list[int]:
    """Which of ``count`` processes does each task: the costliest first, each to the one with the least to do."""
    loads, owners = [0] * count, [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += costs[place]
    return owners


def _tasks(precision: KroneckerPrecision) -> list[_Task]:
    """Of both factors, but for those that are diagonal."""
    factors = precision.factors
    both = (("_output_eigen", factors.output), ("_input_eigen", factors.input))
    return [_Task(factors, name, factor) for name, factor in both if factor.ndim == 3]
