"""Hyperparameters by the negative log likelihood of held-out data, whose Jacobians are read once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.laplace.evidence import has_noise, require_diagonal
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.groups import PriorGroups
from bayescope.latent import GaussianLatent, MixtureLatent
from bayescope.likelihoods import Likelihood, read_targets
from bayescope.network.batches import Batches, Data, row_totals
from bayescope.network.inputs import Inputs
from bayescope.network.positions import Question, by_cotangent, by_pair
from bayescope.network.row_weights import likelihood_of_rows
from bayescope.posterior import MixturePosterior, Posterior, in_rows
from bayescope.precision import (
    BlockPrecision,
    DensePrecision,
    DiagonalPrecision,
    EigenvalueCorrectedPrecision,
    KroneckerPrecision,
    Precision,
)
from bayescope.processes import same, warn_once
from bayescope.tape import DenseTape, JoinedTape, Tape

# The grid: values per decade, and decades to either side of the present value.
PER_DECADE = 4
DECADES = 5
STEP = math.log(10.0) / PER_DECADE
REACH = PER_DECADE * DECADES
# The noise variance and the temperature are sought this many decades to either side.
SCALE_REACH = 3 * PER_DECADE
# Nats a row that the last decade of small prior precisions gains at least where it is worth to go on.
FLAT = 5e-3
# With at most this many hyperparameters, all neighbours of the best point are tried, not only those along one axis.
CORNERS = 3


def by_validation(
    q: Posterior,
    fits: Sequence[LaplaceFit],
    kind: str,
    data: Data,
    *,
    temperature: bool,
    integral: str | None,
    batch_size: int,
) -> tuple[list[LaplaceFit], Mapping[str, str]]:
    """The fits with the hyperparameters that predict held-out data best, and notes of the search.

    With A = c H/T + diag(δ) and c = σ₀²/σ², J A⁻¹ Jᵀ = (T/c) J (H + diag(δ) T/c)⁻¹ Jᵀ: noise and temperature only move
    along the grid of δ, if theirs has the same steps in logs. So the covariance of f is a sum over the groups of what a
    table has, for every hyperparameter at once. The table has N C² numbers for each value of δ in each group, and N C
    for the "mackay" integral, which looks at the variances alone. The modes of a mixture share the steps.

    Args:
        q: the posterior that the fits are of.
        fits: one for each mode.
        kind: of the groups.
        data: held-out, in any form that training data take.
        temperature: whether the temperature is tuned.
        integral: over f, or ``None``.
        batch_size: rows at once, where the data are not in batches already.

    Raises:
        UnsupportedError: if groups share blocks of the structure, so that f's covariance is no sum over them.
        InputError: if the data do not fit.

    Warns:
        ConvergenceWarning: if the best value of a hyperparameter is at the end of its range, and the loss not flat.
    """
    for fit in fits:
        require_diagonal(fit)
    groups = [PriorGroups.of(fit.curvature.network, kind) for fit in fits]
    if len({len(each) for each in groups}) > 1:
        raise UnsupportedError(
            "share_prior: expected modes with the same layers to share the steps of a grid, got others."
        )
    first = fits[0]
    scales = [
        name
        for name, on in (("noise_variance", first.learns_noise and has_noise(first)), ("temperature", temperature))
        if on
    ]
    outputs = first.function.outputs
    resolved = first.likelihood.integral("mackay" if integral is None and outputs > 2 else integral, outputs)
    if resolved == "monte_carlo":
        raise InputError("integral: expected one that draws nothing, 'quadrature' or 'mackay', got 'monte_carlo'.")
    ladders = [_Ladder.of(fit, each, resolved) for fit, each in zip(fits, groups, strict=True)]
    tables, targets, row_weights = _read(ladders, data, batch_size)
    log_weights = q.log_weights if isinstance(q, MixturePosterior) else torch.zeros(1, dtype=torch.float64)
    rows, total = row_totals(len(targets), float(row_weights.sum()))
    weights = log_weights.to(targets.device)
    score = _GridLoss(tables, targets, row_weights, weights, first, resolved, tuple(scales), total)
    best, nll = _search(score, len(groups[0]), len(scales))
    names = [f"prior precision of {name}" if len(groups[0]) > 1 else "prior precision" for name in groups[0].names]
    _warn_of_ends(score, best, nll, [*names, *scales], len(groups[0]))
    steps, nll = _refined(score, best, nll)
    tuned = [_moved(fit, each, steps, scales) for fit, each in zip(fits, groups, strict=True)]
    note = f"by the NLL of {rows:,.0f} held-out rows, {kind!r} groups, {resolved} integral, {nll:.4g} nats a row"
    return tuned, {"tuned": note}


@final
@dataclass(frozen=True, eq=False)
class GroupBlock:
    """A block H of the curvature, whose weights share a prior precision δ.

    Attributes:
        curvature: H.
        index: the flat positions of its weights; ``None`` for all of them.
        group: which prior precision.
    """

    curvature: Precision
    index: Tensor | None = None
    group: int = 0

    def smallest(self) -> float:
        """The smallest eigenvalue of H: a δ has to be above its negative."""
        return 0.0 if self._spectrum is None else float(self._spectrum[1].min())

    def answers(self, tape: Tape, shifts: Tensor, *, variances: bool) -> Tensor:
        """J (H + δ I)⁻¹ Jᵀ per row, shape (M, N, K, K), float64, for δ of shape (M,); its diagonals (M, N, K) alone."""
        if self._spectrum is None:
            for shift in shifts:
                self._shifted.setdefault(float(shift), self.curvature.add_diagonal(shift))
            each = [self._shifted[float(shift)] for shift in shifts]
            return torch.stack([p.variance_of(tape) if variances else p.covariance_of(tape) for p in each])
        rotate, values = self._spectrum
        rotated = rotate(tape)
        if variances and isinstance(rotated, DenseTape):  # the squares are taken once for all δ
            return rotated.norms((values[:, None] + shifts).reciprocal()).movedim(-1, 0)
        ask = rotated.norms if variances else rotated.gram
        return torch.stack([ask((values + shift).reciprocal()).to(torch.float64) for shift in shifts])

    @cached_property
    def _spectrum(self) -> tuple[Callable[[Tape], Tape], Tensor] | None:
        """The rotation of a tape to the eigenvectors of H, and the eigenvalues, where a structure has them."""
        match self.curvature:
            case DensePrecision():
                values, vectors = torch.linalg.eigh(self.curvature.to_dense())
                return lambda tape: DenseTape(tape.jacobian(slice(None)).to(torch.float64) @ vectors), values
            case DiagonalPrecision():
                return lambda tape: tape, self.curvature.diagonal()
            case KroneckerPrecision() | EigenvalueCorrectedPrecision():
                return self.curvature.basis.rotate, self.curvature.eigenvalues.flatten()
        return None

    @cached_property
    def _shifted(self) -> dict[float, Precision]:
        """H + δ I for each δ that was asked for, of a structure whose eigenvectors move."""
        return {}


@final
@dataclass(frozen=True, eq=False)
class _Ladder:
    """J (H + δ I)⁻¹ Jᵀ of one mode, for every rung δ of every group.

    Attributes:
        fit: the mode.
        blocks: of H/T.
        rungs: δ, shape (G, M), as multiples of the present prior precision of each group.
        variances: whether the diagonals are enough.
    """

    fit: LaplaceFit
    blocks: tuple[GroupBlock, ...]
    rungs: Tensor
    variances: bool

    @classmethod
    def of(cls, fit: LaplaceFit, groups: PriorGroups, integral: str) -> _Ladder:
        before = groups.precisions(fit.prior)
        steps = torch.arange(-REACH, REACH + 1, dtype=torch.float64, device=before.device)
        return cls(fit, _blocks(groups, fit), before[:, None] * (STEP * steps).exp(), integral == "mackay")

    def valid(self) -> Tensor:
        """Where H + δ I is positive definite, shape (G, M)."""
        smallest = torch.full((len(self.rungs),), math.inf, dtype=torch.float64)
        for block in self.blocks:
            smallest[block.group] = min(float(smallest[block.group]), block.smallest())
        return self.rungs + smallest[:, None].to(self.rungs) > 0

    def ask(self, tape: JoinedTape) -> Tensor:
        """For n rows and K cotangents shape (n, K, K, G, M), or (n, K, G, M) of the diagonals alone."""
        parts: list[list[Tensor]] = [[] for _ in self.rungs]
        for block in self.blocks:
            part = tape if block.index is None else tape.part(block.index)
            parts[block.group].append(block.answers(part, self.rungs[block.group], variances=self.variances))
        return torch.stack([reduce(add, of_group) for of_group in parts]).movedim((0, 1), (-2, -1))

    def read(self, inputs: Inputs) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """f, shape (n, C), the table for it, (G, M, n, C[, C]), and the shape of the n rows and positions."""
        function = self.fit.function
        f, shape = in_rows(function.forward(inputs, self.fit.mode), 0)
        with torch.no_grad():
            question = Question(self.ask, by_cotangent if self.variances else by_pair)
            answers = function.answers(inputs, self.fit.mode, question)
        trailing = 3 if self.variances else 4
        return f, answers.flatten(0, -trailing - 1).movedim((-2, -1), (0, 1)).contiguous(), shape


@final
@dataclass(frozen=True, eq=False)
class _CovarianceTable:
    """f, shape (N, C), and the rungs' share of its covariance, shape (G, M, N, C[, C]), NaN where there is none."""

    f: Tensor
    shares: Tensor
    valid: Tensor


