"""The mean and covariance of u, exp(u) and 1/(1 + exp(−u)) for a Gaussian u."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayescope.quadrature import activation_nodes


def elementwise_moments(kinds: Sequence[str], mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of h(u), h_i one of u, exp(u) and σ(u), for u ~ N(mean, covariance).

    Every covariance with u or exp(u) is one-dimensional: Cov(u_i, h(u_j)) = Σ_ij E[h'(u_j)] (Stein), and weighting with
    exp(u_i) moves the mean by Σ_i (tilting): E[exp(u_i) h(u_j)] = E[exp(u_i)] E[h(u_j + Σ_ij)].
    """
    identity, exp, logistic = (torch.tensor([kind == k for kind in kinds]) for k in ("identity", "exp", "logistic"))
    variance = covariance.diagonal()
    exp_mean = torch.where(exp, mean + 0.5 * variance, 0.0).exp()
    sigma = torch.zeros_like(mean)
    slope = torch.ones_like(mean)
    sigma[logistic] = _expected(torch.sigmoid, mean[logistic], variance[logistic])
    slope[logistic] = _expected(_sigmoid_slope, mean[logistic], variance[logistic])
    slope[exp] = exp_mean[exp]
    h_mean = torch.where(identity, mean, torch.where(exp, exp_mean, sigma))

    h_covariance = covariance * slope * slope[:, None]  # right where one of the two is u itself; the rest follows
    both = exp[:, None] & exp
    products = exp_mean[:, None] * exp_mean * torch.where(both, covariance, 0.0).expm1()
    h_covariance = torch.where(both, products, h_covariance)
    _fill(h_covariance, exp, logistic, _exp_logistic(mean, covariance, exp_mean, sigma, exp, logistic))
    _fill(h_covariance, logistic, logistic, _logistic_logistic(mean[logistic], covariance[logistic][:, logistic]))
    return h_mean, h_covariance


def _fill(matrix: Tensor, rows: Tensor, columns: Tensor, block: Tensor) -> None:
    r, c = torch.nonzero(rows)[:, 0], torch.nonzero(columns)[:, 0]
    matrix[r[:, None], c] = block
    matrix[c[:, None], r] = block.mT


def _exp_logistic(
    mean: Tensor, covariance: Tensor, exp_mean: Tensor, sigma: Tensor, exp: Tensor, logistic: Tensor
) -> Tensor:
    """Cov(exp(u_i), σ(u_j)) = E[exp(u_i)] (E[σ(u_j + Σ_ij)] − E[σ(u_j)]), one row per exp coordinate."""
    cross = covariance[exp][:, logistic]
    tilted = _expected(torch.sigmoid, mean[logistic] + cross, covariance.diagonal()[logistic].expand_as(cross))
    return exp_mean[exp][:, None] * (tilted - sigma[logistic])


def _logistic_logistic(mean: Tensor, covariance: Tensor) -> Tensor:
    """Cov(σ(u_i), σ(u_j)) = ∫ (σ(a) − E σ(u_i)) E[σ(u_j)∣u_i = a] N(a) da, the inner expectation by quadrature too."""
    variance = covariance.diagonal()
    nodes, log_weights = activation_nodes(mean, variance)  # (K, S)
    sigmoid = torch.sigmoid(nodes)
    weights = log_weights.exp()
    centred = weights * (sigmoid - (weights * sigmoid).sum(-1, keepdim=True))
    rows = []
    for i in range(mean.shape[0]):
        gain = covariance[i] / variance[i]
        inner_mean = mean[:, None] + gain[:, None] * (nodes[i] - mean[i])  # (K, S)
        inner_variance = (variance - gain * covariance[i]).clamp_min(0.0)  # rounding alone makes it negative (i = j)
        inner = _expected(torch.sigmoid, inner_mean, inner_variance[:, None].expand_as(inner_mean))
        rows.append(inner @ centred[i])
    result = torch.stack(rows) if rows else covariance
    return 0.5 * (result + result.mT)


def _expected(h: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    nodes, log_weights = activation_nodes(mean, variance)
    return (log_weights.exp() * h(nodes)).sum(-1)


def _sigmoid_slope(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)
