"""When a training ends: after a given number of epochs, or where it has converged."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau

from bayescope.errors import InputTypeError
from bayescope.training.lbfgs import Lbfgs
from bayescope.training.options import MakeSchedule

# What happens after an epoch: the training goes on, keeps a copy of the weights, goes back to that copy, or ends.
Move = Literal["on", "keep", "back", "end"]
# Nats that may be left to gain at the end without a word, and those that L-BFGS goes on for.
ENOUGH, EXACT = 1e-2, 1e-6
# Epochs of L-BFGS, of twenty iterations each, at most.
MOST_EPOCHS = 500
# Epochs in a row that gain less than `EXACT` nats: weights at a kink of the loss, or at its rounding.
STILL = 3
# The steps of the first cycle, at least; each cycle is twice as long as the one before. At most this many cycles.
FIRST_STEPS, MOST_CYCLES = 100, 7
# Cycles before an end, so that a plateau at the start is left.
FEWEST_CYCLES = 5
# By this factor the step size rises for the next cycle, this many times, as long as no cycle loses anything, and falls
# after one that has, which happens so often at most.
RISE, RISES, FALL, FALLS = 3.0, 3, 4.0, 6
# The share of a cycle, its last epochs, whose mean loss it is judged by: the step size is below 15 % of its first.
JUDGED = 0.25
# The standard error of the first epoch's loss, as a share of it: what the first cycle is compared with.
FIRST_DOUBT = 0.1
# Nats that a cycle may gain, in all and a row, for the training to have converged.
GAIN, GAIN_A_ROW = 0.1, 1e-3


class Pace(ABC):
    """Sets the step sizes, and ends a training.

    Attributes:
        name: which one it is: a checkpoint is of a run with the same.
        epochs: how many there are at most.
        keeps: whether it asks for copies of the weights to go back to, the first of them before the first epoch.
        left: how many nats are left to gain; ``None`` where nobody knows.
        converged: whether the training ends where little is left to gain; ``None`` where nobody asked.
    """

    name: str
    epochs: int
    keeps = False
    left: float | None = None
    converged: bool | None = None
    _kept: tuple[str, ...] = ()

    @abstractmethod
    def step(self, value: float, validated: float | None = None) -> Move:
        """Ends an epoch.

        Args:
            value: the objective, that of the training rows.
            validated: −Σ log p(y∣f) of the validation rows, where there are any.
        """

    def failed(self) -> bool:
        """Hears that the objective is not finite; whether the training goes back to the copy of the weights."""
        return False

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {name: getattr(self, name) for name in self._kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; the optimiser has the step size itself."""
        for name in self._kept:
            setattr(self, name, state[name])


@final
class CountedEpochs(Pace):
    """A given number of epochs, and the step size over them.

    Args:
        schedule: ``None`` for a constant one, "cosine" for one that falls to zero in the last epoch, or a function of
            the optimiser that returns a scheduler of ``torch.optim.lr_scheduler``.
        optimizer: whose step size it is.
        epochs: how many there will be.

    Raises:
        InputTypeError: if the caller's function returns something else.
    """

    def __init__(self, schedule: str | MakeSchedule | None, optimizer: Optimizer, epochs: int) -> None:
        self.name, self.epochs = "None", epochs
        self._scheduler: LRScheduler | None = None
        if schedule is None:
            return
        made = schedule(optimizer) if callable(schedule) else CosineAnnealingLR(optimizer, T_max=epochs)
        if not isinstance(made, LRScheduler):
            raise InputTypeError(f"schedule: expected a torch.optim.lr_scheduler, got {type(made).__name__}.")
        self._scheduler, self.name = made, type(made).__name__

    def step(self, value: float, validated: float | None = None) -> Move:
        """Ends an epoch; a plateau is one of the validation, where there is one."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(value if validated is None else validated)
        elif self._scheduler is not None:
            self._scheduler.step()
        return "on"

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it: the scheduler's own state."""
        return {"state": {} if self._scheduler is None else self._scheduler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["state"])


