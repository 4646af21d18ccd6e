"""What was tried to explain a difference: results of `bench.papers.causes`, from which sentences take their figures.

A sentence whose variant has no results says that nothing is known yet, and no figure is written down by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from bench.papers.common import Estimate, Record, key_of
from bench.papers.compared import UNKNOWN, Comparison, explained
from bench.record import load

NAME = "causes"
# Where the reader finds them.
PLACE = f"(tried beside this table: `{NAME}.md`)"


def tried(folder: Path, variant: str, name: str) -> list[Record]:
    """What a variant gave on one set, by seed; nothing where it was not run.

    Args:
        folder: of the results.
        variant: one of `bench.papers.causes.VARIANTS`.
        name: of the set.
    """
    own = load(folder, NAME).get("records", {}).get(variant, [])
    ended = [record for record in own if record["set"] == name and "over_seconds" not in record]
    return sorted(ended, key=lambda record: record["seed"])


def figure(records: Sequence[Record], score: str, of: str | None = None, *, digits: int = 3) -> str:
    """A score as "0.123 ± 0.004", its mean over the records and the standard error.

    Args:
        records: at least one.
        score: its name: ``"nll"``.
        of: the part of a record that has it: ``"map"``; the record itself by default.
        digits: behind the point.
    """
    return Estimate.of([(record[of] if of else record)[score] for record in records]).told(digits)


@final
@dataclass(frozen=True)
class Trial:
    """A variant beside the page's run without the change, on the same splits.

    Attributes:
        before: without the change, by seed.
        after: with it.
    """

    before: Sequence[Record]
    after: Sequence[Record]

    @classmethod
    def of(cls, folder: Path, variant: str, unchanged: str, name: str, page: Sequence[Record]) -> Self | None:
        """Of one set; None where fewer than two splits were tried, which have no standard error.

        Args:
            folder: of the results.
            variant: the one with a change.
            unchanged: the one without: the page's run, made once more.
            name: of the set.
            page: the page's own results, which take its place on splits where it was not made.
        """
        after = tried(folder, variant, name)
        there = {key_of(record): record for record in [*page, *tried(folder, unchanged, name)]}
        shared = [record for record in after if key_of(record) in there]
        return cls([there[key_of(record)] for record in shared], shared) if len(shared) > 1 else None

    @property
    def of_one_code(self) -> bool:
        """Whether both are known to be of the same code, so that nothing else has changed."""
        codes = {record.get("code") for record in [*self.before, *self.after]}
        return len(codes) == 1 and None not in codes

    def change(self, theirs: Comparison, score: str, of: str | None = None) -> Comparison:
        """The score with the change beside that without it, paired by split; its title is another comparison's."""
        values = ([(record[of] if of else record)[score] for record in some] for some in (self.after, self.before))
        return Comparison.paired(theirs.name, theirs.score, *values, higher_is_better=theirs.higher_is_better)

    def told(self, cause: str, changed: str, theirs: Comparison, score: str, of: str | None = None) -> str:
        """A sentence: the cause if the change explains the difference, else that it does not, and the figures.

        Args:
            cause: what the change stands for: "The training".
            changed: what was run: "1,600 epochs instead of 400".
            theirs: the variant's results beside the published figure.
            score: its name in a record.
            of: the part of a record that has it.
        """
        ours = self.change(theirs, score, of)
        after, before = (figure(some, score, of) for some in (self.after, self.before))
        head = cause if explained(theirs, ours) else UNKNOWN.removesuffix(".")
        apart = f"{abs(theirs.z):.1f} standard errors from theirs and {abs(ours.z):.1f} from ours"
        of_code = "with the same code" if self.of_one_code else "of an earlier code"
        return (
            f"{head}: {changed} give {after} on {len(self.after)} splits, where the page's run, {of_code}, gives "
            f"{before}; that is {apart} {PLACE}."
        )
