"""Effects over grids are the contributions of rows that hold the grid's values; their covariances are joint."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bayescope.additive import (
    AdditiveOptions,
    EncodedRows,
    RowsInMemory,
    effect,
    effect_covariance,
    explain,
    fit_additive,
    surface,
)
from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.likelihoods import Gaussian
from bayescope.tables import TableEncoding, read_table
from tests.additive.fitted import encoded, fitted, frame, weights
from tests.additive.slow import moved

KINDS = ("gaussian", "categorical")
STRUCTURES = ("block", "full")


def at(**values) -> pd.DataFrame:
    """Rows with these values, the others those of the data's first row."""
    count = len(next(iter(values.values())))
    table = frame().iloc[[0] * count].reset_index(drop=True)
    return table.assign(**values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("name", "place"), [("age", 0), ("dose", 1), ("kind", 2)])
def test_effects_are_contributions_along_the_grid(kind, structure, name, place):
    additive = fitted(kind, structure)
    shown = effect(additive, name, level=0.8)
    rows = explain(additive, encoded(at(**{name: shown.grid})), level=0.8)
    assert rows.names[place] == name == shown.feature
    np.testing.assert_allclose(shown.mean, rows.contributions[:, place], rtol=0, atol=1e-12)
    np.testing.assert_allclose(shown.sd, rows.sds[:, place], rtol=1e-9)
    np.testing.assert_allclose(shown.low, rows.low[:, place], rtol=0, atol=1e-10)
    np.testing.assert_allclose(shown.high, rows.high[:, place], rtol=0, atol=1e-10)
    np.testing.assert_allclose((shown.high - shown.mean) / shown.sd, stats.norm.ppf(0.9), rtol=1e-9)


def test_the_usual_grid_is_what_was_seen():
    additive, table = fitted(), frame()
    age, kind = effect(additive, 0), effect(additive, "kind")
    assert age.grid.shape == (100,)
    assert (age.grid[0], age.grid[-1]) == (table["age"].min(), table["age"].max())
    assert kind.grid.tolist() == ["blue", "green", "red"]
    assert (age.categorical, kind.categorical) == (False, True)
    assert (
        effect(additive, "dose", grid=7).grid.tolist()
        == np.linspace(table["dose"].min(), table["dose"].max(), 7).tolist()
    )


def few_values(rows=600):
    """A jump at one of 30 values, which have effects of their own."""
    source = np.random.default_rng(3)
    table = pd.DataFrame({"hours": source.integers(10, 40, rows) / 10})
    y = np.sin(table["hours"].to_numpy()) + (table["hours"].to_numpy() == 3.0) + 0.1 * source.normal(size=rows)
    columns = read_table(table)
    encoding = TableEncoding.fit(columns)
    one = torch.ones(1, dtype=torch.float64)
    targets = torch.from_numpy((y - y.mean()) / y.std())[:, None]
    data = RowsInMemory(
        EncodedRows.of(encoding.encode(columns)), targets, one.repeat(rows), y.std() * one, y.mean() * one
    )
    return fit_additive(encoding, data, Gaussian(0.1), AdditiveOptions(hidden=6))


def test_values_with_effects_of_their_own_are_met_to_the_last_bit():
    additive = few_values()
    shown = effect(additive, "hours")
    np.testing.assert_array_equal(shown.grid, np.arange(10, 40) / 10)
    jump = shown.mean[20] - 0.5 * (shown.mean[19] + shown.mean[21])
    assert jump == pytest.approx(1.0, abs=0.15)
    between = effect(additive, "hours", grid=[3.0, 3.05])
    assert between.sd[1] > 2 * shown.sd.max(), "as wide as values differ"
    assert effect(additive, "hours", grid=4).grid.tolist() == [1.0, 2.0, 2.9, 3.9]
    np.testing.assert_allclose(shown.density.sum(), 1.0)


def test_missing_values_and_unseen_labels_have_effects_on_a_grid_that_names_them():
    additive = fitted()
    shown = effect(additive, "age", grid=[50.0, np.nan])
    assert shown.missing is not None
    assert shown.mean[1] == pytest.approx(float(shown.missing.mean), abs=1e-14)
    assert shown.sd[1] == pytest.approx(float(shown.missing.sd), rel=1e-12)
    assert effect(additive, "dose").missing is None
    labels = effect(additive, "kind", grid=["red", "violet", None])
    assert labels.sd[1] > 1.5 * labels.sd[0], "nothing was seen of it"
    assert labels.mean[1] == pytest.approx(labels.mean[2]), "both have their prior"


