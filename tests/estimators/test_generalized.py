"""Generalised linear models: exact modes and covariances, learnt hyperparameters, and invariance."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import gammaln

import bayescope as bs
from bayescope.errors import (
    BayescopeWarning,
    InputError,
    NotPositiveDefiniteError,
    OptionError,
    UnsupportedError,
)
from bayescope.estimators import BayesianGeneralizedLinearModel, BayesianLinearRegression
from bayescope.likelihoods import NegativeBinomial

# The table's counts vary more than a Poisson says, of which `test_additive_outcomes` sees the warning.
pytestmark = pytest.mark.filterwarnings("ignore:likelihood='poisson' gives y")


def table(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((rows, 3))
    return X, rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(X @ [0.5, -0.3, 0.0] + 1.0)))


def fitted(X: object, y: object, **options: object) -> BayesianGeneralizedLinearModel:
    return BayesianGeneralizedLinearModel(**{"likelihood": "poisson", **options}).fit(X, y)


def log_joint(theta: np.ndarray, X: np.ndarray, y: np.ndarray, r: float | None) -> float:
    """Of the Poisson, or the negative binomial of size r, with the prior precision 2 of the weights alone."""
    f = X @ theta[:-1] + theta[-1]
    if r is None:
        rows = y * f - np.exp(f) - gammaln(y + 1.0)
    else:
        rows = y * f - (y + r) * np.log(r + np.exp(f)) + r * np.log(r) + gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
    return float(rows.sum() - theta[:-1] @ theta[:-1] + 1.5 * np.log(2.0 / (2.0 * np.pi)))


@pytest.mark.parametrize(("likelihood", "r"), [("poisson", None), (NegativeBinomial(0.5), 2.0)])
def test_laplace_is_that_of_the_formulas(likelihood: object, r: float | None):
    X, y = table()
    model = fitted(X, y, likelihood=likelihood, posterior="laplace", prior_precision=2.0, standardize=False)
    best = minimize(lambda theta: -log_joint(theta, X, y, r), np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose([*model.coef_, model.intercept_], best, atol=1e-6)
    mean = np.exp(X @ best[:-1] + best[-1])
    curvature = mean if r is None else (y + r) * mean * r / (r + mean) ** 2
    # The posterior's intercept is f at the inputs' means.
    J = np.c_[X - X.mean(0), np.ones(len(X))]
    A = (J * curvature[:, None]).T @ J + np.diag([2.0, 2.0, 2.0, 0.0])
    np.testing.assert_allclose(model.posterior_.covariance, np.linalg.inv(A), rtol=1e-5)
    evidence = log_joint(best, X, y, r) + 2.0 * np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(A)[1]
    assert model.log_evidence_ == pytest.approx(evidence, abs=1e-6)  # BFGS ends 1e-6 from the mode


def test_the_gaussian_is_linear_regression():
    X, y = table()
    target = np.log1p(y) + X[:, 0]
    model = fitted(X, target, likelihood="gaussian", posterior="laplace")
    exact = BayesianLinearRegression().fit(X, target)
    assert model.hyperparameters_["noise_variance"] == pytest.approx(exact.noise_variance_, rel=1e-5)
    assert model.prior_precision_ == pytest.approx(exact.prior_precision_, rel=1e-5)
    assert model.log_evidence_ == pytest.approx(exact.log_evidence_, abs=1e-6)
    (mean, sd), (exact_mean, exact_sd) = (each.predict(X, return_std=True) for each in (model, exact))
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-5)
    np.testing.assert_allclose(sd, exact_sd, rtol=1e-4)  # the generalised model's includes the noise's uncertainty


@pytest.mark.parametrize("factor", [1, 1_000_000])
def test_counts_of_any_size_are_fitted(factor: int):
    X, y = table()
    model = fitted(X, y * factor, prior_precision=1e-3)
    assert model.predict(X).sum() == pytest.approx(y.sum() * factor, rel=1e-2)


@pytest.mark.parametrize("seed", [0, 5])
def test_no_zeros_beyond_those_of_a_poisson_end_the_search(seed: int):
    """The evidence is level towards a share of 0: its slope there is rounding."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((400, 3))
    y = rng.poisson(np.exp(0.5 + X @ [0.4, -0.3, 0.0]))
    assert fitted(X, y, likelihood="zero_inflated_poisson").hyperparameters_["zero_probability"] < 1e-4


