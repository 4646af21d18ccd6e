"""torch.utils.checkpoint: parts of a network that the backward pass runs again, outside of what the forward ran in.

It has torch's random states put back, and nothing else: neither the values that stood in the place of weights nor
numbers that were not drawn from these states are there a second time. Gradients would be of other weights or draws.
"""

from __future__ import annotations

import sys
from types import FrameType

import torch

from bayescope.errors import UnsupportedError


class RecomputedWeightsError(UnsupportedError):
    """A network that computes activations again was given other weights than its own."""


def in_checkpoint() -> bool:
    """Whether the caller is run by torch.utils.checkpoint."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        frame = frame.f_back
    return frame is not None


class OwnWeights:
    """Refuses recomputation where weights are replaced: made where the replacing begins, asked at each weight met.

    A reentrant checkpoint runs its forward pass without a graph, so that whether a backward pass may follow is known
    at the beginning alone.
    """

    def __init__(self) -> None:
        self._graph = torch.is_grad_enabled()

    def check(self) -> None:
        """Passes outside of a checkpoint, and where no backward pass can follow.

        Raises:
            RecomputedWeightsError: inside of one.
        """
        if self._graph and in_checkpoint():
            raise RecomputedWeightsError(
                "network: expected activations to be kept for the backward pass, got some that torch.utils.checkpoint "
                "computes again, with the module's own weights in place of those drawn here. Take the checkpoint out."
            )
