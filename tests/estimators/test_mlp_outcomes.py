"""Multilayer perceptrons of counts and other outcomes than Gaussian numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import nbinom

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError, UnsupportedError

# The counts have a dispersion of which a Poisson knows nothing.
pytestmark = pytest.mark.filterwarnings("ignore:likelihood='poisson' gives y")
OPTIONS = {"hidden": (12,), "random_state": 0, "epochs": 40}


def _counts(rows: int, seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, counts with a dispersion of 1/2, and their means."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (rows, 2))
    mean = scale * np.exp(1.0 + 0.8 * np.sin(2.0 * x[:, 0]) + 0.3 * x[:, 1])
    return x, nbinom(2.0, 2.0 / (2.0 + mean)).rvs(random_state=rng), mean


@pytest.fixture(scope="module")
def fitted() -> dict[str, bs.BayesianMLPRegressor]:
    x, y, _ = _counts(300, 0)
    names = ("gaussian", "poisson", "negative_binomial")
    return {name: bs.BayesianMLPRegressor(likelihood=name, **OPTIONS).fit(x, y) for name in names}


def test_counts_are_predicted_best_by_the_likelihood_that_drew_them(fitted: dict[str, bs.BayesianMLPRegressor]) -> None:
    x, y, mean = _counts(1_000, 1)
    loss = {name: -model.predict_distribution(x).log_prob(y).mean() for name, model in fitted.items()}
    truth = -nbinom(2.0, 2.0 / (2.0 + mean)).logpmf(y).mean()
    assert loss["negative_binomial"] < truth + 0.06
    assert loss["negative_binomial"] < min(loss["poisson"], loss["gaussian"]) - 0.1
    assert float(fitted["negative_binomial"].likelihood_.dispersion) == pytest.approx(0.5, rel=0.5)


def test_intervals_of_counts_are_counts_that_hold_what_they_say(fitted: dict[str, bs.BayesianMLPRegressor]) -> None:
    x, y, _ = _counts(1_000, 2)
    low, high = fitted["negative_binomial"].predict_distribution(x).interval(0.9)
    assert (low >= 0).all()
    assert (low == low.round()).all()
    inside = ((low[:, 0] <= y) & (y <= high[:, 0])).mean()
    assert 0.88 < inside < 0.99  # whole counts hold more than they are asked to


def test_counts_a_thousand_times_as_large_are_predicted_as_well() -> None:
    """The outputs begin at the log of the mean: no unit of y is too large for the network."""
    x, y, mean = _counts(200, 3, scale=1e4)
    model = bs.BayesianMLPRegressor(likelihood="negative_binomial", **OPTIONS).fit(x, y)
    error = np.log(model.predict(x)) - np.log(mean)
    assert np.sqrt((error**2).mean()) < 0.35


def test_a_model_of_counts_answers_the_same_from_its_file(
    fitted: dict[str, bs.BayesianMLPRegressor], tmp_path: object
) -> None:
    model, (x, y, _) = fitted["negative_binomial"], _counts(20, 4)
    model.save(f"{tmp_path}/model.bayes")
    loaded = bs.load(f"{tmp_path}/model.bayes")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    np.testing.assert_array_equal(loaded.predict_distribution(x).log_prob(y), model.predict_distribution(x).log_prob(y))


@pytest.mark.parametrize("wrong", [-1.0, 0.5])
def test_what_is_no_count_is_refused_with_its_row(wrong: float) -> None:
    x, y, _ = _counts(20, 5)
    y = y.astype(float)
    y[7] = wrong
    with pytest.raises(InputError, match=rf"expected whole numbers of at least 0, got {wrong:g} in row 7.* Give whole"):
        bs.BayesianMLPRegressor(likelihood="poisson", **OPTIONS).fit(x, y)


def test_likelihoods_of_classes_are_refused() -> None:
    x, y, _ = _counts(20, 6)
    with pytest.raises(UnsupportedError, match="expected one of numbers, got 'categorical'"):
        bs.BayesianMLPRegressor(likelihood=bs.Categorical(), **OPTIONS).fit(x, y)


def test_amounts_in_a_small_unit_are_predicted_in_that_unit() -> None:
    unit = 1e-9
    x, _, mean = _counts(60, 7)
    y = mean * np.random.default_rng(7).gamma(5.0, 0.2, 60)
    model = bs.BayesianMLPRegressor(likelihood="gamma", **OPTIONS)
    np.testing.assert_allclose(model.fit(x, unit * y).predict(x) / unit, model.fit(x, y).predict(x), rtol=0.03)


def test_ordered_classes_are_predicted_better_than_without_their_order() -> None:
    options = OPTIONS | {"prior_precision": 1.0}
    gains = []
    for seed in range(4):  # which mode the training finds moves the loss of one table by .05
        rng = np.random.default_rng(seed)
        x = rng.uniform(-2.0, 2.0, (600, 2))
        f = 2.0 * np.sin(2.0 * x[:, 0]) + x[:, 1]
        y = np.array(["low", "middle", "high", "top"])[np.digitize(f + 0.5 * rng.logistic(size=600), [-1.5, 0.0, 2.8])]
        y = pd.Series(pd.Categorical(y, ["low", "middle", "high", "top"], ordered=True))
        train, test = slice(200), slice(200, None)
        ordinal = bs.BayesianMLPRegressor(likelihood="ordinal", **options).fit(x[train], y[train])
        plain = bs.BayesianMLPClassifier(**options).fit(x[train], y[train])
        loss = []
        for model in (ordinal, plain):
            codes = pd.Index(model.classes_).get_indexer(y[test])
            loss.append(-np.log(model.predict_proba(x[test])[np.arange(400), codes]).mean())
        gains.append(loss[1] - loss[0])
    assert np.mean(gains) > 0.05
    assert list(ordinal.classes_) == list(y.cat.categories)
    assert ordinal.score(x[test], y[test]) > 0.5
    weights = np.full(200, 2.0)
    assert bs.BayesianMLPRegressor(likelihood="ordinal", **options).fit(x[train], y[train], weights).score(x, y) > 0.5


def test_successes_of_trials_have_one_output() -> None:
    rng = np.random.default_rng(0)
    x, trials = rng.uniform(-2.0, 2.0, (150, 1)), rng.integers(1, 20, 150)
    p = 1.0 / (1.0 + np.exp(-2.0 * np.sin(1.5 * x[:, 0])))
    y = np.column_stack([rng.binomial(trials, p), trials])
    model = bs.BayesianMLPRegressor(likelihood="binomial", **OPTIONS).fit(x, y)
    assert np.sqrt(((model.predict(x) - p) ** 2).mean()) < 0.08


def test_what_cannot_be_learnt_is_refused() -> None:
    x, y, _ = _counts(20, 8)
    with pytest.raises(InputError, match="expected numbers of which one is not 0"):
        bs.BayesianMLPRegressor(likelihood="poisson", **OPTIONS).fit(x, 0 * y)
    with pytest.raises(InputError, match="minimum of 2 is required to learn how much y varies"):
        bs.BayesianMLPRegressor(likelihood="gamma", **OPTIONS).fit([[1.0, 2.0]], [3.0])
    with pytest.raises(InputError, match="noise_variance: expected 'evidence' beside likelihood='poisson'"):
        bs.BayesianMLPRegressor(likelihood="poisson", noise_variance=1.0, **OPTIONS).fit(x, y)


def test_counts_that_vary_more_than_a_poisson_says_are_reported() -> None:
    x, y, _ = _counts(80, 9, scale=20.0)
    with pytest.warns(BayescopeWarning, match="likelihood='poisson' gives y .* times less variance"):
        bs.BayesianMLPRegressor(likelihood="poisson", **OPTIONS).fit(x, y)


@pytest.mark.parametrize("likelihood", ["gamma", "log_normal", "student_t"])
def test_amounts_that_are_one_number_are_reported(likelihood: str) -> None:
    x, _, _ = _counts(20, 10)
    model = bs.BayesianMLPRegressor(likelihood=likelihood, prior_precision=1.0, **OPTIONS)
    with pytest.warns(BayescopeWarning, match="expected numbers that vary, got one number, 3, in all rows"):
        model.fit(x, np.full(20, 3.0))
    np.testing.assert_allclose(model.predict(x), 3.0, rtol=1e-3)