@final
@dataclass(frozen=True, eq=False)
class _GridLoss:
    """The mean NLL of the held-out data on the grid.

    A point has, for each group, the rung u of δ T/c among the present precision's multiples, and for each of the scales
    (noise, temperature) the steps away from its present value.
    """

    tables: Sequence[_CovarianceTable]
    targets: Tensor
    weights: Tensor
    log_weights: Tensor
    fit: LaplaceFit
    integral: str
    scales: tuple[str, ...]
    total: float

    def __call__(self, point: Sequence[float]) -> float:
        """In nats a row; ∞ outside the grid and where A would not be positive definite. Between rungs, interpolated."""
        groups = len(point) - len(self.scales)
        rungs, steps = point[:groups], point[groups:]
        if max(map(abs, rungs)) > REACH or max(map(abs, steps), default=0) > SCALE_REACH:
            return math.inf
        if not all(table.valid[g, round(u) + REACH] for table in self.tables for g, u in enumerate(rungs)):
            return math.inf
        likelihood, scale = self._likelihood(steps), math.exp(STEP * sum(steps))
        parts = [self._latent(table, rungs, scale) for table in self.tables]
        latent = parts[0] if len(parts) == 1 else MixtureLatent(self.log_weights, parts)
        counted = len(self.targets)
        log_likelihood = float((latent.log_prob(likelihood, self.targets) * self.weights).sum()) if counted else 0.0
        value = -row_totals(log_likelihood)[0] / self.total
        return value if math.isfinite(value) else math.inf

    def _latent(self, table: _CovarianceTable, rungs: Sequence[float], scale: float) -> GaussianLatent:
        cov = scale * reduce(add, (_between(of_group, u) for of_group, u in zip(table.shares, rungs, strict=True)))
        return GaussianLatent(table.f, cov if cov.ndim == 3 else torch.diag_embed(cov), self.integral)

    def _likelihood(self, steps: Sequence[float]) -> Likelihood:
        likelihood = self.fit.likelihood.unweighted
        if "noise_variance" not in self.scales or likelihood.noise_variance is None:
            return likelihood
        return likelihood.with_noise_variance(self.fit.noise_variance * math.exp(STEP * steps[0]))


