"""Targets as they came: the labels of a classifier as codes, the numbers of a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
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
            InputError: if a label is missing, there is not one for each row, or there is one class alone: of several
                labels a row, of any of them.
            UnsupportedError: if rows have several labels that are not 0 and 1.
        """
        labels = _array(y, len(weights))
        _refuse_gaps("a label in each row", labels, y)
        _check_classes(labels)
        kind = type_of_target(labels)
        if kind == "multilabel-indicator":
            names = np.asarray(getattr(y, "columns", np.arange(labels.shape[1])))
            codes = Bernoulli().targets(labels.astype(np.float64), labels.shape[1]).numpy()
            _refuse_constant(codes[weights > 0], names)
            return cls(names, codes, True, Bernoulli(), labels.shape[1])
        if kind.endswith("multioutput"):
            raise UnsupportedError(f"y: expected one label a row, or several that are 0 and 1, got {kind} labels.")
        flat = column_or_1d(labels, warn=True)
        counted = weights > 0
        classes, codes = factorized(flat[counted])
        if len(classes) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {classes[0]}.")
        placed = np.zeros((len(flat), 1))
        placed[counted, 0] = codes
        likelihood, outputs = (Bernoulli(), 1) if len(classes) == 2 else (Categorical(), len(classes))
        return cls(classes, placed, False, likelihood, outputs)

    @property
    def class_codes(self) -> np.ndarray:
        """The class of each row, shape (N,), where it has one: 0…K−1, and 0 for rows of weight 0."""
        return self.codes[:, 0].astype(np.int64)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several: the classes."""
        return () if self.outputs == 1 and not self.multilabel else tuple(map(str, self.classes.tolist()))

    @property
    def unit(self) -> str:
        """What f is measured in, as effects tell it."""
        if self.multilabel:
            return "logit"
        return f"logit of {self.classes.tolist()[1]!r}" if self.outputs == 1 else "logit, classes centred"


def numbers(y: Any, rows: int) -> np.ndarray:
    """The numbers of a regression, shape (N,) or (N, D).

    Raises:
        InputError: if there is not one for each row, or one is not finite.
        InputTypeError: if they are no numbers.
    """
    array = _array(y, rows)
    _refuse_gaps("finite numbers", array, y)
    return checks.float64("y", array).numpy()


def one_number(y: Any, rows: int) -> np.ndarray:
    """The numbers of a regression with one output, shape (N,).

    Raises:
        InputError: if there is not one for each row, or one is not finite.
        InputTypeError: if they are no numbers.
    """
    return np.asarray(column_or_1d(numbers(y, rows), warn=True))


def one_class(y: Any, rows: int) -> np.ndarray:
    """The class label of each row, shape (N,).

    Raises:
        InputError: if there is not one for each row, or one is missing.
    """
    labels = _array(y, rows)
    _refuse_gaps("a label in each row", labels, y)
    flat = column_or_1d(labels, warn=True)
    _check_classes(flat)
    return np.asarray(flat)


def class_codes(y: Any, rows: int, classes: np.ndarray) -> np.ndarray:
    """The code of each row's label, shape (N,).

    Raises:
        InputError: if there is not one for each row, or one is none of the classes.
    """
    labels = one_class(y, rows)
    codes = pd.Index(_native(classes)).get_indexer(_native(labels))
    if (codes < 0).any():
        stranger = labels[int(np.argmin(codes))]
        raise InputError(f"y: expected labels among the fitted classes {classes.tolist()}, got {stranger!r}.")
    return np.asarray(codes)


def _check_classes(labels: np.ndarray) -> None:
    """scikit-learn's check, which fails at labels that have no order.

    Raises:
        InputTypeError: then.
    """
    try:
        check_classification_targets(labels)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels.flat})
        raise InputTypeError(
            f"y: expected labels that can be sorted, got {' and '.join(kinds)} together. Give them one type, "
            "such as y.astype(str)."
        ) from None


def factorized(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that occur, sorted, and the code of each row's, shape (N,)."""
    codes, classes = pd.factorize(_native(labels), sort=True)
    return np.asarray(classes).astype(labels.dtype, copy=False), codes


def _native(labels: np.ndarray) -> np.ndarray:
    """Labels in the processor's byte order, which is the only one that pandas reads."""
    return labels.astype(labels.dtype.newbyteorder("="), copy=False)


def decided(probs: np.ndarray, classes: np.ndarray | None, abstain: float | None) -> np.ndarray:
    """What a classifier says of each row.

    Args:
        probs: p(y = k∣x, data), shape (N, K), or that of each of C labels, shape (N, C).
        classes: the K classes; ``None`` for labels that a row may have together.
        abstain: a probability: ``None`` stands for a decision that is less probable than that.

    Returns:
        Classes, shape (N,), or labels of 0 and 1, shape (N, C); an array of objects where it may abstain.

    Raises:
        InputError: if ``abstain`` is not between 0 and 1.
    """
    if classes is None:
        best, certainty = np.asarray(probs > 0.5, dtype=np.int64), np.maximum(probs, 1.0 - probs)
    else:
        best, certainty = classes[probs.argmax(axis=1)], probs.max(axis=1)
    if abstain is None:
        return best
    least = checks.fraction("abstain", abstain)
    answer = np.empty(best.shape, dtype=object)
    answer[:] = best.tolist()
    answer[certainty < least] = None
    return answer


def column_names(y: Any, count: int) -> list[str]:
    """The names of the columns of y as it has them, else y, or y0, y1, … where there are several."""
    told = getattr(y, "column_names", getattr(y, "columns", None))
    names = [getattr(y, "name", None)] if told is None else list(told)
    if len(names) == count and all(isinstance(name, str) and name for name in names):
        return list(map(str, names))
    return ["y"] if count == 1 else [f"y{place}" for place in range(count)]


def _refuse_gaps(expected: str, array: np.ndarray, y: Any) -> None:
    """Refuses what is missing or infinite, by its row and, where there are several, its column."""
    strange = ~np.isfinite(array) if array.dtype.kind == "f" else pd.isna(array)
    if strange.any():
        row, *column = np.argwhere(strange)[0].tolist()
        where = f" of column {column_names(y, array.shape[1])[column[0]]!r}" if column else ""
        raise InputError(f"y: expected {expected}, got {array[(row, *column)]} in row {row}{where}.")


def _refuse_constant(codes: np.ndarray, names: np.ndarray) -> None:
    """Refuses a label that all rows have, or none: nothing tells it from the other."""
    constant = (codes == codes[0]).all(axis=0)
    if constant.any():
        place = int(np.argmax(constant))
        raise InputError(
            f"y: expected both 0 and 1 in each column of labels, got {codes[0, place]:g} in all rows of column "
            f"{names.tolist()[place]!r}. Leave the column out: no row tells 0 from 1."
        )


def _array(y: Any, rows: int) -> np.ndarray:
    """Targets as an array of one or two dimensions, a row for each row of the table."""
    y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    dense = y.toarray() if hasattr(y, "toarray") else y
    array: np.ndarray = check_array(dense, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
    if array.shape[0] != rows:
        raise InputError(f"y: expected {rows} targets, one for each row of X, got {array.shape[0]}.")
    return array
