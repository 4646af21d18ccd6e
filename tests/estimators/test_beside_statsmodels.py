"""Coefficients, standard errors and log likelihoods under a flat prior are those of statsmodels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from numpy.testing import assert_allclose
from sklearn.linear_model import TweedieRegressor
from statsmodels.miscmodels.ordinal_model import OrderedModel

from bayescope.errors import InputError
from bayescope.estimators import BayesianGeneralizedLinearModel
from bayescope.estimators.base import MissingAttributeError
from bayescope.likelihoods import Gamma, Gaussian, Likelihood, NegativeBinomial, Poisson, Tweedie

CASES = {
    "poisson": (Poisson(), sm.families.Poisson()),
    "negative binomial": (NegativeBinomial(0.5), sm.families.NegativeBinomial(alpha=0.5)),
    "gamma": (Gamma(2.0), sm.families.Gamma(sm.families.links.Log())),
    "gaussian": (Gaussian(2.0), sm.families.Gaussian()),
    "tweedie": (Tweedie(1.5, 2.0), sm.families.Tweedie(sm.families.links.Log(), var_power=1.5)),
}

# The point is compared, whatever the counts vary.
pytestmark = pytest.mark.filterwarnings("ignore:likelihood='poisson' gives y")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_maximum_likelihood_is_that_of_statsmodels(case: str, weighted: bool):
    likelihood, family = CASES[case]
    rng = np.random.default_rng(0)
    X, exposure = rng.standard_normal((200, 3)) * [1.0, 20.0, 0.1] + [0.0, 5.0, 1.0], rng.uniform(0.5, 3.0, 200)
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + exposure * np.exp(X @ [0.5, -0.02, 1.0])))
    offset = np.log(exposure)
    y = y + 0.5 if case == "gamma" else y
    weights = rng.integers(1, 4, 200) if weighted else None
    model = BayesianGeneralizedLinearModel(
        likelihood=likelihood, posterior="laplace", prior_precision=0, standardize=False
    ).fit(X, y, weights, offset=offset)
    theirs = sm.GLM(y, sm.add_constant(X), family=family, offset=offset, freq_weights=weights).fit(tol=1e-13, scale=1.0)
    table = model.coefficients().set_index("name").loc[["intercept", "x0", "x1", "x2"]]
    assert_allclose(table["mean"], theirs.params, rtol=1e-6)
    scale = {"gaussian": 2.0, "gamma": 0.5, "tweedie": 2.0}.get(case, 1.0)
    information = -theirs.model.hessian(theirs.params, scale=scale, observed=True)
    assert_allclose(table["sd"], np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-6)
    if case in ("poisson", "negative binomial", "tweedie"):
        f = X @ model.coef_ + model.intercept_ + offset
        family.eql = False  # the series, in place of a saddlepoint
        each = family.loglike_obs(y, np.exp(f), scale=scale) if case == "tweedie" else None
        expected = theirs.llf if each is None else each @ (np.ones(200) if weights is None else weights)
        assert log_likelihood(model.likelihood_, f, y, weights) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(MissingAttributeError, match="flat: give a positive prior_precision"):
        _ = model.log_evidence_


def test_amounts_have_the_weights_of_scikit_learn():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 2))
    f = torch.from_numpy(1.0 + X @ [0.5, -0.3])[:, None]
    y = Tweedie(1.3, 2.0).sample(f, torch.Generator().manual_seed(0))[:, 0].numpy()
    options = {"posterior": "laplace", "prior_precision": 0, "standardize": False}
    model = BayesianGeneralizedLinearModel(likelihood=Tweedie(1.3, 2.0), **options).fit(X, y)
    theirs = TweedieRegressor(power=1.3, alpha=0.0, link="log", solver="newton-cholesky", tol=1e-10).fit(X, y)
    assert_allclose([*model.coef_, model.intercept_], [*theirs.coef_, theirs.intercept_], rtol=1e-6)


def log_likelihood(likelihood: Likelihood, f: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> float:
    rows = likelihood.log_prob(torch.from_numpy(f)[:, None], torch.from_numpy(y.astype(float))[:, None]).numpy()
    return float(rows.sum() if weights is None else rows @ weights)


def test_a_flat_prior_needs_a_flat_intercept():
    with pytest.raises(InputError, match="prior_precision"):
        BayesianGeneralizedLinearModel(likelihood="poisson", prior_precision=0, intercept_prior_precision=1.0).fit(
            [[0.0], [1.0]], [1, 2]
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_successes_of_trials_are_those_of_statsmodels(weighted: bool):
    rng = np.random.default_rng(0)
    X, trials, offset = rng.standard_normal((150, 2)) * [1.0, 20.0], rng.integers(0, 12, 150), rng.standard_normal(150)
    y = rng.binomial(trials, 1.0 / (1.0 + np.exp(-(X @ [0.8, -0.02] - 0.3 + offset))))
    weights = rng.integers(1, 4, 150) if weighted else None
    model = BayesianGeneralizedLinearModel(
        likelihood="binomial", posterior="laplace", prior_precision=0, standardize=False
    ).fit(X, np.c_[y, trials], weights, offset=offset)
    some = trials > 0  # statsmodels divides by them
    known = {"offset": offset[some], "freq_weights": None if weights is None else weights[some]}
    pair = np.c_[y, trials - y][some]
    theirs = sm.GLM(pair, sm.add_constant(X[some]), family=sm.families.Binomial(), **known).fit(tol=1e-13)
    table = model.coefficients().set_index("name").loc[["intercept", "x0", "x1"]]
    assert_allclose(table["mean"], theirs.params, rtol=1e-6)
    assert_allclose(table["sd"], theirs.bse, rtol=1e-6)
    f = torch.from_numpy(X @ model.coef_ + model.intercept_ + offset)[:, None]
    rows = model.likelihood_.log_prob(f, torch.from_numpy(1.0 * np.c_[y, trials])).numpy()
    assert rows @ (np.ones(150) if weights is None else weights) == pytest.approx(theirs.llf, rel=1e-6)
    shares, counts = y[some] / trials[some], trials[some] * (1 if weights is None else weights[some])
    residual, spread = shares - theirs.fittedvalues, shares - np.average(shares, weights=counts)
    score = model.score(X, np.c_[y, trials], weights, offset=offset)
    assert score == pytest.approx(1.0 - counts @ residual**2 / (counts @ spread**2), abs=0.01)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_ordered_classes_are_those_of_statsmodels(link: str):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3)) * [1.0, 20.0, 0.1] + [0.0, 5.0, 1.0]
    y = np.digitize(X @ [1.0, -0.03, 3.0] + rng.logistic(size=200), [1.0, 3.0, 4.5]) + 3
    model = BayesianGeneralizedLinearModel(
        likelihood="ordinal" if link == "logit" else "ordinal_probit", posterior="laplace", prior_precision=0,
        standardize=False,
    ).fit(X, y)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for a slope of exactly 0
        theirs = OrderedModel(y, X, distr=link).fit(method="newton", disp=0, tol=1e-12, maxiter=100)
    assert list(model.classes_) == [3, 4, 5, 6]
    table = model.coefficients().set_index("name")
    slopes = np.eye(6)  # of its coefficients, first cutpoint and logs of the steps, to coefficients and cutpoints
    slopes[3:, 4:] = np.tril(np.ones((3, 3)))[:, 1:] * np.exp(theirs.params[4:])
    slopes[3:, 3] = 1.0
    sd = np.sqrt(np.diag(slopes @ theirs.cov_params() @ slopes.T))
    cutpoints = theirs.model.transform_threshold_params(theirs.params)[1:-1]
    assert_allclose(table["mean"], [*theirs.params[:3], *cutpoints], rtol=1e-6)
    assert_allclose(table["sd"], sd, rtol=1e-5)  # its Hessian is by differences
    assert list(table.index[3:]) == ["3 | 4", "4 | 5", "5 | 6"]
    p = model.predict_proba(X)
    assert_allclose(p, theirs.predict(X), atol=0.03)  # averaged over the weights
    f = torch.from_numpy(X @ model.coef_ + model.intercept_)[:, None]
    log_prob = model.likelihood_.log_prob(f, torch.from_numpy(y - 3))
    assert float(log_prob.sum()) == pytest.approx(theirs.llf, rel=1e-9)


def test_a_learnt_dispersion_under_a_flat_prior_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 2))
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(X @ [0.5, -0.3] + 1.0)))
    model = BayesianGeneralizedLinearModel(
        likelihood="negative_binomial", posterior="laplace", prior_precision=0, standardize=False
    ).fit(X, y)
    theirs = sm.NegativeBinomial(y, sm.add_constant(X)).fit(disp=0, method="newton", tol=1e-12)
    table = model.coefficients().set_index("name").loc[["intercept", "x0", "x1"]]
    assert_allclose([*table["mean"], model.hyperparameters_["dispersion"]], theirs.params, rtol=1e-6)
    assert_allclose(table["sd"], theirs.bse[:3], rtol=1e-6)
