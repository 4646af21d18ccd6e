"""Additive models of counts and other outcomes than Gaussian numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import nbinom, poisson

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError, UnsupportedError


def _table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of three columns, and log means of two effects; the third column tells nothing."""
    x = np.random.default_rng(seed).uniform(-2.0, 2.0, (rows, 3))
    return x, 1.0 + 0.8 * np.sin(2.0 * x[:, 0]) + 0.3 * x[:, 1]


def _counts(f: np.ndarray, seed: int, dispersion: float = 0.0) -> np.ndarray:
    mean = np.exp(f)
    drawn = poisson(mean) if not dispersion else nbinom(1.0 / dispersion, 1.0 / (1.0 + dispersion * mean))
    return drawn.rvs(random_state=np.random.default_rng(seed + 1))


@pytest.fixture(scope="module")
def counted() -> bs.NeuralAdditiveRegressor:
    x, f = _table(600, 0)
    return bs.NeuralAdditiveRegressor(likelihood="poisson", random_state=0).fit(x, _counts(f, 0))


def test_counts_are_predicted_nearly_as_well_as_by_their_truth(counted: bs.NeuralAdditiveRegressor) -> None:
    x, f = _table(1_000, 5)
    y = _counts(f, 5)
    predicted = counted.predict_distribution(x)
    assert -predicted.log_prob(y).mean() < -poisson(np.exp(f)).logpmf(y).mean() + 0.03
    low, high = predicted.interval(0.9)
    assert (low >= 0).all()
    assert 0.88 < ((low[:, 0] <= y) & (y <= high[:, 0])).mean() < 0.99


def test_effects_are_on_the_log_of_the_mean_and_their_bands_hold_the_truth(counted: bs.NeuralAdditiveRegressor) -> None:
    effect = counted.effects(0, grid=np.linspace(-1.9, 1.9, 50), level=0.99)
    truth = 0.8 * np.sin(2.0 * effect.grid)
    centred = truth - (truth - effect.mean).mean()
    assert ((effect.low <= centred) & (centred <= effect.high)).mean() > 0.9


def test_effects_on_the_mean_are_those_on_the_link_through_the_exponential(counted: bs.NeuralAdditiveRegressor) -> None:
    link, mean = (counted.effects(1, grid=7, scale=scale) for scale in ("link", "mean"))
    intercept = float(counted.posterior_.location[-1])
    np.testing.assert_allclose(mean.low, np.exp(intercept + link.low), rtol=1e-12)
    np.testing.assert_allclose(mean.high, np.exp(intercept + link.high), rtol=1e-12)
    np.testing.assert_allclose(mean.mean, np.exp(intercept + link.mean + 0.5 * link.sd**2), rtol=1e-12)
    assert (mean.sd > 0).all()


def test_an_exposure_is_an_offset_of_the_log_mean(counted: bs.NeuralAdditiveRegressor) -> None:
    """Twice the exposure gives twice the mean; fits with an offset find the effects of the rate."""
    x, f = _table(600, 0)
    offset = np.log(np.random.default_rng(9).uniform(0.2, 5.0, len(x)))
    model = bs.NeuralAdditiveRegressor(likelihood="poisson", random_state=0).fit(
        x, _counts(f + offset, 0), offset=offset
    )
    twice = model.predict(x[:9], offset=np.full(9, np.log(2.0)))
    np.testing.assert_allclose(twice, 2.0 * model.predict(x[:9]), rtol=1e-10)
    a, b = (each.effects(0, grid=20).mean for each in (model, counted))
    assert np.sqrt(((a - b) ** 2).mean()) < 0.1


def test_a_dispersion_is_learnt() -> None:
    x, f = _table(800, 1)
    model = bs.NeuralAdditiveRegressor(likelihood="negative_binomial", random_state=0).fit(x, _counts(f, 1, 0.6))
    assert float(model.likelihood_.dispersion) == pytest.approx(0.6, rel=0.25)
    given = bs.NeuralAdditiveRegressor(likelihood=bs.NegativeBinomial(0.3), random_state=0).fit(x, _counts(f, 1, 0.6))
    assert float(given.likelihood_.dispersion) == 0.3
    assert given.log_evidence_ < model.log_evidence_


