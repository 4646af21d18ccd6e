"""Generalised linear models of ordered classes: their order, what they answer, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier
from sklearn.model_selection import cross_val_score

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.estimators import BayesianGeneralizedLinearModel

NAMES = ["poor", "fair", "good", "best"]


def table(rows: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((rows, 3))
    return X, np.digitize(X @ [1.0, -0.7, 0.0] + rng.logistic(size=rows), [-1.0, 0.5, 1.5])


def fitted(X: object, y: object, weights: object = None, **options: Any) -> BayesianGeneralizedLinearModel:
    options = {"likelihood": "ordinal", "posterior": "laplace", "prior_precision": 1.0, **options}
    return BayesianGeneralizedLinearModel(**options).fit(X, y, weights)


def test_numbers_and_ordered_categories_are_the_same_classes() -> None:
    X, y = table()
    model = fitted(X, y)
    ordered = pd.Categorical.from_codes(y, NAMES, ordered=True)
    frame = pd.DataFrame(X, columns=list("abc")).assign(rating=pd.Series(ordered))
    cases = {"numbers": (y * 2.5 - 1.0, [-1.0, 1.5, 4.0, 6.5]), "categories": (ordered, NAMES)}
    for other, classes in cases.values():
        again = fitted(X, other)
        assert list(again.classes_) == classes
        np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-12)
        np.testing.assert_array_equal(again.predict(X), np.array(classes)[model.predict(X)])
        assert again.score(X, other) == model.score(X, y) > 0.4
    named = fitted(frame, "rating")
    assert list(named.classes_) == NAMES
    np.testing.assert_allclose(named.predict_proba(frame[list("abc")]), model.predict_proba(X), rtol=1e-12)
    assert named.predict_distribution(frame[list("abc")]).to_frame(classes=NAMES).columns[1] == "p(poor)"


def test_a_category_without_rows_is_no_class() -> None:
    X, y = table()
    model = fitted(X, pd.Categorical.from_codes(y + (y > 1), ["e", "d", "c", "b", "a"], ordered=True))
    assert list(model.classes_) == ["e", "d", "b", "a"]
    np.testing.assert_allclose(model.predict_proba(X), fitted(X, y).predict_proba(X), rtol=1e-12)


def test_the_opposite_order_has_the_opposite_coefficients() -> None:
    X, y = table()
    model, other = (fitted(X, codes, prior_precision="evidence") for codes in (y, 3 - y))
    np.testing.assert_allclose(other.coef_, -model.coef_, rtol=1e-4)
    np.testing.assert_allclose(other.predict_proba(X)[:, ::-1], model.predict_proba(X), rtol=1e-4)
    assert other.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-6)


def test_units_origins_and_the_order_of_rows_change_nothing() -> None:
    X, y = table()
    model, order = fitted(X, y), np.random.default_rng(0).permutation(len(X))
    for standardize in (True, False):
        units = [1e-3, 1.0, 1e4] if standardize else 1.0
        moved = X * units + [5.0, 0.0, -1e3]
        again = fitted(moved[order], y[order], standardize=standardize, fit_intercept=standardize)
        plain = model if standardize else fitted(X, y, standardize=False)
        np.testing.assert_allclose(again.predict_proba(moved), plain.predict_proba(X), rtol=1e-4)
        assert again.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-6)


def test_a_row_of_weight_two_is_two_rows() -> None:
    X, y = table()
    weights = 1 + np.arange(len(X)) % 2
    twice = np.repeat(np.arange(len(X)), weights)
    one, two = fitted(X, y, weights, standardize=False), fitted(X[twice], y[twice], standardize=False)
    np.testing.assert_allclose(one.coefficients()[["mean", "sd"]], two.coefficients()[["mean", "sd"]], rtol=1e-4)


@pytest.mark.parametrize("posterior", ["map", "variational", "mean_field", "ep"])
def test_every_posterior_answers_much_the_same(posterior: str) -> None:
    X, y = table()
    offset = np.linspace(-1.0, 1.0, len(X))
    model = BayesianGeneralizedLinearModel(likelihood="ordinal_probit", posterior=posterior, prior_precision=1.0)
    model.fit(X, y, offset=offset)
    truth = BayesianGeneralizedLinearModel(**model.get_params() | {"posterior": "laplace"}).fit(X, y, offset=offset)
    np.testing.assert_allclose(model.predict_proba(X, offset=offset), truth.predict_proba(X, offset=offset), atol=0.02)
    assert np.abs(model.predict_proba(X) - model.predict_proba(X, offset=offset)).max() > 0.1
    cutpoints = model.coefficients().tail(3)
    assert cutpoints["mean"].is_monotonic_increasing
    assert cutpoints["sd"].notna().all() == (posterior not in ("map", "mean_field"))


@pytest.mark.filterwarnings("ignore:posterior='laplace'")  # of so few rows
def test_more_columns_than_rows_have_the_same_answer_as_in_the_columns() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 40))
    y = np.digitize(X[:, 0] + 0.5 * rng.logistic(size=30), [-0.5, 0.5])
    narrow = fitted(X, y, prior_precision=50.0, standardize=False)
    padded = fitted(np.r_[X, X], np.r_[y, y], np.full(60, 0.5), prior_precision=50.0, standardize=False)
    ours, theirs = (each.coefficients()[["mean", "sd"]] for each in (narrow, padded))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_uncertain_cutpoints_widen_the_coefficients() -> None:
    X, y = table()
    model = fitted(X - X.mean(0), y)
    given = bs.Ordinal(cutpoints=model.hyperparameters_["cutpoints"])
    given = fitted(X - X.mean(0), y, likelihood=given, fit_intercept=False)
    np.testing.assert_allclose(given.coef_, model.coef_, rtol=1e-6)
    ours, theirs = (each.coefficients()["sd"].to_numpy()[:3] for each in (model, given))
    assert (ours > theirs).all()
    assert ours[0] > 1.02 * theirs[0]


def test_scikit_learn_takes_it_for_a_classifier(tmp_path: Path) -> None:
    X, y = table()
    model = BayesianGeneralizedLinearModel(likelihood="ordinal", posterior="laplace", prior_precision=1.0)
    assert is_classifier(model)
    assert not is_classifier(BayesianGeneralizedLinearModel(likelihood="poisson"))
    assert not hasattr(BayesianGeneralizedLinearModel(likelihood="poisson"), "predict_proba")
    assert cross_val_score(model, X, y, scoring="neg_log_loss", cv=2).mean() > -np.log(4)
    model.fit(X, y)
    again = bs.load(model.save(tmp_path / "model.bayes"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    pd.testing.assert_frame_equal(again.coefficients(), model.coefficients())
    model.set_params(likelihood="poisson").fit(X, y)
    assert not hasattr(model, "classes_")


def test_a_table_on_disk_has_the_same_classes(tmp_path: Path) -> None:
    X, y = table()
    frame = pd.DataFrame(X, columns=list("abc")).assign(rating=y + 3)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=40)
    model = BayesianGeneralizedLinearModel(likelihood="ordinal", posterior="laplace", prior_precision=1.0)
    model.fit(bs.open_table(tmp_path / "rows.parquet"), "rating")
    assert list(model.classes_) == [3, 4, 5, 6]
    np.testing.assert_allclose(model.coef_, fitted(X, y).coef_, rtol=1e-6)


def test_what_has_no_order_is_refused() -> None:
    X, y = table()
    text = pd.Series(np.array(NAMES)[y], name="rating")
    with pytest.raises(InputTypeError, match=r"got '\w+' in row 0 of column 'rating', text without an order. Give an "):
        fitted(X, text)
    with pytest.raises(InputTypeError, match="of column 'rating', text without an order"):
        fitted(pd.DataFrame(X, columns=list("abc")).assign(rating=text), "rating")
    with pytest.raises(InputTypeError, match="text without an order"):
        fitted(X, pd.Categorical(text))
    with pytest.raises(InputTypeError, match="text without an order"):
        fitted(X, y.astype(str))
    with pytest.raises(InputError, match=r"a class in each row, got nan in row 1\."):
        fitted(X, np.where(np.arange(len(X)) == 1, np.nan, y))
    with pytest.raises(InputError, match="at least two ordered classes, got one class, 2"):
        fitted(X, np.full(len(X), 2))
    with pytest.raises(InputError, match="at most 50 ordered classes, got 90 different numbers"):
        fitted(X, X[:, 0])
    with pytest.raises(InputError, match=r"cutpoints: expected 3, one between each two categories, got 1\."):
        fitted(X, pd.Categorical.from_codes(y, NAMES, ordered=True), likelihood=bs.Ordinal(cutpoints=[0.0]))
    with pytest.raises(InputError, match=r"ordered classes 0…1, got \d in row"):
        fitted(X, y, likelihood=bs.Ordinal(cutpoints=[0.0]))
    with pytest.raises(UnsupportedError, match="intercept_prior_precision: expected None"):
        fitted(X, y, intercept_prior_precision=1.0)
    with pytest.raises(UnsupportedError, match="return_std: expected False"):
        fitted(X, y).predict(X, return_std=True)


def test_a_comparison_keeps_the_order_of_the_categories() -> None:
    X, y = table(160)
    ordered = pd.Series(pd.Categorical.from_codes(y, NAMES, ordered=True), name="rating")
    model = BayesianGeneralizedLinearModel(likelihood="ordinal", prior_precision=1.0)
    found, again = (bs.compare(model, X, each, posteriors=["map", "logistic"], reference=None) for each in (ordered, y))
    assert found.split.classes == tuple(f"rating = {name}" for name in NAMES)
    np.testing.assert_allclose(found.table["nll"], again.table["nll"], rtol=1e-12)
    assert found.table["nll"].max() < np.log(4)
    p, truth = found.outcomes["map"].answers.probs, found.split.y_test
    scores = [sum((p[n, : k + 1].sum() - (truth[n] <= k)) ** 2 for k in range(3)) for n in range(len(truth))]
    assert found.table.loc["map", "crps"] == pytest.approx(np.mean(scores))
    assert again.table.loc["map", "crps"] == pytest.approx(np.mean(scores))
    names = np.array(NAMES)[y]
    without = bs.compare(bs.BayesianLogisticRegression(), X, names, posteriors=["map"], reference=None)
    assert "crps" not in without.table


@pytest.mark.filterwarnings("ignore:nuts")  # of so few draws
def test_draws_have_uncertain_cutpoints() -> None:
    X, y = table()
    drawn = fitted(X, y, posterior="nuts", random_state=0, draws=150, tune=150, chains=1).coefficients()
    laplace = fitted(X, y).coefficients()
    np.testing.assert_allclose(drawn["sd"], laplace["sd"], rtol=0.35)
    np.testing.assert_allclose(drawn["mean"], laplace["mean"], atol=0.1)


def test_the_score_of_ranks_is_that_of_the_definition() -> None:
    X, y = table()
    model = fitted(X, y)
    p, crps = model.predict_proba(X), model.predict_distribution(X).crps(y)
    truth = [sum((p[n, : k + 1].sum() - (y[n] <= k)) ** 2 for k in range(3)) for n in range(len(y))]
    np.testing.assert_allclose(crps, truth, rtol=1e-12)


def test_separated_classes_have_an_answer() -> None:
    X, _ = table(40)
    y = np.digitize(X @ [1.0, -0.7, 0.0], [-1.0, 0.5])
    model = fitted(X, y, posterior="auto", prior_precision="evidence")
    assert model.score(X, y) > 0.95
    assert np.abs(model.hyperparameters_["cutpoints"]).max() < 30.0
