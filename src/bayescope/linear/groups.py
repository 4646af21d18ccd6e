"""Prior precisions of groups of weights at the maximum of the evidence: relevance (ARD), random effects, or both.

Of K weights those of group g have the prior N(0, v_g/β), and the data's log likelihood is β (ρ·w − ½ wᵀSw) + const with
the intercept integrated out: exactly, with noise of variance 1/β, or with β = 1 about a point. With V = diag(v),

    log Z = −½ log∣I + V S∣ + ½ β ρᵀV(I + S V)⁻¹ρ + ½ n log β − ½ β‖y‖² + const

is smooth down to v = 0, where weights leave the model. With S̃ = (I + S V)⁻¹S and q = (I + S V)⁻¹ρ,

    ∂log Z/∂v_g = ½ Σ_{j∈g} (β q_j² − S̃_jj),    ∂²log Z/∂v_g∂v_h = Σ_{j∈g} Σ_{k∈h} (½ S̃_jk² − β q_j S̃_jk q_k),

so that the evidence switches off a weight by itself if and only if β q² ≤ S̃ (Tipping & Faul 2003, "Fast marginal
likelihood maximisation for sparse Bayesian models", eqs. 20–21). The search is over z_g = log(1 + c_g v_g), where c_g
is the mean of S_jj: of orthogonal columns log Z is then concave in z, with curvatures of the size of 1 in any units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.models import LinearModel

# The largest z: a prior precision of 1e-10 times the curvature is flat to ten digits.
FLATTEST = math.log(1e10)
STARTS = 24
MAX_STEPS = 500
TINY = 1e-300
# The longest step of a coordinate: the quadratic model of log Z means little far from where it was made.
LONGEST = 3.0
SHORTEST = 1e-10
ARMIJO = 1e-4
ROUNDING = 64 * torch.finfo(torch.float64).eps
# Directions of less curvature than this are taken to have as much.
LEAST_CURVATURE = 1e-8

Evaluation = tuple[float, Tensor, Tensor]


@final
@dataclass(frozen=True, eq=False)
class WeightGroups:
    """Which features' weights share a prior precision, and which precisions are known.

    Attributes:
        index: the group of each feature's weights for all outputs, int64 of shape (D,), or of each weight, (C, D).
        given: the precision of each group, shape (G,): NaN where it is to be learnt.
    """

    index: Tensor
    given: Tensor

    @classmethod
    def of_outputs(cls, model: LinearModel) -> WeightGroups:
        """A group for each output, whose precision is to be learnt."""
        each = torch.zeros(model.features, dtype=torch.int64)
        return cls(each, torch.full((1,), math.nan, dtype=torch.float64)).apart(model.outputs)

    def of_weights(self, model: LinearModel) -> Tensor:
        """The group of each weight, shape (C D,)."""
        return self.index.expand(model.outputs, -1).flatten()

    @property
    def fixed(self) -> Tensor:
        """Which precisions are known, shape (G,)."""
        return ~self.given.isnan()

    def apart(self, outputs: int) -> WeightGroups:
        """The groups of features with a precision for each output of its own."""
        first = len(self.given) * torch.arange(outputs)
        return WeightGroups(self.index + first[:, None], self.given.repeat(outputs))

    def of_output(self, output: int) -> WeightGroups:
        """The groups of one output, of those that `apart` gives each output; of others all groups."""
        if self.index.ndim == 1:
            return self
        count = len(self.given) // len(self.index)
        first = output * count
        return WeightGroups(self.index[output] - first, self.given[first : first + count])

    def sharing(self, features: int) -> WeightGroups:
        """The groups of features with one precision, to be learnt, for all of the first features together."""
        rest = self.index[features:]
        first = int(rest.min()) if len(rest) else len(self.given)
        index = torch.cat([torch.zeros_like(self.index[:features]), rest - first + 1])
        return WeightGroups(index, torch.cat([self.given.new_full((1,), math.nan), self.given[first:]]))

    def sums(self, each: Tensor, model: LinearModel) -> Tensor:
        """Σ over each group's weights, shape (G,), of numbers of shape (C D,)."""
        return each.new_zeros(len(self.given)).index_add_(0, self.of_weights(model), each)


