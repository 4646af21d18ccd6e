"""Chains of stochastic-gradient MCMC: their steps, when they are read, and who collects their draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.module_copies import module_copy
from bayescope.network.weights import Weights
from bayescope.precision import weight_draws
from bayescope.priors import Prior
from bayescope.private_draws import standard_normal
from bayescope.training import Minibatches, Training, Verdict
from bayescope.training.options import RunKeywords
from bayescope.training.stack import MOST_PRODUCTS, Stack, obstacle

# Steps from one draw to the next, and draws that would fit into the burn-in, where the caller names neither.
STEPS_APART = 20
BURNT_IN = 20


class DrawKeywords(RunKeywords, total=False):
    """The keywords of `TrainingOptions` that `sgmcmc` takes, and when chains are read."""

    draws: int
    burn_in: int | None
    thin: int | None
    cycles: int | None


@final
@dataclass(frozen=True)
class DrawPlan:
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
    def of(cls, options: DrawKeywords, rows: Minibatches) -> Self:
        """The plan, checked; what is ``None`` follows from how many steps an epoch of the data has.

        Raises:
            InputError: if a number cannot be used, or the draws are no multiple of the cycles.
        """
        burn_in, thin, cycles = options["burn_in"], options["thin"], options["cycles"]
        cycles = None if cycles is None else checks.count("cycles", cycles)
        draws = checks.count("draws", options["draws"])
        if draws % (cycles or 1):
            raise InputError(f"draws: expected a multiple of the {cycles} cycles, got {draws}.")
        apart = math.ceil(STEPS_APART / max(1, rows.batches or 1)) if thin is None else checks.count("thin", thin)
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
        """Whether the chains are read after this many epochs."""
        beyond = (epoch - 1) % self.length + 1 - self.burn_in
        return beyond > 0 and beyond % self.thin == 0

    def sizes(self, lr: float, rows: Minibatches) -> StepSizes:
        """The step sizes.

        Raises:
            UnsupportedError: if there are cycles, and data that nobody knows the number of batches of.
        """
        if self.cycles is None:
            return StepSizes(lr)
        steps = rows.batches
        if steps is None:
            raise UnsupportedError(
                "cycles: expected data with a known number of batches, got a loader of an iterable dataset. Give a "
                "list of its batches, or cycles=None."
            )
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

    def __init__(self, stack: Stack, weights: Weights, plan: DrawPlan) -> None:
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
    runs = small and not obstacle(modules[:2], training.rows.few[0], evaluated=True)
    vectorized = all(training.rows.of_parts(runs))
    return Stack(modules, vectorized=vectorized, evaluated=True), f"{chains}, {'' if vectorized else 'not '}in one pass"


def spread_rows(training: Training, chains: int) -> None:
    """Gives the rows to the chains: arrays in another order to each, what comes in batches in the same."""
    orders = [training.order] * chains
    if training.rows.in_memory:
        orders = [torch.Generator().manual_seed(checks.seed_from(training.order)) for _ in orders]
    training.rows.stack(orders)


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


@final
@dataclass(frozen=True)
class StepSizes:
    """The step size over the steps k = 0, 1, …: constant, or falling in cycles of L steps.

    In a cycle lr_k = ½ lr (cos(π r) + 1) with r = (k mod L)/L, and there is no noise while r is below the share that is
    left to exploring (Zhang et al. 2020, "Cyclical stochastic gradient MCMC for Bayesian deep learning", Eq. 1 and
    Algorithm 1).

    Attributes:
        lr: the largest.
        cycle: L, or 0 for a constant step size.
        quiet: how many steps of each cycle have no noise.
    """

    lr: float
    cycle: int = 0
    quiet: int = 0

    def at(self, step: int) -> tuple[float, bool]:
        """The step size after this many steps, and whether there is noise."""
        if not self.cycle:
            return self.lr, True
        place = step % self.cycle
        return 0.5 * self.lr * (math.cos(math.pi * place / self.cycle) + 1.0), place >= self.quiet


@final
class Langevin(Optimizer):
    """Stochastic-gradient Hamiltonian Monte Carlo of exp(−U(θ)/T), stepping on gradients of U/N.

    With η = lr/N and the friction α (Chen, Fox & Guestrin 2014, "Stochastic gradient Hamiltonian Monte Carlo", Eq. 15,
    without an estimate of the gradient's own noise):

        v ← (1−α) v − η ∇U(θ) + √(2αηT) ξ,  ξ ~ N(0, I);   θ ← θ + v.

    α = 1 is stochastic-gradient Langevin dynamics, θ ← θ − η ∇U(θ) + √(2ηT) ξ (Welling & Teh 2011, whose ε is 2η).

    Where U is quadratic with curvature Λ and its gradient exact, the stationary covariance of θ solves the 2×2
    Lyapunov equation of (θ, v) for each eigenvalue of Λ: it is T (Λ (I − ηΛ/(2(2−α))))⁻¹, above TΛ⁻¹ by what the step
    size costs, and the chain is stable for ηΛ < 2(2−α).

    Args:
        parameters: θ; the first axis of each may be over chains, which do not see each other.
        sizes: lr, by step.
        friction: α, above 0 and at most 1.
        temperature: T.
        rows: N.
        masks: which entries of a parameter move, by the parameter's place; without one all of them.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        sizes: StepSizes,
        friction: float,
        temperature: float,
        rows: int,
        masks: Mapping[int, Tensor],
    ) -> None:
        # In the groups, since a checkpoint keeps and compares those.
        options = {
            "lr": sizes.lr, "cycle": sizes.cycle, "quiet": sizes.quiet, "friction": friction,
            "temperature": temperature, "rows": rows, "steps": 0,
        }  # fmt: skip
        super().__init__(parameters, options)
        self._sizes, self._masks = sizes, dict(masks)

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]  # torch's is typed for a float
        """One step of every chain, with noise from torch's own generator.

        Args:
            closure: sets the gradients of U/N.
        """
        value = closure()
        group = self.param_groups[0]
        lr, noisy = self._sizes.at(group["steps"])
        friction = group["friction"]
        spread = math.sqrt(2.0 * friction * lr * group["temperature"] / group["rows"]) if noisy else 0.0
        with torch.no_grad():
            for place, parameter in enumerate(group["params"]):
                state = self.state[parameter]
                if not state:
                    state["velocity"] = torch.zeros_like(parameter)
                velocity: Tensor = state["velocity"].mul_(1.0 - friction)
                velocity.sub_(parameter.grad, alpha=lr)
                if spread:
                    velocity.add_(standard_normal(parameter.shape, parameter), alpha=spread)
                if place in self._masks:
                    velocity.mul_(self._masks[place])
                parameter.add_(velocity)
        group["steps"] += 1
        return value
