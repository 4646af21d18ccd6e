"""What a structured posterior precision is: the base of every structure, and the sums of precisions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from bayescope.errors import NotPositiveDefiniteError, UnsupportedError
from bayescope.module_copies import Moved
from bayescope.processes import present
from bayescope.tape import Tape, block_bytes

T = TypeVar("T", bound=Tensor | None)
P = TypeVar("P", bound="Precision")
Found = TypeVar("Found")


class Precision(ABC):
    """A symmetric P×P matrix A in some structure, float64, on the device of its tensors, factorised at most once.

    The verbs that need a factor (`logdet`, `solve`, `sqrt_solve`, `covariance_of`, `variance_of`, `marginal_variance`)
    raise `NotPositiveDefiniteError` where A is not positive definite, as the curvature of a few data without its prior.

    Immutable: arithmetic returns a new precision. Tensors that require a gradient stay in the graph.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """P, the number of rows."""

    @abstractmethod
    def add_diagonal(self, diagonal: Tensor | float) -> Precision:
        """A + diag(d) for d a scalar or of shape (P,)."""

    @abstractmethod
    def scaled(self, factor: Tensor | float) -> Precision:
        """c A for a positive number c, in the graph of a tensor. What has been factorised stays so."""

    def __add__(self, other: Precision) -> Self:
        """The sum with a precision of the same structure: the curvatures of two sets of data are that of both.

        Raises:
            UnsupportedError: if the structures or the shapes differ, or the two do not share their basis.
        """
        _require_alike(self.signature(), other.signature() if isinstance(other, Precision) else type(other).__name__)
        return self._plus(cast(Self, other))

    @abstractmethod
    def logdet(self) -> Tensor:
        """The log determinant log∣A∣, a float64 scalar."""

    @abstractmethod
    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""

    @abstractmethod
    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""

    @abstractmethod
    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z with R Rᵀ = A⁻¹, for z of shape (P,) or (P, K): white noise becomes a posterior sample."""

    @abstractmethod
    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row of the tape, shape (N, K, K), without building J for all rows."""

    @abstractmethod
    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K), without the rest of it."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""

    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """A as a matrix of shape (P, P)."""

    def signature(self) -> str:
        """The structure and the shapes that two precisions have in common if they can be added.

        Raises:
            UnsupportedError: if the precision has no sums.
        """
        raise UnsupportedError(
            f"precision: expected one that adds, got a {type(self).__name__}, which is held by its inverse or by "
            "its training data. Sum what it was made of, or take a structure that adds."
        )

    def _plus(self, other: Self) -> Self:
        """The sum with a precision of the same signature; every structure that has a signature has it."""
        raise NotImplementedError


def shared(name: str, first: T, second: T) -> T:
    """Return the tensor that two summands have in common: a basis, or the positions of a block.

    Raises:
        UnsupportedError: if they differ: a sum in two eigenbases is diagonal in neither.
    """
    if first is not second and (first is None or second is None or not torch.equal(first, second)):
        raise UnsupportedError(
            f"precision: expected summands with the same {name}, got two that differ. Fits of the structure "
            "'ekfac' do not add: fit by processes of one group, which find the same basis together. Factors of "
            "'kfac' do."
        )
    return first


def all_reduce(precision: P, group: ProcessGroup | None = None) -> P:
    """The sum of all processes' precisions, equal on all of them: ``+`` over torch.distributed.

    Every process of the group calls it on the curvature of its data, before the prior is added: what has been added to
    the diagonal is summed too. `fit_curvature` and `laplace` sum by themselves, and they share bases.

    Args:
        precision: this process's.
        group: the process group; ``None`` for all processes. Without an initialised group there is one process.

    Raises:
        UnsupportedError: on every process, if structures, shapes or bases differ, or if the structure does not add.
        ProcessError: if another process has died, or does other work.
    """
    processes = present(group)
    if processes.count == 1:
        return precision
    mine = precision.signature()
    for theirs in processes.gather(mine):
        _require_alike(mine, theirs)
    total: P | None = None
    for rank in range(processes.count):  # one at a time, so that memory holds one precision of another process
        sent = processes.gather(precision if rank == processes.rank else None)[rank]
        with Moved(precision.diagonal().device):
            one = copy.deepcopy(sent)
        total = one if total is None else total + one
    assert total is not None
    return total


def found_together(costs: Sequence[int], find: Callable[[int], Found]) -> list[Found] | None:
    """What is found at each of several places, each by one process for all; ``None`` for a single process.

    The costliest places are dealt out first, each to the process that has the least to do: the time is close to the sum
    over the number of processes, or to that of the costliest place.

    Args:
        costs: of the places, in any unit.
        find: from a place to what a file could hold; its tensors come back on the CPU.
    """
    processes = present()
    if processes.count == 1:
        return None
    loads, owners = [0] * processes.count, [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += costs[place]
    local = {place: find(place) for place, owner in enumerate(owners) if owner == processes.rank}
    # Through a message on its owner too: products of another layout in memory round otherwise.
    return [processes.gather(local.get(place))[owner] for place, owner in enumerate(owners)]


def _require_alike(mine: str, theirs: str) -> None:
    if mine != theirs:
        raise UnsupportedError(
            f"precision: expected two summands of the same structure and shapes, got {mine} and {theirs}. Fit both "
            "with the same model and structure."
        )


def diagonal_times(diagonal: Tensor, v: Tensor) -> Tensor:
    """diag(d) v for d of shape (P,) or (1,), and v of shape (P,) or (P, K)."""
    return diagonal * v if v.ndim == 1 else diagonal[:, None] * v


def refuse_not_finite(name: str, *tensors: Tensor) -> None:
    """Checks the entries of a matrix, or of what it is made of.

    Raises:
        NotPositiveDefiniteError: if one is NaN or infinite.
    """
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise NotPositiveDefiniteError(f"{name}: expected finite entries, got NaN or infinity.")


def not_positive(name: str, diagonal: Tensor, expected: str, advice: str = "") -> NotPositiveDefiniteError:
    """The error for a diagonal (P,) that is too small, with its smallest entry and the direction of that weight.

    Args:
        name: what the matrix is.
        diagonal: its entries.
        expected: what they have to be, for the message.
        advice: what to do, as a sentence.
    """
    entries = diagonal.detach()
    index = int(entries.argmin())
    smallest, direction = float(entries[index]), torch.zeros_like(entries)
    direction[index] = 1.0
    message = f"{name}: expected {expected}, got {smallest:.6g} at index {index}. {advice}".rstrip()
    return NotPositiveDefiniteError(message, smallest, direction)


# What the draws take that are there together.
DRAW_BYTES = 64 * 2**20


def weight_draws(mean: Tensor, precision: Precision, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """n draws of N(mean, precision⁻¹) in blocks (S, P) that stay within `DRAW_BYTES`; which ones changes nothing.

    Args:
        mean: shape (P,), float64.
        precision: over the P weights.
        n: how many in all.
        generator: on the CPU, so that the draws are the same on every device.
    """
    dim, together = precision.dim, max(1, block_bytes(DRAW_BYTES) // (8 * precision.dim))
    for first in range(0, n, together):
        noise = torch.randn(min(together, n - first), dim, dtype=torch.float64, generator=generator)
        yield mean + precision.sqrt_solve(noise.to(mean.device).mT).mT
