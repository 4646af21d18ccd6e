"""Outputs in the unit of the targets."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.storage.modules import stored_layer


@stored_layer("Rescaled", lambda layer: {"outputs": len(layer.shift)})
@final
class Rescaled(nn.Module):
    """f = shift + scale · z: from standardised outputs to the unit of the targets, by numbers that are not learnt.

    As the last layer of a network it leaves evidence, noise and predictions in the targets' own unit, while weights and
    their prior are those of standardised targets.

    Args:
        outputs: C.

    Attributes:
        shift: of each output, shape (C,); 0 until `of` sets it.
        scale: of each output, shape (C,), positive; 1 until `of` sets it.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(outputs, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(outputs, dtype=torch.float64))

    @classmethod
    def of(cls, shift: Any, scale: Any) -> Rescaled:
        """The layer with these numbers, each of shape (C,).

        Raises:
            InputError: if their shapes differ, or a scale is not positive.
        """
        shifts, scales = (torch.as_tensor(numbers, dtype=torch.float64) for numbers in (shift, scale))
        if shifts.ndim != 1 or shifts.shape != scales.shape or not (scales > 0).all():
            raise InputError(
                f"scale: expected a positive number for each output, as shift has one, got {scales.tolist()} and "
                f"{shifts.tolist()}."
            )
        made = cls(len(shifts))
        made.shift.copy_(shifts)
        made.scale.copy_(scales)
        return made

    def forward(self, z: Tensor) -> Tensor:
        return self.shift + self.scale * z
