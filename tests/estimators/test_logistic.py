from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import FunctionTransformer

from bayescope.errors import (
    InputError,
    InputTypeError,
    OptionError,
    UndefinedQuantityError,
    UnsupportedError,
)
from bayescope.estimators import BLOCK_NUMBERS, BayesianLogisticRegression
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical
from bayescope.linear import compile_density, laplace, weight_prior
from bayescope.models import LinearModel
from tests.conditions import calls

POSTERIORS = [name for name in get_args(get_type_hints(BayesianLogisticRegression)["posterior"]) if name != "auto"]
DETERMINISTIC = [name for name in POSTERIORS if name not in ("nuts", "metropolis")]
SHORT = {"draws": 300, "tune": 200, "chains": 2}


def binary(rows: int = 80, columns: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) * np.arange(1, columns + 1)
    return X, (X[:, 0] + 0.7 * rng.standard_normal(rows) > 0.2).astype(int)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Ten rows around (−2, −2) and ten around (2, 2), sd 1."""
    labels = np.arange(20) % 2
    return np.random.default_rng(0).standard_normal((20, 2)) + 4.0 * labels[:, None] - 2.0, labels


def fitted(X: np.ndarray, y: np.ndarray, **options: object) -> BayesianLogisticRegression:
    with warnings.catch_warnings():
        if options.get("posterior") in ("nuts", "metropolis"):
            warnings.simplefilter("ignore")  # few draws
            options = {**SHORT, **options}
        if options.get("posterior") == "laplace":  # few rows: it may say that it is not to be trusted
            warnings.filterwarnings("ignore", message="posterior='laplace'")
        given = {"random_state": 0, "standardize": False, "prior_precision": 1.0, **options}
        return BayesianLogisticRegression(**given).fit(X, y)


@pytest.mark.parametrize("outputs", [2, 3])
def test_it_is_laplace_of_the_linear_model_with_the_prior_it_says(outputs: int):
    X, y = (
        (load_iris().data[:100:2], load_iris().target[:100:2])
        if outputs == 2
        else (load_iris().data, load_iris().target)
    )
    precision = np.array([0.5, 1.0, 2.0, 3.0])
    model = fitted(X, y, posterior="laplace", prior_precision=precision, intercept_prior_precision=0.01)
    linear = LinearModel(4, 1 if outputs == 2 else 3)
    likelihood = Bernoulli() if outputs == 2 else Categorical()
    q = laplace(compile_density(linear, likelihood, weight_prior(linear, torch.tensor(precision), 0.01), X, y))
    assert model.log_evidence_ == pytest.approx(float(q.log_evidence()), abs=1e-10)
    weights, bias = linear.unflat(q.mean)
    np.testing.assert_allclose(model.coef_, weights, rtol=1e-10)
    np.testing.assert_allclose(model.intercept_, bias, rtol=1e-10)
    np.testing.assert_array_equal(model.prior_precision_, precision)
    np.testing.assert_allclose(model.predict_proba(X), q.predict(X).probs, atol=1e-14)


def test_the_point_estimate_is_that_of_ridge_logistic_regression():
    X, y = binary(200)
    ours = fitted(X, y, posterior="map", prior_precision=0.5, intercept_prior_precision=1e-8)
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_every_posterior_fits_and_predicts(posterior: str):
    X, y = binary()
    labels = np.array(["no", "yes"])[y]
    model = fitted(X, labels, posterior=posterior)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (80, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probabilities, atol=1e-8)
    assert set(model.predict(X)) <= {"no", "yes"}
    assert model.score(X, labels) > 0.8
    assert model.coef_.shape == (1, 3)
    assert model.weight_names_ == ("x0", "x1", "x2", "intercept")
    assert model.posterior_.record.method == posterior
    reference = fitted(X, labels).predict_proba(X)
    assert np.abs(probabilities - reference).max() < 0.08


@pytest.mark.parametrize("posterior", ["map", "laplace", "variational", "mean_field", "nuts", "metropolis"])
def test_more_classes(posterior: str):
    X, y = load_iris(return_X_y=True)
    model = fitted(X[::3], y[::3], posterior=posterior)
    assert model.predict_proba(X).shape == (150, 3)
    assert model.score(X, y) > 0.9
    assert model.coef_.shape == (3, 4)
    assert model.intercept_.shape == (3,)
    assert model.weight_names_[4] == "1: x0"
    assert model.weight_names_[-1] == "2: intercept"


@pytest.mark.parametrize("posterior", DETERMINISTIC)
def test_learning_the_precision_raises_the_objective(posterior: str):
    X, y = binary()
    model = fitted(X, y, posterior=posterior, prior_precision="evidence")
    quantity = "elbo_" if posterior in ("variational", "mean_field") else "log_evidence_"
    if posterior == "map":  # a point has no objective of its own: it takes that of "auto"
        assert model.prior_precision_ == fitted(X, y, prior_precision="evidence").prior_precision_
        return
    best = getattr(model, quantity)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = fitted(X, y, posterior=posterior, prior_precision=factor * model.prior_precision_)
        assert getattr(other, quantity) < best
    again = fitted(X, y, posterior=posterior, prior_precision=model.prior_precision_)
    assert getattr(again, quantity) == pytest.approx(best, abs=1e-6)
    assert 0.0 < model.effective_parameters_ < 3.0
    assert "maximises" in model.summary()


def test_samplers_take_the_precision_that_auto_learns_and_say_so():
    X, y = binary()
    model = fitted(X, y, posterior="metropolis", prior_precision="evidence")
    assert model.prior_precision_ == fitted(X, y, prior_precision="evidence").prior_precision_
    assert "Laplace's evidence" in model.summary()


def test_what_a_posterior_does_not_define_is_not_there():
    X, y = binary()
    laplace_fit, point, bound = (fitted(X, y, posterior=name) for name in ("laplace", "map", "variational"))
    assert np.isfinite(laplace_fit.log_evidence_)
    assert not hasattr(laplace_fit, "elbo_")
    assert not hasattr(point, "log_evidence_")
    assert np.isfinite(bound.elbo_)
    assert not hasattr(bound, "log_evidence_")
    with pytest.raises(UndefinedQuantityError, match="lower bound"):
        _ = bound.log_evidence_
    draws = fitted(X, y, posterior="metropolis")
    with pytest.raises(UndefinedQuantityError):
        _ = draws.effective_parameters_


def test_away_from_the_data_the_point_is_sure_and_the_average_is_not():
    X, y = blobs()
    far = np.array([[8.0, 10.0]])
    assert fitted(X, y, posterior="map", prior_precision=0.01).predict_proba(far)[0, 1] > 0.99
    assert 0.5 < fitted(X, y, posterior="laplace", prior_precision=0.01).predict_proba(far)[0, 1] < 0.9


def test_the_intercept_has_a_prior_of_its_own():
    X, y = binary()
    held = fitted(X, y, intercept_prior_precision=1e8)
    assert abs(held.intercept_[0]) < 1e-5
    assert np.abs(held.coef_).max() > 0.1
    without = fitted(X, y, fit_intercept=False)
    assert without.intercept_.tolist() == [0.0]
    np.testing.assert_allclose(without.coef_, held.coef_, rtol=1e-5)


def test_standardising_makes_the_answer_independent_of_units():
    X, y = binary()
    units, offset = np.array([1e3, 1e-2, 7.0]), np.array([5.0, -3.0, 1e3])
    scaled = fitted(X * units + offset, y, standardize=True)
    plain = fitted(X, y, standardize=True)
    assert scaled.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-8)
    np.testing.assert_allclose(scaled.predict_proba(X * units + offset), plain.predict_proba(X), atol=1e-8)
    given = fitted(X * units, y, prior_precision=units**2)
    assert given.log_evidence_ == pytest.approx(fitted(X, y).log_evidence_, abs=1e-8)


def test_the_summary_tells_the_prior_with_its_units():
    X, y = binary()
    summary = fitted(X * [1.0, 1.0, 1000.0], y).summary()
    assert "inputs: as given" in summary
    assert "f at the means of the inputs is 0 ± 10 " in summary
    assert "f at input 0 is 0 ± 100 " in fitted(X, y, intercept_prior_precision=1e-4).summary()
    assert "standardize=True" in summary
    standardised = fitted(X * [1.0, 1.0, 1000.0], y, standardize=True).summary()
    assert "standard deviations" in standardised
    assert "standardize=True" not in standardised


def test_features_without_information_are_told():
    X, y = np.array([[-1.0], [1.0]] * 20), np.array([0, 0, 1, 1] * 10)
    model = fitted(X, y, prior_precision="evidence")
    assert "tell nothing" in model.summary()
    np.testing.assert_allclose(model.predict_proba(X), 0.5, atol=1e-6)


@pytest.mark.parametrize("features", ["rbf", "polynomial", FunctionTransformer(np.cos)])
def test_features_bend_the_border(features: object):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 2))
    y = (np.square(X).sum(1) < 1.5).astype(int)
    model = fitted(X, y, features=features, prior_precision="evidence")
    assert model.score(X, y) > 0.93 > 0.85 > fitted(X, y).score(X, y)
    assert model.transform_inputs(X).shape == (300, model.coef_.shape[1])
    assert len(model.weight_names_) == model.coef_.shape[1] + 1
    np.testing.assert_allclose(model.predict_proba(X), model.posterior_.predict(X).probs, atol=1e-14)


def test_a_callers_transformer_is_left_alone():
    X, y = binary()
    transformer = FunctionTransformer(np.tanh)
    before = copy.deepcopy(vars(transformer))
    fitted(X, y, features=transformer)
    assert vars(transformer) == before


@pytest.mark.parametrize("posterior", ["nuts", "metropolis"])
def test_a_seed_repeats_the_fit(posterior: str):
    X, y = binary(40, 2)
    few = {"draws": 20, "tune": 50}
    first, again, other = (fitted(X, y, posterior=posterior, random_state=seed, **few) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


def test_draws_of_the_predictive_follow_the_random_state():
    X, y = binary()
    model = fitted(X, y, random_state=5)
    options = {"method": "sampled", "samples": 50}
    first, again = (model.predict_distribution(X, **options).probs for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, model.predict_distribution(X, generator=6, **options).probs)
    np.testing.assert_allclose(
        model.predict_distribution(X, integral="mackay").probs, model.predict_proba(X), atol=0.01
    )


def test_a_random_state_object_is_used_and_advanced():
    X, y = binary(40, 2)
    one, two = (fitted(X, y, posterior="metropolis", random_state=np.random.RandomState(3)) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))


@pytest.mark.parametrize(
    "dress", [np.asfortranarray, np.float32, lambda X: pd.DataFrame(X, columns=list("abc")), np.ndarray.tolist]
)
def test_inputs_of_any_dress(dress: object):
    X, y = binary()
    X = X.astype(np.float32).astype(np.float64)
    plain = fitted(X, y)
    dressed = fitted(dress(X), y)
    assert dressed.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-9)
    np.testing.assert_allclose(dressed.predict_proba(dress(X)), plain.predict_proba(X), atol=1e-12)


def test_columns_of_a_data_frame_name_the_weights():
    X, y = binary()
    model = fitted(pd.DataFrame(X, columns=["age", "dose", "height"]), pd.Series(y))
    assert model.weight_names_ == ("age", "dose", "height", "intercept")
    assert model.feature_names_in_.tolist() == ["age", "dose", "height"]
    poly = fitted(pd.DataFrame(X, columns=["age", "dose", "height"]), y, features="polynomial")
    assert "age dose" in poly.weight_names_


def test_inputs_are_not_written_and_the_generators_not_used():
    X, y = binary()
    before_X, before_y = X.copy(), y.copy()
    X.flags.writeable = y.flags.writeable = False
    for options in ({}, {"standardize": True}, {"features": "rbf"}, {"prior_precision": "evidence"}):
        fitted(X, y, **options).predict_proba(X)
    np.testing.assert_array_equal(X, before_X)
    np.testing.assert_array_equal(y, before_y)


def test_prediction_in_blocks_is_the_same():
    X, y = binary(200)
    model = fitted(X, y, posterior="metropolis")
    times = 1 + BLOCK_NUMBERS // (model.posterior_.draws[..., 0].numel() * len(X))
    assert 1 < times < 50
    whole = np.tile(model.predict_proba(X), (times, 1))
    np.testing.assert_allclose(model.predict_proba(np.tile(X, (times, 1))), whole, atol=1e-13)


@pytest.mark.parametrize("posterior", ["laplace", "metropolis"])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_the_distribution_and_cost_no_variances(posterior: str, classes: int):
    X, y = binary(200)
    model = fitted(X, y + (X[:, 1] > 1) * (classes - 2), posterior=posterior)
    probs = model.predict_distribution(X).probs
    np.testing.assert_array_equal(model.predict_proba(X), probs)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probs.argmax(1)])
    assert np.isfinite(model.predict_log_proba(X)).all()
    moments = (GaussianLatent if posterior == "laplace" else DrawsLatent).moments.__qualname__
    assert calls(lambda: model.predict_distribution(X).epistemic, moments) == 1
    for ask in (model.predict_proba, model.predict, model.predict_log_proba):
        assert calls(partial(ask, X), moments) == 0


@pytest.mark.parametrize("posterior", [*DETERMINISTIC, "metropolis"])
def test_it_survives_pickling_and_cloning(posterior: str):
    X, y = binary(60, 2)
    model = fitted(X, y, posterior=posterior)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params()


def test_refitting_leaves_nothing_behind():
    X, y = binary()
    model = fitted(X, y)
    model.set_params(posterior="map").fit(X, y)
    assert not hasattr(model, "log_evidence_")


def test_it_works_inside_scikit_learn():
    X, y = binary(120)
    search = GridSearchCV(BayesianLogisticRegression(), {"prior_precision": [0.1, 10.0]}, scoring="neg_log_loss")
    assert search.fit(X, y).best_score_ > -0.5
    assert cross_val_score(BayesianLogisticRegression(), X, y, scoring="roc_auc").mean() > 0.9


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"posterior": "laplase"}, OptionError, "Did you mean 'laplace'"),
        ({"link": "cloglog"}, OptionError, "link"),
        ({"prior_precision": -1.0}, InputError, "prior_precision"),
        ({"prior_precision": [1.0, 2.0]}, InputError, "each of the 3 features"),
        ({"prior_precision": "learn"}, OptionError, "evidence"),
        ({"intercept_prior_precision": 0.0}, InputError, "intercept_prior_precision"),
        ({"intercept_prior_precision": [1.0, 2.0]}, InputError, "a positive number"),
        ({"features": "spline"}, OptionError, "features"),
        ({"features": 3}, TypeError, "features"),
        ({"posterior": "metropolis", "draws": 0}, InputError, "draws"),
        pytest.param(
            {"random_state": torch.Generator()},
            InputTypeError,
            "random_state: expected an int, a numpy.random.RandomSt",
            id="generator",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_options_that_cannot_be_used(options: dict[str, object], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        BayesianLogisticRegression(**options).fit(*binary())


@pytest.mark.parametrize("options", [{"link": "probit"}, {"posterior": "ep"}], ids=str)
def test_what_knows_two_classes_only_says_so(options: dict[str, str]):
    with pytest.raises(UnsupportedError, match="Only binary"):
        BayesianLogisticRegression(**options).fit(*load_iris(return_X_y=True))


def test_one_class_is_not_enough():
    with pytest.raises(InputError, match="one class"):
        BayesianLogisticRegression().fit(np.eye(3), [1, 1, 1])


@pytest.mark.parametrize("classes", [2, 3])
def test_the_default_prior_of_the_intercept_is_at_the_means_of_the_inputs(classes: int):
    X, y = binary()
    y = y + (X[:, 1] > 1) * (classes - 2)
    ours = fitted(X, y, posterior="laplace")
    theirs = fitted(X - X.mean(0), y, posterior="laplace", intercept_prior_precision=0.01)
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, abs=1e-9)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X - X.mean(0)), atol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_ - ours.coef_ @ X.mean(0), atol=1e-10)
    np.testing.assert_allclose(X @ ours.coef_.T + ours.intercept_, ours.predict_distribution(X).latent_mean, atol=1e-10)


@pytest.mark.parametrize("posterior", ["map", "laplace", "variational", "mean_field", "ep"])
def test_options_of_chains_are_refused_where_there_are_none(posterior: str):
    X, y = binary()
    with pytest.raises(UnsupportedError, match="draws: expected None"):
        BayesianLogisticRegression(posterior=posterior, draws=10).fit(X, y)
    with pytest.raises(InputError, match="chains: expected a whole number"):
        BayesianLogisticRegression(posterior="nuts", chains=0).fit(X, y)


def test_words_are_no_truth_values():
    X, y = binary()
    with pytest.raises(InputTypeError, match="standardize: expected True or False"):
        BayesianLogisticRegression(standardize="no").fit(X, y)


def test_features_of_a_network_may_carry_a_graph():
    X, y = binary()
    model = BayesianLogisticRegression().fit(torch.tensor(X, requires_grad=True), torch.tensor(y))
    np.testing.assert_array_equal(model.coef_, BayesianLogisticRegression().fit(X, y).coef_)


def test_log_probabilities_of_three_classes_are_those_of_the_probabilities_and_finite_in_the_tails():
    X, y = load_iris(return_X_y=True)
    model = BayesianLogisticRegression().fit(X, y)
    logs, probs = model.predict_log_proba(X), model.predict_proba(X)
    np.testing.assert_array_equal(logs.argmax(1), probs.argmax(1))
    np.testing.assert_allclose(np.exp(logs), probs, atol=1e-8)
    assert np.isfinite(model.predict_log_proba(100.0 * X)).all()


@pytest.mark.filterwarnings("ignore:prior_precision.*the inputs tell nothing of y")
@pytest.mark.parametrize("posterior", ["auto", "laplace", "ep", "variational", "mean_field"])
def test_columns_that_are_all_constant_leave_the_share_of_the_classes(posterior):
    y = np.random.default_rng(0).random(80) > 0.4
    model = BayesianLogisticRegression(posterior=posterior).fit(np.full((80, 2), 3.0), y)
    np.testing.assert_allclose(model.predict_proba(np.full((1, 2), 3.0))[0, 1], y.mean(), atol=0.01)


def test_a_column_called_intercept_is_listed_with_the_columns():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["intercept", "x"])
    lines = BayesianLogisticRegression().fit(X, X["x"] > 0).summary().splitlines()
    names = [line.split()[0] for line in lines if line.split()[0] in ("intercept", "x")]
    assert sorted(names[:2]) == ["intercept", "x"]
    assert names[2:] == ["intercept"]


def test_labels_of_another_byte_order_are_read_beside_the_posterior():
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(">i8")
    model = BayesianLogisticRegression().fit(X, y)
    same = BayesianLogisticRegression().fit(X, y.astype(int))
    one, other = (each.to_arviz(data=(X, y), generator=0)["log_likelihood"]["y"] for each in (model, same))
    np.testing.assert_array_equal(one.to_numpy(), other.to_numpy())


def test_tensors_given_to_the_posterior_come_back_as_tensors():
    X = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = BayesianLogisticRegression().fit(X.numpy(), (X[:, 0] > 0).numpy())
    assert isinstance(model.posterior_.predict(X).probs, torch.Tensor)
    assert isinstance(model.posterior_.predict(X.numpy()).probs, np.ndarray)
