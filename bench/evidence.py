"""Log evidences that need no approximation of ours: bridge sampling from draws, annealed importance sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# log p(θ) or log p(y∣θ) of many θ at once, (M, P) -> (M,).
LogDensity = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """A log evidence and its standard error, in nats."""

    value: float
    error: float


def bridge(log_joint: LogDensity, draws: Tensor, effective: float, generator: torch.Generator) -> Estimate:
    """Bridge sampling with a Gaussian (Meng & Wong 1996, the iteration of their section 3; Gronau et al. 2017).

    Args:
        log_joint: log p(y, θ).
        draws: from the posterior, shape (S, P), thinned so that halves are independent.
        effective: how many independent draws they count for.
        generator: of the Gaussian's draws.
    """
    first, second = draws[: len(draws) // 2], draws[len(draws) // 2 :]
    gaussian = torch.distributions.MultivariateNormal(first.mean(0), torch.cov(first.T))
    noise = torch.randn(len(second), draws.shape[1], generator=generator, dtype=draws.dtype)
    proposed = gaussian.loc + noise @ gaussian.scale_tril.T
    ours = log_joint(second) - gaussian.log_prob(second)
    other = log_joint(proposed) - gaussian.log_prob(proposed)
    weight = min(effective / 2, len(second))
    a, b = math.log(weight / (weight + len(proposed))), math.log(len(proposed) / (weight + len(proposed)))
    value = other.median()
    for _ in range(1000):
        above = (other - torch.logaddexp(a + other, b + value)).logsumexp(0) - math.log(len(other))
        below = (-torch.logaddexp(a + ours, b + value)).logsumexp(0) - math.log(len(ours))
        if (above - below - value).abs() < 1e-10:
            break
        value = above - below
    f1 = (other - torch.logaddexp(a + other, b + value)).exp()
    f2 = (value - torch.logaddexp(a + ours, b + value)).exp()
    variance = f1.var() / f1.mean() ** 2 / len(f1) + f2.var() / f2.mean() ** 2 / weight
    return Estimate(float(value), float(variance.sqrt()))


def annealed(
    log_prior: LogDensity, log_likelihood: LogDensity, starts: Tensor, generator: torch.Generator,
    *, temperatures: int = 400, leapfrogs: int = 5,
) -> Estimate:  # fmt: skip
    """Annealed importance sampling with Hamiltonian moves (Neal 2001), many chains side by side.

    Temperatures rise as (t/T)⁴; the step size follows the acceptance of the last moves.

    Args:
        log_prior: log p(θ).
        log_likelihood: log p(y∣θ).
        starts: draws from the prior, shape (chains, P).
        generator: of momenta and acceptances.
        temperatures: T.
        leapfrogs: steps of a move.
    """
    theta, weights, step = starts, torch.zeros(len(starts), dtype=starts.dtype), 0.1
    ladder = [(t / temperatures) ** 4 for t in range(temperatures + 1)]
    for before, after in pairwise(ladder):
        with torch.no_grad():
            weights = weights + (after - before) * log_likelihood(theta)

        def log_density(at: Tensor, power: float = after) -> Tensor:
            return log_prior(at) + power * log_likelihood(at)

        theta, accepted = _move(log_density, theta, step, leapfrogs, generator)
        step *= math.exp(0.1 * (accepted - 0.7))
    value = weights.logsumexp(0) - math.log(len(weights))
    relative = (weights - weights.max()).exp()
    error = relative.std() / relative.mean() / math.sqrt(len(weights))
    return Estimate(float(value), float(error))


def _move(
    log_density: LogDensity, theta: Tensor, step: float, leapfrogs: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """One Hamiltonian move of each chain, and the share that was accepted."""

    def gradient(at: Tensor) -> tuple[Tensor, Tensor]:
        leaf = at.detach().requires_grad_()
        value = log_density(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    momentum = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
    value, slope = gradient(theta)
    energy = value - 0.5 * momentum.square().sum(1)
    moved = theta
    for _ in range(leapfrogs):
        momentum = momentum + 0.5 * step * slope
        moved = moved + step * momentum
        value, slope = gradient(moved)
        momentum = momentum + 0.5 * step * slope
    gain = value - 0.5 * momentum.square().sum(1) - energy
    uniform = torch.rand(len(theta), generator=generator, dtype=theta.dtype)
    kept = (uniform.log() < gain) & gain.isfinite()
    return torch.where(kept[:, None], moved, theta), float(kept.double().mean())
