"""Offsets and exposures, as values and by the names of columns, in every estimator of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError

MAKERS: dict[str, Any] = {
    "linear": bs.BayesianGeneralizedLinearModel,
    "network": lambda **options: bs.BayesianMLPRegressor(
        **{"hidden": (5,), "prior_precision": 1.0, "random_state": 0, **options}
    ),
    "additive": lambda **options: bs.NeuralAdditiveRegressor(random_state=0, **options),
}


def _watched(rows: int, seed: int) -> pd.DataFrame:
    """Counts of a rate of e^(0.5 + 0.6 x) a month, over 1 to 24 months."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"x": rng.uniform(-2.0, 2.0, rows), "z": rng.uniform(-1.0, 1.0, rows)})
    table["months"] = rng.uniform(1.0, 24.0, rows)
    return table.assign(visits=rng.poisson(table["months"] * np.exp(0.5 + 0.6 * table["x"])))


@pytest.fixture(scope="module", params=MAKERS)
def fitted(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param](likelihood="poisson").fit(_watched(150, 0), "visits", exposure="months")


def test_the_mean_is_the_exposure_times_the_rate(fitted: Any) -> None:
    table = _watched(200, 1).drop(columns="visits")
    rate = np.exp(0.5 + 0.6 * table["x"])
    np.testing.assert_allclose(fitted.predict(table) / table["months"], rate, rtol=0.35)
    features = table.drop(columns="months")
    np.testing.assert_allclose(fitted.predict(features, exposure=table["months"]), fitted.predict(table), rtol=1e-12)
    year = fitted.predict(features, exposure=12.0)
    np.testing.assert_allclose(year, 12.0 * fitted.predict(features, exposure=1), rtol=1e-10)
    np.testing.assert_allclose(year, fitted.predict(table, offset=np.log(12.0)), rtol=1e-10)


def test_a_named_exposure_is_read_from_the_table_by_every_question(fitted: Any, tmp_path: Path) -> None:
    whole = _watched(100, 2)
    table, y = whole.drop(columns="visits"), whole["visits"]
    predicted = fitted.predict_distribution(table)
    np.testing.assert_allclose(predicted.mean[:, 0], fitted.predict(table), rtol=1e-10)
    low, high = predicted.interval(0.9)
    assert ((low[:, 0] <= y) & (y <= high[:, 0])).mean() > 0.8
    assert fitted.score(table, y) > 0.7
    loaded = bs.load(fitted.save(tmp_path / "model.bayes"))
    np.testing.assert_array_equal(loaded.predict(table), fitted.predict(table))
    with pytest.raises(InputError, match="exposure: expected the column 'months', which the model was fitted with, go"):
        loaded.predict(table.drop(columns="months"))


@pytest.mark.parametrize("name", MAKERS)
def test_an_exposure_is_the_offset_of_its_logarithm(name: str) -> None:
    table = _watched(60, 3)
    features, months = table[["x", "z"]], table["months"].to_numpy()
    one = MAKERS[name](likelihood="poisson").fit(features, table["visits"], exposure=months)
    other = MAKERS[name](likelihood="poisson").fit(features, table["visits"], offset=np.log(months))
    np.testing.assert_array_equal(one.predict(features), other.predict(features))
    assert one.log_evidence_ == other.log_evidence_


@pytest.mark.parametrize("name", MAKERS)
def test_an_exposure_in_another_unit_changes_the_rate_alone(name: str) -> None:
    table = _watched(60, 4)
    features = table[["x", "z"]]
    months = MAKERS[name](likelihood="poisson").fit(features, table["visits"], exposure=table["months"])
    days = MAKERS[name](likelihood="poisson").fit(features, table["visits"], exposure=30.0 * table["months"])
    # A network that is trained on numbers with other last digits may end a little elsewhere in its valley
    np.testing.assert_allclose(30.0 * days.predict(features), months.predict(features), rtol=0.05)


