"""Weights and hyperparameters of an additive model learnt together: Gauss-Newton epochs that climb the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from bayescope import checks
from bayescope.additive.evidence import GROUPS, Evidence
from bayescope.additive.newton import FIRST_DAMPING, step
from bayescope.additive.problem import Hyperparameters, Linearized, Problem, State, noise_of
from bayescope.progress import progress_bar

# The evidence has come to rest where so many updates have not raised it by more than this, in nats.
AT_REST, PATIENCE = 0.05, 8
# At last the weights are brought to the mode of the best hyperparameters: steps that gain more than this, in nats.
SETTLED, SETTLING = 1e-4, 30


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


@final
@dataclass(frozen=True, eq=False)
class AdditiveFit:
    """A mode, the hyperparameters it belongs to, and the curvature there.

    Attributes:
        problem: the rows and terms.
        state: the weights of the largest log joint.
        at: the hyperparameters.
        linear: the model there, to first order.
        curvature: the blocks of the GGN without the prior, and that of the intercepts.
        evidence: log Z and γ.
        trace: "log_evidence", "log_joint", and "noise_variance" where there is one, of each epoch.
        rested: whether the evidence came to rest before the epochs were over.
    """

    problem: Problem
    state: State
    at: Hyperparameters
    linear: Linearized
    curvature: tuple[list[Tensor], Tensor]
    evidence: Evidence
    trace: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rested: bool = True

    @property
    def log_evidence(self) -> float:
        """log Z by blocks."""
        return float(self.evidence.value)


def climb(problem: Problem, state: State, at: Hyperparameters, schedule: Schedule) -> AdditiveFit:
    """Steps of the weights and of the hyperparameters in turn; the best are kept and brought to their mode."""
    trace: dict[str, list[float]] = {}
    best, best_value, since = (state, at), -float("inf"), 0
    damping, linear, rested = FIRST_DAMPING, None, False
    with progress_bar("fitting", shown=schedule.progress) as report:
        for epoch in range(schedule.epochs):
            report(epoch, schedule.epochs, f"epoch {epoch + 1}")
            taken = step(problem, state, at, damping, linear)
            state, damping = taken.state, taken.damping
            linear = problem.linearized(state, at.likelihood)
            curvature = linear.blocks()
            evidence = Evidence.of(problem, state, at, curvature)
            _append(trace, evidence, taken.log_joint, at)
            if epoch < schedule.burn_in:
                continue
            rising = float(evidence.value) > best_value + AT_REST
            since = 0 if rising else since + 1
            if float(evidence.value) > best_value:
                best, best_value = (state, at), float(evidence.value)
            if since >= PATIENCE:
                rested = True
                break
            if (schedule.learn or schedule.learn_noise) and (epoch - schedule.burn_in) % schedule.every == 0:
                at = _updated(problem, state, at, evidence, linear, schedule)
                linear = linear.under(at.likelihood)
    state, at = best if best_value > -float("inf") else (state, at)
    return settled(problem, state, at, trace, rested)


def settled(
    problem: Problem, state: State, at: Hyperparameters, trace: Mapping[str, Sequence[float]], rested: bool
) -> AdditiveFit:
    """The mode of given hyperparameters, from weights close to it."""
    damping = FIRST_DAMPING
    for _ in range(SETTLING):
        taken = step(problem, state, at, damping)
        state, damping = taken.state, taken.damping
        if taken.gain < SETTLED:
            break
    linear = problem.linearized(state, at.likelihood)
    curvature = linear.blocks()
    evidence = Evidence.of(problem, state, at, curvature)
    return AdditiveFit(problem, state, at, linear, curvature, evidence, trace, rested)


def _updated(
    problem: Problem, state: State, at: Hyperparameters, evidence: Evidence, linear: Linearized, schedule: Schedule
) -> Hyperparameters:
    for count in range(schedule.steps):
        if count:
            evidence = Evidence.of(problem, state, at, linear.under(at.likelihood).blocks())
        at = evidence.raised(
            problem, state, at, schedule.groups, learn=schedule.learn, fixed=not schedule.learn_noise
        )
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
