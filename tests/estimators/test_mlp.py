"""Bayesian multilayer perceptrons for tables: the laws that they keep, whatever the posterior."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import BayescopeError, BayescopeWarning, ConvergenceWarning, OptionError, UnsupportedError
from bayescope.estimators import BayesianMLPClassifier, BayesianMLPRegressor

FAST: dict[str, Any] = {"hidden": (6,), "epochs": 8, "random_state": 0}


def table(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of two columns, and a curve over the first."""
    source = np.random.default_rng(seed)
    X = source.normal(size=(rows, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * source.normal(size=rows)


def classes(y: np.ndarray, count: int = 2) -> np.ndarray:
    """Labels by size."""
    names = np.array(["low", "middle", "high"]) if count == 3 else np.array(["no", "yes"])
    return names[np.digitize(y, np.quantile(y, np.arange(1, count) / count))]


def quietly(estimator: Any, *data: Any) -> Any:
    """Fitted, without a word on chains that are too short for anything but a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)  # of few draws one may diverge
        return estimator.fit(*data)


# --- networks learn before their evidence is tuned --------------------------------------------------------------------


def circles(source: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """One circle inside of another."""
    inside = source.random(rows) < 0.5
    angle = source.uniform(0.0, 2.0 * np.pi, rows)
    points = np.where(inside, 0.5, 1.0)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return points + 0.1 * source.normal(size=(rows, 2)), inside


def quadrants(source: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Exclusive or: the label is that of the sign of a product."""
    points = source.uniform(-1.0, 1.0, (rows, 2))
    return points + 0.03 * source.normal(size=(rows, 2)), points.prod(1) > 0.0


def spirals(source: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arms, one and a half turns each."""
    second = source.random(rows) < 0.5
    angle = 3.0 * np.pi * np.sqrt(source.uniform(0.05, 1.0, rows))
    arms = np.where(second, angle, -angle)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]) / np.pi
    return arms + 0.1 * source.normal(size=(rows, 2)), second


def checkerboard(source: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Four by four fields."""
    points = source.uniform(0.0, 4.0, (rows, 2))
    return points, np.floor(points).sum(1) % 2 == 0


@pytest.mark.parametrize(
    ("draw", "rows", "seed", "least"),
    [
        (quadrants, 150, 1, 0.90),
        (spirals, 200, 2, 0.95),
        (checkerboard, 250, 3, 0.84),
    ],
    ids=["quadrants", "spirals", "checkerboard"],
)
def test_labels_that_no_line_divides_are_learnt(draw: Any, rows: int, seed: int, least: float):
    """At the network of before any training the evidence is highest for no network at all."""
    source = np.random.default_rng(seed)
    (X, y), (unseen, truth) = draw(source, rows), draw(source, 1000)
    unit = 10.0 ** source.integers(-3, 4, 2)
    model = BayesianMLPClassifier(random_state=seed).fit(X * unit + 7.0 * unit, y)
    assert model.score(unseen * unit + 7.0 * unit, truth) >= least


# Further options that keep a fit short; the accuracy stays that of the defaults.
BRIEFLY: dict[str, dict[str, Any]] = {
    "ensemble": {"members": 2},
    "sgmcmc": {"draws": 50, "posterior_options": {"burn_in": 4, "thin": 1}},
    "swag": {"draws": 50},
    "nuts": {"hidden": (8,), "draws": 40, "posterior_options": {"tune": 60, "chains": 1, "max_depth": 6}},
}


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (circles, ["map", "variational", "ensemble", "sgmcmc"]),
        (quadrants, ["mc_dropout", "swag", "nuts"]),
    ],
    ids=["circles", "quadrants"],
)
def test_no_posterior_is_far_less_accurate_than_the_default(draw: Any, names: list[str]):
    """From new weights, several of them end at the same prediction for all rows."""
    source = np.random.default_rng(5)
    (X, y), (unseen, truth) = draw(source, 160), draw(source, 1000)
    least = BayesianMLPClassifier(random_state=5).fit(X, y).score(unseen, truth) - 0.05
    assert least > 0.85
    for name in names:
        model = BayesianMLPClassifier(posterior=name, random_state=5, **BRIEFLY.get(name, {}))
        assert quietly(model, X, y).score(unseen, truth) >= least, name


@pytest.mark.filterwarnings("ignore:The network predicts the same for every row")
def test_labels_that_nothing_tells_of_are_not_learnt():
    source = np.random.default_rng(0)
    X, y = source.normal(size=(120, 3)), source.random(120) < 0.5
    probabilities = BayesianMLPClassifier(random_state=0).fit(X, y).predict_proba(source.normal(size=(500, 3)))
    assert np.abs(probabilities - 0.5).mean() < 0.15


def test_one_prediction_for_all_rows_is_said():
    source = np.random.default_rng(3)
    X = source.normal(size=(80, 2))
    with pytest.warns(ConvergenceWarning, match="^The network predicts the same for every row"):
        BayesianMLPClassifier(posterior="map", prior_precision=1e5, random_state=0).fit(X, X[:, 0] > 0.0)
    with pytest.warns(ConvergenceWarning, match="Either the inputs say nothing about the targets"):
        BayesianMLPRegressor(random_state=0).fit(X, source.normal(size=80))


def test_a_weak_relation_is_no_single_prediction():
    """Warnings are errors."""
    source = np.random.default_rng(4)
    X = source.normal(size=(200, 2))
    BayesianMLPRegressor(random_state=0).fit(X, X[:, 0] + 2.0 * source.normal(size=200))


# --- rows and weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("posterior", ["laplace", "ensemble"])
def test_a_weight_is_as_many_rows_in_whatever_order(posterior: str):
    X, y = table(30)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    repeated = np.random.default_rng(2).permutation(np.repeat(np.arange(len(y)), weights))
    model = BayesianMLPRegressor(posterior=posterior, members=2, **FAST)
    one = model.fit(X, y, weights).predict(X, return_std=True)
    other = model.fit(X[repeated], y[repeated]).predict(X, return_std=True)
    np.testing.assert_array_equal(one, other)


def test_the_evidence_of_weighted_rows_is_that_of_repeated_ones():
    X, y = table(25)
    weights = np.random.default_rng(1).integers(1, 4, len(y))
    model = BayesianMLPRegressor(posterior_options={"structure": "full"}, **FAST).fit(X, y, weights)
    inputs = np.repeat(model.transform_inputs(X), weights, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = bs.laplace(
            model.module_, (inputs, np.repeat(y, weights)), likelihood=bs.Gaussian(model.noise_variance_),
            prior_precision=model.prior_precision_, structure="full",
        )  # fmt: skip
    assert model.log_evidence_ == pytest.approx(float(q.log_evidence()), rel=1e-9)


def test_class_weights_are_weights_of_rows():
    X, y = table()
    labels = classes(y)
    one = BayesianMLPClassifier(class_weight={"yes": 3.0}, **FAST).fit(X, labels)
    other = BayesianMLPClassifier(**FAST).fit(X, labels, np.where(labels == "yes", 3.0, 1.0))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


# --- units and labels -------------------------------------------------------------------------------------------------


def test_the_unit_of_y_is_a_unit():
    X, y = table()
    one, other = (BayesianMLPRegressor(**FAST).fit(X, target) for target in (y, 8.0 * y - 3.0))
    (mean, sd), (other_mean, other_sd) = (model.predict(X, return_std=True) for model in (one, other))
    np.testing.assert_allclose(other_mean, 8.0 * mean - 3.0, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other_sd, 8.0 * sd, rtol=1e-5)
    assert other.log_evidence_ == pytest.approx(one.log_evidence_ - len(y) * np.log(8.0), rel=1e-5)
    assert other.noise_variance_ == pytest.approx(64.0 * one.noise_variance_, rel=1e-5)


@pytest.mark.parametrize("count", [2, 3])
def test_other_names_for_the_classes_are_names_alone(count: int):
    X, y = table()
    labels = classes(y, count)
    renamed = np.array([{"no": "z", "yes": "a", "low": "m", "middle": "z", "high": "a"}[label] for label in labels])
    one, other = (BayesianMLPClassifier(**FAST).fit(X, target) for target in (labels, renamed))
    places = [np.flatnonzero(other.classes_ == renamed[labels == label][0])[0] for label in one.classes_]
    np.testing.assert_allclose(other.predict_proba(X)[:, places], one.predict_proba(X), atol=1e-4)


def test_columns_of_y_have_their_own_noise():
    X, y = table(120)
    source = np.random.default_rng(3)
    both = np.column_stack([y, 100.0 * (X[:, 1] + 0.05 * source.normal(size=len(y)))])
    model = BayesianMLPRegressor(hidden=(20,), epochs=100, random_state=0).fit(X, both)
    assert model.predict(X).shape == (120, 2)
    small, large = np.sqrt(model.noise_variance_)
    assert 0.1 < small < 0.4
    assert 2.5 < large < 10.0


def test_several_labels_a_row():
    X, y = table()
    labels = np.column_stack([y > 0, X[:, 1] > 0]).astype(int)
    model = BayesianMLPClassifier(**FAST).fit(X, labels)
    assert model.predict(X).shape == (60, 2)
    assert (model.predict(X) == labels).mean() > 0.8


# --- the posterior is the library's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["kfac", "diagonal"])
def test_laplace_is_the_call_of_that_name(structure: str):
    X, y = table()
    model = BayesianMLPClassifier(posterior_options={"structure": structure}, **FAST).fit(X, classes(y))
    codes = (classes(y) == "yes").astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = bs.laplace(
            model.module_, (model.transform_inputs(X), codes), likelihood="bernoulli", structure=structure,
            prior_precision=model.prior_precision_,
        )  # fmt: skip
    np.testing.assert_allclose(model.predict_proba(X), q.predict(model.transform_inputs(X)).probs, rtol=1e-9)
    assert model.log_evidence_ == pytest.approx(float(q.log_evidence()), rel=1e-9)


@pytest.mark.parametrize(
    ("weights", "layers"),
    [("last_layer", ["2"]), (["0.*"], ["0"]), ("*.weight", ["0", "2"]), (bs.largest_magnitude(1), None)],
    ids=["last_layer", "0", "weight", "largest_magnitude"],
)
def test_a_part_of_the_weights_has_the_precisions_of_its_layers(weights: Any, layers: list[str] | None):
    X, y = table()
    model = BayesianMLPClassifier(posterior_options={"weights": weights}, **FAST).fit(X, classes(y))
    random = model.posterior_.function.weights
    owners = {name.partition(".")[0] for name in random.names}
    assert layers is None or owners == set(layers)
    precisions = random.unflat(model.posterior_.fit.prior.diagonal(random.dim))
    for name, values in precisions.items():
        assert {float(value) for value in values[random.mask(name)]} == {model.prior_precision_[name.partition(".")[0]]}


@pytest.mark.parametrize("posterior", ["map", "variational", "swag", "sgmcmc", "ensemble"])
def test_other_posteriors_take_a_part_of_the_weights_too(posterior: str):
    X, y = table(30)
    options = {**FAST, **POSTERIORS[posterior], "epochs": 8}
    options["posterior_options"] = {**options.get("posterior_options", {}), "weights": "last_layer"}
    model = quietly(BayesianMLPRegressor(posterior=posterior, **options), X, y)
    assert np.isfinite(model.predict(X)).all()


POSTERIORS: dict[str, dict[str, Any]] = {
    "laplace": {},
    "last_layer": {},
    "function_space": {},
    "map": {},
    "variational": {"draws": 20},
    "mc_dropout": {"draws": 20, "rate": 0.2},
    "ensemble": {"members": 3},
    "swag": {"posterior_options": {"epochs": 4}, "draws": 20},
    "sgmcmc": {"draws": 20, "posterior_options": {"burn_in": 4, "thin": 1}},
    "nuts": {"draws": 10, "posterior_options": {"tune": 10, "chains": 1, "max_depth": 3}},
}


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_posterior_answers_and_is_saved(posterior: str, weighted: bool, tmp_path: Path):
    X, y = table(30)
    weights = np.random.default_rng(1).uniform(0.0, 2.0, len(y)) if weighted else None
    options = {**FAST, **POSTERIORS[posterior], "epochs": 8}
    estimator = BayesianMLPRegressor if weighted else BayesianMLPClassifier
    target = y if weighted else classes(y, 3)
    model = quietly(estimator(posterior=posterior, **options), X, target, weights)
    predictive = model.predict_distribution(X)
    assert np.isfinite(predictive.variance).all()
    assert posterior == "map" or float(np.mean(predictive.epistemic)) > 0.0
    assert "units, tanh" in model.summary()
    again = bs.load(model.save(tmp_path / "model.bayes"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("posterior", ["laplace", "mc_dropout", "swag"])
def test_a_seed_is_a_model(posterior: str):
    X, y = table(30)
    model = BayesianMLPRegressor(posterior=posterior, **{**FAST, **POSTERIORS[posterior], "epochs": 5})
    np.testing.assert_array_equal(quietly(model, X, y).predict(X), quietly(model, X, y).predict(X))


def test_intervals_hold_what_they_say():
    X, y = table(120)
    low, high = (
        BayesianMLPRegressor(hidden=(20,), random_state=0)
        .fit(X, y)
        .predict_distribution(table(500, 9)[0])
        .interval(0.9)
    )
    new = table(500, 9)[1]
    assert 0.82 < np.mean((low[:, 0] <= new) & (new <= high[:, 0])) < 0.97


# --- tables -----------------------------------------------------------------------------------------------------------


def test_mixed_columns():
    X, y = table()
    frame = pd.DataFrame({"x": X[:, 0], "colour": np.where(X[:, 1] > 0, "red", "blue"), "gap": X[:, 1]})
    frame.loc[::7, "gap"] = np.nan
    frame.loc[::5, "colour"] = None
    model = BayesianMLPRegressor(**FAST).fit(frame, y)
    assert model.transform_inputs(frame).shape[1] == len(model.preprocessing_.names)
    assert "gap missing" in model.preprocessing_.names
    unseen = frame.head(2).assign(colour="green")
    assert np.isfinite(model.predict(unseen)).all()


def test_no_class_where_none_is_probable():
    X, y = table()
    model = BayesianMLPClassifier(**FAST).fit(X, classes(y))
    probable = model.predict_proba(X).max(1) >= 0.8
    decided = model.predict(X, abstain=0.8)
    assert (decided[~probable] == None).all()  # noqa: E711
    assert (decided[probable] == model.predict(X)[probable]).all()


def test_the_summary_has_the_rows_that_judged():
    X, y = table(63)
    assert "judged by the predictions of 12 of 63 rows, held out" in BayesianMLPRegressor(**FAST).fit(X, y).summary()
    given = BayesianMLPRegressor(prior_precision=1.0, **FAST).fit(X, y).summary()
    assert "noise variance, by Laplace's evidence" in given
    assert "judged" not in given


def test_a_linear_model():
    X, y = table()
    model = BayesianMLPRegressor(hidden=(), epochs=200, random_state=0).fit(X, 3.0 * X[:, 0] + 0.1 * y)
    assert model.score(X, 3.0 * X[:, 0]) > 0.99
    assert "a linear model" in model.summary()


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_fit_goes_on_from_its_checkpoint(tmp_path: Path):
    X, y = table()
    path = tmp_path / "run.pt"
    options = {**FAST, "posterior": "map", "checkpoint": path}
    one = BayesianMLPRegressor(**options).fit(X, y)
    assert path.exists()
    assert path.with_name("run-prior.pt").exists()
    path.unlink()  # as if the second training had been interrupted
    other = BayesianMLPRegressor(**options).fit(X, y)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    with pytest.raises(BayescopeError, match="checkpoint"):
        BayesianMLPRegressor(**options).fit(X, y + 1.0 * X[:, 0])
    longer = BayesianMLPRegressor(**{**options, "progress": True}).fit(X, y)
    np.testing.assert_array_equal(one.predict(X), longer.predict(X))
    changed = {
        "posterior": "mc_dropout", "hidden": (7,), "activation": "relu", "noise_variance": 0.5, "prior_precision": 3.0,
        "scaling": "quantile", "encoding": "target", "categorical": [0], "lr": 0.5, "batch_size": 7, "members": 3,
        "rate": 0.3, "posterior_options": {"patience": 2}, "random_state": 5, "likelihood": bs.Gaussian(0.5),
    }  # fmt: skip
    free = {"checkpoint", "progress", "epochs", "draws"}
    assert changed.keys() | free == one.get_params().keys()
    for name, value in changed.items():
        words = "random_state = 5, got 0" if name == "random_state" else ""
        with pytest.raises(BayescopeError, match=f"checkpoint: expected one of a run with .*{words}"):
            BayesianMLPRegressor(**{**options, name: value}).fit(X, y)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"posterior": "laplac"}, OptionError, "laplace"),
        ({"activation": "than"}, OptionError, "tanh"),
        ({"hidden": 5}, BayescopeError, "hidden"),
        ({"hidden": (5, 0)}, BayescopeError, "hidden"),
        ({"prior_precision": "evidance"}, BayescopeError, "prior_precision"),
        ({"prior_precision": -1.0}, BayescopeError, "prior_precision"),
        ({"noise_variance": 0.0}, BayescopeError, "noise_variance"),
        ({"noise_variance": [1.0, 2.0]}, BayescopeError, "noise_variance"),
        ({"scaling": "minmax"}, OptionError, "scaling"),
        ({"encoding": "hash"}, OptionError, "encoding"),
        ({"epochs": 0}, BayescopeError, "epochs"),
        ({"lr": 0.0}, BayescopeError, "lr"),
        ({"batch_size": 1.5}, BayescopeError, "batch_size"),
        ({"draws": 5}, UnsupportedError, "draws"),
        ({"posterior": "sgmcmc", "draws": 0}, BayescopeError, "draws"),
        ({"posterior": "ensemble", "members": 0}, BayescopeError, "members"),
        ({"posterior": "mc_dropout", "rate": 1.5}, BayescopeError, "rate"),
        ({"posterior_options": {"structur": "full"}}, OptionError, "structure"),
        ({"posterior_options": {"likelihood": "gaussian"}}, OptionError, "posterior_options"),
        ({"posterior_options": {"weights": "9.weight"}}, BayescopeError, "weights"),
        ({"posterior_options": {"weights": bs.largest_variance(3)}}, UnsupportedError, "largest_magnitude"),
        ({"posterior": "last_layer", "posterior_options": {"weights": "all"}}, UnsupportedError, "posterior='laplace'"),
        ({"posterior_options": "full"}, BayescopeError, "posterior_options"),
        ({"posterior_options": {"structure": "fulll"}}, OptionError, "structure"),
        ({"posterior": "nuts", "checkpoint": "run.pt"}, UnsupportedError, "checkpoint"),
        ({"checkpoint": 3}, BayescopeError, "checkpoint"),
        ({"progress": "no"}, BayescopeError, "progress"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], error: type[Exception], words: str):
    X, y = table(20)
    model = BayesianMLPRegressor(**{**FAST, "hidden": (3,), "epochs": 2, **options})
    with pytest.raises(error, match=words):
        model.fit(X, y)
    assert not hasattr(model, "posterior_")


def test_given_numbers_are_kept():
    X, y = table()
    model = BayesianMLPRegressor(prior_precision=2.0, noise_variance=0.09, **FAST).fit(X, y)
    assert model.prior_precision_ == 2.0
    assert model.noise_variance_ == pytest.approx(0.09, rel=1e-12)
    learnt = BayesianMLPRegressor(prior_precision=2.0, **FAST).fit(X, y)
    assert learnt.prior_precision_ == 2.0
    assert learnt.noise_variance_ != pytest.approx(0.1 * y.var(), rel=1e-3)


def test_a_constant_y_is_fitted():
    """A layer that is switched off has inputs that reach down to denormal numbers."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = bs.BayesianMLPRegressor().fit(X, np.full(60, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0)
