"""One prior precision for many weights, learnt by maximising a bound on the evidence or an estimate of it.

With q the posterior for the prior precision α of D weights, both the evidence lower bound and the evidence of
expectation propagation change with α, at their stationary point in q, only through E_q[log p(θ)] (for the second,
Seeger 2005, Expectation propagation for exponential families):

    d/d log α = ½ (D − α E_q‖θ − m₀‖²)    over these weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, ConvergenceWarning, InputError, UnsupportedError
from bayescope.linear.density import LinearDensity
from bayescope.linear.evidence import precision_range
from bayescope.precision import Precision
from bayescope.processes import warn_once

# At the solution D − α E‖θ − m₀‖² is at most this times D.
TOLERANCE = 1e-7
MAX_FITS = 80
# A fit that is ε sds from its optimum has a relative slope that is off by at most SLOPE_ERROR ε/√D; fits are made to
# where that is the share ROUGH of the slope. The last one's slope is below the share LAST of it.
SLOPE_ERROR = 3.0
ROUGH = 0.3
LAST = 1 / 3
# The longest step in log α: far from the solution neither a secant nor MacKay's step means much.
LONGEST = 5.0


class FittedGaussian(Protocol):
    """A Gaussian N(mean, precision⁻¹) over the weights that has been fitted."""

    @property
    def mean(self) -> Tensor:
        """The mean of the weights, shape (P,)."""

    @property
    def precision(self) -> Precision:
        """The precision of the weights, P x P in some structure."""


F = TypeVar("F", bound=FittedGaussian)
Fitter = Callable[[LinearDensity, F | None, float], F]


def tune_precision(
    fit: Fitter[F], density: LinearDensity, tuned: Tensor, tolerance: float = 1e-8
) -> tuple[F, list[float]]:
    """Finds the shared α with d/d log α = 0, by secants that stay within a bracket.

    Where a secant is of no use the step is MacKay's (1992), α ← γ / ‖m − m₀‖² with γ = D − α Σ Var_q, whose fixed
    point is the same. Far from the solution the fits need not be exact: where q is ε of its sds from its optimum, the
    relative slope (γ − α‖m − m₀‖²)/D is off by at most about `SLOPE_ERROR` ε/√D, as q is nowhere wider than the prior.

    Args:
        fit: the posterior of a density, started from the solution under another prior, or from ``None``, to within a
            distance in sds of q.
        density: its prior gives the precision of the other weights, and of the tuned ones the start.
        tuned: a mask of shape (P,): the D weights that share α.
        tolerance: the distance of the last fit.

    Returns:
        The fit under the maximising prior, and every α that was tried; the last is the solution.

    Raises:
        InputError: if the mask is not a boolean tensor of shape (P,) with a true entry.
        UnsupportedError: if the prior precision is not diagonal.
        ConvergenceError: if no stationary point is found.

    Warns:
        ConvergenceWarning: if the maximum is at an end of the range, where the fit is then made.
    """
    _check(density, tuned)
    here, low, high = search_range(density, tuned)
    current: F | None = None
    before: tuple[float, float] | None = None
    ends = (-math.inf, math.inf)  # the evidence rises at the first and falls at the second
    precisions: list[float] = []
    slope = math.nan
    error = SLOPE_ERROR / math.sqrt(int(tuned.sum()))
    wanted = max(TOLERANCE, LAST * error * tolerance)
    distance = claimed = max(tolerance, ROUGH / error)
    for _ in range(MAX_FITS):
        prior = density.prior.with_precision(tuned, math.exp(here))
        current = fit(density.with_prior(prior), current, distance)
        again, rough = precisions[-1:] == [math.exp(here)], slope
        if not again:
            precisions.append(math.exp(here))
        found = torch.tensor(_slope(current, density.prior_mean, tuned, math.exp(here)), dtype=torch.float64)
        slope, mackay = density.table.agreed(found)[0].tolist()
        if again and abs(slope - rough) > 2.0 * error * claimed:
            # The fit was further from its optimum than it says, as where it creeps: from here on each is made in full,
            # and what earlier slopes showed is forgotten.
            error, before, ends = math.inf, None, (-math.inf, math.inf)
        held = here == (high if slope > 0 else low)
        if distance <= tolerance and (held or abs(slope) <= wanted):
            if held:
                _warn_of_bound(math.exp(here), slope)
            return current, precisions
        claimed = distance
        uncertain = distance > tolerance and (held or abs(slope) <= error * distance)  # more must be known first
        share = ROUGH * min(abs(slope), 1.0) / error
        distance = max(tolerance, min(share, ROUGH * distance) if uncertain else share)
        if uncertain:
            continue
        ends = (max(ends[0], here), ends[1]) if slope > 0 else (ends[0], min(ends[1], here))
        there = _proposal(here, slope, mackay, before)
        if not ends[0] < there < ends[1]:
            there = 0.5 * (ends[0] + ends[1])
        before = (here, slope)
        here = min(high, max(low, there))
    raise ConvergenceError(
        f"prior_precision: expected a stationary evidence after {MAX_FITS} fits, got a relative slope of {slope:.3g} "
        f"at {precisions[-1]:.6g}. Give the prior precision as a number."
    )


def _proposal(here: float, slope: float, mackay: float, before: tuple[float, float] | None) -> float:
    """The next log α: the root of the line through the last two slopes where it falls, else MacKay's.

    Far from the solution, where few weights are determined, MacKay's steps are short and the line rises: a step in the
    same direction is then at least twice as long as the last.
    """
    step = mackay
    if before is not None:
        last = here - before[0]
        rise = (slope - before[1]) / last
        if rise < 0:
            step = -slope / rise
        elif slope * last > 0:
            step = max(abs(mackay), 2.0 * abs(last))
    return here + math.copysign(min(abs(step), LONGEST), slope)


def _slope(fit: FittedGaussian, centre: Tensor, tuned: Tensor, precision: float) -> tuple[float, float]:
    """(2/D) d/d log α, and MacKay's step in log α, which has the same sign."""
    variance = precision * float(fit.precision.marginal_variance()[tuned].sum())
    distance = precision * float((fit.mean - centre)[tuned].square().sum())
    count = int(tuned.sum())
    determined = count - variance  # γ
    step = math.log(determined / distance) if determined > 0 and distance > 0 else LONGEST
    return (determined - distance) / count, step


