"""Weights and hyperparameters of an additive model learnt together: Gauss-Newton epochs that climb the evidence.

Laplace's evidence by blocks is

    log Z ≈ log p(y∣f) − ½ Σ δ(θ−m)² + ½ Σ log δ − ½ Σ_g log∣A_g∣,

over blocks A_g = H_g + diag(δ_g) of the GGN in centred coordinates. By Fischer's inequality the product of the blocks'
determinants is at least that of the full GGN, so that this is at most the full GGN's log Z (Immer et al. 2023; Bouchiat
et al. 2024, section 3).

Weights that must not be negative, those of monotone effects, are found by the same steps: of each step, what would
carry a weight below 0 is held there. Held weights are no part of log Z and of γ: it is the evidence of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

import torch
from torch import Tensor

from bayescope import checks
from bayescope.additive.families import TermFamily
from bayescope.additive.passes import ALL, RowValues
from bayescope.additive.problem import (
    AdditiveHyperparameters,
    AdditiveProblem,
    BlockFactors,
    Linearized,
    noise_of,
    output_variances,
)
from bayescope.errors import InputError
from bayescope.likelihoods import Likelihood, Weighted
from bayescope.process_state import threads_for
from bayescope.progress import progress_bar

# δ between these; at the upper end a term is switched off: in standardised units its effects are below 1e-4.
LEAST_PRECISION, MOST_PRECISION = 1e-6, 1e8
# One update moves a hyperparameter by at most this factor: the mode has to follow.
FARTHEST = 5.0
# The least noise variance, as a share of the targets' variance: data that are interpolated have no largest evidence.
LEAST_NOISE = 1e-8
# The degrees of freedom that determine the noise are at least this share of the rows.
LEAST_FREEDOM = 0.05
# With fewer determined weights than this, which may be rounding, the data say nothing of their precision.
LEAST_DETERMINED = 1e-10
# Nodes of a standard normal of variance 1 that a hyperparameter's expectations are averaged over, and the steps of
# L-BFGS that it takes in an epoch; the next epochs go on from there.
_NODES, _REFITS = (-3 / 5**0.5, -1 / 5**0.5, 1 / 5**0.5, 3 / 5**0.5), 4
CHOICES = {
    "ranking": ("evidence", "mutual_information"),
    "posterior": ("laplace", "map"),
    "structure": ("block", "full"),
    "share_prior": ("net", "layer"),
}


@final
@dataclass(frozen=True, eq=False)
class BlockEvidence:
    """log Z at weights and hyperparameters, with what its fixed points need.

    Attributes:
        value: log Z, a float64 scalar.
        determined: γ of each family, shape (G, L): how many weights of a layer the data determine.
        squares: ‖θ − m‖² of each family, shape (G, L).
        total: γ of all weights, the intercepts among them.
        linear: the model there, to first order.
    """

    value: Tensor
    determined: tuple[Tensor, ...]
    squares: tuple[Tensor, ...]
    total: float
    linear: Linearized

    @classmethod
    def of(
        cls, problem: AdditiveProblem, theta: Tensor, at: AdditiveHyperparameters, linear: Linearized
    ) -> BlockEvidence:
        """Computes log Z and γ from the curvature's blocks at the weights, where the model is linearised."""
        diagonal = at.diagonal(problem.families)
        blocks = BlockFactors.of(linear.blocks, diagonal, problem.held(theta))
        value = problem.log_joint(theta, at, linear.f) + 0.5 * (diagonal.log().sum() - blocks.logdet())
        gamma = 1.0 - diagonal * blocks.inverse_diagonal()
        determined, squares = (
            tuple(
                torch.zeros_like(precision).scatter_add(1, family.layer.expand_as(part), part)
                for precision, family, part in zip(at.precisions, problem.families, problem.split(each)[0], strict=True)
            )
            for each in (gamma, (theta - problem.centre).square())
        )
        return cls(value, determined, squares, float(gamma.sum()), linear)

    def raised(
        self,
        problem: AdditiveProblem,
        at: AdditiveHyperparameters,
        groups: str,
        *,
        learn: bool,
        learns: tuple[str, ...],
    ) -> AdditiveHyperparameters:
        """Hyperparameters one fixed-point step on: δ = γ/‖θ − m‖² and σ² = RSS/(N − γ) (MacKay 1992, eqs. 4.12, 4.16).

        Other hyperparameters of the likelihood take a step of expectation maximisation: to where E_q[Σ log p(y∣f)] is
        largest.

        Args:
            problem: the rows.
            at: the present hyperparameters.
            groups: "net" for one precision a term, "layer" for one for each of its layers.
            learn: whether precisions are learnt; else they stay.
            learns: the hyperparameters of the likelihood that do not stay.
        """
        precisions = self._precisions(at, groups) if learn else at.precisions
        likelihood = at.likelihood
        if likelihood.noise_variance is not None and learns:
            likelihood = likelihood.with_noise_variance(self._noise(problem, likelihood))
        elif names := tuple(name for name in learns if name in likelihood.hyperparameters):
            blocks = BlockFactors.of(self.linear.blocks, at.diagonal(problem.families))
            variances = output_variances(self.linear, blocks)
            likelihood = refitted(problem, likelihood, self.linear.f, variances, names)
        return replace(at, precisions=precisions, likelihood=likelihood)

    def _precisions(self, at: AdditiveHyperparameters, groups: str) -> tuple[Tensor, ...]:
        precisions = []
        for gamma, squares, before in zip(self.determined, self.squares, at.precisions, strict=True):
            if groups == "net":
                gamma, squares = (part.sum(1, keepdim=True).expand_as(part) for part in (gamma, squares))  # noqa: PLW2901
                before = before.log().mean(1, keepdim=True).exp().expand_as(before)  # noqa: PLW2901
            proposed = (gamma / squares).clamp(LEAST_PRECISION, MOST_PRECISION)
            proposed = torch.where(
                (squares > 0) & (gamma > LEAST_DETERMINED) & (before < MOST_PRECISION), proposed, before
            )
            precisions.append((before * (proposed / before).clamp(1.0 / FARTHEST, FARTHEST)).clamp(max=MOST_PRECISION))
        return tuple(precisions)

    def _noise(self, problem: AdditiveProblem, likelihood: Likelihood) -> Tensor:
        """One for each output, shape (D,), which are taken to have used up as many degrees of freedom each."""
        residuals = problem.squared_residuals(self.linear.f)
        count = problem.rows()
        proposed = residuals / max(count - self.total / len(residuals), LEAST_FREEDOM * count)
        before = likelihood.noise(residuals)
        return (before * (proposed / before).clamp(1.0 / FARTHEST, FARTHEST)).clamp(min=LEAST_NOISE)