def _read(ladders: Sequence[_Ladder], data: Data, batch_size: int) -> tuple[list[_CovarianceTable], Tensor, Tensor]:
    """The tables of all modes, the targets and their weights, in one pass; each process has those of its rows."""
    function = ladders[0].fit.function
    likelihood = likelihood_of_rows(ladders[0].fit.likelihood.unweighted, data)
    batches = Batches(data, function.module, batch_size=batch_size)
    example = batches.lent()
    read: list[list[tuple[Tensor, Tensor]]] = [[] for _ in ladders]
    targets = []

    def add(inputs: Inputs, y: Tensor, *, counts: bool = True) -> None:
        shape: tuple[int, ...] = ()
        for ladder, parts in zip(ladders, read, strict=True):
            f, shares, shape = ladder.read(inputs)
            parts.append((f, shares) if counts else (f[:0], shares[:, :, :0]))
        canonical = read_targets(likelihood, y, (*shape, function.outputs))
        targets.append(canonical if counts else canonical[:0])

    for inputs, y in batches:
        add(inputs, y)
    if not targets and example is not None:
        add(*example, counts=False)
    batches.check_shards()
    valid = same(*(ladder.valid().cpu() for ladder in ladders))  # where rounding decides, alike on all
    tables = [
        _CovarianceTable(torch.cat([f for f, _ in parts]), torch.cat([shares for _, shares in parts], 2), some)
        for some, parts in zip(valid, read, strict=True)
    ]
    y, weights = likelihood.apart(torch.cat(targets))
    weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
    return tables, y.to(tables[0].f.device), weights.to(tables[0].f.device)


