"""Integrals over a Gaussian f of several outputs by randomised quasi-Monte Carlo.

`SCRAMBLES` independent scramblings of a Sobol' net are fixed once and for all: answers are deterministic, and the
spread between the scramblings gives their standard error.

`log_means` gives E[softmax(f)_k] of one class at a time by nested sums: to 1e-5 for three or four outputs, to a few per
cent for more.

The 1e-5 do not hold where the covariance is nearly singular and standard deviations are large: above 10 for four
outputs, above 300 for three. The spread of the answers then says how large the error is.

With the differences d_j = f_j − f_k of the K = C − 1 other outputs and the partial sums L_j = log(1 + Σ_{i≤j} exp d_i),

    softmax(f)_k = 1/(1 + Σ_j exp d_j) = Π_j σ(L_{j−1} − d_j),  L_0 = 0,

and each d_j is Gaussian given those before it. The expectation of the last factor is E[σ(a)] ≈ Σ_i w_i Φ(·), in closed
form. The one or two integrals before it are trapezoidal sums over intervals that hold the mass of σ(L − d) N(d), which
lies far out for a rare class, with nodes that crowd around d = L. It is the sequential conditioning of Genz (1992), who
integrates over orthants, for a softmax.

The grids have `SHIFTS` random shifts, fixed once and for all, each of which gives an unbiased answer: the spread of the
answers is their standard error. Integrals whose standard error is too large get finer grids. For a rare class of many
there are scrambled Sobol' points in the place of grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods.likelihood import Likelihood
from bayescope.quadrature import crowded, normal_nodes

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
SHIFTS = 8
# What no spread between shifts shows: the largest error of `_log_expected_sigmoid` in E, and what the grids leave out.
BIAS = 2e-8
# σ(a) ≈ Σ_i w_i Φ(a/s_i) (Monahan & Stefanski 1992), fitted to the least largest error: 1.3e-8.
_SDS = (
    0.7743830972181065,
    1.018606684684242,
    1.328737442790642,
    1.7381973641298962,
    2.2806152822891206,
    2.994013205597004,
    3.9658832562043553,
)
_WEIGHTS = (
    0.007728078405407216,
    0.09599857764299834,
    0.28214547243691374,
    0.34546003047337465,
    0.20964586321826312,
    0.05543729813363383,
    0.0035846796894091577,
)
# Nodes of the grids in each of one or two dimensions, and the standard errors, absolute and relative, above which the
# next grid is taken.
_SIZES = {1: (9, 13, 19, 30, 90, 384, 1536, 6144), 2: (9, 13, 19, 26, 44, 88, 176)}
_ERROR, _RELATIVE_ERROR = 2e-6, 1e-2
# Nodes lie where the integrand is within exp(−_DEPTH) of its value near its mode.
_DEPTH = 15.0
# The errors of a sum consist of few frequencies h, and of the same ones for all integrals. This seed is the one of
# 300,000 whose shifts s are the most typical for h = (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (1, 1) and (1, −1): the
# squared modulus of the mean of exp(2πi h·s) is 1/SHIFTS to within 26 %, so that errors are as large as the spread.
_SEED = 112969
# A Gaussian with smaller variances is a point: the answer is right to 1e-9.
_POINT = 1e-8
# For one of many classes: points in each scrambling, how far above the edge of σ a draw of d lies at most, the slope
# that is left there, and from where on a truncated Gaussian is an exponential.
_POINTS = 32
_EDGE, _SLOPE, _FAR, _LEVEL = 9.0, 0.1, 30.0, 1e-6
_SUM_NUMBERS = 2**17
_TINY = 1e-300


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
    largest = vectors.take_along_dim(vectors.abs().argmax(-2, keepdim=True), -2)
    return eigenroot(torch.where(values > 0, values, 0.0), vectors * largest.sign(), cov).flip(-1)


def gaussian_points(mean: Tensor, cov: Tensor, count: int) -> Tensor:
    """Equally weighted quasi-Monte-Carlo points of N(mean, cov), shape (count, N, C)."""
    root = principal_root(cov, cov.diagonal(dim1=-2, dim2=-1).amax(-1))
    return mean + torch.einsum("ncd,sd->snc", root, normal_nodes(mean.shape[-1], count).to(mean))


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
    column, row = values[..., None, :], values[..., :, None]
    meet = (column - row).abs() <= _MEET * torch.maximum(column, row)
    turn = torch.where(meet, 0.5 / roots[..., None, :], roots[..., None, :] / (column - row))
    turn = torch.where(column > _ROUNDING**2 * values.amax(-1)[..., None, None], turn, 0.0)
    return root + vectors @ (turn * (vectors.mT @ (cov - cov.detach()) @ vectors))


def log_expected(likelihood: Likelihood, mean: Tensor, root: Tensor, y: Tensor) -> Tensor:
    """log E[p(y∣f)], f = mean + R z, shape (N,), accurate in the tails.

    The nodes are moved to the mode u of p(y∣mean + R u) N(u; 0, I) and reweighted by exp(−uᵀz − ½uᵀu) (the optimal
    drift of Glasserman, Heidelberger & Shahabuddin 1999), so that improbable labels are not left to a few
    extreme nodes.

    Args:
        likelihood: p(y∣f).
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
        step = torch.linalg.solve(root.mT @ likelihood.ggn(f, y).dense() @ root + identity, slope)
        before = objective(u)
        for _ in range(_HALVINGS):
            worse = ~(objective(u + step) >= before)  # also where an own density overflows
            if not worse.any():
                break
            step = torch.where(worse[:, None], 0.5 * step, step)
        u = u + step
        if step.abs().amax() <= _DRIFT_TOLERANCE * (1.0 + u.abs().amax()):
            break
    return u