def test_densities_are_the_weights_shares():
    additive, table, mass = fitted(), frame(), weights().numpy() / float(weights().sum())
    kind = effect(additive, "kind")
    expected = [mass[table["kind"] == label].sum() for label in kind.grid]
    np.testing.assert_allclose(kind.density, expected, rtol=1e-12)
    age = effect(additive, "age", grid=[60.5, 40.0])
    gone = table["age"].isna().to_numpy()
    np.testing.assert_allclose(
        age.density, [mass[~gone & (table["age"] > 50.25)].sum(), mass[table["age"] < 50.25].sum()], rtol=1e-12
    )
    assert age.missing is not None
    assert age.missing.density == pytest.approx(mass[gone].sum())
    both = surface(additive, ("age", "dose"))
    assert both.density.sum() == pytest.approx(1 - mass[gone].sum())
    np.testing.assert_allclose(both.density.sum(0), _near(table["dose"], both.grid_b, mass * ~gone), atol=1e-12)


def _near(values: pd.Series, grid: np.ndarray, mass: np.ndarray) -> np.ndarray:
    nearest = np.abs(values.to_numpy()[:, None] - grid).argmin(1)
    return np.bincount(nearest, mass, minlength=len(grid))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_surfaces_are_contributions_over_the_grid(kind, structure):
    additive = fitted(kind, structure)
    grids = ([0.1, 0.6, 0.9], [40.0, 55.0])
    alone, whole = (surface(additive, ("dose", "age"), grid=grids, whole=flag) for flag in (False, True))
    assert alone.features == ("dose", "age")
    doses, ages = (part.ravel() for part in np.meshgrid(*grids, indexing="ij"))
    rows = encoded(at(dose=doses, age=ages))
    shown = explain(additive, rows)
    np.testing.assert_allclose(alone.mean.reshape(shown.total.shape), shown.contributions[:, 3], atol=1e-12)
    np.testing.assert_allclose(alone.sd.reshape(shown.total.shape), shown.sds[:, 3], rtol=1e-9)
    together = shown.contributions[:, [0, 1, 3]].sum(1)
    np.testing.assert_allclose(whole.mean.reshape(shown.total.shape), together, atol=1e-12)
    theta = additive.posterior.location
    jacobian = torch.autograd.functional.jacobian(lambda w: moved(additive, rows, w)[:, [0, 1, 3]].sum(1), theta)
    covariance = torch.linalg.inv(additive.posterior.precision.to_dense())
    sds = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance, jacobian).sqrt().numpy()
    np.testing.assert_allclose(whole.sd.reshape(sds.shape), sds, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("pair", [False, True])
def test_covariances_are_joint(kind, structure, pair):
    additive = fitted(kind, structure, pair=pair)
    grids = [[40.0, 50.0, 60.0], [0.2, 0.8], ["red", "blue"]]
    joint = effect_covariance(additive, ["age", "dose", "kind"], grids=grids)
    outputs = additive.model.outputs
    size = 7 * outputs
    flat = joint.reshape(size, size)
    np.testing.assert_allclose(flat, flat.T, atol=1e-14)
    assert np.linalg.eigvalsh(flat).min() > -1e-12
    sds = [effect(additive, name, grid=grid).sd for name, grid in zip(("age", "dose", "kind"), grids, strict=True)]
    np.testing.assert_allclose(flat.diagonal(), np.concatenate([sd.ravel() for sd in sds]) ** 2, rtol=1e-8)
    ages, doses, kinds = slice(0, 3 * outputs), slice(3 * outputs, 5 * outputs), slice(5 * outputs, size)
    assert np.abs(flat[ages, kinds]).max() > 1e-9 if structure == "full" else not flat[ages, kinds].any()
    # By blocks two features are dependent through the pair that both are in.
    assert np.abs(flat[ages, doses]).max() > 1e-9 if structure == "full" or pair else not flat[ages, doses].any()
    rows = encoded(at(age=[40.0, 50.0, 60.0, 50, 50, 50, 50], dose=[0.5] * 3 + [0.2, 0.8] + [0.5] * 2,
                      kind=["red"] * 5 + ["red", "blue"]))  # fmt: skip
    terms = [0] * 3 + [1] * 2 + [2] * 2

    def shown(theta):
        return torch.stack([moved(additive, rows, theta)[row, term] for row, term in enumerate(terms)]).flatten()

    jacobian = torch.autograd.functional.jacobian(shown, additive.posterior.location)
    expected = (jacobian @ torch.linalg.inv(additive.posterior.precision.to_dense()) @ jacobian.mT).numpy()
    np.testing.assert_allclose(flat, expected, rtol=1e-5, atol=1e-9 * np.abs(expected).max())


def test_covariances_of_a_feature_with_itself_and_of_a_point():
    twice = effect_covariance(fitted(), ["age", "age"], grids=[[50.0], [50.0]])
    np.testing.assert_allclose(twice, twice[0, 0], rtol=1e-12)
    assert effect_covariance(fitted("gaussian"), ["kind"]).shape == (3, 3)
    assert not effect_covariance(fitted(posterior="map"), ["age", "kind"]).any()


def test_a_point_has_no_bands():
    additive = fitted(posterior="map")
    assert not effect(additive, "age").sd.any()
    assert not surface(additive, (0, 1)).sd.any()
    np.testing.assert_allclose(effect(additive, "age").mean, effect(fitted(), "age").mean, atol=1e-12)


def test_a_pair_without_a_term_can_be_told_neither_alone_nor_whole():
    for whole in (False, True):
        with pytest.raises(
            OptionError,
            match=r"pair: expected one of 'age & dose', got 'age & kind', .*interactions=\[\('age', 'kind'\)\]",
        ):
            surface(fitted(), ("age", "kind"), whole=whole)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: effect(a, "agee"), OptionError, "feature: .*Did you mean 'age'"),
        (lambda a: effect(a, 3), InputError, "feature: expected a name or a position from 0 to 2, got 3"),
        (lambda a: effect(a, -1), InputError, "feature"),
        (lambda a: effect(a, 1.5), InputError, "feature"),
        (lambda a: effect(a, "age", level=1.5), InputError, "level"),
        (lambda a: effect(a, "age", grid=0), InputError, "grid"),
        (lambda a: effect(a, "age", grid=["old"]), InputTypeError, "grid: expected numbers of column 'age'"),
        (lambda a: effect(a, "age", grid=[[1.0]]), InputError, r"grid: .* of shape \(n,\)"),
        (lambda a: effect(a, "age", grid=[np.inf]), InputError, "column 'age'"),
        (lambda a: effect(a, "kind", grid=5), InputTypeError, "expected a list of labels of column .kind., got 5"),
        (lambda a: effect(a, "kind", grid="red"), InputTypeError, "grid: expected a list of labels"),
        (lambda a: effect(a, "kind", grid=[1.0]), InputTypeError, "column 'kind'"),
        (lambda a: surface(a, ("age", 0)), InputError, "pair: expected two different features, got 'age' twice"),
        (lambda a: surface(a, "age"), InputError, "pair: expected two features"),
        (lambda a: surface(a, ("age", "dose", "kind")), InputError, "pair: expected two features"),
        (lambda a: surface(a, ("age", "dose"), whole="yes"), InputTypeError, "whole"),
        (lambda a: effect_covariance(a, ["age"], grids=[]), InputError, "grids: expected one for each"),
        (lambda a: effect_covariance(a, []), InputError, "grids: expected one for each of at least one"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(fitted())


def test_without_any_pairs_a_surface_says_how_to_fit_one():
    with pytest.raises(OptionError, match=r"a model with pairs, got 'age & dose'.*interactions=\[\('age', 'dose'\)\]"):
        surface(fitted(pair=False), ("age", "dose"))


def test_nothing_is_written():
    additive = fitted()
    before = additive.posterior.location.clone(), additive.fit.theta.clone()
    effect(additive, "age")
    surface(additive, (0, 1))
    explain(additive, encoded(frame(5)))
    assert torch.equal(additive.posterior.location, before[0])
    assert torch.equal(additive.fit.theta, before[1])
