"""Integrals over a Gaussian f of several outputs by randomised quasi-Monte Carlo.

`SCRAMBLES` independent scramblings of a Sobol' net are fixed once and for all: answers are deterministic, and the
spread between the scramblings gives their standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods.likelihood import Likelihood
from bayescope.quadrature import normal_nodes

SCRAMBLES = 16
NODES = 128
_BLOCK_NUMBERS = 2**20
_NEWTON_STEPS = 50
_HALVINGS = 30
_DRIFT_TOLERANCE = 1e-6
# Of the size of the entries of a covariance: J Σ Jᵀ of a network in float32 is not more exact than this.
_ROUNDING = 1e-5
# Eigenvalues that are nearer to each other than this share of the larger one have no eigenvectors to differentiate.
_MEET = 1e-2


@cache
def nodes(dim: int) -> Tensor:
    """The standard normal nodes, shape (SCRAMBLES, NODES, dim)."""
    return torch.stack([normal_nodes(dim, NODES, seed=seed) for seed in range(SCRAMBLES)])


def by_rows(answer: Callable[[slice], tuple[Tensor, ...]], rows: int, numbers: int) -> tuple[Tensor, ...]:
    """The answers of blocks of rows, each of shape (n, …), as one tensor each of shape (N, …).

    What a block takes at all nodes stays near the size of the cache. Answers are written where they belong as they
    come: kept one by one, these small tensors would lie between the large ones of the next blocks, whose memory could
    not be used again, and the process would grow with the rows.

    Args:
        answer: of a range of rows.
        rows: N; where it is 0, the answer of no rows has the shapes.
        numbers: what one row takes at a node, such as its C outputs.
    """
    size = max(1, _BLOCK_NUMBERS // (SCRAMBLES * NODES * numbers))
    whole: tuple[Tensor, ...] | None = None
    for start in range(0, max(1, rows), size):
        block = slice(start, min(start + size, rows))
        parts = answer(block)
        if whole is None:
            whole = tuple(part.new_empty((rows, *part.shape[1:])) for part in parts)
        for to, part in zip(whole, parts, strict=True):
            to[block] = part
    assert whole is not None
    return whole


def principal_root(cov: Tensor, scale: Tensor) -> Tensor:
    """R = V diag(√λ) with R Rᵀ = cov, for positive semi-definite matrices (N, C, C), singular ones among them.

    The widest direction comes first, where the nodes are most even. Each eigenvector's largest entry is positive: so
    the root of relabelled outputs is the relabelled root, unless eigenvalues are equal.

    Args:
        cov: the matrices, float64.
        scale: the size of the numbers they were computed from, shape (N,); rounding is measured against it.

    Raises:
        NotPositiveDefiniteError: if an eigenvalue is negative beyond rounding.
    """
    values, vectors = torch.linalg.eigh(cov.detach())
    wrong = values[:, 0] < -_ROUNDING * scale
    if wrong.any():
        row = int(torch.nonzero(wrong)[0])
        smallest = float(values[row, 0])
        raise NotPositiveDefiniteError(
            f"cov: expected positive semi-definite matrices, got the eigenvalue {smallest:.6g} in row {row}.",
            smallest,
            vectors[row, :, 0],
        )
    # What is still below zero is the rounding of a zero eigenvalue.
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    return eigenroot(torch.where(values > 0, values, 0.0), vectors * largest.sign(), cov).flip(-1)


def eigenroot(values: Tensor, vectors: Tensor, cov: Tensor) -> Tensor:
    """R = V diag(√λ), with a derivative in cov = R Rᵀ where that is in a graph, shape (..., C, C).

    With M = Vᵀ dcov V, any dR = V N with N_ij √λ_j + √λ_i N_ji = M_ij changes R Rᵀ by dcov, and is right for every
    integral over R z. Eigenvectors turn by N_ij = M_ij √λ_j/(λ_j − λ_i), without bound where eigenvalues meet, as they
    do wherever outputs are alike: for those N_ij = ½ M_ij/√λ_j.

    Args:
        values: λ ≥ 0, shape (..., C), without a graph.
        vectors: V, shape (..., C, C), without a graph.
        cov: shape (..., C, C).
    """
    roots = values.sqrt()
    root = vectors * roots[..., None, :]
    if not cov.requires_grad:
        return root
    own, other = values[..., None, :], values[..., :, None]
    meet = (own - other).abs() <= _MEET * torch.maximum(own, other)
    turn = torch.where(meet, 0.5 / roots[..., None, :], roots[..., None, :] / (own - other))
    turn = torch.where(own > _ROUNDING**2 * values.amax(-1)[..., None, None], turn, 0.0)
    return root + vectors @ (turn * (vectors.mT @ (cov - cov.detach()) @ vectors))


def log_expected(likelihood: Likelihood, mean: Tensor, root: Tensor, y: Tensor) -> Tensor:
    """log E[p(y∣f)], f = mean + R z, for a log-concave likelihood, shape (N,), accurate in the tails.

    The nodes are moved to the mode u of p(y∣mean + R u) N(u; 0, I) and reweighted by exp(−uᵀz − ½uᵀu) (the optimal
    drift of Glasserman, Heidelberger & Shahabuddin 1999), so that improbable labels are not left to a few
    extreme nodes.

    Args:
        likelihood: p(y∣f), log-concave in f.
        mean: shape (N, C).
        root: R, shape (N, C, K), of cov = R Rᵀ.
        y: canonical targets of N rows.
    """
    if not len(mean):
        return mean.new_zeros(0)
    dim = root.shape[-1]
    z = nodes(dim).reshape(-1, dim).to(mean.device)

    def answer(rows: slice) -> tuple[Tensor]:
        u = _drift(likelihood, mean[rows], root[rows], y[rows])
        f = mean[rows] + torch.einsum("nck,snk->snc", root[rows], u + z[:, None, :])
        log_terms = likelihood.log_prob(f, y[rows]) - z @ u.mT - 0.5 * u.square().sum(-1)
        return (torch.logsumexp(log_terms, 0) - math.log(z.shape[0]),)

    return by_rows(answer, *mean.shape)[0]


def _drift(likelihood: Likelihood, mean: Tensor, root: Tensor, y: Tensor) -> Tensor:
    """The mode u of log p(y∣mean + R u) − ½uᵀu by Newton steps that are halved until they do not descend, (n, K).

    The answer needs no more accuracy than the integral gains from it, so what 50 steps reach is used.
    """

    def outputs(u: Tensor) -> Tensor:
        return mean + (root @ u[..., None])[..., 0]

    def objective(u: Tensor) -> Tensor:
        return likelihood.log_prob(outputs(u), y) - 0.5 * u.square().sum(-1)

    u = torch.zeros_like(root[:, 0])
    identity = torch.eye(root.shape[-1], dtype=mean.dtype, device=mean.device)
    for _ in range(_NEWTON_STEPS):
        f = outputs(u)
        slope = (root.mT @ likelihood.gradient(f, y)[..., None])[..., 0] - u
        step = torch.linalg.solve(root.mT @ likelihood.hessian(f, y) @ root + identity, slope)
        before = objective(u)
        for _ in range(_HALVINGS):
            worse = objective(u + step) < before
            if not worse.any():
                break
            step = torch.where(worse[:, None], 0.5 * step, step)
        u = u + step
        if step.abs().amax() <= _DRIFT_TOLERANCE * (1.0 + u.abs().amax()):
            break
    return u
