"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry 2024), many sets of weights at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

# The tail has at least this many weights for a fit (section 3.1 of the paper's algorithm asks for five).
LEAST_TAIL = 5


class Smoothed(NamedTuple):
    """Importance weights with their upper tails smoothed.

    Attributes:
        log_weights: normalised, shape (R, S).
        k_hat: the shape of the Pareto distribution of each tail, shape (R,): finite moments of the weights up to order
            1/k̂. It is −∞ where all weights of a tail are equal, and +∞ where there are too few for a fit.
    """

    log_weights: np.ndarray
    k_hat: np.ndarray


def pareto_smooth(log_ratios: np.ndarray, *, efficiency: float = 1.0) -> Smoothed:
    """Replaces the M largest of S ratios by the expected order statistics of a Pareto distribution fitted to them.

    M = min(S/5, 3√(S/efficiency)); the smoothed weights do not exceed the largest raw one.

    Args:
        log_ratios: R independent problems of S draws, shape (R, S). Ratios that are equal to many digits keep their
            differences if they come close to 0 and not as differences from a large number.
        efficiency: effective draws over draws, for draws from a Markov chain.
    """
    draws = log_ratios.shape[1]
    size = math.ceil(min(0.2 * draws, 3.0 * math.sqrt(draws / efficiency)))
    order = np.argpartition(log_ratios, draws - size - 1, axis=1)[:, draws - size - 1 :]
    ordered = np.take_along_axis(log_ratios, order, axis=1)
    within = np.argsort(ordered, axis=1)
    order, ordered = np.take_along_axis(order, within, axis=1), np.take_along_axis(ordered, within, axis=1)
    cutoff, tail = ordered[:, :1], ordered[:, 1:]
    k_hat = np.full(len(log_ratios), math.inf if size < LEAST_TAIL else -math.inf)
    weights = log_ratios.copy()
    fitted = (tail[:, -1] > cutoff[:, 0]) & (size >= LEAST_TAIL)
    if fitted.any():
        # In units of the cutoff: expm1 keeps the digits of ratios that are all nearly one.
        excess = np.expm1(tail[fitted] - cutoff[fitted])
        k_hat[fitted], scale = fit_generalised_pareto(excess)
        smooth = cutoff[fitted] + np.log1p(_order_statistics(k_hat[fitted], scale, size))
        rows = np.flatnonzero(fitted)[:, None]
        weights[rows, order[fitted, 1:]] = np.minimum(smooth, tail[fitted, -1:])
    return Smoothed(weights - logsumexp(weights, axis=1, keepdims=True), k_hat)


def fit_generalised_pareto(excess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shape k and scale σ of generalised Pareto distributions, density (1 + k x/σ)^(−1/k − 1)/σ.

    The quasi-Bayesian estimate of Zhang & Stephens (2009), equations 7 and 8: the profile likelihood of θ = −k/σ is
    averaged over a grid. The shape is then drawn toward ½ by the weight of ten observations (Vehtari et al. 2024,
    appendix G); the scale is not.

    Args:
        excess: R sorted samples of size M, not negative, the last above 0, shape (R, M).
    """
    size = excess.shape[1]
    points = 30 + int(math.sqrt(size))
    largest = excess[:, -1:]
    # Ties at the cutoff can make the lower quartile 0, where the grid would be infinite.
    quartile = np.maximum(excess[:, int(size / 4 + 0.5) - 1, None], np.finfo(np.float64).eps * largest)
    grid = 1.0 / largest + (1.0 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))) / (3.0 * quartile)
    shapes = np.log1p(-grid[:, :, None] * excess[:, None, :]).mean(2)
    log_profile = size * (np.log(-grid / shapes) - shapes - 1.0)
    weights = np.exp(log_profile - logsumexp(log_profile, axis=1, keepdims=True))
    theta = (weights * grid).sum(1)
    shape = np.log1p(-theta[:, None] * excess).mean(1)
    return (size * shape + 10.0 * 0.5) / (size + 10.0), -shape / theta


def _order_statistics(shape: np.ndarray, scale: np.ndarray, size: int) -> np.ndarray:
    """Quantiles at (i − ½)/M, i = 1…M, of the generalised Pareto distribution, shape (R, M)."""
    log_survival = np.log1p(-(np.arange(1, size + 1) - 0.5) / size)
    k = shape[:, None]
    # ((1 − p)^(−k) − 1)/k, whose limit at k = 0 is −log(1 − p).
    with np.errstate(divide="ignore", invalid="ignore"):
        standard = np.where(k == 0, -log_survival, np.expm1(-k * log_survival) / k)
    return scale[:, None] * standard