def refitted(
    problem: AdditiveProblem, likelihood: Likelihood, f: RowValues, variances: RowValues, names: tuple[str, ...]
) -> Likelihood:
    """The likelihood with the hyperparameters at which E_q[Σ_n w_n log p(y_n∣f_n)] is largest, or on the way there.

    Args:
        problem: the rows, in memory.
        likelihood: p(y∣f).
        f: the outputs at the mode, shape (N, C).
        variances: their covariances, shape (N, C²), of which the diagonals count.
        names: of the hyperparameters.
    """
    centre = f[ALL]
    sd = variances[ALL].unflatten(1, (centre.shape[1], -1)).diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt()
    weights, y = problem.weights[ALL], problem.targets[ALL]
    weighted = Weighted(likelihood, float(weights.mean()))
    draws = torch.stack([centre + z * sd for z in _NODES])
    return weighted.fitted(names, draws, Weighted.join(y, weights), steps=_REFITS).likelihood


def first_precisions(families: Sequence[TermFamily], *, inner: float, other: float) -> tuple[Tensor, ...]:
    """Where the precisions start, shape (G, L) of each family: those of inner layers, and all others."""
    return tuple(
        torch.tensor([inner if name == "inner" else other for name in family.layers], dtype=torch.float64).repeat(
            len(family.terms), 1
        )
        for family in families
    )


# Gauss-Newton steps with Levenberg's damping: the weights of the largest log joint, from all rows at once.
#
# A step solves (Jᵀ Λ J + diag(δ) + μ I) s = ∇ log p(y, θ) by conjugate gradients (Hestenes & Stiefel 1952) on the full
# GGN, of which products alone are taken, preconditioned by its block diagonal, which is factorised. μ rises where a
# step does not raise the log joint (Levenberg 1944; Marquardt 1963), and after one that does it follows the ratio of
# the gain to what the quadratic model foretold (Nielsen 1999, eq. 2.8): hardly a step is tried in vain.