def test_larger_counts_move_the_intercept_alone() -> None:
    """The intercept's prior is about the log of the mean: counts of thousands are no farther from it than others."""
    x, f = _table(400, 2)
    small, large = (
        bs.NeuralAdditiveRegressor(likelihood="negative_binomial", random_state=0).fit(x, _counts(f + more, 2, 0.3))
        for more in (2.0, 9.0)
    )
    shift = float(large.posterior_.location[-1] - small.posterior_.location[-1])
    assert shift == pytest.approx(7.0, abs=0.15)
    grid = np.linspace(-1.9, 1.9, 30)
    assert np.abs(large.effects(0, grid=grid).mean - small.effects(0, grid=grid).mean).max() < 0.4


def test_a_model_of_counts_answers_the_same_from_its_file(
    counted: bs.NeuralAdditiveRegressor, tmp_path: object
) -> None:
    x, _ = _table(20, 3)
    counted.save(f"{tmp_path}/model.bayes")
    loaded = bs.load(f"{tmp_path}/model.bayes")
    np.testing.assert_array_equal(loaded.predict(x), counted.predict(x))


def test_bad_outcomes_and_scales_are_refused(counted: bs.NeuralAdditiveRegressor) -> None:
    x, f = _table(30, 4)
    y = _counts(f, 4).astype(float)
    y[11] = -2.0
    with pytest.raises(InputError, match=r"whole numbers of at least 0, got -2 in row 11"):
        bs.NeuralAdditiveRegressor(likelihood="poisson").fit(x, y)
    with pytest.raises(UnsupportedError, match="expected one of numbers, got 'categorical'"):
        bs.NeuralAdditiveRegressor(likelihood=bs.Categorical()).fit(x, y)
    with pytest.raises(ValueError, match="scale: expected one of"):
        counted.effects(0, scale="log")
    labels = torch.arange(30).numpy() % 3
    classes = bs.NeuralAdditiveClassifier(random_state=0, epochs=8).fit(x, labels)
    with pytest.raises(UnsupportedError, match="scale: expected 'link' for several outputs"):
        classes.effects(0, scale="mean")


@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_outliers_have_students_t_in_any_unit(unit: float) -> None:
    x, f = _table(500, 7)
    y = unit * (f + 0.2 * np.random.default_rng(7).standard_t(3.0, len(x)))
    model = bs.NeuralAdditiveRegressor(likelihood="student_t", random_state=0).fit(x, y)
    assert float(model.likelihood_.scale) == pytest.approx(0.2 * unit, rel=0.3)
    error = model.predict(x) / unit - f
    assert np.sqrt((error**2).mean()) < 0.12
    given = bs.StudentT(0.2 * unit, 3.0)
    held = bs.NeuralAdditiveRegressor(likelihood=given, random_state=0).fit(x, y)
    assert float(held.likelihood_.scale) == pytest.approx(0.2 * unit)
    assert held.log_evidence_ == pytest.approx(model.log_evidence_, abs=15.0)


@pytest.mark.parametrize("estimator", [bs.NeuralAdditiveRegressor, bs.BayesianGeneralizedLinearModel])
def test_counts_that_vary_more_than_a_poisson_says_are_reported(estimator: type) -> None:
    x, f = _table(300, 8)
    with pytest.warns(
        BayescopeWarning, match=r"'poisson' gives y .* times less variance .* likelihood='negative_binomial'"
    ):
        estimator(likelihood="poisson").fit(x, _counts(f, 8, 2.0))
    estimator(likelihood="negative_binomial").fit(x, _counts(f, 8, 2.0))
    x = x[:, 1:2]
    estimator(likelihood="poisson").fit(x, _counts(1.0 + 0.3 * x[:, 0], 8))
