"""The minibatches of several networks that are trained side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescope.network.inputs import map_tensors
from bayescope.private_draws import Cut
from bayescope.training.minibatches import Minibatches, permuted
from bayescope.training.stack import for_each


@final
class RowsOfEach:
    """Minibatches of M networks at once: inputs (B, M, …) and targets (B, M·S, …), S being the positions of a row.

    Args:
        rows: the data.
        orders: a generator for the order of the rows of each network. Data that come in batches have one order for all.
        chosen: which rows each network is trained on, shape (M, N), as the bootstrap draws them; ``None`` for all.

    Attributes:
        generators: those that the order of the rows comes from.
    """

    def __init__(self, rows: Minibatches, orders: Sequence[torch.Generator], chosen: Tensor | None = None) -> None:
        self._rows, self._members, self._chosen = rows, len(orders), chosen
        self.generators = list(orders) if rows.in_memory else rows.generators
        self.largest = rows.largest
        if not rows.in_memory:
            return
        self._inputs, self._targets = rows.whole()
        self._count = len(self._targets)
        self._whole: tuple[Any, Tensor] | None = None
        if self._count and rows.largest == self._count:
            local = rows.part(self._count)
            self._whole = self._taken(torch.arange(self._count).expand(len(self.generators), -1)[:, local])

    @property
    def cut(self) -> Cut | None:
        return self._rows.cut

    def epoch(self, number: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The minibatches of one epoch."""
        if not self._rows.in_memory:
            for inputs, targets in self._rows.epoch(number):
                yield for_each(inputs, self._members), for_each(targets, self._members).flatten(1, 2)
        elif self._whole is not None:
            self._rows.part(self._count)
            yield self._whole
        elif self._count:
            orders = [permuted(self._count, self.largest, generator) for generator in self.generators]
            for places in zip(*orders, strict=True):
                yield self._taken(torch.stack(places)[:, self._rows.part(len(places[0]))])

    def require_finite(self) -> None:
        """Reads the inputs for NaN and infinity; raises as `Minibatches` does."""
        self._rows.require_finite()

    def _taken(self, places: Tensor) -> tuple[Any, Tensor]:
        """The rows at places (M, B)."""
        rows = places if self._chosen is None else self._chosen.gather(1, places)
        here = rows.flatten().to(self._targets.device)

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, here).unflatten(0, rows.shape).transpose(0, 1)

        return map_tensors(take, self._inputs), take(self._targets).flatten(1, 2)
