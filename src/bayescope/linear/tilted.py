"""Moments of one row's likelihood, or of a power of it, times a Gaussian: what expectation propagation matches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope.quadrature import activation_nodes
from bayescope.special import inverse_mills, inverse_mills_slope, log_ndtr

# Rows whose quadrature is worked on at once: what is computed from it stays in a core's cache.
BLOCK_ROWS = 1024
# Newton's steps to the mode of a tilted distribution, which need not be known to the last digit.
MODE_STEPS = 6
PROBIT_MODE_STEPS = 20
# The square of a step, in sds of the tilted distribution, that is the last one.
NEAR = 0.01
# Nodes of the rule for powers of Φ, and how far below its peak it follows the integrand: 6e-19.
TWO_SIDED = 256
DEPTH = 42.0


class Tilted(NamedTuple):
    """The tilted distribution p(s)^e N(s; μ, v)/Ẑ of a margin s = (2y − 1) a, all of shape (N,).

    Attributes:
        log_normaliser: log Ẑ.
        slope: ∂ log Ẑ/∂μ; the tilted mean is μ + v slope.
        bend: −∂² log Ẑ/∂μ²; the tilted variance is v (1 − v bend).
        shrinkage: tilted variance / v = 1 − v bend, without its cancellation.
    """

    log_normaliser: Tensor
    slope: Tensor
    bend: Tensor
    shrinkage: Tensor


Derivatives = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def probit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    """Moments of Φ(s)^e N(s; μ, v): in closed form for e = 1, else by quadrature.

    Rasmussen & Williams 2006, eqs. 3.58, 3.82–3.85.

    Args:
        mean: μ, shape (N,).
        variance: v, shape (N,).
        power: e, 0 < e ≤ 1, shape (N,); 1 by default.
    """
    root = torch.rsqrt(1.0 + variance)
    z = mean * root
    bend = inverse_mills_slope(z) * root.square()
    # 1 − v/(1 + v) w = 1/(1 + v) + v/(1 + v) (1 − w)
    shrinkage = root.square() * (1.0 + variance * (1.0 - inverse_mills_slope(z)))
    whole = Tilted(log_ndtr(z), inverse_mills(z) * root, bend, shrinkage)
    if power is None or not bool((power < 1.0).any()):
        return whole
    rows = torch.nonzero(power < 1.0)[:, 0]
    fractions = _in_blocks(_probit_power_tilted, mean[rows], variance[rows], power[rows])
    return Tilted(*(one.index_copy(0, rows, part) for one, part in zip(whole, fractions, strict=True)))


def logit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    """Moments of σ(s)^e N(s; μ, v) by quadrature, at any distance in the tails; arguments as for `probit_tilted`."""
    return (
        _in_blocks(_logit_tilted, mean, variance) if power is None else _in_blocks(_logit_tilted, mean, variance, power)
    )


TILTED: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tilted]] = {
    "bernoulli": logit_tilted,
    "probit": probit_tilted,
}


def _in_blocks(tilted: Callable[..., Tilted], *rows: Tensor) -> Tilted:
    blocks = zip(*(each.split(BLOCK_ROWS) for each in rows), strict=True)
    return Tilted(*(torch.cat(parts) for parts in zip(*(tilted(*block) for block in blocks), strict=True)))


def _logit_tilted(mean: Tensor, variance: Tensor, power: Tensor | None = None) -> Tilted:
    def derivatives(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        falling = torch.sigmoid(-s)
        return logsigmoid(s), falling, falling * (1.0 - falling)

    centre = _logit_mode(mean, variance, torch.ones_like(mean) if power is None else power)
    return _by_quadrature(derivatives, mean, variance, power, centre)


def _probit_power_tilted(mean: Tensor, variance: Tensor, power: Tensor) -> Tilted:
    def derivatives(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return log_ndtr(s), inverse_mills(s), inverse_mills_slope(s)

    centre = _probit_mode(mean, variance, power)
    # Below 0, Φ(s)^e falls as exp(−e s²/2), which nodes that know of the Gaussian alone may step over.
    found = [torch.empty_like(mean) for _ in Tilted._fields]
    for rule, chosen in ((None, centre >= 0.0), (_two_sided_nodes, centre < 0.0)):
        rows = torch.nonzero(chosen)[:, 0]
        if len(rows):
            some = _by_quadrature(derivatives, mean[rows], variance[rows], power[rows], centre[rows], rule)
            for whole, part in zip(found, some, strict=True):
                whole[rows] = part
    return Tilted(*found)


def _two_sided_nodes(centre: Tensor, variance: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes s = c + a sinh t that reach as far as Φ(s)^e N(s; μ, v) with its mode at c < 0 does, on either side.

    They crowd at c on the scale a of its curvature. To the left log Φ bends by 0.6 or more; to the right the density
    falls as the Gaussian and as exp(−k (s − c)), with k the slope of log Φ^e at c, or faster. The weights are those of
    N(c, v).
    """
    low = -(2.0 * DEPTH / (0.6 * power + 1.0 / variance)).sqrt()
    slope = power * inverse_mills(centre)
    high = torch.minimum((2.0 * DEPTH * variance).sqrt(), (DEPTH - power * log_ndtr(centre)) / slope)
    scale = (power + 1.0 / variance).rsqrt()[:, None]
    first, last = torch.asinh(low[:, None] / scale), torch.asinh(high[:, None] / scale)
    t = first + (last - first) * torch.linspace(0.0, 1.0, TWO_SIDED, dtype=centre.dtype)
    away = scale * torch.sinh(t)
    volume = scale * torch.cosh(t) * (last - first) / (TWO_SIDED - 1)
    log_density = -0.5 * away.square() / variance[:, None] - 0.5 * (2.0 * math.pi * variance[:, None]).log()
    return centre[:, None] + away, log_density + volume.log()


