"""the weights of classes, and what a summary says of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescope import checks
from bayescope.errors import InputTypeError, OptionError


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


def weight_notes(total: float, rows: int) -> dict[str, str]:
    """What a summary says of the rows' weights."""
    return {"rows": f"{rows}, which count as {total:.6g} by their weights"}


def class_notes(class_weight: Any, classes: Sequence[Any], factors: np.ndarray) -> dict[str, str]:
    """What a summary says of ``class_weight``."""
    if class_weight is None:
        return {}
    each = ", ".join(f"{label} × {factor:.4g}" for label, factor in zip(classes, factors.tolist(), strict=True))
    return {"class weights": f"{each}; probabilities are those of the data reweighted so"}
