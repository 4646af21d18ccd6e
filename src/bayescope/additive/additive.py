"""The fit of a neural additive model, from encoded rows to a posterior: features first, then pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescope import checks
from bayescope.additive.coded import Observed
from bayescope.additive.design import Design
from bayescope.additive.families import (
    HiddenNets,
    LevelEffects,
    MonotoneSteps,
    TermFamily,
    has_values,
    linear_weights,
)
from bayescope.additive.fit import (
    MOST_PRECISION,
    ROUGHLY,
    AdditiveFit,
    AdditiveOptions,
    check_options,
    climb,
    first_precisions,
    settled,
)
from bayescope.additive.interactions import Ranking, features_on, rank
from bayescope.additive.model import AdditiveModel, Centre
from bayescope.additive.order import feature_ranks, first_weights
from bayescope.additive.posterior import laplace_at, point_at, tightest_log_evidence
from bayescope.additive.problem import AdditiveHyperparameters, AdditiveProblem, BlockFactors
from bayescope.additive.seen import TrainingValues
from bayescope.additive.selection import Begun, selected, with_silent
from bayescope.additive.terms import Term, feature_position, feature_term, pair_term
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods import Likelihood
from bayescope.memory import require_memory
from bayescope.posterior import GaussianPosterior, PointPosterior
from bayescope.progress import progress_bar
from bayescope.storage import stored
from bayescope.tables.encoding import CategoricalEncoding, TableEncoding

# Where the precisions start: those of the hidden layers, which have slopes of up to 4 a standard deviation, and others.
FIRST_INNER, FIRST_OTHER = 0.3, 10.0
# The nets of pairs are added to a model that fits already, and begin close to nothing.
FIRST_PAIRED = 1000.0
# How many pairs are added at a time while they raise the evidence, and how many at most.
AT_ONCE, MOST_PAIRS = 5, 20
# Pairs that are ranked: where there are more, those with a feature that is in the model, or with two.
MOST_RANKED = 3000
# Draws of the weights that the intervals of monotone effects come from.
DRAWS = 2000
# How many arrays there are at once of each term's Jacobian at its points, and of each block of the curvature.
JACOBIANS, BLOCKS = 7, 7

Pair = tuple[int, int]


@stored("additive", without=("fit",))
@final
@dataclass(frozen=True, eq=False)
class Additive:
    """A fitted additive model: its posterior, and what effects and explanations need to know of the data.

    Attributes:
        posterior: over the weights of the model.
        model: f(x, θ).
        encoding: of the table.
        seen: the values of features and pairs in the data, with their weights.
        precisions: prior precisions of each family's terms and layers, shape (G, L).
        pairs: the pairs of features that have a term, in order.
        ranking: of all pairs, by the fit without any, or ``None`` where none was asked for.
        fit: the mode, the hyperparameters and the curvature, in the targets' unit; it holds the data, so that files do
            not keep it.
    """

    posterior: GaussianPosterior | PointPosterior
    model: AdditiveModel
    encoding: TableEncoding
    seen: TrainingValues
    precisions: tuple[Tensor, ...]
    pairs: tuple[Pair, ...]
    ranking: Ranking | None
    fit: AdditiveFit | None = None

    @cached_property
    def monotone_moves(self) -> Mapping[int, Tensor]:
        """By how much draws of each monotone term's weights differ from the mean, (P_t, S), by the term's position."""
        posterior = self.posterior
        if not isinstance(posterior, GaussianPosterior) or not posterior.cones:
            return {}
        bounded = torch.cat([cone.weights for cone in posterior.cones])
        moves = (posterior.sample(DRAWS, generator=0) - posterior.location).mT
        terms = enumerate(self.model.indices[:-1])
        return {term: moves[index] for term, index in terms if bool(torch.isin(index, bounded).any())}


def fit_additive(
    encoding: TableEncoding,
    data: Observed,
    likelihood: Likelihood,
    options: AdditiveOptions,
    *,
    seed: int = 0,
    learns: tuple[str, ...] = ("noise_variance",),
    origin: Tensor | None = None,
) -> Additive:
    """Fits a neural additive model.

    Args:
        encoding: of the table that the rows are of.
        data: the rows.
        likelihood: p(y∣f) in the targets' unit; the noise of a Gaussian is where the search for it begins.
        options: of the fit.
        seed: of the first weights, and of what the ranking draws.
        learns: the hyperparameters of the likelihood that are learnt.
        origin: the prior mean of the intercepts, shape (C,); 0 if not given.

    Raises:
        InputError, OptionError: if an option cannot be used, or the table has no such pair of features.
        NotPositiveDefiniteError: if a block of the curvature is singular in float64.
    """
    check_options(options)
    signs = _signs(options.monotone, encoding)
    if signs:
        _require_one_output_each(data, likelihood)
    wanted = _wanted_pairs(options.interactions, encoding.names, signs)
    fitter = _Fitter(encoding, data, likelihood, options, wanted, signs, checks.generator(seed), learns, origin)
    fitted, pairs, ranking = fitter.with_pairs(fitter.of_features())
    if isinstance(options.prior_precision, str):
        fitted = pruned(fitted, progress=options.progress)
    with progress_bar("computing", visible=options.progress) as report:
        report(0, 3, "the mode")
        fitted = fitter.completed(fitted)
        model = _model(fitted, data)
        report(1, 3, "the posterior")
        made = (
            laplace_at(fitted, model, options.structure, data.log_unit)
            if options.posterior == "laplace"
            else point_at(fitted, model)
        )
        report(2, 3, "the values of each feature")
        seen = TrainingValues.of(fitted.problem, len(encoding.features))
    return Additive(made, model, encoding, seen, fitted.at.precisions, pairs, ranking, fitted)


@final
@dataclass(frozen=True, eq=False)
class _Fitter:
    """Fits the features first, and pairs of them on top of that.

    Attributes:
        encoding: of the table.
        data: the rows.
        likelihood: p(y∣f), with the noise that the search begins at.
        options: of the fit.
        wanted: how many pairs, "auto", or the pairs.
        signs: 1 or −1 of each feature whose effect is monotone.
        generator: of all that is drawn.
        learns: the hyperparameters of the likelihood that are learnt.
        origin: the prior mean of the intercepts, or ``None`` for 0.
    """

    encoding: TableEncoding
    data: Observed
    likelihood: Likelihood
    options: AdditiveOptions
    wanted: int | str | tuple[Pair, ...]
    signs: Mapping[int, int]
    generator: torch.Generator
    learns: tuple[str, ...]
    origin: Tensor | None

    @property
    def _shared(self) -> bool:
        """Whether the layers of a term share a precision."""
        return self.options.share_prior == "net"

    @cached_property
    def _features(self) -> tuple[tuple[TermFamily, ...], tuple[Design, ...]]:
        """The terms of all features, and what they read."""
        families = _families(self.encoding, self.data, self.options.hidden, self.signs)
        return families, tuple(map(self.data.design, families))

    @cached_property
    def _every(self) -> Begun:
        """The terms of all features, as they start."""
        return self._begun(*self._features, FIRST_OTHER)

    @cached_property
    def _ranks(self) -> dict[int, int]:
        """The places of the features in an order of their content."""
        return feature_ranks(*self._features, self.data)

    def of_features(self) -> AdditiveFit:
        """The fit without any pair."""
        options = self.options
        with progress_bar("preparing", visible=options.progress) as report:
            report(0, None, f"{len(self.encoding.features)} features")
            begun = self._every
        if not isinstance(options.prior_precision, str) or not begun.wide(self.data.total):
            return self._climbed(begun, None, f"{len(begun.places)} features")
        return selected(begun, self.data.design, self._climbed, shared=self._shared, progress=options.progress)

    def completed(self, fitted: AdditiveFit) -> AdditiveFit:
        """The fit at its mode, with a term for each feature: those that it did without are switched off."""
        begun = with_silent(Begun.of(fitted), self._every, self.data.design, shared=self._shared)
        return settled(*self._problem(begun, fitted), fitted.trace, fitted.ended)

    def with_pairs(self, fitted: AdditiveFit) -> tuple[AdditiveFit, tuple[Pair, ...], Ranking | None]:
        """The fit with the pairs that were asked for, these pairs, and the ranking that they were chosen by."""
        wanted = self.wanted
        if isinstance(wanted, tuple):
            return self._extended(fitted, wanted), wanted, None
        if wanted == 0:
            return fitted, (), None
        ranking = self._ranked(fitted)
        if isinstance(wanted, int):
            best = ranking.pairs[:wanted]
            return self._extended(fitted, best) if best else fitted, best, ranking
        fitted, pairs = self._while_they_gain(fitted, ranking)
        return fitted, pairs, ranking

    def _while_they_gain(self, fitted: AdditiveFit, ranking: Ranking) -> tuple[AdditiveFit, tuple[Pair, ...]]:
        """The fit with the best pairs, added a few at a time for as long as they raise log Z."""
        # A pair is one of K, picked because it looked best: it has to gain more than the log of its prior odds 1/K.
        odds = math.log(max(1, len(ranking.pairs))) if self.options.ranking == "evidence" else 0.0
        pairs: tuple[Pair, ...] = ()
        at_once, before = AT_ONCE, tightest_log_evidence(fitted)
        while at_once and len(pairs) < MOST_PAIRS:
            likely = [pair for pair, gain in zip(ranking.pairs, ranking.scores, strict=True) if gain > odds]
            new = tuple(pair for pair in likely if pair not in pairs)[:at_once]
            if not new:
                break
            trial = self._extended(fitted, new)
            reached = tightest_log_evidence(trial)
            if reached > before + odds:
                fitted, pairs, before = trial, (*pairs, *new), reached
                ranking = self._ranked(fitted)
            else:
                at_once = 0 if pairs else len(new) // 2  # fewer of the best, until the first are found
        return fitted, pairs

    def _ranked(self, fitted: AdditiveFit) -> Ranking:
        """The ranking of all pairs, or where these are too many of those of features that are in the model."""
        free = [feature for feature in sorted(self._ranks, key=self._ranks.__getitem__) if feature not in self.signs]
        on = features_on(fitted)
        every = list(combinations(free, 2))
        likely = [pair for pair in every if on.intersection(pair)], [pair for pair in every if on.issuperset(pair)]
        pairs = next((some for some in (every, *likely) if len(some) <= MOST_RANKED), likely[-1])
        options = self.options
        return rank(fitted, self.encoding, self.data, options.ranking, self.generator, pairs, progress=options.progress)

    def _extended(self, fitted: AdditiveFit, pairs: Sequence[Pair]) -> AdditiveFit:
        """The fit with more terms, everything trained on from where it was."""
        terms = [pair_term(self.encoding, pair) for pair in pairs]
        by_width = [[term for term in terms if term.width == width] for width in sorted({term.width for term in terms})]
        new = [HiddenNets.of(alike, self.options.pair_hidden, len(self.data.scale)) for alike in by_width]
        begun = self._begun(new, tuple(map(self.data.design, new)), FIRST_PAIRED)
        return self._climbed(Begun.of(fitted).beside(begun), fitted, f"{len(pairs)} more pairs")

    def _begun(self, families: Sequence[TermFamily], designs: tuple[Design, ...], other: float) -> Begun:
        """Families as they start, with this precision of all layers but the inner ones where it is learnt."""
        starts = tuple(
            first_weights(family, design, self._ranks, self.generator)
            for family, design in zip(families, designs, strict=True)
        )
        given = self.options.prior_precision
        inner, other = (FIRST_INNER, other) if isinstance(given, str) else (float(given),) * 2
        precisions = first_precisions(families, inner=inner, other=other)
        return Begun(tuple(families), designs, starts, starts, precisions)

    def _climbed(self, begun: Begun, before: AdditiveFit | None, what: str) -> AdditiveFit:
        """The fit of families of terms, with the intercepts and the likelihood of an earlier fit to begin with."""
        return climb(*self._problem(begun, before), self.options, learns=self.learns, what=what)

    def _problem(
        self, begun: Begun, before: AdditiveFit | None
    ) -> tuple[AdditiveProblem, Tensor, AdditiveHyperparameters]:
        """The rows and families of terms, with the weights and hyperparameters that a fit of them begins with."""
        data = self.data
        _require_room(begun.families, begun.designs)
        origin = torch.zeros(len(data.scale), dtype=torch.float64) if self.origin is None else self.origin
        intercept = origin if before is None else before.problem.split(before.theta)[1]
        centre, theta = (
            torch.cat([*[part.flatten() for part in parts], last])
            for parts, last in ((begun.centre, origin), (begun.theta, intercept))
        )
        problem = AdditiveProblem(
            begun.families, begun.designs, data.targets, data.weights, centre, data.offset, data.passes
        )
        # Cutpoints that are learnt are the origin of f: an intercept beside them is switched off, as a term is
        of_intercept = MOST_PRECISION if "cutpoints" in self.learns else self.options.intercept_prior_precision
        likelihood = self.likelihood if before is None else before.at.likelihood
        return problem, theta, AdditiveHyperparameters(begun.precisions, of_intercept, likelihood)


def _families(encoding: TableEncoding, data: Observed, hidden: int, signs: Mapping[int, int]) -> tuple[TermFamily, ...]:
    """Nets for numbers, with effects of their values where those are few; levels for categories, of like number."""
    nets: list[Term] = []
    valued: list[Term] = []
    monotone: list[Term] = []
    tables: dict[int, list[tuple[Term, int]]] = {}
    for feature, described in enumerate(encoding.features):
        term = feature_term(encoding, feature)
        if isinstance(described, CategoricalEncoding):
            levels = len(described.levels)
            tables.setdefault(levels.bit_length(), []).append((term, levels))
        elif feature in signs:
            monotone.append(term)
        else:
            (valued if has_values(term, data.values, data.total) else nets).append(term)
    outputs = len(data.scale)
    families: list[TermFamily] = [HiddenNets.of(nets, hidden, outputs)] if nets else []
    if valued:
        families.append(HiddenNets.of(valued, hidden, outputs, data.values))
    if monotone:
        design = data.design(HiddenNets.of(monotone, hidden, outputs))  # any family reads the numbers
        of_terms = [signs[term.features[0]] for term in monotone]
        families.append(MonotoneSteps.of(monotone, of_terms, outputs, hidden, design.points, design.mass))
    for _, alike in sorted(tables.items()):
        most = max(levels for _, levels in alike)
        families.append(LevelEffects(tuple(term for term, _ in alike), most, outputs))
    return tuple(families)


def _require_room(families: Sequence[TermFamily], designs: Sequence[Design]) -> None:
    """Refuses terms whose Jacobians and curvature memory does not hold, before they are made.

    Raises:
        MemoryBudgetError: if it does not; the message names the term that has most weights.
    """
    numbers = 0
    for family, design in zip(families, designs, strict=True):
        terms, points = design.mass.shape
        numbers += terms * family.weights * (JACOBIANS * points * family.outputs + BLOCKS * family.weights)
    widest = max(families, key=lambda family: family.weights)
    require_memory(
        8 * numbers,
        f"a fit of {sum(len(family.terms) for family in families):,} terms, one of which has {widest.weights:,} "
        "weights,",
        f"Leave out {widest.terms[0].name!r} or other columns, put rare labels together, or take fewer hidden units.",
    )


def _model(fitted: AdditiveFit, data: Observed) -> AdditiveModel:
    problem = fitted.problem
    centres = tuple(
        Centre(design.mean(family.values(theta, design.points)), mean, theta)
        for family, design, theta, mean in zip(
            problem.families, problem.designs, problem.split(fitted.theta)[0], fitted.linear.means, strict=True
        )
    )
    return AdditiveModel(problem.families, centres, data.scale, data.shift)


def _signs(monotone: object, encoding: TableEncoding) -> dict[int, int]:
    """``monotone=`` by the positions of the features.

    Raises:
        InputTypeError: if it is no mapping.
        InputError: if a feature has labels, is there twice, or its direction is neither 1 nor −1.
        OptionError: if a feature is unknown.
    """
    if monotone is None:
        return {}
    if not isinstance(monotone, Mapping):
        raise InputTypeError(f"monotone: expected a mapping such as {{'age': 1}}, got {monotone!r}.")
    signs: dict[int, int] = {}
    for feature, sign in monotone.items():
        place = feature_position("monotone", feature, encoding.names)
        name = encoding.names[place]
        if isinstance(encoding.features[place], CategoricalEncoding):
            raise InputError(
                f"monotone: expected columns of numbers, got {name!r}, whose labels have no order. Leave it out, or "
                "write its labels as numbers."
            )
        if isinstance(sign, bool) or sign not in (1, -1):
            raise InputError(
                f"monotone: expected 1 (rising) or -1 (falling) for {name!r}, got {sign!r}. Leave out features whose "
                "effects are free."
            )
        if place in signs:
            raise InputError(f"monotone: expected each feature once, got {name!r} by its name and by its position.")
        signs[place] = int(sign)
    return signs


def _require_one_output_each(data: Observed, likelihood: Likelihood) -> None:
    """Refuses monotone effects where what is expected of y depends on several outputs, or an output is no mean.

    Raises:
        UnsupportedError: if it does.
    """
    if likelihood.domain.kind == "ordered":
        return
    if not likelihood.domain.elementwise:
        raise UnsupportedError(
            "monotone: expected two classes, or several labels per row, got more classes, whose probabilities depend "
            "on differences of outputs. Fit one class against the others."
        )
    columns = data.targets[slice(0, 1)].shape[1:]
    if columns != data.scale.shape:
        raise UnsupportedError(
            f"monotone: expected one output for each column of y, got {len(data.scale)} outputs of "
            f"{type(likelihood).__name__}, some of which are not means. Take a likelihood with one output, such as "
            "'gaussian'."
        )


def _wanted_pairs(interactions: object, names: Sequence[str], signs: Mapping[int, int]) -> int | str | tuple[Pair, ...]:
    """The pairs of ``interactions=`` by the positions of their features, or how many there are to be.

    Raises:
        InputError: if a pair is none, or is there twice.
        OptionError: if a feature is unknown.
    """
    if isinstance(interactions, str):
        if interactions != "auto":
            raise OptionError(f"interactions: expected a number of pairs, pairs or 'auto', got {interactions!r}.")
        return interactions
    if not isinstance(interactions, Sequence | np.ndarray):
        return checks.count("interactions", interactions, least=0)
    pairs: list[Pair] = []
    for pair in interactions:
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise InputError(f"interactions: expected pairs of names such as ('a', 'b'), got {pair!r}.")
        first, second = sorted(feature_position("interactions", feature, names) for feature in pair)
        if first == second:
            raise InputError(f"interactions: expected two different features in a pair, got {names[first]!r} twice.")
        if monotone := [names[feature] for feature in (first, second) if feature in signs]:
            raise InputError(
                f"interactions: expected pairs of features whose effects are free, got {names[first]!r} and "
                f"{names[second]!r}, of which {monotone[0]!r} is in monotone. Leave it out of one of the two options."
            )
        if (first, second) in pairs:
            raise InputError(
                f"interactions: expected each pair once, got {names[first]!r} and {names[second]!r} twice."
            )
        pairs.append((first, second))
    return tuple(pairs)


# Terms that the evidence would rather be without: each that might be one is tried off.
#
# The fixed points of the precisions climb to a local maximum of log Z, which may keep a term that fits noise. Off is δ
# = ∞ for the weights that a term's effect is linear in: far away for a climb, and close for a comparison.

# Terms are tried whose removal would lose at most this many nats by the density ratio, which ignores other terms.
DOUBTFUL = 5.0


def pruned(fit: AdditiveFit, *, progress: bool = False) -> AdditiveFit:
    """The fit with those terms off without which log Z is higher, tried one after another."""
    doubtful = [each for each in sorted(removal_gains(fit), reverse=True) if each[0] >= -DOUBTFUL]
    with progress_bar("fitting", visible=progress) as report:
        for done, (_, family, term) in enumerate(doubtful):
            report(done, len(doubtful), f"without {fit.problem.families[family].terms[term].name}")
            trial = _without(fit, family, term)
            if trial.log_evidence >= fit.log_evidence:
                fit = trial
    return fit


def removal_gains(fit: AdditiveFit) -> list[tuple[float, int, int]]:
    """What log Z would gain without each term that is on, by itself, with its family and place.

    With o the weights that the effect is linear in, and 0 their prior mean, it is the Savage-Dickey density ratio
    log q(o = 0) − log p(o = 0) of the Gaussian posterior to the prior (Dickey 1971).
    """
    problem = fit.problem
    diagonals = fit.at.diagonal(problem.families)
    factors = BlockFactors.of(fit.linear.blocks, diagonals).factors[:-1]
    departures = problem.split(fit.theta - problem.centre)[0]
    gains = []
    for place, (family, factor, departure, diagonal) in enumerate(
        zip(problem.families, factors, departures, problem.split(diagonals)[0], strict=True)
    ):
        outer = linear_weights(family)
        covariance = torch.cholesky_inverse(factor)[:, outer][:, :, outer]
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, departure[:, outer, None], upper=False)
        log_posterior = -0.5 * whitened.square().sum((1, 2)) - root.diagonal(dim1=1, dim2=2).log().sum(1)
        log_prior = 0.5 * diagonal[:, outer].log().sum(1)
        on = diagonal[:, outer].amin(1) < MOST_PRECISION
        gains += [
            (float(gain), place, term)
            for term, (gain, is_on) in enumerate(zip(log_posterior - log_prior, on.tolist(), strict=True))
            if is_on
        ]
    return gains


def _without(fit: AdditiveFit, family: int, term: int) -> AdditiveFit:
    """The mode with a term switched off: all that it is linear in, or all of it where its layers share a precision."""
    of_term = fit.at.precisions[family][term]
    shared = bool((of_term == of_term[0]).all())
    layers = torch.tensor([shared or name != "inner" for name in fit.problem.families[family].layers])
    precisions = [precision.clone() for precision in fit.at.precisions]
    precisions[family][term, layers] = MOST_PRECISION
    theta = fit.theta.clone()
    fit.problem.split(theta)[0][family][term] = fit.problem.split(fit.problem.centre)[0][family][term]
    at: AdditiveHyperparameters = replace(fit.at, precisions=tuple(precisions))
    return settled(fit.problem, theta, at, fit.trace, fit.ended, ROUGHLY, fit.log_evidence)
