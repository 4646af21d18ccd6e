"""Small additive problems, and the same model written out plainly: row by row, nothing collapsed, dense matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayescope.additive import (
    AdditiveHyperparameters,
    AdditiveProblem,
    Design,
    EncodedRows,
    FeatureInput,
    HiddenNets,
    LevelEffects,
    MonotoneSteps,
    Term,
    TermFamily,
    first_precisions,
)
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood

OFF = 1e8  # the precision at which a term is switched off
KINDS = 3  # the labels of column 2; then come "missing" and "unseen"
LEVELS = KINDS + 2
FIRST, SECOND = Term("a", (FeatureInput(0),)), Term("b", (FeatureInput(1),))
LABEL = Term("label", (FeatureInput(2),))
PAIR = Term("a & b", (FeatureInput(0), FeatureInput(1)))
MIXED = Term("a & label", (FeatureInput(0), FeatureInput(2, (0, 1, 1, -1, -1), 2)))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def table(n: int, *, seed: int = 0, outputs: int | None = None) -> EncodedRows:
    """Two columns of numbers with ties and gaps, and one of labels; with an offset if outputs are given."""
    generator = seeded(seed)
    numbers = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    numbers[:, 1] = (2.0 * numbers[:, 1]).round() / 2.0
    gaps = torch.rand(n, 2, generator=generator) < 0.15
    levels = torch.full((n, 3), -1)
    levels[:, :2] = torch.where(gaps, 0, -1)
    levels[:, 2] = torch.randint(KINDS + 1, (n,), generator=generator)
    numbers[:, :2] = numbers[:, :2].masked_fill(gaps, 0.0)
    numbers[:, 2] = 0.0
    offset = None if outputs is None else normal(n, outputs, seed=seed + 100)
    return EncodedRows(numbers, levels, offset)


def nets(*terms: Term, hidden: int = 3, outputs: int = 1) -> HiddenNets:
    return HiddenNets.of(terms, hidden, outputs)


def valued(outputs: int = 1, *, hidden: int = 3) -> HiddenNets:
    """The column of halves, with an effect of each that is among the first rows."""
    return HiddenNets.of([SECOND], hidden, outputs, table(14, seed=4))


def without_values(family: HiddenNets) -> HiddenNets:
    return replace(family, seen=None)


def steps(outputs: int = 1, *, hidden: int = 6) -> MonotoneSteps:
    """Both columns of numbers, the first rising and the second falling, placed by their values in some rows."""
    bare, rows = nets(FIRST, SECOND), table(25, seed=8)
    design = Design.of(bare, rows, torch.ones(len(rows), dtype=torch.float64))
    return MonotoneSteps.of([FIRST, SECOND], [1, -1], outputs, hidden, design.points, design.mass)


def labels(outputs: int = 1) -> LevelEffects:
    return LevelEffects((LABEL,), LEVELS, outputs)


def problem_of(
    families: Sequence[TermFamily], rows: EncodedRows, targets: Tensor, weights: Tensor | None = None, *, seed: int = 1
) -> AdditiveProblem:
    weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
    designs = tuple(Design.of(family, rows, weights) for family in families)
    pairs = zip(families, designs, strict=True)
    first = [family.start(design.points, design.mass, seeded(seed)).flatten() for family, design in pairs]
    centre = torch.cat([*first, torch.zeros(families[0].outputs, dtype=torch.float64)])
    return AdditiveProblem(tuple(families), designs, targets, weights, centre, rows.offset)


def state_of(problem: AdditiveProblem, outputs: int, *, seed: int = 2) -> Tensor:
    """Weights away from the prior's centres."""
    of_families = [
        (centre + 0.7 * normal(*centre.shape, seed=seed + place)).flatten()
        for place, centre in enumerate(problem.split(problem.centre)[0])
    ]
    return torch.cat([*of_families, normal(outputs, seed=seed + 50)])


def hyperparameters(problem: AdditiveProblem, likelihood: Likelihood, *, seed: int = 3) -> AdditiveHyperparameters:
    """Precisions of which no two are the same."""
    first = first_precisions(problem.families, inner=0.5, other=2.0)
    scaled = tuple(part * torch.exp(0.3 * normal(*part.shape, seed=seed + k)) for k, part in enumerate(first))
    return AdditiveHyperparameters(scaled, 1e-2, likelihood)


