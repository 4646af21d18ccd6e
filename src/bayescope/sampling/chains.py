"""Chains of stochastic-gradient MCMC: when they are read, what they are stacked of, and who collects their draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.network.weights import Weights
from bayescope.precision.draws import weight_draws
from bayescope.priors import Prior
from bayescope.processes import present
from bayescope.sampling.langevin import StepSizes
from bayescope.training.minibatches import Minibatches, rows_of_all
from bayescope.training.options import OWN_BATCH_SIZE, RunKeywords
from bayescope.training.side_by_side import RowsForAll, RowsOfEach
from bayescope.training.stack import MOST_PRODUCTS, Stack, obstacle
from bayescope.training.training import Training
from bayescope.training.watch import Verdict

# Steps from one draw to the next, and draws that would fit into the burn-in, where the caller names neither.
STEPS_APART = 20
BURNT_IN = 20


class ReadingKeywords(RunKeywords, total=False):
    """The keywords of `TrainingOptions` that `sgmcmc` takes, and when chains are read."""

    draws: int
    burn_in: int | None
    thin: int | None
    cycles: int | None


@final
@dataclass(frozen=True)
class Reading:
    """After which epochs the chains are read.

    Attributes:
        draws: how many of each chain.
        burn_in: epochs before the first, in each cycle.
        thin: epochs from one to the next.
        cycles: how many, or ``None`` for a constant step size.
    """

    draws: int
    burn_in: int
    thin: int
    cycles: int | None

    @classmethod
    def of(cls, options: ReadingKeywords, data: Any) -> Self:
        """The plan, checked; what is ``None`` follows from how many steps an epoch of the data has.

        Raises:
            InputError: if a number cannot be used, or the draws are no multiple of the cycles.
        """
        burn_in, thin, cycles = options["burn_in"], options["thin"], options["cycles"]
        cycles = None if cycles is None else checks.count("cycles", cycles)
        draws = checks.count("draws", options["draws"])
        if draws % (cycles or 1):
            raise InputError(f"draws: expected a multiple of the {cycles} cycles, got {draws}.")
        steps = _steps(data, options["batch_size"])
        apart = math.ceil(STEPS_APART / steps) if thin is None else checks.count("thin", thin)
        before = BURNT_IN * apart if burn_in is None else checks.count("burn_in", burn_in, least=0)
        return cls(draws, before, apart, cycles)

    @property
    def length(self) -> int:
        """Epochs of a cycle, or of all where there are none."""
        return self.burn_in + self.thin * (self.draws // (self.cycles or 1))

    @property
    def epochs(self) -> int:
        """The number of epochs of the whole plan."""
        return self.length * (self.cycles or 1)

    def reads(self, epoch: int) -> bool:
        """Whether the chains are read after so many epochs."""
        beyond = (epoch - 1) % self.length + 1 - self.burn_in
        return beyond > 0 and beyond % self.thin == 0

    def sizes(self, lr: float, data: Any, rows: Minibatches) -> StepSizes:
        """The step sizes.

        Raises:
            UnsupportedError: if there are cycles, and data that nobody knows the number of batches of.
        """
        if self.cycles is None:
            return StepSizes(lr)
        steps = max(present().gather(_batches(data, rows)))
        return StepSizes(lr, steps * self.length, steps * self.burn_in)

    def summary(self) -> str:
        """The plan in words, for the summary."""
        epochs = f"{self.thin} epoch{'s' * (self.thin != 1)} apart"
        if self.cycles is None:
            return f"{epochs}, after {self.burn_in} to burn in"
        each = self.draws // self.cycles
        return f"{each} in each of {self.cycles} cycles, {epochs}, after {self.burn_in} without noise"


@final
class Collector:
    """Reads the chains when the plan says so.

    Args:
        stack: the chains.
        weights: which weights are random.
        plan: when.
    """

    def __init__(self, stack: Stack, weights: Weights, plan: Reading) -> None:
        self._stack, self._weights, self._plan = stack, weights, plan
        self._draws: list[Tensor] = []

    def draws(self) -> Tensor:
        """What was read, shape (chains, draws, P), float64; of a checkpoint with more draws, as many as are asked for.

        Raises:
            KeyboardInterrupt: if there is nothing, which an interrupt alone can be the reason of.
        """
        if not self._draws:
            raise KeyboardInterrupt("interrupted before the first draw")
        return torch.stack(self._draws[: self._plan.draws], 1)

    def judge(self, epoch: int) -> Verdict:
        """Reads them, where that is due; the last weights are as good as any."""
        if self._plan.reads(epoch):
            self._draws.append(self._stack.flat(self._weights))
        return Verdict({})

    def facts(self) -> dict[str, Any]:
        """How many draws, where a cycle is as long as they ask for."""
        return {} if self._plan.cycles is None else {"draws": self._plan.draws}

    def state(self) -> dict[str, Any]:
        """The draws so far, for a checkpoint."""
        return {"draws": list(self._draws)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the draws of a checkpoint."""
        self._draws = list(state["draws"])


