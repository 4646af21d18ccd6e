"""Lifetimes that may be censored, in every estimator of numbers: they fit, predict, and are judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, weibull_min

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError

SHAPE = 1.7
MAKERS = {
    "linear": bs.BayesianGeneralizedLinearModel,
    "network": lambda **options: bs.BayesianMLPRegressor(hidden=(6,), prior_precision=1.0, random_state=0, **options),
    "additive": lambda **options: bs.NeuralAdditiveRegressor(random_state=0, **options),
}


def _lives(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, lifetimes, when the watch of each ended, and the log scale of the lifetimes."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (rows, 2))
    f = 1.0 + 0.8 * x[:, 0] - 0.4 * x[:, 1]
    return x, np.exp(f) * rng.weibull(SHAPE, rows), rng.exponential(6.0, rows), f


def _censored(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x, life, watch, _ = _lives(rows, seed)
    return x, bs.Censored(np.minimum(life, watch), life <= watch)


@pytest.fixture(scope="module", params=MAKERS)
def fitted(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param](likelihood="weibull").fit(*_censored(200, 3))


def test_censored_lifetimes_are_predicted_nearly_as_well_as_by_their_truth(fitted: Any) -> None:
    """A fit that took the end of the watch for the event would miss the truth by 0.25 nats and more."""
    x, life, _, f = _lives(1_000, 1)
    predicted = fitted.predict_distribution(x)
    truth = -weibull_min(SHAPE, scale=np.exp(f)).logpdf(life).mean()
    assert -predicted.log_prob(life).mean() < truth + 0.1
    low, high = predicted.interval(0.9)
    assert 0.85 < ((low[:, 0] <= life) & (life <= high[:, 0])).mean() < 0.95
    assert ((life <= predicted.quantile(0.5)[:, 0]).mean()) == pytest.approx(0.5, abs=0.06)
    assert fitted.predict(x).shape == (1_000,)


def test_censored_rows_have_the_log_probability_of_living_on(fitted: Any) -> None:
    x, _, watch, _ = _lives(20, 2)
    predicted = fitted.predict_distribution(x)
    survival = predicted.log_prob(bs.Censored(watch, np.zeros(20)))
    np.testing.assert_allclose(np.exp(survival), 1.0 - predicted.cdf(watch)[:, 0], atol=1e-7)


def test_a_censored_y_has_no_explained_variance(fitted: Any) -> None:
    x, y = _censored(20, 3)
    with pytest.raises(InputError, match=r"y: expected exact numbers for R², got times that may be censored. Take pre"):
        fitted.score(x, y)
    assert fitted.score(x, y[:, 0]) < 1.0


@pytest.mark.parametrize("name", ["network", "additive"])
def test_the_survival_of_a_lognormal_is_that_of_a_wider_one(name: str) -> None:
    model = MAKERS[name](likelihood="log_normal").fit(*_censored(80, 4))
    x, _, watch, _ = _lives(20, 5)
    predicted = model.predict_distribution(x)
    sd = np.sqrt(predicted.latent_cov[:, 0, 0] + float(model.likelihood_.sd) ** 2)
    expected = norm.logsf((np.log(watch) - predicted.latent_mean[:, 0]) / sd)
    np.testing.assert_allclose(predicted.log_prob(bs.Censored(watch, np.zeros(20))), expected, rtol=1e-8)


@pytest.mark.parametrize("name", MAKERS)
def test_lifetimes_without_censoring_are_numbers(name: str) -> None:
    x, life, _, _ = _lives(60, 6)
    plain = MAKERS[name](likelihood="weibull").fit(x, life)
    seen = MAKERS[name](likelihood="weibull").fit(x, bs.Censored(life, np.ones(60)))
    np.testing.assert_allclose(seen.predict(x), plain.predict(x), rtol=1e-4)
    assert seen.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-3)


def test_a_row_of_weight_two_is_two_rows_and_the_unit_changes_nothing() -> None:
    x, y = _censored(80, 7)
    weights = np.where(np.arange(80) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(80), weights.astype(int))
    one = MAKERS["additive"](likelihood="weibull").fit(x, y, weights)
    two = MAKERS["additive"](likelihood="weibull").fit(1.0 * x[twice], 1e3 * y[twice])
    np.testing.assert_allclose(two.predict(x), 1e3 * one.predict(x), rtol=1e-3)


def test_the_evidence_of_censored_numbers_loses_a_unit_for_each_event() -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(-2.0, 2.0, (80, 1))
    y, watch = np.sin(2.0 * x[:, 0]) + 0.3 * rng.laplace(size=80), rng.normal(0.7, 0.5, 80)
    known = bs.Censored(np.minimum(y, watch), y <= watch)
    one, other = (MAKERS["additive"](likelihood="laplace_noise").fit(x, unit * known) for unit in (1.0, 1e3))
    assert other.log_evidence_ == pytest.approx(one.log_evidence_ - (y <= watch).sum() * np.log(1e3), abs=1e-6)
    np.testing.assert_allclose(other.predict(x), 1e3 * one.predict(x), rtol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_what_cannot_be_a_lifetime_is_refused(name: str) -> None:
    x, y = _censored(20, 9)
    with pytest.raises(UnsupportedError, match=r"expected 'weibull', .* for a y of bs.Censored, got 'poisson'"):
        MAKERS[name](likelihood="poisson").fit(x, y)
    with pytest.raises(InputError, match="expected at least one event, got times that are censored in all rows"):
        MAKERS[name](likelihood="weibull").fit(x, bs.Censored(y[:, 0], np.zeros(20)))
    table = pd.DataFrame({"time": y[:, 0], "event": (y[:, 0] == y[:, 1]).astype(int)})
    with pytest.raises(InputError, match=r"got only 0 and 1 in 'event'. Give times .* as bs.Censored"):
        MAKERS[name](likelihood="weibull").fit(x, table)
    y[3, :2] = -1.0
    with pytest.raises(InputError, match=r"expected .* got .* in row 3"):
        MAKERS[name](likelihood="weibull").fit(x, y)


@pytest.mark.parametrize("codes", [(0, 1), (1, 2), (1, 2, 3), (1,)])
def test_times_with_codes_of_events_are_not_two_amounts(codes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(12)
    y = pd.DataFrame({"time": rng.exponential(size=40), "event": rng.choice(codes, 40)})
    with pytest.raises(InputError, match=r"got only .* in 'event'. Give times of which some are censored as bs.Cens"):
        MAKERS["linear"](likelihood="weibull").fit(rng.normal(size=(40, 1)), y)


@pytest.mark.parametrize("likelihood", ["student_t", "exponential"])
def test_four_outcomes_are_no_intervals_even_if_they_or_their_means_have_that_order(likelihood: str) -> None:
    rng = np.random.default_rng(10)
    x = rng.normal(size=(30, 1))
    y = np.exp(0.5 * x) * rng.gamma(9.0, size=(30, 4))
    ordered = np.sort(y)[:, [1, 2, 0, 3]]
    model, alone = (MAKERS["linear"](likelihood=likelihood, posterior="map") for _ in range(2))
    model.fit(x, ordered), alone.fit(x, ordered[:, 1])
    np.testing.assert_allclose(model.predict(x)[:, 1], alone.predict(x), rtol=1e-3)
    means = y * [2.0, 3.0, 1.0, 4.0]
    assert MAKERS["additive"](likelihood=likelihood).fit(x, means).predict(x).shape == (30, 4)


def test_log_likelihoods_of_censored_rows_are_those_of_the_predictive() -> None:
    x, y = _censored(60, 11)
    model = MAKERS["linear"](likelihood="weibull", posterior="laplace").fit(x, y)
    groups = model.posterior_.groups((model._rows(x), model._targets(y, 60)), 2000, 0)
    from_draws = np.log(np.exp(groups["log_likelihood"]["y"]).mean((0, 1)))
    np.testing.assert_allclose(from_draws, model.predict_distribution(x).log_prob(y), atol=0.1)
