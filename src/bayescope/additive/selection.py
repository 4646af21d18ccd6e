"""Features of a wide table: they enter the model a few at a time, for as long as they raise the evidence.

The terms of many columns that are fitted at once determine more weights than there are rows. The evidence by blocks,
which takes each term as if it were alone, then prefers to explain noise. So the fit begins without features. Each round
asks what every feature that is left would add to log Z (`feature_gains`), fits the best of them beside those that are
in, and keeps them if log Z rises by more than the log of the prior odds against them (`log_odds`): the forward
selection of Tipping & Faul (2003, "Fast marginal likelihood maximisation for sparse Bayesian models"), of whole terms.

Features that never entered join the finished fit as terms that are switched off (`with_silent`), so that every question
about them has an answer. No climb reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from bayescope.additive.design import Design
from bayescope.additive.families import HiddenNets, TermFamily, linear_weights
from bayescope.additive.fit import MOST_PRECISION, AdditiveFit
from bayescope.additive.interactions import BLOCK, PRECISIONS, gains_by_precision
from bayescope.additive.passes import RowValues
from bayescope.additive.posterior import tightest_log_evidence
from bayescope.process_state import one_thread
from bayescope.progress import progress_bar

# A table with more terms than this, or with fewer rows than this for each term, is wide.
MOST_AT_ONCE, ROWS_A_TERM = 64, 2
# How many features enter in the first round; later as many as are in already.
FIRST_ROUND = 5

# A term: the place of its family, and its place among the terms of the family.
Place = tuple[int, int]


@final
@dataclass(frozen=True, eq=False)
class Begun:
    """Families of terms as a fit of them begins.

    Attributes:
        families: of terms.
        designs: what each family reads.
        centre: the prior mean of the weights of each family, shape (G, P).
        theta: their weights, shape (G, P).
        precisions: of each family, shape (G, L).
    """

    families: tuple[TermFamily, ...]
    designs: tuple[Design, ...]
    centre: tuple[Tensor, ...]
    theta: tuple[Tensor, ...]
    precisions: tuple[Tensor, ...]

    @classmethod
    def of(cls, fit: AdditiveFit) -> Begun:
        """From where a fit has ended."""
        problem = fit.problem
        centre, theta = (tuple(problem.split(each)[0]) for each in (problem.centre, fit.theta))
        return cls(problem.families, problem.designs, centre, theta, fit.at.precisions)

    @property
    def places(self) -> list[Place]:
        """Of all terms, family by family."""
        return [(place, term) for place, family in enumerate(self.families) for term in range(len(family.terms))]

    def wide(self, rows: float) -> bool:
        """Whether the terms are too many to be fitted to this many rows at once."""
        return len(self.places) > min(MOST_AT_ONCE, rows / ROWS_A_TERM)

    def beside(self, others: Begun) -> Begun:
        """These families, and then others."""
        return Begun(
            self.families + others.families, self.designs + others.designs, self.centre + others.centre,
            self.theta + others.theta, self.precisions + others.precisions,
        )  # fmt: skip

    def only(self, chosen: Sequence[Place], design: Callable[[TermFamily], Design]) -> Begun:
        """Some of the terms, in the order of all."""
        by_family: dict[int, list[int]] = {}
        for family, term in sorted(chosen):
            by_family.setdefault(family, []).append(term)
        families = tuple(self.families[place].only(terms) for place, terms in by_family.items())
        centre, theta, precisions = (
            tuple(parts[place][terms] for place, terms in by_family.items())
            for parts in (self.centre, self.theta, self.precisions)
        )
        return Begun(families, tuple(map(design, families)), centre, theta, precisions)

    def updated(self, fitted: Begun, places: Sequence[Place]) -> Begun:
        """These terms, those at some places with the weights and precisions that a fit of them has ended with."""
        theta, precisions = ([each.clone() for each in parts] for parts in (self.theta, self.precisions))
        ends = [
            (theta_, precision)
            for parts in zip(fitted.theta, fitted.precisions, strict=True)
            for theta_, precision in zip(*parts, strict=True)
        ]
        for (family, term), (weights, precision) in zip(places, ends, strict=True):
            theta[family][term], precisions[family][term] = weights, precision
        return replace(self, theta=tuple(theta), precisions=tuple(precisions))

    def with_precisions(self, outer: Mapping[Place, float], places: Sequence[Place]) -> Begun:
        """These terms, those at some places with other precisions of what their effects are linear in."""
        precisions = [each.clone() for each in self.precisions]
        for family, term in places:
            layers = torch.tensor([name != "inner" for name in self.families[family].layers])
            precisions[family][term, layers] = outer[family, term]
        return replace(self, precisions=tuple(precisions))

    def off(self, design: Callable[[TermFamily], Design], *, shared: bool) -> Begun:
        """The terms switched off; nets have one unit, which is 0 everywhere."""
        families = tuple(
            replace(each, hidden=1, seen=None) if isinstance(each, HiddenNets) else each for each in self.families
        )
        zero = tuple(torch.zeros(len(each.terms), each.weights, dtype=torch.float64) for each in families)
        precisions = tuple(
            torch.where(
                torch.tensor([shared or name != "inner" for name in family.layers]),
                MOST_PRECISION,
                before[:, : len(family.layers)],
            )
            for family, before in zip(families, self.precisions, strict=True)
        )
        return Begun(families, tuple(map(design, families)), zero, zero, precisions)


# Fits families of terms from where they begin, with the intercepts and hyperparameters that another fit ended with; the
# words say for a bar what is fitted.
Climb = Callable[[Begun, AdditiveFit | None, str], AdditiveFit]


def selected(
    every: Begun, design: Callable[[TermFamily], Design], climbed: Climb, *, shared: bool, progress: bool
) -> AdditiveFit:
    """The fit of the features that raise log Z; of one feature that is switched off, if none does.

    Args:
        every: the terms of all features.
        design: what a family reads.
        climbed: fits families.
        shared: whether the layers of a term share a precision.
        progress: whether a bar is drawn.
    """
    places = every.places
    chosen: list[Place] = []
    # A fit needs a term to have the intercepts beside it
    now, fit = every, climbed(every.only(places[:1], design).off(design, shared=shared), None, "no feature")
    reached, at_once, fewer = tightest_log_evidence(fit), FIRST_ROUND, False
    gains, best = feature_gains(every, fit, progress=progress)
    while at_once:
        ranked = [places[at] for at in gains.argsort(descending=True, stable=True).tolist() if gains[at] > 0.0]
        new = [place for place in ranked if place not in chosen][:at_once]
        if not new:
            break
        together = sorted([*chosen, *new])
        begun = now.with_precisions(dict(zip(places, best.tolist(), strict=True)), new).only(together, design)
        trial = climbed(begun, fit, f"{len(together)} of {len(places)} features")
        value = tightest_log_evidence(trial)
        if value > reached + log_odds(len(places), len(chosen), len(new)):
            fit, reached, chosen, now = trial, value, together, now.updated(Begun.of(trial), together)
            at_once = at_once if fewer else max(FIRST_ROUND, len(chosen))
            gains, best = feature_gains(every, fit, progress=progress)
        else:
            at_once, fewer = len(new) // 2, True
    return fit


def with_silent(fitted: Begun, every: Begun, design: Callable[[TermFamily], Design], *, shared: bool) -> Begun:
    """The terms of a fit, and beside them those of the features that have no term of their own, switched off.

    Args:
        fitted: the terms of the fit.
        every: the terms of all features.
        design: what a family reads.
        shared: whether the layers of a term share a precision.
    """
    there = {term.features for family in fitted.families for term in family.terms}
    others = [place for place in every.places if every.families[place[0]].terms[place[1]].features not in there]
    return fitted.beside(every.only(others, design).off(design, shared=shared)) if others else fitted


def feature_gains(every: Begun, fit: AdditiveFit, *, progress: bool = False) -> tuple[Tensor, Tensor]:
    """What each term alone would add to the log evidence of a fit, by its own start, and at which precision.

    The term's effect is linear in its outer weights; with these functions φ, N(0, 1/p) on their weights, and log p(y∣f)
    to second order, the gain is that of `evidence_gains` with the constant in the place of the features' functions.

    Returns:
        Gains in nats, at least 0, and precisions, shape (T,) each.
    """
    problem, linear = fit.problem, fit.linear
    summed = problem.passes.computed(
        lambda rows: torch.cat([linear.slope[rows], linear.curvature[rows].abs().sum(2)], 1)
    )
    gains: list[Tensor] = []
    with one_thread(), progress_bar("judging", visible=progress) as report:
        for family, design, theta in zip(every.families, every.designs, every.theta, strict=True):
            (sums,) = problem.passes.summed(partial(_at_points, design, summed))
            slope, curvature = sums.chunk(2, 2)
            outer, points = linear_weights(family), design.mass.shape[1]
            for some in torch.arange(len(family.terms)).split(max(1, BLOCK // (points * family.weights))):
                report(sum(map(len, gains)), len(every.places), f"features, such as {family.terms[int(some[0])].name}")
                at = replace(design.points, inputs=design.points.inputs[some], levels=design.points.levels[some])
                jacobian = family.only(some.tolist()).jacobian(theta[some], at)
                functions = jacobian.separate if jacobian.of_separate.shape[1] else jacobian.shared[:, :, 0, outer]
                functions = torch.cat([torch.ones_like(functions[..., :1]), functions], 2)
                gains.append(gains_by_precision(functions, 1, slope[some], curvature[some]))
    best = torch.cat(gains).max(1)
    return best.values.clamp(min=0.0), PRECISIONS[best.indices]


def _at_points(design: Design, numbers: RowValues, rows: slice) -> list[Tensor]:
    return [design.scattered(numbers[rows], rows)]


def log_odds(count: int, chosen: int, new: int) -> float:
    """log p(a set of features) − log p(that set and others), at least 0, where all numbers of features are as probable.

    All sets of k of K features then have the probability 1/((K + 1) binom(K, k)) (Scott & Berger 2010): what a further
    feature has to gain falls with the share of features that are in.
    """
    ways = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in (chosen, chosen + new)]
    return max(0.0, ways[1] - ways[0])
