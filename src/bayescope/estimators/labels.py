"""Targets as they came: the labels of a classifier as codes, the numbers of a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators.reading import detached
from bayescope.likelihoods import Bernoulli, Categorical, Likelihood


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of N rows.

    Attributes:
        classes: the classes, sorted; of several labels a row, their names.
        codes: the class of each row, shape (N, 1), or its labels as 0 and 1, shape (N, C).
        multilabel: whether a row has several labels.
        likelihood: p(y∣f).
        outputs: how many outputs f has.
    """

    classes: np.ndarray
    codes: np.ndarray
    multilabel: bool
    likelihood: Likelihood
    outputs: int

    @classmethod
    def of(cls, y: Any, weights: np.ndarray) -> Labels:
        """Reads labels.

        Args:
            y: N class labels, or N rows of 0 and 1.
            weights: of the rows, shape (N,): classes that only rows of weight 0 have do not count.

        Raises:
            InputError: if a label is missing, there is not one for each row, or there is one class alone.
            UnsupportedError: if rows have several labels that are not 0 and 1.
        """
        labels = _array(y, len(weights))
        strange = ~np.isfinite(labels) if labels.dtype.kind == "f" else pd.isna(labels)
        if strange.any():
            place = np.argwhere(strange)[0]
            raise InputError(f"y: expected a label in each row, got {labels[tuple(place)]} in row {place[0]}.")
        check_classification_targets(labels)
        kind = type_of_target(labels)
        if kind == "multilabel-indicator":
            names = np.asarray(getattr(y, "columns", np.arange(labels.shape[1])))
            codes = Bernoulli().targets(labels.astype(np.float64), labels.shape[1]).numpy()
            return cls(names, codes, True, Bernoulli(), labels.shape[1])
        if kind.endswith("multioutput"):
            raise UnsupportedError(f"y: expected one label a row, or several that are 0 and 1, got {kind} labels.")
        flat = column_or_1d(labels, warn=True)
        counted = weights > 0
        codes, classes = pd.factorize(flat[counted], sort=True)
        if len(classes) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {classes[0]}.")
        placed = np.zeros((len(flat), 1))
        placed[counted, 0] = codes
        likelihood, outputs = (Bernoulli(), 1) if len(classes) == 2 else (Categorical(), len(classes))
        return cls(np.asarray(classes).astype(flat.dtype, copy=False), placed, False, likelihood, outputs)


def numbers(y: Any, rows: int) -> np.ndarray:
    """The numbers of a regression, shape (N,) or (N, D).

    Raises:
        InputError: if there is not one for each row, or one is not finite.
        InputTypeError: if they are no numbers.
    """
    return checks.float64("y", _array(y, rows)).numpy()


def _array(y: Any, rows: int) -> np.ndarray:
    """Targets as an array of one or two dimensions, a row for each row of the table."""
    y = detached(y)
    dense = y.toarray() if hasattr(y, "toarray") else y
    array: np.ndarray = check_array(dense, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
    if array.shape[0] != rows:
        raise InputError(f"y: expected {rows} targets, one for each row of X, got {array.shape[0]}.")
    return array
