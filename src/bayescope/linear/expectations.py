"""Expected log likelihoods of a linear model's rows under Gaussian outputs, with their derivatives.

For f ~ N(μ, Σ) the derivatives are expectations too (Bonnet's and Price's theorems, Opper & Archambeau 2009, eq. 12):

    ∂ E[log p(y∣f)]/∂μ = E[∂ log p/∂f],    −2 ∂ E[log p(y∣f)]/∂Σ = E[Λ],    Λ = −∂² log p/∂f².

None of the rules draws random numbers: the same mean and covariance give the same value to the last digit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.likelihoods import Gaussian, Likelihood, MultivariateGaussian, WithOffset, variances
from bayescope.likelihoods.elementwise import Elementwise
from bayescope.quadrature import activation_nodes, normal_nodes

# Rows × nodes × outputs that are worked on at once: what is computed from them stays in a core's cache.
BLOCK_ENTRIES = 2**16


class Expectation(NamedTuple):
    """E[log p(y∣f)] per row, f ~ N(μ, Σ), and its derivatives.

    Attributes:
        log_prob: E[log p(y∣f)], shape (N,).
        gradient: ∂E/∂μ, shape (N, C).
        curvature: −2 ∂E/∂Σ, symmetric, shape (N, C, C): the expected Λ.
    """

    log_prob: Tensor
    gradient: Tensor
    curvature: Tensor


def expected_log_likelihood(
    likelihood: Likelihood, mean: Tensor, cov: Tensor, y: Tensor, *, nodes: int = 512
) -> Expectation:
    """E[log p(y∣f)] and its derivatives for each of N rows f ~ N(mean, cov).

    One output and a class label: a one-dimensional quadrature, right to 1e-10. Numbers that depend on an output each:
    that quadrature or a closed form for each of them. A Gaussian outcome: the closed form.
    More than two classes: `nodes` fixed quasi-Monte-Carlo points.

    Args:
        likelihood: p(y∣f).
        mean: μ, shape (N, C).
        cov: Σ, shape (N, C, C).
        y: targets in canonical form, N of them.
        nodes: how many points for more than two classes, a power of two.

    Raises:
        UnsupportedError: if no rule is known for the likelihood; the message lists those that have one.
    """
    outputs = mean.shape[-1]
    if isinstance(likelihood, WithOffset):
        at = likelihood.moved(mean, y)
        return expected_log_likelihood(likelihood.likelihood, at, cov, likelihood.outcomes(y), nodes=nodes)
    if isinstance(likelihood, Elementwise):
        parts = zip(*(each.split(BLOCK_ENTRIES // 128) for each in (mean, variances(cov), y)), strict=True)
        sums = zip(*(likelihood.expected_log_density(*part) for part in parts), strict=True)
        log_prob, gradient, curvature = (torch.cat(each) for each in sums)
        return Expectation(log_prob.sum(-1), gradient, torch.diag_embed(curvature))
    if likelihood.parts:
        columns = zip(likelihood.parts, mean.split(1, -1), variances(cov).split(1, -1), y.split(1, -1), strict=True)
        each = [expected_log_likelihood(part, m, v[..., None], column) for part, m, v, column in columns]
        sums = zip(*((e.log_prob[:, None], e.gradient, e.curvature[..., 0]) for e in each), strict=True)
        log_prob, gradient, curvature = (torch.cat(some, -1) for some in sums)
        return Expectation(log_prob.sum(-1), gradient, torch.diag_embed(curvature))
    if isinstance(likelihood, Gaussian | MultivariateGaussian):
        return _quadratic(likelihood, mean, cov, y)
    if likelihood.domain.kind in ("binary", "ordered") and outputs == 1:
        parts = zip(*(each.split(BLOCK_ENTRIES // 128) for each in (mean, cov, y)), strict=True)
        blocks = [_over_activation(likelihood, *part) for part in parts]
        return Expectation(*(torch.cat(each) for each in zip(*blocks, strict=True)))
    if likelihood.domain.kind == "classes":
        return _over_contrasts(likelihood, mean, cov, y, _matched_nodes(outputs - 1, nodes))
    raise UnsupportedError(
        f"likelihood: expected classes, or numbers that depend on an output each, got {likelihood.name} with "
        f"{outputs} outputs."
    )


def log_expected_likelihood(
    likelihood: Likelihood, mean: Tensor, cov: Tensor, y: Tensor, *, nodes: int = 512
) -> Tensor:
    """log E[p(y∣f)] of the outcomes y of N rows f ~ N(mean, cov), shape (N,).

    Classes: the fixed points of `expected_log_likelihood`. Others: the likelihood's own integral.
    """
    outputs = mean.shape[-1]
    if likelihood.domain.kind != "classes":
        return likelihood.predictive_log_prob(mean, cov, y, likelihood.integral(None, outputs))
    z = _matched_nodes(outputs - 1, nodes)
    steps, _ = _roots(cov)
    rows = max(1, BLOCK_ENTRIES // (z.shape[0] * outputs))
    parts = zip(mean.split(rows), steps.split(rows), y.split(rows), strict=True)
    found = [likelihood.log_prob((some[..., None] + step @ z.mT).permute(2, 0, 1), each) for some, step, each in parts]
    return torch.cat(found, dim=1).logsumexp(0) - math.log(z.shape[0])


def _quadratic(likelihood: Likelihood, mean: Tensor, cov: Tensor, y: Tensor) -> Expectation:
    """log p is quadratic in f: E[log p(y∣f)] = log p(y∣μ) − ½ tr(ΛΣ)."""
    curvature = likelihood.hessian(mean, y)
    log_prob = likelihood.log_prob(mean, y) - 0.5 * (curvature * cov).sum((-2, -1))
    return Expectation(log_prob, likelihood.gradient(mean, y), curvature)


def _over_activation(likelihood: Likelihood, mean: Tensor, cov: Tensor, y: Tensor) -> Expectation:
    """One output: f is the activation a ~ N(μ, σ²)."""
    nodes, log_weights = activation_nodes(mean[:, 0], cov[:, 0, 0])
    f, weights = nodes.mT[..., None], log_weights.exp().mT
    log_prob = (weights * likelihood.log_prob(f, y)).sum(0)
    gradient = (weights * likelihood.gradient(f, y)[..., 0]).sum(0)
    curvature = (weights * likelihood.hessian(f, y)[..., 0, 0]).sum(0)
    return Expectation(log_prob, gradient[:, None], curvature[:, None, None])


def _over_contrasts(likelihood: Likelihood, mean: Tensor, cov: Tensor, y: Tensor, z: Tensor) -> Expectation:
    """Classes: f = μ + U L z with U an orthonormal basis of the contrasts between classes and L Lᵀ = UᵀΣU.

    A softmax does not change when all outputs are shifted by the same amount, so that direction is left out exactly.
    The derivatives are those of the sum over the nodes itself, so that the sum is a function that can be maximised to
    working precision. By the chain rule through the Cholesky factor, with D = Σ_s w_s Uᵀ∇log p(f_s) z_sᵀ = ∂E/∂L,
    ∂E/∂(LLᵀ) = L⁻ᵀ sym(tril(LᵀD) − ½ diag(LᵀD)) L⁻¹.
    """
    labelled = likelihood.labelled(y)
    places = y if labelled is None else torch.where(labelled, y, 0)
    basis = _contrasts(mean.shape[-1])
    steps, root = _roots(cov)
    rows = max(1, BLOCK_ENTRIES // (z.shape[0] * mean.shape[-1]))
    parts = zip(mean.split(rows), steps.split(rows), places.split(rows), strict=True)
    sums = [_at_nodes(*part, z) for part in parts]
    log_prob, gradient, by_node = (torch.cat(each) for each in zip(*sums, strict=True))
    inner = (root.mT @ (basis.mT @ by_node)).tril()
    inner = inner + inner.mT - torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
    eye = torch.eye(root.shape[-1], dtype=root.dtype)
    inverse = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False) @ basis.mT
    curvature = -(inverse.mT @ inner @ inverse)
    if labelled is not None:
        counted = labelled.to(mean.dtype)
        log_prob, gradient, curvature = (
            counted * log_prob,
            counted[:, None] * gradient,
            counted[:, None, None] * curvature,
        )
    return Expectation(log_prob, gradient, curvature)


def _roots(cov: Tensor) -> tuple[Tensor, Tensor]:
    """U L, shape (N, C, C − 1), and L, for the Cholesky factor L of UᵀΣU; of a row that does not vary 0 and I."""
    basis = _contrasts(cov.shape[-1])
    spread = basis.mT @ cov @ basis
    # A row of zeros in a model without bias: f does not vary, and J = 0 multiplies whatever curvature stands here.
    still = (spread.diagonal(dim1=-2, dim2=-1).sum(-1) == 0)[:, None, None]
    root = torch.linalg.cholesky(torch.where(still, torch.eye(spread.shape[-1], dtype=spread.dtype), spread))
    return basis @ torch.where(still, 0.0, root), root


def _at_nodes(mean: Tensor, steps: Tensor, places: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means over the nodes of log p_y, of ∂ log p_y/∂f and of its product with z, for n rows f = mean + steps z.

    The nodes are the last dimension, where torch is fast. The entry of the label is the sum of the others with its
    sign turned, which does not cancel as p_y → 1.
    """
    f = (steps @ z.mT).add_(mean[..., None])
    f -= f.amax(1, keepdim=True)
    label = places[:, None, None]
    chosen = f.take_along_dim(label, 1).mean((1, 2))
    total = f.exp_().sum(1, keepdim=True)
    f /= total
    gradient, by_node = -f.mean(-1, keepdim=True), f @ (z / -z.shape[0])
    for each in (gradient, by_node):
        where = label.expand(-1, -1, each.shape[-1])
        each.scatter_(1, where, -each.scatter(1, where, 0.0).sum(1, keepdim=True))
    return chosen - total.log().mean((1, 2)), gradient[..., 0], by_node


@cache
def _contrasts(outputs: int) -> Tensor:
    """An orthonormal basis U of the vectors in ℝᶜ that sum to zero, shape (C, C − 1), by Helmert's construction."""
    index = torch.arange(outputs, dtype=torch.float64)
    columns = [(index < k).to(torch.float64) - k * (index == k) for k in range(1, outputs)]
    return torch.stack([column / column.norm() for column in columns], dim=1)


@cache
def _matched_nodes(dim: int, n: int) -> Tensor:
    """Quasi-Monte-Carlo points of N(0, I) with z and −z in pairs and the identity for their covariance, shape (n, dim).

    Then every cubic polynomial is integrated exactly.
    """
    half = normal_nodes(dim, max(1, n // 2))
    root = torch.linalg.cholesky(half.mT @ half / half.shape[0])
    half = torch.linalg.solve_triangular(root, half.mT, upper=False).mT
    return torch.cat([half, -half])
