"""Sums of precisions: the curvatures of two sets of data add up to the curvature of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.precision.precision import Precision
from bayescope.processes import present

S = TypeVar("S", bound="Summable")
# What `joined` takes of one summand: its tensors, and flags. A block-diagonal precision has one list per block.
Summand: TypeAlias = list[Any]


class Summable(ABC):
    """A precision that can be added to another one of the same structure."""

    def __add__(self: S, other: Precision) -> S:
        """The sum of two precisions of the same structure.

        Raises:
            UnsupportedError: if the structures or the shapes differ, or the two do not share their basis.
        """
        _require_alike(self.signature(), signature_of(other))
        return cast(S, self.joined([self.summand(), summable(other).summand()]))

    @abstractmethod
    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""

    @abstractmethod
    def summand(self) -> Summand:
        """The tensors that a sum with other precisions is made of."""

    @abstractmethod
    def joined(self, summands: Sequence[Summand]) -> Precision:
        """The sum of the precisions with these summands."""


T = TypeVar("T", bound=Tensor | None)


def signature_of(precision: Precision) -> str:
    """The signature, or the name of the class where the precision has no sums."""
    return precision.signature() if isinstance(precision, Summable) else type(precision).__name__


def summable(precision: Precision) -> Summable:
    """Return the precision itself if it adds.

    Raises:
        UnsupportedError: if it does not.
    """
    if not isinstance(precision, Summable):
        raise does_not_add(precision)
    return precision


def does_not_add(precision: Precision) -> UnsupportedError:
    """The error for a precision that has no sums."""
    return UnsupportedError(
        f"precision: expected one that adds, got a {type(precision).__name__}, which is held by its inverse or by "
        "its training data. Sum what it was made of, or take a structure that adds."
    )


def shared(name: str, tensors: Sequence[T]) -> T:
    """Return the tensor that all summands have in common: a basis, or the positions of a block.

    Raises:
        UnsupportedError: if they differ: a sum in two eigenbases is diagonal in neither.
    """
    first = tensors[0]
    for other in tensors[1:]:
        if first is not other and (first is None or other is None or not torch.equal(first, other)):
            raise UnsupportedError(
                f"precision: expected summands with the same {name}, got two that differ. Fits of the structure "
                "'ekfac' do not add: fit by processes of one group, which find the same basis together. Factors of "
                "'kfac' do."
            )
    return first


def all_reduce(precision: Precision, group: Any = None) -> Precision:
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
    mine = signature_of(precision)
    for theirs in processes.gather(mine):
        _require_alike(mine, theirs)
    local, device = summable(precision), precision.diagonal().device
    summand, total = local.summand(), None
    for rank in range(processes.count):  # one at a time, so that memory holds one precision of another process
        theirs = _moved(processes.gather(summand if rank == processes.rank else None)[rank], device)
        total = local.joined([theirs] if total is None else [summable(total).summand(), theirs])
    assert total is not None
    return total


def _require_alike(mine: str, theirs: str) -> None:
    if mine != theirs:
        raise UnsupportedError(
            f"precision: expected two summands of the same structure and shapes, got {mine} and {theirs}. Fit both "
            "with the same model and structure."
        )


def _moved(summands: Any, device: torch.device) -> Any:
    if isinstance(summands, Tensor):
        return summands.to(device)
    return [_moved(each, device) for each in summands] if isinstance(summands, list) else summands
