"""A row of weight w is w equal rows, whatever is fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.class_weight import compute_sample_weight

from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, NeuralAdditiveClassifier

# The classes of these tables are nearly separable: "laplace" warns of its predictions.
pytestmark = pytest.mark.filterwarnings("ignore:posterior='laplace'")

ROWS = 40


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, a latent number to make targets from, and whole weights, some of them 0."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, 3)) * [1.0, 2.0, 0.5] + [0.0, 1.0, 0.0]
    return X, X @ [1.0, -0.5, 0.3] + rng.standard_normal(ROWS), rng.integers(0, 4, ROWS).astype(float)


def classes(latent: np.ndarray, count: int) -> np.ndarray:
    return np.digitize(latent, [0.0] if count == 2 else [-0.8, 0.5])


def assert_same(one: Any, other: Any) -> None:
    """The posteriors agree to 1e-8: covariances relative to their size, as an intercept's may be 10⁴."""
    np.testing.assert_allclose(one.posterior_.mean, other.posterior_.mean, rtol=1e-8, atol=1e-8)
    for name in ("log_evidence_", "elbo_", "prior_precision_", "noise_variance_", "effective_parameters_"):
        assert hasattr(one, name) == hasattr(other, name)
        if hasattr(one, name):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-8)
    if hasattr(one.posterior_, "precision"):
        scale = float(other.posterior_.covariance.abs().max())
        assert float((one.posterior_.covariance - other.posterior_.covariance).abs().max()) < 1e-8 * scale


LOGISTIC = [
    {"posterior": posterior, "link": link, "prior_precision": precision}
    for posterior in ("map", "laplace", "variational", "mean_field", "ep")
    for link in ("logit", "probit")
    for precision in (1.0, "evidence")
]


@pytest.mark.parametrize("options", LOGISTIC, ids=str)
def test_two_classes(options: dict[str, Any]):
    X, latent, weights = table()
    y, again = classes(latent, 2), weights.astype(int)
    weighted = BayesianLogisticRegression(standardize=True, **options).fit(X, y, sample_weight=weights)
    repeated = BayesianLogisticRegression(standardize=True, **options)
    assert_same(weighted, repeated.fit(np.repeat(X, again, 0), np.repeat(y, again)))
    assert f"{(weights > 0).sum()}, which count as {weights.sum():g} by their weights" in weighted.summary()


@pytest.mark.parametrize("posterior", ["laplace", "variational", "mean_field"])
@pytest.mark.parametrize("precision", [1.0, "evidence"])
def test_three_classes(posterior: str, precision: object):
    X, latent, weights = table()
    y, again = classes(latent, 3), weights.astype(int)
    options = {"posterior": posterior, "prior_precision": precision}
    weighted = BayesianLogisticRegression(**options).fit(X, y, sample_weight=weights)
    assert_same(weighted, BayesianLogisticRegression(**options).fit(np.repeat(X, again, 0), np.repeat(y, again)))


@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # a short chain
@pytest.mark.parametrize("posterior", ["metropolis", "nuts"])
def test_chains_walk_the_same_density(posterior: str):
    X, latent, weights = table()
    y, again = classes(latent, 2), weights.astype(int)
    options = {"posterior": posterior, "draws": 20, "tune": 20, "chains": 2, "random_state": 0}
    weighted = BayesianLogisticRegression(**options).fit(X, y, sample_weight=weights)
    repeated = BayesianLogisticRegression(**options).fit(np.repeat(X, again, 0), np.repeat(y, again))
    np.testing.assert_allclose(weighted.posterior_.draws, repeated.posterior_.draws, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prior_precision": 1.0},
        {"noise_variance": 0.5},
        {"prior_precision": [1.0, 2.0, 3.0], "noise_variance": 0.5},
        {"standardize": True},
        {"fit_intercept": False},
        {"features": "polynomial"},
    ],
    ids=str,
)
def test_regression(options: dict[str, Any]):
    X, latent, weights = table()
    again = weights.astype(int)
    weighted = BayesianLinearRegression(**options).fit(X, latent, sample_weight=weights)
    repeated = BayesianLinearRegression(**options).fit(np.repeat(X, again, 0), np.repeat(latent, again))
    assert_same(weighted, repeated)


