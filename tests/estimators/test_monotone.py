"""Additive models with monotone effects: the effect, its band and every draw keep the direction, on the whole line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

import bayescope as bs
from bayescope.additive.effects import effect_draws
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError

MONOTONE = {"age": 1, "dose": -1, "stage": 1}
FAST = {"hidden": 12, "epochs": 15, "random_state": 0}


def table(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, numbers with few values, and labels."""
    source = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": source.gamma(4.0, 12.0, rows),
            "dose": source.normal(0.0, 1.0, rows),
            "stage": source.integers(0, 5, rows).astype(float),
            "height": source.normal(170.0, 8.0, rows),
            "ward": source.choice(["a", "b", "c"], rows),
        }
    )
    frame.loc[::9, "age"] = np.nan
    return frame


def signal(frame: pd.DataFrame) -> np.ndarray:
    """Rises and falls with age, so that the bound has work to do, falls with the dose and jumps with the stage."""
    age = frame["age"].fillna(90.0).to_numpy()
    waves = np.sin(frame["height"].to_numpy() / 4.0)
    jump = frame["stage"].to_numpy() > 2.0
    return np.sin(age / 12.0) + 0.01 * age - np.tanh(frame["dose"].to_numpy()) + jump + 0.5 * waves


X = table()
Y = signal(X) + 0.3 * np.random.default_rng(1).standard_normal(len(X))


def regressor(**options: Any) -> bs.NeuralAdditiveRegressor:
    return bs.NeuralAdditiveRegressor(**{**FAST, "monotone": MONOTONE, **options})


def classifier(**options: Any) -> bs.NeuralAdditiveClassifier:
    return bs.NeuralAdditiveClassifier(**{**FAST, "monotone": MONOTONE, **options})


FITS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: regressor().fit(X, Y),
    "full": lambda: regressor(structure="full").fit(X, Y),
    "normal scores": lambda: regressor(numeric_transform="quantile", interactions="auto").fit(X, Y),
    "weights": lambda: regressor(prior_precision=0.5).fit(X, Y, sample_weight=1.0 + np.arange(len(X)) % 3),
    "columns": lambda: regressor().fit(X, np.stack([Y, 5.0 - 2.0 * Y], 1)),
    "two classes": lambda: classifier().fit(X, Y > 1.0),
    "labels": lambda: classifier().fit(X, np.stack([Y > 1.0, Y > 2.0, Y < 0.5], 1).astype(int)),
    "few rows": lambda: regressor().fit(X[:12], Y[:12]),
}


@pytest.fixture(scope="module", params=FITS.values(), ids=FITS.keys())
def model(request: pytest.FixtureRequest) -> Any:
    return request.param()


def wide(feature: str) -> np.ndarray:
    """Values as far as ten ranges beyond the data."""
    low, high = X[feature].min(), X[feature].max()
    return np.unique(
        np.concatenate([np.linspace(low, high, 150), np.linspace(11 * low - 10 * high, 11 * high - 10 * low, 90)])
    )


def assert_in_direction(values: np.ndarray, sign: int) -> None:
    """Along the first axis, but for rounding."""
    assert float((sign * np.diff(values, axis=0)).min()) >= -1e-9 * (1.0 + np.ptp(values))


@pytest.mark.parametrize(("feature", "sign"), MONOTONE.items())
def test_the_effect_and_its_band_keep_their_direction(model: Any, feature: str, sign: int):
    effect = model.effects(feature, grid=wide(feature))
    for values in (effect.mean, effect.low, effect.high):
        assert_in_direction(values, sign)
    assert (effect.low <= effect.mean).all()
    assert (effect.mean <= effect.high).all()


def test_every_draw_keeps_its_direction(model: Any):
    theta = model.posterior_.sample(40, generator=3)
    for place, name in enumerate(X.columns[:3]):
        _, draws = effect_draws(model.additive_, place, theta)
        assert_in_direction(draws.transpose(0, 1).numpy(), MONOTONE[name])


def test_predictions_are_the_sum_of_the_effects(model: Any):
    rows = X[:30]
    explained = model.explain(rows)
    latent = model.predict_distribution(rows.fillna({"age": 50.0})).latent_mean
    again = model.explain(rows.fillna({"age": 50.0}))
    assert_allclose(again.total.reshape(latent.shape), latent, atol=1e-9)
    for feature in MONOTONE:
        place = explained.names.index(feature)
        effect = model.effects(feature, grid=rows[feature].to_numpy())
        for part, values in (
            (explained.contributions, effect.mean),
            (explained.low, effect.low),
            (explained.high, effect.high),
        ):
            assert_allclose(part[:, place], values, atol=1e-9)


def test_pairs_leave_monotone_features_out():
    model = regressor(interactions=2).fit(X, Y)
    assert model.pairs_ == [("height", "ward")]
    assert len(model.ranking_) == 1


def test_the_direction_is_that_of_the_column():
    """The model of −x with the opposite sign is the model of x, in whatever unit, and in any order of the columns."""
    numbers = X[["age", "dose", "stage"]]
    moved = pd.DataFrame({"stage": X["stage"] * 7.0, "age": 100.0 - X["age"] / 3.0, "dose": -1e6 * X["dose"]})
    plain = regressor().fit(numbers, Y)
    other = regressor(monotone={"age": -1, "dose": 1, 0: 1}).fit(moved, 3.0 - 1e4 * -Y)
    mean, sd = plain.predict(numbers, return_std=True)
    other_mean, other_sd = other.predict(moved, return_std=True)
    assert_allclose((other_mean - 3.0) / 1e4, mean, atol=2e-3)
    assert_allclose(other_sd / 1e4, sd, rtol=2e-3)
    effect, mirrored = plain.effects("age", grid=[20.0, 60.0]), other.effects("age", grid=[100.0 - 20.0 / 3.0, 80.0])
    assert_allclose(mirrored.mean / 1e4, effect.mean, atol=5e-3)


