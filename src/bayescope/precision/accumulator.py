"""Sums over the batches of a pass, from which a curvature is made.

A sum takes tapes one after another and gives its answer, a `Precision` mostly, in the end. The result does not depend
on where batches begin, nor on how many cotangents a tape holds, except by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, final

import torch
from torch import Tensor

from bayescope.tape import Tape

# This many terms are summed in the dtype of the passes before the sum goes to float64: for a factor of 785² the
# conversion of each term would take a third of the time of a batch.
STAGED = 8


Answer_co = TypeVar("Answer_co", covariant=True)


class TapeSum(Protocol[Answer_co]):
    """A sum over tapes that becomes a precision, the precisions of blocks, or a product with the curvature."""

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds a tape.

        Args:
            tape: the rows u_nk of one batch and some of its cotangents.
            fresh: whether it is the first tape of its rows: what depends on the inputs alone is added once.
        """

    def totals(self) -> list[Tensor]:
        """The tensors of the sum, which several processes add up in place."""

    def finish(self) -> Answer_co:
        """The answer, without any prior."""


@final
class Sum:
    """A float64 sum of tensors of one shape, of which a few at a time are summed in their own dtype."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._staged: Tensor | None = None
        self._count = 0

    def add(self, term: Tensor) -> None:
        """Adds a term, in place where there is a sum already."""
        self.add_by(lambda onto: term if onto is None else onto.add_(term))

    def add_by(self, added: Callable[[Tensor | None], Tensor]) -> None:
        """Adds a term that is added in place, without being there by itself.

        Args:
            added: adds the term to a tensor, or returns it where there is none: a tape's `input_gram`, for one.
        """
        # The first term may be a tape's own tensor, which is not ours to add to.
        self._staged = added(None).clone() if self._staged is None else added(self._staged)
        self._count += 1
        if self._count == STAGED:
            self.total()

    def total(self) -> Tensor:
        """The sum so far, of at least one term, in float64."""
        assert self._staged is not None
        if self._total is None:
            self._total = torch.zeros_like(self._staged, dtype=torch.float64)
        if self._count:
            self._total += self._staged
            self._staged.zero_()
            self._count = 0
        return self._total

    def taken(self) -> Tensor:
        """The same, which is the caller's from then on: nothing of the sum is kept here."""
        total, self._total, self._staged = self.total(), None, None
        return total
