"""Laws of partial_fit: the posterior becomes the prior, which is exact for a Gaussian likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import bayescope as bs
from bayescope.errors import InputError, UndefinedQuantityError, UnsupportedError

rng = np.random.default_rng(0)
X = rng.normal([0.0, 5.0, -1.0], size=(300, 3))
y = X @ [1.0, 0.5, -1.0] + 0.3 * rng.normal(size=300)
labels = np.where(y + rng.logistic(size=300) > y.mean(), "yes", "no")
weights = rng.integers(0, 3, 300).astype(float)
PARTS = (slice(0, 40), slice(40, 41), slice(41, 300))


def in_parts(model, target, sample_weight=None):
    for part in PARTS:
        model.partial_fit(X[part], target[part], sample_weight=None if sample_weight is None else sample_weight[part])
    return model


@pytest.mark.parametrize("sample_weight", [None, weights], ids=["once", "weighted"])
@pytest.mark.parametrize("options", [{}, {"intercept_prior_precision": 0.5}, {"fit_intercept": False}], ids=str)
def test_linear_regression_in_parts_is_that_of_all_rows(options, sample_weight):
    model = bs.BayesianLinearRegression(prior_precision=2.0, noise_variance=0.1, standardize=False, **options)
    whole, parts = clone(model).fit(X, y, sample_weight), in_parts(model, y, sample_weight)
    for name in ("coef_", "intercept_", "log_evidence_", "effective_parameters_"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-10, err_msg=name)
    for name in ("mean", "variance", "epistemic"):
        found, expected = (getattr(each.predict_distribution(X), name) for each in (parts, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("posterior", ["laplace", "variational", "ep"])
def test_classes_in_parts_are_near_those_of_all_rows(posterior):
    model = bs.BayesianLogisticRegression(prior_precision=1.0, posterior=posterior, standardize=False)
    whole = clone(model).fit(X, labels)
    parts = model.partial_fit(X[:150], labels[:150], classes=["no", "yes"]).partial_fit(X[150:], labels[150:])
    sd = np.sqrt(np.diag(np.linalg.inv(whole.posterior_.precision.to_dense())))[:3]
    assert (np.abs(parts.coef_ - whole.coef_)[0] < 0.3 * sd).all()
    half = clone(model).fit(X[:150], labels[:150])
    assert (np.abs(half.coef_ - whole.coef_)[0] > 0.3 * sd).any()  # what the second part tells


def test_the_first_call_with_classes_takes_sparse_rows():
    model = bs.BayesianLogisticRegression(posterior="laplace", prior_precision=1.0)
    part = sparse.csr_matrix(X)
    found = clone(model).partial_fit(part, labels, classes=["no", "yes"]).coef_
    np.testing.assert_allclose(found, model.fit(X, labels).coef_, rtol=1e-10)


def test_what_cannot_go_on_is_refused_and_leaves_the_model_as_it_was():
    model = bs.BayesianLogisticRegression(posterior="laplace", prior_precision=1.0).fit(X, labels)
    before = model.predict_proba(X)
    with pytest.raises(InputError, match="'maybe'"):
        model.partial_fit(X[:2], ["yes", "maybe"])
    with pytest.raises(InputError, match="Begin with rows of every class"):
        model.partial_fit(X, labels, classes=["yes", "maybe"])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    with pytest.raises(UndefinedQuantityError, match="condition"):
        clone(model).set_params(posterior="map").fit(X, labels).partial_fit(X, labels)
    with pytest.raises(UnsupportedError, match="class_weight"):
        clone(model).set_params(class_weight="balanced").partial_fit(X, labels)
