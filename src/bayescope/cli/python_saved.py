"""Models that Python saved: their files say nothing of a table, and the models themselves say enough to predict one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sklearn.base import is_classifier

from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.source import Kind
from bayescope.errors import InputError


def table_of(path: str, model: Any) -> FittedTable:
    """What tables a model can predict, by what it learnt of its columns.

    Args:
        path: the model's file, for messages.
        model: a fitted estimator.

    Raises:
        InputError: if it was fitted to columns without names.
    """
    if not hasattr(model, "feature_names_in_"):
        raise InputError(
            f"{path}: expected a model that was fitted to named columns, got one of columns without names. Fit it to a "
            "DataFrame, or with `bayescope fit`."
        )
    names = [str(name) for name in model.feature_names_in_]
    categories = {encoding.name: encoding.categories for encoding in _label_encodings(model)}
    kinds: dict[str, Kind] = {name: "labels" if name in categories else "numeric" for name in names}
    values = {name: {str(label): label for label in labels} for name, labels in categories.items()}
    return FittedTable(
        kinds=kinds,
        labels={name: list(written) for name, written in values.items()},
        target="",
        task="classification" if is_classifier(model) else "regression",
        values={
            name: written for name, written in values.items() if any(not isinstance(v, str) for v in written.values())
        },
    )


def _label_encodings(model: Any) -> Iterable[Any]:
    """What the model knows of its columns of labels: additive models encode them themselves, others preprocess."""
    if hasattr(model, "additive_"):
        return [feature for feature in model.additive_.encoding.features if feature.kind == "categorical"]
    preprocessing = model.preprocessing_ if hasattr(model, "preprocessing_") else model._inputs.preprocessing
    labels: Iterable[Any] = preprocessing.labels
    return labels
