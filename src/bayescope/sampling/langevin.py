"""Langevin dynamics as an optimiser: the steps of stochastic-gradient MCMC, and the sizes that they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayescope.private_draws import standard_normal


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
        """The step size after so many steps, and whether there is noise."""
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
        # In the groups, since a checkpoint keeps those and is told apart by them.
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
