"""Optimisers and schedules by name, or as the caller makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, final

from torch import nn
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau

from bayescope import checks
from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.training.convergence import Move
from bayescope.training.lbfgs import Lbfgs

Make = Callable[[list[nn.Parameter], float], Optimizer]


def _adam(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return Adam(parameters, lr=lr, fused=fused)


def _sgd(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9)


def _lbfgs(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    return Lbfgs(parameters, lr)


# By name: how it is made, its step size, and the rows of a minibatch (None: all).
_NAMED: dict[str, tuple[Make, float, int | None]] = {
    "adam": (_adam, 1e-3, 128),
    "sgd": (_sgd, 1e-2, 128),
    "lbfgs": (_lbfgs, 1.0, None),
}
# Rows of a minibatch where the caller names none.
OWN_BATCH_SIZE = 128


@final
class OptimizerChoice:
    """An optimiser with its step size and its minibatches, checked before anything is read.

    Args:
        optimizer: "adam", "sgd" (momentum 0.9), "lbfgs" (all rows at once), a function of a list of parameters that
            returns a ``torch.optim.Optimizer``, or ``None`` for "adam", in whose place "lbfgs" may be taken.
        lr: the step size; ``None`` for 1e-3, 1e-2 and 1. A function brings its own.
        batch_size: the most rows of a minibatch; ``None`` for 128, and all rows for "lbfgs".

    Attributes:
        batch_size: the rows of a minibatch, or ``None`` for all.
        automatic: whether the caller names no optimiser, step size or minibatches.
        custom: whether the caller's function makes the optimiser, which may want sparse gradients.
        rising: whether larger step sizes than the first may be tried.
        values: whether the value of the whole objective is needed at each step, as for a line search. Of a function it
            is known once its optimiser has been made.

    Raises:
        OptionError: if the name is unknown.
        UnsupportedError: if a function comes with lr=, or "lbfgs" with a batch_size.
    """

    batch_size: int | None
    values: bool
    automatic: bool
    custom: bool
    rising: bool
    _make: Callable[[list[nn.Parameter]], Any]

    def __init__(self, optimizer: Any, lr: float | None, batch_size: int | None) -> None:
        self.automatic = optimizer is None and lr is None and batch_size is None
        self.custom = callable(optimizer)
        self.rising = lr is None and not callable(optimizer)
        if lr is not None:
            checks.positive("lr", lr)
        if batch_size is not None:
            checks.count("batch_size", batch_size)
        if callable(optimizer):
            if lr is not None:
                raise UnsupportedError(f"lr: expected None for an optimizer of your own, got {lr}. Set it there.")
            self._make = optimizer
            self.values, self.batch_size = True, batch_size or OWN_BATCH_SIZE
            return
        name = checks.choice("optimizer", "adam" if optimizer is None else optimizer, _NAMED)
        make, default, size = _NAMED[name]
        if size is None and batch_size is not None:
            raise UnsupportedError(
                f"batch_size: expected None for the optimizer {name!r}, which steps on all rows, got {batch_size}."
            )
        self._make = lambda parameters: make(parameters, float(default if lr is None else lr))
        self.values, self.batch_size = size is None, batch_size or size

    @classmethod
    def made_by(cls, make: Callable[[list[nn.Parameter]], Optimizer], batch_size: int | None = None) -> OptimizerChoice:
        """An optimiser of bayescope's own, which needs gradients and no values.

        Args:
            make: from parameters to the optimiser.
            batch_size: the most rows of a minibatch; ``None`` for 128.
        """
        choice = cls(make, None, batch_size)
        choice.values = choice.custom = False
        return choice

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The optimiser of some parameters.

        Raises:
            InputTypeError: if the caller's function returns something else.
        """
        made = self._make(parameters)
        if not isinstance(made, Optimizer):
            raise InputTypeError(f"optimizer: expected a torch.optim.Optimizer, got {type(made).__name__}.")
        self.values = self.values and not _by_gradients(made)
        return made


def _by_gradients(optimizer: Optimizer) -> bool:
    """Whether the steps of an optimiser are known to need no value: torch's own but for its line search."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)


@final
class Schedule:
    """The step size over the epochs.

    Args:
        schedule: ``None`` for a constant one, "cosine" for one that falls to zero in the last epoch, or a function of
            the optimiser that returns a scheduler of ``torch.optim.lr_scheduler``, whose ``step`` is called after each
            epoch.
        optimizer: whose step size it is.
        epochs: how many there will be.

    Raises:
        OptionError: if the name is unknown.
        InputTypeError: if the caller's function returns something else.
    """

    def __init__(self, schedule: Any, optimizer: Optimizer, epochs: int) -> None:
        self.epochs, self.keeps = epochs, False
        self.left: float | None = None
        self.converged: bool | None = None
        self._scheduler: LRScheduler | None = None
        self._needs_value = False
        if schedule is None:
            return
        if callable(schedule):
            made = schedule(optimizer)
        else:
            checks.choice("schedule", schedule, ["cosine"])
            made = CosineAnnealingLR(optimizer, T_max=epochs)
        if not isinstance(made, LRScheduler):
            raise InputTypeError(f"schedule: expected a torch.optim.lr_scheduler, got {type(made).__name__}.")
        self._scheduler, self._needs_value = made, isinstance(made, ReduceLROnPlateau)

    def step(self, value: float, validated: float | None = None) -> Move:
        """Ends an epoch; a plateau is one of the validation, where there is one."""
        if self._needs_value:
            cast(ReduceLROnPlateau, self._scheduler).step(value if validated is None else validated)
        elif self._scheduler is not None:
            self._scheduler.step()
        return "on"

    def failed(self) -> bool:
        """A caller's own step sizes stay as they are."""
        return False

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it: the scheduler's own state."""
        return {"state": {} if self._scheduler is None else self._scheduler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["state"])

    @property
    def name(self) -> str:
        """Which one it is, for checkpoints."""
        return "None" if self._scheduler is None else type(self._scheduler).__name__


def step_sizes(optimizer: Optimizer) -> Iterable[float]:
    """The present step sizes, one for each group of parameters."""
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
