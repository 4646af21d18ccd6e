"""Columns that are probably not what their cells say: text that is mostly numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayescope.errors import BayescopeWarning, warn
from bayescope.tables.columns import Column

# A column of text is suspect where so large a share of at least so many different labels are numbers.
SHARE, LABELS = 0.9, 10


def warn_of_numbers(columns: Sequence[Column]) -> None:
    """Warns of columns of text whose labels are mostly numbers: one word among them made them all labels.

    Columns that are labels by their type, or because the caller named them, are left alone.
    """
    told = [message for column in columns if column.inferred and (message := _suspicion(column))]
    if told:
        warn(
            " ".join(told)
            + " As it is, each label has a level of its own. Make measurements numbers, and name columns "
            "of codes in categorical=.",
            BayescopeWarning,
        )


def _suspicion(column: Column) -> str | None:
    labels = {label for label in column.values if isinstance(label, str)}
    words = sorted(label for label in labels if not _is_number(label))
    numbers = len(labels) - len(words)
    if len(labels) < LABELS or numbers < SHARE * len(labels):
        return None
    example = next(label for label in column.values if isinstance(label, str) and label not in words)
    share = f"{100 * numbers // len(labels)} % of its labels are numbers, such as {example!r}"
    advice = (
        f", and {words[0]!r} is not: pandas.to_numeric(column, errors='coerce') turns it into NaN." if words else "."
    )
    return f"column {column.name!r}: {share}{advice}"


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False
