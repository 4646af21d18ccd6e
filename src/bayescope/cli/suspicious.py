"""What may mislead in a table that can be fitted: ids, codes, constants, equal columns, leaks, words for missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn.isotonic import isotonic_regression
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from bayescope.cli.findings import Finding, flag
from bayescope.cli.header import LISTED, listed
from bayescope.cli.target import FEW, Target
from bayescope.tables.columns import Kind

# Names that numbers of rows have.
ID = re.compile(r"(.*[_ .-])?(id|ids|idx|index|key|nr|no|number|unnamed: ?\d+)", re.IGNORECASE)
LEADING_ZERO = re.compile(r"0\d+")
# Fewer rows say little of whether values recur, and of whether a column tells the target.
LEAST_ROWS = 30
# Numbers that stand for a missing value where they lie apart from all others.
STAND_INS = (-1.0, *(sign * (10.0**digits - 1.0) for digits in (1, 2, 3, 4, 5) for sign in (-1, 1)))
# Zeros that stand for missing values are at most this share of a column.
MOST_ZEROS = 0.1
# Rows and folds of the trees that look for leaks, and the share of the target's variation that a leak leaves at most.
LEAK_ROWS, FOLDS, LEFT = 2_000, 5, 0.01
# Leaves of such a tree: enough for a curve to 1e-4 of its range.
LEAVES = 128
# Labels that say that there is no value, beside those without a letter or digit.
UNKNOWN = ("unknown", "missing", "not available", "not known", "n.a.", "none")
# Columns of numbers of which each is compared with each, and how close to 1 the correlation of equal ones is.
MOST_COMPARED, SAME = 2_000, 1e-8
# A column is called mostly missing from this share on.
MOSTLY = 0.5


def constants(columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Columns that have one value in every row; a column with missing values is none, since gaps may say something."""
    for name, values in columns.items():
        if len(pd.unique(values)) == 1 and not pd.isna(values[0]):
            value = f"{values[0]:g}" if values.dtype.kind == "f" else values[0]
            yield Finding(
                f"column {name!r}: expected more than one value, got {value} in every row. Drop the column: "
                f"{flag('--drop', name)}.",
                "--drop",
                (name,),
                suggested=True,
            )


def twins(columns: Mapping[str, np.ndarray], kinds: Mapping[str, Kind]) -> Iterator[Finding]:
    """Columns that are equal to an earlier one in every row."""
    seen: dict[object, str] = {}
    for name, values in columns.items():
        key = (values + 0.0).tobytes() if kinds[name] == "numeric" else tuple(values)  # −0.0 + 0.0 is +0.0
        twin = seen.setdefault(key, name)
        if twin != name:
            yield Finding(
                f"column {name!r}: expected different columns, got {twin!r} and {name!r} equal in every row. Drop one: "
                f"{flag('--drop', name)}.",
                "--drop",
                (name,),
                suggested=True,
            )