@final
class AtMode(Pace):
    """Ends L-BFGS at a mode: where a Newton step would gain less than 1e-6 nats, or no step gains anything.

    It has converged where a Newton step would gain less than 0.01 nats, or no step gains anything. Nothing is kept to
    go back to: the line search takes no step to where the objective is not finite.

    Args:
        optimizer: steps on all rows.
        bound: an upper bound of the nats that a Newton step would gain, from the present gradients.
        rows: N, which the objective is divided by.
    """

    epochs, name, _kept = MOST_EPOCHS, "L-BFGS to a mode", ("_still", "left", "converged")

    def __init__(self, optimizer: Lbfgs, bound: Callable[[], float], rows: int) -> None:
        self._optimizer, self._bound, self._rows = optimizer, bound, rows
        self._still, self.converged = 0, False

    def step(self, value: float, validated: float | None = None) -> Move:
        """Ends the training at a mode."""
        self.left = self._bound()
        gained = self._optimizer.gained * self._rows
        self._still = self._still + 1 if gained < EXACT else 0
        self.converged = self._still >= STILL or self.left <= ENOUGH
        if self.left <= EXACT:
            return "end"
        if self._still < STILL:
            return "on"
        if self.left > ENOUGH:
            self.left = None  # at a kink, where the gradient does not vanish
        return "end"


@final
class Cycles(Pace):
    """Cycles of a step size that falls to zero as a cosine, until one twice as long as the one before gains little.

    A cycle's loss is the mean over its last quarter, where the steps are small. The training has converged where that
    loss is at most 0.1 nats and 0.001 nats a row, and its standard error, below the best cycle's. A cycle that loses
    more than that is undone, and the step size divided by four; up to then it rises threefold after each of the first
    three cycles, where the caller gives none, so that it ends near the largest that helps.

    Args:
        optimizer: whose first step sizes are those of the first cycle.
        rows: N.
        steps: how many the optimiser takes an epoch.
        rising: whether larger step sizes are tried.
    """

    name, keeps = "cycles until converged", True
    _kept = ("_rises", "_factor", "_falls", "_done", "_losses", "_best", "_error", "left", "converged")

    def __init__(self, optimizer: Optimizer, rows: int, steps: int, *, rising: bool) -> None:
        self._optimizer, self._first = optimizer, math.ceil(FIRST_STEPS / max(1, steps))
        self._sizes = [float(group["lr"]) for group in optimizer.param_groups]
        self._enough = GAIN + GAIN_A_ROW * rows
        self._rises, self._factor, self._falls = RISES if rising else 0, 1.0, 0
        self._done, self._losses, self._best, self._error = 0, list[float](), math.inf, 0.0
        self.epochs, self.converged = self._first * (2**MOST_CYCLES - 1), False
        self._set()

    def step(self, value: float, validated: float | None = None) -> Move:
        """Sets the step size of the next epoch; at the end of a cycle judges it by the objective."""
        if not (self._done or self._losses):
            self._best, self._error = value, FIRST_DOUBT * abs(value)
        self._losses.append(value)
        move: Move = "on"
        if len(self._losses) == self._first * 2**self._done:
            move = self._judge()
            self._done, self._losses = self._done + 1, []
        self._set()
        return move

    def failed(self) -> bool:
        """Divides the step size by four for the same cycle, six times at most."""
        self._losses = []
        return self._fall()

    def _judge(self) -> Move:
        """What follows a cycle that has ended."""
        last = self._losses[-max(1, round(JUDGED * len(self._losses))) :]
        loss, error = statistics.fmean(last), statistics.pstdev(last) / math.sqrt(len(last))
        doubt = math.hypot(error, self._error)
        gain = self._best - loss
        if gain < -max(self._enough, 4.0 * self._error):  # a cycle that runs away has a large error itself
            self._fall()
            return "back"
        self.left = gain
        if self._done + 1 >= FEWEST_CYCLES and gain <= self._enough + doubt:
            self.left, self.converged = max(gain, 0.0), True
            return "end"
        if loss < self._best or not self._done:
            self._best, self._error = loss, error
        if self._rises:
            self._rises, self._factor = self._rises - 1, self._factor * RISE
        return "keep"

    def _fall(self) -> bool:
        self._falls, self._factor, self._rises = self._falls + 1, self._factor / FALL, 0
        self._set()
        return self._falls <= FALLS

    def _set(self) -> None:
        share = (len(self._losses) + 0.5) / (self._first * 2**self._done)
        scale = 0.5 * self._factor * (1.0 + math.cos(math.pi * share))
        for group, size in zip(self._optimizer.param_groups, self._sizes, strict=True):
            group["lr"] = scale * size
