"""The prior precision of the weights by evidence maximisation (MacKay 1992), scalar, for any linear model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from bayescope.errors import ConvergenceError, ConvergenceWarning
from bayescope.linear.density import LikelihoodExpansion, LinearDensity, OutputCovariance
from bayescope.linear.groups import Evaluation, GroupedEvidence, WeightGroups, ascend, slack
from bayescope.linear.mode import LARGE_ROWS, SAMPLE_TOLERANCE, LinearMode, Retune, find_mode, sample
from bayescope.linear.table import Batch
from bayescope.models import LinearModel
from bayescope.precision import Precision
from bayescope.priors import Prior
from bayescope.processes import warn_once

GRID = 161
# The longest step in log α between two readings: the expansion means little far from where it was made.
LONGEST = 3.0
# Of a linear model's intercepts: one number, or one for each output, shape (C,), of which those of 0 are flat; ``None``
# if all are flat.
InterceptPrecision = Tensor | float | None
# The slope of the log evidence, per unit of log α, that is taken for zero.
FLAT = 1e-7
# That of a group of a large table, whose mode is found to fewer digits.
LARGE_FLAT = 1e-4


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
        cls,
        theta: Tensor,
        reading: LikelihoodExpansion,
        model: LinearModel,
        intercept: InterceptPrecision,
        slope: float = 0.0,
    ) -> Expansion:
        """The expansion at θ, for the intercept's fixed prior precision."""
        block, linear_weights = _of_weights(theta, reading, model, intercept)
        values, vectors = torch.linalg.eigh(block)
        # A likelihood that is not log-concave may be slightly indefinite without the prior.
        return cls(values.clamp(min=0.0).numpy(), (vectors.mT @ linear_weights).square().numpy(), slope)

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


def _of_weights(
    theta: Tensor, reading: LikelihoodExpansion, model: LinearModel, intercept: InterceptPrecision
) -> tuple[Tensor, Tensor]:
    """S, shape (K, K), and ρ, shape (K,), of the expansion at θ with the intercept integrated out."""
    weights = model.outputs * model.features
    curvature, linear = reading.curvature, reading.curvature @ theta + reading.gradient
    block, linear_weights = curvature[:weights, :weights], linear[:weights]
    if model.bias:
        bias = curvature[weights:, weights:] + torch.diag(_intercepts(model, intercept))
        gain = torch.linalg.solve(bias, curvature[weights:, :weights]).mT
        block = block - gain @ curvature[weights:, :weights]
        linear_weights = linear_weights - gain @ linear[weights:]
    return 0.5 * (block + block.mT), linear_weights


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

    def __init__(
        self, density: LinearDensity, intercept: InterceptPrecision, bounds: tuple[float, float], t: float
    ) -> None:
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


# The precision is sought between these multiples of the largest eigenvalue of the data's curvature. Above the upper
# one every weight is held at 0, a millionth of its posterior width under a flat prior; below the lower one the prior
# is flat to ten digits.
BOUNDS = (1e-10, 1e6)
BOUND_ROWS = 10_000  # enough of them to find the bounds
USELESS = 1e-3
MAX_CLIMBS = 50


@final
@dataclass(frozen=True)
class TunedMode:
    """The mode under the prior precision that maximises the log evidence.

    Attributes:
        mode: the mode; its density has the tuned prior.
        prior_precision: α; for groups of the shape of their index: infinity where the evidence switches a group off.
        effective_parameters: γ = K − α tr Σ_ww, how many of the K weights the data determine.
        useless: whether γ is next to nothing: the evidence rises or is flat as α → ∞, for features that tell nothing.
    """

    mode: LinearMode
    prior_precision: float | Tensor
    effective_parameters: float
    useless: bool = False


def weight_prior(
    model: LinearModel, prior_precision: Tensor | float, intercept_prior_precision: InterceptPrecision
) -> Prior:
    """N(0, diag) over (W, b): one precision for all weights, one a feature, or one each.

    Args:
        model: whose weights.
        prior_precision: a number, shape (D,), the same for every output, or shape (C, D), in one over (the unit of f
            per unit of x) squared; 0 for a flat prior of all weights and the intercept.
        intercept_prior_precision: in one over the unit of f squared.
    """
    each = torch.as_tensor(prior_precision, dtype=torch.float64).expand(model.outputs, model.features).flatten()
    if each.numel() and bool((each == 0).all()):
        return Prior(flat=model.dim)
    intercepts = _intercepts(model, intercept_prior_precision)
    if not intercepts.any():
        return Prior(each if len(each) else 1.0, flat=len(intercepts))
    return Prior(torch.cat([each, intercepts]), flat=int((intercepts == 0).sum()))


