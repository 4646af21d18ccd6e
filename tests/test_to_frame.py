"""A predictive as a table: which columns, and that they are the predictive's own answers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from bayescope.errors import InputError
from bayescope.latent import DrawsLatent, GaussianLatent
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.predictive import Predictive

MEAN = torch.tensor([[0.5], [-2.0], [30.0]], dtype=torch.float64)
COV = torch.tensor([[[4.0]], [[0.25]], [[100.0]]], dtype=torch.float64)


def several(outputs: int) -> GaussianLatent:
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(6, outputs, dtype=torch.float64, generator=source)
    root = torch.randn(6, outputs, outputs, dtype=torch.float64, generator=source)
    return GaussianLatent(mean, root @ root.mT, "quadrature")


@pytest.mark.parametrize("arrays", [True, False])
def test_two_classes(arrays):
    p = Predictive(GaussianLatent(MEAN, COV, "quadrature"), Bernoulli(), arrays)
    table = p.to_frame(classes=["no", "yes"], level=0.9)
    uncertainty = ["low", "high", "epistemic_sd", "entropy", "mutual_information"]
    assert list(table) == ["predicted", "p(no)", "p(yes)", *uncertainty]
    assert table["predicted"].tolist() == ["yes", "no", "yes"]
    p = dataclasses.replace(p, arrays=True)
    np.testing.assert_array_equal(table[["p(no)", "p(yes)"]], p.probs)
    low, high = p.interval(0.9)
    called = [1, 0, 1]
    np.testing.assert_array_equal(table["low"], low[range(3), called])
    np.testing.assert_array_equal(table["high"], high[range(3), called])
    np.testing.assert_array_equal(table["epistemic_sd"], np.sqrt(p.epistemic)[range(3), called])
    np.testing.assert_array_equal(table["entropy"], p.entropy)
    np.testing.assert_array_equal(table["mutual_information"], p.mutual_information)
    assert (table["low"] < table["high"]).all()


def test_more_classes_without_names_and_without_intervals():
    p = Predictive(several(3), Categorical(), arrays=True)
    table = p.to_frame(level=None)
    assert list(table) == ["predicted", "p(0)", "p(1)", "p(2)", "epistemic_sd", "entropy", "mutual_information"]
    np.testing.assert_array_equal(table["predicted"], p.probs.argmax(1))
    np.testing.assert_array_equal(table["epistemic_sd"], np.sqrt(p.epistemic)[range(6), p.probs.argmax(1)])
    assert list(p.to_frame()) == [*list(table)[:4], "low", "high", *list(table)[4:]]


def test_labels_of_any_kind_keep_their_type():
    p = Predictive(several(3), Categorical(), arrays=True)
    assert p.to_frame(classes=np.array([10, 20, 30]))["predicted"].dtype == np.int64
    assert "p(2.5)" in p.to_frame(classes=[0.5, 1.5, 2.5])


def test_several_labels_a_row():
    p = Predictive(several(2), Bernoulli(), arrays=True)
    table = p.to_frame(classes=["cat", "dog"])
    each = ["probability", "low", "high", "epistemic_sd"]
    names = [f"{label}: {name}" for label in ("cat", "dog") for name in each]
    assert list(table) == [*names, "entropy", "mutual_information"]
    np.testing.assert_array_equal(table[["cat: probability", "dog: probability"]], p.probs)


def test_a_regression():
    p = Predictive(GaussianLatent(MEAN, COV, "exact"), Gaussian(0.5))
    table = p.to_frame()
    assert list(table) == ["mean", "sd", "low", "high", "epistemic_sd", "aleatoric_sd"]
    np.testing.assert_allclose(table["sd"] ** 2, table["epistemic_sd"] ** 2 + table["aleatoric_sd"] ** 2)
    np.testing.assert_allclose(table["high"] - table["mean"], 1.959963984540054 * table["sd"])
    assert list(p.to_frame(outputs=["price"], level=None)) == ["mean", "sd", "epistemic_sd", "aleatoric_sd"]


def test_several_outputs_have_their_names_before_them():
    latent = dataclasses.replace(several(2), integral="exact")
    p = Predictive(latent, Gaussian([0.5, 3.0]), arrays=True)
    table = p.to_frame(outputs=["price", "size"])
    each = ["mean", "sd", "low", "high", "epistemic_sd", "aleatoric_sd"]
    assert list(table) == [f"{output}: {name}" for output in ("price", "size") for name in each]
    np.testing.assert_array_equal(table["size: mean"], p.mean[:, 1])
    np.testing.assert_allclose(table["size: aleatoric_sd"], np.sqrt(3.0))
    assert "y1: low" in p.to_frame()


def test_no_rows_make_a_table_of_no_rows():
    p = Predictive(DrawsLatent(torch.zeros(4, 0, 1, dtype=torch.float64)), Bernoulli(), arrays=True)
    table = p.to_frame()
    assert isinstance(table, pd.DataFrame)
    assert table.shape == (0, 8)


def test_names_that_do_not_fit_are_refused():
    classes = Predictive(several(3), Categorical(), arrays=True)
    regression = Predictive(GaussianLatent(MEAN, COV, "exact"), Gaussian(0.5))
    refused = [
        (lambda: classes.to_frame(classes=["a", "b"]), r"classes: expected 3 names, got shape \(2,\)"),
        (lambda: classes.to_frame(classes=["a", "b", "a"]), "classes: expected names that differ"),
        (lambda: classes.to_frame(outputs=["a"]), "outputs: expected None for classes"),
        (lambda: regression.to_frame(classes=["a"]), "classes: expected None for a regression"),
        (lambda: regression.to_frame(outputs=["a", "b"]), r"outputs: expected 1 names"),
        (lambda: classes.to_frame(level=95), "strictly between 0 and 1"),
        (lambda: dataclasses.replace(classes, shape=(3, 2)).to_frame(), "positions are no rows of a table"),
    ]
    for question, words in refused:
        with pytest.raises(InputError, match=words):
            question()
