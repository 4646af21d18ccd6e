"""The joint moments of f over several inputs, and functions that keep the graph of their inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.additive import EncodedRows
from bayescope.errors import InputError, MemoryBudgetError, UndefinedQuantityError, UnsupportedError
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.models import LinearizedModel, LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, MixturePosterior, PointPosterior, Posterior, Record
from bayescope.precision import DensePrecision
from bayescope.tables import read_table
from tests.network.networks import built, jacobian, numbers
from tests.network.test_positions import Segmentation, Tagger
from tests.posterior.test_network_posterior import LABELS, NUMBERS, X, covariance, posterior

POINTS = numbers(5, 3, seed=4)


def linear() -> GaussianPosterior:
    matrix = numbers(16, 16, seed=1)
    precision = DensePrecision(matrix @ matrix.mT + torch.eye(16, dtype=torch.float64))
    return GaussianPosterior(numbers(16), precision, Record("x"), LinearModel(3, 4), Gaussian(0.3))


def forms() -> dict[str, Posterior]:
    q, other = posterior(), posterior(seed=5)
    tangent = LinearizedModel(q.function, q.location)
    mixture = MixturePosterior(torch.tensor([0.3, 0.7]).log().double(), [q, other], Record("x"), q.function)
    draws = q.sample(6, generator=1)[None]
    return {
        "network": q,
        "linear": linear(),
        "mixture": dataclasses.replace(mixture, likelihood=Categorical()),
        "draws": DrawsPosterior(draws, Record("x"), q.function, Categorical()),
        "draws of the tangent": DrawsPosterior(draws, Record("x"), tangent, Categorical()),
        "point": PointPosterior(q.location, Record("x"), q.function, Categorical()),
    }


FORMS = list(forms())


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("weights", ["all", "0.weight", "last_layer"])
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac", "diagonal"])
def test_the_covariance_is_that_of_the_tangent_across_inputs(
    structure: str, weights: str, differentiable: bool
) -> None:
    q = posterior(structure=structure, weights=weights)
    x = POINTS.clone().requires_grad_(differentiable)
    joint = q.joint_latent(x, differentiable=differentiable)
    j = jacobian(q.function.module, POINTS, q.function.weights.names).flatten(0, 1)
    torch.testing.assert_close(joint.mean, q.predict(POINTS).latent_mean)
    torch.testing.assert_close(joint.covariance, j @ covariance(q) @ j.mT)
    assert torch.equal(joint.covariance, joint.covariance.mT)
    assert joint.covariance.requires_grad == joint.mean.requires_grad == differentiable


def test_in_single_precision_the_covariance_is_float64() -> None:
    q = posterior(data=(X.float(), LABELS), dtype=torch.float32)
    joint = q.joint_latent(POINTS.float())
    j = jacobian(q.function.module, POINTS.float(), q.function.weights.names).flatten(0, 1).double()
    assert joint.covariance.dtype == joint.mean.dtype == torch.float64
    torch.testing.assert_close(joint.covariance, j @ covariance(q) @ j.mT, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["pixels", "tokens"])
def test_dense_outputs_are_joint_over_their_positions(name: str) -> None:
    makes: dict[str, tuple[Any, Any, Any]] = {
        "pixels": (lambda: Segmentation(3), numbers(2, 2, 3, 3), torch.zeros(2, 3, 3)),
        "tokens": (Tagger, torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0)), torch.zeros(3, 6)),
    }
    make, x, y = makes[name]
    q = posterior(make, (x, y))
    joint = q.joint_latent(x)
    torch.testing.assert_close(joint.mean.flatten(0, -2), q.predict(x, integral="mackay").latent_mean.flatten(0, -2))
    rows, outputs = joint.mean.shape[:-1].numel(), joint.mean.shape[-1]
    blocks = joint.covariance.unflatten(1, (rows, outputs)).unflatten(0, (rows, outputs)).diagonal(dim1=0, dim2=2)
    want = q.function.covariance(x, q.location, q.precision).flatten(0, -3)
    torch.testing.assert_close(blocks.movedim(-1, 0), want)
    product = q.function.jacobian_product(x, q.location, torch.eye(q.function.dim, dtype=torch.float64))
    j = product.flatten(1).mT
    torch.testing.assert_close(joint.covariance, j @ q.precision.solve(j.mT))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_moments_of_its_functions(form: str) -> None:
    q = forms()[form]
    joint = q.joint_latent(POINTS)
    torch.testing.assert_close(joint.mean, q.predict(POINTS).latent_mean)
    if form.startswith("draws"):
        f = q.function.forward(POINTS, q.flat).flatten(1)  # type: ignore[attr-defined, union-attr]
        torch.testing.assert_close(joint.covariance, torch.cov(f.mT))
    elif form == "point":
        assert (joint.covariance == 0).all()
    else:
        f = q.sample_functions(POINTS, 40_000, generator=0).flatten(1)
        scale = joint.covariance.diagonal().sqrt()
        torch.testing.assert_close(torch.cov(f.mT) / scale / scale[:, None], joint.covariance / scale / scale[:, None],
                                   rtol=0, atol=0.05)  # fmt: skip


def of(q: Posterior, what: str, x: Tensor, differentiable: bool) -> Tensor:
    if what == "functions":
        return q.sample_functions(x, 3, generator=7, differentiable=differentiable)
    return getattr(q.joint_latent(x, differentiable=differentiable), what)


@pytest.mark.parametrize("what", ["mean", "covariance", "functions"])
@pytest.mark.parametrize("form", [*FORMS, "sampled", "function space"])
def test_derivatives_in_x_are_finite_differences(form: str, what: str) -> None:
    if form == "sampled":
        q: Posterior = dataclasses.replace(posterior(), method="sampled")
    elif form == "function space":
        module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)))
        q = bs.function_space(module, (X, NUMBERS), likelihood=Gaussian(0.3))
    else:
        q = forms()[form]
    leaf, way = POINTS.clone().requires_grad_(), numbers(5, 3, seed=6)
    value = of(q, what, leaf, True)
    plain = of(q, what, leaf, False)
    assert not plain.requires_grad
    torch.testing.assert_close(value.detach(), plain)  # the same draws, and the same moments
    if form == "point" and what == "covariance":
        return
    weight = numbers(*value.shape, seed=8)
    (slope,) = torch.autograd.grad((value * weight).sum(), leaf)
    up, down = ((of(q, what, POINTS + s * way, False) * weight).sum() for s in (1e-5, -1e-5))
    torch.testing.assert_close((slope * way).sum(), (up - down) / 2e-5, rtol=1e-5, atol=1e-7)


def test_a_table_is_read_as_predict_reads_it() -> None:
    rng = np.random.default_rng(0)
    table, offset = rng.normal(size=(30, 3)), rng.normal(size=30)
    model = bs.BayesianGeneralizedLinearModel(likelihood="poisson").fit(table, rng.poisson(1.0, 30))
    q = model.posterior_
    p, joint = q.predict(table[:7]), q.joint_latent(table[:7])
    np.testing.assert_allclose(joint.mean, p.latent_mean)
    np.testing.assert_allclose(joint.covariance.diagonal(), np.ravel(p.latent_cov))
    shifted = q.joint_latent(dataclasses.replace(q._rows(table[:7]), offset=offset[:7]))
    torch.testing.assert_close(shifted.mean[:, 0], joint.mean[:, 0] + torch.from_numpy(offset[:7]))
    plain = q.sample_functions(table[:7], 2, generator=0)
    drawn = q.sample_functions(dataclasses.replace(q._rows(table[:7]), offset=offset[:7]), 2, generator=0)
    torch.testing.assert_close(drawn, plain + torch.from_numpy(offset[:7, None]))
    leaf = torch.from_numpy(table[:7]).requires_grad_()
    for question in (q.joint_latent, q.sample_functions):
        with pytest.raises(UnsupportedError, match=r"differentiable: .* got an estimator's, which reads tables"):
            question(leaf, differentiable=True)
    inner = dataclasses.replace(q, reader=None)
    inner.joint_latent(leaf, differentiable=True).covariance.sum().backward()
    assert leaf.grad is not None


def test_functions_have_the_exposure_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=40), "months": rng.uniform(0.5, 20.0, 40)})
    table["visits"] = rng.poisson(table["months"] * np.exp(0.3 * table["x"]))
    model = bs.BayesianGeneralizedLinearModel(likelihood="poisson").fit(table, "visits", exposure="months")
    table = table[["x", "months"]][:7]
    f, of_year = (
        model.posterior_.sample_functions(model._rows(rows), 3, generator=0)
        for rows in (table, table.assign(months=12.0))
    )
    ratio = np.log(12.0 / table["months"].to_numpy())
    np.testing.assert_allclose((of_year - f)[..., 0], np.tile(ratio, (3, 1)), rtol=1e-8)


def test_an_additive_model_has_joint_moments() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    model = bs.NeuralAdditiveRegressor(random_state=0).fit(table, table["a"] + rng.normal(size=60))
    q, rows = model.posterior_, EncodedRows.of(model.additive_.encoding.encode(read_table(table[:4])))
    joint, f = q.joint_latent(rows), q.sample_functions(rows, 20_000, generator=0)[..., 0]
    np.testing.assert_allclose(joint.covariance.diagonal(), np.ravel(q.predict(rows).latent_cov), rtol=1e-8)
    scale = joint.covariance.diagonal().sqrt()
    torch.testing.assert_close(torch.cov(f.mT) / scale / scale[:, None], joint.covariance / scale / scale[:, None],
                               rtol=0, atol=0.05)  # fmt: skip


def test_what_cannot_be_asked_is_refused() -> None:
    q = posterior()
    for question in (q.joint_latent, q.sample_functions):
        with pytest.raises(InputError, match=r"differentiable: expected x to be a tensor that requires a gradient"):
            question(POINTS, differentiable=True)
    bare = dataclasses.replace(q, function=None)
    with pytest.raises(UndefinedQuantityError, match=r"joint_latent: this posterior is of a log density"):
        bare.joint_latent(POINTS)
    with pytest.raises(UndefinedQuantityError, match=r"predict: .* has no likelihood .* joint_latent"):
        dataclasses.replace(q, likelihood=None).predict(POINTS)
    random = bs.mc_dropout(q.model, likelihood="categorical")
    with pytest.raises(UndefinedQuantityError, match=r"joint_latent: .* draws functions.*sample_functions"):
        random.joint_latent(POINTS)
    leaf = POINTS.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match=r"differentiable: expected False for a posterior by mc_dropout"):
        random.sample_functions(leaf, differentiable=True)
    with pytest.raises(MemoryBudgetError, match=r"the Jacobian of .* sample_functions"):
        q.joint_latent(numbers(1, 3).expand(10**6, 3))
