"""How often rows count: the caller's weights, those of the classes, and what they leave of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.estimators.labels import Labels
from bayescope.tables.preprocessing import Table, taken


def row_count(table: Table) -> int:
    """The number of rows of a table."""
    return len(table) if isinstance(table, np.ndarray) else len(table[0].values)


def row_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Weights of the rows, shape (N,), 1 by default.

    Raises:
        InputError: if there is not one for each row, one is negative or not finite, or all are 0.
    """
    if sample_weight is None:
        return np.ones(rows)
    weights = checks.float64("sample_weight", sample_weight).numpy()
    if weights.shape != (rows,):
        raise InputError(f"sample_weight: expected one number for each of the {rows} rows, got shape {weights.shape}.")
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise InputError(f"sample_weight: expected no negative weights, got {weights[row]:g} in row {row}.")
    if not weights.any():
        # In words that scikit-learn's check_estimator looks for.
        raise InputError("sample_weight: Sample weights must contain at least one non-zero number, got zeros alone.")
    return weights


def counted(table: Table, y: np.ndarray, weights: np.ndarray) -> tuple[Table, np.ndarray, np.ndarray | None]:
    """The rows of positive weight, and their weights: ``None`` where all count once."""
    if not weights.all():
        some = weights > 0
        table, y, weights = taken(table, some), y[some], weights[some]
    return table, y, None if (weights == 1.0).all() else weights


def class_factors(
    class_weight: Any, classes: Sequence[Any], codes: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    """How much more a row counts by its class, shape (K,).

    "balanced" is scikit-learn's N/(K N_k), with the sums of the rows' weights for N and N_k, so that all classes count
    alike and all rows as much as before.

    Args:
        class_weight: "balanced", a number for each class that is not to have 1, or ``None``.
        classes: the K labels.
        codes: of the rows, 0…K−1, shape (N,).
        weights: of the rows, shape (N,); 1 by default.

    Raises:
        OptionError: if it is another word, or names a class that does not occur.
        InputTypeError: if it is neither a word nor a dict.
        InputError: if a number is not positive.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str):
        checks.choice("class_weight", class_weight, ["balanced"])
        counts = np.bincount(codes, weights, minlength=len(classes))
        return np.asarray(counts.sum() / (len(classes) * counts))
    if not isinstance(class_weight, Mapping):
        raise InputTypeError(
            f"class_weight: expected None, 'balanced' or a dict from classes to numbers, got {class_weight!r}."
        )
    factors, known = np.ones(len(classes)), list(classes)
    for label, factor in class_weight.items():
        if label not in known:
            raise OptionError.unknown("class_weight", label, known)
        factors[known.index(label)] = checks.positive_number(f"class_weight of {label!r}", factor)
    return factors


def weight_notes(weights: np.ndarray | None, rows: int) -> dict[str, str]:
    """What a summary says of weights, where there are some."""
    return {} if weights is None else total_notes(float(weights.sum()), rows)


def total_notes(total: float, rows: int) -> dict[str, str]:
    """The same from the sum of the weights."""
    return {"rows": f"{rows}, which count as {total:.6g} by their weights"}


def class_notes(class_weight: Any, classes: Sequence[Any], factors: np.ndarray) -> dict[str, str]:
    """What a summary says of ``class_weight``."""
    if class_weight is None:
        return {}
    each = ", ".join(f"{label} × {factor:.4g}" for label, factor in zip(classes, factors.tolist(), strict=True))
    return {"class weights": f"{each}; probabilities are those of the data reweighted so"}


def class_weighted(class_weight: Any, labels: Labels, weights: np.ndarray) -> tuple[np.ndarray, dict[str, str]]:
    """The rows' weights times their classes', and what a summary says of these.

    Raises:
        UnsupportedError: if rows have several labels.
        InputError: as `class_factors` does.
    """
    if class_weight is None:
        return weights, {}
    if labels.multilabel:
        raise UnsupportedError(
            f"class_weight: expected None for several labels a row, which have no one class, got {class_weight!r}. Use "
            "sample_weight."
        )
    codes, classes = labels.class_codes, labels.classes.tolist()
    factors = class_factors(class_weight, classes, codes, weights)
    return weights * factors[codes], class_notes(class_weight, classes, factors)
