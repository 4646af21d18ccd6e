"""Gauss-Newton steps with Levenberg's damping: the weights of the largest log joint, from all rows at once.

A step solves (Jᵀ Λ J + diag(δ) + μ I) s = ∇ log p(y, θ) by conjugate gradients (Hestenes & Stiefel 1952) on the full
GGN, of which products alone are taken, preconditioned by its block diagonal, which is factorised. μ rises where a step
does not raise the log joint (Levenberg 1944; Marquardt 1963), and after one that does it follows the ratio of the gain
to what the quadratic model foretold (Nielsen 1999, eq. 2.8): hardly a step is tried in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.additive.passes import RowValues
from bayescope.additive.problem import Blocks, Hyperparameters, Linearized, Problem, State

FIRST_DAMPING = 1.0
LEAST_DAMPING, MOST_DAMPING = 1e-8, 1e10
# By so much it falls at most, and rises at first; each rise in a row is so many times the last.
FALL, RISE = 1.0 / 3.0, 2.0
# The step's residual, in the preconditioner's norm, as a share of the gradient's; and the most iterations for it.
RESIDUAL, ITERATIONS = 0.1, 40


@final
@dataclass(frozen=True, eq=False)
class Step:
    """Where a step led.

    Attributes:
        state: the weights.
        f: the outputs there.
        log_joint: there, but for the prior's constants.
        gain: by how much it rose; 0 where no step raises it.
        damping: for the next step.
    """

    state: State
    f: RowValues
    log_joint: Tensor
    gain: float
    damping: float


def step(
    problem: Problem, state: State, at: Hyperparameters, damping: float, linearized: Linearized | None = None
) -> Step:
    """One step that raises the log joint, or none if none does."""
    linear = linearized or problem.linearized(state, at.likelihood)
    here = problem.log_joint(state, at, linear.f)
    diagonals = at.diagonal(problem.families)
    thetas, intercept = linear.gradient()
    departures = problem.departures(state)
    thetas = [part - diagonal * off for part, diagonal, off in zip(thetas, diagonals, departures, strict=True)]
    gradient = (thetas, intercept - at.intercept_precision * state.intercept)
    rise = RISE
    while damping < MOST_DAMPING:
        blocks = Blocks.of(linear.blocks, problem.families, at, damping)
        solver = _Solver(linear, blocks, diagonals, at.intercept_precision, damping)
        moves, shift = solver.solve(*gradient)
        moved = State(
            tuple(theta + move for theta, move in zip(state.thetas, moves, strict=True)), state.intercept + shift
        )
        f = problem.outputs(moved)
        there = problem.log_joint(moved, at, f)
        gain = float(there - here)
        if gain >= 0.0:
            told = _foretold(_flat(moves, shift), _flat(*gradient), damping)
            factor = max(FALL, 1.0 - (2.0 * gain / told - 1.0) ** 3) if told > 0.0 else 1.0
            return Step(moved, f, there, gain, max(LEAST_DAMPING, damping * factor))
        damping *= rise
        rise *= RISE
    return Step(state, linear.f, here, 0.0, FIRST_DAMPING)


@final
class _Solver:
    """Conjugate gradients on the damped full GGN."""

    def __init__(
        self, linear: Linearized, blocks: Blocks, diagonals: Sequence[Tensor], intercept: float, damping: float
    ) -> None:
        self._linear, self._blocks = linear, blocks
        self._diagonals, self._intercept = [diagonal + damping for diagonal in diagonals], intercept + damping

    def solve(self, thetas: Sequence[Tensor], intercept: Tensor) -> tuple[list[Tensor], Tensor]:
        """s for the right-hand side g: s always has gᵀ s > 0."""
        residual = _flat(thetas, intercept)
        solution = torch.zeros_like(residual)
        whitened = self._preconditioned(residual)
        direction, norm = whitened, residual @ whitened
        target = RESIDUAL**2 * norm
        for _ in range(ITERATIONS):
            if bool(norm <= target):
                break
            product = self._product(direction)
            length = norm / (direction @ product)
            solution = solution + length * direction
            residual = residual - length * product
            whitened = self._preconditioned(residual)
            before, norm = norm, residual @ whitened
            direction = whitened + (norm / before) * direction
        return self._split(solution)

    def _product(self, v: Tensor) -> Tensor:
        thetas, intercept = self._split(v)
        parts, shift = self._linear.product(thetas, intercept)
        pulled = [part + diagonal * theta for part, diagonal, theta in zip(parts, self._diagonals, thetas, strict=True)]
        return _flat(pulled, shift + self._intercept * intercept)

    def _preconditioned(self, v: Tensor) -> Tensor:
        return _flat(*self._blocks.solve(*self._split(v)))

    def _split(self, v: Tensor) -> tuple[list[Tensor], Tensor]:
        sizes = [diagonal.numel() for diagonal in self._diagonals]
        *parts, intercept = v.split([*sizes, len(v) - sum(sizes)])
        return [part.view_as(diagonal) for part, diagonal in zip(parts, self._diagonals, strict=True)], intercept


def _foretold(move: Tensor, gradient: Tensor, damping: float) -> float:
    """½ sᵀ(g + μ s), which is gᵀs − ½ sᵀA s for (A + μ I) s = g, and where conjugate gradients end early as well."""
    return float(0.5 * move @ (gradient + damping * move))


def _flat(thetas: Sequence[Tensor], intercept: Tensor) -> Tensor:
    return torch.cat([*[theta.flatten() for theta in thetas], intercept])
