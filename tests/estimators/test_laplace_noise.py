"""`BayesianGeneralizedLinearModel(likelihood="laplace_noise")`: numbers with outliers, whose median is f."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import QuantileRegressor

import bayescope as bs
from bayescope import BayesianGeneralizedLinearModel
from bayescope.errors import UnsupportedError

OTHERS = "'auto', 'variational', 'mean_field', 'ep', 'nuts', 'metropolis'"


def table(rows: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * [1.0, 20.0, 0.3] + [0.0, 5.0, 0.0]
    return X, 1.0 + X @ [0.8, -0.03, 0.0] + rng.laplace(0.0, 0.6, rows)


def fitted(X: Any, y: Any, **options: Any) -> BayesianGeneralizedLinearModel:
    rows = {name: options.pop(name) for name in ("sample_weight", "offset") if name in options}
    return BayesianGeneralizedLinearModel(**{"likelihood": "laplace_noise", **options}).fit(X, y, **rows)


def test_auto_takes_expectation_propagation_and_says_why():
    X, y = table()
    model = fitted(X, y)
    assert model.posterior_.record.method == "ep"
    assert "log p has a kink" in str(model.posterior_.summary())
    assert np.isfinite(model.log_evidence_)
    assert model.hyperparameters_["scale"] == pytest.approx(0.6, rel=0.25)


def test_several_outcomes_have_the_answers_of_separate_fits():
    X, y = table()
    both = fitted(X, np.column_stack([y, -1e3 * y + 5.0]), prior_precision=[1e-4, 1e-4, 1e-4])
    assert both.posterior_.record.method == "variational"
    one = fitted(X, y, prior_precision=1e-4, posterior="variational")
    np.testing.assert_allclose(both.coef_[0], one.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(both.hyperparameters_["scale"][0], one.hyperparameters_["scale"], rtol=1e-5)
    with pytest.raises(UnsupportedError, match="prior_precision: expected numbers for 2 outcomes"):
        fitted(X, np.column_stack([y, y]))


@pytest.mark.parametrize("posterior", ["ep", "variational"])
def test_the_answer_does_not_depend_on_units_origins_or_the_order_of_rows(posterior: Any):
    X, y = table()
    order = np.random.default_rng(1).permutation(len(y))
    one = fitted(X, y, posterior=posterior)
    other = fitted((1e3 * X - 7.0)[order], (1e-4 * y + 50.0)[order], posterior=posterior)
    mean, sd = one.predict(X, return_std=True)
    moved, spread = other.predict(1e3 * X - 7.0, return_std=True)
    np.testing.assert_allclose(moved, 1e-4 * mean + 50.0, rtol=0, atol=1e-6 * np.ptp(1e-4 * y))
    np.testing.assert_allclose(spread, 1e-4 * sd, rtol=1e-5)
    assert other.hyperparameters_["scale"] == pytest.approx(1e-4 * one.hyperparameters_["scale"], rel=1e-5)


@pytest.mark.parametrize("prior_precision", [0, 1e-8])
def test_under_a_flat_prior_the_weights_are_near_those_of_median_regression(prior_precision: float):
    X, y = table(1500)
    y[:100] += 300.0  # Gross errors on one side move the median a little
    model = fitted(X, y, prior_precision=prior_precision)
    median = QuantileRegressor(quantile=0.5, alpha=0.0).fit(X, y)
    table_of = model.coefficients().set_index("name")
    sd = table_of.loc[["x0", "x1", "x2"], "sd"].to_numpy() / table_of.loc[["x0", "x1", "x2"], "per"].to_numpy()
    found = model.coef_ / X.std(0)
    assert (np.abs(found - median.coef_) < 0.5 * sd).all()
    assert np.abs(model.predict(X) - median.predict(X)).max() < 0.05 * np.abs(y - median.predict(X)).mean()


def test_weights_count_rows_and_offsets_move_them():
    X, y = table(60)
    counts = np.random.default_rng(2).integers(1, 4, 60)
    one = fitted(X, y, sample_weight=counts)
    other = fitted(np.repeat(X, counts, 0), np.repeat(y, counts))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-5)
    assert one.log_evidence_ == pytest.approx(other.log_evidence_, abs=1e-5)
    kept = counts > 1
    some = fitted(X, y, sample_weight=kept.astype(float))
    np.testing.assert_allclose(some.predict(X), fitted(X[kept], y[kept]).predict(X), rtol=1e-5, atol=1e-6)
    away = np.linspace(-3.0, 3.0, 60)
    moved = fitted(X, y + away, offset=away)
    np.testing.assert_allclose(moved.coef_, fitted(X, y).coef_, rtol=1e-5, atol=1e-7)


def test_predictions_are_of_gaussian_plus_laplace_and_survive_a_file(tmp_path: Any):
    X, y = table()
    model = fitted(X, y)
    model.save(tmp_path / "model.bayes")
    again = bs.load(tmp_path / "model.bayes")
    predicted = model.predict_distribution(X)
    np.testing.assert_array_equal(again.predict_distribution(X).log_prob(y), predicted.log_prob(y))
    low, high = predicted.interval(0.9, of="outcome")
    assert 0.84 < np.mean((low[:, 0] < y) & (y < high[:, 0])) < 0.96
    assert model.hyperparameters_ == again.hyperparameters_


@pytest.mark.parametrize("posterior", ["map", "laplace"])
def test_what_needs_a_second_derivative_is_refused(posterior: Any):
    X, y = table(30)
    message = (
        f"posterior: expected one of {OTHERS} for 'laplace_noise', whose log density has a kink, got '{posterior}'"
    )
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        fitted(X, y, posterior=posterior)


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"prior_precision": "ard"}, "'ard'"),
        ({"prior_precision": "horseshoe"}, "'horseshoe'"),
        ({"groups": [0]}, "columns with random effects"),
    ],
)
def test_priors_that_laplace_learns_are_refused(options: dict[str, Any], got: str):
    X, y = table(30)
    X[:, 0] = np.arange(30) % 3
    with pytest.raises(UnsupportedError, match=re.escape(f"whose log density has a kink, got {got}")):
        fitted(X, y, **options)


@pytest.mark.parametrize("offset", [None, np.linspace(-1.0, 1.0, 100)])
def test_censored_rows_are_learnt_from_by_the_bound(offset: Any):
    X, y = table(100)
    y = y if offset is None else y + offset
    end = np.full(100, 1.5)
    model = fitted(X, bs.Censored(np.minimum(y, end), y < end), offset=offset)
    assert model.posterior_.record.method == "variational"
    assert model.hyperparameters_["scale"] == pytest.approx(0.6, rel=0.3)
    whole = fitted(X, y, offset=offset).coefficients()
    found = model.coefficients().set_index("name").loc[whole["name"]]
    assert (np.abs(found["mean"].to_numpy() - whole["mean"]) < 2.0 * whole["sd"]).all()
    other = fitted(X, bs.Censored(1e3 * np.minimum(y, end), y < end), offset=None if offset is None else 1e3 * offset)
    np.testing.assert_allclose(other.coef_, 1e3 * model.coef_, rtol=1e-5, atol=1e-3)
