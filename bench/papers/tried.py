"""What was tried to explain a difference: results of `bench.papers.causes`, from which sentences take their figures.

A sentence whose variant has no results says that nothing is known yet, and no figure is written down by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.papers.common import Estimate, Record
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


def alike(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Those records that are of the set and of a seed of the others."""
    keys = {(record["set"], record["seed"]) for record in others}
    return [record for record in records if (record["set"], record["seed"]) in keys]


def figure(records: Sequence[Record], score: str, of: str | None = None, *, digits: int = 3) -> str:
    """A score as "0.123 ± 0.004", its mean over the records and the standard error.

    Args:
        records: at least one.
        score: its name: ``"nll"``.
        of: the part of a record that has it: ``"map"``; the record itself by default.
        digits: behind the point.
    """
    return Estimate.of([(record[of] if of else record)[score] for record in records]).told(digits)
