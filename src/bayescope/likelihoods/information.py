"""Entropies in nats, and the mutual information of an outcome with what its distribution is drawn from.

For θ ~ w and y∣θ ~ p_θ with average p, I(y; θ) = H[p] − E H[p_θ] = E KL(p_θ‖p), the generalised Jensen–Shannon
divergence (Lin 1991, section V). The second form is a sum of terms that are not negative, which the first only becomes
after a difference of large numbers: it is the one computed. With x = p_θ/p − 1 they are p ((1 + x) log(1 + x) − x).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescope.likelihoods.likelihood import Moments


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ_k p_k log p_k over the last dimension, 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(-1)


def divergence(probabilities: Tensor, average: Tensor) -> Tensor:
    """KL(p‖average) over the last dimension, for distributions whose average has no zero but where p has one."""
    return (average * _excess(probabilities, average)).sum(-1)


def information_of_draws(probabilities: Tensor, weights: Tensor) -> Tensor:
    """Σ_s w_s KL(p_s‖Σ_s w_s p_s).

    Args:
        probabilities: distributions p_s, shape (S, ..., K).
        weights: w, summing to 1, shape (S,), or (S, ...) for weights that differ among them.
    """
    weights = weights.reshape(*weights.shape, *[1] * (probabilities.ndim - 1 - weights.ndim))
    average = (weights[..., None] * probabilities).sum(0)
    return (weights * divergence(probabilities, average)).sum(0)


def information_of_dirichlet(moments: Moments) -> Tensor:
    """That of the Dirichlet with the means, and with the sum of the variances, of some class probabilities.

    With the total count A, 1/(A + 1) = Σ_k Var[p_k] / Σ_k p̄_k(1 − p̄_k), and with g(x) = ψ(x + 1) − log x it is
    Σ_k p̄_k g(A p̄_k) − g(A) (Malinin & Gales 2018, their terms in log A and log p̄ put together).

    Args:
        moments: of the indicators of the K classes, shape (..., K).
    """
    p, total = moments.mean, (moments.aleatoric + moments.epistemic).sum(-1)
    share = torch.where(total > 0, moments.epistemic.sum(-1) / torch.where(total > 0, total, 1.0), 0.0)
    known = share == 0  # a point: A is infinite
    count = torch.where(known, 1.0, 1.0 / torch.where(known, 1.0, share) - 1.0)
    terms = torch.where(p > 0, p * _digamma_gap(count[..., None] * torch.where(p > 0, p, 1.0)), 0.0)
    # Rounding may carry a difference of equal numbers below 0
    return torch.where(known, 0.0, (terms.sum(-1) - _digamma_gap(count)).clamp_min(0.0))


def _excess(p: Tensor, average: Tensor) -> Tensor:
    """(1 + x) log(1 + x) − x of x = p/average − 1; 0 where both are 0."""
    positive = average > 0
    x = torch.where(positive, (p - average) / torch.where(positive, average, 1.0), 0.0)
    zero = x <= -1.0  # t log t tends to 0 where its derivative does not exist
    inside = torch.where(zero, 0.0, x)
    return torch.where(zero, 1.0, (1.0 + inside) * torch.log1p(inside) - inside)


def _digamma_gap(x: Tensor) -> Tensor:
    """ψ(x + 1) − log x."""
    return torch.digamma(x + 1.0) - x.log()
