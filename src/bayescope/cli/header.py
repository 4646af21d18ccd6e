"""The header of a table, and names that are looked up in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import pandas as pd

from bayescope.cli.problems import refuse
from bayescope.cli.text_format import spelled
from bayescope.errors import InputError

LISTED = 8  # names or labels listed in a message
LONGEST = 200  # characters of each
# A table of more columns takes minutes to read, a column at a time.
MOST_COLUMNS = 100_000
# A message asks whether a name was meant if it shares this many of its letters, in order, with the name that was typed.
ALIKE = 0.75


def check_header(name: str, header: Sequence[str], separator: str | None = None) -> None:
    """Refuses a header that does not give each column a name of its own.

    Args:
        name: of the table, for messages.
        header: the names.
        separator: what stands between them in text.

    Raises:
        InputError: if a name is missing or occurs twice, the names look like data, or all of them like one; or if there
            are more than `MOST_COLUMNS`.
    """
    if len(header) > MOST_COLUMNS:
        raise InputError(
            f"{name}: expected at most {MOST_COLUMNS:,} columns, got {len(header):,}. If its rows are columns, "
            "transpose the table; else leave columns out."
        )
    other = [mark for mark in ",;\t|" if mark != separator and mark in header[0]] if separator else []
    if len(header) == 1 and other:
        raise InputError(
            f"{name}: expected columns separated by {separator!r}, got one column whose name holds {other[0]!r}. Name "
            f"the separator: --sep {spelled(other[0])}."
        )
    if _looks_like_data(header):
        raise InputError(
            f"{name}: expected a header of column names, got numbers such as {listed(header)}: the first row looks "
            "like data. Put a line of names above it."
        )
    unnamed = [str(place) for place, title in enumerate(header, 1) if not title.strip()]
    problems = []
    if unnamed:
        problems.append(
            f"{name}: expected a name for every column, got none for column {', '.join(unnamed[:LISTED])}. "
            "Name it, or drop it if it is a row index (pandas: to_csv(index=False))."
        )
    twice = sorted(title for title, times in Counter(header).items() if times > 1 and title.strip())
    if twice:
        problems.append(f"{name}: expected each column name once, got {listed(twice)} more than once. Rename or drop.")
    refuse(problems)


def find(option: str, name: str, wanted: str, header: Sequence[str]) -> str:
    """The name of a column that an option asks for.

    Args:
        option: as typed, such as "--target".
        name: of the table.
        wanted: the column.
        header: those that there are.

    Raises:
        InputError: if there is no such column; the message has the closest name.
    """
    if wanted not in header:
        raise InputError(f"{option}: expected a column of {name}, got {wanted!r}; {hint(wanted, header)}")
    return wanted


def split_names(given: Sequence[str] | None, header: Sequence[str]) -> list[str]:
    """Names typed as a,b or one by one; what is a column as it stands, comma and all, is one name."""
    names: list[str] = []
    for text in given or ():
        names += [text] if text in header else [part.strip() for part in text.split(",") if part.strip()]
    return list(dict.fromkeys(names))


def of_column(text: str, header: Sequence[str]) -> tuple[str, str] | None:
    """A column and what an option says of it, typed as column=value; ``None`` where no column is named so."""
    parts = text.split("=")
    for end in range(1, len(parts)):
        if (name := "=".join(parts[:end])) in header:
            return name, "=".join(parts[end:])
    return None


def spellings_of_missing(given: Sequence[str], header: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """What stands for a missing value in every column, and in single ones.

    Args:
        given: values of --missing, as value or column=value.
        header: the columns that there are.
    """
    everywhere: list[str] = []
    single: dict[str, list[str]] = {}
    for text in given:
        pair = of_column(text, header)
        if pair is None:
            everywhere.append(text)
        else:
            single.setdefault(pair[0], []).append(pair[1])
    return everywhere, single


def hint(wanted: str, header: Iterable[str]) -> str:
    """The columns that there are, and the one that was probably meant."""
    names = [str(name) for name in header]
    return f"its columns are {listed(names)}.{meant(wanted, names)}"


def meant(wanted: str, names: Iterable[str]) -> str:
    """The question whether one of some names was meant, in whatever case; empty where none is close."""
    cases = {name.casefold(): name for name in reversed(list(names))}
    close = get_close_matches(wanted.casefold(), cases, n=1, cutoff=ALIKE)
    return f" Did you mean {cases[close[0]]!r}?" if close else ""


def listed(names: Iterable[object]) -> str:
    """The first few of some names or labels, and how many more there are."""
    texts = [shortened(repr(name) if isinstance(name, str) else str(name)) for name in names]
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(texts[:LISTED]) + more


def shortened(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text that is too long to be shown, and how long it is."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def _looks_like_data(header: Sequence[str]) -> bool:
    """Whether most names are numbers, and not the running numbers that pandas gives to nameless columns."""
    numbers = pd.to_numeric(pd.Series(header, dtype=object), errors="coerce").dropna()
    running = bool((numbers.diff().dropna() == 1).all())
    return len(numbers) > len(header) / 2 and not running
