"""Weights and hyperparameters of an additive model learnt together: Gauss-Newton epochs that climb the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from bayescope import checks
from bayescope.additive.evidence import GROUPS, Evidence
from bayescope.additive.newton import FIRST_DAMPING, step
from bayescope.additive.problem import Hyperparameters, Linearized, Problem, State, noise_of
from bayescope.errors import InputError
from bayescope.process_state import threads_for
from bayescope.progress import progress_bar

# The evidence has come to rest where so many updates have not raised it by more than this, in nats.
AT_REST, PATIENCE = 0.05, 8
# The weights are brought to the mode of the best hyperparameters by steps that gain more than this, in nats, in the end
# and on the way there, and by at most so many.
SETTLED, ROUGHLY, SETTLING = 1e-3, 0.1, 30
# A mode that is wanted for its evidence is given up where so many more steps like the last would not reach that.
HOPE = 10.0


@final
@dataclass(frozen=True)
class Schedule:
    """When the evidence is asked.

    Attributes:
        epochs: steps over all rows, at most: it ends before where the evidence has come to rest.
        burn_in: how many of them come before the first update of the hyperparameters.
        every: so many epochs lie between updates.
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

    problem: Problem
    state: State
    at: Hyperparameters
    linear: Linearized
    evidence: Evidence
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ended: str = "rest"

    @property
    def log_evidence(self) -> float:
        """The log evidence, with the curvature taken by blocks of terms."""
        return float(self.evidence.value)


def climb(problem: Problem, state: State, at: Hyperparameters, schedule: Schedule) -> AdditiveFit:
    """Steps of the weights and of the hyperparameters in turn; the best are kept and brought near their mode."""
    climber = _Climber(problem, state, at, schedule)
    with threads_for(problem.numbers), progress_bar("fitting", shown=schedule.progress) as report:
        for epoch in range(schedule.epochs):
            report(epoch, schedule.epochs, f"epoch {epoch + 1}")
            if climber.rests(epoch):
                break
    return settled(problem, *climber.best, climber.trace, climber.ended, ROUGHLY)


@final
class _Climber:
    """The state of a climb: where it is, and the best that it has seen."""

    def __init__(self, problem: Problem, state: State, at: Hyperparameters, schedule: Schedule) -> None:
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
        evidence = Evidence.of(problem, self._state, self._at, self._linear)
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
    problem: Problem,
    state: State,
    at: Hyperparameters,
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
            if wanted is not None and float(Evidence.of(problem, state, at, linear).value) + HOPE * taken.gain < wanted:
                break
        evidence = Evidence.of(problem, state, at, linear)
    return AdditiveFit(problem, state, at, linear, evidence, trace, ended)


def _updated(
    problem: Problem, state: State, at: Hyperparameters, evidence: Evidence, linear: Linearized, schedule: Schedule
) -> Hyperparameters:
    for count in range(schedule.steps):
        if count:
            evidence = Evidence.of(problem, state, at, linear.under(at.likelihood))
        at = evidence.raised(problem, at, schedule.groups, learn=schedule.learn, fixed=not schedule.learn_noise)
    return at


def _append(trace: dict[str, list[float]], evidence: Evidence, log_joint: Tensor, at: Hyperparameters) -> None:
    noise = noise_of(at.likelihood)
    numbers = {"log_evidence": float(evidence.value), "log_joint": float(log_joint)}
    for name, value in numbers.items() if noise is None else {**numbers, "noise_variance": noise}.items():
        trace.setdefault(name, []).append(value)


def carried(fit: AdditiveFit, problem: Problem, first: State, at: Hyperparameters) -> tuple[State, Hyperparameters]:
    """The weights and precisions of a fit in a problem that has more families after the same ones."""
    count = len(fit.state.thetas)
    state = State((*fit.state.thetas, *first.thetas[count:]), fit.state.intercept)
    precisions = (*fit.at.precisions, *at.precisions[count:])
    assert problem.families[:count] == fit.problem.families
    return state, replace(fit.at, precisions=precisions)
