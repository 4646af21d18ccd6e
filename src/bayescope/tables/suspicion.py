"""Columns that are probably not what their cells say: text that is mostly numbers or dates, labels that name rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

import pandas as pd

from bayescope.errors import BayescopeWarning, InputError, warn
from bayescope.tables.columns import Column

# A column of text is suspect where so large a share of at least this many different labels are numbers.
SHARE, LABELS = 0.9, 10
# Labels that hardly ever recur tell rows apart, and nothing of the target: the share of different ones, and how many.
UNIQUE, ENOUGH = 0.5, 30
# This many labels are shown in a message.
LISTED = 3
# A date, or a date and a time, as ISO 8601 and most databases write it.
LIKE_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")


def warn_of_text(columns: Sequence[Column]) -> None:
    """Warns of columns of text whose labels are mostly numbers (one word among them made them all labels) or all dates.

    Columns that are labels by their type, or because the caller named them, are left alone.
    """
    messages = [message for column in columns if column.inferred and (message := _suspicion(column))]
    if messages:
        warn(
            " ".join(messages)
            + " As it is, each label has a level of its own. Make measurements numbers, and name columns "
            "of codes in categorical=.",
            BayescopeWarning,
        )


def hardly_recur(different: int, rows: int) -> bool:
    """Whether this many different labels in this many rows tell rows apart, as names and numbers of records do."""
    return different >= ENOUGH and different > UNIQUE * rows


def refuse_names_of_rows(columns: Sequence[Column]) -> None:
    """Refuses columns of text whose labels hardly ever recur: each label would have a level of its own.

    Columns that are labels by their type, or because the caller named them, are left alone, and so is text that is
    mostly numbers.

    Raises:
        InputError: if there is one; the message names it.
    """
    for column in columns:
        if not column.inferred:
            continue
        present = column.values[~pd.isna(column.values)]
        refuse_labels_of_rows(column.name, pd.unique(present).tolist(), len(present))


def refuse_labels_of_rows(name: str, labels: Sequence[object], rows: int) -> None:
    """Refuses the different labels of a column of text, in this many rows, that hardly ever recur.

    Raises:
        InputError: if they do not, unless most of them are numbers.
    """
    if hardly_recur(len(labels), rows) and not mostly_numbers([label for label in labels if isinstance(label, str)]):
        raise InputError(
            f"column {name!r}: expected labels that recur, got {len(labels)} different ones in {rows} rows, such as "
            f"{', '.join(map(repr, labels[:LISTED]))}. Leave the column out, or keep it with categorical=[{name!r}]."
        )


def mostly_numbers(labels: Collection[str]) -> bool:
    """Whether most of many different labels are numbers."""
    return len(labels) >= LABELS and sum(map(is_number, labels)) >= SHARE * len(labels)


def _suspicion(column: Column) -> str | None:
    labels = {label for label in column.values if isinstance(label, str)}
    if len(labels) >= LABELS and all(map(LIKE_ISO.fullmatch, labels)):
        return (
            f"column {column.name!r}: its {len(labels)} labels are dates, such as {min(labels)!r}: "
            "(pandas.to_datetime(column) - pandas.Timestamp('2000-01-01')).dt.days turns them into numbers."
        )
    words = sorted(label for label in labels if not is_number(label))
    numbers = len(labels) - len(words)
    if not mostly_numbers(labels):
        return None
    example = next(label for label in column.values if isinstance(label, str) and label not in words)
    share = f"{100 * numbers // len(labels)} % of its labels are numbers, such as {example!r}"
    advice = (
        f", and {words[0]!r} is not: pandas.to_numeric(column, errors='coerce') turns it into NaN." if words else "."
    )
    return f"column {column.name!r}: {share}{advice}"


def is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
