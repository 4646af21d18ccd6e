"""The coefficients of linear estimators as a table and as ArviZ's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.errors import InputError


def table(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    source = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": source.normal(50, 9, 150), "dose": source.gamma(2, 3, 150)})
    frame["colour"] = source.choice(["red", "green"], 150)
    y = 0.1 * frame["age"] + 0.2 * frame["dose"] + (frame["colour"] == "red") + 0.3 * source.standard_normal(150)
    return frame, y.to_numpy()


def classes(y: np.ndarray, count: int) -> np.ndarray:
    return np.array(["low", "mid", "top"])[np.digitize(y, np.quantile(y, np.arange(1, count) / count))]


@pytest.mark.parametrize("standardize", [False, True])
def test_the_table_has_what_the_posterior_says(standardize: bool):
    frame, y = table()
    model = BayesianLinearRegression(standardize=standardize).fit(frame, y)
    told = model.coefficients(level=0.5).set_index("name")
    assert list(told.columns) == ["mean", "sd", "low", "high", "per"]
    assert list(told.index) == list(model.weight_names_)
    np.testing.assert_allclose(told["mean"], [*model.coef_, model.intercept_])
    weights = model.posterior_.covariance.diagonal().sqrt().numpy()[:-1]
    np.testing.assert_allclose(told["sd"].iloc[:-1], weights, rtol=1e-6)
    np.testing.assert_allclose((told["high"] - told["mean"]) / told["sd"], 0.6744897501960817, rtol=1e-9)
    # A coefficient per unit of its column is the slope of the prediction.
    row = frame.iloc[[0]]
    moved = model.predict(row.assign(age=row["age"] + 1.0)) - model.predict(row)
    assert told.loc["age", "mean"] / told.loc["age", "per"] == pytest.approx(moved[0], rel=1e-9)
    assert told.loc["age", "per"] == pytest.approx(frame["age"].std(ddof=0) if standardize else 1.0)
    assert told.loc["colour=red", "per"] == 1.0


def test_the_intercept_is_told_where_the_inputs_are_0():
    frame, y = table()
    model = BayesianLinearRegression(standardize=False).fit(frame[["age"]], y)
    at_zero = model.predict_distribution(pd.DataFrame({"age": [0.0]}))
    told = model.coefficients().set_index("name").loc["intercept"]
    assert told["mean"] == pytest.approx(at_zero.latent_mean[0, 0], rel=1e-9)
    assert told["sd"] == pytest.approx(np.sqrt(at_zero.latent_cov[0, 0, 0]), rel=1e-6)


@pytest.mark.parametrize("posterior", ["laplace", "mean_field", "metropolis", "map"])
def test_classes_have_a_line_each(posterior: str):
    frame, y = table()
    options = {"draws": 2000, "random_state": 0} if posterior == "metropolis" else {}
    model = BayesianLogisticRegression(posterior=posterior, standardize=True, **options).fit(frame, classes(y, 3))
    told = model.coefficients()
    assert list(told["class"].unique()) == ["low", "mid", "top"]
    wide = told.pivot(index="class", columns="name", values="mean")
    np.testing.assert_allclose(wide.loc[list(model.classes_), list(model._inputs.names)], model.coef_)
    assert told["sd"].isna().all() == (posterior == "map")
    if posterior == "metropolis":
        draws = model.posterior_.flat[:, 0].numpy()
        assert told["low"][0] == pytest.approx(np.quantile(draws, 0.025), rel=1e-9)


def test_the_summary_shows_the_coefficients(tmp_path: Path):
    frame, y = table()
    model = BayesianLinearRegression().fit(frame, y)
    lines = model.summary().splitlines()
    assert any("coefficients, with 95 % intervals" in line for line in lines)
    assert lines[-1].split()[0] == "intercept"
    assert bs.load(model.save(tmp_path / "m.bayes")).summary() == model.summary()
    wide = np.random.default_rng(0).standard_normal((60, 30))
    told = BayesianLinearRegression().fit(wide, 3.0 * wide[:, 7] + wide[:, 2] + 0.1 * y[:60]).summary()
    assert "the 10 of 30 furthest from 0" in told
    assert told.index("  x7 ") < told.index("  x2 ")


@pytest.mark.filterwarnings("ignore:nuts")
@pytest.mark.parametrize("count", [2, 3])
def test_arviz_has_named_coefficients(count: int):
    frame, y = table()
    labels = classes(y, count)
    model = BayesianLogisticRegression(
        posterior="nuts", draws=250, tune=250, chains=2, random_state=0, standardize=True
    )
    model.fit(frame, labels)
    data: Any = model.to_arviz(data=(frame, labels))
    weights = data["posterior"]["weights"]
    assert weights.sizes["feature"] == 4
    at = {"feature": "dose"} | ({"class": "mid"} if count > 2 else {})
    place = (list(model.classes_).index("mid") if count > 2 else 0, list(model._inputs.names).index("dose"))
    assert float(weights.sel(at).mean()) == pytest.approx(model.coef_[place], rel=1e-9)
    assert data["posterior"]["intercept"].dims == (("chain", "draw", "class") if count > 2 else ("chain", "draw"))
    assert {"diverging", "lp", "energy"} <= set(data["sample_stats"])
    observed, drawn = data["observed_data"]["y"], data["posterior_predictive"]["y"]
    np.testing.assert_array_equal(observed, np.searchsorted(model.classes_, labels))
    assert drawn.dims == ("chain", "draw", "row")
    shares = np.stack([(drawn.values == code).mean((0, 1)) for code in range(count)], 1)
    np.testing.assert_allclose(shares, model.predict_proba(frame), atol=0.12)
    # The draws are all that the estimator averages over, and the columns are in their own units.
    likelihoods = np.exp(data["log_likelihood"]["y"].values).mean((0, 1))
    np.testing.assert_allclose(likelihoods, model.predict_proba(frame)[np.arange(150), observed.values], rtol=1e-6)
    with pytest.raises(InputError, match=r"expected labels among the fitted classes .*, got 'new'\."):
        model.to_arviz(data=(frame, np.where(labels == "low", "new", labels)))


def test_arviz_has_the_outcomes_of_a_regression():
    frame, y = table()
    model = BayesianLinearRegression(random_state=0).fit(frame, y)
    data: Any = model.to_arviz(data=(frame, y), draws=2000)
    drawn = data["posterior_predictive"]["y"]
    mean, sd = model.predict(frame, return_std=True)
    np.testing.assert_allclose(drawn.mean(("chain", "draw")), mean, atol=0.15 * sd.max())
    np.testing.assert_allclose(drawn.std(("chain", "draw")), sd, rtol=0.1)
    np.testing.assert_array_equal(data["observed_data"]["y"], y)
    assert "sample_stats" not in data
    assert float(data["posterior"]["intercept"].mean()) == pytest.approx(model.intercept_, abs=0.3)
    theirs: Any = model.posterior_.to_arviz(data=(frame, y), draws=2000, generator=0)
    np.testing.assert_allclose(theirs["log_likelihood"]["y"], data["log_likelihood"]["y"], rtol=1e-9)