# --- the plain model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """f = offset + b + Σ_t f_t(x), each less its mean where it has a value, then less its mean over all rows."""

    families: tuple[TermFamily, ...]
    rows: EncodedRows
    targets: Tensor
    weights: Tensor
    outputs: int

    def term_weights(self, theta: Tensor) -> list[Tensor]:
        parts, start = [], 0
        for family in self.families:
            for _ in family.terms:
                parts.append(theta[start : start + family.weights])
                start += family.weights
        return [*parts, theta[start:]]

    def effects(self, theta: Tensor) -> Tensor:
        """Centred, shape (T, N, C)."""
        parts = iter(self.term_weights(theta))
        share = self.weights / self.weights.sum()
        effects = []
        for family in self.families:
            for term in family.terms:
                effect = plain_effect(family, term, next(parts), self.rows)
                if not isinstance(family, LevelEffects):
                    there = ~torch.tensor(plain_inputs(term, self.rows)[1])
                    own = self.weights[there] / self.weights[there].sum()
                    effect = effect - torch.where(there[:, None], own @ effect[there], 0.0)
                effects.append(effect - share @ effect)
        return torch.stack(effects)

    def f(self, theta: Tensor) -> Tensor:
        f = theta[-self.outputs :] + self.effects(theta).sum(0)
        return f if self.rows.offset is None else f + self.rows.offset

    def log_likelihood(self, theta: Tensor, likelihood: Likelihood) -> Tensor:
        return (self.weights * likelihood.log_prob(self.f(theta), self.targets)).sum()

    def jacobian(self, theta: Tensor) -> Tensor:
        """∂f/∂θ by autograd, shape (N, C, P)."""
        return torch.func.jacrev(self.f)(theta)

    def ggn(self, theta: Tensor, likelihood: Likelihood) -> Tensor:
        """Σ_n w_n J_nᵀ Λ_n J_n, shape (P, P)."""
        jacobian = self.jacobian(theta)
        root = likelihood.ggn_sqrt(self.f(theta).detach(), self.targets)
        return torch.einsum("n,ncp,nck,ndk,ndq->pq", self.weights, jacobian, root, root, jacobian)

    @property
    def places(self) -> list[Tensor]:
        """The flat positions of each block: of the terms, then of the intercepts."""
        sizes = [family.weights for family in self.families for _ in family.terms]
        return list(torch.arange(sum(sizes) + self.outputs).split([*sizes, self.outputs]))


def plain_of(problem: AdditiveProblem, rows: EncodedRows, outputs: int) -> Plain:
    return Plain(problem.families, rows, problem.targets, problem.weights, outputs)


def plain_effect(family: TermFamily, term: Term, theta: Tensor, rows: EncodedRows) -> Tensor:
    """f_t of each row, shape (N, C), by a formula for a single term."""
    if isinstance(family, LevelEffects):
        effects = theta.reshape(family.levels, family.outputs)
        return torch.stack([effects[int(level)] for level in rows.levels[:, term.features[0]]])
    if isinstance(family, MonotoneSteps):
        place, count = family.terms.index(term), family.centres.shape[1]
        inputs, absent = plain_inputs(term, rows)
        heights = torch.tensor([1.0] * (count - 1) + [4.0 * (count - 1) ** 0.5], dtype=torch.float64)
        rising = heights * torch.tanh(family.slopes[place] * (inputs - family.centres[place]))
        values = family.signs[place] * rising @ theta[: -family.outputs].reshape(family.outputs, count).T
        missing = math.sqrt(count / 2) * theta[-family.outputs :]
        return torch.stack([missing if gone else value for gone, value in zip(absent, values, strict=True)])
    assert isinstance(family, HiddenNets)
    if family.seen is not None:
        net = without_values(family)
        smooth = plain_effect(net, term, theta[: net.weights], rows)
        effects = math.sqrt(net.hidden / 2) * theta[net.weights :].reshape(-1, family.outputs)
        seen = family.seen[family.terms.index(term)].tolist()
        inputs, absent = plain_inputs(term, rows)
        own = [effects[seen.index(float(x)) if float(x) in seen else -1] for x in inputs]
        return torch.stack([a if gone else a + b for a, b, gone in zip(smooth, own, absent, strict=True)])
    inputs, absent = plain_inputs(term, rows)
    inputs = torch.cat([inputs, inputs.new_zeros(len(rows), family.inputs - inputs.shape[1])], 1)
    inner, rest = theta[: family.hidden * family.inputs], theta[family.hidden * family.inputs :]
    bias, outer = rest[: family.hidden], rest[family.hidden : -family.outputs]
    hidden = torch.tanh(inputs @ inner.reshape(family.hidden, family.inputs).T + bias)
    values = hidden @ outer.reshape(family.outputs, family.hidden).T
    missing = math.sqrt(family.hidden / 2) * theta[-family.outputs :]
    return torch.stack([missing if gone else value for gone, value in zip(absent, values, strict=True)])


