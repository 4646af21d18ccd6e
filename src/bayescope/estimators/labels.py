"""Targets in memory as they came: labels of a classifier, ordered classes, numbers of a regression; and decisions."""

from __future__ import annotations

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, column_or_1d
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.likelihoods import Bernoulli, LabelError, Likelihood
from bayescope.likelihoods.censoring import INTERVAL, are_intervals, refuse_no_event

# A second column of amounts with so few whole numbers in more than so many rows has the codes of events.
_FEW_NUMBERS, _FEW_ROWS = 3, 9


def numbers(y: object, rows: int) -> np.ndarray:
    """The numbers of a regression, shape (N,) or (N, D).

    Raises:
        InputError: if there is not one for each row, or one is not finite.
        InputTypeError: if they are no numbers.
    """
    array = _array(y, rows)
    _refuse_gaps("finite numbers", array, y)
    return checks.float64("y", array).numpy()


def numbers_for(likelihood: Likelihood, name: object, y: object, rows: int) -> np.ndarray:
    """The targets of a regression that a likelihood takes, as `outcomes_of` reads them.

    Args:
        likelihood: p(y∣f).
        name: y as the caller gave it: values, or the name of their column.
        y: N numbers, N rows of several, or what belongs to one number in each row, such as what `Censored` returns.
        rows: N.

    Raises:
        InputError: if there is not one for each row, one is outside the likelihood's domain, or no row has an event.
        InputTypeError: if they are no numbers.
    """
    array = _array(y, rows)
    outputs, flat = outcomes_of(likelihood, array)
    if flat and array.ndim == 2 and likelihood.domain.joined == INTERVAL:
        refuse_no_event(likelihood.targets(array, 1))
        return array.astype(np.float64, copy=False)
    if array.shape[1:] == (INTERVAL,) and array.dtype.kind == "f" and np.isinf(array).any() and are_intervals(array):
        raise UnsupportedError(
            f"likelihood: expected 'weibull', 'log_normal' or another one of lifetimes for a y of bs.Censored, got "
            f"{likelihood.name!r}. Name one of them."
        )
    values = numbers(y, rows)
    names = column_names(name, 1 if values.ndim == 1 else values.shape[1])
    if likelihood.domain.joined == INTERVAL and outputs == 2:
        _refuse_flags(np.unique(values[:, 1]), names[1], rows if likelihood.domain.low == 0 else 0)
    try:
        likelihood.targets(values, outputs)
    except LabelError as error:
        raise error.within(names) from None
    return values


def _refuse_flags(found: np.ndarray, name: str, amounts: int) -> None:
    """Refuses what are events and no amounts: 0 and 1, or at most three whole numbers in ``amounts`` rows."""
    coded = amounts > _FEW_ROWS and len(found) <= _FEW_NUMBERS and (found == found.round()).all()
    if coded or np.isin(found, (0.0, 1.0)).all():
        got = " and ".join(f"{each:g}" for each in found)
        raise InputError(
            f"y: expected a column of numbers for each outcome, got only {got} in {name!r}. Give times of which some "
            "are censored as bs.Censored(time, event), with 1 for an event and 0 for none."
        )


def outcomes_of(likelihood: Likelihood, targets: np.ndarray | None) -> tuple[int, bool]:
    """How many outcomes a row of targets has, and whether answers are one number a row, without columns.

    Args:
        likelihood: p(y∣f).
        targets: as `numbers_for` returns them; ``None`` for a column on disk.
    """
    if targets is None or targets.ndim == 1:
        return 1, True
    columns = targets.shape[1]
    if columns != likelihood.domain.joined or (columns == INTERVAL and not are_intervals(targets)):
        return columns, False
    return 1, True


def ordered_categories(y: object) -> np.ndarray | None:
    """The categories of an ordered categorical of any library, in their order; ``None`` for other targets."""
    series = nw.from_native(pd.Series(y) if isinstance(y, pd.Categorical) else y, series_only=True, pass_through=True)
    if not isinstance(series, nw.Series) or series.dtype != nw.Enum:
        return None
    return np.asarray(series.cat.get_categories().to_list())