def multiples(columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Columns of numbers that are a linear function of an earlier one, as in another unit."""
    names = [
        name
        for name, values in columns.items()
        if len(values) >= LEAST_ROWS and np.isfinite(values).all() and len(np.unique(values)) > 2
    ]
    if not 2 <= len(names) <= MOST_COMPARED:
        return
    correlations = np.abs(np.corrcoef([columns[name] for name in names]))
    for place, name in enumerate(names):
        same = np.flatnonzero(correlations[place, :place] > 1 - SAME)
        if len(same):
            yield Finding(
                f"column {name!r}: is {names[same[0]]!r} in another unit (their correlation is ±1). One of them is "
                f"enough: {flag('--drop', name)}.",
                "--drop",
                (name,),
                suggested=True,
            )


def row_number(name: str, values: np.ndarray) -> Finding | None:
    """A column that numbers the rows: it runs without a gap, or is different in each row and has a name such as id."""
    rows = len(values)
    if rows < LEAST_ROWS or not np.isfinite(values).all() or (values % 1 != 0).any() or len(np.unique(values)) < rows:
        return None
    running = values.max() - values.min() == rows - 1
    if not running and ID.fullmatch(name) is None:
        return None
    what = f"counts the rows from {values.min():.15g} on" if running else "has another whole number in every row"
    return Finding(
        f"column {name!r}: {what}, which says nothing of new rows. Leave it out: {flag('--drop', name)}.",
        "--drop",
        (name,),
        suggested=True,
    )


def code(name: str, values: np.ndarray, cells: Sequence[str], target: Target) -> Finding | None:
    """Whole numbers that may be labels: with leading zeros, or a few whose order the target does not follow.

    Args:
        name: of the column.
        values: numbers, shape (N,).
        cells: the different cells as they are written.
        target: of the rows.
    """
    option = ("--categorical", (name,))
    zeros = [cell for cell in cells if LEADING_ZERO.fullmatch(cell)]
    if zeros:
        return Finding(
            f"column {name!r}: is written with leading zeros, such as {zeros[0]!r}, as codes are. Take it for labels: "
            f"{flag(*_pair(option))}.",
            *option,
            suggested=True,
        )
    present = ~np.isnan(values)
    found, counts = np.unique(values[present], return_counts=True)
    few = 3 <= len(found) <= FEW and len(values) >= LEAST_ROWS and counts.mean() >= 2 * FEW
    if not few or (found % 1 != 0).any():
        return None
    what = f"column {name!r}: has {len(found)} different whole numbers, {listed(found.astype(int).tolist())}"
    outcomes = _outcomes(target)
    if outcomes is not None and _out_of_order(values[present], outcomes[present]):
        return Finding(
            f"{what}, and the target does not follow their order, so that they are probably codes. Take them for "
            f"labels: {flag(*_pair(option))}.",
            *option,
            suggested=True,
        )
    return Finding(f"{what}. If they are codes without an order: {flag(*_pair(option))}.", *option)


def stand_in(name: str, values: np.ndarray) -> Finding | None:
    """A number such as −999 that recurs and is farther from all others than these are from each other."""
    found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(found) < 4:
        return None
    for end, rest in ((0, found[1:]), (-1, found[:-1])):
        value, gap = found[end], np.abs(found[end] - rest).min()
        if value in STAND_INS and counts[end] > 1 and gap > rest[-1] - rest[0]:
            text = f"{value:.15g}"
            return Finding(
                f"column {name!r}: {counts[end]} cells are {text}, far from all others ({rest[0]:.6g} to "
                f"{rest[-1]:.6g}). If it stands for a missing value: {flag('--missing', text)}.",
                "--missing",
                (text,),
                suggested=value < 0,
            )
    return None


def zeros(name: str, values: np.ndarray) -> Finding | None:
    """A few zeros below numbers that lie together far above 0, as where 0 was typed for a value that is not known.

    All but one in a hundred of the others are at least half their median: amounts and counts, whose zeros are meant,
    reach lower.
    """
    present = values[~np.isnan(values)]
    others = present[present != 0]
    count = len(present) - len(others)
    if not 2 <= count <= MOST_ZEROS * len(present) or len(others) < LEAST_ROWS or len(np.unique(others)) <= FEW:
        return None
    lowest, low, middle = np.quantile(others, [0, 0.01, 0.5])
    if low < middle / 2 or lowest < middle / 4:
        return None
    option = ("--missing", f"{name}=0")
    return Finding(
        f"column {name!r}: {count} cells are 0, far below all others ({lowest:.6g} to {others.max():.6g}). If 0 stands "
        f"for a missing value: {flag(*option)}.",
        option[0],
        option[1:],
    )


def words_for_missing(columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Labels that probably stand for a missing value, each with the columns that have it."""
    found: dict[str, list[str]] = {}
    for name, values in columns.items():
        for label in pd.unique(values):
            if isinstance(label, str) and (not any(map(str.isalnum, label)) or label.casefold() in UNKNOWN):
                found.setdefault(label, []).append(name)
    for label, names in found.items():
        yield Finding(
            f"column{'s' * (len(names) > 1)} {listed(names)}: the label {label!r} probably stands for a missing value. "
            f"If so: {flag('--missing', label)}.",
            "--missing",
            (label,),
            suggested=True,
        )


def variants(name: str, labels: Sequence[str]) -> Finding | None:
    """Labels that differ in capitals or spaces alone."""
    alike = Counter(" ".join(label.casefold().split()) for label in labels)
    for plain, times in alike.items():
        if times > 1:
            both = [label for label in labels if " ".join(label.casefold().split()) == plain]
            return Finding(
                f"column {name!r}: the labels {listed(both)} differ in capitals or spaces alone. If they are one, "
                "write them alike."
            )
    return None


def gaps(columns: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Where values are missing: one line for all columns, and one for each column that is mostly missing."""
    shares = {name: float(pd.isna(values).mean()) for name, values in columns.items()}
    some = sorted((name for name, share in shares.items() if 0 < share < MOSTLY), key=lambda name: -shares[name])
    if some:
        first = [f"{name!r} {_percent(shares[name])}" for name in some[:LISTED]]
        more = f" and {len(some) - LISTED} more columns" if len(some) > LISTED else ""
        yield Finding(f"missing values: {', '.join(first)}{more}. Every model takes them.")
    for name, share in shares.items():
        if MOSTLY <= share < 1:
            yield Finding(
                f"column {name!r}: {_percent(share)} of its values are missing. If a gap says nothing: "
                f"{flag('--drop', name)}.",
                "--drop",
                (name,),
            )


def repeated_rows(columns: Mapping[str, np.ndarray], target: Target) -> Finding | None:
    """The number of rows that are equal to an earlier row in every column."""
    frame = pd.DataFrame({**columns, "": target.values})
    count = int(frame.duplicated().sum())
    if not count:
        return None
    return Finding(
        f"rows: {count} of {len(frame)} are equal to an earlier row in every column. If they are copies, remove them: "
        "held-out rows that were fitted too make scores too good."
    )


def leak(name: str, values: np.ndarray, kind: Kind, target: Target) -> Finding | None:
    """A column that predicts the target almost perfectly by itself: a tree does, in rows that were not used for it."""
    rows = len(values)
    if rows < LEAST_ROWS:
        return None
    some = np.arange(rows)
    if rows > LEAK_ROWS:
        some = np.sort(np.random.default_rng(0).choice(rows, LEAK_ROWS, replace=False))
    column = values if kind == "numeric" else pd.factorize(values)[0].astype(np.float64)
    column, y = column[some, None], target.values[some]
    classes = target.task == "classification"
    y = y if classes else rankdata(y)  # a few large amounts would drown all others
    # Trees of all columns would take minutes where these are very many
    first = looked_up(column[::2, 0], y[::2], column[1::2, 0], classes=classes)
    if _unexplained(y[1::2], first, classes=classes) > 5 * LEFT:
        return None
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    found = cross_val_predict(_tree(len(y), classes=classes), column, y, cv=folds)
    if _unexplained(y, found, classes=classes) > LEFT:
        return None
    what = "separates the classes" if classes else "gives the target"
    return Finding(
        f"column {name!r}: alone {what} almost perfectly in rows that were not used. Is it known when predictions are "
        f"made? If not, leave it out: {flag('--drop', name)}.",
        "--drop",
        (name,),
        suggested=True,
    )


def looked_up(x: np.ndarray, y: np.ndarray, new: np.ndarray, *, classes: bool) -> np.ndarray:
    """For each new number the mean, or the most frequent class, of y at the nearest number that was seen.

    These are the predictions of a tree with a leaf for each number; NaN counts as a number above all others.
    """
    seen, place = np.unique(x, return_inverse=True)
    nearest = np.searchsorted(0.5 * (seen[1:] + seen[:-1]), new, side="right")
    if not classes:
        return (np.bincount(place, y) / np.bincount(place))[nearest]
    codes, labels = pd.factorize(y, sort=True)  # of equally frequent classes the first, as in a tree
    counts = np.bincount(place * len(labels) + codes, minlength=len(seen) * len(labels))
    return np.asarray(labels)[counts.reshape(len(seen), -1).argmax(1)][nearest]


def _tree(rows: int, *, classes: bool) -> Any:
    if classes:
        return DecisionTreeClassifier(random_state=0)
    return DecisionTreeRegressor(max_leaf_nodes=LEAVES, min_samples_leaf=1 if rows < 500 else 3, random_state=0)


def _unexplained(truth: np.ndarray, found: np.ndarray, *, classes: bool) -> float:
    """Errors over those of the most frequent class, or squared errors over those of the mean; 1 where none can be."""
    if classes:
        errors, most = np.mean(truth != found), np.unique(truth, return_counts=True)[1].max() / len(truth)
        return float(errors / (1 - most)) if most < 1 else 1.0
    variance = np.var(truth)
    return float(np.mean((truth - found) ** 2) / variance) if variance > 0 else 1.0


def _outcomes(target: Target) -> np.ndarray | None:
    """Numbers whose mean an order of a feature would move one way, shape (N,); classes that are words have no such."""
    if target.values.dtype.kind in "iuf":
        return target.values.astype(np.float64)
    classes = np.unique(target.values)
    return (target.values == classes[0]).astype(np.float64) if len(classes) == 2 else None


def _out_of_order(values: np.ndarray, y: np.ndarray) -> bool:
    """Whether means of y by value beat the best monotone function of the value, by BIC."""
    found, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.bincount(place, y) / counts
    within = float(((y - means[place]) ** 2).sum())
    beside = min(
        float((counts * (means - isotonic_regression(means, sample_weight=counts, increasing=up)) ** 2).sum())
        for up in (True, False)
    )
    gain = len(y) * np.log1p(beside / max(within, 1e-12 * float((y**2).sum()), 1e-300))
    return bool(gain > (len(found) - 2) * np.log(len(y)))


def _pair(option: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    return (option[0], *option[1])


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
