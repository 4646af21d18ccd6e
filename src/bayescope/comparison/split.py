"""The data of a comparison: checked, and split into training and test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.tables import read_table

# The temperature baseline fits on folds of the training rows, each of which needs every class.
LEAST_TRAINING_ROWS = 2


@final
@dataclass(frozen=True)
class Split:
    """Training and test rows of one table, labels as codes 0…K−1.

    Attributes:
        X_train: the training rows.
        X_test: the test rows.
        y_train: their classes, shape (N_train,).
        y_test: their classes, shape (N_test,).
        labels: the K labels as given, sorted.
        classes: the K labels for readers: with the name of y where it has one, as in "malignant = 1".
    """

    X_train: pd.DataFrame
    X_test: pd.DataFrame
    y_train: np.ndarray
    y_test: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def split(X: Any, y: Any, *, test_size: float, random_state: int) -> Split:
    """Splits a table into training and test rows with the classes in proportion.

    Args:
        X: features, shape (N, D): a DataFrame, whose columns may be numbers or labels with gaps, an array or a tensor.
        y: N class labels of any sortable type.
        test_size: the share of the rows to test on, in (0, 1).
        random_state: the seed of the split.

    Raises:
        InputError: if X is no table or has infinite numbers, y has not one label a row, or a class has too few rows for
            both parts.
        InputTypeError: if a column holds what is neither a number nor a label, such as dates.
    """
    table = X if isinstance(X, pd.DataFrame) else _named(checks.float64("X", X).numpy())
    read_table(table)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(table):
        raise InputError(f"y: expected one label for each of the {len(table)} rows of X, got shape {labels.shape}.")
    if pd.isna(labels).any():
        raise InputError(
            f"y: expected a label in every row, got none in row {int(np.argmax(pd.isna(labels)))}. Drop it."
        )
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputTypeError(f"y: expected labels of one type, so that they can be sorted, got {error}.") from None
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got {len(classes)} ({_named_classes(classes)}).")
    train, test = _rows(codes, classes, checks.fraction("test_size", test_size), random_state)
    name = getattr(y, "name", None)  # of a pandas Series
    names = tuple(str(label) if name is None else f"{name} = {label}" for label in classes)
    return Split(table.iloc[train], table.iloc[test], codes[train], codes[test], classes, names)


def _named(table: np.ndarray) -> pd.DataFrame:
    if table.ndim != 2:
        raise InputError(f"X: expected shape (N, D), got {table.shape}.")
    return pd.DataFrame(table, columns=[f"x{column}" for column in range(table.shape[1])])


def _rows(codes: np.ndarray, classes: np.ndarray, test_size: float, random_state: int) -> tuple[np.ndarray, np.ndarray]:
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