@pytest.mark.parametrize(
    "estimator", [BayesianLinearRegression(), *(BayesianLogisticRegression(**options) for options in LOGISTIC[::4])]
)
def test_equal_weights_change_nothing_and_gaps_are_weighed_too(estimator: Any):
    X, latent, weights = table()
    X[::5, 0] = np.nan
    y = latent if isinstance(estimator, BayesianLinearRegression) else classes(latent, 2)
    plain = clone(estimator).fit(X, y)
    np.testing.assert_array_equal(clone(estimator).fit(X, y, sample_weight=np.ones(ROWS)).coef_, plain.coef_)
    again = weights.astype(int)
    weighted = clone(estimator).fit(X, y, sample_weight=weights)
    assert_same(weighted, clone(estimator).fit(np.repeat(X, again, 0), np.repeat(y, again)))


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_broken_weights_in_expectation_propagation_stay_near_the_variational_answer(link: str):
    """Half the weight on each of two equal rows is one row; only whole copies have the same sites."""
    X, latent, _ = table()
    y, weights = classes(latent, 2), np.random.default_rng(1).uniform(0.2, 3.0, ROWS)
    ep = BayesianLogisticRegression(link=link, posterior="ep").fit(X, y, sample_weight=weights)
    bound = BayesianLogisticRegression(link=link, posterior="variational").fit(X, y, sample_weight=weights)
    assert 0.0 < ep.log_evidence_ - bound.elbo_ < 0.1
    sd = bound.posterior_.covariance.diagonal().sqrt()
    assert float(((ep.posterior_.mean - bound.posterior_.mean).abs() / sd).max()) < 0.1


def test_weights_that_cannot_be_used():
    X, latent, _ = table()
    for bad, message in ((-np.ones(ROWS), "no negative"), (np.zeros(ROWS), "non-zero"), (np.ones(3), "each of the 40")):
        with pytest.raises(InputError, match=message):
            BayesianLinearRegression().fit(X, latent, sample_weight=bad)
        with pytest.raises(InputError, match=message):
            BayesianLogisticRegression().fit(X, classes(latent, 2), sample_weight=bad)
    with pytest.raises(InputError, match="two classes"):
        BayesianLogisticRegression().fit(X, classes(latent, 2), sample_weight=classes(latent, 2))


def test_class_weights_multiply_those_of_the_rows():
    X, latent, weights = table()
    y = np.where(latent > 0.7, "yes", "no")
    weights += 0.5
    told = BayesianLogisticRegression(class_weight={"yes": 4.0}).fit(X, y, sample_weight=weights)
    by_hand = BayesianLogisticRegression().fit(X, y, sample_weight=weights * np.where(y == "yes", 4.0, 1.0))
    np.testing.assert_array_equal(told.coef_, by_hand.coef_)
    assert "no × 1, yes × 4; probabilities are those of the data reweighted so" in told.summary()
    balanced = BayesianLogisticRegression(class_weight="balanced").fit(X, y).predict_proba(X)[:, 1]
    assert np.average(balanced, weights=compute_sample_weight("balanced", y)) == pytest.approx(0.5, abs=0.02)


def test_class_weights_of_an_additive_model():
    X, latent, _ = table()
    y = latent > 0.7
    options = {"epochs": 8, "prior_precision": 1.0, "random_state": 0}
    told = NeuralAdditiveClassifier(class_weight={True: 4.0}, **options).fit(X[:, :1], y)
    by_hand = NeuralAdditiveClassifier(**options).fit(X[:, :1], y, sample_weight=np.where(y, 4.0, 1.0))
    np.testing.assert_array_equal(told.predict_proba(X[:, :1]), by_hand.predict_proba(X[:, :1]))
    assert "True × 4" in told.summary()
    with pytest.raises(UnsupportedError, match="several labels per row"):
        NeuralAdditiveClassifier(class_weight="balanced", **options).fit(X[:, :1], np.column_stack([y, ~y]))


def test_a_classifier_may_abstain():
    X, latent, _ = table()
    for y in (classes(latent, 2), np.where(latent > 0, "yes", "no")):
        fitted = BayesianLogisticRegression().fit(X, y)
        probs, sure = fitted.predict_proba(X).max(axis=1), fitted.predict(X)
        answer = fitted.predict(X, abstain=0.8)
        assert answer.dtype == object
        assert [said is None for said in answer] == (probs < 0.8).tolist()
        assert all(said == label for said, label in zip(answer, sure, strict=True) if said is not None)
    with pytest.raises(InputError, match="abstain: expected a number strictly between 0 and 1, got 1"):
        fitted.predict(X, abstain=1)
    several = np.column_stack([latent > 0, latent > 0.5]).astype(int)
    additive = NeuralAdditiveClassifier(epochs=8, prior_precision=1.0, random_state=0).fit(X, several)
    probs = additive.predict_proba(X)
    answer = additive.predict(X, abstain=0.9)
    np.testing.assert_array_equal(answer == None, np.maximum(probs, 1 - probs) < 0.9)  # noqa: E711