def _intercepts(model: LinearModel, precision: InterceptPrecision) -> Tensor:
    """The prior precisions of the intercepts, shape (C,), 0 for flat ones; none of a model without."""
    each = torch.as_tensor(0.0 if precision is None else precision, dtype=torch.float64)
    return each.expand(model.outputs if model.bias else 0)


def effective_parameters(model: LinearModel, prior: Prior, precision: Precision) -> float:
    """γ = Σ_i (1 − α_i Σ_ii) over the weights, the intercept left out: how many the data determine.

    MacKay (1992), "Bayesian interpolation", eq. 4.9.

    Args:
        model: whose weights.
        prior: with the precisions α_i.
        precision: of the posterior, Σ⁻¹.
    """
    share = prior.diagonal(model.dim) * precision.marginal_variance()
    return float((1.0 - share[: model.outputs * model.features]).sum())


def maximise_evidence(
    density: LinearDensity, *, intercept_prior_precision: InterceptPrecision, climbs: int = MAX_CLIMBS
) -> TunedMode:
    """Finds the scalar precision α of the weights that maximises Laplace's log evidence, and the mode under it.

    log Z(α) = log p(y, θ̂) + ½ P log 2π − ½ log∣A∣, with θ̂ and A = H(θ̂) + P₀(α) moving with α. After each pass over
    the rows, α goes to the maximum of the evidence of the quadratic expansion about θ, an exact Gaussian problem
    that is solved in the eigenbasis of its curvature at no further pass; the fixed point is MacKay's
    α = γ/‖w‖². That leaves out ∂H/∂α through the mode's shift dθ̂/d log α = −A⁻¹P_w θ̂, whose slope

        s = −½ tr(A⁻¹ dH/d log α)

    is O(P/N). It is found in one more pass (`determinant_slope`), and the search goes on from about MacKay's α to the
    root of d log Z/d log α = ½ (γ − α‖w‖²) + s: the result is the maximum of log Z itself. On a large table MacKay's α
    is found exactly, and s comes from a fixed sample of the rows and stays, which leaves ∣d log Z/d log α∣ below 1e-4.

    The search is confined to `BOUNDS` times the largest eigenvalue of the curvature at θ = 0 (that of S, the intercept
    integrated out). It goes uphill to the nearest maximum; for data that a plane separates there can be another.

    Args:
        density: the table, the model and the likelihood; its prior is not used.
        intercept_prior_precision: the fixed precision of the intercept; ``None`` for a flat one.
        climbs: to the mode of a large table, at most, until α rests.

    Warns:
        ConvergenceWarning: if the maximum is at the lower bound.

    Raises:
        ConvergenceError: if the mode is not reached.
    """
    large = density.table.count >= LARGE_ROWS
    some = sample(density) if large else density
    few = some.every(max(1, some.table.count // BOUND_ROWS))
    bounds, start = _bounds(few, intercept_prior_precision)
    climb = PrecisionSearch(density, intercept_prior_precision, bounds, start)

    def retune(theta: Tensor, reading: LikelihoodExpansion) -> Prior:
        return weight_prior(density.model, climb.step(theta, reading), intercept_prior_precision)

    some = some.with_prior(weight_prior(density.model, math.exp(start), intercept_prior_precision))
    mode = find_mode(some, retune=retune, tolerance=SAMPLE_TOLERANCE)
    if large:
        mode = _rest(mode, climb, retune, climbs)
        climb.slope = _shift_slope(mode)
        full = density.with_prior(mode.density.prior)
        mode = _rest(find_mode(full, mode.theta, retune=retune), climb, retune, climbs)
        t = climb.t
    else:
        t, mode = _stationary(_TotalSlope(mode, intercept_prior_precision), climb.t, bounds)
    if t <= bounds[0]:
        warn_once(
            "prior_precision: the evidence rises as the prior becomes flat; the search stopped at "
            f"{math.exp(t):.3g}. Give a positive number.",
            ConvergenceWarning,
        )
    gamma = _at_mode(mode)
    return TunedMode(mode, math.exp(t), gamma, useless=gamma < USELESS)


# While the mode is sought, the weights of a group that is switched off have this many times their curvature for a prior
# precision: they are 0 but for the last digits of the others.
SWITCHED_OFF = 1e12
# Newton's steps of the groups' precisions after a reading: the next reading moves them on.
CLIMB = 2
# Then, from mode to mode, what the steps have shown of the curvature is forgotten after as many, this often at most.
BETWEEN, RESTARTS = 100, 50


def maximise_group_evidence(
    density: LinearDensity, groups: WeightGroups, *, intercept_prior_precision: InterceptPrecision
) -> TunedMode:
    """Finds the prior precision of each group of weights at a maximum of Laplace's log evidence.

    As in `maximise_evidence`, after each pass over the rows the precisions go to the nearest maximum of the expansion's
    evidence (`GroupedEvidence`), at no further pass. What moves with the mode beside it, s_g = −½ tr(A⁻¹ dH/d log α_g),
    comes for all groups from one more pass: with c = ∂log∣H∣/∂θ = Σ_n J_nᵀ tr(J_n A⁻¹J_nᵀ ∂Λ_n/∂f), it is
    ½ Σ_{j∈g} (A⁻¹c)_j α_j θ̂_j. The result does not depend on the order of the features, nor on their units.

    Args:
        density: the table, the model and the likelihood; its prior is not used.
        groups: of the weights.
        intercept_prior_precision: the fixed precision of the intercept; ``None`` for a flat one.

    Returns:
        The precisions and the mode, in which the weights of groups that are switched off are 0 but for last digits.

    Raises:
        ConvergenceError: if the mode is not reached, or the precisions do not come to rest.

    Warns:
        ConvergenceWarning: if the evidence of a group rises as its prior becomes flat.
    """
    large = density.table.count >= LARGE_ROWS
    some = sample(density) if large else density
    search = _GroupSearch(some.every(max(1, some.table.count // BOUND_ROWS)), groups, intercept_prior_precision)
    start = None
    if large:
        start = find_mode(some.with_prior(search.prior), retune=search.step, tolerance=SAMPLE_TOLERANCE).theta
    search.mode = find_mode(density.with_prior(search.prior), start, retune=search.step)
    precision = search.settled(LARGE_FLAT if large else FLAT)
    gamma = _at_mode(search.mode)
    return TunedMode(search.mode, precision, gamma, useless=gamma < USELESS)


@final
class _GroupSearch:
    """A search for the precisions of groups: a step after each reading while θ moves as well, then from mode to mode.

    The length of a step is bounded for each group, and the more so the more often it turned round.

    Attributes:
        mode: the last mode.
    """

    mode: LinearMode

    def __init__(self, density: LinearDensity, groups: WeightGroups, intercept: InterceptPrecision) -> None:
        self._density, self._groups, self._intercept = density, groups, intercept
        start = density.constant
        curvature, linear = _of_weights(start, density.read(start), density.model, intercept)
        index = groups.of_weights(density.model)
        scale = GroupedEvidence.scales(curvature, index, len(groups.given))
        curvature, linear, self._scale = density.table.agreed(curvature, linear, scale)
        first = self._expansion(curvature, linear)
        self._low, self._high = first.bounds((0.0, 0.0))
        self._z = first.start(self._low, self._high)
        self._last, self._limit = torch.zeros_like(self._z), torch.full_like(self._z, LONGEST)
        self._before: tuple[Tensor, Tensor] | None = None
        self._lacking = torch.zeros(len(self._z), len(self._z), dtype=torch.float64)

    @property
    def prior(self) -> Prior:
        """The prior now, proper also for groups that are switched off."""
        cap = torch.where(self._groups.fixed, math.inf, SWITCHED_OFF * self._units)
        each = torch.minimum(1.0 / self._variances, cap)
        return weight_prior(self._density.model, each[self._groups.index], self._intercept)

    def step(self, theta: Tensor, reading: LikelihoodExpansion) -> Prior:
        """Moves the precisions after a reading at θ."""
        evidence = self._expansion(*_of_weights(theta, reading, self._density.model, self._intercept))
        wanted = ascend(evidence, self._z, self._low, self._high, tolerance=FLAT, steps=CLIMB) - self._z
        turned, far = wanted * self._last < 0.0, wanted.abs() > self._limit
        grown = torch.where(far, (1.5 * self._limit).clamp(max=LONGEST), self._limit)
        self._limit = torch.where(turned, 0.5 * self._limit, grown)
        self._last = wanted.clamp(-self._limit, self._limit)
        (self._z,) = self._density.table.agreed((self._z + self._last).clamp(self._low, self._high))
        return self.prior

    def settled(self, tolerance: float) -> Tensor:
        """Climbs on, from mode to mode, to where log Z has no larger slope; the precisions, of the index's shape.

        Raises:
            ConvergenceError: if there is none.
        """
        rise = math.inf
        for _ in range(RESTARTS):
            self._z = ascend(self._at_mode, self._z, self._low, self._high, tolerance=tolerance, steps=BETWEEN)
            rise = float(slack(self._z, self._at_mode(self._z)[1], self._low, self._high).abs().max())
            if rise <= 100.0 * tolerance:
                break
            # Where many groups of a separable table are about to leave, the curvature changes along the way.
            self._lacking, self._before = torch.zeros_like(self._lacking), None
        if rise > 100.0 * tolerance:
            raise ConvergenceError(
                f"prior_precision: expected a stationary evidence after {RESTARTS * BETWEEN} steps, got a slope of "
                f"{rise:.3g}. Use prior_precision='evidence', or leave out features."
            )
        if bool(((self._z >= self._high) & (self._low < self._high)).any()):
            warn_once(
                "prior_precision: the evidence of a group of weights rises as their prior becomes flat; the search "
                f"stopped at {1.0 / float(self._variances.max()):.3g}. Give positive numbers.",
                ConvergenceWarning,
            )
        given = self._groups.given
        return torch.where(given.isnan(), 1.0 / self._variances, given)[self._groups.index]

    def _at_mode(self, z: Tensor) -> Evaluation:
        """Laplace's log Z at z and its gradient, with the Hessian of the expansion's."""
        self._z = z
        self.mode = mode = find_mode(self.mode.density.with_prior(self.prior), self.mode.theta)
        model, prior = mode.density.model, mode.density.prior_precision.diagonal()
        weights = model.outputs * model.features
        shift = (prior * mode.precision.solve(determinant_slope(mode)))[:weights]
        pull = self._groups.sums(-0.5 * shift * (prior * mode.theta)[:weights], model)
        slope = torch.where(self._groups.fixed, 0.0, pull * z[:-1].exp() / self._units)
        evidence = self._expansion(*_of_weights(mode.theta, mode.reading, model, self._intercept))
        _, gradient, hessian = evidence(z)
        gradient[:-1] += slope
        value = mode.log_joint - 0.5 * mode.precision.logdet()
        value, gradient, hessian = mode.density.table.agreed(value, gradient, hessian)
        hessian = hessian + self._learnt_curvature(z, gradient, hessian)
        return float(value), gradient, hessian

    def _learnt_curvature(self, z: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
        """What the expansion's Hessian lacks, from the gradients so far: structured symmetric updates of rank one.

        Dennis, Gay and Welsch (1981), "An adaptive nonlinear least-squares algorithm"; the update is that of Broyden.
        """
        if self._before is not None:
            step, change = z - self._before[0], gradient - self._before[1]
            rest = change - (hessian + self._lacking) @ step
            along = float(rest @ step)
            if abs(along) > 1e-8 * float(rest.norm() * step.norm()):
                self._lacking = self._lacking + torch.outer(rest, rest) / along
        self._before = z, gradient
        return self._lacking

    @property
    def _variances(self) -> Tensor:
        return torch.where(self._groups.fixed, 1.0 / self._groups.given, self._z[:-1].expm1() / self._units)

    @property
    def _units(self) -> Tensor:
        return torch.where(self._scale > 0, self._scale, 1.0)

    def _expansion(self, curvature: Tensor, linear: Tensor) -> GroupedEvidence:
        index = self._groups.of_weights(self._density.model)
        return GroupedEvidence(curvature, linear, index, self._groups.given, self._scale)


def determinant_slope(mode: LinearMode) -> Tensor:
    """∂log∣A∣/∂θ = Σ_n J_nᵀ tr(J_n A⁻¹J_nᵀ ∂Λ_n/∂f) at a mode, shape (P,), by autograd of each Λ."""
    density, likelihood = mode.density, mode.density.likelihood
    spread = OutputCovariance.under(density.model, mode.precision)

    def block(rows: Batch) -> tuple[Tensor]:
        f = density.model.forward(rows.features, mode.theta).requires_grad_()
        with torch.enable_grad():
            total = (spread(rows.features) * likelihood.hessian(f, rows.targets)).sum()
        slopes = torch.autograd.grad(total, f)[0] if total.requires_grad else torch.zeros_like(f)
        return (density.pull_back(rows.features, rows.weighed(slopes.detach())),)

    return density.sum(block, size=density.dim, copies=density.dim)[0]


def first_precision(density: LinearDensity, intercept_prior_precision: InterceptPrecision) -> float:
    """Where a search for α begins: its best value for the likelihood's quadratic expansion at a constant model."""
    few = density.every(max(1, density.table.count // BOUND_ROWS))
    return math.exp(_bounds(few, intercept_prior_precision)[1])


def _at_mode(mode: LinearMode) -> float:
    """γ of Laplace's posterior at a mode."""
    gamma = effective_parameters(mode.density.model, mode.density.prior, mode.precision)
    return _agreed(mode.density, gamma)[0]


def _agreed(density: LinearDensity, *numbers: float) -> list[float]:
    """The numbers as the processes have them that share the rows."""
    (found,) = density.table.agreed(torch.tensor(numbers, dtype=torch.float64))
    values: list[float] = found.tolist()
    return values


def _rest(mode: LinearMode, climb: PrecisionSearch, retune: Retune, climbs: int) -> LinearMode:
    """Climbs on until α rests: where the effect of α is small, θ can come to rest before it."""
    for _ in range(climbs):
        if climb.settled:
            return mode
        mode = find_mode(mode.density, mode.theta, retune=retune)
    raise ConvergenceError(
        f"prior_precision: expected the evidence to be stationary after {climbs} climbs, got a slope of "
        f"{climb.slack:.3g} at {math.exp(climb.t):.6g}. Give the prior precision as a number."
    )


def _stationary(slope: _TotalSlope, start: float, bounds: tuple[float, float]) -> tuple[float, LinearMode]:
    """The root of d log Z/dt uphill of the start, or the bound there, with the mode."""
    low, high = bounds
    rise = slope(start)
    # Near the maximum the slope falls by a share of γ per unit of t: the bracket is meant to need no widening.
    uphill, length = math.copysign(1.0, rise), 4.0 * abs(rise) / max(slope.effective_parameters, 1e-3) + 1e-6
    near, far = start, start
    while slope(far) * uphill > 0.0:
        if far in bounds:
            return far, slope.mode(far)
        near, far = far, min(high, max(low, far + uphill * length))
        length *= 2.0
    root = far if slope(far) == 0.0 else float(brentq(slope, near, far, xtol=1e-9, rtol=1e-12))
    return root, slope.mode(root)


@final
class _TotalSlope:
    """d log Z/dt at t = log α, with the mode's shift; modes that were found are where the next climb starts."""

    def __init__(self, mode: LinearMode, intercept: InterceptPrecision) -> None:
        self._mode, self._intercept = mode, intercept
        self._known: dict[float, float] = {}

    @property
    def effective_parameters(self) -> float:
        """γ at the last mode."""
        return _at_mode(self._mode)

    def mode(self, t: float) -> LinearMode:
        """The mode under α = eᵗ."""
        prior = weight_prior(self._mode.density.model, math.exp(t), self._intercept)
        self._mode = find_mode(self._mode.density.with_prior(prior), self._mode.theta)
        return self._mode

    def __call__(self, t: float) -> float:
        if t not in self._known:
            mode = self.mode(t)
            model = mode.density.model
            weights = mode.theta[: model.outputs * model.features]
            mackay = 0.5 * (_at_mode(mode) - math.exp(t) * float(weights @ weights))
            self._known[t] = _agreed(mode.density, mackay + _shift_slope(mode))[0]
        return self._known[t]


def precision_range(largest: float, rows: float) -> tuple[float, float, bool]:
    """Where log α is searched for, and whether the columns tell anything of it.

    Columns that are all constant have no curvature and tell nothing: α is then at the upper end, as of useless ones.

    Args:
        largest: the largest eigenvalue of the columns' curvature.
        rows: the sum of the rows' weights, which stands for it where there is no curvature.
    """
    low, high = (math.log(bound) + math.log(largest if largest > 0.0 else rows) for bound in BOUNDS)
    return low, high, largest > 0.0


def _bounds(density: LinearDensity, intercept: InterceptPrecision) -> tuple[tuple[float, float], float]:
    """The range of log α, and where the search begins: the best α about a constant model if it lets weights move."""
    constant = density.constant
    expansion = Expansion.at(constant, density.read(constant), density.model, intercept)
    low, high, informed = precision_range(float(expansion.values[-1]), density.table.total)
    start = min(expansion.highest(low, high), high - math.log(BOUNDS[1])) if informed else high
    low, high, start = _agreed(density, low, high, start)
    return (low, high), start


def _shift_slope(mode: LinearMode) -> float:
    """−½ d log∣H(θ̂) + P₀∣ / d log α through θ̂ alone, which moves by dθ̂/d log α = −A⁻¹ P_w θ̂."""
    density = mode.density
    pull = density.prior_precision.diagonal() * mode.theta
    pull[density.model.outputs * density.model.features :] = 0.0
    return _agreed(density, float(0.5 * determinant_slope(mode) @ mode.precision.solve(pull)))[0]
