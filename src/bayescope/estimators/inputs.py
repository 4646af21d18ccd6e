"""From a caller's table to the numbers that a linear model sees: standardised if asked for, then mapped to features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from sklearn.preprocessing import StandardScaler

from bayescope.errors import InputError
from bayescope.estimators.features import feature_map, feature_names

# So many rows tell the features' scales well enough for a remark.
SCALE_ROWS = 10_000
# One precision for all weights means very different things where the features' scales differ by more than this.
WIDE_SPAN = 10.0


@final
@dataclass(frozen=True)
class InputMap:
    """A fitted map from tables to the model's inputs.

    Attributes:
        scaler: centres and scales the columns, or ``None``.
        transformer: a fitted scikit-learn transformer, or ``None``.
        names: of the model's inputs.
        scales: the smallest and largest standard deviation among the model's inputs, constant ones left out.
    """

    scaler: StandardScaler | None
    transformer: Any | None
    names: tuple[str, ...]
    scales: tuple[float, float]

    @classmethod
    def fit(
        cls, X: np.ndarray, names: list[str], *, standardize: bool, features: Any, random_state: Any
    ) -> tuple[InputMap, np.ndarray]:
        """Fits the map to a checked table and returns it with the mapped table."""
        scaler = StandardScaler().fit(X) if standardize else None
        table = X if scaler is None else scaler.transform(X)
        transformer = feature_map(features, random_state)
        if transformer is not None:
            table = _dense(transformer.fit(table).transform(table))
        some = table[:: max(1, table.shape[0] // SCALE_ROWS)]
        sds = some.std(axis=0)
        varying = sds[sds > 0]
        scales = (float(varying.min()), float(varying.max())) if varying.size else (0.0, 0.0)
        return cls(scaler, transformer, feature_names(transformer, names, table.shape[1]), scales), table

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """The model's inputs of a checked table, shape (N, D)."""
        table = X if self.scaler is None else self.scaler.transform(X)
        return table if self.transformer is None else _dense(self.transformer.transform(table))

    def notes(self) -> dict[str, str]:
        """What the inputs' units are, for a summary: a prior has units."""
        kind = "as given" if self.scaler is None else "centred and divided by their standard deviations"
        notes = {"inputs": kind + ("" if self.transformer is None else f", then mapped by {self.transformer}")}
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