def stacked(training: Training, prior: Prior | None, chains: int) -> tuple[Stack, str]:
    """The chains at their beginnings, and how they are run, in words.

    Args:
        training: has the model, whose weights they begin at.
        prior: what they begin at draws from instead; ``None`` for the model's own.
        chains: how many.
    """
    modules = [module_copy(training.module) for _ in range(chains)]
    for module in modules:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in training.weights.names)
    if prior is not None:
        _scatter(modules, training, prior)
    products = training.rows.largest * sum(parameter.numel() for parameter in training.module.parameters())
    if chains == 1:
        return Stack(modules, vectorized=False, evaluated=True), "1"
    small = products <= MOST_PRODUCTS or next(modules[0].parameters()).device.type != "cpu"
    vectorized = all(present().gather(small and not obstacle(modules[:2], training.rows.few[0], evaluated=True)))
    return Stack(modules, vectorized=vectorized, evaluated=True), f"{chains}, {'' if vectorized else 'not '}in one pass"


def read_by(training: Training, chains: int) -> RowsOfEach | RowsForAll:
    """The rows for the chains: arrays in an order of each chain's own, what comes in batches the same for all."""
    rows = training.rows
    if not rows.in_memory:
        return RowsForAll(rows, chains)
    orders = [torch.Generator().manual_seed(checks.seed_from(training.order)) for _ in range(chains)]
    return RowsOfEach(rows, orders)


def _scatter(modules: list[nn.Module], training: Training, prior: Prior) -> None:
    """Gives each module a draw from the prior."""
    dim = training.weights.dim
    source = torch.Generator().manual_seed(checks.seed_from(training.order))
    drawn = torch.cat(list(weight_draws(prior.centre(dim), prior.structured(dim), len(modules), source)))
    with torch.no_grad():
        for module, theta in zip(modules, drawn, strict=True):
            values = training.weights.unflat(theta, module)
            for name, parameter in training.weights.parameters(module).items():
                parameter.copy_(values[name])


def _steps(data: Any, batch_size: int | None) -> int:
    """About how many steps an epoch of the data has, on all processes; 1 where nobody knows."""
    rows = rows_of_all(data)
    steps = length_hint(data, 1) if rows is None else math.ceil(rows / (batch_size or OWN_BATCH_SIZE))
    return max(1, *present().gather(steps))


def _batches(data: Any, rows: Minibatches) -> int:
    """How many batches an epoch has."""
    if not isinstance(data, DataLoader | list):
        return rows.steps
    try:
        return len(data)
    except TypeError as error:
        raise UnsupportedError(
            "cycles: expected data with a known number of batches, got a loader of an iterable dataset. Give a list "
            "of its batches, or cycles=None."
        ) from error