@pytest.mark.parametrize("name", ["network", "additive"])
def test_the_offset_of_a_number_is_taken_from_it(name: str) -> None:
    table = _watched(60, 5)
    features, y = table[["x", "z"]], np.sin(table["x"])
    plain = MAKERS[name]().fit(features, y)
    moved = MAKERS[name]().fit(features, y + table["months"], offset=table["months"])
    np.testing.assert_allclose(moved.predict(features), plain.predict(features), atol=0.03)
    np.testing.assert_allclose(moved.predict(features, offset=2.0), moved.predict(features) + 2.0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:sghmc. the chains have not mixed well")
@pytest.mark.parametrize(
    "posterior", ["last_layer", "map", "variational", "mc_dropout", "ensemble", "swag", "sgmcmc", "function_space"]
)
def test_every_posterior_of_a_network_takes_an_exposure(posterior: str) -> None:
    table = _watched(60, 6)
    model = MAKERS["network"](likelihood="poisson", posterior=posterior, epochs=20, draws=20, members=2, hidden=(3,))
    if posterior not in ("variational", "mc_dropout", "swag", "sgmcmc"):
        model.set_params(draws=None)
    model.fit(table, "visits", exposure="months")
    np.testing.assert_allclose(
        model.predict(table[["x", "z"]], exposure=24.0),
        24.0 * model.predict(table[["x", "z"]], exposure=1.0),
        rtol=1e-8,
    )


def test_a_table_on_disk_has_its_exposure_in_a_column(tmp_path: Path) -> None:
    table = _watched(150, 7)
    table.to_csv(tmp_path / "table.csv", index=False)
    stored = bs.open_table(tmp_path / "table.csv")
    model = MAKERS["linear"](likelihood="poisson", posterior="laplace").fit(stored, "visits", exposure="months")
    memory = MAKERS["linear"](likelihood="poisson", posterior="laplace").fit(table, "visits", exposure="months")
    np.testing.assert_allclose(model.predict(stored), memory.predict(table.drop(columns="visits")), rtol=1e-5)
    with pytest.raises(InputTypeError, match="exposure: expected the name of a column for a table on disk, got float"):
        model.predict(stored, exposure=12.0)


@pytest.mark.parametrize("name", MAKERS)
def test_an_exposure_that_cannot_be_is_refused(name: str) -> None:
    table = _watched(20, 8)
    features, y = table[["x", "z"]], table["visits"]
    with pytest.raises(UnsupportedError, match="exposure: expected a likelihood with a log link"):
        MAKERS[name]().fit(features, y, exposure=np.ones(20))
    with pytest.raises(InputError, match="exposure: expected positive numbers, got 0 in row 0"):
        MAKERS[name](likelihood="poisson").fit(features, y, exposure=np.zeros(20))
    with pytest.raises(InputError, match=r"exposure: expected shape \(20,\), .* got \(7,\)"):
        MAKERS[name](likelihood="poisson").fit(features, y, exposure=np.ones(7))
    with pytest.raises(OptionError, match="got both"):
        MAKERS[name](likelihood="poisson").fit(features, y, exposure=np.ones(20), offset=np.ones(20))
    with pytest.raises(OptionError, match=r"exposure: .*'years'"):
        MAKERS[name](likelihood="poisson").fit(table, "visits", exposure="years")


@pytest.mark.parametrize("role", ["exposure", "offset"])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_number_that_cannot_be_added_is_named_by_its_row_and_column(role: str, value: float) -> None:
    table = _watched(20, 8)
    table.loc[5, "months"] = value
    if value == 0 and role == "offset":
        return
    with pytest.raises(InputError, match=f"{role}: expected .* got {value:g} in row 5 of column 'months'"):
        MAKERS["linear"](likelihood="poisson").fit(table, "visits", **{role: "months"})


def test_log_likelihoods_of_draws_know_the_exposure() -> None:
    table = _watched(60, 9)
    features, y = table[["x", "z", "months"]], table["visits"].to_numpy()
    model = MAKERS["linear"](likelihood="poisson", posterior="laplace").fit(table, "visits", exposure="months")
    groups = model.posterior_.groups((model._rows(features), y), 2000, 0)
    found = np.log(np.exp(groups["log_likelihood"]["y"]).mean((0, 1)))
    np.testing.assert_allclose(found, model.predict_distribution(features).log_prob(y), atol=0.05)