def _blocks(groups: PriorGroups, fit: LaplaceFit) -> tuple[GroupBlock, ...]:
    """The blocks of the curvature, each with its group."""
    curved = fit.tempered()
    if isinstance(curved, BlockPrecision):
        found = list(zip(curved.blocks, curved.indices, strict=True))
    elif isinstance(curved, DiagonalPrecision):
        values = curved.diagonal()
        found = [(DiagonalPrecision(values[i], semidefinite=True), i) for i in fit.curvature.network.indices]
    elif len(groups) == 1:
        return (GroupBlock(curved),)
    else:
        found = []
    blocks = [
        GroupBlock(block, index, owner) for block, index in found if (owner := groups.owner_of(index)) is not None
    ]
    if not found or len(blocks) < len(found):
        raise UnsupportedError(
            f"share_prior: expected 'scalar' for validation with the structure {fit.curvature.structure!r}, got "
            f"{groups.kind!r}, which shares blocks of it. 'layer' goes with 'block', 'diagonal', 'kfac' and 'ekfac'."
        )
    return tuple(blocks)


def _search(score: Callable[[Sequence[float]], float], groups: int, scales: int) -> tuple[tuple[int, ...], float]:
    """The best point of the grid, by line searches along each coordinate in turn, until none moves it.

    They start from the best point with the same multiple for all groups, one a decade.
    """
    known: dict[tuple[int, ...], float] = {}

    def at(point: tuple[int, ...]) -> float:
        if point not in known:
            known[point] = score(point)
        return known[point]

    reaches = [REACH] * groups + [SCALE_REACH] * scales
    coarse = [range(-reach, reach + 1, PER_DECADE) for reach in (REACH, *[SCALE_REACH] * scales)]
    starts = ((rung,) * groups + tuple(steps) for rung, *steps in itertools.product(*coarse))
    best = min(itertools.chain([(0,) * (groups + scales)], starts), key=at)
    while True:
        before = best
        for place, reach in enumerate(reaches):
            line = (_with(best, place, value) for value in range(-reach, reach + 1))
            best = min(itertools.chain([best], line), key=at)
        if len(best) <= CORNERS:
            around = itertools.product((-1, 0, 1), repeat=len(best))
            near = (tuple(a + b for a, b in zip(best, step, strict=True)) for step in around)
            best = min(itertools.chain([best], near), key=at)
        if best == before:
            break
    if not math.isfinite(at(best)):
        raise InputError("data: expected held-out data with a finite likelihood under some prior, got none.")
    return best, at(best)


