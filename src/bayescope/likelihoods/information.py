"""Entropies in nats, and the mutual information of an outcome with what its distribution is drawn from.

For θ ~ w and y∣θ ~ p_θ with average p, I(y; θ) = H[p] − E H[p_θ] = E KL(p_θ‖p), the generalised Jensen–Shannon
divergence (Lin 1991, section V). The second form is a sum of terms that are not negative, which the first only becomes
after a difference of large numbers: it is the one computed. With x = p_θ/p − 1 they are p ((1 + x) log(1 + x) − x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescope.likelihoods.likelihood import Moments
from bayescope.quadrature import adaptive_integral

# Beyond this many sds of its mean a Gaussian in a mixture is left out, and with less than this weight it need not be
# resolved: what it tells is below 1e-9 nats.
_REACH = 9.0
_NEGLIGIBLE = 1e-10
# What a density of 0 is read as in a logarithm: 0 times that is 0, and so is its derivative.
_TINY = 1e-300
# Gaussians times nodes that are evaluated at once.
_BLOCK_NUMBERS = 2**17


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


def entropy_of_mixture(log_weights: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """H[y] of y ~ N(m_s, v_s), s ~ w, as I(y; s) + Σ_s w_s ½ log(2πe v_s), summed over the outputs, shape (N,).

    Args:
        log_weights: log w, normalised, shape (S,).
        means: shape (S, N, K).
        variances: positive, shape (S, N, K).
    """
    given = torch.tensordot(log_weights.exp(), 0.5 * (variances.log() + math.log(2 * math.pi) + 1.0), dims=1)
    return given.sum(-1) + information_of_mixture(log_weights, means, variances)


def information_of_mixture(
    log_weights: Tensor, means: Tensor, variances: Tensor, sizes: Sequence[int] | None = None
) -> Tensor:
    """I(y; s) of y ~ N(m_s, v_s), s ~ w, or of which group of Gaussians y came from; summed over the outputs.

    By adaptive quadrature over y, right to 1e-9.

    Args:
        log_weights: log w, normalised, shape (S,).
        means: shape (S, N, K).
        variances: positive, shape (S, N, K).
        sizes: of consecutive groups; every Gaussian is one of its own if not given.

    Returns:
        Shape (N,).
    """
    if len(log_weights) == 1 or (sizes is not None and len(sizes) == 1):
        return (0.0 * means[0]).sum(-1)
    centres, sds = (values.flatten(1).mT for values in (means, variances.sqrt()))
    log_heights = log_weights - sds.log() - 0.5 * math.log(2 * math.pi)
    weighty = log_weights > math.log(_NEGLIGIBLE)

    def finest(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        centre, sd = centres[rows], sds[rows]
        reaches = (centre - _REACH * sd < high[:, None]) & (centre + _REACH * sd > low[:, None]) & weighty
        return torch.where(reaches, sd, torch.inf).amin(-1)

    def integrand(rows: Tensor, y: Tensor) -> Tensor:
        score = (y[..., None] - centres[rows][:, None]) / sds[rows][:, None]
        return _log_ratios(log_heights[rows][:, None] - 0.5 * score.square(), log_weights, sizes)

    with torch.no_grad():
        low, high = (centres - _REACH * sds).amin(-1), (centres + _REACH * sds).amax(-1)
    block = max(1, _BLOCK_NUMBERS // len(log_weights))
    each = adaptive_integral(integrand, low, high, finest=finest, block=block)
    # Where all Gaussians are alike the integrand is 0, and what is left of it rounding
    return each.clamp_min(0.0).reshape(means.shape[1:]).sum(-1)


def _log_ratios(log_terms: Tensor, log_weights: Tensor, sizes: Sequence[int] | None) -> Tensor:
    """Σ_g w_g p_g log(p_g/p) at y, shape (...), for the log w_s p_s of its Gaussians, shape (..., S)."""
    terms = log_terms.exp()
    average = terms.sum(-1)
    of_average = average * average.clamp_min(_TINY).log()
    if sizes is None:
        # A weight of 0 says nothing, and 0 ∞ = NaN
        log_density = torch.where(log_weights > -torch.inf, log_terms - log_weights, 0.0)
        return (terms * log_density).sum(-1) - of_average
    groups = torch.stack([part.sum(-1) for part in terms.split(list(sizes), -1)], -1)
    weights = torch.stack([part.exp().sum() for part in log_weights.split(list(sizes))])
    ratio = groups / weights.clamp_min(_TINY)
    return (groups * ratio.clamp_min(_TINY).log()).sum(-1) - of_average


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
