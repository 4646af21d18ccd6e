"""Training and test rows of one table, for classes and for numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators.labels import numbers, ordered_categories
from bayescope.likelihoods.censoring import INTERVAL, are_intervals
from bayescope.tables import read_table

Kind = Literal["classes", "numbers"]

# Baselines are judged on folds of the training rows, each of which needs every class.
LEAST_TRAINING_ROWS = 2


@final
@dataclass(frozen=True)
class TrainTestSplit:
    """Training and test rows of one table, labels as codes 0…K−1.

    Attributes:
        kind: what y is: "classes" or "numbers".
        X_train: the training rows.
        X_test: the test rows.
        y_train: their classes, or their numbers, shape (N_train,).
        y_test: those of the test rows, shape (N_test,).
        target: the name of y.
        labels: the K labels as given, sorted; their codes if y is an ordered categorical; empty for numbers.
        classes: the K labels for readers: with the name of y where it has one, as in "malignant = 1".
        ordered: whether the classes are in an order.
    """

    kind: Kind
    X_train: pd.DataFrame
    X_test: pd.DataFrame
    y_train: np.ndarray
    y_test: np.ndarray
    target: str
    labels: np.ndarray
    classes: tuple[str, ...]
    ordered: bool

    @property
    def targets(self) -> np.ndarray:
        """The training rows' outcomes as estimators take them, shape (N_train,)."""
        return self.labels[self.y_train] if self.kind == "classes" else self.y_train


def split(
    X: object, y: object, kind: Kind, *, test_size: float, random_state: int, ordered: bool = False
) -> TrainTestSplit:
    """Splits a table into training and test rows, classes in proportion.

    Args:
        X: features, shape (N, D): a DataFrame, whose columns may be numbers or labels with gaps, an array or a tensor.
        y: N class labels of any sortable type, or N numbers.
        kind: which of the two.
        test_size: the share of the rows to test on, in (0, 1).
        random_state: the seed of the split.
        ordered: whether classes are in an order; those of an ordered categorical are.

    Raises:
        InputError: if X is no table or has infinite numbers, y has not one outcome a row, or there are too few rows, or
            too few of a class, for both parts.
        InputTypeError: if a column holds what is neither a number nor a label, such as dates.
    """
    table = X if isinstance(X, pd.DataFrame) else _named(checks.float64("X", X).numpy())
    read_table(table)
    outcomes, declared = np.asarray(y) if kind == "classes" else _numbers(y, len(table)), ordered_categories(y)
    if outcomes.ndim != 1 or len(outcomes) != len(table):
        noun = "label" if kind == "classes" else "number"
        advice = " Compare each column by itself." if outcomes.ndim == 2 else ""
        raise InputError(
            f"y: expected one {noun} for each of the {len(table)} rows of X, got shape {outcomes.shape}.{advice}"
        )
    if pd.isna(outcomes).any():
        missing = int(np.argmax(pd.isna(outcomes)))
        raise InputError(f"y: expected a label in every row, got none in row {missing}. Drop it.")
    share = checks.fraction("test_size", test_size)
    name = getattr(y, "name", None)  # of a pandas Series
    names: tuple[str, ...] = ()
    if kind == "numbers":
        train, test = _rows_of_numbers(outcomes, share, random_state)
        codes, classes = outcomes, np.empty(0)
    else:
        classes, codes = _coded(outcomes) if declared is None else _coded(pd.Index(declared).get_indexer(outcomes))
        train, test = _split_rows(codes, classes, share, random_state)
        known = classes if declared is None else np.asarray(declared)[classes]
        names = tuple(str(label) if name is None else f"{name} = {label}" for label in known)
    target = "y" if name is None else str(name)
    return TrainTestSplit(
        kind, table.iloc[train], table.iloc[test], codes[train], codes[test], target, classes, names,
        ordered or (kind == "classes" and declared is not None),
    )  # fmt: skip


def _numbers(y: object, rows: int) -> np.ndarray:
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == INTERVAL and are_intervals(given):
        raise UnsupportedError(
            "y: expected exact numbers, which RMSE, CRPS and coverage are of, got times that may be censored. Fit each "
            "likelihood, and compare log_evidence_ or predict_distribution(X).log_prob(y).mean()."
        )
    return numbers(y, rows)


def _named(table: np.ndarray) -> pd.DataFrame:
    if table.ndim != 2:
        raise InputError(f"X: expected shape (N, D), got {table.shape}.")
    return pd.DataFrame(table, columns=[f"x{column}" for column in range(table.shape[1])])


def _coded(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputTypeError(f"y: expected labels of one type, so that they can be sorted, got {error}.") from None
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got {len(classes)} ({_named_classes(classes)}).")
    return classes, codes


def _rows_of_numbers(y: np.ndarray, test_size: float, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    rows, tested = len(y), int(np.ceil(test_size * len(y)))
    if rows - tested >= LEAST_TRAINING_ROWS:
        train, test = train_test_split(np.arange(rows), test_size=test_size, random_state=random_state)
        if np.ptp(y[train]) > 0:
            return np.sort(train), np.sort(test)
    raise InputError(
        f"split: expected at least {LEAST_TRAINING_ROWS} training rows, with numbers y that differ, and 1 test row, "
        f"got {rows} rows for a test size of {test_size:g}. Add rows, or change the test size."
    )


def _split_rows(
    codes: np.ndarray, classes: np.ndarray, test_size: float, random_state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Row indices of both parts, once it is sure that each part has each class."""
    counts = np.bincount(codes)
    tested, rows, rarest = int(np.ceil(test_size * len(codes))), len(codes), int(counts.argmin())
    advice = "Add rows of it, merge it with another class, or change the test size."
    if min(tested, rows - tested) >= len(classes) and counts.min() >= LEAST_TRAINING_ROWS + 1:
        train, test = train_test_split(np.arange(rows), test_size=test_size, stratify=codes, random_state=random_state)
        least_train = np.bincount(codes[train], minlength=len(classes)).min()
        least_test = np.bincount(codes[test], minlength=len(classes)).min()
        if least_train >= LEAST_TRAINING_ROWS and least_test >= 1:
            return np.sort(train), np.sort(test)
    raise InputError(
        f"split: expected at least {LEAST_TRAINING_ROWS} training rows and 1 test row of each class, got {rows} rows "
        f"with {counts.min()} of class {classes[rarest]} for a test size of {test_size:g}. {advice}"
    )


def _named_classes(classes: np.ndarray) -> str:
    return ", ".join(map(str, classes)) or "no rows"
