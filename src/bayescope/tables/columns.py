"""A named column of a table: numbers, or labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from bayescope.errors import InputError, InputTypeError
from bayescope.storage import stored

Kind = Literal["numeric", "categorical"]


@stored("column")
@final
@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table, whatever library the table came from.

    Attributes:
        name: what the table calls it; x0, x1, … where it has no names.
        kind: "numeric", or "categorical" for text, truth values and numbers that are labels.
        values: shape (N,): numbers as float64, NaN where missing; or labels as objects, ``None`` where missing.
        categories: the labels in the order in which the table declares them, whether they occur or not; ``None`` where
            it declares none.
        inferred: whether text or truth values alone made it one of labels, and neither its type nor the caller.
    """

    name: str
    kind: Kind
    values: np.ndarray
    categories: tuple[object, ...] | None = None
    inferred: bool = False

    @property
    def empty(self) -> bool:
        """Whether no value is there, so that the column may be read as either kind."""
        if self.kind == "numeric":
            return bool(np.isnan(self.values).all())
        return all(value is None for value in self.values)


def in_order_of(names: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """The columns of these names, in their order.

    Raises:
        InputError: if one is missing or has another name.
    """
    given = {column.name: column for column in columns}
    known = set(names)
    absent = [name for name in names if name not in given]
    extra = [name for name in given if name not in known]
    if absent or extra:
        problems = [f"no column {name!r}" for name in absent] + [f"the unknown column {name!r}" for name in extra]
        raise InputError(
            f"X: expected the columns that were fitted, got {', '.join(problems)}. Rename, add or drop columns."
        )
    return [given[name] for name in names]


def values_of_kind(column: Column, kind: Kind) -> np.ndarray:
    """The column's values as those of a kind: a column without any is of both.

    Raises:
        InputTypeError: if there are numbers where labels were fitted, or labels where numbers were.
    """
    if column.kind == kind:
        return column.values
    if column.empty:
        return np.full(column.values.shape, np.nan if kind == "numeric" else None)
    expected, got = ("numbers", "labels") if kind == "numeric" else ("labels", "numbers")
    example = next(value for value in column.values.tolist() if value is not None and value == value)
    raise InputTypeError(
        f"column {column.name!r}: expected {expected}, as fitted, got {got} such as {example!r}. "
        "Give it the type that it had then."
    )
