"""Outcomes that are numbers with a density or a distribution function: their quantiles, entropy and CRPS."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayescope.likelihoods.likelihood import Domain
from bayescope.quadrature import gauss_legendre

# Steps of a search for a quantile, the relative width at which it ends, a bound that is not doubled any more, and the
# ratio of bounds above which it goes by their geometric mean.
_QUANTILE_STEPS, _TOLERANCE, _MOST, _FAR = 200, 1e-10, 1e300, 16.0
# Nodes of an entropy's grid, and its unit over all numbers, as a share of the width of the density.
_GRID, _PEAK = 513, 0.05
# A search for where a density begins: the number of times that it is narrowed, its nodes, and how deep below the peak
# that is; and the distance of the nodes of a long grid in log y, at which features of unit width are right to 1e-12.
_ZOOMS, _SEARCH, _FALL, _FINEST = 3, 33, 42.0, 0.3
# Shares nearer to 0 and to 1 than these are at them.
_TINY, _ULP = 1e-300, 2.0**-53
# Counts whose terms are summed, and the nodes for the rest.
_SUMMED, _NODES = 256, 256
# Nodes and greatest width of the panels of a CRPS.
_CRPS_NODES, _CRPS_PANEL = 12, 2.0

Map = Callable[[Tensor], Tensor]


def quantile_of_numbers(
    cdf: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, level: float | Tensor, *, integer: bool
) -> Tensor:
    """The smallest y with cdf(y) ≥ level between two bounds of it, elementwise: to the integer, or to 1e-10 of y."""
    if integer:
        low = low - 1.0
        while bool((short := cdf(high) < level).any()) and bool((high < _MOST).all()):
            high = torch.where(short, 2.0 * high + 1.0, high)
        while bool((high - low > torch.clamp(_TOLERANCE * high, min=1.0)).any()):
            middle = torch.floor(0.5 * (low + high))
            less = ~(cdf(middle) >= level)  # below the least number there is no probability to be had
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        return high
    at_low, at_high = cdf(low) - level, cdf(high) - level
    high = torch.where(at_low >= 0, low, high)
    low = torch.where((low == 0) & (high > 0), _TINY, low)
    return _root(lambda y: cdf(y) - level, (low, at_low), (high, at_high))


def _root(rising: Map, low: tuple[Tensor, Tensor], high: tuple[Tensor, Tensor]) -> Tensor:
    """Where a rising function is 0, elementwise, between numbers with their values: to 1e-10 of it.

    By inverse quadratic interpolation where that is safe, and else by bisection (Chandrupatla 1997, "A new hybrid
    quadratic/bisection algorithm for finding the zero of a nonlinear function without using derivatives").
    """
    (a, at_a), (b, at_b) = high, low
    share = torch.full_like(a, 0.5)
    for _ in range(_QUANTILE_STEPS):
        width, reach = (b - a).abs(), _TOLERANCE * torch.maximum(a.abs(), b.abs())
        done = width <= reach
        if bool(done.all()):
            break
        least = torch.where(done, 0.5, 0.5 * reach / width)
        x = a + torch.minimum(torch.maximum(share, least), 1.0 - least) * (b - a)
        low_end, high_end = torch.minimum(a, b), torch.maximum(a, b)
        far = (low_end > 0) & (high_end > _FAR * low_end)
        x = torch.where(far, low_end.clamp_min(0.0).sqrt() * high_end.clamp_min(0.0).sqrt(), x)
        at_x = rising(x)
        same = (at_x < 0) == (at_a < 0)
        c, at_c = torch.where(same, a, b), torch.where(same, at_a, at_b)
        b, at_b = torch.where(same, b, a), torch.where(same, at_b, at_a)
        a, at_a = x, at_x
        place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        safe = (height.square() < place) & ((1.0 - height).square() < 1.0 - place)
        first = at_a / (at_b - at_a) * at_c / (at_b - at_c)
        second = (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = torch.where(safe, first + second, 0.5)
    return torch.where(at_a.abs() < at_b.abs(), a, b)


def entropy_of_numbers(domain: Domain, log_density: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """−∫ p(y) log p(y) dy, or the sum over whole numbers, of each of some densities, of low's shape.

    By a trapezoidal rule in log y for positive numbers, in the log odds of those in the unit interval, and else in
    asinh((y − c)/s), which has even steps near the centre c and follows heavy tails, s being small beside the width of
    the peak. Of counts the first terms are summed and the rest is an integral over log y (Euler and Maclaurin). The
    term −P log P of a probability P of the least number is added.

    Args:
        domain: of y.
        log_density: from y of low's shape to log p(y).
        low: a number with next to no mass below it.
        high: a number with next to no mass above it.
    """

    def term(y: Tensor) -> Tensor:
        log_p = log_density(y)
        return -torch.where(log_p > -math.inf, log_p.exp() * log_p, 0.0)

    if domain.integer:
        return _entropy_of_counts(term, low, high)
    above = high > domain.low  # if not, next to all of the probability is at the least number
    high = torch.where(above, high, domain.low + 1.0) if domain.atom else high
    centre = 0.5 * (low + high)
    scale = torch.minimum((high - low) / _GRID, _PEAK * (-log_density(centre)).exp())
    into: Map = torch.asinh
    back: Map = torch.sinh
    slope: Map = torch.cosh
    if domain.low == 0.0 and domain.high == math.inf:
        centre, scale, into, back, slope = 0.0 * low, torch.ones_like(low), torch.log, torch.exp, torch.exp
    elif domain.high < math.inf:
        centre, scale = torch.full_like(low, domain.low), torch.full_like(low, domain.high - domain.low)
        into, back = torch.logit, torch.sigmoid
        slope = _sigmoid_slope
    ends = ((low - centre) / scale, (high - centre) / scale)
    if domain.low > -math.inf:  # an end that has rounded to a bound of the domain
        ends = (ends[0].clamp_min(_TINY), ends[1] if domain.high == math.inf else ends[1].clamp_max(1.0 - _ULP))
    first, last, size = into(ends[0]), into(ends[1]), _GRID
    if domain.atom:
        first = _first(lambda t: log_density(t.exp()) + t, first, last)
        size = max(size, int((last - first).amax() / _FINEST)) if low.numel() else size
    total = torch.zeros_like(low)
    for share in torch.linspace(0.0, 1.0, size, dtype=torch.float64).tolist():
        t = first + share * (last - first)
        total += term(centre + scale * back(t)) * scale * slope(t)
    total = total * (last - first) / (size - 1)
    return torch.where(above, total, 0.0) + term(torch.zeros_like(low)) if domain.atom else total


def _first(log_density: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """A number between two with next to no mass below it, where the log density has fallen by `_FALL` from its peak."""
    for _ in range(_ZOOMS):
        t = low + (high - low) * torch.linspace(0.0, 1.0, _SEARCH, dtype=low.dtype).reshape(-1, *[1] * low.ndim)
        values = torch.stack([log_density(each) for each in t])
        start = (values > values.amax(0) - _FALL).to(torch.int8).argmax(0, keepdim=True)
        low = t.take_along_dim((start - 1).clamp_min(0), 0)[0]
    return low


def _entropy_of_counts(term: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    total = torch.where(high.isfinite(), 0.0, math.nan)  # means beyond float64 have no entropy there
    last = torch.zeros_like(low)
    widest = torch.where(high.isfinite(), (high - low).clamp(max=_SUMMED - 1.0), 0.0)
    for step in range(int(widest.amax()) + 1 if low.numel() else 0):
        last = torch.where(low + step <= high, term(low + step), 0.0)
        total = total + last
    rest = low + (_SUMMED - 1) < high
    if not rest.any():
        return total
    # Σ_{y > a} g(y) = ∫_{a + ½} g dy + g'(a + ½)/24 − …
    start = torch.where(rest, low + _SUMMED - 0.5, 1.0)
    length = torch.where(rest, (high + 0.5).log() - start.log(), 0.0)
    for share, weight in zip(*(each.tolist() for each in gauss_legendre(_NODES)), strict=True):
        y = start * (share * length).exp()
        total = total + torch.where(rest, weight * length * y * term(y), 0.0)
    return total + torch.where(rest, (term(start + 0.5) - last) / 24.0, 0.0)


def _sigmoid_slope(t: Tensor) -> Tensor:
    return torch.sigmoid(t) * torch.sigmoid(-t)


def crps_of_numbers(
    cdf: Callable[[Tensor], Tensor], y: Tensor, low: Tensor, high: Tensor, quartiles: tuple[Tensor, Tensor]
) -> Tensor:
    """The CRPS ∫ (F(x) − 1{x ≥ y})² dx of numbers, of each by itself, of y's shape.

    By Gauss–Legendre rules in t = asinh((x − c)/s) on both sides of y, c and s the middle and the width of the
    quartiles: panels of at most `_CRPS_PANEL` in t follow heavy tails.

    Args:
        cdf: F, from numbers of y's shape.
        y: the outcomes.
        low: numbers with next to no mass below.
        high: numbers with next to no mass above.
        quartiles: the lower and the upper ones.
    """
    centre, width = 0.5 * (quartiles[0] + quartiles[1]), quartiles[1] - quartiles[0]
    scale = torch.where(width > 0, width, (high - low).clamp_min(_TINY))
    t = ((y - centre) / scale).asinh()
    nodes, weights = gauss_legendre(_CRPS_NODES)
    total = torch.zeros_like(y)
    for end, certain in ((torch.minimum(low, y), 0.0), (torch.maximum(high, y), 1.0)):
        length = ((end - centre) / scale).asinh() - t
        finite = length.isfinite()
        length = torch.where(finite, length, 0.0)
        panels = max(1, math.ceil(float(length.abs().max()) / _CRPS_PANEL))
        for panel in range(panels):
            for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
                at = t + length * (panel + node) / panels
                term = (cdf(centre + scale * at.sinh()) - certain).square()
                total += weight / panels * length.abs() * scale * at.cosh() * term
        total = torch.where(finite, total, math.nan)
    return total


def between_counts(cdf: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """F at x − ½, on lines between whole numbers: its integral up to k is the sum of what it is at 0, …, k − 1.

    The lines err by the curvature of F, which for the mass of hundreds of numbers is next to nothing.
    """
    least = (x - 0.5).floor()
    share = x - 0.5 - least
    return (1.0 - share) * cdf(least) + share * cdf(least + 1.0)