def log_means(mean: Tensor, cov: Tensor) -> Tensor:
    """log E[1/(1 + Σ_j exp d_j)] for M Gaussians d, one answer for each shift, shape (SHIFTS, M).

    Args:
        mean: E[d], shape (M, K) with K of 2 or 3.
        cov: positive semi-definite, shape (M, K, K).
    """
    at_mean = -torch.cat([torch.zeros_like(mean[:, :1]), mean], -1).logsumexp(-1)
    answers = at_mean.expand(SHIFTS, -1)
    rows = torch.nonzero(cov.detach().diagonal(dim1=-2, dim2=-1).amax(-1) > _POINT)[:, 0]
    for size in _SIZES[mean.shape[1] - 1]:
        if not len(rows):
            break
        block = max(1, _SUM_NUMBERS // (SHIFTS * size ** (mean.shape[1] - 1)))
        found = torch.cat([_at_grids(mean[some], cov[some], size) for some in rows.split(block)], 1)
        answers = answers.index_copy(1, rows, found)
        means = found.detach().exp()
        largest = (_RELATIVE_ERROR * means.mean(0)).clamp_max(_ERROR)
        rows = rows[means.std(0) > largest * math.sqrt(SHIFTS)]
    return answers


def log_means_of_many(mean: Tensor, cov: Tensor) -> Tensor:
    """The same for any K: the d are drawn one after the other at scrambled Sobol' points, shape (SCRAMBLES, M).

    The standard error is a few hundredths of the answer, however small that is.
    """
    count = mean.shape[1]
    uniform = torch.special.ndtr(nodes(count - 1)[:, :_POINTS]).to(mean).unbind(-1)
    block = max(1, _SUM_NUMBERS // (SCRAMBLES * _POINTS))
    found = []
    for centre, spread in zip(mean.split(block), cov.split(block), strict=True):
        order = (centre.detach() / torch.sqrt(3.0 + spread.detach().diagonal(dim1=-2, dim2=-1))).argsort(-1).flip(-1)
        log_terms = _log_terms(*_permuted(centre, spread, order), [each[..., None] for each in uniform], _drawn)
        found.append(torch.logsumexp(log_terms, 1) - math.log(_POINTS))
    return torch.cat(found, 1)


def _at_grids(mean: Tensor, cov: Tensor, size: int) -> Tensor:
    """The answers of all shifts of a grid of `size` nodes in each dimension, shape (SHIFTS, M)."""
    levels = mean.shape[1] - 1
    places = []
    for j in range(levels):
        shape = (SHIFTS, *[1] * j, size, *[1] * (levels - 1 - j), 1)
        places.append(((torch.arange(size) + _shifts()[:, j, None]) / size).to(mean).reshape(shape))
    log_terms = _log_terms(*_ordered(mean, cov), places, _sum_nodes)
    return torch.logsumexp(log_terms, tuple(range(1, levels + 1))) - levels * math.log(size)


def _log_terms(
    mean: Tensor,
    cov: Tensor,
    places: Sequence[Tensor],
    nodes_at: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """The logarithms of what the nodes of all d but the last add to the answer, with M as the last dimension."""
    centres = list(mean.unbind(-1))
    log_sum = torch.zeros_like(centres[0])
    log_terms = log_sum
    for j, place in enumerate(places):
        sd, load = _pivot(cov, j)
        gap = log_sum - centres[j]
        x, log_weight = nodes_at(gap, sd, place)  # in the graph: derivatives are then those of the sum itself
        log_factor = logsigmoid(gap + sd * x)
        log_terms = log_terms + (log_weight + log_factor)
        log_sum = log_sum - log_factor
        centres = [centre if i <= j else centre - load[:, i] * x for i, centre in enumerate(centres)]
        cov = cov - load[:, :, None] * load[:, None, :]
    return log_terms + _log_expected_sigmoid(log_sum - centres[-1], cov[:, -1, -1].clamp_min(0.0))


def _ordered(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """First the d that is least likely to be below 0, last the one that varies most given it."""
    variance = cov.diagonal(dim1=-2, dim2=-1).detach()
    first = (mean.detach() / torch.sqrt(3.0 + variance)).argmax(-1, keepdim=True)
    column = cov.detach().take_along_dim(first[..., None], -1)[..., 0]
    left = variance - column.square() / variance.take_along_dim(first, -1).clamp_min(_TINY)
    order = left.scatter(-1, first, -torch.inf).argsort(-1)
    return _permuted(mean, cov, order)


def _permuted(mean: Tensor, cov: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    rows = cov.take_along_dim(order[..., None], -2)
    return mean.take_along_dim(order, -1), rows.take_along_dim(order[:, None], -1)


def _pivot(cov: Tensor, j: int) -> tuple[Tensor, Tensor]:
    """The sd of d_j, and how much all d change per sd of it; 0 where it does not vary beyond rounding."""
    variance = cov[:, j, j]
    varies = variance > 1e-14 * cov.diagonal(dim1=-2, dim2=-1).amax(-1)
    sd = torch.where(varies, variance, 1.0).sqrt()
    load = torch.where(varies[:, None], cov[:, j] / sd[:, None], 0.0)
    return torch.where(varies, sd, 0.0), load


def _sum_nodes(gap: Tensor, sd: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes x and log weights of a sum for E[σ(gap + sd x) h(x)], x ~ N(0, 1), at places in [0, 1].

    At any x₀ the integrand's log is at least m = log σ(gap + sd x₀) − x₀²/2, and it is at most −x²/2 and at most
    gap + sd x − x²/2 anywhere: what is within `_DEPTH` of m lies between roots of these two parabolas.
    """
    edge = -gap / sd.clamp_min(_TINY)
    near = torch.minimum(edge.clamp_min(0.0), sd)
    least = logsigmoid(gap + sd * near) - 0.5 * near.square() - _DEPTH
    reach = torch.sqrt(-2.0 * least)
    root = torch.sqrt((sd.square() + 2.0 * (gap - least)).clamp_min(0.0))
    low, high = torch.maximum(-reach, sd - root), torch.minimum(reach, sd + root)
    centre = torch.minimum(torch.maximum(edge, low), high)
    w, slope, length = crowded(low - centre, high - centre, sd, places)
    x = w + centre
    return x, (slope * length).log() - 0.5 * x.square() - 0.5 * math.log(2 * math.pi)


def _drawn(gap: Tensor, sd: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draws x from a Gaussian near σ(gap + sd x) N(x), and the logarithms of N(x) over its density.

    It is N(λ sd, 1) above where gap + sd x = −_EDGE. The tilt λ leaves it a slope of at most `_SLOPE` at that edge.
    """
    width = sd.clamp_min(_TINY**0.5)
    slope = -gap / width.square()
    shift = sd * (slope - _SLOPE).clamp(0.0, 1.0)
    # Beyond the edge the integrand falls by 1 less the Gaussian's slope: where that is 1, it has no end there.
    low = (-gap - _EDGE / (1.0 - slope.clamp(0.0, 1.0)).clamp_min(_LEVEL)) / width - shift
    log_share = torch.special.log_ndtr(-low)
    near = -torch.special.ndtri((uniform.log() + log_share).exp().clamp_min(_TINY))
    far = low - uniform.log() / low.clamp_min(1.0)  # an exponential, beyond where Φ⁻¹ can be computed
    x = torch.where(low > _FAR, far, near)
    return x + shift, log_share - shift * x - 0.5 * shift.square()


def _shifts() -> Tensor:
    """The shifts of the grids in steps, shape (SHIFTS, 2)."""
    return torch.rand(SHIFTS, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(_SEED))


def _log_expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[σ(a)] for a ~ N(mean, variance), as a mixture of Φ; below −variance/2 by σ(a) = eᵃ σ(−a)."""
    tilt = mean < -0.5 * variance
    score = torch.where(tilt, mean + variance, -mean)
    mixture = torch.zeros_like(score)
    for sd, weight in zip(_SDS, _WEIGHTS, strict=True):
        mixture = mixture + 0.5 * weight * torch.erfc(score * torch.rsqrt(2.0 * (variance + sd**2)))
    # Where Φ underflows, 37 sds out, its asymptotic form
    far = score * torch.rsqrt(variance + 1.0)
    log_tail = -0.5 * far.square() - far.clamp_min(1.0).log() - 0.5 * math.log(2 * math.pi)
    log_mixture = torch.where(mixture > 0, mixture.clamp_min(_TINY).log(), log_tail)
    return torch.where(tilt, mean + 0.5 * variance, 0.0) + log_mixture
