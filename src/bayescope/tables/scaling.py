"""From a column's own unit to the numbers that a model is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from bayescope.storage import stored

# Knots of a `Quantiles`; half as many steps of the score, each with the value before and after it.
KNOTS = 1000
# Beyond the seen range the score goes on as it did over the outer twentieth of the values.
OUTER = 0.05


def scale_of(mean: ArrayLike, variance: ArrayLike, size: ArrayLike) -> np.ndarray:
    """The standard deviations of this many numbers, 1 where rounding alone leaves a variance of a constant column.

    Chan, Golub & LeVeque (1983) bound what rounding leaves.
    """
    mean, variance, rounding = np.asarray(mean), np.asarray(variance), np.asarray(size) * np.finfo(np.float64).eps
    with np.errstate(over="ignore", invalid="ignore"):
        constant = variance <= rounding * variance + (rounding * mean) ** 2
    return np.where(constant, 1.0, np.sqrt(variance))


@stored("standard_scaling")
@final
@dataclass(frozen=True, eq=False)
class Standard:
    """x ↦ (x − mean)/scale.

    Attributes:
        mean: of the values that are there.
        scale: their standard deviation, divided by N; 1 where they are all one number.
    """

    mean: float
    scale: float

    @classmethod
    def fit(cls, x: np.ndarray, weights: np.ndarray | None = None) -> Standard:
        """From finite numbers, shape (N,), and how often each counts; mean 0 and scale 1 where there are none."""
        if x.size == 0:
            return cls(0.0, 1.0)
        mean = float(np.average(x, weights=weights))
        return cls.of(mean, float(np.average((x - mean) ** 2, weights=weights)), x.size)

    @classmethod
    def of(cls, mean: float, variance: float, size: int) -> Standard:
        """From the mean and variance of this many numbers."""
        return cls(mean, float(scale_of(mean, variance, size)))

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Numbers in the units of the model, (x − mean)/scale."""
        return (x - self.mean) / self.scale


@stored("quantile_scaling")
@final
@dataclass(frozen=True, eq=False)
class Quantiles:
    """x ↦ Φ⁻¹(F(x)), the normal score of the share of values below x; half of those equal to x count as below.

    Attributes:
        values: knots, increasing, shape (K,), K ≤ 1000.
        scores: theirs, increasing.
        slopes: of the straight lines below the smallest and above the largest value.
    """

    values: np.ndarray
    scores: np.ndarray
    slopes: tuple[float, float]

    @classmethod
    def fit(cls, x: np.ndarray, weights: np.ndarray | None = None) -> Quantiles:
        """From finite numbers, shape (N,), and how often each counts; the identity where there are none."""
        if x.size == 0:
            return cls(np.zeros(1), np.zeros(1), (1.0, 1.0))
        distinct, inverse = np.unique(x, return_inverse=True)
        counts = np.bincount(inverse, weights)
        shares = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
        knots = _knots(shares)
        steepest = 1.0 / Standard.fit(x, weights).scale
        values, shares = distinct[knots], shares[knots]
        slopes = (
            _outer_slope(values, shares, steepest),
            _outer_slope(-values[::-1], 1.0 - shares[::-1], steepest),
        )
        return cls(values, ndtri(shares), slopes)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The model's numbers: linear between the knots and, with their own slopes, beyond them."""
        below, above = self.slopes
        inside = np.interp(x, self.values, self.scores)
        return inside + below * np.minimum(x - self.values[0], 0.0) + above * np.maximum(x - self.values[-1], 0.0)


Scaling = Standard | Quantiles
SCALINGS: dict[str, type[Standard] | type[Quantiles]] = {"standard": Standard, "quantile": Quantiles}


def _knots(shares: np.ndarray) -> np.ndarray:
    """Which of the distinct values to keep: steps of equal score, and both sides of each jump.

    Around a spike (a value that many rows share) the share jumps; a step that falls into a jump keeps the values on
    its two sides, so that the spike's own score does not spread over its neighbours.
    """
    if shares.size <= KNOTS:
        return np.arange(shares.size)
    steps = np.linspace(ndtri(shares[0]), ndtri(shares[-1]), KNOTS // 2)
    after = np.searchsorted(shares[:-1], ndtr(steps))
    return np.unique([np.maximum(after - 1, 0), after])


def _outer_slope(values: np.ndarray, shares: np.ndarray, steepest: float) -> float:
    """The score's slope over the lowest values, at most that of standardising: next to a spike it has no bound."""
    inner = min(int(np.searchsorted(shares, shares[0] + OUTER)), shares.size - 1)
    if inner == 0:
        return steepest
    with np.errstate(over="ignore"):
        return min(steepest, float((ndtri(shares[inner]) - ndtri(shares[0])) / (values[inner] - values[0])))