@final
@dataclass(frozen=True, eq=False)
class GroupedEvidence:
    """log Z as a function of (z, log β), shape (G + 1,).

    Attributes:
        curvature: S, shape (K, K).
        linear: ρ, shape (K,).
        index: the group of each weight, shape (K,).
        given: the prior precisions β/v that are known, shape (G,): NaN elsewhere.
        scale: c, shape (G,); 0 for groups of columns without curvature.
        rows: n.
        squares: ‖y‖².
    """

    curvature: Tensor
    linear: Tensor
    index: Tensor
    given: Tensor
    scale: Tensor
    rows: float = 0.0
    squares: float = 0.0

    @classmethod
    def scales(cls, curvature: Tensor, index: Tensor, groups: int) -> Tensor:
        """c, the mean curvature of each group's columns that have some, shape (G,)."""
        diagonal = curvature.diagonal().clamp(min=0.0)
        total = diagonal.new_zeros(groups).index_add_(0, index, diagonal)
        return total / diagonal.new_zeros(groups).index_add_(0, index, (diagonal > 0).double()).clamp(min=1.0)

    def bounds(self, log_beta: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The smallest and the largest (z, log β): known precisions and groups without curvature stay at 0."""
        free = self.given.isnan() & (self.scale > 0)
        ends = torch.tensor(log_beta, dtype=torch.float64)
        return torch.cat([0.0 * self.scale, ends[:1]]), torch.cat([FLATTEST * free, ends[1:]])

    def variances(self, z: Tensor) -> Tensor:
        """v at (z, log β), shape (G,)."""
        learnt = z[:-1].expm1() / torch.where(self.scale > 0, self.scale, 1.0)
        return torch.where(self.given.isnan(), learnt, z[-1].exp() / self.given)

    def start(self, low: Tensor, high: Tensor) -> Tensor:
        """The best of some points at which all z are the same."""
        free, best, highest = bool(low[-1] < high[-1]), low, -math.inf
        for z in torch.linspace(0.0, FLATTEST, STARTS, dtype=torch.float64).tolist():
            point = torch.cat([torch.full_like(self.scale, z), low[-1:]]).clamp(low, high)
            # The best β is n over the residual, which does not depend on β unless a known precision moves v with it.
            for _ in range((1 if bool(self.given.isnan().all()) else 3) if free else 0):
                _, residual = self._terms(point)
                point[-1] = (math.log(self.rows) - math.log(max(residual, TINY))) if self.rows > 0 else low[-1]
                point = point.clamp(low, high)
            determinant, residual = self._terms(point)
            value = determinant + 0.5 * (self.rows * float(point[-1]) - float(point[-1].exp()) * residual)
            if value > highest:
                best, highest = point, value
        return best

    def __call__(self, z: Tensor) -> Evaluation:
        """log Z, its gradient and its Hessian; −∞ where a likelihood that is not log-concave leaves no Gaussian."""
        groups, beta = len(self.scale), float(z[-1].exp())
        v = self.variances(z)
        each = v[self.index]
        on = each > 0
        root, off = each[on].sqrt(), ~on
        rows_on = self.curvature[on]
        matrix = root[:, None] * rows_on[:, on] * root
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            return -math.inf, torch.zeros_like(z), torch.zeros(len(z), len(z), dtype=z.dtype)
        # V^{-½}(I + V^{½}SV^{½})⁻¹V^{½}(S, ρ): nothing is subtracted, so that small and large v keep their digits.
        solved = torch.cholesky_solve(torch.cat([rows_on, self.linear[on, None]], 1) * root[:, None], factor)
        solved /= root[:, None]
        both = torch.cat([self.curvature, self.linear[:, None]], 1)
        both[off] -= self.curvature[off][:, on] @ (each[on, None] * solved)
        both[on] = solved
        tilde, q = both[:, :-1], both[:, -1]
        residual = self.squares - float(self.linear[on] @ (each[on] * q[on]))
        value = float(-factor.diagonal().log().sum()) + 0.5 * (self.rows * float(z[-1]) - beta * residual)
        explained = beta * q.square()
        first = self._sum(0.5 * (explained - tilde.diagonal()))
        pairs = tilde * (0.5 * tilde - beta * q * q[:, None])
        second = tilde.new_zeros(groups, len(q)).index_add_(0, self.index, 0.5 * (pairs + pairs.mT))
        second = tilde.new_zeros(groups, groups).index_add_(1, self.index, second)
        # From (v, log β) to (z, log β): a known precision is v/β, so that its v moves with β.
        learnt = self.given.isnan()
        rate = torch.where(learnt, z[:-1].exp() / torch.where(self.scale > 0, self.scale, 1.0), 0.0)
        moved = torch.where(learnt, 0.0, v)
        cross = 0.5 * self._sum(explained)
        gradient = torch.cat([first * rate, (first @ moved + 0.5 * (self.rows - beta * residual)).reshape(1)])
        hessian = z.new_zeros(groups + 1, groups + 1)
        hessian[:-1, :-1] = second * rate * rate[:, None] + torch.diag(first * rate)
        hessian[:-1, -1] = hessian[-1, :-1] = rate * (cross + second @ moved)
        hessian[-1, -1] = (2.0 * cross + second @ moved + first) @ moved - 0.5 * beta * residual
        return value, gradient, hessian

    def _terms(self, z: Tensor) -> tuple[float, float]:
        """−½ log∣I + V S∣ and ‖y‖² − ρᵀV(I + S V)⁻¹ρ; −∞ where there is no Gaussian."""
        each = self.variances(z)[self.index]
        on = each > 0
        root = each[on].sqrt()
        matrix = root[:, None] * self.curvature[on][:, on] * root
        matrix.diagonal().add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed):
            return -math.inf, self.squares
        half = torch.linalg.solve_triangular(factor, (self.linear[on] * root)[:, None], upper=False)
        return float(-factor.diagonal().log().sum()), self.squares - float(half.square().sum())

    def _sum(self, each: Tensor) -> Tensor:
        return each.new_zeros(len(self.scale)).index_add_(0, self.index, each)


def slack(z: Tensor, gradient: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The gradient along the coordinates that no bound holds, 0 for the others."""
    held = ((z <= low) & (gradient <= 0)) | ((z >= high) & (gradient >= 0))
    return torch.where(held, 0.0, gradient)


def ascend(
    evaluate: Callable[[Tensor], Evaluation],
    start: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    tolerance: float,
    steps: int = MAX_STEPS,
) -> Tensor:
    """Climbs from a point to a maximum within bounds, by Newton's method on the coordinates that no bound holds.

    Args:
        evaluate: the function with its gradient and its Hessian.
        start: shape (G,).
        low: the lower bounds, shape (G,).
        high: the upper bounds, shape (G,).
        tolerance: the largest slope to stop at.
        steps: at most.

    Returns:
        The maximum, or the point where rounding ends the climb.
    """
    z = start.clamp(low, high)
    found = evaluate(z)
    for _ in range(steps):
        gradient, hessian = found[1:]
        rise = slack(z, gradient, low, high)
        if float(rise.abs().max()) <= tolerance:
            return z
        directions = (_newton(z, rise, hessian, low, high), rise / (1.0 + hessian.diagonal().abs()))
        ahead = next(filter(None, (_higher(evaluate, z, found, each, low, high) for each in directions)), None)
        if ahead is None or torch.equal(ahead[0], z):
            return z
        z, found = ahead
    return z


def _higher(
    evaluate: Callable[[Tensor], Evaluation],
    z: Tensor,
    found: Evaluation,
    direction: Tensor,
    low: Tensor,
    high: Tensor,
) -> tuple[Tensor, Evaluation] | None:
    """The first point along a direction, bent at the bounds, where the function is higher by a share of its slope."""
    value, gradient, _ = found
    length = min(1.0, LONGEST / float(direction.abs().max()))
    while length > SHORTEST:
        there = (z + length * direction).clamp(low, high)
        promised = float(gradient @ (there - z))
        ahead = evaluate(there)
        if promised > 0.0 and ahead[0] >= value + ARMIJO * promised - ROUNDING * (1.0 + abs(value)):
            return there, ahead
        length *= 0.25
    return None


def _newton(z: Tensor, rise: Tensor, hessian: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Newton's step, uphill: coordinates that it would take across a bound go there, and the others make up for it."""
    direction, free = torch.zeros_like(z), rise != 0
    for _ in range(len(z)):
        if not bool(free.any()):
            break
        pull = rise[free] + hessian[free][:, ~free] @ direction[~free]
        direction[free] = _uphill(-hessian[free][:, free], pull)
        beyond = free & ((z + direction < low) | (z + direction > high))
        if not bool(beyond.any()):
            break
        direction[beyond] = (z + direction).clamp(low, high)[beyond] - z[beyond]
        free &= ~beyond
    return direction


def _uphill(curvature: Tensor, pull: Tensor) -> Tensor:
    """A⁻¹ b of a positive definite matrix, and of any other one with its eigenvalues' sizes."""
    factor, failed = torch.linalg.cholesky_ex(curvature)
    if not int(failed):
        return torch.cholesky_solve(pull[:, None], factor)[:, 0]
    values, vectors = torch.linalg.eigh(curvature)
    return vectors @ ((vectors.mT @ pull) / values.abs().clamp(min=LEAST_CURVATURE))
