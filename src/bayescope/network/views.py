"""A weight as a forward pass sees it: whole, transposed, cut into chunks, expanded over a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class WeightView:
    """A random weight, or a view of one: each entry is an entry of the weight.

    Attributes:
        name: the parameter's name in the module.
        weight: the parameter, detached.
        value: the entries as the network sees them, detached; a copy in another dtype counts.
        geometry: the view's shape, strides and offset in the weight's own memory.
        expanded: whether it has been expanded, be it to one entry: in a batch of one row that shows in no stride.
    """

    name: str
    weight: Tensor
    value: Tensor
    geometry: tuple[tuple[int, ...], tuple[int, ...], int]
    expanded: bool = False

    @classmethod
    def whole(cls, name: str, weight: Tensor) -> WeightView:
        """The weight as it is."""
        value = weight.detach()
        return cls(name, value, value, (tuple(value.shape), value.stride(), 0))

    def viewed(self, value: Tensor, *, expanded: bool = False) -> WeightView:
        """A view of this view's memory."""
        value = value.detach()
        step = int(value.storage_offset()) - int(self.value.storage_offset())
        geometry = tuple(value.shape), value.stride(), self.geometry[2] + step
        return WeightView(self.name, self.weight, value, geometry, self.expanded or expanded)

    def copied(self, value: Tensor) -> WeightView:
        """The same entries in other memory: a cast, a contiguous copy."""
        return WeightView(self.name, self.weight, value.detach(), self.geometry)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells the views of a network's weights apart."""
        return self.name, self.geometry

    @property
    def is_whole(self) -> bool:
        """Whether this is the weight as it is, entry by entry."""
        return self.geometry == (tuple(self.weight.shape), self.weight.stride(), 0)

    @property
    def positions(self) -> Tensor:
        """For each entry its position in the weight's row-major order, int64, of the view's shape."""
        weight = self.weight
        count = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
        # They are laid out in memory as the weight is (channels last, for one), so that the view finds its own.
        memory = torch.empty_strided(count.shape, weight.stride(), dtype=torch.int64, device=weight.device)
        return memory.copy_(count).as_strided(*self.geometry)
