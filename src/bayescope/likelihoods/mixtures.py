"""Outcomes that are mixtures of Gaussians: their entropy, information and CRPS, quantiles and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayescope.quadrature import adaptive_integral
from bayescope.special import log_ndtr

# Beyond this many sds of its mean a Gaussian in a mixture is left out, and with less than this weight it need not be
# resolved: what it tells is below 1e-9 nats.
_REACH = 9.0
_NEGLIGIBLE = 1e-10
# What a density of 0 is read as in a logarithm: 0 times that is 0, and so is its derivative.
_TINY = 1e-300
# Gaussians times nodes that are evaluated at once.
_BLOCK_NUMBERS = 2**17
# A quantile is found when a step of Newton's method is at most this share of the mixture's width.
_NEWTON_STEPS, _ROUNDING = 12, 1e-13


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

    def integrand(rows: Tensor, scores: Tensor) -> Tensor:
        return _log_ratios(log_heights[rows][:, None] - 0.5 * scores.square(), log_weights, sizes)

    each = _over_outcomes(log_weights, centres, sds, integrand)
    # Where all Gaussians are alike the integrand is 0, and what is left of it rounding
    return each.clamp_min(0.0).reshape(means.shape[1:]).sum(-1)


def crps_of_mixture(log_weights: Tensor, means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """The CRPS of y ~ N(m_s, v_s), s ~ w, of each output by itself, shape (N, K).

    It is E∣Y − y∣ − ½ E∣Y − Y'∣ (Gneiting & Raftery 2007, equation 21). The first term is closed, by
    E∣N(m, v)∣ = m (2Φ(m/√v) − 1) + 2√v φ(m/√v). The second one is √(v/π) for one Gaussian. For S of them it would be a
    sum over S² pairs; it equals ∫ F (1 − F), which is found by adaptive quadrature, right to 1e-9 standard deviations.

    Args:
        log_weights: log w, normalised, shape (S,).
        means: shape (S, N, K).
        variances: positive, shape (S, N, K).
        y: the outcomes, shape (N, K).
    """
    sds, weights = variances.sqrt(), log_weights.exp()
    scores = (means - y) / sds
    sizes = (means - y) * torch.erf(scores / math.sqrt(2.0))
    sizes = sizes + sds * math.sqrt(2.0 / math.pi) * (-0.5 * scores.square()).exp()
    near = torch.tensordot(weights, sizes, dims=1)
    if len(weights) == 1:
        return near - sds[0] / math.sqrt(math.pi)

    def integrand(_: Tensor, scores: Tensor) -> Tensor:
        below = torch.special.ndtr(scores) @ weights
        return below * (1.0 - below)

    centre = torch.tensordot(weights, means, dims=1)
    unit = torch.tensordot(weights, variances + (means - centre).square(), dims=1).sqrt()
    centres, widths = (values.flatten(1).mT for values in ((means - centre) / unit, sds / unit))
    return near - unit * _over_outcomes(log_weights, centres, widths, integrand).reshape(unit.shape)


def mixture_cdf(log_weights: Tensor, means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """Σ_k w_k Φ((y − m_k)/s_k), shape (N, K), for weights (S,) and means and variances (S, N, K)."""
    return torch.tensordot(log_weights.exp(), torch.special.ndtr((y - means) / variances.sqrt()), dims=1)


def mixture_quantile(log_weights: Tensor, means: Tensor, variances: Tensor, level: float) -> Tensor:
    """Solves Σ_k w_k Φ((q − m_k)/s_k) = level to working precision, elementwise over (N, K).

    By Newton's method, which stays between the quantiles of the parts, and by bisection where it does not converge.

    Args:
        log_weights: shape (S,).
        means: shape (S, N, K).
        variances: shape (S, N, K).
        level: in (0, 1).
    """
    sds, weights = variances.sqrt(), log_weights.exp()[:, None, None]
    each = means + normal_quantile(level) * sds

    def scores(q: Tensor) -> Tensor:
        # A part with sd 0 is a step at its mean; (0)/0 at the step itself is its upper side.
        return torch.where(sds > 0, (q - means) / sds, torch.where(q >= means, math.inf, -math.inf))

    def below(q: Tensor) -> Tensor:
        return (weights * torch.special.ndtr(scores(q))).sum(0) < level

    low, high, q = each.amin(0), each.amax(0), (weights * each).sum(0)
    width = (weights * sds).sum(0) + high - low
    for _ in range(_NEWTON_STEPS):
        score = scores(q)
        excess = (weights * torch.special.ndtr(score)).sum(0) - level
        low, high = torch.where(excess < 0, q, low), torch.where(excess < 0, high, q)
        density = (weights * (-0.5 * score.square()).exp() / sds).sum(0) / math.sqrt(2.0 * math.pi)
        newton = q - excess / density
        move = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high)) - q
        q = q + move
        if bool((move.abs() <= _ROUNDING * width).all()):
            return q
    return _bisected(below, each)


def mixture_interval(log_weights: Tensor, means: Tensor, variances: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The ends below and above which Σ_k w_k N(m_k, v_k) has the mass Φ(−score) each, however little that is.

    By bisection of the logarithm of the tails to working precision, elementwise over (N, K).

    Args:
        log_weights: shape (S,).
        means: shape (S, N, K).
        variances: positive, shape (S, N, K).
        scores: not negative, shape (K,).
    """
    sds, log_tail = variances.sqrt(), log_ndtr(-scores)

    def lower_end(centres: Tensor) -> Tensor:
        def below(q: Tensor) -> Tensor:
            terms = log_weights[:, None, None] + log_ndtr((q - centres) / sds)
            return torch.logsumexp(terms, 0) < log_tail

        return _bisected(below, centres - scores * sds)

    return lower_end(means), -lower_end(-means)


def normal_quantile(level: float) -> float:
    return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))


def _over_outcomes(
    log_weights: Tensor, centres: Tensor, sds: Tensor, integrand: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """∫ h_r(y) dy over the reach of R mixtures of Gaussians, shape (R,), right to 1e-9.

    Args:
        log_weights: of the S Gaussians, shape (S,).
        centres: shape (R, S).
        sds: shape (R, S).
        integrand: h, from the rows r of panels, shape (P,), and the scores (y − centre)/sd of their nodes, shape
            (P, nodes, S).
    """
    weighty = log_weights > math.log(_NEGLIGIBLE)

    def finest(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        centre, sd = centres[rows], sds[rows]
        reaches = (centre - _REACH * sd < high[:, None]) & (centre + _REACH * sd > low[:, None]) & weighty
        return torch.where(reaches, sd, torch.inf).amin(-1)

    def at(rows: Tensor, y: Tensor) -> Tensor:
        return integrand(rows, (y[..., None] - centres[rows][:, None]) / sds[rows][:, None])

    with torch.no_grad():
        low, high = (centres - _REACH * sds).amin(-1), (centres + _REACH * sds).amax(-1)
    block = max(1, _BLOCK_NUMBERS // len(log_weights))
    return adaptive_integral(at, low, high, finest=finest, block=block)


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


def _bisected(below: Callable[[Tensor], Tensor], each: Tensor) -> Tensor:
    """A mixture's quantile, which lies between those of its parts, shape (S, N, K)."""
    low, high = each.amin(0), each.amax(0)
    for _ in range(60):
        if torch.equal(low, high):
            break
        middle = 0.5 * (low + high)
        less = below(middle)
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return 0.5 * (low + high)
