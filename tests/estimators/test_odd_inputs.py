"""Inputs that are unusual or mistaken: a right answer, or one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bayescope as bs
from bayescope import BayesianMLPClassifier, BayesianMLPRegressor, NeuralAdditiveClassifier, NeuralAdditiveRegressor
from bayescope.errors import InputError, InputTypeError, MemoryBudgetError, OptionError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression


def numbers(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.integers(-9, 9, (60, 3))
    y = X @ [1, -1, 0] + rng.integers(-3, 3, 60)
    return X, y, np.array(["no", "yes"])[(y > 0).astype(int)]


def logistic(**options: Any) -> BayesianLogisticRegression:
    return BayesianLogisticRegression(posterior="laplace", prior_precision=1.0, **options)


def reversed_view(values: np.ndarray) -> np.ndarray:
    """The same numbers behind negative strides."""
    return np.ascontiguousarray(values[::-1])[::-1]


def big_endian(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder(">"))


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("dress", [reversed_view, big_endian])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64, np.float32])
def test_any_strides_and_byte_order(dress: Callable[[np.ndarray], np.ndarray], kind: type, standardize: bool):
    X, y, _ = numbers()
    X, y, weights = X.astype(kind), y.astype(kind), np.arange(1, 61).astype(kind)
    # Without centring the array itself is the model's table.
    options = {"standardize": standardize, "intercept_prior_precision": 0.01}
    for model, target in ((BayesianLinearRegression(**options), y), (logistic(**options), (y > 0).astype(kind))):
        plain = model.fit(X, target, sample_weight=weights).predict_distribution(X).mean
        dressed = model.fit(dress(X), dress(target), sample_weight=dress(weights)).predict_distribution(dress(X)).mean
        np.testing.assert_allclose(dressed, plain, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({7: 2.0}, "one of 'no', 'yes', got 7"), ({"ye": 2.0}, "Did you mean 'yes'"), ({1: 2.0}, "got 1")],
    ids=str,
)
def test_a_class_that_is_not_there(given: dict[Any, float], expected: str):
    X, _, labels = numbers()
    with pytest.raises(OptionError, match=f"class_weight: expected .*{expected}"):
        logistic(class_weight=given).fit(X, labels)
    with pytest.raises(OptionError, match="class_weight: expected one of 0, 1, got 7"):
        logistic(class_weight={7: 2.0}).fit(X, (labels == "yes").astype(int))


@pytest.mark.parametrize("given", [0, np.int64(1), "x0", 1.5, True], ids=repr)
def test_columns_come_in_a_list(given: Any):
    X, y, labels = numbers()
    for model, target in ((BayesianLinearRegression, y), (logistic, labels)):
        with pytest.raises(InputTypeError, match=r"categorical: expected a list of columns, got .* (Write|Name)"):
            model(categorical=given).fit(X, target)


@pytest.mark.parametrize("library", [pd.DataFrame.copy, pl.from_pandas, pa.Table.from_pandas])
def test_the_target_is_named_as_of_a_table_on_disk(library: Callable[[pd.DataFrame], Any]):
    X, y, labels = numbers()
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y, label=labels, w=np.arange(60.0))
    for model, target, other in ((BayesianLinearRegression(), "y", "label"), (logistic(), "label", "y")):
        named = model.fit(library(frame.drop(columns=[other])), target, sample_weight="w")
        assert named.feature_names_in_.tolist() == ["a", "b", "c"]
        answer = named.predict_distribution(library(frame[["a", "b", "c"]])).mean
        apart = model.fit(library(frame[["a", "b", "c"]]), frame[target], sample_weight=frame["w"])
        np.testing.assert_allclose(answer, apart.predict_distribution(library(frame[["a", "b", "c"]])).mean, rtol=1e-12)


NETS = {"hidden": (5,), "posterior": "map", "prior_precision": 1.0, "epochs": 2, "random_state": 0}


@pytest.mark.parametrize(
    ("make", "target"),
    [
        (lambda: NeuralAdditiveRegressor(hidden=5, random_state=0), "y"),
        (lambda: NeuralAdditiveClassifier(hidden=5, random_state=0), "label"),
        (lambda: BayesianMLPRegressor(**NETS, noise_variance=1.0), "y"),
        (lambda: BayesianMLPClassifier(**NETS), "label"),
    ],
    ids=["additive numbers", "additive classes", "network numbers", "network classes"],
)
def test_all_estimators_take_the_target_by_its_name(make: Callable[[], Any], target: str):
    X, y, labels = numbers()
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y.astype(float), label=labels, w=np.arange(60.0))
    frame = frame.drop(columns=["label" if target == "y" else "y"])
    features = frame[["a", "b", "c"]]
    named = make().fit(frame, target, sample_weight="w")
    assert named.feature_names_in_.tolist() == ["a", "b", "c"]
    apart = make().fit(features, frame[target], sample_weight=frame["w"])
    np.testing.assert_array_equal(named.predict_distribution(features).mean, apart.predict_distribution(features).mean)
    with pytest.raises(OptionError, match="y: expected one of"):
        make().fit(frame, "z")


@pytest.mark.parametrize(
    "make",
    [
        BayesianLinearRegression,
        lambda **given: NeuralAdditiveRegressor(hidden=5, random_state=0, **given),
        lambda **given: BayesianMLPRegressor(**NETS, noise_variance=1.0, **given),
    ],
    ids=["linear", "additive", "network"],
)
def test_labels_that_name_rows_are_refused_on_disk_too(make: Callable[..., Any], tmp_path: Path):
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"record {k}" for k in range(60)], "x": source.standard_normal(60)})
    frame["y"] = frame["x"] + 0.1 * source.standard_normal(60)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.assign(id=frame["id"].str.slice(0, 8)).to_parquet(tmp_path / "few.parquet")
    with pytest.raises(InputError, match="column 'id': expected labels that recur, got 60 different ones in 60 rows"):
        make().fit(bs.open_table(tmp_path / "t.parquet"), "y")
    make(categorical=["id"]).fit(bs.open_table(tmp_path / "t.parquet"), "y")
    make().fit(bs.open_table(tmp_path / "few.parquet"), "y")


def test_labels_that_memory_does_not_hold_are_refused_before_their_columns_are_made():
    rows = 400_000
    frame = pd.DataFrame(
        {"id": np.char.add("group ", (np.arange(rows) % 150_000).astype(str)), "x": np.arange(rows) % 7.0}
    )
    with pytest.raises(MemoryBudgetError, match="Column 'id' alone has 150,000 labels"):
        BayesianLinearRegression().fit(frame, frame["x"])


def test_a_target_that_is_no_column():
    X, y, _ = numbers()
    frame = pd.DataFrame(X, columns=["age", "dose", "size"])
    with pytest.raises(OptionError, match=r"y: expected one of .*, got 'dosis'"):
        BayesianLinearRegression().fit(frame, "dosis")
    with pytest.raises(OptionError, match="sample_weight: expected one of"):
        BayesianLinearRegression().fit(frame, y, sample_weight="w")
    with pytest.raises(InputTypeError, match="y: expected a value for each row, or the name of a column"):
        BayesianLinearRegression().fit(X, "y")
    with pytest.raises(InputError, match="X: expected a column beside 'age', got none"):
        BayesianLinearRegression().fit(frame[["age"]], "age")


@pytest.mark.parametrize("rows", [40, 20_000])
def test_labels_that_name_rows_are_refused(rows: int):
    frame = pd.DataFrame({"id": [f"record {k}" for k in range(rows)], "x": np.arange(rows) % 7.0})
    with pytest.raises(InputError, match=rf"column 'id': expected labels that recur, got {rows} different ones in"):
        BayesianLinearRegression().fit(frame, frame["x"])
    few = frame.iloc[:40]
    assert BayesianLinearRegression(categorical=["id"]).fit(few, np.arange(40) % 3.0).coef_.shape == (41,)
    assert BayesianLinearRegression().fit(few.astype({"id": "category"}), np.arange(40) % 3.0).coef_.shape == (41,)
    recurring = frame.assign(id=[f"group {k % (rows // 4)}" for k in range(rows)]).iloc[:400]
    if rows == 40:
        assert BayesianLinearRegression().fit(recurring, np.arange(40) % 3.0).coef_.shape == (11,)
