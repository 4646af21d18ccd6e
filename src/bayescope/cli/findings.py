"""What is wrong with a table, or suspicious: a line each, with the option that helps, quoted for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd

from bayescope.cli.header import LISTED, listed
from bayescope.cli.source import Source, place_of
from bayescope.tables.columns import Kind
from bayescope.tables.suspicion import LABELS, SHARE, hardly_recur, is_number, mostly_numbers

DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}.*)?")
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
# A time of day: --dates needs the day as well.
TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}.*)?")
# Up to this many words among numbers are all suggested as missing values.
FEW_WORDS = 3


@final
@dataclass(frozen=True)
class Finding:
    """Something about a table that a fit refuses, or that may mislead.

    Attributes:
        text: where it is, what it is and what helps; the table is not named.
        option: that helps, such as "--drop"; empty where none does.
        values: of the option, such as names of columns.
        refused: whether a fit refuses the table for it.
        suggested: whether the option is worth taking unless somebody knows better.
        about: the column, where nothing else needs to be said of it.
    """

    text: str
    option: str = ""
    values: tuple[str, ...] = ()
    refused: bool = False
    suggested: bool = False
    about: str = ""

    @property
    def flag(self) -> str:
        """The option with its values, to be pasted; empty where there is none."""
        return flag(self.option, *self.values) if self.option else ""


def flag(option: str, *values: str) -> str:
    """An option with its values, quoted for a shell: those that read as one list together, all others one by one."""
    alone = [value for value in values if "," in value or value != value.strip() or option == "--missing"]
    together = ",".join(value for value in values if value not in alone)
    return " ".join(f"{option} {shell_word(word)}" for word in ([together] if together else []) + alone)


def shell_word(text: str) -> str:
    """Text as one word of a shell; what a terminal would not show as it is stands escaped, as bash and zsh read it."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text.replace("\\", "\\\\"))
    return "$'" + escaped.replace("'", "\\'") + "'"


def _escaped(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 2**16 else f"\\U{ord(letter):08x}"


def feature_problem(
    source: Source, name: str, values: np.ndarray, kind: Kind, places: np.ndarray, *, named: bool
) -> Finding | None:
    """Why a column is probably not a feature as it is; ``None`` for numbers and for labels that the caller named.

    Args:
        source: the table.
        name: of the column.
        values: numbers or labels, shape (N,).
        kind: which of them.
        places: where the rows stand in the table.
        named: whether the caller said that they are labels.
    """
    where, present = f"column {name!r}", values[~pd.isna(values)]
    drop = ("--drop", (name,), True, True)
    if len(present) == 0:
        return Finding(
            f"{where}: expected values, got none in {len(values)} rows. Leave it out: {flag('--drop', name)}.", *drop
        )
    if kind == "numeric" or named:
        return None
    found = pd.unique(present)

    def at(label: str) -> str:
        return f"{label!r} in {place_of(source, int(places[int(np.argmax(values == label))]))}"

    return _no_labels(name, found.tolist(), at) or (
        Finding(
            f"{where}: expected labels that recur, got {len(found)} different ones in {len(present)} rows, such as "
            f"{listed(found[:LISTED])}. Leave it out: {flag('--drop', name)}; or keep it with "
            f"{flag('--categorical', name)}.",
            *drop,
        )
        if hardly_recur(len(found), len(present))
        else None
    )


def _no_labels(name: str, found: Sequence[str], at: Callable[[str], str]) -> Finding | None:
    """Why cells are neither numbers nor labels: dates, and numbers with a word or another decimal mark.

    Args:
        name: of the column.
        found: its different cells.
        at: says where the first of some cells stands.
    """
    where, drop = f"column {name!r}", ("--drop", (name,), True, True)
    dates = [label for label in found if DATE.fullmatch(label)]
    if len(dates) >= SHARE * len(found):
        days = not any(map(TIME.fullmatch, dates))
        parts = f"Turn it into its parts: {flag('--dates', name)}; or" if days else "Turn it into numbers, or"
        return Finding(
            f"{where}: expected numbers or labels, got dates such as {at(dates[0])}. {parts} leave it out: "
            f"{flag('--drop', name)}.",
            "--dates" if days else "--drop",
            *drop[1:],
        )
    words = [label for label in found if not is_number(label)]
    if words and mostly_numbers(found):
        few = words[:FEW_WORDS]
        missing = flag("--missing", *few)
        wrong = "is not a number" if len(words) == 1 else "are not numbers"
        return Finding(
            f"{where}: expected numbers, got {at(words[0])} ({len(words)} of {len(found)} distinct values {wrong}). "
            f"Fix it; if it stands for a missing value: {missing}; if all are labels: {flag('--categorical', name)}.",
            "--missing",
            tuple(few),
            refused=True,
            suggested=len(words) <= FEW_WORDS,
        )
    if not words and len(found) >= LABELS:
        return Finding(
            f"{where}: expected numbers with the decimal mark of the table, got {at(found[0])}. Name the mark: "
            f"--decimal . or --decimal ,; or leave the column out: {flag('--drop', name)}.",
            *drop,
        )
    commas = [label for label in found if DECIMAL_COMMA.fullmatch(label)]
    if len(found) >= LABELS and len(commas) >= SHARE * len(found):
        return Finding(
            f"{where}: expected numbers with a decimal point, got {at(commas[0])}. If the comma is a decimal mark: "
            "--decimal ,.",
            "--decimal",
            (",",),
            refused=True,
            suggested=True,
        )
    return None