def test_means_that_say_nothing_are_reported_with_the_first_row():
    """E exp(f) is exp(v/2) times as large as the median, for an f with the variance v."""
    X, y = table()
    model = fitted(X, y, posterior="laplace")
    far = np.vstack([X[:3], [[60.0, 0.0, 60.0]], X[3:5]])
    with pytest.warns(BayescopeWarning, match=r"predict: 1 of 6 rows, the first of them row 3, .*quantile\(0\.5\)"):
        model.predict(far)
    model.predict(X)  # without a warning


def test_counts_that_are_all_zero_have_a_proper_answer():
    X, _ = table()
    model = fitted(X, np.zeros(len(X)))
    assert 0.0 < model.predict(X).max() < 0.1  # Laplace's mean is 0.4


def test_means_and_variances_are_those_of_the_lognormal_mixture():
    X, y = table()
    model = fitted(X, y, posterior="laplace")
    mean, sd = model.predict(X, return_std=True)
    latent = model.predict_distribution(X)
    m, v = latent.latent_mean[:, 0], latent.latent_cov[:, 0, 0]
    np.testing.assert_allclose(mean, np.exp(m + 0.5 * v), rtol=1e-10)
    np.testing.assert_allclose(sd**2, np.exp(m + 0.5 * v) + np.exp(2 * m + v) * np.expm1(v), rtol=1e-10)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_units_origins_columns_and_rows_change_nothing(likelihood: str):
    X, y = table()
    model = fitted(X, y, likelihood=likelihood, posterior="laplace")
    mean, sd = model.predict(X, return_std=True)
    order = np.random.default_rng(0).permutation(len(X))
    for other, rows in ((X * [1e-3, 1.0, 1e4] + [5.0, 0.0, -1e3], slice(None)), (X[:, ::-1], slice(None)), (X, order)):
        again = fitted(other[rows], y[rows], likelihood=likelihood, posterior="laplace")
        for ours, theirs in zip(again.predict(other, return_std=True), (mean, sd), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        assert again.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-6)


def test_a_row_of_weight_two_is_two_rows():
    X, y = table()
    weights = np.where(np.arange(len(X)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(X)), weights.astype(int))
    options = {"likelihood": "negative_binomial", "posterior": "laplace", "standardize": False}
    one = BayesianGeneralizedLinearModel(**options).fit(X, y, weights)
    two = BayesianGeneralizedLinearModel(**options).fit(X[twice], y[twice])
    assert one.hyperparameters_["dispersion"] == pytest.approx(two.hyperparameters_["dispersion"], rel=1e-5)
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-5)
    assert one.log_evidence_ == pytest.approx(two.log_evidence_, abs=1e-6)


def test_several_outcomes_have_a_column_each():
    X, y = table()
    both = pd.DataFrame({"visits": y, "calls": y[::-1]})
    model = fitted(X, both, likelihood="negative_binomial", posterior="laplace", prior_precision=1.0)
    alone = [fitted(X, both[name], likelihood="negative_binomial", posterior="laplace", prior_precision=1.0)
             for name in both]  # fmt: skip
    assert model.coef_.shape == (2, 3)
    np.testing.assert_allclose(model.predict(X), np.stack([each.predict(X) for each in alone], 1), rtol=1e-5)
    each = [one.hyperparameters_["dispersion"] for one in alone]
    np.testing.assert_allclose(model.hyperparameters_["dispersion"], each, rtol=1e-5)
    assert set(model.coefficients()["class"]) == {"visits", "calls"}


