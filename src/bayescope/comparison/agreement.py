"""How far a posterior is from the reference: in its predictions, and in its marginal standard deviations."""

from __future__ import annotations

import math

import numpy as np

from bayescope.posterior import Posterior


def total_variation(probs: np.ndarray, reference: np.ndarray) -> float:
    """The mean over N rows of ½ Σ_k ∣p_k − r_k∣, in [0, 1].

    Args:
        probs: class probabilities, shape (N, K).
        reference: the reference's for the same rows.
    """
    return float(0.5 * np.abs(probs - reference).sum(axis=1).mean())


def sd_error(posterior: Posterior, reference: Posterior) -> float:
    """The largest relative error of a marginal standard deviation, max_j ∣sd_j/sd_ref,j − 1∣.

    NaN where either is a point, which has no standard deviations to be wrong.

    Args:
        posterior: over P weights.
        reference: over the same weights.
    """
    if is_point(posterior) or is_point(reference):
        return math.nan
    sd, truth = (q.covariance.diagonal().sqrt() for q in (posterior, reference))
    return float((sd / truth - 1).abs().max())


def is_point(posterior: Posterior) -> bool:
    """Whether all mass lies on one value of the weights."""
    return bool(posterior.covariance.diagonal().max() == 0)
