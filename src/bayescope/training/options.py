"""The options of a training: declared, documented and checked once, for every function that takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.layers.output_choice import OutputKeywords
from bayescope.storage import stored
from bayescope.training.lbfgs import Lbfgs

MakeOptimizer: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]
MakeSchedule: TypeAlias = Callable[[Optimizer], LRScheduler]
# By optimiser: the step size, and the rows of a minibatch (None: all).
_NAMED = {"adam": (1e-3, 128), "sgd": (1e-2, 128), "lbfgs": (1.0, None)}
# Rows of a minibatch where the caller names none.
OWN_BATCH_SIZE = 128


class RunKeywords(OutputKeywords, total=False):
    """The keywords of `OutputChoice`, and those of `TrainingOptions` for all functions that step on minibatches."""

    lr: float | None
    batch_size: int | None
    checkpoint: str | Path | None
    generator: torch.Generator | int | None
    progress: bool


class ScheduleKeywords(RunKeywords, total=False):
    """The keywords of `TrainingOptions` that all functions take which train networks."""

    epochs: int | None
    schedule: Literal["cosine"] | MakeSchedule | None
    validation: Any


class TrainingKeywords(ScheduleKeywords, total=False):
    """The keywords of `TrainingOptions`, for the signatures of functions."""

    optimizer: Literal["adam", "sgd", "lbfgs"] | MakeOptimizer | None
    patience: int | None


@stored("training_options")
@final
@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training. Functions take them as keywords of the same names.

    Args:
        epochs: how many times the data are read, those before a checkpoint included. ``None`` trains until converged.
            "lbfgs" goes on until a Newton step would gain less than 1e-6 nats, by the bound ½ gᵀP₀⁻¹g with g the
            loss's gradient, for 500 epochs at most. All others take cycles of a step size that falls to zero, each
            twice as long as the one before, from 100 steps on, and end where one gains less than 0.1 nats and 0.001
            nats a row over the best, in view of the noise; there are 5 to 7 of them, 12,700 steps at most. With a
            ``schedule``, whose length has to be known, ``None`` is 100.
        lr: the step size; ``None`` for the optimiser's own: 1e-3 for "adam", 1e-2 for "sgd", 1 for "lbfgs".
        optimizer: ``None`` for "lbfgs" where it ends soonest (without ``epochs``, ``lr``, ``schedule``, ``batch_size``,
            for arrays of at most 10⁷ rows times weights, and networks without buffers or draws), else for "adam". Or
            "adam", "sgd" (momentum 0.9), "lbfgs" (all rows at once, twenty evaluations an epoch), or a function
            of a list of parameters that returns a ``torch.optim.Optimizer``.
        schedule: ``None``, "cosine", or a function of the optimiser that returns a scheduler of
            ``torch.optim.lr_scheduler``; it steps once an epoch.
        batch_size: the most rows of a minibatch; ``None`` for 128, and all rows for "lbfgs". Batches of a loader stay.
        validation: data that are not trained on. The weights with their best likelihood are returned.
        patience: this many epochs without a better validation end the training.
        checkpoint: a file that the state is saved to, and that a later call with the same arguments goes on from, to
            the same numbers as one that was never stopped. A file of a run with another argument is refused: other
            data (of a loader, in any order), another model or other first weights, another option or seed. What may
            change is ``epochs``, if there is no ``schedule``, and ``progress``. First weights are not compared where
            ``generator`` is ``None``, as such runs differ anyway, nor with ``inplace=True``. The file has one writer
            at a time. It is replaced as a whole, at the end and before that as often as 5 % of the time allow, and
            read with ``torch.load(weights_only=True)``.
        generator: seeds the order of the rows and what the network draws; torch's own random states stay as they were.
        progress: whether a bar is drawn, for runs of over two seconds.

    Raises:
        OptionError: if a name is unknown.
        InputError: if a number cannot be used, or ``patience`` comes without ``validation``.
        UnsupportedError: if two options do not go together.
    """

    epochs: int | None = None
    lr: float | None = None
    optimizer: str | MakeOptimizer | None = None
    schedule: str | MakeSchedule | None = None
    batch_size: int | None = None
    validation: Any = None
    patience: int | None = None
    checkpoint: str | Path | None = None
    generator: torch.Generator | int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("patience", 1)):
            value = getattr(self, name)
            if value is not None:
                checks.count(name, value, least=least)
        if self.lr is not None:
            checks.positive("lr", self.lr)
        if self.patience is not None and self.validation is None:
            raise InputError(f"patience: expected validation= to go with it, got patience={self.patience!r} alone.")
        if self.schedule is not None and not callable(self.schedule):
            checks.choice("schedule", self.schedule, ["cosine"])
        checks.generator(self.generator)
        checks.flag("progress", self.progress)
        self._check_optimizer()

    def _check_optimizer(self) -> None:
        if callable(self.optimizer):
            if self.lr is not None:
                raise UnsupportedError(f"lr: expected None for an optimizer of your own, got {self.lr}. Set it there.")
        elif self.optimizer is not None:
            checks.choice("optimizer", self.optimizer, _NAMED)
        if self.by_lbfgs and self.batch_size is not None:
            raise UnsupportedError(
                f"batch_size: expected None for the optimizer 'lbfgs', which steps on all rows, got {self.batch_size}."
            )

    @property
    def by_lbfgs(self) -> bool:
        """Whether each step is on all rows."""
        return isinstance(self.optimizer, str) and self.optimizer == "lbfgs"

    @property
    def automatic(self) -> bool:
        """Whether "lbfgs" may be taken where it ends soonest."""
        return all(each is None for each in (self.epochs, self.lr, self.optimizer, self.schedule, self.batch_size))

    @property
    def step_rows(self) -> int | None:
        """The most rows of a minibatch; ``None`` for all."""
        return None if self.by_lbfgs else self.batch_size or OWN_BATCH_SIZE

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the optimiser of some parameters.

        Raises:
            InputTypeError: if the caller's function returns something else.
        """
        if callable(self.optimizer):
            made = self.optimizer(parameters)
            if not isinstance(made, Optimizer):
                raise InputTypeError(f"optimizer: expected a torch.optim.Optimizer, got {type(made).__name__}.")
            return made
        name = self.optimizer or "adam"
        size = float(_NAMED[name][0] if self.lr is None else self.lr)
        if name == "lbfgs":
            return Lbfgs(parameters, size)
        if name == "sgd":
            return SGD(parameters, lr=size, momentum=0.9)
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        return Adam(parameters, lr=size, fused=fused)
