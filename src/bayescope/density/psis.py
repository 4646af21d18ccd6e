"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry 2024), through ArviZ."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayescope import checks

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
        fit, and +∞ where only a few stand out from ratios that are equal, too few for a fit: those stay as they are.

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