def test_the_gaussian_that_is_projected_is_the_posterior_without_bounds():
    numbers = X[["age", "dose", "stage"]]
    model = regressor(structure="full", prior_precision=2.0, noise_variance=0.3).fit(numbers, Y)
    fit, cone = model.additive_.fit, model.posterior_.cones[0]
    zero = torch.zeros_like(fit.theta)
    start = fit.problem.outputs(zero)
    jacobian = torch.cat([fit.problem.outputs(unit) - start for unit in torch.eye(len(zero), dtype=zero.dtype)], 1)
    precision = 1.0 / float(fit.at.likelihood.noise_variance)
    matrix = precision * jacobian.mT @ jacobian + torch.diag(fit.at.diagonal(fit.problem.families))
    exact = torch.linalg.solve(matrix, precision * jacobian.mT @ (fit.problem.targets - start)[:, 0])
    assert float(exact[cone.weights].min()) < -0.1
    assert_allclose(cone.start, exact[cone.weights], atol=0.02 * float(exact.abs().max()))


def test_data_that_go_the_other_way_leave_a_flat_effect():
    x = np.random.default_rng(0).normal(size=(150, 1))
    y = -2.0 * x[:, 0] + 0.3 * np.random.default_rng(1).standard_normal(150)
    against = regressor(monotone={0: 1}).fit(x, y).effects(0)
    assert np.ptp(against.mean) < 0.1
    assert np.ptp(against.high) < 0.3
    along = regressor(monotone={0: -1}).fit(x, y).effects(0)
    free = regressor(monotone=None).fit(x, y).effects(0)
    assert np.abs(along.mean - free.mean).max() < 0.3
    assert float(np.median(along.sd / free.sd)) == pytest.approx(1.0, abs=0.4)


def test_bands_hold_effects_that_rise_and_their_error_is_less_than_that_of_free_ones():
    inside, errors = [], []
    for seed in range(10):
        source = np.random.default_rng(seed)
        x = source.uniform(-2.0, 2.0, (40, 2))
        truth = np.stack([np.tanh(3.0 * x[:, 0]), np.exp(x[:, 1]) / 4.0], 1)
        y = truth.sum(1) + 0.7 * source.standard_normal(40)
        truth -= truth.mean(0)
        fits = [regressor(monotone=of, hidden=32, epochs=30).fit(x, y).explain(x) for of in ({0: 1, 1: 1}, None)]
        errors.append([np.square(each.contributions - truth).mean() for each in fits])
        inside.append((fits[0].low <= truth) & (truth <= fits[0].high))
    bounded, free = np.mean(errors, 0)
    assert bounded < free
    assert np.mean(inside) > 0.75


def test_a_table_on_disk_has_the_fit_of_rows_in_memory(tmp_path: Path):
    frame = X.assign(y=Y)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=70)
    streamed = regressor().fit(bs.open_table(str(tmp_path), block_rows=60), "y")
    held = regressor().fit(X, Y)
    assert streamed.log_evidence_ == pytest.approx(held.log_evidence_, rel=1e-8)
    assert_allclose(streamed.predict(X), held.predict(X), atol=1e-6)


def test_a_file_keeps_the_directions(tmp_path: Path):
    model = regressor().fit(X, Y)
    model.save(tmp_path / "model.bayes")
    loaded = bs.load(tmp_path / "model.bayes")
    assert loaded.monotone == MONOTONE
    for name in ("mean", "low", "high"):
        assert_allclose(getattr(loaded.effects("age"), name), getattr(model.effects("age"), name), rtol=0, atol=0)
    assert torch.equal(loaded.posterior_.sample(5, generator=0), model.posterior_.sample(5, generator=0))
    assert "monotone: age rising, dose falling, stage rising" in model.summary()


def test_a_point_keeps_its_direction_too():
    effect = regressor(posterior="map").fit(X, Y).effects("age", grid=wide("age"))
    assert_in_direction(effect.mean, 1)
    assert not effect.sd.any()


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (regressor, {"monotone": [("age", 1)]}, InputTypeError, "monotone: expected a mapping"),
        (regressor, {"monotone": {"weight": 1}}, OptionError, "monotone"),
        (regressor, {"monotone": {5: 1}}, InputError, "monotone: expected a name or a position from 0 to 4, got 5"),
        (
            regressor,
            {"monotone": {"age": 0}},
            InputError,
            r"monotone: expected 1 \(rising\) or -1 \(falling\) for 'age', got 0",
        ),
        (regressor, {"monotone": {"age": True}}, InputError, "for 'age', got True"),
        (regressor, {"monotone": {"age": "up"}}, InputError, "for 'age', got 'up'"),
        (regressor, {"monotone": {"age": 1, 0: 1}}, InputError, "'age' by its name and by its position"),
        (regressor, {"monotone": {"ward": 1}}, InputError, "'ward', whose labels have no order"),
        (regressor, {"interactions": [("age", "ward")]}, InputError, "'age' and 'ward', of which 'age' is in monotone"),
        (regressor, {"likelihood": "heteroscedastic_gaussian"}, UnsupportedError, "one output for each column of y"),
        (classifier, {}, UnsupportedError, "Fit one class against the others"),
    ],
)
def test_what_cannot_be_monotone_is_refused(make: Any, options: dict[str, Any], error: type[Exception], message: str):
    target = np.digitize(Y, [0.5, 1.5]) if make is classifier else Y
    with pytest.raises(error, match=message):
        make(**options).fit(X, target)