def plain_inputs(term: Term, rows: EncodedRows) -> tuple[Tensor, list[bool]]:
    """What a net reads of each row, and where there is nothing to read."""
    numbers, absent = [], []
    for values, levels in zip(rows.values, rows.levels, strict=True):
        row: list[float] = []
        gone = False
        for column in term.columns:
            level = int(levels[column.feature])
            if column.slots is None:
                gone |= level != -1
                row.append(float(values[column.feature]))
            else:
                gone |= column.slots[level] < 0
                row += [float(column.slots[level] == slot) for slot in range(column.width)]
        numbers.append([0.0] * len(row) if gone else row)
        absent.append(gone)
    return torch.tensor(numbers, dtype=torch.float64), absent


def dense_evidence(
    plain: Plain, theta: Tensor, means: Tensor, diagonal: Tensor, likelihood: Likelihood, blocks: Sequence[Tensor]
) -> Tensor:
    """log p(y∣f) + log N(θ; m, diag(δ)⁻¹) + ½ P log 2π − ½ Σ log∣A_bb∣ over blocks of A = GGN + diag(δ)."""
    a = plain.ggn(theta, likelihood) + torch.diag(diagonal)
    logdet = torch.stack([torch.linalg.slogdet(a[block][:, block])[1] for block in blocks]).sum()
    pull = (diagonal * (theta - means).square()).sum()
    return plain.log_likelihood(theta, likelihood) - 0.5 * pull + 0.5 * diagonal.log().sum() - 0.5 * logdet


# --- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A problem with its rows, likelihood and number of outputs."""

    name: str
    problem: AdditiveProblem
    rows: EncodedRows
    likelihood: Likelihood
    outputs: int

    @property
    def plain(self) -> Plain:
        return plain_of(self.problem, self.rows, self.outputs)


def _case(
    name: str, families: Callable[[int], Sequence[TermFamily]], likelihood: Likelihood, outputs: int, targets: Tensor,
    *, offset: bool = False, weighted: bool = False,
) -> Case:  # fmt: skip
    rows = table(len(targets), seed=4, outputs=outputs if offset else None)
    weights = 0.5 + torch.rand(len(targets), generator=seeded(5), dtype=torch.float64) if weighted else None
    return Case(name, problem_of(families(outputs), rows, targets, weights), rows, likelihood, outputs)


def _everything(outputs: int) -> Sequence[TermFamily]:
    return [nets(FIRST, SECOND, outputs=outputs), labels(outputs), nets(PAIR, MIXED, hidden=4, outputs=outputs)]


def _whole(n: int, below: int) -> Tensor:
    return torch.randint(below, (n,), generator=seeded(6))


CASES = [
    _case("gaussian", lambda c: [nets(FIRST, SECOND, outputs=c)], Gaussian(0.3), 1, normal(14, 1, seed=7)),
    _case("gaussian, two outputs", _everything, Gaussian(0.3), 2, normal(12, 2, seed=7), offset=True),
    _case("bernoulli", _everything, Bernoulli(), 1, _whole(13, 2)[:, None], offset=True, weighted=True),
    _case("categorical", _everything, Categorical(), 3, _whole(12, 3), weighted=True),
    _case("values", lambda c: [nets(FIRST, outputs=c), valued(c)], Gaussian(0.3), 2, normal(14, 2, seed=7)),
    _case(
        "heteroscedastic", lambda c: [labels(c), nets(FIRST, PAIR, outputs=c)], HeteroscedasticGaussian(), 2,
        normal(30, 1, seed=7), weighted=True,
    ),
]  # fmt: skip
