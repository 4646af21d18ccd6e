"""The evidence of a quadratic expansion of the likelihood, as a function of the weights' prior precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from bayescope.linear.density import LikelihoodExpansion, LinearDensity
from bayescope.models import LinearModel

GRID = 161
# The longest step in log α between two readings: the expansion means little far from where it was made.
LONGEST = 3.0
# The slope of the log evidence, per unit of log α, that is taken for zero.
FLAT = 1e-7


@final
@dataclass(frozen=True)
class Expansion:
    """The evidence of the likelihood's quadratic expansion at θ, as a function of t = log α.

    With the data's log likelihood r·θ − ½ θᵀHθ + const and the intercept integrated out, the weights have curvature
    S = H_ww − H_wb (H_bb + P_b)⁻¹ H_bw = V diag(σ) Vᵀ and linear term ρ, and for K weights

        log Z(t) = ½ [K t − Σ log(σ + α) + Σ (Vᵀρ)²/(σ + α)] + s t + const, α = eᵗ.

    Attributes:
        values: σ, ascending, shape (K,).
        squares: (Vᵀρ)², shape (K,).
        slope: s, what moves with α beside the expansion.
    """

    values: np.ndarray
    squares: np.ndarray
    slope: float

    @classmethod
    def at(
        cls, theta: Tensor, reading: LikelihoodExpansion, model: LinearModel, intercept: float, slope: float = 0.0
    ) -> Expansion:
        """The expansion at θ, for the intercept's fixed prior precision."""
        weights = model.outputs * model.features
        curvature, linear = reading.curvature, reading.curvature @ theta + reading.gradient
        block, linear_weights = curvature[:weights, :weights], linear[:weights]
        if model.bias:
            bias = curvature[weights:, weights:] + intercept * torch.eye(model.outputs, dtype=torch.float64)
            gain = torch.linalg.solve(bias, curvature[weights:, :weights]).mT
            block = block - gain @ curvature[weights:, :weights]
            linear_weights = linear_weights - gain @ linear[weights:]
        values, vectors = torch.linalg.eigh(0.5 * (block + block.mT))
        return cls(values.numpy(), (vectors.mT @ linear_weights).square().numpy(), slope)

    def log_evidence(self, t: np.ndarray) -> np.ndarray:
        """log Z up to a constant, for t of shape (T,)."""
        total = self.values + np.exp(t)[:, None]
        return 0.5 * (self.values.size * t + (self.squares / total - np.log(total)).sum(1)) + self.slope * t

    def derivative(self, t: np.ndarray | float) -> np.ndarray:
        """d log Z/dt = ½ (γ − α‖w‖²) + s, for t of any shape."""
        inverse = np.exp(-np.asarray(t))[..., None]
        share = 1.0 / (1.0 + self.values * inverse)
        return 0.5 * (1.0 - share - share**2 * self.squares * inverse).sum(-1) + self.slope

    def highest(self, low: float, high: float) -> float:
        """The t of the highest evidence on a grid."""
        grid = np.linspace(low, high, GRID)
        return float(grid[self.log_evidence(grid).argmax()])

    def uphill(self, start: float, low: float, high: float) -> float:
        """The nearest maximum in the direction in which the evidence rises, or the bound there."""
        end = high if self.derivative(start) > 0.0 else low
        path = np.linspace(start, end, GRID)
        falls = np.flatnonzero(self.derivative(path[1:]) * np.sign(end - start) <= 0.0)
        if falls.size == 0:
            return end
        left, right = path[falls[0]], path[falls[0] + 1]
        if self.derivative(left) * self.derivative(right) > 0.0:
            return start  # the slope at the start is rounding
        return float(brentq(lambda t: float(self.derivative(t)), left, right, xtol=1e-13, rtol=1e-14))


@final
class PrecisionSearch:
    """A search for the best t, one step after each reading, while θ moves as well: it holds the state of one search.

    A step goes to the expansion's nearest maximum uphill, so that where the search rests the evidence is stationary.
    Its length is bounded, and the more so the more often it turned round: near a maximum of log Z it cannot cycle.

    Attributes:
        t: log α.
        slope: s of the expansions to come.
        slack: the derivative that is left at the last reading, after its step; 0 at a bound that holds the search.
    """

    def __init__(self, density: LinearDensity, intercept: float, bounds: tuple[float, float], t: float) -> None:
        self.t, self.slope, self.slack = t, 0.0, math.inf
        self._density, self._intercept, self._bounds = density, intercept, bounds
        self._last, self._limit = 0.0, LONGEST

    def step(self, theta: Tensor, reading: LikelihoodExpansion) -> float:
        """Moves t after a reading at θ, and returns α."""
        expansion = Expansion.at(theta, reading, self._density.model, self._intercept, self.slope)
        low, high = self._bounds
        wanted = expansion.uphill(self.t, low, high) - self.t
        if wanted * self._last < 0.0:
            self._limit *= 0.5
        elif abs(wanted) > self._limit:
            self._limit = min(LONGEST, 1.5 * self._limit)
        self._last = max(-self._limit, min(self._limit, wanted))
        self.t += self._last
        held = (self.t <= low and wanted <= 0.0) or (self.t >= high and wanted >= 0.0)
        slack = 0.0 if held else abs(float(expansion.derivative(self.t)))
        (found,) = self._density.table.agreed(torch.tensor([self.t, slack], dtype=torch.float64))
        self.t, self.slack = found.tolist()
        return math.exp(self.t)

    @property
    def settled(self) -> bool:
        """Whether the last step reached a maximum."""
        return self.slack <= FLAT