def _by_quadrature(
    derivatives: Derivatives,
    mean: Tensor,
    variance: Tensor,
    power: Tensor | None,
    centre: Tensor,
    rule: Rule | None = None,
) -> Tilted:
    """A rule for N(s; c, v), with c near the tilted mode, integrates the rest of the integrand.

    As N(s; μ, v) = N(s; c, v) exp(−k (s − c) − k (c − μ)/2) with k = (c − μ)/v, the rest is p(s)^e exp(−k (s − c)). At
    the mode k is the slope of log p^e: for σ between 0 and 1, so that the structure of the rest is of unit size around
    s = 0, which `activation_nodes` resolve.

    Args:
        derivatives: log p(s), its first derivative, and its second one's negative.
        mean: μ.
        variance: v.
        power: e; 1 by default.
        centre: c.
        rule: nodes and log weights from c, v and e; `activation_nodes` by default.
    """
    pull = (centre - mean) / variance
    if rule is None or power is None:
        nodes, log_weights = activation_nodes(centre, variance)
    else:
        nodes, log_weights = rule(centre, variance, power)
    log_prob, rising, bending = derivatives(nodes)
    if power is not None:
        log_prob, rising, bending = (power[:, None] * each for each in (log_prob, rising, bending))
    terms = log_weights + log_prob - pull[:, None] * (nodes - centre[:, None])
    log_sum = torch.logsumexp(terms, -1)
    weights = (terms - log_sum[:, None]).exp()
    slope = (weights * rising).sum(-1)
    tilted_mean = (weights * nodes).sum(-1)
    shrinkage = (weights * (nodes - tilted_mean[:, None]).square()).sum(-1) / variance
    # −∂² log Ẑ/∂μ² = E[Λ] − Var[∂ log p]: two terms that cancel for a wide cavity, as 1 − shrinkage does for a narrow.
    narrow = (weights * (bending - (rising - slope[:, None]).square())).sum(-1)
    bend = torch.where(variance < 1.0, narrow, (1.0 - shrinkage) / variance)
    return Tilted(log_sum - 0.5 * pull * (centre - mean), slope, bend, shrinkage)


def _logit_mode(mean: Tensor, variance: Tensor, power: Tensor) -> Tensor:
    """The mode of σ(s)^e N(s; μ, v), to well within the tilted sd.

    It solves (s − μ)/v = e σ(−s). For μ ≥ −e v/2 it is between max(0, μ) and log(1 + e v) above that; otherwise
    σ(s) = eˢ σ(−s) makes it the mode of σ(−s)^e N(s; μ + e v, v), a mirror image of the first case.
    """
    reach = power * variance
    mirrored = mean < -0.5 * reach
    centre = torch.where(mirrored, -mean - reach, mean)
    low = centre.clamp_min(0.0)
    high = low + torch.log1p(reach)
    s = low
    for _ in range(MODE_STEPS):
        falling = torch.sigmoid(-s)
        excess = (s - centre) / variance - power * falling
        step = excess / (1.0 / variance + power * falling * (1.0 - falling))
        s = torch.minimum(high, torch.maximum(low, s - step))
    return torch.where(mirrored, -s, s)


def _probit_mode(mean: Tensor, variance: Tensor, power: Tensor) -> Tensor:
    """The mode of Φ(s)^e N(s; μ, v): (s − μ)/v = e m(s), with m = φ/Φ.

    m is convex, so that Newton's steps from s = μ, which is below the mode, never pass it.
    """
    s = mean
    for _ in range(PROBIT_MODE_STEPS):
        bend = 1.0 / variance + power * inverse_mills_slope(s)
        step = (power * inverse_mills(s) - (s - mean) / variance) / bend
        s = s + step
        if bool((step.square() * bend < NEAR).all()):
            break
    return s
