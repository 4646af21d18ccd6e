"""log p(y∣f) and its slope in f at once, for callers that ask for both a hundred thousand times."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bayescope.likelihoods.bernoulli import Bernoulli
from bayescope.likelihoods.likelihood import Likelihood


def log_prob_and_gradient(likelihood: Likelihood, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y∣f), shape (N,), and ∂ log p/∂f, shape (N, C), without a graph.

    Args:
        likelihood: p(y∣f).
        f: outputs in float64 on the CPU, shape (N, C).
        y: canonical targets.
    """
    if isinstance(likelihood, Bernoulli) and likelihood.link == "logit":
        log_prob, gradient = _logistic(f.numpy(), y.numpy())
        return torch.from_numpy(log_prob), torch.from_numpy(gradient)
    return likelihood.log_prob(f, y), likelihood.gradient(f, y)


def _logistic(f: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ_c log σ(s_c) and (2y − 1) σ(−s) for s = (2y − 1) f, both from a = exp(−∣s∣): exact in both tails."""
    sign = 2.0 * y - 1.0
    s = sign * f
    a = np.exp(-np.abs(s))
    log_prob = np.minimum(s, 0.0)
    log_prob -= np.log1p(a)
    sign *= np.where(s > 0.0, a, 1.0)
    sign /= 1.0 + a
    return log_prob.sum(-1) if f.shape[-1] > 1 else log_prob[:, 0], sign
