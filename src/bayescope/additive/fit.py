"""Weights and hyperparameters of an additive model learnt together: Gauss-Newton epochs that climb the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.additive.evidence import GROUPS, BlockEvidence
from bayescope.additive.passes import RowValues
from bayescope.additive.problem import (
    AdditiveHyperparameters,
    AdditiveProblem,
    BlockFactors,
    Linearized,
    TermWeights,
    noise_of,
)
from bayescope.errors import InputError
from bayescope.process_state import threads_for
from bayescope.progress import progress_bar

# Gauss-Newton steps with Levenberg's damping: the weights of the largest log joint, from all rows at once.
#
# A step solves (Jᵀ Λ J + diag(δ) + μ I) s = ∇ log p(y, θ) by conjugate gradients (Hestenes & Stiefel 1952) on the full
# GGN, of which products alone are taken, preconditioned by its block diagonal, which is factorised. μ rises where a
# step does not raise the log joint (Levenberg 1944; Marquardt 1963), and after one that does it follows the ratio of
# the gain to what the quadratic model foretold (Nielsen 1999, eq. 2.8): hardly a step is tried in vain.

FIRST_DAMPING = 1.0
LEAST_DAMPING, MOST_DAMPING = 1e-8, 1e10
# By so much it falls at most, and rises at first; each rise in a row is so many times the last.
FALL, RISE = 1.0 / 3.0, 2.0
# The step's residual, in the preconditioner's norm, as a share of the gradient's; and the most iterations for it.
RESIDUAL, ITERATIONS = 0.1, 40


@final
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """Where a step led.

    Attributes:
        state: the weights.
        f: the outputs there.
        log_joint: there, but for the prior's constants.
        gain: by how much it rose; 0 where no step raises it.
        damping: for the next step.
    """

    state: TermWeights
    f: RowValues
    log_joint: Tensor
    gain: float
    damping: float


def step(
    problem: AdditiveProblem,
    state: TermWeights,
    at: AdditiveHyperparameters,
    damping: float,
    linearized: Linearized | None = None,
) -> NewtonStep:
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
        blocks = BlockFactors.of(linear.blocks, problem.families, at, damping)
        solver = _Solver(linear, blocks, diagonals, at.intercept_precision, damping)
        moves, shift = solver.solve(*gradient)
        moved = TermWeights(
            tuple(theta + move for theta, move in zip(state.thetas, moves, strict=True)), state.intercept + shift
        )
        f = problem.outputs(moved)
        there = problem.log_joint(moved, at, f)
        gain = float(there - here)
        if gain >= 0.0:
            foretold = _foretold(_flat(moves, shift), _flat(*gradient), damping)
            factor = max(FALL, 1.0 - (2.0 * gain / foretold - 1.0) ** 3) if foretold > 0.0 else 1.0
            return NewtonStep(moved, f, there, gain, max(LEAST_DAMPING, damping * factor))
        damping *= rise
        rise *= RISE
    return NewtonStep(state, linear.f, here, 0.0, FIRST_DAMPING)


@final
class _Solver:
    """Conjugate gradients on the damped full GGN."""

    def __init__(
        self, linear: Linearized, blocks: BlockFactors, diagonals: Sequence[Tensor], intercept: float, damping: float
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


# The evidence has come to rest where so many updates have not raised it by more than this, in nats.
AT_REST, PATIENCE = 0.05, 8
# The weights are brought to the mode of the best hyperparameters by steps that gain more than this, in nats, in the end
# and on the way there, and by at most so many.
SETTLED, ROUGHLY, SETTLING = 1e-3, 0.1, 30
# A mode that is wanted for its evidence is given up where so many more steps like the last would not reach that.
HOPE = 10.0


@final
@dataclass(frozen=True)
class EvidenceSchedule:
    """When the evidence is asked.

    Attributes:
        epochs: steps over all rows, at most: it ends before where the evidence has come to rest.
        burn_in: how many of them come before the first update of the hyperparameters.
        every: the number of epochs between updates.
        steps: fixed-point steps of an update.
        groups: "net", one precision a term, or "layer", one for each of its layers.
        learn: whether precisions are learnt; else they stay where they are.
        learn_noise: whether the noise variance of a Gaussian likelihood is.
        progress: whether a bar is drawn once it takes over two seconds.
    """

    epochs: int = 100
    burn_in: int = 5
    every: int = 1
    steps: int = 1
    groups: str = "layer"
    learn: bool = True
    learn_noise: bool = True
    progress: bool = False

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs)
        checks.count("burn_in", self.burn_in, least=0)
        checks.count("evidence_every", self.every)
        checks.count("evidence_steps", self.steps)
        checks.choice("groups", self.groups, GROUPS)
        if self.learn and self.burn_in >= self.epochs:
            raise InputError(
                f"burn_in: expected fewer epochs than all, {self.epochs}, got {self.burn_in}: no precision would be "
                "learnt. Raise epochs, or give a prior_precision."
            )


@final
@dataclass(frozen=True, eq=False)
class AdditiveFit:
    """A mode, the hyperparameters it belongs to, and the curvature there.

    Attributes:
        problem: the rows and terms.
        state: the weights of the largest log joint.
        at: the hyperparameters.
        linear: the model there, to first order, with the blocks of the GGN.
        evidence: log Z and γ.
        trace: "log_evidence", "log_joint", and "noise_variance" where there is one, of each epoch.
        ended: why the climb ended: "rest" of the evidence, or "all epochs".
    """

    problem: AdditiveProblem
    state: TermWeights
    at: AdditiveHyperparameters
    linear: Linearized
    evidence: BlockEvidence
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ended: str = "rest"

    @property
    def log_evidence(self) -> float:
        """The log evidence, with the curvature taken by blocks of terms."""
        return float(self.evidence.value)


def climb(
    problem: AdditiveProblem, state: TermWeights, at: AdditiveHyperparameters, schedule: EvidenceSchedule
) -> AdditiveFit:
    """Steps of the weights and of the hyperparameters in turn; the best are kept and brought near their mode."""
    climber = _Epochs(problem, state, at, schedule)
    with threads_for(problem.numbers), progress_bar("fitting", shown=schedule.progress) as report:
        for epoch in range(schedule.epochs):
            report(epoch, schedule.epochs, f"epoch {epoch + 1}")
            if climber.rests(epoch):
                break
    return settled(problem, *climber.best, climber.trace, climber.ended, ROUGHLY)


@final
class _Epochs:
    """The state of a climb: where it is, and the best that it has seen."""

    def __init__(
        self, problem: AdditiveProblem, state: TermWeights, at: AdditiveHyperparameters, schedule: EvidenceSchedule
    ) -> None:
        self.trace: dict[str, list[float]] = {}
        self.best, self.ended = (state, at), "all epochs"
        self._problem, self._state, self._at, self._schedule = problem, state, at, schedule
        self._damping, self._linear = FIRST_DAMPING, problem.linearized(state, at.likelihood)
        self._highest, self._since = -math.inf, 0

    def rests(self, epoch: int) -> bool:
        """One epoch; whether the evidence has come to rest."""
        problem, schedule = self._problem, self._schedule
        taken = step(problem, self._state, self._at, self._damping, self._linear)
        self._state, self._damping = taken.state, taken.damping
        self._linear = problem.linearized(self._state, self._at.likelihood, taken.f)
        evidence = BlockEvidence.of(problem, self._state, self._at, self._linear)
        _append(self.trace, evidence, taken.log_joint, self._at)
        if epoch < schedule.burn_in:
            self.best = (self._state, self._at)
            return False
        self._judge(float(evidence.value))
        if self._since >= PATIENCE:
            self.ended = "rest"
            return True
        if (schedule.learn or schedule.learn_noise) and (epoch - schedule.burn_in) % schedule.every == 0:
            self._at = _updated(problem, self._state, self._at, evidence, self._linear, schedule)
            self._linear = self._linear.under(self._at.likelihood)
        return False

    def _judge(self, value: float) -> None:
        self._since = 0 if value > self._highest + AT_REST else self._since + 1
        if value > self._highest:
            self.best, self._highest = (self._state, self._at), value


def settled(
    problem: AdditiveProblem,
    state: TermWeights,
    at: AdditiveHyperparameters,
    trace: Mapping[str, Sequence[float]],
    ended: str,
    enough: float = SETTLED,
    wanted: float | None = None,
) -> AdditiveFit:
    """The mode of given hyperparameters, from weights close to it: steps while they gain ``enough`` nats.

    They end before where the evidence is farther from what is ``wanted`` of it than HOPE such steps would lead.
    """
    damping, linear = FIRST_DAMPING, problem.linearized(state, at.likelihood)
    with threads_for(problem.numbers):
        for _ in range(SETTLING):
            taken = step(problem, state, at, damping, linear)
            state, damping = taken.state, taken.damping
            linear = problem.linearized(state, at.likelihood, taken.f)
            if taken.gain < enough:
                break
            if (
                wanted is not None
                and float(BlockEvidence.of(problem, state, at, linear).value) + HOPE * taken.gain < wanted
            ):
                break
        evidence = BlockEvidence.of(problem, state, at, linear)
    return AdditiveFit(problem, state, at, linear, evidence, trace, ended)


def _updated(
    problem: AdditiveProblem,
    state: TermWeights,
    at: AdditiveHyperparameters,
    evidence: BlockEvidence,
    linear: Linearized,
    schedule: EvidenceSchedule,
) -> AdditiveHyperparameters:
    for count in range(schedule.steps):
        if count:
            evidence = BlockEvidence.of(problem, state, at, linear.under(at.likelihood))
        at = evidence.raised(problem, at, schedule.groups, learn=schedule.learn, fixed=not schedule.learn_noise)
    return at


def _append(
    trace: dict[str, list[float]], evidence: BlockEvidence, log_joint: Tensor, at: AdditiveHyperparameters
) -> None:
    noise = noise_of(at.likelihood)
    numbers = {"log_evidence": float(evidence.value), "log_joint": float(log_joint)}
    for name, value in numbers.items() if noise is None else {**numbers, "noise_variance": noise}.items():
        trace.setdefault(name, []).append(value)


def carried(
    fit: AdditiveFit, problem: AdditiveProblem, first: TermWeights, at: AdditiveHyperparameters
) -> tuple[TermWeights, AdditiveHyperparameters]:
    """The weights and precisions of a fit in a problem that has more families after the same ones."""
    count = len(fit.state.thetas)
    state = TermWeights((*fit.state.thetas, *first.thetas[count:]), fit.state.intercept)
    precisions = (*fit.at.precisions, *at.precisions[count:])
    assert problem.families[:count] == fit.problem.families
    return state, replace(fit.at, precisions=precisions)
