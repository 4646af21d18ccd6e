"""Sparse priors in the linear estimators."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, OptionError, UnsupportedError

N, D = 60, 12
PRIORS = ["horseshoe", "laplace"]


def sparse_table(rows: int = N, features: int = D) -> tuple[pd.DataFrame, np.ndarray]:
    """Two of the features matter."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((rows, features))).add_prefix("x")
    return X, 2.0 * X["x3"].to_numpy() - X["x7"].to_numpy() + 0.5 * rng.standard_normal(rows)


def fitted(kind: str, X: Any, y: np.ndarray, **options: Any) -> Any:
    if kind == "linear":
        return bs.BayesianLinearRegression(**options).fit(X, y)
    if kind == "logistic":
        return bs.BayesianLogisticRegression(**options).fit(X, y > 0)
    if kind == "classes":
        return bs.BayesianLogisticRegression(**options).fit(X, np.digitize(y, [-1.0, 1.0]))
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * y))
    return bs.BayesianGeneralizedLinearModel(likelihood="poisson", **options).fit(X, counts)


KINDS = ["linear", "logistic", "classes", "poisson"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prior", PRIORS)
def test_relevance_finds_the_features_that_matter(prior: str, kind: str):
    X, y = sparse_table()
    model = fitted(kind, X, y, prior_precision=prior)
    report = model.relevance()
    assert set(report["feature"][:2]) == {"x3", "x7"}
    assert not report["switched_off"][:2].any()
    if prior == "horseshoe":
        assert report["switched_off"][2:].mean() >= 0.5
    assert model.prior_precision_.shape == (D,)
    assert "switched off by the prior" in model.summary()
    assert math.isfinite(float(model.posterior_.elbo))


def test_the_horseshoe_is_nearer_to_sparse_weights_than_one_precision():
    X, y = sparse_table(60, 50)
    truth = np.zeros(50)
    truth[[3, 7]] = [2.0, -1.0]
    error = {
        prior: float(np.linalg.norm(fitted("linear", X, y, prior_precision=prior, standardize=False).coef_ - truth))
        for prior in ("evidence", "laplace", "horseshoe")
    }
    assert error["horseshoe"] < 0.6 * error["evidence"]
    assert error["horseshoe"] < error["laplace"] < error["evidence"]


@pytest.mark.parametrize("prior", PRIORS)
def test_units_of_x_and_y_do_not_matter(prior: str):
    X, y = sparse_table()
    plain = fitted("linear", X, y, prior_precision=prior)
    moved = fitted("linear", 1e3 * X + 7.0, 1e-4 * y - 3.0, prior_precision=prior)
    np.testing.assert_allclose(moved.coef_, 1e-4 * plain.coef_, atol=1e-8 * np.abs(plain.coef_).max())
    np.testing.assert_allclose(moved.noise_variance_, 1e-8 * plain.noise_variance_, rtol=1e-4)
    ours, theirs = (each.predict(some, return_std=True) for each, some in ((plain, X), (moved, 1e3 * X + 7.0)))
    np.testing.assert_allclose(theirs[0], 1e-4 * ours[0] - 3.0, atol=1e-7)
    np.testing.assert_allclose(theirs[1], 1e-4 * ours[1], rtol=1e-3)


def test_classes_may_be_renamed():
    X, y = sparse_table()
    labels = np.digitize(y, [-1.0, 1.0])
    ours, theirs = (
        bs.BayesianLogisticRegression(prior_precision="horseshoe").fit(X, each).predict_proba(X)
        for each in (labels, 2 - labels)
    )
    np.testing.assert_allclose(ours, theirs[:, ::-1], atol=2e-3)


def test_known_scales_and_words_are_the_same_door():
    X, y = sparse_table()
    word, made = (fitted("linear", X, y, prior_precision=each) for each in ("horseshoe", bs.Horseshoe()))
    np.testing.assert_array_equal(word.coef_, made.coef_)
    unit = float(np.std(y))
    noise = word.noise_variance_
    known = bs.Horseshoe(scale=math.sqrt(noise * N) / (N + 2 * D), slab=2.0 * unit)
    given = fitted("linear", X, y, prior_precision=known, noise_variance=noise)
    np.testing.assert_allclose(given.coef_, word.coef_, atol=1e-4)
    narrow = fitted("linear", X, y, prior_precision=bs.LaplacePrior(scale=1e-3))
    assert np.abs(narrow.coef_).max() < 0.2 * np.abs(word.coef_).max()


def test_mean_field_is_narrower_than_a_full_covariance():
    X, y = sparse_table()
    X["x4"] = 0.9 * X["x3"] + 0.1 * X["x4"]
    full, diagonal = (
        fitted("logistic", X, y, prior_precision="laplace", posterior=each).coefficients()["sd"]
        for each in ("variational", "mean_field")
    )
    assert diagonal.mean() < full.mean()


@pytest.mark.filterwarnings("ignore:nuts")  # of short chains
@pytest.mark.parametrize("prior", PRIORS)
def test_nuts_is_near_variational_inference(prior: str):
    X, y = sparse_table(60, 8)
    options: dict[str, Any] = {"likelihood": bs.Gaussian(0.25), "prior_precision": prior, "random_state": 0}
    near = bs.BayesianGeneralizedLinearModel(**options).fit(X, y)
    drawn = bs.BayesianGeneralizedLinearModel(posterior="nuts", draws=200, tune=200, chains=2, **options).fit(X, y)
    sd = drawn.posterior_.flat.std(0).numpy()[:8]
    assert (np.abs(drawn.coef_ - near.coef_) < 0.5 * sd).all()
    assert drawn.relevance()["feature"][0] == near.relevance()["feature"][0] == "x3"
    assert drawn.posterior_.statistics["diverging"].shape == (2, 200)


def test_it_is_saved_with_its_prior(tmp_path: Path):
    X, y = sparse_table()
    model = fitted("logistic", X, y, prior_precision=bs.Horseshoe(slab=3.0))
    model.save(tmp_path / "model.bayes")
    again = bs.load(tmp_path / "model.bayes")
    assert again.prior_precision == bs.Horseshoe(slab=3.0)
    pd.testing.assert_frame_equal(again.relevance(), model.relevance())
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


REFUSED: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "laplace": ("logistic", {"posterior": "laplace"}, UnsupportedError, "expected one of 'auto', 'variational'"),
    "map": ("logistic", {"posterior": "map"}, UnsupportedError, "for a sparse prior"),
    "ep": ("logistic", {"posterior": "ep"}, UnsupportedError, "Use posterior='auto'"),
    "metropolis": ("poisson", {"posterior": "metropolis"}, UnsupportedError, "got 'metropolis'"),
    "random effects": ("linear", {"groups": "site"}, UnsupportedError, "groups: expected None with a sparse prior"),
    "another word": ("linear", {"prior_precision": "lasso"}, OptionError, "'horseshoe' or 'laplace', got 'lasso'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(name: str):
    kind, options, error, message = REFUSED[name]
    X, y = sparse_table()
    X["site"] = ["a", "b", "c"] * (N // 3)
    with pytest.raises(error, match=message):
        fitted(kind, X, y, **({"prior_precision": "horseshoe"} | options))


def wide(columns: int = 120, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """50 rows in which five of the columns matter; noise of variance 1."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.standard_normal((50, columns))).add_prefix("x")
    return X, X.iloc[:, :5].to_numpy() @ [3.0, -2.5, 2.0, 1.5, -1.5] + rng.standard_normal(50)


@pytest.mark.parametrize("columns", [20, 120])
def test_noise_is_learnt_whether_inputs_outnumber_rows_or_not(columns: int):
    X, y = wide(columns)
    model = bs.BayesianLinearRegression(prior_precision="horseshoe").fit(X, y)
    assert 0.5 < model.noise_variance_ < 1.6
    assert set(model.relevance()["feature"][:5]) == {"x0", "x1", "x2", "x3", "x4"}
    assert (~model.relevance()["switched_off"]).sum() < 12
    general = bs.BayesianGeneralizedLinearModel(prior_precision="horseshoe").fit(X, y)
    assert general.hyperparameters_["noise_variance"] == model.noise_variance_
    np.testing.assert_array_equal(general.coef_, model.coef_)


def test_a_wide_table_may_have_other_units_and_another_order():
    X, y = wide(60)
    plain = fitted("linear", X, y, prior_precision="horseshoe")
    order = np.random.default_rng(1).permutation(60)
    moved = fitted("linear", 1e3 * X.iloc[:, order] + 7.0, 1e-4 * y - 3.0, prior_precision="horseshoe")
    np.testing.assert_allclose(moved.coef_, 1e-4 * plain.coef_[order], atol=1e-6 * np.abs(plain.coef_).max())
    assert moved.noise_variance_ == pytest.approx(1e-8 * plain.noise_variance_, rel=1e-3)


@pytest.mark.parametrize("prior", ["laplace", bs.Horseshoe(scale=0.1)], ids=str)
def test_a_scale_that_does_not_move_with_the_noise_learns_none_of_a_wide_table(prior: Any):
    X, y = sparse_table(20, 40)
    with pytest.raises(UnsupportedError, match="Use 'horseshoe', or give noise_variance as a number"):
        fitted("linear", X, y, prior_precision=prior)
    known = fitted("linear", X, y, prior_precision=prior, noise_variance=0.25)
    assert known.relevance()["feature"][0] == "x3"


@pytest.mark.filterwarnings("ignore:nuts")  # of short chains
def test_linear_regression_by_nuts_has_the_noise_of_variational_inference_and_keeps_the_scales():
    X, y = sparse_table(60, 8)
    near = fitted("linear", X, y, prior_precision="horseshoe")
    options: dict[str, Any] = {"posterior": "nuts", "draws": 100, "tune": 100, "chains": 2, "random_state": 0}
    drawn = fitted("linear", X, y, prior_precision="horseshoe", **options)
    assert drawn.noise_variance_ == near.noise_variance_
    assert (np.abs(drawn.coef_ - near.coef_) < 0.6 * drawn.posterior_.flat.std(0).numpy()[:8]).all()
    tau, local = (drawn.posterior_.scales[name] for name in ("global_scale", "local_scale"))
    assert (tau.shape, local.shape) == ((2, 100), (2, 100, 8))
    precision = 1.0 / (tau[..., None] * local).square() + 1.0 / (4.0 * np.var(y))
    np.testing.assert_allclose(drawn.prior_precision_, precision.log().mean((0, 1)).exp().numpy(), rtol=1e-8)
    named = drawn.to_arviz().posterior
    assert named["local_scale"].dims[-1] == "feature"
    np.testing.assert_array_equal(named["global_scale"], tau)


def test_an_exact_posterior_leaves_no_choice():
    with pytest.raises(UnsupportedError, match="expected 'auto' under a Gaussian prior, whose posterior is exact"):
        bs.BayesianLinearRegression(posterior="nuts").fit(*sparse_table())


NOTHING: dict[str, tuple[Any, Callable[[pd.DataFrame], pd.DataFrame], np.ndarray]] = {
    "constant y": (bs.BayesianLinearRegression, lambda X: X, np.ones(N)),
    "constant columns": (bs.BayesianLinearRegression, lambda X: 0.0 * X, np.arange(N) / N),
    "one row of a class": (bs.BayesianLogisticRegression, lambda X: X, np.arange(N) == 0),
    "counts of 0": (bs.BayesianGeneralizedLinearModel, lambda X: X, np.zeros(N)),
}


@pytest.mark.filterwarnings("ignore")  # that a constant has no noise
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NOTHING)
def test_columns_that_tell_nothing_get_next_to_no_weight(name: str, prior: str):
    kind, change, y = NOTHING[name]
    options = {"likelihood": "poisson"} if kind is bs.BayesianGeneralizedLinearModel else {}
    model = kind(prior_precision=prior, **options).fit(change(sparse_table()[0]), y)
    assert np.abs(model.coef_).max() < 0.5
    assert np.isfinite(model.prior_precision_).all()


DOORS: dict[str, Callable[[Any, torch.nn.Module, Any], object]] = {
    "laplace": lambda prior, net, data: bs.laplace(net, data, likelihood="categorical", prior_precision=prior),
    "nuts": lambda prior, net, data: bs.nuts(net, data, likelihood="categorical", prior_precision=prior),
    "variational": lambda prior, net, data: bs.variational(net, data, likelihood="categorical", prior_precision=prior),
    "MLP": lambda prior, _, data: bs.BayesianMLPClassifier(prior_precision=prior).fit(*(each.numpy() for each in data)),
    "compare": lambda prior, _, data: bs.compare(
        bs.BayesianLogisticRegression(prior_precision=prior), *(each.numpy() for each in data), posteriors=["laplace"]
    ),
}


@pytest.mark.parametrize("prior", ["horseshoe", bs.LaplacePrior()], ids=str)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.global_rng
def test_other_models_refuse_sparse_priors(door: str, prior: Any):
    data = torch.randn(20, 3), torch.arange(20) % 2
    with pytest.raises((UnsupportedError, OptionError, InputError), match="prior_precision: expected"):
        DOORS[door](prior, torch.nn.Linear(3, 2), data)
