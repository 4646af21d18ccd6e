"""The target of a table: labels of a classification, or the numbers of a regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
import pandas as pd

from bayescope.checks import choice
from bayescope.cli.header import listed
from bayescope.cli.source import Source, place_of
from bayescope.errors import InputError, UnsupportedError
from bayescope.likelihoods import LabelError, OrderedLikelihoodName, resolve
from bayescope.tables.columns import Kind

Task = Literal["classification", "regression"]

TASKS = ("auto", "classification", "regression")
MOST_CLASSES = 50
# Whole numbers are classes, unless an option says otherwise, where they have at most this many different values.
FEW = 10
# The values of --likelihood for classes in an order.
ORDERED: tuple[str, ...] = get_args(OrderedLikelihoodName)
# Of those the one whose target has a second column, the trials.
BINOMIAL = "binomial"
# Fewer classes than this have no order that a model could learn from.
LEAST_ORDERED = 3
# The skewness above which amounts are far from a Gaussian: that of an exponential distribution.
SKEWED = 2.0
# The share of zeros above which amounts are a mixture of zeros and others.
SOME = 0.05

# What is said of a target's likelihood, its name, and whether the numbers alone make it likely.
Remark = tuple[str, tuple[str, bool]]
NO_REMARK: Remark = ("", ("", False))


@final
@dataclass(frozen=True, eq=False)
class Target:
    """What is to be predicted.

    Attributes:
        name: of its column.
        values: text, whole numbers or numbers, shape (N,).
        task: "classification" or "regression".
        reason: why it is that task, where nobody said so; else empty.
        remark: which likelihood the numbers look like, unless that is a Gaussian or classes without order; else empty.
        suggests: the name of that likelihood, and whether the numbers alone make it likely; else empty.
    """

    name: str
    values: np.ndarray
    task: Task
    reason: str
    remark: str = ""
    suggests: tuple[str, bool] = ("", False)

    @property
    def classes(self) -> list[str | int | float]:
        """The labels of a classification, sorted."""
        return np.unique(self.values).tolist()

    def series(self) -> pd.Series:
        """The values under their name, from which estimators take what they call them."""
        return pd.Series(self.values, name=self.name)

    @classmethod
    def of(
        cls, source: Source, name: str, values: np.ndarray, kind: Kind, places: np.ndarray, task: str,
        counts: np.ndarray | None = None,
    ) -> Target:  # fmt: skip
        """The target that a column makes.

        Args:
            source: the table.
            name: of the column.
            values: numbers or text, none missing, shape (N,).
            kind: "numeric" or "categorical".
            places: where the rows stand in the table.
            task: "classification", "regression", or "auto".
            counts: how often each number was there, shape (N,); once by default.

        Raises:
            InputError: if the column does not go with the task, or has one class alone.
            OptionError: if there is no such task.
        """
        choice("--task", task, TASKS)
        where = f"{source.name}: target {name!r}"
        if task == "regression" and kind == "categorical":
            row = _first_text(values)
            raise UnsupportedError(
                f"{where}: expected a number in every row for a regression, got {values[row]!r} in "
                f"{place_of(source, int(places[row]))}. Name another target, or leave out --task and --likelihood."
            )
        if task == "regression":
            return cls(name, _varied(where, values), "regression", "", *_remark(name, values, counts))
        labels = values.astype(str) if kind == "categorical" else _whole(values)
        found = np.unique(labels)
        whole = kind == "categorical" or labels.dtype.kind == "i"
        if task == "auto" and kind == "numeric" and len(found) > 2 and not (whole and len(found) <= FEW):
            many = "whole numbers" if whole else "numbers"
            reason = f"{name} has {len(found)} different {many}"
            return cls(name, _varied(where, values), "regression", reason, *_remark(name, values, counts))
        _check_classes(where, found, kind, whole)
        reason = (
            f"{name} has {len(found)} different {'whole ' * whole}numbers"
            if task == "auto" and kind == "numeric"
            else ""
        )
        remark = _remark_on_classes(name, values, counts) if reason else NO_REMARK
        return cls(name, labels, "classification", reason, *remark)


def check_trials(source: str, name: str, trials: np.ndarray, place: Callable[[int], str]) -> None:
    """Refuses numbers of trials that are not there, or are not whole numbers of at least 1.

    Args:
        source: the table's name.
        name: of the column.
        trials: of each row, shape (N,).
        place: where a row stands in the table.

    Raises:
        InputError: for the first of them.
    """
    wrong = ~((trials >= 1) & (trials % 1 == 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        got = "no value" if np.isnan(trials[row]) else f"{trials[row]:g}"
        raise InputError(
            f"{source}: {place(row)}, column {name!r}: expected a whole number of trials of at least 1, got {got}. "
            "Correct the cell, or drop the row."
        )


def check_domain(
    source: Source, name: str, values: np.ndarray, places: np.ndarray, likelihood: str,
    trials: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Refuses numbers that a likelihood gives no probability, such as a negative count.

    Args:
        source: the table.
        name: of the column.
        values: numbers, none missing, shape (N,).
        places: where the rows stand in the table.
        likelihood: its name.
        trials: of which the numbers are the successes, if so, shape (N,).

    Raises:
        InputError: for the first of them.
    """
    known = resolve(likelihood)  # type: ignore[arg-type]
    if likelihood in ORDERED and values.dtype.kind not in "biuf":
        row = _first_text(values)
        raise InputError(
            f"{source.name}: {place_of(source, int(places[row]))}, column {name!r}: expected a whole number, in the "
            f"order of the classes, for --likelihood {likelihood}, got {str(values[row])!r}. Number the classes in the "
            "table."
        )
    if known.domain.low == -np.inf:
        return
    try:
        known.targets(values if trials is None else np.column_stack([values, trials]), 1)
    except LabelError as error:
        expected, got, row, advice, _ = error.args
        raise InputError(
            f"{source.name}: {place_of(source, int(places[row]))}, column {name!r}: expected {expected} for "
            f"--likelihood {likelihood}, got {got}. {advice}"
        ) from None


