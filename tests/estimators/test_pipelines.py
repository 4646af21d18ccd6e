"""Laws of estimators inside scikit-learn's objects: they answer as the estimator does, on the table after the steps."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.storage import Reader

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(60, 2)) * [1.0, 50.0], columns=["age", "dose"]).assign(ward=list("abc") * 20)
numbers = X[["age", "dose"]].to_numpy()
y = numbers @ [1.0, 0.02] + 0.3 * rng.normal(size=60)
labels = np.where(y > 0, "ill", "well")
SEARCH = {"bayesianlinearregression__prior_precision": [0.1, 10.0]}


def columns():
    numeric = ("numbers", StandardScaler(), ["age", "dose"])
    return ColumnTransformer([numeric, ("ward", OneHotEncoder(), ["ward"])], sparse_threshold=1.0)


def regression():
    return make_pipeline(columns(), "passthrough", bs.BayesianLinearRegression())


def search(scoring="neg_crps", n_jobs=None):
    return GridSearchCV(regression(), SEARCH, scoring=scoring, cv=KFold(3), n_jobs=n_jobs)


@pytest.mark.parametrize("make", [regression, search, lambda: make_pipeline("passthrough", search())])
def test_the_predictive_is_that_of_the_estimator_on_the_table_after_the_steps(make, tmp_path):
    model = make().fit(X, y)
    inside = getattr(model, "best_estimator_", model)
    inside = getattr(inside[-1], "best_estimator_", inside)
    expected = inside[-1].predict_distribution(inside[0].transform(X).toarray())
    for each in (model, FrozenEstimator(model)):
        found = bs.predict_distribution(each, X)
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_array_equal(found.log_prob(y), expected.log_prob(y))
    if make is not search and make is not regression:
        return
    loaded = bs.load(bs.save(model, tmp_path / "model.bayes"))
    np.testing.assert_array_equal(bs.predict_distribution(loaded, X).mean, expected.mean)
    assert bs.conformal(found, y, level=0.9).rows == 60


def test_a_comparison_fits_the_steps_to_the_training_rows():
    pipeline = make_pipeline(columns(), bs.BayesianLogisticRegression())
    found = bs.compare(pipeline, X, labels, posteriors=["map"], reference=None)
    train, test = (table["numbers__dose"] for table in (found.split.X_train, found.split.X_test))
    assert abs(train.mean()) < 1e-12
    assert abs(test.mean()) > 1e-3
    assert any("those that ColumnTransformer" in note for note in found.footnotes)


def test_a_report_says_which_columns_it_speaks_of(tmp_path):
    model = make_pipeline(columns(), bs.BayesianLogisticRegression()).fit(X, labels)
    page = bs.report(model, X, labels, out=tmp_path / "r.html", reference=None).read_text(encoding="utf-8")
    assert "those that ColumnTransformer of the pipeline make" in page
    assert "x1 is numbers__dose" in page


@pytest.mark.parametrize("name", ["neg_crps", "neg_log_predictive"])
def test_scores_of_predictives_go_by_name(name):
    found = cross_val_score(regression(), X, y, scoring=name, cv=KFold(3))
    expected = []
    for train, test in KFold(3).split(X):
        p = bs.predict_distribution(regression().fit(X.iloc[train], y[train]), X.iloc[test])
        expected.append(-p.crps(y[test]).mean() if name == "neg_crps" else p.log_prob(y[test]).mean())
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert bs.scorers[name](regression().fit(X, y), X, y) > found.min()


def test_what_has_no_estimator_of_ours_is_refused_by_name():
    for model in (make_pipeline(StandardScaler(), LinearRegression()), search()):
        with pytest.raises(InputTypeError, match=r"LinearRegression|GridSearchCV.*refit=True"):
            bs.predict_distribution(model, X)
    with pytest.raises(UnsupportedError, match=re.escape("TransformedTargetRegressor")):
        bs.compare(TransformedTargetRegressor(bs.BayesianLinearRegression(), transformer=StandardScaler()), X, y)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
@pytest.mark.parametrize("estimator", [bs.BayesianLinearRegression, bs.BayesianLogisticRegression])
def test_sparse_tables_answer_as_dense_ones(form, estimator):
    table = numbers * (rng.random(numbers.shape) < 0.3)
    target = y if estimator is bs.BayesianLinearRegression else labels
    dense, thin = estimator().fit(table, target), estimator().fit(form(table), target)
    np.testing.assert_array_equal(thin.predict_distribution(form(table)).mean, dense.predict_distribution(table).mean)


@pytest.mark.parametrize("classes", [2, 3])
def test_decisions_agree_with_predictions(classes):
    target = np.array(["a", "b", "c"])[np.digitize(y, [0.0, 0.8][: classes - 1])]
    model = bs.BayesianLogisticRegression().fit(numbers, target)
    decision, logs = model.decision_function(numbers), model.predict_log_proba(numbers)
    codes = (decision > 0).astype(int) if classes == 2 else decision.argmax(1)
    np.testing.assert_array_equal(model.classes_[codes], model.predict(numbers))
    np.testing.assert_allclose(decision, logs[:, 1] - logs[:, 0] if classes == 2 else logs, rtol=1e-12)


def test_a_regression_of_the_logarithm_predicts_y_itself():
    outcome = np.exp(y)
    inner = regression().fit(X, y)
    model = TransformedTargetRegressor(regression(), func=np.log, inverse_func=np.exp).fit(X, outcome)
    p, log_p = bs.predict_distribution(model, X), bs.predict_distribution(inner, X)
    np.testing.assert_allclose(p.quantile(0.2), np.exp(log_p.quantile(0.2)), rtol=1e-9)
    np.testing.assert_allclose(p.log_prob(outcome), log_p.log_prob(y) - y, rtol=1e-9, atol=1e-9)  # log ∣d log y/dy∣
    np.testing.assert_allclose(p.cdf(outcome), log_p.cdf(y), rtol=1e-9)
    np.testing.assert_allclose(p.mean, np.exp(log_p.mean + 0.5 * log_p.variance), rtol=1e-9)
    scaled = TransformedTargetRegressor(regression(), transformer=StandardScaler()).fit(X, y)
    with pytest.raises(UnsupportedError, match="need no scaling of y"):
        bs.predict_distribution(scaled, X)


def logarithm():
    return TransformedTargetRegressor(regression(), func=np.log, inverse_func=np.exp)


def test_a_regression_of_the_logarithm_is_saved_by_the_names_of_its_functions(tmp_path):
    model = logarithm().fit(X, np.exp(y))
    loaded = bs.load(bs.save(model, tmp_path / "model.bayes"))
    assert (loaded.func, loaded.inverse_func) == (np.log, np.exp)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    found, expected = (bs.predict_distribution(each, X) for each in (loaded, model))
    np.testing.assert_array_equal(found.log_prob(np.exp(y)), expected.log_prob(np.exp(y)))
    others = TransformedTargetRegressor(regression(), func=np.log1p, inverse_func=np.expm1).fit(X, np.exp(y))
    with pytest.raises(UnsupportedError, match=r"got a numpy.ufunc.* at TransformedTargetRegressor\.func"):
        bs.save(others, tmp_path / "others.bayes")
    for name in ("numpy.tanh", "log", 3, ["numpy.log"]):
        with pytest.raises(ValueError, match="is not known"):
            Reader({}).value({"ufunc": name})


def test_conformal_intervals_of_y_are_the_exponentials_of_those_of_log_y():
    half = slice(0, 40), slice(40, 60)
    p = bs.predict_distribution(logarithm().fit(X, np.exp(y)), X)
    log_p = bs.predict_distribution(regression().fit(X, y), X)
    found, expected = (
        bs.conformal(p[half[0]], np.exp(y[half[0]]), level=0.8),
        bs.conformal(log_p[half[0]], y[half[0]], level=0.8),
    )
    np.testing.assert_allclose(found.quantile, expected.quantile, rtol=1e-9)
    for end, log_end in zip(found.interval(p[half[1]]), expected.interval(log_p[half[1]]), strict=True):
        np.testing.assert_allclose(end, np.exp(log_end), rtol=1e-9)
    with pytest.raises(UnsupportedError, match="expected exact outcomes"):
        bs.conformal(p, bs.Censored(np.exp(y), np.arange(60) % 2), level=0.8)


def test_a_comparison_judges_the_logarithm_and_says_so():
    options = {"posteriors": ["exact", "constant"], "reference": None}
    found = bs.compare(logarithm(), X, np.exp(y), **options)
    expected = bs.compare(regression(), X, y, **options)
    for name in ("nll", "crps", "rmse", "coverage"):
        np.testing.assert_allclose(found.table[name], expected.table[name], rtol=1e-6)
    assert "Outcome: y as TransformedTargetRegressor transforms it." in found.footnotes
    with pytest.raises(InputError, match=r"y: expected .* row 3"):
        bs.compare(logarithm(), X, np.where(np.arange(60) == 3, -1.0, 1.0), **options)
