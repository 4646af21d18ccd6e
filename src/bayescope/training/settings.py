"""What every training is set up from: a module to train, its random weights, the rows, and how to go about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from bayescope import checks
from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.likelihoods import Likelihood, resolve
from bayescope.module_copies import module_copy
from bayescope.network.forward import reading
from bayescope.network.inputs import call
from bayescope.network.model import NetworkModel
from bayescope.network.trace import trace
from bayescope.network.weights import LargestVariance, Weights
from bayescope.network.wrappers import unwrapped
from bayescope.processes import present
from bayescope.training import facts as describing
from bayescope.training.checkpoint import Checkpoint, path_of_all
from bayescope.training.convergence import AtMode, Cycles, Pace
from bayescope.training.lbfgs import Lbfgs
from bayescope.training.loop import Loop, Outcome, random_states
from bayescope.training.minibatches import Minibatches, Rows
from bayescope.training.objective import NegativeLogJoint, Objective
from bayescope.training.optimizers import OptimizerChoice, Schedule
from bayescope.training.sharing import share_weights
from bayescope.training.watch import Watch

# Rows of a validation that are read at once.
HELD_OUT = 1024
# How many where a schedule has to know.
EPOCHS = 100
# Rows times weights up to which L-BFGS reads all rows at each step: a pass takes milliseconds.
MOST_PRODUCTS = 10_000_000


@final
class Settings:
    """How to train, checked before anything is read: the arguments that all trainings share.

    Raises:
        OptionError: if a name is unknown.
        InputError: if a number cannot be used.
        UnsupportedError: if two arguments do not go together.
    """

    def __init__(
        self,
        *,
        likelihood: str | Likelihood,
        epochs: int | None,
        lr: float | None,
        optimizer: Any,
        schedule: Any,
        batch_size: int | None,
        checkpoint: str | Path | None,
        generator: torch.Generator | int | None,
        progress: bool,
    ) -> None:
        self.likelihood = resolve(likelihood)
        self.epochs = None if epochs is None else checks.count("epochs", epochs)
        made = isinstance(optimizer, OptimizerChoice)
        self.choice = optimizer if made else OptimizerChoice(optimizer, lr, batch_size)
        self.schedule = schedule
        self.checkpoint = checkpoint
        self.generator = checks.generator(generator)
        self.progress = checks.flag("progress", progress)

    @contextmanager
    def prepared(self, model: nn.Module, data: Any, weights: Any, *, inplace: bool) -> Iterator[Training]:
        """A training of a copy of the model, or of itself, with random states of its own until the block ends.

        Raises:
            InputTypeError: if the model is no module.
        """
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
        model = unwrapped(model)
        module = model if inplace else module_copy(model, sparse=self.choice.custom)
        share_weights(module)
        with random_states(module, present().common_generator(self.generator)) as order:
            rows = Minibatches(data, module, self.likelihood, self.choice.batch_size, order)
            if self.epochs is None and self.schedule is None and self.choice.automatic and suits_lbfgs(module, rows):
                self.choice = OptimizerChoice("lbfgs", None, None)
                rows = Minibatches(data, module, self.likelihood, None, order)
            yield Training(self, module, chosen_weights(module, weights, rows.few[0]), rows, order, inplace)


@final
@dataclass(frozen=True)
class Training:
    """A training that is ready to run.

    Attributes:
        settings: how.
        module: what is trained.
        weights: which of its weights are random.
        rows: the data.
        order: the generator of the order of the rows.
        inplace: whether the module is the caller's own.
    """

    settings: Settings
    module: nn.Module
    weights: Weights
    rows: Minibatches
    order: torch.Generator
    inplace: bool

    def held_out(self, data: Any) -> Minibatches:
        """Other rows, in an order that draws nothing from the generators of these."""
        if isinstance(data, Dataset) and present().count == 1:
            data = DataLoader(data, batch_size=HELD_OUT, generator=torch.Generator())
        with reading(self.module):  # a loader draws nothing from the generators of the training
            return Minibatches(data, self.module, self.settings.likelihood, HELD_OUT, torch.Generator())

    def run(
        self, objective: Objective, watch: Watch, facts: Mapping[str, Any] | None = None, rows: Rows | None = None
    ) -> Outcome:
        """Trains.

        Args:
            objective: of all rows.
            watch: judges the weights after each epoch.
            facts: what a checkpoint has to agree in, beside the call, the data, the model and how it is trained.
            rows: the same data as the loop is to read them; ``None`` for minibatches of them.
        """
        settings = self.settings
        optimizer = settings.choice.make(objective.parameters)
        path = path_of_all(settings.checkpoint)
        pace = self._pace(optimizer, objective)
        known = {} if path is None else {**self._known(objective, optimizer, pace), **watch.facts(), **(facts or {})}
        checkpoint = Checkpoint(path, known)
        with checkpoint.held():
            found = Loop(
                self.module, objective, rows or self.rows, optimizer, values=settings.choice.values,
                pace=pace, watch=watch, checkpoint=checkpoint, progress=settings.progress,
            ).run()  # fmt: skip
        return replace(found, rows=self.rows.rows)

    def _pace(self, optimizer: Optimizer, objective: Objective) -> Pace:
        settings, rows = self.settings, self.rows
        if settings.epochs is not None or settings.schedule is not None:
            return Schedule(settings.schedule, optimizer, settings.epochs or EPOCHS)
        if isinstance(optimizer, Lbfgs) and isinstance(objective, NegativeLogJoint):
            return AtMode(optimizer, objective.bound, rows.rows)
        steps = math.ceil(rows.rows / (rows.batch_size or rows.rows))
        return Cycles(optimizer, rows.rows, steps, rising=settings.choice.rising)

    def _known(self, objective: Objective, optimizer: Optimizer, pace: Pace) -> dict[str, Any]:
        """What every checkpoint has to agree in, beside the call; a run may go on to more epochs."""
        # A schedule that looks ahead to the last epoch gives other step sizes for another number of them.
        ahead = {} if self.settings.schedule is None else {"epochs": self.settings.epochs}
        return {
            "rows": self.rows.rows,
            **describing.of_module(self.module),
            "weights": describing.of_weights(self.weights),
            "likelihood": describing.of_likelihood(objective.likelihood),
            "prior": describing.of_prior(objective.prior),
            **describing.of_optimizer(optimizer),
            "batch_size": self.rows.batch_size,
            "data": self.rows.fingerprint(),
            "schedule": pace.name,
            **ahead,
        }

    def function(self) -> NetworkModel:
        """The trained module as a model that nobody else holds."""
        module = module_copy(self.module) if self.inplace else self.module
        return NetworkModel(module, self.weights, self.rows.outputs)


def suits_lbfgs(module: nn.Module, rows: Minibatches) -> bool:
    """Whether L-BFGS ends such a training soonest: few products a pass, and the same loss at each pass.

    Layers with buffers, such as batch norm, see other minibatches in training than in prediction; dropout draws.
    """
    products = rows.rows * sum(parameter.numel() for parameter in module.parameters())
    if not rows.in_memory or products > MOST_PRODUCTS or any(True for _ in module.buffers()):
        return False
    module.train()
    with torch.no_grad():
        first, second = (call(module, rows.few[0]) for _ in range(2))
    return bool(present().sum_numbers(float(not torch.equal(first, second)))[0] == 0)


def chosen_weights(module: nn.Module, choice: Any, inputs: Any) -> Weights:
    """The weights that a choice names; the last layer is found by tracing the network on a batch.

    Raises:
        UnsupportedError: for those of the largest variance, which nobody knows before the training.
    """
    if isinstance(choice, LargestVariance):
        raise UnsupportedError(
            "weights: expected a choice that can be made before the training, got largest_variance, whose variances "
            "are those at trained weights. Train with weights='all' first, then choose in laplace(trained, ...)."
        )
    if isinstance(choice, str) and choice == "last_layer":
        return trace(module, inputs, choice).weights
    return Weights.select(module, choice)