def test_a_saved_model_answers_with_the_same_bits(tmp_path: Path):
    X, y = table()
    model = fitted(X, y, likelihood="negative_binomial", posterior="laplace")
    again = bs.load(model.save(tmp_path / "model.bayes"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.hyperparameters_ == model.hyperparameters_


@pytest.mark.parametrize(("change", "got"), [(lambda y: y - 1, "-1 in row"), (lambda y: y + 0.5, r"\d+\.5 in row")])
def test_what_is_no_count_is_refused_by_row_and_column(change, got: str):
    X, y = table()
    with pytest.raises(InputError, match=rf"y: expected whole numbers of at least 0, got {got} \d+ of column 'visits'"):
        fitted(X, pd.Series(change(y), name="visits"))
    frame = pd.DataFrame(X, columns=list("abc")).assign(visits=change(y))
    with pytest.raises(InputError, match=rf"got {got} \d+ of column 'visits'. Give whole counts"):
        fitted(frame, "visits")


@pytest.mark.parametrize("posterior", ["auto", "map", "laplace", "variational", "mean_field", "ep"])
def test_every_posterior_fits_predicts_and_takes_an_exposure(posterior: str):
    X, y = table()
    exposure = np.linspace(0.2, 5.0, len(X))
    model = fitted(X, y, posterior=posterior, prior_precision=1.0)
    same = BayesianGeneralizedLinearModel(**model.get_params()).fit(X, y, exposure=np.full(len(X), 2.0))
    np.testing.assert_allclose(same.predict(X, exposure=np.full(len(X), 2.0)), model.predict(X), rtol=1e-5)
    other = BayesianGeneralizedLinearModel(**model.get_params()).fit(X, y, exposure=exposure)
    logs = BayesianGeneralizedLinearModel(**model.get_params()).fit(X, y, offset=np.log(exposure))
    np.testing.assert_allclose(other.predict(X), logs.predict(X), rtol=1e-12)
    np.testing.assert_allclose(other.predict(X, exposure=exposure), exposure * other.predict(X), rtol=1e-12)
    assert other.score(X, other.predict(X, exposure=exposure), exposure=exposure) == 1.0
    low, high = other.predict_distribution(X, exposure=exposure).interval(0.9, of="outcome")
    assert np.mean((low[:, 0] <= y) & (y <= high[:, 0])) > 0.7
    named = pd.DataFrame(X, columns=list("abc")).assign(y=y, months=exposure)
    again = BayesianGeneralizedLinearModel(**model.get_params()).fit(named, "y", exposure="months")
    np.testing.assert_array_equal(again.coef_, other.coef_)


def lifetimes() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((120, 2))
    life, watch = np.exp(X @ [0.5, -0.6] + 1.0) * rng.weibull(1.7, 120), rng.exponential(6.0, 120)
    return X, np.minimum(life, watch), (life <= watch).astype(float), life


def test_censored_lifetimes_are_those_of_the_maximum_of_the_likelihood():
    X, time, event, _ = lifetimes()

    def loss(point: np.ndarray) -> float:
        shape = np.exp(point[3])
        z = shape * (np.log(time) - X @ point[:2] - point[2])
        return float(-(event * (np.log(shape / time) + z) - np.exp(z)).sum())

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    options = {"posterior": "laplace", "prior_precision": 0, "standardize": False}
    model = fitted(X, bs.Censored(time, event), likelihood=bs.Weibull(np.exp(best[3])), **options)
    np.testing.assert_allclose([*model.coef_, model.intercept_], best[:3], atol=1e-6)
    learnt = fitted(X, bs.Censored(time, event), likelihood="weibull", posterior="laplace")
    assert learnt.hyperparameters_["shape"] == pytest.approx(np.exp(best[3]), rel=0.05)


@pytest.mark.parametrize("likelihood", ["gamma", "weibull", "exponential", "log_normal", "student_t"])
def test_each_likelihood_is_learnt_in_any_unit(likelihood: str):
    X, _, _, life = lifetimes()
    y = np.log(life) if likelihood == "student_t" else life
    model = fitted(X, y, likelihood=likelihood, posterior="variational")
    other = fitted(X, 1e6 * y, likelihood=likelihood, posterior="variational")
    np.testing.assert_allclose(other.predict(X), 1e6 * model.predict(X), rtol=1e-5, atol=1.0)
    assert model.score(X, y) > 0.2


def test_an_exposure_that_cannot_be_is_refused():
    X, y = table()
    ones = np.ones(len(X))
    with pytest.raises(UnsupportedError, match="exposure: expected a likelihood with a log link"):
        BayesianGeneralizedLinearModel().fit(X, y, exposure=ones)
    ones[7] = 0.0
    with pytest.raises(InputError, match="exposure: expected positive numbers, got 0 in row 7"):
        BayesianGeneralizedLinearModel(likelihood="poisson").fit(X, y, exposure=ones)
    with pytest.raises(OptionError, match="got both"):
        BayesianGeneralizedLinearModel(likelihood="poisson").fit(X, y, exposure=ones, offset=ones)


def test_classes_are_sent_to_logistic_regression():
    X, y = table()
    with pytest.raises(UnsupportedError, match="Use BayesianLogisticRegression or another classifier"):
        fitted(X, y > 0, likelihood="bernoulli")


def test_counts_of_millions_have_a_dispersion():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 1))
    y = rng.poisson(1e6 * np.exp(0.8 * x[:, 0]) * rng.gamma(2.0, 0.5, 300))
    found = [
        BayesianGeneralizedLinearModel(likelihood="negative_binomial").fit(x, y // k).hyperparameters_["dispersion"]
        for k in (1, 10)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_times_that_are_all_censored_are_refused():
    with pytest.raises(InputError, match="y: expected at least one event, got times that are censored in all rows"):
        BayesianGeneralizedLinearModel(likelihood="weibull").fit([[0.0], [1.0]], bs.Censored([1.0, 2.0], [0, 0]))


def test_one_row_has_an_answer_and_a_flat_prior_says_what_it_lacks():
    assert fitted([[0.0]], [3], prior_precision=1.0).predict([[0.0]])[0] == pytest.approx(3.5, abs=1.0)
    with pytest.raises(NotPositiveDefiniteError, match="expected a prior under which the other rows determine what"):
        fitted([[0.0]], [3], posterior="ep", prior_precision=1.0)
    with pytest.raises(NotPositiveDefiniteError, match=r"Give prior_precision= and intercept_prior_precision= above 0"):
        fitted([[0.0], [1.0]] * 10, [0, 3] * 10, prior_precision=0, posterior="ep")


def test_the_degrees_of_freedom_of_light_tails_end_at_a_million():
    """Beyond them nothing changes: the evidence is that of a Gaussian."""
    rng = np.random.default_rng(6)
    X = rng.standard_normal((60, 1))
    y = X[:, 0] + rng.uniform(-1.0, 1.0, 60)
    model = fitted(X, y, likelihood="student_t", posterior="laplace")
    gaussian = fitted(X, y, likelihood="gaussian", posterior="laplace")
    assert 100.0 < model.hyperparameters_["degrees_of_freedom"] <= 1e6
    assert model.log_evidence_ == pytest.approx(gaussian.log_evidence_, abs=0.01)
    np.testing.assert_allclose(model.predict(X), gaussian.predict(X), atol=1e-3)


@pytest.mark.parametrize("columns", [1, 2])
def test_laplace_is_exact_for_gaussian_noise_and_taken_without_a_warning(columns: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((25, 6))
    y = X[:, :columns] + rng.standard_normal((25, columns))
    for posterior in ("laplace", "auto"):
        model = BayesianGeneralizedLinearModel(posterior=posterior).fit(X, y)
        assert model.posterior_.record.method == "laplace"


def test_what_laplace_adds_to_the_loss_of_several_counts_is_that_of_its_predictions() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((25, 4))
    y = rng.poisson(np.exp(X[:, :2]))
    options = {"likelihood": "poisson", "posterior": "laplace", "prior_precision": 0.01}
    with pytest.warns(BayescopeWarning, match="adds") as caught:
        model = BayesianGeneralizedLinearModel(**options).fit(X, y)
    predicted = model.predict_distribution(X)
    at_mode = bs.Poisson().log_prob(torch.from_numpy(predicted.latent_mean), torch.from_numpy(y.astype(float))).numpy()
    (message,) = [str(each.message) for each in caught]
    said = re.search(r"adds (\S+) nats", message)
    assert said is not None
    assert float(said[1]) == pytest.approx((at_mode - predicted.log_prob(y)).mean(), rel=0.05)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("likelihood", ["binomial", "given trials", "zero_inflated_poisson"])
def test_trials_and_counts_with_zeros_that_vary_too_much_are_reported(likelihood: str, spread: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    share = rng.beta(0.3, 0.3, 300) if spread else 0.3
    successes = rng.binomial(20, share, 300)
    counts = np.where(rng.random(300) < 0.3, 0, rng.poisson(10.0 * rng.gamma(0.5, 2.0, 300) if spread else 4.0))
    y = {"binomial": np.c_[successes, np.full(300, 20)], "given trials": successes}.get(likelihood, counts)
    given = bs.Binomial(20) if likelihood == "given trials" else likelihood
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BayesianGeneralizedLinearModel(likelihood=given).fit(X, y)
    said = [str(each.message) for each in caught if "less variance" in str(each.message)]
    assert len(said) == spread
    assert not spread or ("groups=" in said[0]) == (likelihood != "zero_inflated_poisson")