FIRST_DAMPING = 1.0
LEAST_DAMPING, MOST_DAMPING = 1e-8, 1e10
# The factor by which it falls at most, and rises at first; each further rise in a row is larger by the second factor.
FALL, RISE = 1.0 / 3.0, 2.0
# The step's residual, in the preconditioner's norm, as a share of the gradient's; and the most iterations for it.
RESIDUAL, ITERATIONS = 0.1, 40


@final
@dataclass(frozen=True, eq=False)
class NewtonStep:
    """Where a step led.

    Attributes:
        theta: the weights.
        f: the outputs there.
        log_joint: there, but for the prior's constants.
        gain: by how much it rose; 0 where no step raises it.
        damping: for the next step.
    """

    theta: Tensor
    f: RowValues
    log_joint: Tensor
    gain: float
    damping: float


def step(
    problem: AdditiveProblem,
    theta: Tensor,
    at: AdditiveHyperparameters,
    damping: float,
    linearized: Linearized | None = None,
) -> NewtonStep:
    """One step that raises the log joint, or none if none does."""
    linear = linearized or problem.linearized(theta, at.likelihood)
    here = problem.log_joint(theta, at, linear.f)
    diagonal = at.diagonal(problem.families)
    gradient = linear.transposed(linear.slope) - diagonal * (theta - problem.centre)
    rise = RISE
    while damping < MOST_DAMPING:
        move = _feasible(problem, theta, linear, diagonal + damping, gradient)
        f = problem.outputs(theta + move)
        there = problem.log_joint(theta + move, at, f)
        gain = float(there - here)
        if gain >= 0.0:
            # ½ sᵀ(g + μ s) is gᵀs − ½ sᵀA s for (A + μ I) s = g, and where conjugate gradients end early as well.
            foretold = float(0.5 * move @ (gradient + damping * move))
            factor = max(FALL, 1.0 - (2.0 * gain / foretold - 1.0) ** 3) if foretold > 0.0 else 1.0
            return NewtonStep(theta + move, f, there, gain, max(LEAST_DAMPING, damping * factor))
        damping *= rise
        rise *= RISE
    return NewtonStep(theta, linear.f, here, 0.0, FIRST_DAMPING)


def _feasible(
    problem: AdditiveProblem, theta: Tensor, linear: Linearized, diagonal: Tensor, gradient: Tensor
) -> Tensor:
    """The step s of `solved`, where no bounded weight becomes negative: those that would are stopped at 0.

    A weight at 0 that the gradient drives below stays. If the step carries others below, these are held at 0 and the
    rest is solved for anew, until none is left (Bertsekas 1982, with the face found as by Lawson & Hanson 1974).
    """
    held = problem.held(theta) & (gradient < 0.0)
    stopped, left = torch.zeros_like(theta), gradient
    while True:
        move = torch.where(held, stopped, solved(linear, diagonal, left, held=held))
        below = problem.bounded & (theta + move < 0.0)
        if not bool(below.any()):
            return move
        held = held | below
        stopped = torch.where(held, -theta, 0.0)
        left = gradient - linear.product(stopped) - diagonal * stopped


def solved(
    linear: Linearized,
    diagonal: Tensor,
    gradient: Tensor,
    *,
    residual: float = RESIDUAL,
    most: int = ITERATIONS,
    held: Tensor | None = None,
) -> Tensor:
    """(Jᵀ Λ J + diag)⁻¹ g by conjugate gradients on the full GGN; the result s always has gᵀ s > 0.

    Args:
        linear: the model, linearised.
        diagonal: what is added to the GGN, shape (P,).
        gradient: g, shape (P,).
        residual: the residual in the preconditioner's norm, as a share of the gradient's, at which it ends.
        most: the most iterations.
        held: which weights are not moved, bool (P,); ``None`` for none.
    """
    blocks = BlockFactors.of(linear.blocks, diagonal, held)
    held = None if held is None or not bool(held.any()) else held
    left = gradient if held is None else gradient.masked_fill(held, 0.0)
    solution = torch.zeros_like(gradient)
    whitened = blocks.solve(left)
    direction, norm = whitened, left @ whitened
    target = residual**2 * norm
    for _ in range(most):
        if bool(norm <= target):
            break
        product = linear.product(direction) + diagonal * direction
        product = product if held is None else product.masked_fill(held, 0.0)
        length = norm / (direction @ product)
        solution = solution + length * direction
        left = left - length * product
        whitened = blocks.solve(left)
        before, norm = norm, left @ whitened
        direction = whitened + (norm / before) * direction
    return solution


