"""A named column of a table: numbers, or labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

Kind = Literal["numeric", "categorical"]


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