def _between(shares: Tensor, rung: float) -> Tensor:
    """A group's share of the covariance, (M, N, C[, C]), by the parabola through three rungs; at a rung, its own."""
    near = round(rung)
    t, place = rung - near, near + REACH
    if t == 0.0 or not 0 < place < len(shares) - 1:
        return shares[place]
    below, here, above = shares[place - 1 : place + 2]
    return 0.5 * t * (t - 1.0) * below + (1.0 - t * t) * here + 0.5 * t * (t + 1.0) * above


def _refined(score: Callable[[Sequence[float]], float], best: tuple[int, ...], nll: float) -> tuple[list[float], float]:
    """The vertex of the paraboloid through the best point and its neighbours, at most half a step away, if better."""

    def at(*moves: tuple[int, int]) -> float:
        return score([value + dict(moves).get(place, 0) for place, value in enumerate(best)])

    size = len(best)
    slope, curvature, free = torch.zeros(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64), []
    for a in range(size):
        below, above = at((a, -1)), at((a, 1))
        if math.isfinite(below + above) and above - 2.0 * nll + below > 0:  # not at an end of the range, nor flat
            slope[a], curvature[a, a] = 0.5 * (above - below), above - 2.0 * nll + below
            free.append(a)
    for a, b in itertools.combinations(free if size <= CORNERS else [], 2):
        mixed = 0.25 * sum(i * j * at((a, i), (b, j)) for i in (-1, 1) for j in (-1, 1))
        curvature[a, b] = curvature[b, a] = mixed if math.isfinite(mixed) else 0.0
    factor, info = torch.linalg.cholesky_ex(curvature)
    if int(info):
        return [float(value) for value in best], nll
    move = -torch.cholesky_solve(slope[:, None], factor)[:, 0]
    move *= min(1.0, 0.5 / max(0.5, float(move.abs().max())))
    moved = [value + float(step) for value, step in zip(best, move, strict=True)]
    value = score(moved)
    return (moved, value) if value < nll else ([float(v) for v in best], nll)


def _moved(fit: LaplaceFit, groups: PriorGroups, steps: Sequence[float], scales: Sequence[str]) -> LaplaceFit:
    """The fit at a point: δ = δ₀ e^{STEP (u − s)} for scales of s steps together."""
    found = dict(zip(scales, steps[len(groups) :], strict=True))
    total = sum(found.values())
    before = groups.precisions(fit.prior)
    powers = torch.tensor(steps[: len(groups)], dtype=torch.float64, device=before.device) - total
    moved = replace(
        fit,
        prior=groups.prior(before * (STEP * powers).exp(), fit.prior),
        temperature=fit.temperature * math.exp(STEP * found.get("temperature", 0.0)),
    )
    if "noise_variance" not in found:
        return moved
    return moved.at_noise(fit.noise_variance * math.exp(STEP * found["noise_variance"]))


def _warn_of_ends(score: _GridLoss, best: tuple[int, ...], nll: float, names: Sequence[str], groups: int) -> None:
    """Warns of values at the end of their range, but for small prior precisions whose last decade gains nothing."""
    ends = []
    for place, (value, name) in enumerate(zip(best, names, strict=True)):
        flat = value == -REACH and score(_with(best, place, value + REACH // DECADES)) - nll < FLAT
        if abs(value) == (REACH if place < groups else SCALE_REACH) and not (flat and place < groups):
            ends.append(name)
    if ends:
        closed = any(value == REACH for value in best[:groups])
        why = "the posterior closes onto the mode: its predictions are those of the mode. " if closed else ""
        warn_once(
            f"tune_prior: expected an optimum within {DECADES} decades of the present values, got the end of the range "
            f"for {', '.join(ends)}: {why}Tune again from here, or give the value.",
            ConvergenceWarning,
        )


def _with(point: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*point[:place], value, *point[place + 1 :])