# The evidence has come to rest where this many updates have not raised it by more than this, in nats.
AT_REST, PATIENCE = 0.05, 8
# The weights are brought to the mode of the best hyperparameters by steps that gain more than this, in nats, in the end
# and on the way there, and by at most this many.
SETTLED, ROUGHLY, SETTLING = 1e-3, 0.1, 30
# A mode that is wanted for its evidence is given up where this many more steps like the last would not reach that.
HOPE = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class AdditiveOptions:
    """The options of a fit of an additive model.

    Attributes:
        hidden: hidden units of a feature's net.
        pair_hidden: hidden units of a pair's net.
        interactions: how many pairs, "auto" for as many as raise the evidence, or the pairs themselves.
        ranking: what pairs are ranked by.
        posterior: "laplace", or "map" for the mode alone.
        structure: of the Laplace posterior's precision: "block", one block a term, or "full".
        prior_precision: "evidence", or a number for all weights but the intercepts.
        intercept_prior_precision: that of the intercepts.
        monotone: 1 for each feature whose effect never falls, −1 for one whose effect never rises.
        share_prior: which weights share a prior precision: those of a "net", or of each "layer" of it.
        epochs: steps over all rows, at most: fitting ends before where the evidence has come to rest.
        burn_in: how many of them come before the first update of the hyperparameters.
        evidence_every: the number of epochs between updates.
        evidence_steps: fixed-point steps of an update.
        progress: whether a bar is drawn once it takes over two seconds.
    """

    hidden: int = 32
    pair_hidden: int = 32
    interactions: int | Literal["auto"] | Sequence[tuple[str | int, str | int]] = 0
    ranking: Literal["evidence", "mutual_information"] = "evidence"
    posterior: Literal["laplace", "map"] = "laplace"
    structure: Literal["block", "full"] = "block"
    prior_precision: float | Literal["evidence"] = "evidence"
    intercept_prior_precision: float = 1e-4
    monotone: Mapping[str | int, int] | None = None
    share_prior: Literal["layer", "net"] = "layer"
    epochs: int = 100
    burn_in: int = 5
    evidence_every: int = 1
    evidence_steps: int = 1
    progress: bool = False


def check_options(options: AdditiveOptions) -> None:
    """Checks all options but the pairs.

    Raises:
        InputError, OptionError: if one cannot be used.
    """
    for name in ("hidden", "pair_hidden", "epochs", "evidence_every", "evidence_steps"):
        checks.count(name, getattr(options, name))
    checks.count("burn_in", options.burn_in, least=0)
    for name, known in CHOICES.items():
        checks.choice(name, getattr(options, name), known)
    checks.positive_number("intercept_prior_precision", options.intercept_prior_precision)
    checks.flag("progress", options.progress)
    if isinstance(options.prior_precision, str) and options.prior_precision == "evidence":
        if options.burn_in >= options.epochs:
            raise InputError(
                f"burn_in: expected fewer epochs than all, {options.epochs}, got {options.burn_in}: no precision would "
                "be learnt. Raise epochs, or give a prior_precision."
            )
        return
    try:
        checks.positive_number("prior_precision", options.prior_precision)
    except InputError:
        raise InputError(
            "prior_precision: expected a positive number for all weights or 'evidence', got "
            f"{options.prior_precision!r}."
        ) from None


@final
@dataclass(frozen=True, eq=False)
class AdditiveFit:
    """A mode, the hyperparameters it belongs to, and the curvature there.

    Attributes:
        problem: the rows and terms.
        theta: the weights of the largest log joint.
        at: the hyperparameters.
        linear: the model there, to first order, with the blocks of the GGN.
        evidence: log Z and γ.
        trace: "log_evidence", "log_joint", and "noise_variance" where there is one, of each epoch.
        ended: why the climb ended: "rest" of the evidence, or "all epochs".
    """

    problem: AdditiveProblem
    theta: Tensor
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
    problem: AdditiveProblem,
    theta: Tensor,
    at: AdditiveHyperparameters,
    options: AdditiveOptions,
    *,
    learns: tuple[str, ...] = ("noise_variance",),
    what: str = "",
) -> AdditiveFit:
    """Steps of the weights and of the hyperparameters in turn; the best are kept and brought near their mode.

    The bar says ``what`` is fitted.
    """
    climber = _Epochs(problem, theta, at, options, learns)
    with threads_for(problem.numbers), progress_bar(f"fitting {what}".strip(), visible=options.progress) as report:
        for epoch in range(options.epochs):
            report(epoch, options.epochs, f"epoch {epoch + 1}")
            if climber.rests(epoch):
                break
    return settled(problem, *climber.best, climber.trace, climber.ended, ROUGHLY)


