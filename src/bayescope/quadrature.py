"""Integrals against Gaussians: fixed nodes and weights, and E[σ(a)] to relative accuracy anywhere.

Functions of an activation a ~ N(mean, variance) such as σ(a) have structure of unit size around a = 0 however wide the
Gaussian is, and Gauss–Hermite nodes step over it (at sd 10 they are off by 3e-3). The rules here are trapezoidal
sums, which converge geometrically for analytic functions (Trefethen & Weideman 2014), in a variable whose
nodes crowd around a = 0 and are spread evenly on the scale of the Gaussian elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from scipy.stats import norm, qmc
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import checks
from bayescope.errors import ConvergenceError, InputError

# Half the width of the trapezoidal rules in standard deviations: 6e-14 of a Gaussian's mass lies outside.
_REACH = 7.5
# Up to this sd equally spaced nodes are cheaper than crowded ones. They need a step of about 0.6 in a.
_PLAIN_SD = 4.0
_CROWDED_NODES = 112
# The nodes crowd within ±_CROWDING of a = 0; σ has its poles at ±iπ, log Φ at distance 2.8 from the real axis.
_CROWDING = 2.0
# Beyond this many sds a = 0 is out of reach, and so is the crowding: only then may its place be moved.
_FAR = 20.0
_ROW_BLOCK = 1024
# A search for the mass of an integrand: nodes of its grids, how deep below the peak it follows, the most
# times that it is narrowed, and the share of the nodes that the mass fills when it is done.
_GRID_NODES = 129
_DEPTH = 42.0
_ZOOMS = 12
_SETTLED = 0.5
# Adaptive panels: nodes less one, how often they are halved, what they may be off by, and how many of the widths of the
# finest structure they span: 17 nodes over 8 sds of a Gaussian cannot miss it.
_PANEL = 16
_HALVINGS = 60
_PANEL_ERROR = 1e-9
_FINEST = 8.0


@cache
def gauss_hermite(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and log weights, each (n,), with Σ w h(z) = E[h(z)], z ~ N(0, 1), exact for polynomials of degree 2n − 1.

    For functions that are smooth on the scale of the Gaussian; see `activation_nodes` for those that are not.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(checks.count("n", n))
    return torch.from_numpy(nodes), torch.from_numpy(np.log(weights) - 0.5 * math.log(2 * math.pi))


@cache
def gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights, each (n,), with Σ w h(t) = ∫₀¹ h(t) dt, exact for polynomials of degree 2n − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(checks.count("n", n))
    return torch.from_numpy(0.5 * (nodes + 1)), torch.from_numpy(0.5 * weights)


@cache
def normal_nodes(dim: int, n: int, *, seed: int = 0) -> Tensor:
    """n scrambled Sobol' points (Owen 1998) mapped to N(0, I), shape (n, dim), equally weighted.

    The same arguments give the same points; no random state but their own is used. Different seeds give independent
    randomisations, from which the standard error of an integral can be estimated.

    Raises:
        InputError: if ``n`` is not a power of two, without which the points are not balanced.
    """
    checks.count("dim", dim)
    if checks.count("n", n) & (n - 1):
        raise InputError(f"n: expected a power of two, got {n}.")
    sobol = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(seed))
    # The points have 30 bits: half a step takes them off 0, and symmetrically off 1.
    uniform = sobol.random(n) + 2.0**-31
    return torch.from_numpy(norm.ppf(uniform))


def log_integral(log_integrand: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """log ∫ exp(h(z)) dz from low to high for each of some h, by a trapezoidal rule that closes in on the mass.

    A grid over the interval tells where h is within 42 of its maximum (5e-19 of the integrand); that, with one step to
    either side, is the next interval, until it shrinks no more. Right to 1e-9 for an analytic h with one peak, however
    narrow, and for several that are not narrower than a tenth of their distance.

    Args:
        log_integrand: h, from nodes of shape (..., S) to its values there.
        low: where the interval begins, shape (...).
        high: where it ends, the same shape.

    Returns:
        Shape (...), −∞ where the integrand is 0 at all nodes.
    """
    with torch.no_grad():  # where the nodes are is no part of the integral's derivative
        for _ in range(_ZOOMS):
            z, values = _on_grid(log_integrand, low, high, _GRID_NODES)
            kept = values > values.amax(-1, keepdim=True) - _DEPTH
            first = kept.to(torch.int8).argmax(-1, keepdim=True)
            last = _GRID_NODES - 1 - kept.flip(-1).to(torch.int8).argmax(-1, keepdim=True)
            start, stop = (first - 1).clamp_min(0), (last + 1).clamp_max(_GRID_NODES - 1)
            low, high = (z.take_along_dim(end, -1)[..., 0] for end in (start, stop))
            if (stop - start >= _SETTLED * _GRID_NODES).all():
                break
    _, values = _on_grid(log_integrand, low, high, 2 * _GRID_NODES - 1)
    return torch.logsumexp(values, -1) + ((high - low) / (2 * _GRID_NODES - 2)).log()


def _on_grid(log_integrand: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, size: int) -> tuple[Tensor, Tensor]:
    z = low[..., None] + (high - low)[..., None] * _unit_grid(size, low)
    return z, log_integrand(z)


@cache
def clenshaw_curtis(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights, each (n + 1,), with Σ w h(t) = ∫₀¹ h(t) dt, exact for polynomials of degree n.

    For n = 2m the nodes 0, 2, 4, … are those of m (Clenshaw & Curtis 1960).

    Raises:
        InputError: if n is odd.
    """
    if checks.count("n", n, least=2) % 2:
        raise InputError(f"n: expected an even number, got {n}.")
    angle = np.pi * np.arange(n + 1) / n
    k = np.arange(1, n // 2 + 1)
    halved = np.where(k == n // 2, 1.0, 2.0) / (4 * k**2 - 1)
    weights = (1.0 - np.cos(2 * np.outer(angle, k)) @ halved) / n
    weights[[0, -1]] /= 2
    return torch.from_numpy(0.5 * (1.0 - np.cos(angle))), torch.from_numpy(weights)


def adaptive_integral(
    integrand: Callable[[Tensor, Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    *,
    finest: Callable[[Tensor, Tensor, Tensor], Tensor],
    block: int,
) -> Tensor:
    """∫ h_r(y) dy from low to high for each of R functions, by panels that are halved until they are right.

    A panel counts when it is at most 8 times as wide as the finest structure in it, and two Clenshaw–Curtis rules, of
    17 and 9 of the same nodes, differ by at most 1e-9; the error is then well below that.

    Args:
        integrand: h, from the rows r of panels, shape (P,), and nodes of shape (P, S) to its values there.
        low: where the intervals begin, shape (R,).
        high: where they end, the same shape.
        finest: the width of the finest structure in panels, shape (P,), from their rows and ends, each (P,).
        block: how many nodes are evaluated at once.

    Raises:
        ConvergenceError: if a panel that was halved 60 times is not right.
    """
    (nodes, fine), (_, coarse) = clenshaw_curtis(_PANEL), clenshaw_curtis(_PANEL // 2)
    nodes, fine, coarse = nodes.to(low), fine.to(low), coarse.to(low)
    total, rows = torch.zeros_like(low), torch.arange(len(low), device=low.device)
    size = max(1, block // len(nodes))
    for _ in range(_HALVINGS):
        wide = torch.cat([h - s > _FINEST * finest(r, s, h) for r, s, h in _by(size, rows, low, high)])
        split = [(rows[wide], low[wide], high[wide])]
        for r, start, stop in _by(size, rows[~wide], low[~wide], high[~wide]):
            values = integrand(r, start[:, None] + (stop - start)[:, None] * nodes)
            sums = (values @ fine) * (stop - start)
            right = (sums - (values[:, ::2] @ coarse) * (stop - start)).detach().abs() <= _PANEL_ERROR
            total = total.index_add(0, r[right], sums[right])
            split.append((r[~right], start[~right], stop[~right]))
        rows, low, high = (torch.cat(parts) for parts in zip(*split, strict=True))
        if not len(rows):
            return total
        middle = 0.5 * (low + high)
        rows, low, high = rows.repeat(2), torch.cat([low, middle]), torch.cat([middle, high])
    raise ConvergenceError(
        f"adaptive_integral: expected panels to be right to {_PANEL_ERROR:g} nats after {_HALVINGS} halvings, got "
        f"{len(rows)} that are not, first in row {int(rows[0])}. Look for outputs that are not finite."
    )


def _by(size: int, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(part.split(size) for part in parts), strict=True)


def activation_nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """A rule per row for E[h(a)], a ~ N(mean, variance), of functions whose structure is of unit size around a = 0.

    Such are σ, log σ and softplus, Φ, log Φ and its ratios, and their derivatives and squares. For the bounded ones
    the error is below 1e-10 for any mean and for sd from 0 to 1e4 (2e-10 for the second derivative of log Φ); for those
    that grow as ∣a∣ or a² it is below 1e-11 of E∣a∣ or E[a²]. The errors are absolute; for E[σ(a)] relative to itself
    see `log_expected_sigmoid`. The number of nodes S is chosen for the whole call by its largest sd: 22 to 100 up to
    sd 4, 112 beyond.

    Args:
        mean: float64, shape (...).
        variance: not negative, same shape. Where it is 0, all nodes are at the mean.

    Returns:
        Nodes and log weights, each of shape (..., S). The weights sum to 1. Either may be an expanded view.
    """
    sd = _standard_deviation(mean, variance)
    largest = _largest(sd)
    if largest <= _PLAIN_SD:
        size = _even_size(largest)
        z = torch.linspace(-_REACH, _REACH, size, dtype=mean.dtype, device=mean.device)
        log_weights = torch.log_softmax(-0.5 * z.square(), -1)
        return mean[..., None] + sd[..., None] * z, log_weights.expand(*mean.shape, size)
    rows = zip(mean.reshape(-1).split(_ROW_BLOCK), sd.reshape(-1).split(_ROW_BLOCK), strict=True)
    blocks = [_crowded_rule(*row) for row in rows]
    shape = (*mean.shape, _CROWDED_NODES)
    nodes, log_weights = (torch.cat(parts).reshape(shape) for parts in zip(*blocks, strict=True))
    return nodes, log_weights


def _crowded_rule(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    centre = (mean / sd.clamp_min(_CROWDING)).clamp(-_FAR, _FAR)
    w, slope, _ = _crowded_grid(centre - _REACH, centre + _REACH, sd)
    z = w - centre[..., None]
    log_weights = slope.log() - 0.5 * z.square()
    return mean[..., None] + sd[..., None] * z, log_weights - torch.logsumexp(log_weights, -1, keepdim=True)


def log_expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[σ(a)], a ~ N(mean, variance), right to about 1e-10 relative in E, however small E is.

    Two identities carry every case to one integral whose integrand peaks near a = 0 or is nearly Gaussian:
    E[σ(a)] = 1 − E[σ(−a)], and, from σ(a) = eᵃ σ(−a), E[σ(a)] = exp(mean + variance/2) E[σ(b)] with
    b ~ N(−mean − variance, variance). For log(1 − E[σ(a)]) call it with −mean.

    Args:
        mean: float64, any shape.
        variance: not negative, same shape.

    Returns:
        Same shape. Rows are taken in blocks, so that a million of them need little memory.
    """
    _standard_deviation(mean, variance)
    rows = zip(mean.reshape(-1).split(_ROW_BLOCK), variance.reshape(-1).split(_ROW_BLOCK), strict=True)
    blocks = [_log_expected_sigmoid(m, v) for m, v in rows]
    return torch.cat(blocks).reshape(mean.shape)


def _log_expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    below = -mean.abs()
    tilt = below < -0.5 * variance
    reflected = torch.where(tilt, -below - variance, below)
    offset = torch.where(tilt, below + 0.5 * variance, 0.0)
    log_small = offset + _log_expected_central(reflected, variance)
    # log(1 − p) for p = E[σ(−∣a∣)] ≤ ½
    return torch.where(mean > 0, torch.log1p(-log_small.exp()), log_small)


def _log_expected_central(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[σ(a)] for mean ≥ −variance/2, by a trapezoidal sum around the mode of σ(a) N(a; mean, variance).

    The mode m solves (m − mean)/variance = σ(−m), hence max(0, mean) ≤ m ≤ max(0, mean) + log(1 + variance), and the
    integrand falls off from it at least as fast as a Gaussian with that variance. In w = (a − shift)/sd the Gaussian is
    exp(−k²/2 + k w − w²/2) with k = (mean − shift)/sd, and the first term is left out of the sum.
    """
    point = variance == 0
    sd = torch.where(point, 1.0, variance).sqrt()
    ratio = mean / sd
    k = ratio.clamp_max(_FAR)
    shift = torch.where(ratio > _FAR, mean - _FAR * sd, 0.0)
    low = k.clamp_min(0.0) - _REACH
    high = k.clamp_min(0.0) + torch.log1p(sd.square()) / sd + _REACH
    largest = _largest(sd)
    w, slope, step = _even(low, high, largest) if largest <= _PLAIN_SD else _crowded_grid(low, high, sd)
    log_terms = logsigmoid(shift[..., None] + sd[..., None] * w) + w * (k[..., None] - 0.5 * w)
    top = log_terms.amax(-1, keepdim=True).detach()
    log_sum = ((log_terms - top).exp() * slope).sum(-1).log() + top[..., 0] + torch.log(step)
    return torch.where(point, logsigmoid(mean), log_sum - 0.5 * k.square() - 0.5 * math.log(2 * math.pi))


def _even(low: Tensor, high: Tensor, largest_sd: float) -> tuple[Tensor, Tensor, Tensor]:
    """Equally spaced nodes w from ``low`` to ``high`` (..., S), their slope 1 and their step (...)."""
    size = _even_size(largest_sd)
    w = low[..., None] + (high - low)[..., None] * _unit_grid(size, low)
    return w, torch.ones_like(w[..., :1]), (high - low) / (size - 1)


def _largest(sd: Tensor) -> float:
    return float(sd.detach().max()) if sd.numel() else 0.0


def _even_size(largest_sd: float) -> int:
    return max(22, 4 + math.ceil(24 * largest_sd))


def _crowded_grid(low: Tensor, high: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes (..., S) of `crowded` at equal steps of t, their slope dw/dt and the step in t (...)."""
    grid = _unit_grid(_CROWDED_NODES, low)
    w, slope, length = crowded(low[..., None], high[..., None], sd[..., None], grid)
    return w, slope, length[..., 0] / (_CROWDED_NODES - 1)


def crowded(low: Tensor, high: Tensor, sd: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes w = a/sd from ``low`` to ``high`` that crowd around 0, their slope dw/dt, and the length of t's interval.

    w = asinh(ε sinh t) with ε sd = `_CROWDING`: near 0 a ≈ _CROWDING sinh t, whose steps grow with ∣a∣; for ∣w∣ ≫ 1 the
    steps are those of t.

    Args:
        low: where the nodes begin, of any shape that broadcasts with the others.
        high: where they end.
        sd: the standard deviation of a.
        places: where between the ends the nodes are, in t, from 0 to 1.
    """
    epsilon = _CROWDING / sd.clamp_min(_CROWDING)
    start, stop = (torch.asinh(torch.sinh(end) / epsilon) for end in (low, high))
    up = torch.exp(start + (stop - start) * places)
    down = up.reciprocal()
    scaled = 0.5 * epsilon * (up - down)
    square = scaled.square()
    root = torch.sqrt(1.0 + square)
    w = torch.log1p(scaled.abs() + square / (1.0 + root)).copysign(scaled)  # asinh, five times faster than torch's
    return w, 0.5 * epsilon * (up + down) / root, stop - start


def _unit_grid(size: int, like: Tensor) -> Tensor:
    return torch.linspace(0, 1, size, dtype=like.dtype, device=like.device)


def _standard_deviation(mean: Tensor, variance: Tensor) -> Tensor:
    if mean.shape != variance.shape:
        raise InputError(f"variance: expected the mean's shape {tuple(mean.shape)}, got {tuple(variance.shape)}.")
    if (variance < 0).any():
        raise InputError(f"variance: expected no negative entries, got {float(variance.min()):.6g}.")
    return variance.sqrt()