def ordered_labels(name: object, y: object, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The class of each row, shape (N,): a number, or its position among the categories that come with it.

    Args:
        name: y as the caller gave it: values, or the name of their column.
        y: numbers, or ordered categories.
        rows: N.

    Raises:
        InputError: if there is not one for each row, or one is missing.
        InputTypeError: if they are text without an order.
    """
    array, categories = _array(y, rows), ordered_categories(y)
    _refuse_gaps("a class in each row", array, y)
    if categories is not None:
        array = pd.Index(categories).get_indexer(pd.Index(array))
    flat: np.ndarray = column_or_1d(array, warn=True)
    if flat.dtype.kind not in "biuf":
        labels = flat.tolist()
        text = next((row for row, label in enumerate(labels) if not isinstance(label, int | float)), None)
        if text is not None:
            column = column_names(name, 1)[0]
            raise InputTypeError(
                f"y: expected ordered classes, got {labels[text]!r} in row {text} of column {column!r}, text without "
                "an order. Give an ordered categorical: pd.Categorical(y, categories=[...], ordered=True)."
            )
        flat = flat.astype(np.float64)
    return flat, categories


def class_labels(y: object, rows: int) -> np.ndarray:
    """The labels of each row: its class, shape (N,), or 0 and 1 for each of several labels, shape (N, C).

    Raises:
        InputError: if there is not one for each row, or one is missing.
        UnsupportedError: if rows have several labels that are not 0 and 1.
    """
    labels = _array(y, rows)
    _refuse_gaps("a label in each row", labels, y)
    _check_classes(labels)
    kind = type_of_target(labels)
    if kind == "multilabel-indicator":
        return Bernoulli().targets(labels.astype(np.float64), labels.shape[1]).numpy()
    if kind.endswith("multioutput"):
        raise UnsupportedError(f"y: expected one label per row, or several that are 0 and 1, got {kind} labels.")
    return np.asarray(column_or_1d(labels, warn=True))


def one_class(y: object, rows: int) -> np.ndarray:
    """The class label of each row, shape (N,).

    Raises:
        InputError: if there is not one for each row, or one is missing.
    """
    labels = _array(y, rows)
    _refuse_gaps("a label in each row", labels, y)
    flat = column_or_1d(labels, warn=True)
    _check_classes(flat)
    return np.asarray(flat)


def class_codes(y: object, rows: int, classes: np.ndarray) -> np.ndarray:
    """The code of each row's label, shape (N,).

    Raises:
        InputError: if there is not one for each row, or one is not one of the classes.
    """
    labels = one_class(y, rows)
    codes = pd.Index(_native(classes)).get_indexer(_native(labels))
    if (codes < 0).any():
        stranger = labels[[int(np.argmin(codes))]].tolist()[0]
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


def column_names(y: object, count: int) -> list[str]:
    """The names of the columns of y as it has them, else y, or y0, y1, … where there are several."""
    if isinstance(y, str):
        return [y]
    given = getattr(y, "column_names", getattr(y, "columns", None))
    names = [getattr(y, "name", None)] if given is None else list(given)
    if len(names) == count and all(isinstance(name, str) and name for name in names):
        return list(map(str, names))
    return ["y"] if count == 1 else [f"y{place}" for place in range(count)]


def _refuse_gaps(expected: str, array: np.ndarray, y: object) -> None:
    """Refuses what is missing or infinite, by its row and, where there are several, its column."""
    strange = ~np.isfinite(array) if array.dtype.kind == "f" else pd.isna(array)
    if strange.any():
        row, *column = np.argwhere(strange)[0].tolist()
        where = f" of column {column_names(y, array.shape[1])[column[0]]!r}" if column else ""
        raise InputError(
            f"y: expected {expected}, got {array[(row, *column)]} in row {row}{where}. Leave such rows out."
        )


def _array(y: object, rows: int) -> np.ndarray:
    """Targets as an array of one or two dimensions, a row for each row of the table."""
    y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    dense = y.toarray() if hasattr(y, "toarray") else y
    array: np.ndarray = check_array(dense, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
    if array.shape[0] != rows:
        raise InputError(f"y: expected {rows} targets, one for each row of X, got {array.shape[0]}.")
    return array