@final
class _Epochs:
    """The state of a climb: where it is, and the best that it has seen."""

    def __init__(
        self,
        problem: AdditiveProblem,
        theta: Tensor,
        at: AdditiveHyperparameters,
        options: AdditiveOptions,
        learns: tuple[str, ...],
    ) -> None:
        self.trace: dict[str, list[float]] = {}
        self.best, self.ended = (theta, at), "all epochs"
        self._problem, self._theta, self._at, self._options = problem, theta, at, options
        self._learn, self._learns = isinstance(options.prior_precision, str), learns
        self._damping, self._linear = FIRST_DAMPING, problem.linearized(theta, at.likelihood)
        self._highest, self._since = -math.inf, 0

    def rests(self, epoch: int) -> bool:
        """One epoch; whether the evidence has come to rest."""
        problem, options = self._problem, self._options
        taken = step(problem, self._theta, self._at, self._damping, self._linear)
        self._theta, self._damping = taken.theta, taken.damping
        self._linear = problem.linearized(self._theta, self._at.likelihood, taken.f)
        evidence = BlockEvidence.of(problem, self._theta, self._at, self._linear)
        _append(self.trace, evidence, taken.log_joint, self._at)
        if epoch < options.burn_in:
            self.best = (self._theta, self._at)
            return False
        self._judge(float(evidence.value))
        if self._since >= PATIENCE:
            self.ended = "rest"
            return True
        if (self._learn or self._learns) and (epoch - options.burn_in) % options.evidence_every == 0:
            self._update(evidence)
            self._linear = self._linear.under(self._at.likelihood)
        return False

    def _update(self, evidence: BlockEvidence) -> None:
        for count in range(self._options.evidence_steps):
            if count:
                linear = self._linear.under(self._at.likelihood)
                evidence = BlockEvidence.of(self._problem, self._theta, self._at, linear)
            self._at = evidence.raised(
                self._problem, self._at, self._options.share_prior, learn=self._learn, learns=self._learns
            )

    def _judge(self, value: float) -> None:
        self._since = 0 if value > self._highest + AT_REST else self._since + 1
        if value > self._highest:
            self.best, self._highest = (self._theta, self._at), value


def settled(
    problem: AdditiveProblem,
    theta: Tensor,
    at: AdditiveHyperparameters,
    trace: Mapping[str, Sequence[float]],
    ended: str,
    enough: float = SETTLED,
    wanted: float | None = None,
) -> AdditiveFit:
    """The mode of given hyperparameters, from weights close to it: steps while they gain ``enough`` nats.

    They end before where the evidence is farther from what is ``wanted`` of it than HOPE such steps would lead.
    """
    damping, linear = FIRST_DAMPING, problem.linearized(theta, at.likelihood)
    with threads_for(problem.numbers):
        for _ in range(SETTLING):
            taken = step(problem, theta, at, damping, linear)
            theta, damping = taken.theta, taken.damping
            linear = problem.linearized(theta, at.likelihood, taken.f)
            if taken.gain < enough:
                break
            if (
                wanted is not None
                and float(BlockEvidence.of(problem, theta, at, linear).value) + HOPE * taken.gain < wanted
            ):
                break
        evidence = BlockEvidence.of(problem, theta, at, linear)
    return AdditiveFit(problem, theta, at, linear, evidence, trace, ended)


def _append(
    trace: dict[str, list[float]], evidence: BlockEvidence, log_joint: Tensor, at: AdditiveHyperparameters
) -> None:
    noise = noise_of(at.likelihood)
    numbers = {"log_evidence": float(evidence.value), "log_joint": float(log_joint)}
    for name, value in numbers.items() if noise is None else {**numbers, "noise_variance": noise}.items():
        trace.setdefault(name, []).append(value)
