"""Markov chains on the exact posterior of a linear model: the No-U-Turn sampler and random-walk Metropolis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.density import diagnosed, metropolis_draws, nuts_draws
from bayescope.linear.density import LinearDensity
from bayescope.linear.mode import find_mode
from bayescope.linear.variational_bound import variational
from bayescope.memory import draw_count
from bayescope.posterior import DrawsPosterior, Record
from bayescope.precision import Precision
from bayescope.process_state import one_thread

# How many copies of its draws a sampler has at once: in its own form, as arrays, joined, and as weights.
COPIES = 4
# Chains start this many posterior standard deviations around the mode: wider than the posterior, as R-hat asks.
START_SPREAD = 2.0


def nuts(
    density: LinearDensity,
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.9,
    generator: torch.Generator | int | None = None,
    progress: bool = True,
) -> DrawsPosterior:
    """Draws from p(θ∣y) by NUTS (Hoffman & Gelman 2014), in coordinates in which Laplace's posterior is N(0, I).

    Args:
        density: the log joint, log-concave; its rows are in memory.
        draws: kept draws a chain.
        tune: warm-up draws a chain.
        chains: how many.
        target_accept: the acceptance rate that the step size aims at; for separable classes 0.8 diverges at times.
        generator: a ``torch.Generator`` or an int.
        progress: whether to show a progress bar, on the error stream and only to a terminal.

    Raises:
        MissingDependencyError: if nutpie is not installed.
        InputError: if a number cannot be used.

    Warns:
        ConvergenceWarning: if the chains have not mixed.
        DivergenceWarning: if trajectories diverged.
    """
    source = checks.generator(generator)
    draw_count(checks.count("chains", chains) * checks.count("draws", draws), density.dim, copies=COPIES)
    whitened = _Whitened.of(density)
    sampled, statistics = nuts_draws(
        whitened,
        start=whitened.starts(chains, source),
        draws=draws,
        tune=checks.count("tune", tune),
        chains=chains,
        target_accept=checks.fraction("target_accept", target_accept),
        generator=source,
        progress=progress,
    )
    kept = whitened.theta(sampled)
    return diagnosed(kept, Record("nuts"), statistics=statistics, model=density.model, likelihood=density.likelihood)


def metropolis(
    density: LinearDensity,
    *,
    draws: int = 2000,
    tune: int | None = None,
    chains: int = 8,
    thin: int | None = None,
    generator: torch.Generator | int | None = None,
) -> DrawsPosterior:
    """Draws from p(θ∣y) by random-walk Metropolis, in the same coordinates as `nuts`, all chains in one walk.

    Args:
        density: the log joint, log-concave; its rows are in memory.
        draws: kept draws a chain.
        tune: warm-up steps a chain; by default half as many as follow.
        chains: how many.
        thin: every k-th step is kept. One in about 3 P is independent of the last: the default is P/2, at most 20.
        generator: a ``torch.Generator`` or an int.

    Raises:
        InputError: if a number cannot be used.

    Warns:
        ConvergenceWarning: if the chains have not mixed.
    """
    thin = max(1, min(20, density.dim // 2)) if thin is None else checks.count("thin", thin)
    steps = thin * checks.count("draws", draws)
    tune = max(1, steps // 2) if tune is None else checks.count("tune", tune)
    source = checks.generator(generator)
    draw_count(checks.count("chains", chains) * steps, density.dim, copies=COPIES)
    whitened = _Whitened.of(density)
    starts = whitened.starts(chains, source)
    with one_thread():
        sampled, acceptance = metropolis_draws(
            whitened, starts, draws=steps, tune=tune, chains=chains, generator=source
        )
    notes = {"acceptance rate": f"{acceptance:.3f}", "thinning": f"one step in {thin} is kept"}
    kept = whitened.theta(sampled[:, thin - 1 :: thin])
    return diagnosed(kept, Record("metropolis", notes=notes), model=density.model, likelihood=density.likelihood)


@final
@dataclass(frozen=True, eq=False)
class _Whitened:
    """The log joint in u, with θ = θ̂ + R u and R Rᵀ Laplace's covariance: near N(0, I), with a constant Jacobian.

    If log p has a kink, θ̂ and R Rᵀ are the mean and the covariance of the variational posterior.
    """

    density: LinearDensity
    centre: Tensor
    precision: Precision

    @classmethod
    def of(cls, density: LinearDensity) -> _Whitened:
        if density.likelihood.kinked:
            near = variational(density)
            return cls(density, near.mean, near.precision)
        mode = find_mode(density)
        return cls(density, mode.theta, mode.precision)

    @property
    def dim(self) -> int:
        return self.density.dim

    @cached_property
    def _root(self) -> Tensor:
        return self.precision.sqrt_solve(torch.eye(self.dim, dtype=torch.float64))

    def theta(self, u: Tensor) -> Tensor:
        """θ̂ + R u, shape (..., P)."""
        return self.centre + u @ self._root.mT

    def starts(self, chains: int, generator: torch.Generator) -> Tensor:
        """Where the chains start, shape (chains, P)."""
        return START_SPREAD * torch.randn(chains, self.dim, dtype=torch.float64, generator=generator)

    def log_prob(self, u: Tensor) -> Tensor:
        """log p(y, θ(u)), shape (...)."""
        return self.density.log_prob(self.theta(u))

    def value_and_gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y, θ(u)) and Rᵀ ∂/∂θ."""
        value, gradient = self.density.value_and_gradient(torch.addmv(self.centre, self._root, u))
        return value, gradient @ self._root

    def hessian(self, u: Tensor) -> Tensor:
        """The Hessian in whitened coordinates, Rᵀ ∂²/∂θ² R."""
        return self._root.mT @ self.density.hessian(self.theta(u)) @ self._root
