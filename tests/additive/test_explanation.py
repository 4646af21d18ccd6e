"""Explanations sum to the prediction, and their intervals are those of the weights' posterior."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bayescope.additive import explain
from bayescope.errors import InputError
from bayescope.tables import read_table
from bayescope.tape import block_limit
from tests.additive.fitted import DOUBLE, encoded, fitted, frame, weights
from tests.additive.slow import told

KINDS = ("gaussian", "bernoulli", "categorical")
STRUCTURES = ("block", "full")


def contrast(values: np.ndarray, kind: str) -> np.ndarray:
    return values - values.mean(-1, keepdims=True) if kind == "categorical" else values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_parts_sum_to_the_prediction_with_its_own_interval(kind, structure):
    additive = fitted(kind, structure)
    outputs = additive.model.outputs
    offset = torch.linspace(-1, 1, 20 * outputs, dtype=DOUBLE).reshape(20, outputs)
    rows = encoded(frame(20, seed=5), offset)
    shown = explain(additive, rows)
    parts = shown.contributions.sum(1) + shown.intercept + shown.offset
    np.testing.assert_allclose(parts, shown.total, rtol=0, atol=1e-12)
    latent = additive.posterior.predict(rows)
    squeeze = (lambda x: x[..., 0]) if outputs == 1 else (lambda x: x)
    expected = contrast(np.asarray(latent.latent_mean), kind)
    np.testing.assert_allclose(shown.total, squeeze(expected), rtol=0, atol=1e-10)
    centre = np.eye(outputs) - (1 / outputs if kind == "categorical" else 0)
    variances = np.einsum("ij,njk,ik->ni", centre, np.asarray(latent.latent_cov), centre)
    np.testing.assert_allclose(shown.total_sd, squeeze(variances**0.5), rtol=1e-9)
    z = stats.norm.ppf(0.975)
    np.testing.assert_allclose(shown.total_high, shown.total + z * shown.total_sd, rtol=1e-12)
    np.testing.assert_allclose(shown.low, shown.contributions - z * shown.sds, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("pair", [False, True])
def test_contributions_and_their_sds_are_those_of_a_dense_reference(kind, structure, pair):
    additive = fitted(kind, structure, pair=pair)
    rows = encoded(frame(12, seed=6))
    mean, covariance = told(additive, rows)
    shown = explain(additive, rows)
    outputs = additive.model.outputs
    np.testing.assert_allclose(shown.contributions.reshape(mean.shape), mean, rtol=0, atol=1e-8)
    sds = np.sqrt(np.einsum("ntctc->ntc", covariance))
    np.testing.assert_allclose(shown.sds.reshape(12, -1, outputs), sds, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_have_mean_zero_over_the_data(kind):
    additive = fitted(kind)
    shown = explain(additive, encoded(frame()))
    means = np.tensordot(weights().numpy(), shown.contributions, 1) / float(weights().sum())
    np.testing.assert_allclose(means, 0, atol=1e-10)


def test_a_point_has_the_same_parts_and_no_intervals():
    rows = encoded(frame(10, seed=3))
    point, laplace = (explain(fitted(posterior=name), rows) for name in ("map", "laplace"))
    np.testing.assert_allclose(point.contributions, laplace.contributions, atol=1e-12)
    assert not point.sds.any()
    assert not point.total_sd.any()
    assert point.intercept_sd == 0
    np.testing.assert_array_equal(point.low, point.high)


def test_of_a_softmax_the_mean_over_the_classes_is_out():
    shown = explain(fitted("categorical"), encoded(frame(10, seed=3)))
    for part in (shown.contributions, shown.total, shown.intercept):
        np.testing.assert_allclose(part.sum(-1), 0, atol=1e-12)


def test_the_frame_s_contributions_sum_to_the_totals():
    table = frame(6, seed=9)
    table.loc[2, "age"] = np.nan
    offset = torch.linspace(0, 1, 6, dtype=DOUBLE)[:, None]
    shown = explain(fitted(), encoded(table, offset), columns=read_table(table))
    told_as = shown.as_frame()
    assert list(told_as.columns) == ["row", "term", "value", "contribution", "sd", "low", "high"]
    np.testing.assert_allclose(told_as.groupby("row")["contribution"].sum(), shown.total, atol=1e-12)
    assert list(told_as["term"][:6]) == ["age", "dose", "kind", "age & dose", "(intercept)", "(offset)"]
    assert told_as["value"][2] == table["kind"][0]
    assert told_as["value"][3] == (table["age"][0], table["dose"][0])
    assert pd.isna(told_as[(told_as["row"] == 2) & (told_as["term"] == "age")]["value"].item())


def test_the_frame_names_several_outputs_and_leaves_out_an_offset_that_is_not_there():
    shown = explain(fitted("categorical"), encoded(frame(4)))
    told_as = shown.as_frame(["a", "b", "c"])
    assert "(offset)" not in set(told_as["term"])
    totals = told_as.groupby(["row", "output"])["contribution"].sum().to_numpy().reshape(4, 3)
    np.testing.assert_allclose(totals, shown.total, atol=1e-12)
    known = dataclasses.replace(shown, outputs=("low", "middle", "high")).as_frame()
    assert known["output"][:3].tolist() == ["low", "middle", "high"]
    assert shown.as_frame()["output"][:3].tolist() == ["0", "1", "2"]
    with pytest.raises(InputError, match="outputs: expected 3 names, got 2"):
        shown.as_frame(["a", "b"])


def test_no_rows():
    shown = explain(fitted(), encoded(frame(3))[:0])
    assert len(shown) == 0
    assert len(shown.as_frame()) == 0


@pytest.mark.parametrize("level", [0.0, 1.0, 95, "0.95"])
def test_levels_outside_of_the_open_interval_are_refused(level):
    with pytest.raises(InputError, match="level"):
        explain(fitted(), encoded(frame(3)), level=level)


def test_rows_do_not_depend_on_each_other():
    """Blocks of rows are read one after another."""
    rows = encoded(frame(30, seed=4))
    whole = explain(fitted(), rows)
    with block_limit(4000):
        cut = explain(fitted(), rows)
    np.testing.assert_allclose(cut.contributions, whole.contributions, atol=1e-13)
    np.testing.assert_allclose(cut.total_sd, whole.total_sd, rtol=1e-12)
