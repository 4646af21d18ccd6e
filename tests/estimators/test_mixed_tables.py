"""Linear models of tables with numbers, labels, truth values and gaps, of whatever library."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, NeuralAdditiveRegressor

ESTIMATORS = [BayesianLinearRegression(prior_precision=1.0, noise_variance=1.0), BayesianLogisticRegression()]
EVERY = [
    *ESTIMATORS,
    NeuralAdditiveRegressor(epochs=2, burn_in=0, prior_precision=1.0, noise_variance=1.0, random_state=0),
]
NAMES = ("age", "age missing", "colour=blue", "colour=green", "colour=red", "member=True", "grade")


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(40.0, 10.0, 60)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(60) < 0.2, np.nan, age),
            "colour": rng.choice(["red", "green", "blue"], 60),
            "member": rng.random(60) < 0.5,
            "grade": rng.integers(1, 4, 60),
        }
    )


def target() -> np.ndarray:
    return np.arange(60) % 2


def encoded_by_hand(table: pd.DataFrame, *, standardize: bool) -> np.ndarray:
    seen = table["age"].dropna()
    age, grade = table["age"].fillna(seen.mean()), table["grade"]
    if standardize:
        age, grade = (age - seen.mean()) / seen.std(ddof=0), (grade - grade.mean()) / grade.std(ddof=0)
    labels = [table["colour"] == colour for colour in ("blue", "green", "red")]
    return np.column_stack([age, table["age"].isna(), *labels, table["member"], grade]).astype(float)


def rows_of(table: pd.DataFrame) -> list[list[object]]:
    return [[None if pd.isna(cell) else cell for cell in row] for row in table.astype(object).to_numpy().tolist()]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("standardize", [False, True])
def test_a_mixed_table_is_the_table_encoded_by_hand(estimator: Any, standardize: bool):
    mixed = clone(estimator).set_params(standardize=standardize).fit(frame(), target())
    by_hand = clone(estimator).set_params(standardize=False)
    by_hand.fit(encoded_by_hand(frame(), standardize=standardize), target())
    np.testing.assert_allclose(mixed.coef_, by_hand.coef_, atol=1e-10)
    assert mixed.log_evidence_ == pytest.approx(by_hand.log_evidence_, abs=1e-9)
    assert mixed.weight_names_ == (*NAMES, "intercept")
    assert mixed.n_features_in_ == 4
    summary = mixed.summary()
    assert "age: the mean, and a column that is 1 there" in summary
    assert "colour, member: a column of 0 and 1 for each label" in summary


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", [pl.from_pandas, pa.Table.from_pandas, pd.DataFrame.copy, rows_of])
def test_every_library_gives_the_same_answer(estimator: Any, kind: Callable[[pd.DataFrame], Any]):
    fitted = clone(estimator).fit(frame(), target())
    other = clone(estimator).fit(kind(frame()), target())
    np.testing.assert_array_equal(other.coef_, fitted.coef_)
    np.testing.assert_array_equal(other.predict(kind(frame().iloc[:9])), fitted.predict(frame().iloc[:9]))
    assert len(other.predict_distribution(kind(frame().iloc[:9]))) == 9


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, np.ndarray.tolist, pd.DataFrame, pl.DataFrame])
def test_numbers_alone_are_used_as_they_are(kind: Callable[[np.ndarray], Any]):
    X = np.random.default_rng(1).standard_normal((60, 3))
    as_given = BayesianLinearRegression(standardize=False)
    fitted = clone(as_given).fit(kind(X), target())
    np.testing.assert_allclose(fitted.coef_, as_given.fit(X, target()).coef_, rtol=1e-12)
    assert "inputs: as given" in fitted.summary()


# Tables that can be fitted: how the frame is changed, and names among those of the inputs then.
FINE: dict[str, tuple[Callable[[pd.DataFrame], Any], set[str]]] = {
    "a column without any value": (lambda t: t.assign(age=np.nan), {"age", "age missing"}),
    "labels without any value": (lambda t: t.assign(colour=pd.Categorical([None] * 60)), {"colour missing"}),
    "a constant": (lambda t: t.assign(age=3.0), {"age"}),
    "one label": (lambda t: t.assign(colour="red"), {"colour=red"}),
    "truth values with gaps": (
        lambda t: t.assign(member=t["member"].astype(object).where(t.index > 3, None)),
        {"member=True", "member missing"},
    ),
    "nullable numbers": (lambda t: t.assign(grade=t["grade"].astype("Int64")), {"grade"}),
    "declared categories": (
        lambda t: t.assign(colour=pd.Categorical(t["colour"], ["red", "green", "blue", "mauve"])),
        {"colour=mauve"},
    ),
    "numbers for names": (lambda t: t.set_axis(range(4), axis=1), {"x0", "x1=red"}),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("case", FINE)
def test_tables_that_can_be_fitted(estimator: Any, case: str):
    change, names = FINE[case]
    fitted = clone(estimator).fit(change(frame()), target())
    assert names <= set(fitted.weight_names_)
    assert np.isfinite(fitted.predict(change(frame()))).all()


@pytest.mark.parametrize("categorical", [["grade"], [3]])
def test_numbers_that_are_labels(categorical: list[object]):
    fitted = BayesianLogisticRegression(categorical=categorical).fit(frame(), target())
    assert fitted.weight_names_[-4:-1] == ("grade=1", "grade=2", "grade=3")
    as_array = BayesianLogisticRegression(categorical=[0]).fit(frame()[["grade"]].to_numpy(), target())
    assert as_array.weight_names_ == ("x0=1", "x0=2", "x0=3", "intercept")
    assert as_array.predict_proba([[2]]).shape == (1, 2)


@pytest.mark.parametrize("encoding", ["ordinal", "target"])
def test_other_encodings(encoding: str):
    fitted = BayesianLogisticRegression(encoding=encoding).fit(frame(), target())
    assert fitted.weight_names_ == ("age", "age missing", "colour", "member", "grade", "intercept")
    three = BayesianLogisticRegression(encoding="target").fit(frame(), np.arange(60) % 3)
    assert three.coef_.shape == (3, 2 + 3 + 3 + 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_label_that_was_never_seen_says_nothing(estimator: Any):
    fitted = clone(estimator).set_params(standardize=False).fit(frame(), target())
    row = frame().iloc[[0]].assign(colour="mauve")
    latent = fitted.predict_distribution(row).latent_mean
    inputs = encoded_by_hand(frame().iloc[[0]].assign(age=frame()["age"]), standardize=False)[0]
    inputs[:2] = [frame()["age"].mean(), 1.0] if np.isnan(row["age"].iloc[0]) else [row["age"].iloc[0], 0.0]
    inputs[2:5] = 0.0
    np.testing.assert_allclose(np.ravel(latent), np.ravel(fitted.coef_ @ inputs + fitted.intercept_), rtol=1e-9)


def test_a_gap_where_none_was_seen_is_the_mean():
    X = np.random.default_rng(0).standard_normal((60, 2))
    fitted = BayesianLogisticRegression(standardize=True).fit(X, target())
    gap, mean = ([[x, 0.5]] for x in (np.nan, X[:, 0].mean()))
    np.testing.assert_allclose(fitted.transform_inputs(gap), fitted.transform_inputs(mean), atol=1e-12)
    latent = [fitted.predict_distribution(row).latent_mean for row in (gap, mean)]
    np.testing.assert_allclose(*latent, rtol=1e-9)


# Tables that cannot be fitted: how the frame is changed, the error, and what its message says.
BAD: dict[str, tuple[Callable[[pd.DataFrame], Any], type[Exception], str]] = {
    "dates": (lambda t: t.assign(age=pd.Timestamp("2020-01-01")), InputTypeError, "column 'age'"),
    "a date among text": (
        lambda t: t.assign(colour=["red"] * 59 + [datetime.date(2020, 1, 1)]),
        InputTypeError,
        "column 'colour'",
    ),
    "text among numbers": (lambda t: t.assign(age=[1.0] * 59 + ["old"]), InputTypeError, "column 'age'"),
    "infinite": (lambda t: t.assign(age=np.inf), InputError, "expected finite numbers in column 'age', got inf"),
    "infinite in an array": (lambda t: np.full((60, 2), np.inf), InputError, "column 'x0'"),
    "complex": (lambda t: t.assign(age=1j), InputError, "Complex data not supported: in column 'age'"),
    "two of one name": (lambda t: t.set_axis(["a", "b", "a", "c"], axis=1), InputError, "'a'"),
    "a query": (lambda t: pl.from_pandas(t).lazy(), InputTypeError, "collect"),
    "one column": (lambda t: t["age"], InputError, "2D"),
    "no rows": (lambda t: t.iloc[:0], InputError, "0 sample"),
    "no columns": (lambda t: t[[]], InputError, "0 feature"),
    "text": (lambda t: "table.csv", InputTypeError, "expected a table"),
    "rows of several lengths": (lambda t: [[1.0], [1.0, 2.0]], InputError, "rows of one length"),
}


@pytest.mark.parametrize("estimator", EVERY)
@pytest.mark.parametrize("case", BAD)
def test_tables_that_cannot_be_fitted(estimator: Any, case: str):
    change, error, message = BAD[case]
    with pytest.raises(error, match=message):
        clone(estimator).fit(change(frame()), target())
    fitted = clone(estimator).fit(frame(), target()) if case in ("infinite", "dates", "text among numbers") else None
    if fitted is not None:
        with pytest.raises(error, match="age"):
            fitted.predict(change(frame()))


# Tables that do not go with the one that was fitted; scikit-learn has the words for names and numbers of columns.
OTHER: dict[str, tuple[Callable[[pd.DataFrame], Any], type[Exception], str]] = {
    "reordered": (lambda t: t[t.columns[::-1]], ValueError, "must be in the same order"),
    "another name": (lambda t: t.rename(columns={"age": "years"}), ValueError, "should match"),
    "a column less": (lambda t: t.drop(columns="grade"), ValueError, "missing"),
    "a column more": (lambda t: t.assign(extra=1), ValueError, "unseen"),
    "fewer columns": (lambda t: rows_of(t.drop(columns="grade")), ValueError, "expecting 4 features"),
    "labels for numbers": (lambda t: t.assign(age="old"), InputTypeError, "column 'age': expected numbers"),
    "numbers for labels": (lambda t: t.assign(colour=1.0), InputTypeError, "column 'colour': expected labels"),
    "an array of numbers": (lambda t: np.ones((5, 4)), InputTypeError, "column 'colour': expected labels"),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("estimator", EVERY)
@pytest.mark.parametrize("case", OTHER)
def test_tables_other_than_the_one_that_was_fitted(estimator: Any, case: str):
    change, error, message = OTHER[case]
    fitted = clone(estimator).fit(frame(), target())
    for ask in (fitted.predict, fitted.predict_distribution):
        with pytest.raises(error, match=message):
            ask(change(frame()))


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match=r"categorical: expected one of 'age', .*, got 'town'"):
        BayesianLinearRegression(categorical=["town"]).fit(frame(), target())
    with pytest.raises(OptionError, match="encoding: expected one of 'one_hot', 'ordinal', 'target', got 'hash'"):
        BayesianLogisticRegression(encoding="hash").fit(frame(), target())
    with pytest.raises(InputError, match="one for each of the 7 features"):
        BayesianLinearRegression(prior_precision=[1.0, 2.0]).fit(frame(), target())


def test_grid_search_and_pipelines():
    search = GridSearchCV(BayesianLogisticRegression(), {"encoding": ["one_hot", "ordinal"]}, cv=2).fit(
        frame(), target()
    )
    assert search.best_estimator_.predict(frame()).shape == (60,)
    numbers = frame()[["grade"]].assign(b=np.arange(60.0))
    pipeline = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(numbers, target())
    assert pipeline.predict(numbers).shape == (60,)
