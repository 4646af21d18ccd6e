"""When a training whose epochs nobody has counted has converged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, final

from bayescope.training.lbfgs import Lbfgs

# What happens after an epoch: the training goes on, or it ends.
Move = Literal["on", "end"]
# Nats that may be left to gain at the end without a word, and those that L-BFGS goes on for.
ENOUGH, EXACT = 1e-2, 1e-6
# Epochs of L-BFGS, of twenty iterations each, at most.
MOST_EPOCHS = 500
# Epochs in a row that gain less than `EXACT` nats: weights at a kink of the loss, or at its rounding.
STILL = 3


class Pace(Protocol):
    """Sets the step sizes, and ends a training."""

    @property
    def name(self) -> str:
        """Which one it is: a checkpoint is of a run with the same."""

    @property
    def epochs(self) -> int:
        """How many there are at most."""

    @property
    def left(self) -> float | None:
        """How many nats are left to gain; ``None`` where nobody knows."""

    def step(self, value: float) -> Move:
        """Ends an epoch, in which the objective was ``value``."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""


@final
class AtMode:
    """Ends L-BFGS at a mode: where a Newton step would gain less than 1e-6 nats, or no step gains anything.

    Args:
        optimizer: steps on all rows.
        bound: an upper bound of the nats that a Newton step would gain, from the present gradients.
        rows: N, which the objective is divided by.
    """

    epochs, name = MOST_EPOCHS, "L-BFGS to a mode"

    def __init__(self, optimizer: Lbfgs, bound: Callable[[], float], rows: int) -> None:
        self._optimizer, self._bound, self._rows = optimizer, bound, rows
        self._still = 0
        self.left: float | None = None

    def step(self, value: float) -> Move:
        """Ends the training at a mode."""
        self.left = self._bound()
        gained = self._optimizer.gained * self._rows
        self._still = self._still + 1 if gained < EXACT else 0
        if self.left <= EXACT:
            return "end"
        if self._still < STILL:
            return "on"
        if self.left > ENOUGH:
            self.left = None  # at a kink, where the gradient does not vanish
        return "end"

    def state(self) -> dict[str, Any]:
        """How long nothing was gained."""
        return {"still": self._still, "left": self.left}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._still, self.left = state["still"], state["left"]
