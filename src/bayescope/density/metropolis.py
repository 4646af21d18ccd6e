"""Random-walk Metropolis on any log density."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayescope import checks
from bayescope.density.diagnosis import diagnosed
from bayescope.density.nuts import chain_starts
from bayescope.density.problem import LogProb, dim_of, pose, starting_points
from bayescope.errors import InputError
from bayescope.log_density import LogDensity
from bayescope.logs import logged
from bayescope.posterior import DrawsPosterior, Record


@logged
def metropolis(
    log_density: LogProb,
    start: Any,
    *,
    transform: Any = None,
    draws: int = 5000,
    tune: int = 5000,
    chains: int = 8,
    generator: torch.Generator | int | None = None,
) -> DrawsPosterior:
    """Draws by random-walk Metropolis, all chains in one vectorised walk, with no use of gradients.

    The proposal's covariance and scale adapt in the warm-up, to an acceptance rate of 0.44 in one dimension and 0.234
    in many, and are frozen then.

    Args:
        log_density: a function from a float64 tensor (P,) in the user's coordinates to a scalar tensor; or from named
            parameters, which it takes as keyword arguments.
        start: in the user's coordinates, shape (P,), which is spread, or (chains, P); for named parameters a dict with
            a number or an array for each, or a list of them.
        transform: ``None``; a name ("positive", "unit_interval", "ordered", "simplex", "cholesky_correlation",
            "correlation") or `between`; a list with one of these a coordinate; for named parameters a dict with one of
            these for those that are constrained; or an object with forward, inverse and log_jacobian.
        draws: kept draws a chain.
        tune: warm-up steps a chain, dropped.
        chains: how many.
        generator: a ``torch.Generator`` or an int.

    Returns:
        A `DrawsPosterior`, with ``r_hat`` and ``effective_draws``.

    Raises:
        InputError: if the log density at a start is not finite.

    Warns:
        ConvergenceWarning: if an R-hat is above 1.01 or there are fewer than 400 effective draws of a coordinate.
    """
    problem = pose(log_density, dim_of(start), transform)
    sampled, acceptance = metropolis_draws(
        problem.unconstrained,
        starting_points(problem, start),
        draws=checks.count("draws", draws, least=4),
        tune=checks.count("tune", tune),
        chains=checks.count("chains", chains),
        generator=checks.generator(generator),
    )
    notes = {"acceptance rate": f"{acceptance:.3f}"}
    record = Record("metropolis", notes=notes, parameters=problem.parameters)
    return diagnosed(sampled, record, transform=problem.transform)


# Acceptance rates at which a Gaussian walk on a Gaussian target moves fastest: in one dimension, and in many
# (Gelman, Roberts & Gilks 1996).
_TARGET_ONE, _TARGET_MANY = 0.44, 0.234
# The proposal's covariance is learnt over windows of doubling length, of which this is the first.
_FIRST_WINDOW = 50
# The last part of the warm-up adapts the scale alone, to the covariance that will be kept.
_SCALE_ONLY = 0.2
# The step sizes t^{−0.6} of the scale's stochastic approximation (Andrieu & Thoms 2008, algorithm 4).
_DECAY = 0.6


def metropolis_draws(
    density: LogDensity,
    start: Tensor,
    *,
    draws: int = 5000,
    tune: int = 5000,
    chains: int = 8,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """Draws by a random walk whose Gaussian proposal adapts in the warm-up and is then frozen.

    The proposal is θ + s R z with R Rᵀ the covariance of all chains' draws in the last full window of the warm-up,
    and s moved towards an acceptance rate of 0.44 (P = 1) to 0.234 (P large). All chains share both. A proposal whose
    log density is not a number is outside the support and is rejected. No gradients are used.

    Args:
        density: over ℝᴾ, unconstrained; only its ``log_prob`` is called.
        start: where the chains start, shape (chains, P); or (P,), from which each starts at a random distance of up to
            one conditional sd a coordinate.
        chains: how many; all of them take each step in one vectorised call.
        draws: kept draws a chain.
        tune: warm-up steps a chain; they are dropped.
        generator: the noise.

    Returns:
        The draws, shape (chains, draws, P), and the acceptance rate after the warm-up.

    Raises:
        InputError: if the log density at a start is not finite, or +∞ on the way.
    """
    with torch.no_grad():
        position = chain_starts(density, start, chains, generator)
        state, root, scale = _warm_up(density, (position, density.log_prob(position)), tune, generator)
        _, kept, accepted = _walk(density, state, scale * root, draws, generator)
    return kept.transpose(0, 1).contiguous(), float(accepted.mean())


def _warm_up(
    density: LogDensity, state: tuple[Tensor, Tensor], tune: int, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor, float]:
    """Runs windows of doubling length, each followed by a new covariance; the last adapts the scale alone."""
    dim = state[0].shape[1]
    target = _TARGET_MANY + (_TARGET_ONE - _TARGET_MANY) / dim
    root, log_scale = torch.eye(dim, dtype=torch.float64), math.log(2.38 / math.sqrt(dim))
    remaining, window = tune, _FIRST_WINDOW
    while remaining > 0:
        last = remaining - window < max(_FIRST_WINDOW, _SCALE_ONLY * tune)
        length = remaining if last else window
        visited = []
        for step in range(1, length + 1):
            state, kept, accepted = _walk(density, state, math.exp(log_scale) * root, 1, generator)
            log_scale += (float(accepted.mean()) - target) / step**_DECAY
            visited.append(kept[0])
        remaining, window = remaining - length, 2 * window
        if not last:
            root, log_scale = _proposal(torch.cat(visited), root, log_scale)
    return state, root, math.exp(log_scale)


def _proposal(visited: Tensor, root: Tensor, log_scale: float) -> tuple[Tensor, float]:
    """The Cholesky factor of the visited points' covariance, shrunk to its diagonal while they are few.

    Any positive definite proposal leaves the target invariant, so that the shrinkage costs speed alone, never accuracy.
    """
    count, dim = visited.shape
    covariance = torch.cov(visited.mT).reshape(dim, dim)
    if not bool((covariance.diagonal() > 0).all()):  # a coordinate never moved: there is nothing to learn from yet
        return root, log_scale
    shrinkage = dim / (count + dim)
    shrunk = (1.0 - shrinkage) * covariance + shrinkage * torch.diag(covariance.diagonal())
    factor, info = torch.linalg.cholesky_ex(shrunk)
    return (factor, math.log(2.38 / math.sqrt(dim))) if int(info) == 0 else (root, log_scale)


def _walk(
    density: LogDensity, state: tuple[Tensor, Tensor], root: Tensor, steps: int, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """``steps`` Metropolis steps of all chains: the last state, the positions (steps, chains, P), the acceptances."""
    position, value = state
    noise = torch.randn(steps, *position.shape, dtype=torch.float64, generator=generator) @ root.mT
    log_uniform = torch.rand(steps, position.shape[0], dtype=torch.float64, generator=generator).log()
    positions = torch.empty_like(noise)
    accepted = torch.empty_like(log_uniform)
    for step in range(steps):
        proposal = position + noise[step]
        proposed = density.log_prob(proposal)
        if (proposed == math.inf).any():
            raise InputError("log_density: expected values below infinity, got +inf: the density has no finite peak.")
        accept = log_uniform[step] < proposed - value  # False where the proposed value is NaN
        position = torch.where(accept[:, None], proposal, position)
        value = torch.where(accept, proposed, value)
        positions[step], accepted[step] = position, accept.to(torch.float64)
    return (position, value), positions, accepted
