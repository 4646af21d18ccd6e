"""From a caller's table to the numbers that a linear model sees: encoded and scaled, then mapped to features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bayescope.errors import InputError
from bayescope.estimators.features import feature_map, feature_names
from bayescope.storage import stored
from bayescope.tables.preprocessing import Preprocessing, Table

# So many rows tell the features' scales well enough for a remark.
SCALE_ROWS = 10_000
# One precision for all weights means very different things where the features' scales differ by more than this.
WIDE_SPAN = 10.0


@stored("input_map")
@final
@dataclass(frozen=True)
class InputMap:
    """A fitted map from tables to the model's inputs.

    Attributes:
        preprocessing: makes numbers of the columns.
        transformer: a fitted scikit-learn transformer, or ``None``.
        names: of the model's inputs.
        scales: the smallest and largest standard deviation among the model's inputs, constant ones left out.
    """

    preprocessing: Preprocessing
    transformer: Any | None
    names: tuple[str, ...]
    scales: tuple[float, float]

    @classmethod
    def fit(
        cls,
        table: Table,
        targets: np.ndarray | None = None,
        *,
        standardize: bool,
        features: Any,
        random_state: Any,
        encoding: Any = "one_hot",
        weights: np.ndarray | None = None,
    ) -> tuple[InputMap, np.ndarray]:
        """Fits the map to a table as it was read, and returns it with the mapped table.

        Args:
            table: columns, or finite numbers, which are not copied if nothing is to be done to them.
            targets: class codes or numbers, for labels that are encoded by these.
            standardize: whether columns of numbers are centred and scaled.
            features: the transformer, as `feature_map` takes it.
            random_state: of a named transformer.
            encoding: of labels, as `Preprocessing` takes it.
            weights: how often each row counts.
        """
        preprocessing, mapped = Preprocessing.fit(
            table, targets, scaling="standard" if standardize else None, encoding=encoding, weights=weights
        )
        return cls.of(preprocessing, feature_map(features, random_state), mapped)

    @classmethod
    def of(
        cls, preprocessing: Preprocessing, transformer: Any | None, numbers: np.ndarray
    ) -> tuple[InputMap, np.ndarray]:
        """Fits a transformer to the preprocessed numbers of rows, or of some of them, and returns these mapped."""
        mapped = numbers if transformer is None else _dense(transformer.fit(numbers).transform(numbers))
        some = mapped[:: max(1, mapped.shape[0] // SCALE_ROWS)]
        sds = some.std(axis=0)
        varying = sds[sds > 0]
        scales = (float(varying.min()), float(varying.max())) if varying.size else (0.0, 0.0)
        names = feature_names(transformer, preprocessing.names, mapped.shape[1])
        return cls(preprocessing, transformer, names, scales), mapped

    def __call__(self, table: Table) -> np.ndarray:
        """The model's inputs of a table as it was read, shape (N, D)."""
        numbers = self.preprocessing(table)
        if self.transformer is None:
            return numbers
        if not len(numbers):  # which scikit-learn's transformers refuse
            return np.empty((0, len(self.names)))
        return _dense(self.transformer.transform(numbers))

    def notes(self) -> dict[str, str]:
        """What the inputs' units are, for a summary: a prior has units."""
        notes = self.preprocessing.notes()
        if self.transformer is not None:
            notes["inputs"] = f"{notes.get('inputs', 'labels alone')}, then mapped by {self.transformer}"
        low, high = self.scales
        if low > 0 and high / low > WIDE_SPAN:
            notes["scales"] = (
                f"the inputs' standard deviations span {low:.3g} to {high:.3g}, so that one prior precision for all "
                "weights holds some back far more than others; consider standardize=True or one precision a feature"
            )
        return notes


def _dense(table: Any) -> np.ndarray:
    dense = table.toarray() if hasattr(table, "toarray") else table
    array = np.asarray(dense, dtype=np.float64)
    if array.ndim != 2:
        raise InputError(f"features: expected a transformer to a table of shape (N, D), got shape {array.shape}.")
    return array