def search_range(density: LinearDensity, tuned: Tensor) -> tuple[float, float, float]:
    """log α at the start, and at the ends: `BOUNDS` times the curvature's largest eigenvalue before the climb.

    That is at the prior's mean, or at the best constant model where this is 0.
    """
    curvature = density.curvature(density.prior_mean if bool(density.prior_mean.any()) else density.constant)
    largest = float(density.table.agreed(torch.linalg.eigvalsh(curvature[tuned][:, tuned])[-1])[0])
    low, high, informed = precision_range(largest, density.table.total)
    start = float(density.prior_precision.diagonal()[tuned].log().mean())
    return min(high, max(low, start)) if informed else high, low, high


def _check(density: LinearDensity, tuned: Tensor) -> None:
    if tuned.dtype != torch.bool or tuned.shape != (density.dim,) or not tuned.any():
        raise InputError(
            f"tuned: expected a boolean mask of shape ({density.dim},) with a true entry, got {tuned.dtype} of shape "
            f"{tuple(tuned.shape)}."
        )
    if not isinstance(density.prior.precision, Tensor):
        raise UnsupportedError("tuned: expected a prior with a precision per weight, got a dense one. Leave tuned out.")


def _warn_of_bound(precision: float, slope: float) -> None:
    reason = "the inputs tell nothing of y" if slope > 0 else "the weights are not held back at all"
    warn_once(
        f"prior_precision: its evidence has no maximum within range, {reason}; {precision:.3g} is used. "
        "Give the prior precision as a number.",
        ConvergenceWarning,
    )
