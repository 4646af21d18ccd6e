"""Estimators of additive models and networks in ArviZ's groups: what they say of rows is what they predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError, UndefinedQuantityError


def table(rows: int = 80) -> tuple[pd.DataFrame, np.ndarray]:
    source = np.random.default_rng(0)
    frame = pd.DataFrame({"age": source.normal(50, 9, rows), "dose": source.gamma(2, 3, rows)})
    frame["ward"] = source.choice(["a", "b"], rows)
    y = 0.1 * frame["age"] + 0.2 * frame["dose"] + (frame["ward"] == "a") + 0.3 * source.standard_normal(rows)
    return frame, y.to_numpy()


def targets(kind: str, y: np.ndarray) -> np.ndarray:
    match kind:
        case "two classes":
            return np.where(y > np.median(y), "high", "low")
        case "three classes":
            return np.digitize(y, np.quantile(y, [0.3, 0.7]))
        case "two columns":
            return np.stack([y, -y], 1)
    return y


def check(model: Any, frame: pd.DataFrame, y: np.ndarray, codes: np.ndarray) -> Any:
    """Log likelihoods and outcomes averaged over draws are those of the predictive distribution."""
    data, answer = model.to_arviz(data=(frame, y), draws=4000), model.predict_distribution(frame)
    drawn, logs = data["posterior_predictive"]["y"], data["log_likelihood"]["y"]
    assert drawn.dims[:3] == logs.dims == ("chain", "draw", "row")
    averaged = np.log(np.exp(logs.values).mean((0, 1)))
    np.testing.assert_allclose(averaged.mean(), answer.log_prob(codes).mean(), atol=0.02)
    np.testing.assert_array_equal(np.squeeze(data["observed_data"]["y"].values), np.squeeze(codes))
    if answer.mean.shape[1] == 1 and drawn.sizes["draw"] > 100:
        np.testing.assert_allclose(
            drawn.values.mean((0, 1)), answer.mean[:, 0], atol=0.1 * np.sqrt(answer.variance.max())
        )
    return data


@pytest.mark.parametrize("kind", ["numbers", "two columns", "two classes", "three classes"])
def test_an_additive_model_has_its_effects_by_name(kind: str):
    frame, y = table()
    goal = targets(kind, y)
    classes = kind.endswith("classes")
    make = bs.NeuralAdditiveClassifier if classes else bs.NeuralAdditiveRegressor
    model: Any = make(hidden=5, interactions=[("age", "dose")], random_state=0).fit(frame, goal)
    codes = np.searchsorted(model.classes_, goal) if classes else goal
    data = check(model, frame, goal, codes)["posterior"]
    assert set(data.data_vars) == {"intercept", "age", "dose", "ward"}
    several = kind in ("two columns", "three classes")
    for name in ("age", "ward"):
        effect, drawn = model.effects(name), data[name]
        assert drawn.dims[2:] == ((f"{name}_value", "output") if several else (f"{name}_value",))
        np.testing.assert_array_equal(drawn[f"{name}_value"].values, effect.grid)
        np.testing.assert_allclose(drawn.mean(("chain", "draw")), effect.mean, atol=0.1 * effect.sd.max())
        np.testing.assert_allclose(drawn.std(("chain", "draw")), effect.sd, rtol=0.1, atol=1e-9)
    constant = model.explain(frame.head(1))
    np.testing.assert_allclose(
        data["intercept"].mean(("chain", "draw")), constant.intercept, atol=0.1 * np.max(constant.intercept_sd)
    )


def test_a_gap_and_an_unknown_label_do_not_stop_it():
    frame, y = table()
    model = bs.NeuralAdditiveClassifier(hidden=5, random_state=0).fit(frame, targets("two classes", y))
    frame.loc[3, "age"] = np.nan
    assert np.isfinite(model.to_arviz(data=(frame, targets("two classes", y)))["log_likelihood"]["y"]).all()
    with pytest.raises(InputError, match="expected labels among the fitted classes"):
        model.to_arviz(data=(frame, np.full(80, "new")))


@pytest.mark.parametrize("posterior", ["laplace", "map", "ensemble"])
def test_a_network_has_draws_of_its_predictions(posterior: str):
    frame, y = table()
    options = {"members": 2} if posterior == "ensemble" else {}
    model = bs.BayesianMLPRegressor(
        hidden=(5,), posterior=posterior, prior_precision=1.0, noise_variance=0.1, epochs=10, random_state=0, **options
    ).fit(frame, y)
    assert set(check(model, frame, y, y)["posterior"].data_vars) == {"weights"}


def test_a_posterior_without_weights_says_so():
    frame, y = table()
    model = bs.BayesianMLPRegressor(
        hidden=(5,), posterior="mc_dropout", prior_precision=1.0, noise_variance=0.1, epochs=2, random_state=0
    )
    with pytest.raises(UndefinedQuantityError, match="draws functions, not weights"):
        model.fit(frame, y).to_arviz(data=(frame, y))
