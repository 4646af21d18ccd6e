"""A training that is ready to run: a module, its random weights, the rows, and the options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from bayescope import checks
from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.module_copies import module_copy
from bayescope.network import Inputs, NetworkModel, call, reading, row_totals, unwrapped
from bayescope.network.row_weights import require_alike, row_weight_notes
from bayescope.network.trace import trace
from bayescope.network.weights import Weights, by_variance
from bayescope.priors import Prior
from bayescope.training import facts as describing
from bayescope.training.checkpoint import Checkpoint, path_of_all
from bayescope.training.convergence import AtMode, CountedEpochs, Cycles, Pace
from bayescope.training.lbfgs import Lbfgs
from bayescope.training.loop import Loop, Outcome, random_states
from bayescope.training.minibatches import Minibatches
from bayescope.training.objective import NegativeLogJoint, Objective
from bayescope.training.options import MakeOptimizer, TrainingOptions
from bayescope.training.steps import share_start
from bayescope.training.watch import NoWatch, Validation, Watch

# Rows of a validation that are read at once.
HELD_OUT = 1024
# The epochs of a schedule, which has to know their number.
EPOCHS = 100
# Rows times weights up to which L-BFGS reads all rows at each step: a pass takes milliseconds.
MOST_PRODUCTS = 10_000_000


@contextmanager
def prepared(
    options: TrainingOptions, model: nn.Module, data: Any, likelihood: Likelihood, weights: Any, *,
    inplace: bool = False,
) -> Iterator[Training]:  # fmt: skip
    """Set up the training of a model's copy, or of the model, with private random states until the block ends.

    Raises:
        InputTypeError: if the model is no module.
    """
    model = unwrapped(model)
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    module = model if inplace else module_copy(model, sparse=callable(options.optimizer))
    with random_states(module, share_start(module, checks.generator(options.generator))) as order:
        rows = Minibatches(data, module, likelihood, options.step_rows, order)
        if options.automatic and suits_lbfgs(module, rows):
            options = replace(options, optimizer="lbfgs")
            rows = Minibatches(data, module, likelihood, None, order)
        random = chosen_weights(module, weights, rows.few[0])
        yield Training(options, likelihood, module, random, rows, order, inplace)


@final
@dataclass(frozen=True)
class Training:
    """A training that is ready to run.

    Attributes:
        options: how.
        likelihood: p(y∣f).
        module: what is trained.
        weights: which of its weights are random.
        rows: the data.
        order: the generator of the order of the rows.
        inplace: whether the module is the caller's.
    """

    options: TrainingOptions
    likelihood: Likelihood
    module: nn.Module
    weights: Weights
    rows: Minibatches
    order: torch.Generator
    inplace: bool

    def to_mode(self, prior: Prior) -> Outcome:
        """Train to the maximum of log p(y∣f) + log p(θ)."""
        return self.run(NegativeLogJoint(self.module, self.weights, self.rows.rows, self.likelihood, prior))

    def held_out(self) -> Minibatches | None:
        """The rows of the validation, in an order that draws nothing from the generators of the training."""
        data = self.options.validation
        if data is None:
            return None
        require_alike(self.likelihood, data)
        if isinstance(data, Dataset) and len(self.rows.of_parts(0)) == 1:
            data = DataLoader(data, batch_size=HELD_OUT, generator=torch.Generator())
        with reading(self.module):  # a loader draws nothing from the generators of the training
            return Minibatches(data, self.module, self.likelihood, HELD_OUT, torch.Generator())

    def run(
        self,
        objective: Objective,
        watch: Watch | None = None,
        *,
        trained: nn.Module | None = None,
        facts: Mapping[str, Any] | None = None,
        make: MakeOptimizer | None = None,
    ) -> Outcome:
        """Train, unless there are to be no epochs.

        Args:
            objective: of all rows.
            watch: judges the weights after each epoch; ``None`` for the validation of the options, if there is one.
            trained: the module whose parameters and buffers are the state of the training; ``None`` for the network.
            facts: what a checkpoint has to agree in, besides the call, the data, the model and the options.
            make: makes the optimiser, in place of the one that the options name.
        """
        module = self.module if trained is None else trained
        weighted = row_weight_notes(self.likelihood, self.rows.rows)
        if self.options.epochs == 0:
            module.eval()
            return Outcome({}, 0, 0, "all epochs", self.rows.rows, row_weights=weighted)
        if watch is None:
            held_out = self.held_out()
            watch = NoWatch() if held_out is None else Validation.of(
                self.module, held_out, objective, self.options.patience
            )  # fmt: skip
        optimizer = (make or self.options.make)(objective.parameters)
        pace = self._pace(optimizer, objective, rising=make is None)
        path = path_of_all(self.options.checkpoint)
        known = {}
        if path is not None:
            known = {**self._known(module, objective, optimizer, pace), **watch.facts(), **(facts or {})}
        checkpoint = Checkpoint(path, known)
        with checkpoint.held():
            outcome = Loop(
                module, objective, self.rows, optimizer,
                pace=pace, watch=watch, checkpoint=checkpoint, progress=self.options.progress,
            ).run()  # fmt: skip
        return replace(outcome, rows=self.rows.rows, row_weights=weighted)

    def function(self) -> NetworkModel:
        """The trained module as a model that nobody else holds."""
        module = module_copy(self.module) if self.inplace else self.module
        return NetworkModel(module, self.weights, self.rows.outputs)

    def _pace(self, optimizer: Optimizer, objective: Objective, *, rising: bool) -> Pace:
        options, rows = self.options, self.rows
        if options.epochs is not None or options.schedule is not None:
            return CountedEpochs(options.schedule, optimizer, options.epochs or EPOCHS)
        if isinstance(optimizer, Lbfgs) and isinstance(objective, NegativeLogJoint):
            return AtMode(optimizer, objective.bound, rows.rows)
        steps = math.ceil(rows.rows / (rows.batch_size or rows.rows))
        rising = rising and options.lr is None and not callable(options.optimizer)
        return Cycles(optimizer, rows.rows, steps, rising=rising)

    def _known(self, module: nn.Module, objective: Objective, optimizer: Optimizer, pace: Pace) -> dict[str, Any]:
        """What every checkpoint has to agree in, besides the call; a run may go on to more epochs."""
        # A schedule that looks ahead to the last epoch gives other step sizes for another number of them.
        ahead = {} if self.options.schedule is None else {"epochs": self.options.epochs}
        return {
            "rows": self.rows.rows,
            **describing.of_module(module),
            "weights": describing.of_weights(self.weights),
            "likelihood": describing.of_likelihood(objective.likelihood),
            "prior": describing.of_prior(objective.prior),
            **describing.of_optimizer(optimizer),
            "batch_size": self.rows.batch_size,
            "data": self.rows.fingerprint(),
            "schedule": pace.name,
            **ahead,
        }


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
    return row_totals(not torch.equal(first, second))[0] == 0


def chosen_weights(module: nn.Module, choice: Any, inputs: Inputs) -> Weights:
    """The weights that a choice names; the last layer is found by tracing the network on a batch.

    Raises:
        UnsupportedError: for those of the largest variance, which nobody knows before the training.
    """
    if by_variance(choice):
        raise UnsupportedError(
            "weights: expected a choice that can be made before the training, got largest_variance, whose variances "
            "are those at trained weights. Train with weights='all' first, then choose in laplace(trained, ...)."
        )
    if isinstance(choice, str) and choice == "last_layer":
        return trace(module, inputs, choice).weights
    return Weights.select(module, choice)
