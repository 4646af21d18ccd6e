"""A table whose columns were moved gives the same predictions, by name or as a plain array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.tables.order import column_order

ROWS = 40
MODELS: dict[str, Callable[[], Any]] = {
    "additive": lambda: bs.NeuralAdditiveRegressor(
        hidden=6, pair_hidden=6, interactions=1, epochs=8, burn_in=2, random_state=0
    ),
    "mlp": lambda: bs.BayesianMLPRegressor(hidden=(4,), epochs=3, random_state=0),
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


def test_the_order_of_columns_does_not_matter_to_classes() -> None:
    frame, y = table(3)
    moved = frame[["size", "d", "colour", "b", "e", "a", "c"]]
    labels = np.where(y > 0.5, "high", "low")
    fits = [
        bs.BayesianMLPClassifier(hidden=(4,), epochs=3, random_state=0).fit(each, labels) for each in (frame, moved)
    ]
    np.testing.assert_allclose(fits[0].predict_proba(frame), fits[1].predict_proba(moved), atol=1e-8)


def test_columns_of_one_distribution_are_told_apart_by_the_others() -> None:
    """Two columns of as many 0 and 1, each with as many 1 in each class, differ in what other columns hold there."""
    source = np.random.default_rng(4)
    y = np.repeat([0.0, 1.0], 20)[:, None]
    first = np.tile([0.0, 1.0], 20)
    second = np.repeat(np.tile([0.0, 1.0], 2), 10)
    columns = [first, source.standard_normal(40), second, source.standard_normal(40)]
    order = column_order(columns, y, np.ones(40))
    for moved in ([3, 2, 1, 0], [1, 0, 3, 2]):
        again = column_order([columns[place] for place in moved], y, np.ones(40))
        assert [moved[place] for place in again] == order.tolist()


def test_one_column_in_two_units_and_constants_are_told_apart_by_their_ends() -> None:
    source = np.random.default_rng(6)
    truth = source.integers(2, size=50).astype(float)
    columns = [truth, truth + 1.0, np.full(50, 3.0), source.standard_normal(50), np.full(50, 1.0), 9.0 * truth]
    y = source.standard_normal((50, 1))
    order = column_order(columns, y, np.ones(50)).tolist()
    assert [5 - place for place in column_order(columns[::-1], y, np.ones(50))] == order


def test_the_names_of_inputs_are_in_their_order() -> None:
    frame, y = table(7)
    model = MODELS["mlp"]().fit(frame, y)
    values = model.transform_inputs(frame)
    assert np.corrcoef(values[:, model.input_names_.index("a")], frame["a"])[0, 1] == pytest.approx(1.0)


def test_the_order_does_not_depend_on_units_and_rows() -> None:
    source = np.random.default_rng(5)
    X, y, rows = source.standard_normal((30, 6)), source.standard_normal((30, 1)), source.permutation(30)
    order = column_order([*X.T], y, np.ones(30)).tolist()
    assert column_order([*(1.8 * X + 32.0).T], y, np.ones(30)).tolist() == order
    assert column_order([*X[rows].T], y[rows], np.ones(30)).tolist() == order


def _agree(one: Any, other: Any, X: Any, moved: Any) -> None:
    before, after = one.predict_distribution(X), other.predict_distribution(moved)
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(after.variance, before.variance, rtol=1e-6)
