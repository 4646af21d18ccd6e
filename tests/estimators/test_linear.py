from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge

from bayescope.errors import InputError, OptionError
from bayescope.estimators import BayesianLinearRegression
from tests.reference import regression


def line(rows: int = 50, columns: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = 2.0 * rng.standard_normal((rows, columns)) + 1.0
    return X, X @ np.linspace(-1, 1, columns) + 3.0 + 0.5 * rng.standard_normal(rows)


def exact(
    X: np.ndarray, y: np.ndarray, precision: np.ndarray, noise: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    jacobian = torch.tensor(np.column_stack([X, np.ones(len(X))]))
    zero = torch.zeros(jacobian.shape[1], dtype=torch.float64)
    return regression(
        jacobian, torch.tensor(y), torch.full((len(y),), noise, dtype=torch.float64), torch.tensor(precision), zero
    )


@pytest.mark.parametrize("precision", [0.7, np.array([0.2, 1.0, 5.0])], ids=["one", "each"])
def test_given_scales_give_the_exact_posterior_evidence_and_predictive(precision):
    X, y = line()
    scales = {"prior_precision": precision, "noise_variance": 0.3, "intercept_prior_precision": 0.01}
    model = BayesianLinearRegression(**scales, standardize=False).fit(X, y)
    mean, covariance, evidence = exact(X, y, np.append(np.ones(3) * precision, 0.01), 0.3)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), mean, rtol=1e-9)
    np.testing.assert_allclose(model.posterior_.covariance, covariance, rtol=1e-9)
    assert model.log_evidence_ == pytest.approx(evidence, rel=1e-10)
    new = line(7, seed=1)[0]
    rows = torch.tensor(np.column_stack([new, np.ones(7)]))
    expected = torch.einsum("np,pq,nq->n", rows, covariance, rows)
    predicted, sd = model.predict(new, return_std=True)
    np.testing.assert_allclose(predicted, rows @ mean, rtol=1e-9)
    np.testing.assert_allclose(sd, (expected + 0.3).sqrt(), rtol=1e-9)
    distribution = model.predict_distribution(new)
    np.testing.assert_allclose(distribution.epistemic[:, 0], expected, rtol=1e-9)
    np.testing.assert_allclose(distribution.aleatoric, 0.3)


@pytest.mark.parametrize(
    "given", [{}, {"prior_precision": 2.0}, {"noise_variance": 0.5}, {"prior_precision": [0.5, 1.0, 500.0]}], ids=str
)
def test_learnt_scales_have_the_highest_evidence(given):
    X, y = line()
    model = BayesianLinearRegression(**given, standardize=False).fit(X, y)
    scales = {"prior_precision": model.prior_precision_, "noise_variance": model.noise_variance_}
    again = BayesianLinearRegression(**scales, standardize=False).fit(X, y)
    assert again.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-9)
    for name in scales.keys() - given.keys():
        for factor in (0.7, 0.97, 1.03, 1.4):
            other = BayesianLinearRegression(**{**scales, name: scales[name] * factor}, standardize=False).fit(X, y)
            assert other.log_evidence_ < model.log_evidence_
    assert 2.0 < model.effective_parameters_ < 3.0


def test_it_agrees_with_bayesian_ridge_where_the_intercept_is_free():
    X, y = load_diabetes(return_X_y=True)
    ours = BayesianLinearRegression(standardize=False).fit(X, y)
    theirs = BayesianRidge(tol=1e-10, max_iter=10_000).fit(X, y)
    ours_mean, ours_sd = ours.predict(X, return_std=True)
    theirs_mean, theirs_sd = theirs.predict(X, return_std=True)
    np.testing.assert_allclose(ours_mean, theirs_mean, atol=0.5)  # of a y with sd 77
    np.testing.assert_allclose(ours_sd, theirs_sd, rtol=0.01)


def test_the_posterior_can_be_conditioned_on_more():
    X, y = line()
    scales = {"prior_precision": 1.0, "noise_variance": 0.3, "standardize": False}
    whole = BayesianLinearRegression(**scales).fit(X, y)
    half = BayesianLinearRegression(**scales).fit(X[:20], y[:20])
    both = half.posterior_.condition((X[20:], y[20:]))
    np.testing.assert_allclose(both.mean[:-1], whole.coef_, atol=1e-10)
    np.testing.assert_allclose(both.predict(X).mean[:, 0], whole.predict(X), atol=1e-10)
    assert half.log_evidence_ + float(both.log_evidence()) == pytest.approx(whole.log_evidence_, rel=1e-10)


def test_a_far_intercept_is_found():
    X, y = line()
    model = BayesianLinearRegression(standardize=False).fit(X, y + 1e5)
    assert model.intercept_ == pytest.approx(1e5 + 3.0, abs=0.5)
    assert BayesianLinearRegression().fit(X, y + 1e5).score(X, y + 1e5) > 0.9


def test_the_summary_tells_both_scales_and_units():
    X, y = line()
    assert "inputs: centred" in BayesianLinearRegression().fit(X, y).summary()
    summary = BayesianLinearRegression(standardize=False).fit(X, y).summary()
    assert "inputs: as given" in summary
    assert summary.count("maximises the evidence") == 2
    assert "noise variance" in summary
    assert "maximises" not in BayesianLinearRegression(prior_precision=1.0, noise_variance=1.0).fit(X, y).summary()


def test_standardising_features_and_names():
    X, y = line()
    frame = pd.DataFrame(X * [1e3, 1.0, 1e-2], columns=["a", "b", "c"])
    scaled = BayesianLinearRegression(standardize=True).fit(frame, y)
    plain = BayesianLinearRegression(standardize=True).fit(X, y)
    np.testing.assert_allclose(scaled.predict(frame), plain.predict(X), rtol=1e-8)
    assert scaled.weight_names_ == ("a", "b", "c", "intercept")
    bent = BayesianLinearRegression(features="rbf", fit_intercept=False).fit(X[:, :1], np.sin(X[:, 0]))
    assert bent.score(X[:, :1], np.sin(X[:, 0])) > 0.99
    assert bent.intercept_ == 0.0


def test_it_survives_pickling_and_has_no_lower_bound():
    X, y = line()
    model = BayesianLinearRegression().fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    assert not hasattr(model, "elbo_")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"noise_variance": -1.0}, InputError, "noise_variance"),
        ({"noise_variance": "learn"}, OptionError, "noise_variance"),
        ({"noise_variance": [1.0, 2.0]}, InputError, "a positive number"),
        ({"prior_precision": 0.0}, InputError, "prior_precision"),
        ({"features": "splines"}, OptionError, "features"),
    ],
    ids=str,
)
def test_options_that_cannot_be_used(options: dict[str, object], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        BayesianLinearRegression(**options).fit(*line())
