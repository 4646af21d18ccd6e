"""Rows of a predictive: each answer of theirs is a part of the whole predictive's answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, UnsupportedError
from bayescope.latent import DrawsLatent, GaussianLatent, Latent, MixtureLatent
from bayescope.likelihoods import Gaussian
from bayescope.predictive import Predictive
from tests.cases import LIKELIHOODS, LikelihoodCase

ROWS = 5
ANY = Gaussian(1.0).integral(None, 1)
SOME = ("probit, 3 labels", "categorical, 3 classes", "gaussian, 2 outputs", "poisson", "ordinal", "student_t")
ANSWERS: dict[str, Callable[[Predictive, Any], Any]] = {
    **{
        name: lambda p, y, name=name: getattr(p, name)
        for name in (
            "mean", "probs", "classes", "remaining", "variance", "sd", "epistemic", "aleatoric", "entropy",
            "mutual_information", "latent_mean", "latent_cov", "integration_error",
        )
    },
    "interval": lambda p, y: torch.stack(p.interval(0.8), 1),
    "interval of the mean": lambda p, y: torch.stack(p.interval(0.8, of="mean"), 1),
    "interval of f": lambda p, y: torch.stack(p.interval(0.8, of="latent"), 1),
    "median": lambda p, y: p.quantile(0.5),
    "cdf": lambda p, y: p.cdf(y),
    "log_prob": lambda p, y: p.log_prob(y),
    "crps": lambda p, y: p.crps(y),
    "abstains": lambda p, y: p.abstains(epistemic=0.2),
}  # fmt: skip


def gaussian(case: LikelihoodCase, seed: int = 0) -> GaussianLatent:
    source = torch.Generator().manual_seed(seed)
    root = 0.4 * torch.randn(ROWS, case.outputs, case.outputs, dtype=torch.float64, generator=source)
    mean = 0.5 * torch.randn(ROWS, case.outputs, dtype=torch.float64, generator=source)
    return GaussianLatent(mean, root @ root.mT, case.likelihood.integral(None, case.outputs))


def draws(case: LikelihoodCase) -> DrawsLatent:
    return DrawsLatent(gaussian(case).sample(300, torch.Generator().manual_seed(1)))


def mixture(case: LikelihoodCase) -> MixtureLatent:
    return MixtureLatent(torch.tensor([0.3, 0.7], dtype=torch.float64).log(), [gaussian(case), gaussian(case, seed=2)])


@pytest.mark.parametrize("latent", [gaussian, draws, mixture])
@pytest.mark.parametrize("case", [LIKELIHOODS[name] for name in SOME], ids=SOME)
def test_every_answer_is_a_part_of_the_whole_answer(
    case: LikelihoodCase, latent: Callable[[LikelihoodCase], Latent]
) -> None:
    whole = Predictive(latent(case), case.likelihood)
    y = case.labels[torch.arange(ROWS) % len(case.labels)]
    rows = torch.tensor([3, 0])
    for name, answer in ANSWERS.items():
        try:
            expected = answer(whole, y)
        except UnsupportedError:
            with pytest.raises(UnsupportedError):
                answer(whole[rows], y[rows])
            continue
        torch.testing.assert_close(
            answer(whole[rows], y[rows]),
            expected[rows],
            rtol=1e-3,
            atol=1e-4,
            msg=lambda found, name=name: f"{name}: {found}",
        )


def test_rows_are_named_as_of_an_array():
    p = numbers_of_rows()
    for index in (0, -1, slice(1, 4), slice(None, None, -2), [2, 2, 0], np.array([True, False, True, False, True]), []):
        np.testing.assert_array_equal(p[index].mean, np.atleast_2d(p.mean[index]).reshape(-1, 1))
    np.testing.assert_array_equal(p[torch.tensor([1, 4])].imputed, [1, 4])
    assert [float(row.mean[0, 0]) for row in p] == p.mean[:, 0].tolist()
    for index in (ROWS, "a", [[0, 1]], 0.5, [True, False]):
        with pytest.raises(InputError, match="rows: expected"):
            p[index]
    for row in (ROWS, -ROWS - 1):
        with pytest.raises(InputError, match=rf"rows: expected a row from −{ROWS} to {ROWS - 1}, got {row}\.$"):
            p[row]


def test_a_summary_counts_its_outputs():
    assert ", 1 latent output, " in numbers_of_rows().summary()


def test_of_dense_rows_all_positions_come_along():
    latent = GaussianLatent(torch.arange(12.0, dtype=torch.float64)[:, None], torch.ones(12, 1, 1).double(), ANY)
    p = Predictive(latent, Gaussian(1.0), shape=(3, 2, 2))
    torch.testing.assert_close(p[1:].mean, p.mean[1:])


def numbers_of_rows() -> Predictive:
    latent = GaussianLatent(torch.arange(ROWS).double()[:, None], torch.ones(ROWS, 1, 1).double(), ANY)
    return Predictive(latent, Gaussian(1.0), arrays=True, imputed=np.arange(ROWS))


X, CLASSES = np.random.default_rng(0).normal(size=(60, 2)), np.array(["cat", "dog", "<b>"])
PLACES = (X @ [[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]).argmax(1)


@pytest.mark.parametrize("classes", [CLASSES, np.array([3, 7, 5]), CLASSES.astype(object)])
def test_scores_take_the_labels_that_were_fitted(classes: np.ndarray):
    y = classes[PLACES]
    model = bs.BayesianLogisticRegression(posterior="map").fit(X, y)
    p, codes = model.predict_distribution(X), np.searchsorted(model.classes_, y)
    plain = dataclasses.replace(p, names=())
    np.testing.assert_array_equal(p.log_prob(y), plain.log_prob(codes))
    np.testing.assert_array_equal(p[5:9].log_prob(y[5:9]), plain.log_prob(codes)[5:9])
    assert bs.metrics.nll(p, y) == bs.metrics.nll(plain.probs, codes) == pytest.approx(-plain.log_prob(codes).mean())
    assert bs.metrics.ece(p, y) == bs.metrics.ece(plain.probs, codes)
    assert bs.conformal(p, y, level=0.9) == bs.conformal(plain, codes, level=0.9)
    assert list(p.to_frame(level=None).columns[:4]) == ["predicted", *(f"p({label})" for label in model.classes_)]
    np.testing.assert_array_equal(p.to_frame(level=None)["predicted"], model.predict(X))
    with pytest.raises(InputError, match=r"y: expected labels among the classes .*, got .* in row 1"):
        p[:2].log_prob(np.array([y[0], 99 if y.dtype.kind == "i" else "mouse"], dtype=classes.dtype))


def test_the_codes_of_labels_that_are_text_stay_labels_too():
    p = bs.BayesianLogisticRegression(posterior="map").fit(X, CLASSES[PLACES]).predict_distribution(X)
    np.testing.assert_array_equal(
        p.log_prob(np.searchsorted(np.sort(CLASSES), CLASSES[PLACES])), p.log_prob(CLASSES[PLACES])
    )


@pytest.mark.parametrize("library", ["polars", "pyarrow", "pandas"])
def test_the_answer_is_a_table_of_the_library_that_was_asked_with(library: str):
    native = pytest.importorskip(library)
    table = (native.table if library == "pyarrow" else native.DataFrame)({"a": X[:, 0], "b": X[:, 1]})
    model = bs.BayesianLinearRegression().fit(table, X[:, 0] + 0.1 * X[:, 1] ** 2)
    frame = model.predict_distribution(table).to_frame()
    assert type(frame) is type(table)
    np.testing.assert_allclose(np.asarray(frame["mean"]), model.predict(table))


def test_labels_in_a_table_and_quantiles_of_labels_are_refused_by_name():
    y = CLASSES[PLACES]
    p = bs.BayesianLogisticRegression(posterior="map").fit(X, y).predict_distribution(X)
    with pytest.raises(InputError, match=r"y: expected labels of shape \(60,\), got \(60, 1\)"):
        p.log_prob(y[:, None])
    with pytest.raises(UnsupportedError, match="quantile: a class label has none"):
        p.quantile(0.5, of="outcome")
