"""Our figures beside the published ones: the difference, its standard error, and a sentence where they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from bench.papers.common import Estimate
from bench.record import table

# A difference of more standard errors than this has a sentence.
TOLD_FROM = 2.0
UNKNOWN = "Not explained yet."
HEADING = "## Beside the published figures"

# Why ours differs from a published figure, as far as that is established: by (score, set).
Causes = Mapping[tuple[str, str], str]


@final
@dataclass(frozen=True)
class Comparison:
    """Our mean of one score on one set, and the published one.

    Attributes:
        name: of the set.
        score: what is compared: ``"log-likelihood"``.
        higher_is_better: whether more of it is better.
        count: how many splits, folds or seeds ours is the mean of.
        ours: our mean and its standard error.
        published: the published one.
        difference: ours less the published one, and its standard error.
    """

    name: str
    score: str
    higher_is_better: bool
    count: int
    ours: Estimate
    published: Estimate
    difference: Estimate

    @classmethod
    def paired(
        cls, name: str, score: str, ours: Sequence[float], published: Sequence[float], *, higher_is_better: bool
    ) -> Comparison:
        """Of values on the same splits: the standard error is that of the mean of the N differences, sd / √N.

        Raises:
            ValueError: if there are not as many values of both.
        """
        differences = Estimate.of([these - other for these, other in zip(ours, published, strict=True)])
        means = Estimate.of(ours), Estimate.of(published)
        return cls(name, score, higher_is_better, len(ours), *means, differences)

    @classmethod
    def apart(
        cls, name: str, score: str, ours: Sequence[float], published: Estimate, *, higher_is_better: bool
    ) -> Comparison:
        """Of a published mean alone: √(s² + t²) of both standard errors, as if the splits were independent."""
        these = Estimate.of(ours)
        difference = Estimate(these.mean - published.mean, math.hypot(these.error, published.error))
        return cls(name, score, higher_is_better, len(ours), these, published, difference)

    @property
    def z(self) -> float:
        """The difference in its standard errors."""
        return self.difference.mean / self.difference.error if self.difference.error else math.nan

    @property
    def differs(self) -> bool:
        """Whether the difference has a sentence."""
        return abs(self.z) > TOLD_FROM

    @property
    def direction(self) -> str:
        """Where ours lies, and whether that is better."""
        above = self.difference.mean > 0
        return (
            f"{'above' if above else 'below'} the published figure, which is {_verdict(above, self.higher_is_better)}"
        )


def explained(theirs: Comparison, ours: Comparison) -> bool:
    """Whether a change explains a difference: with it the score is as published, and not what ours is without it.

    Args:
        theirs: the score with the change beside the published figure: at most two standard errors apart.
        ours: beside ours without the change, paired: more than two apart.
    """
    return abs(theirs.z) <= TOLD_FROM < abs(ours.z)


def _verdict(above: bool, higher_is_better: bool) -> str:
    return "better" if above == higher_is_better else "worse"


def sentences(comparisons: Sequence[Comparison], causes: Causes) -> list[str]:
    """In which direction ours differs and why, as far as that is known; sets of one score and one cause share one."""

    def shared(each: Comparison) -> tuple[str, str, str]:
        return each.score, each.direction, causes.get((each.score, each.name), UNKNOWN)

    alike: dict[tuple[str, str, str], list[Comparison]] = {}
    for each in comparisons:
        if each.differs:
            alike.setdefault(shared(each), []).append(each)
    found = []
    for (score, direction, cause), some in alike.items():
        sets = ", ".join(f"{each.name} ({abs(each.z):.1f} standard errors)" for each in some)
        found.append(f"- **{score[:1].upper()}{score[1:]}**: ours is {direction}, on {sets}. {cause}")
    return found


def section(comparisons: Sequence[Comparison], causes: Causes, how: Sequence[str]) -> list[str]:
    """The part of a page that sets our figures beside the published ones: what they are, tables and sentences.

    Args:
        comparisons: in the order of the rows; those of one score stand together.
        causes: what is known of why ours differs.
        how: lines on where the published figures are from, and how the standard errors were taken.
    """
    lines = [HEADING, "", *how, ""]
    for score, rows in groupby(comparisons, key=lambda each: each.score):
        header = (score[:1].upper() + score[1:], "n", "ours", "published", "difference", "in standard errors")
        cells = [
            (
                each.name,
                str(each.count),
                each.ours.text(),
                each.published.text(),
                each.difference.text(signed=True),
                "–" if math.isnan(each.z) else f"{each.z:+.1f}",
            )
            for each in rows
        ]
        lines += [table(header, cells), ""]
    count = sum(each.differs for each in comparisons)
    lines += [f"More than {TOLD_FROM:g} standard errors apart: {count} of {len(comparisons)}.", ""]
    return [*lines, *sentences(comparisons, causes)]
