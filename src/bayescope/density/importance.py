"""Importance sampling from an approximation: its evidence, corrected, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.density.problem import LogProb, WithDensity, pose
from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError, warn
from bayescope.posterior import GaussianPosterior, MixturePosterior


@final
@dataclass(frozen=True)
class ImportanceResult:
    """What importance sampling says about log Z and about the approximation it drew from.

    Attributes:
        log_evidence: log Z, from the smoothed weights, a float64 scalar.
        standard_error: of log Z, by the delta method: sd(w)/(mean(w) √S).
        pareto_k: the tail's shape k̂: below 0.5 the weights have a finite variance; above 0.7 nothing here is to be
            trusted; −∞ where all weights are equal, the approximation being exact.
        effective_draws: (Σ w)²/Σ w².
        draws: S.
    """

    log_evidence: Tensor
    standard_error: Tensor
    pareto_k: float
    effective_draws: float
    draws: int


def importance(
    log_density: LogProb,
    posterior: GaussianPosterior | MixturePosterior,
    *,
    draws: int = 4000,
    generator: torch.Generator | int | None = None,
) -> ImportanceResult:
    """Corrects the evidence of a Gaussian or mixture approximation q by Pareto-smoothed importance sampling.

    Z = E_q[p̃/q] ≈ S⁻¹ Σ w_s with w_s = p̃(θ_s)/q(θ_s), the largest weights replaced by quantiles of a generalised
    Pareto distribution fitted to them (Vehtari et al. 2024).

    Args:
        log_density: what the approximation was made of, a function in the user's coordinates.
        posterior: the approximation, such as `laplace` or `variational` returns.
        draws: S.
        generator: a ``torch.Generator`` or an int.

    Raises:
        UnsupportedError: for a posterior without a density, such as draws.
        InputError: if the log density is not a number at a draw, or zero at all of them.
        MissingDependencyError: if ArviZ is not installed: pip install 'bayescope[nuts]'.

    Warns:
        ConvergenceWarning: if k̂ is above 0.7.
    """
    if not isinstance(posterior, WithDensity):
        raise UnsupportedError(
            f"importance: expected a posterior with a density (Gaussian or mixture), got {type(posterior).__name__}."
        )
    target = pose(log_density, posterior.record.parameters or posterior.sizes[0]).target
    theta = posterior.sample(checks.count("draws", draws, least=25), generator=generator)
    with torch.no_grad():
        log_weights = target.log_prob(theta) - posterior.log_prob(theta)
    if log_weights.isnan().any() or not torch.isfinite(log_weights.max()):
        raise InputError(
            "log_density: expected numbers at the draws, positive densities among them, got NaN or only zeros."
        )
    smoothed, pareto_k = _pareto_smoothed(log_weights)
    if pareto_k > PARETO_K_LIMIT:
        warn(
            f"importance: Pareto k-hat is {pareto_k:.2f}, above {PARETO_K_LIMIT}: the approximation misses tails of "
            "the density and the corrected evidence is not to be trusted. Use another family or transform, or NUTS.",
            ConvergenceWarning,
        )
    total = torch.logsumexp(smoothed, 0)
    effective = float((2.0 * total - torch.logsumexp(2.0 * smoothed, 0)).exp())
    error = math.sqrt(max(0.0, 1.0 / effective - 1.0 / draws))  # rounding alone takes it below zero, at equal weights
    return ImportanceResult(
        total - math.log(draws), torch.tensor(error, dtype=torch.float64), pareto_k, effective, int(draws)
    )


def _pareto_smoothed(log_weights: Tensor) -> tuple[Tensor, float]:
    """The log weights with a smoothed tail, on their own scale, and k̂."""
    normalised, k_hat = pareto_smoothed(log_weights[None])
    # The smallest weight is never in the tail: its change is the normaliser.
    finite = torch.where(torch.isfinite(log_weights), log_weights, math.inf)
    smallest = int(finite.argmin())
    return normalised[0] + (log_weights[smallest] - normalised[0, smallest]), float(k_hat[0])


# Section 3.2.4 of the paper: above this k̂ an estimate is not to be trusted at practical numbers of draws.
PARETO_K_LIMIT = 0.7
# Log ratios that differ by less are equal up to rounding.
EQUAL = 1e-9


def pareto_smoothed(log_ratios: Tensor, *, efficiency: float = 1.0) -> tuple[Tensor, Tensor]:
    """Replaces the largest of S importance ratios by quantiles of a generalised Pareto distribution fitted to them.

    Args:
        log_ratios: independent problems of S draws each, shape (R, S); −∞ for a draw of ratio 0.
        efficiency: effective draws over draws, for draws from a Markov chain.

    Returns:
        Smoothed log weights that sum to one in each problem, shape (R, S), and the tails' shapes k̂, shape (R,): weights
        have finite moments up to order 1/k̂. It is −∞ where the largest ratios are equal, so that there is no tail to
        fit, and +∞ where only a few stand out from ratios that are equal, too few for a fit: those stay unchanged.

    Raises:
        MissingDependencyError: if ArviZ is not installed.
    """
    smooth = _smoother(efficiency)
    draws = log_ratios.shape[1]
    tail = log_ratios.topk(min(draws // 5, math.ceil(3.0 * math.sqrt(draws / efficiency))), dim=1).values
    # The fit divides by the excess of the tail's lower quartile over its end.
    quartile = tail[:, -max(1, tail.shape[1] // 4)] - tail[:, -1]
    even, fitted = tail[:, 0] - tail[:, -1] <= EQUAL, quartile > EQUAL
    log_weights = log_ratios - torch.logsumexp(log_ratios, 1, keepdim=True)
    k_hat = torch.where(even, -math.inf, math.inf).to(torch.float64)
    if fitted.any():
        smoothed, shapes = smooth(log_ratios[fitted].numpy().copy())
        log_weights[fitted] = torch.from_numpy(smoothed)
        k_hat[fitted] = torch.as_tensor(shapes, dtype=torch.float64)
    return log_weights, k_hat


def _smoother(efficiency: float) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Smoothed log weights and k̂ of log ratios by ArviZ, which from version 1 on takes log likelihoods: −log ratios."""
    arviz = checks.optional_package("arviz", extra="nuts")
    if hasattr(arviz, "psislw"):
        return lambda log_ratios: arviz.psislw(log_ratios, reff=efficiency)
    stats = checks.optional_package("arviz_stats.base", extra="nuts").array_stats
    return lambda log_ratios: stats.psislw(-log_ratios, r_eff=efficiency)
