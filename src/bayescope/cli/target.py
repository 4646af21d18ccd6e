"""The target of a table: labels of a classification, or the numbers of a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd

from bayescope.checks import choice
from bayescope.cli.header import listed
from bayescope.cli.source import Source, place_of
from bayescope.errors import InputError, UnsupportedError
from bayescope.tables.columns import Kind

Task = Literal["classification", "regression"]

TASKS = ("auto", "classification", "regression")
MOST_CLASSES = 50
# Whole numbers are classes, unless an option says otherwise, where they have at most this many different values.
FEW = 10


@final
@dataclass(frozen=True, eq=False)
class Target:
    """What is to be predicted.

    Attributes:
        name: of its column.
        values: text, whole numbers or numbers, shape (N,).
        task: "classification" or "regression".
        reason: why it is that task, where nobody said so; else empty.
    """

    name: str
    values: np.ndarray
    task: Task
    reason: str

    @property
    def classes(self) -> list[str | int | float]:
        """The labels of a classification, sorted."""
        return np.unique(self.values).tolist()

    def series(self) -> pd.Series:
        """The values under their name, from which estimators take what they call them."""
        return pd.Series(self.values, name=self.name)

    @classmethod
    def of(cls, source: Source, name: str, values: np.ndarray, kind: Kind, places: np.ndarray, task: str) -> Target:
        """The target that a column makes.

        Args:
            source: the table.
            name: of the column.
            values: numbers or text, none missing, shape (N,).
            kind: "numeric" or "categorical".
            places: where the rows stand in the table.
            task: "classification", "regression", or "auto".

        Raises:
            InputError: if the column does not go with the task, or has one class alone.
            OptionError: if there is no such task.
        """
        choice("--task", task, TASKS)
        where = f"{source.name}: target {name!r}"
        if task == "regression" and kind == "categorical":
            raise UnsupportedError(
                f"{where}: expected a number in every row for --task regression, got {values[0]!r} in "
                f"{place_of(source, int(places[0]))}. Name another target, or leave --task out."
            )
        if task == "regression":
            return cls(name, _varied(where, values), "regression", "")
        labels = values.astype(str) if kind == "categorical" else _whole(values)
        found = np.unique(labels)
        whole = kind == "categorical" or labels.dtype.kind == "i"
        if task == "auto" and kind == "numeric" and len(found) > 2 and not (whole and len(found) <= FEW):
            many = "whole numbers" if whole else "numbers"
            return cls(name, _varied(where, values), "regression", f"{name} has {len(found)} different {many}")
        _check_classes(where, found, kind, whole)
        reason = (
            f"{name} has {len(found)} different {'whole ' * whole}numbers"
            if task == "auto" and kind == "numeric"
            else ""
        )
        return cls(name, labels, "classification", reason)


def _check_classes(where: str, found: np.ndarray, kind: Kind, whole: bool) -> None:
    if len(found) < 2:
        raise InputError(
            f"{where}: expected at least two classes, got one, {listed(found.tolist())}. Add rows of another class."
        )
    if kind == "numeric" and ((not whole and len(found) > 2) or len(found) > MOST_CLASSES):
        raise InputError(
            f"{where}: expected classes, got a number with {len(found)} distinct values, from {found[0]:g} to "
            f"{found[-1]:g}. Cut it into classes, or fit a regression."
        )
    if len(found) > MOST_CLASSES:
        raise InputError(
            f"{where}: expected at most {MOST_CLASSES} classes, got {len(found)}, such as {listed(found.tolist())}. "
            "Merge rare classes, or name another target."
        )


def _varied(where: str, values: np.ndarray) -> np.ndarray:
    if (values == values[0]).all():
        raise InputError(f"{where}: expected more than one value, got {values[0]:g} in every row. Name another target.")
    return values


def _whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers as such, so that class 1 is not called 1.0."""
    return values.astype(np.int64) if (values % 1 == 0).all() and np.abs(values).max() < 2**53 else values