def _remark(name: str, values: np.ndarray, counts: np.ndarray | None) -> Remark:
    """Which likelihood suits numbers that a Gaussian would often predict to be where they never are."""
    lowest, highest = values.min(), values.max()
    if lowest < 0:
        return NO_REMARK
    shares = values / highest  # the highest is above 0, since the numbers vary
    mean = np.average(shares, weights=counts)
    sd = np.sqrt(np.average((shares - mean) ** 2, weights=counts))
    never = "whose predictions are never negative"
    if lowest <= 1 and mean < 2.0 * sd and (values % 1 == 0).all() and len(np.unique(values)) > FEW:
        return (
            f"{name} looks like counts (whole numbers from {lowest:g} to {highest:.15g}): try --likelihood "
            f"negative_binomial (or poisson), {never}",
            ("negative_binomial", True),
        )
    center = mean * highest
    if lowest > 0 and 0.5 < highest < 1 and min(center, 1 - center) < 2.0 * sd * highest:
        return (
            f"{name} looks like shares (all between 0 and 1, many close to an end): try --likelihood beta, whose "
            "predictions are shares too",
            ("beta", True),
        )
    skewness = np.average(((shares - mean) / sd) ** 3, weights=counts)
    if lowest > 0 and skewness > SKEWED:
        return (
            f"{name} looks like amounts (all above 0, a few far above the others): try --likelihood gamma (or "
            f"log_normal), {never}",
            ("gamma", True),
        )
    zeros = np.average(values == 0, weights=counts)
    if zeros > SOME and skewness > SKEWED and (values % 1 != 0).any():
        return (
            f"{name} looks like amounts that may be 0 ({100 * zeros:.2g} % are, a few are far above the others): try "
            f"--likelihood tweedie, {never}",
            ("tweedie", True),
        )
    return NO_REMARK


def _remark_on_classes(name: str, values: np.ndarray, counts: np.ndarray | None) -> Remark:
    """Which likelihood suits whole numbers: counts from 0 that get rarer, or ordered classes without a gap."""
    found, place = np.unique(values, return_inverse=True)
    if len(found) < LEAST_ORDERED:
        return NO_REMARK
    asked, names = [], []
    if found[0] == 0 and (np.diff(np.bincount(place, counts)) < 0).all():
        asked += ["if they are counts, try --likelihood negative_binomial (or poisson)"]
        names += ["negative_binomial"]
    if (np.diff(found) == 1).all():
        asked += ["if they are in order, as ratings are, try --likelihood ordinal, which learns from the order"]
        names += ["ordinal"]
    if not asked:
        return NO_REMARK
    return f"{name} has the values {found[0]:g} to {found[-1]:g}: {'; '.join(asked)}", (names[0], False)


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


def _first_text(values: np.ndarray) -> int:
    """The row of the first value that is not a number, or 0."""
    return int(pd.to_numeric(pd.Series(values), errors="coerce").isna().argmax())
