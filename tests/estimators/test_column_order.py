"""A table whose columns were moved gives the same predictions, by name or as a plain array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs

ROWS = 40
MODELS: dict[str, Callable[[], Any]] = {
    "additive": lambda: bs.NeuralAdditiveRegressor(
        hidden=6, pair_hidden=6, interactions=1, epochs=8, burn_in=2, random_state=0
    ),
    "linear": bs.BayesianLinearRegression,
}


def table(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, two columns with the same numbers in another order, and labels."""
    source = np.random.default_rng(seed)
    frame = pd.DataFrame(source.standard_normal((ROWS, 4)), columns=list("dacb"))
    frame["e"] = source.permutation(frame["d"].to_numpy())
    frame["colour"] = np.array(["red", "green", "blue"])[source.integers(3, size=ROWS)]
    frame["size"] = np.array(["s", "m", "l"])[source.integers(3, size=ROWS)]
    y = np.sin(frame["a"]) + frame["b"] * frame["c"] + (frame["colour"] == "red")
    return frame, y.to_numpy() + 0.2 * source.standard_normal(ROWS)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_named_columns_does_not_matter(name: str) -> None:
    frame, y = table(0)
    moved = frame[[*reversed(frame.columns)]]
    _agree(MODELS[name]().fit(frame, y), MODELS[name]().fit(moved, y), frame, moved)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_columns_without_names_does_not_matter(name: str) -> None:
    frame, y = table(2)
    X = frame.select_dtypes("number").to_numpy()
    moved = X[:, [3, 1, 4, 0, 2]]
    _agree(MODELS[name]().fit(X, y), MODELS[name]().fit(moved, y), X, moved)


def _agree(one: Any, other: Any, X: Any, moved: Any) -> None:
    before, after = one.predict_distribution(X), other.predict_distribution(moved)
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(after.variance, before.variance, rtol=1e-6)
