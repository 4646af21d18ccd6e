"""Layers that turn the outputs of a network into those that a likelihood or a target asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.layers.output_choice import output_choice
from bayescope.storage import stored_layer


@stored_layer("Pairwise", lambda _: {}, children=("reward",))
@final
class Pairwise(nn.Module):
    """The rewards of both items of a pair, by one reward model: what the `BradleyTerry` likelihood asks for.

    Items are axis 1 of every input, (N, 2, …): the reward model sees a batch of N · 2 items, and its answers become
    f of shape (N, 2). Tensors may come as positional or named arguments; anything else is passed on unchanged.

    For a posterior q of a Pairwise, `item_rewards` returns the posterior of the rewards of single items: their joint
    mean and covariance, and draws of them.

    Args:
        reward: a module from M items to M rewards, shape (M,) or (M, 1), or to an output with such ``logits``.

    Raises:
        InputError: if an input has no axis of items, or the rewards have another shape.
    """

    def __init__(self, reward: nn.Module) -> None:
        super().__init__()
        self.reward = reward

    def forward(self, *inputs: object, **named: object) -> Tensor:
        """f, shape (N, 2), for inputs of shape (N, 2, …)."""
        tensors = [value for value in (*inputs, *named.values()) if isinstance(value, Tensor)]
        lead = {tuple(tensor.shape[:2]) for tensor in tensors}
        if len(lead) != 1 or next(iter(lead))[1:] != (2,):
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise InputError(f"inputs: expected tensors of one shape (N, 2, …) for the items of N pairs, got {shapes}.")
        (pairs,) = lead
        output = self.reward(*map(_items, inputs), **{name: _items(value) for name, value in named.items()})
        return _rewards(self.reward, output, pairs[0] * pairs[1]).reshape(pairs)


@stored_layer("Rewards", lambda _: {}, children=("reward",))
@final
class Rewards(nn.Module):
    """The rewards of single items, shape (M, 1), by the reward model of a `Pairwise`: its weights keep their names.

    Args:
        reward: a module from M items to M rewards, as a `Pairwise` takes it.
    """

    def __init__(self, reward: nn.Module) -> None:
        super().__init__()
        self.reward = reward

    def forward(self, *inputs: object, **named: object) -> Tensor:
        """f, shape (M, 1), for inputs of shape (M, …)."""
        first = next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
        return _rewards(self.reward, self.reward(*inputs, **named), len(first)).reshape(-1, 1)


def _rewards(model: nn.Module, output: object, items: int) -> Tensor:
    """The tensor of rewards in an output of a reward model, one for each item."""
    rewards = output_choice(model).of(output)
    if rewards.numel() == items:
        return rewards
    raise InputError(
        f"reward: expected one number for each of {items} items, shape (M,) or (M, 1), got {tuple(rewards.shape)}."
    )


def _items(value: object) -> object:
    return value.flatten(0, 1) if isinstance(value, Tensor) else value


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
    def of(cls, shift: Sequence[float] | np.ndarray | Tensor, scale: Sequence[float] | np.ndarray | Tensor) -> Rescaled:
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
