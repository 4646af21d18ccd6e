"""Laplace's approximation of networks: closed forms, and identities between curvatures."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescope import laplace, largest_magnitude, largest_variance
from bayescope.errors import ConvergenceWarning, InputError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayescope.network import NetworkModel
from bayescope.priors import Prior
from tests.laplace.problems import (
    EXACT,
    STRUCTURES,
    UNTRAINED,
    at,
    closed_form,
    flat,
    gaussian,
    mlp,
    normal,
    penalty,
    seeded,
    set_flat,
    train,
    with_ones,
)

# --- linear-Gaussian models: all is exact -----------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_linear_gaussian_is_the_closed_form(structure: str) -> None:
    """In every structure that contains XᵀX/σ²: the diagonal does for orthogonal columns."""
    x, y = normal(14, 4, seed=1), normal(14, seed=2)
    if structure == "diagonal":
        x = torch.linalg.qr(x - x.mean(0))[0]  # the column of ones is orthogonal to it too
    prior, noise = torch.full((5,), 0.8, dtype=torch.float64), 0.6
    closed = closed_form(with_ones(x), y, prior, noise)
    net = at(seeded(lambda: nn.Linear(4, 1)), closed.mean)
    q = gaussian(
        laplace(
            net, (x, y), likelihood=Gaussian(noise), structure=structure, prior_precision=0.8, **STRUCTURES[structure]
        )
    )
    torch.testing.assert_close(q.mean, closed.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)
    new = normal(6, 4, seed=3)
    answer, design = q.predict(new), with_ones(new)
    variance = (design * torch.linalg.solve(closed.precision, design.mT).mT).sum(1)
    torch.testing.assert_close(answer.mean[:, 0], design @ closed.mean, **EXACT)
    torch.testing.assert_close(answer.epistemic[:, 0], variance, **EXACT)
    torch.testing.assert_close(answer.variance[:, 0], variance + noise, **EXACT)


@pytest.mark.parametrize("structure", ["full", "block", "kfac"])
@pytest.mark.parametrize("prior", ["dict", "vector", "Prior"])
def test_linear_gaussian_with_a_precision_for_the_bias_and_a_prior_mean(structure: str, prior: str) -> None:
    x, y = normal(14, 3, seed=1), normal(14, seed=2)
    diagonal = torch.tensor([0.8, 0.8, 0.8, 0.05], dtype=torch.float64)
    centre = 0.4 if prior == "Prior" else 0.0
    closed = closed_form(with_ones(x), y, diagonal, 0.6, centre)
    given = {"dict": {"weight": 0.8, "bias": 0.05}, "vector": diagonal, "Prior": Prior(diagonal, centre)}[prior]
    net = at(seeded(lambda: nn.Linear(3, 1)), closed.mean)
    q = gaussian(laplace(net, (x, y), likelihood=Gaussian(0.6), structure=structure, prior_precision=given))
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)


@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
def test_several_outputs_are_as_many_regressions(structure: str) -> None:
    x, y, noise = normal(14, 3, seed=1), normal(14, 2, seed=2), [0.6, 0.3]
    prior = torch.full((4,), 0.8, dtype=torch.float64)
    each = [closed_form(with_ones(x), y[:, d], prior, noise[d]) for d in range(2)]
    theta = torch.cat([torch.stack([c.mean[:3] for c in each]).flatten(), torch.stack([c.mean[3] for c in each])])
    net = at(seeded(lambda: nn.Linear(3, 2)), theta)
    q = laplace(net, (x, y), likelihood=Gaussian(noise), structure=structure, prior_precision=0.8)
    torch.testing.assert_close(q.log_evidence(), each[0].log_evidence + each[1].log_evidence, **EXACT)
    design = with_ones(normal(5, 3, seed=3))
    variance = torch.stack([(design * torch.linalg.solve(c.precision, design.mT).mT).sum(1) for c in each], 1)
    torch.testing.assert_close(q.predict(design[:, :3]).epistemic, variance, **EXACT)


def test_temperature_is_noise_in_the_posterior_and_a_power_in_the_evidence() -> None:
    x, y, prior = normal(14, 3, seed=1), normal(14, seed=2), torch.full((4,), 0.8, dtype=torch.float64)
    hot = closed_form(with_ones(x), y, prior, 0.6 * 2.5)
    net = at(seeded(lambda: nn.Linear(3, 1)), hot.mean)
    q = gaussian(laplace(net, (x, y), likelihood=Gaussian(0.6), structure="full", prior_precision=0.8, temperature=2.5))
    torch.testing.assert_close(q.precision.to_dense(), hot.precision, **EXACT)
    # p(y∣f)^{1/T} is N(y; f, T σ²) up to (2π)^{½ − 1/(2T)} (T σ²)^½ σ^{−1/T} for each row
    noise = torch.tensor(0.6, dtype=torch.float64)
    factor = 0.5 * (2 * torch.pi * 2.5 * noise).log() - 0.5 * (2 * torch.pi * noise).log() / 2.5
    torch.testing.assert_close(q.log_evidence(), hot.log_evidence + 14 * factor, **EXACT)
    assert "temperature" in q.summary()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), True, "hot", [0.5, 0.5]])
def test_temperatures_that_are_none(temperature: Any) -> None:
    with pytest.raises(InputError, match="temperature: expected a positive number"):
        laplace(mlp(), (normal(4, 2, seed=1), normal(4, seed=2)), likelihood="gaussian", temperature=temperature)


@pytest.mark.parametrize("temperature", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_temperatures_of_any_scalar_type(temperature: Any) -> None:
    data = normal(14, 2, seed=1), normal(14, 1, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = laplace(mlp(1), data, likelihood="gaussian", temperature=temperature)
        expected = laplace(mlp(1), data, likelihood="gaussian", temperature=0.5)
    assert torch.equal(found.log_evidence(), expected.log_evidence())


def test_gradients_of_the_caller_are_not_kept() -> None:
    module, data = mlp(1), (normal(14, 2, seed=1), normal(14, 1, seed=2))
    module(data[0]).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = laplace(module, data, likelihood="gaussian")
    assert isinstance(q.function, NetworkModel)
    assert all(parameter.grad is None for parameter in q.function.module.parameters())
    assert all(parameter.grad is not None for parameter in module.parameters())


# --- a linear classifier is the logistic regression of a table --------------------------------------------------------


def classification(classes: int) -> tuple[Tensor, Tensor]:
    x = normal(40, 3, seed=1)
    scores = x @ normal(3, classes, seed=2) + normal(40, classes, seed=3)
    return x, scores.argmax(1)


@pytest.mark.filterwarnings("ignore:posterior='laplace'")  # the table is small
@pytest.mark.parametrize("link", ["logit", "probit", "softmax"])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_a_linear_network_is_the_logistic_regression(link: str, curvature: str) -> None:
    classes = 3 if link == "softmax" else 2
    x, y = classification(classes)
    options = {} if link == "softmax" else {"link": link}
    given = {"prior_precision": 0.7, "intercept_prior_precision": 0.05, "standardize": False}
    table = BayesianLogisticRegression(posterior="laplace", **given, **options)
    table.fit(x.numpy(), y.numpy())
    truth = table.posterior_
    outputs = 3 if link == "softmax" else 1
    likelihood: Likelihood = Categorical() if link == "softmax" else Bernoulli(link=link)
    net = at(seeded(lambda: nn.Linear(3, outputs)), truth.mean)
    given = {"weight": 0.7, "bias": 0.05}
    q = laplace(net, (x, y), likelihood=likelihood, structure="full", curvature=curvature, prior_precision=given)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(q.mean, truth.mean, **close)
    torch.testing.assert_close(q.covariance, truth.covariance, **close)
    torch.testing.assert_close(q.log_evidence(), truth.log_evidence(), **close)
    new = normal(9, 3, seed=5)
    np.testing.assert_allclose(q.predict(new.numpy()).probs, table.predict_proba(new.numpy()), rtol=1e-6, atol=1e-6)


# --- where curvatures are one -----------------------------------------------------------------------------------------


def dense(net: nn.Module, data: Any, likelihood: Likelihood, curvature: str, **options: Any) -> Tensor:
    options = {"prior_precision": 1.0, **options}
    q = laplace(net, data, likelihood=likelihood, structure="full", curvature=curvature, **options)
    return gaussian(q).precision.to_dense()


@UNTRAINED
@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1), (Bernoulli(link="probit"), 1), (Gaussian(0.4), 2)]
)
def test_ggn_is_the_hessian_of_a_network_that_is_linear_in_its_weights(likelihood: Likelihood, outputs: int) -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)))
    x = normal(9, 2, seed=1)
    y = torch.arange(9) % max(2, outputs) if likelihood.discrete else normal(9, outputs, seed=2)
    ggn = dense(net, (x, y), likelihood, "ggn", weights="last_layer")
    hessian = dense(net, (x, y), likelihood, "hessian", weights="last_layer")
    torch.testing.assert_close(ggn, hessian, rtol=1e-10, atol=1e-10)
    apart = dense(net, (x, y), likelihood, "ggn") - dense(net, (x, y), likelihood, "hessian", prior_precision=100.0)
    assert (apart + 99.0 * torch.eye(len(apart), dtype=torch.float64)).abs().max() > 1e-2  # not in all its weights


@UNTRAINED
def test_ggn_is_the_hessian_where_residuals_are_zero() -> None:
    net, x = mlp(2), normal(9, 2, seed=1)
    y = net(x).detach()
    ggn, hessian = (dense(net, (x, y), Gaussian(0.4), kind) for kind in ("ggn", "hessian"))
    torch.testing.assert_close(ggn, hessian, rtol=1e-10, atol=1e-10)
    off = dense(net, (x, y + 1.0), Gaussian(0.4), "hessian", prior_precision=100.0)
    assert (off - 99.0 * torch.eye(22, dtype=torch.float64) - ggn).abs().max() > 1e-2


@UNTRAINED
@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1), (Gaussian(0.4), 2)])
def test_fisher_is_the_ggn_in_expectation(likelihood: Likelihood, outputs: int) -> None:
    net, x = mlp(outputs), normal(9, 2, seed=1)
    y = torch.arange(9) % max(2, outputs) if likelihood.discrete else normal(9, outputs, seed=2)
    ggn = dense(net, (x, y), likelihood, "ggn")
    draws = torch.stack([dense(net, (x, y), likelihood, "fisher", generator=seed) for seed in range(40)])
    error = draws.std(0) / 40**0.5 + 1e-9
    assert ((draws.mean(0) - ggn) / error).abs().max() < 5.0
    empirical = dense(net, (x, y), likelihood, "empirical_fisher")  # the gradients at the labels of the data: another
    assert ((empirical - ggn) / error).abs().max() > 5.0


# --- which weights are random -----------------------------------------------------------------------------------------


def test_the_last_layer_conditions_on_the_features() -> None:
    net, x, y = mlp(1), normal(14, 2, seed=1), normal(14, seed=2)
    design = with_ones(torch.tanh(net[0](x))).detach()
    closed = closed_form(design, y, torch.full((5,), 0.8, dtype=torch.float64), 0.6)
    set_flat(net[2], closed.mean)
    q = gaussian(
        laplace(net, (x, y), likelihood=Gaussian(0.6), weights="last_layer", structure="full", prior_precision=0.8)
    )
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)


@pytest.mark.parametrize("choice", ["glob", "mask", "dict of masks"])
def test_a_subset_conditions_on_the_weights_that_stay(choice: str) -> None:
    """What fixed weights add to f is known: the others regress on what is left."""
    x, y = normal(14, 4, seed=1), normal(14, seed=2)
    net = seeded(lambda: nn.Linear(4, 1))
    mask = torch.tensor([True, True, True, True, False] if choice == "glob" else [True, False, True, False, False])
    masked: dict[str, Any] = {"glob": "*weight", "mask": mask, "dict of masks": {"weight": mask[:4].reshape(1, 4)}}
    design = with_ones(x)
    left = y - design[:, ~mask] @ flat(net)[~mask]
    closed = closed_form(design[:, mask], left, torch.full((int(mask.sum()),), 0.8, dtype=torch.float64), 0.6)
    theta = flat(net)
    theta[mask] = closed.mean
    q = gaussian(
        laplace(at(net, theta), (x, y), likelihood=Gaussian(0.6), weights=masked[choice], structure="full",
                prior_precision=0.8)
    )  # fmt: skip
    torch.testing.assert_close(q.mean, closed.mean, **EXACT)
    torch.testing.assert_close(q.precision.to_dense(), closed.precision, **EXACT)
    torch.testing.assert_close(q.log_evidence(), closed.log_evidence, **EXACT)
    new = normal(3, 4, seed=3)
    torch.testing.assert_close(q.predict(new).mean[:, 0], with_ones(new) @ theta, **EXACT)


@UNTRAINED
@pytest.mark.parametrize("structure", ["full", "diagonal", "kfac"])
def test_weights_alone_are_random_and_biases_points(structure: str) -> None:
    net, data = mlp(2), (normal(9, 2, seed=1), torch.arange(9) % 2)
    options: dict[str, Any] = {"likelihood": "categorical", "structure": structure, "prior_precision": 1.0}
    q = gaussian(laplace(net, data, weights="*.weight", **options))
    assert q.function is not None
    assert q.precision.dim == 16
    whole = gaussian(laplace(net, data, **options))
    kept = torch.cat([torch.arange(8), torch.arange(12, 20)])
    if structure != "kfac":  # whose factors over the inputs lose the column of ones
        torch.testing.assert_close(q.precision.to_dense(), whole.precision.to_dense()[kept][:, kept])
    draws = q.sample(3, generator=0)
    x = normal(4, 2, seed=3)
    moved = copy.deepcopy(net)
    for draw, f in zip(draws, q.function.forward(x, draws), strict=True):
        moved[0].weight.data, moved[2].weight.data = draw[:8].reshape(4, 2), draw[8:].reshape(2, 4)
        torch.testing.assert_close(f, moved(x).detach())


@UNTRAINED
def test_weights_of_largest_variance_and_magnitude() -> None:
    net, data = mlp(2), (normal(9, 2, seed=1), torch.arange(9) % 2)
    diagonal = gaussian(laplace(net, data, likelihood="categorical", structure="diagonal"))
    chosen = diagonal.precision.marginal_variance().argsort(descending=True)[:6].sort().values
    by_variance = gaussian(laplace(net, data, likelihood="categorical", weights=largest_variance(6), structure="full"))
    torch.testing.assert_close(by_variance.mean, flat(net)[chosen])
    by_size = laplace(net, data, likelihood="categorical", weights=largest_magnitude(0.25), structure="diagonal")
    expected = flat(net).abs().argsort(descending=True)[:6].sort().values
    torch.testing.assert_close(by_size.mean, flat(net)[expected])


# --- how far a mode is ------------------------------------------------------------------------------------------------


def trained(activation: type[nn.Module], prior: float, steps: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    net = seeded(lambda: nn.Sequential(nn.Linear(2, 12), activation(), nn.Linear(12, 2)), scale=1.0)
    x = normal(80, 2, seed=1)
    y = (x[:, 0] * x[:, 1] + 0.3 * normal(80, seed=2) > 0).long()
    train(net, lambda: F.cross_entropy(net(x), y, reduction="sum") + penalty(net, prior), steps)
    return net, (x, y)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_a_trained_network_does_not_warn(activation: type[nn.Module], structure: str) -> None:
    net, data = trained(activation, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplace(net, data, likelihood="categorical", structure=structure, prior_precision=1.0)


@pytest.mark.parametrize("structure", ["full", "kfac", "diagonal"])
def test_a_prior_that_spoils_the_predictions_warns_and_one_that_narrows_them_does_not(structure: str) -> None:
    net, data = trained(nn.Tanh, 1.0, steps=1)
    with pytest.warns(
        ConvergenceWarning, match=r"^Predictions .* likely worse than the network's own\. .*validation.*"
    ):
        laplace(net, data, likelihood="categorical", structure=structure, prior_precision=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplace(net, data, likelihood="categorical", structure=structure, prior_precision=100.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("unit", [1e-3, 0.2, 1.0, 5.0, 1e3])
def test_the_bare_name_gaussian_says_that_its_noise_is_not_that_of_the_residuals(unit: float, seed: int) -> None:
    """A noise variance of 1 that nobody chose is named where it is further than tenfold from the residuals'."""
    x = normal(60, 2, seed=seed)
    design = torch.cat([x, torch.ones(60, 1)], 1).double()
    y = unit * (design.sum(1, keepdim=True) + normal(60, 1, seed=seed + 9).double())
    theta = torch.linalg.lstsq(design, y).solution
    residual = float((y - design @ theta).square().mean())
    module = seeded(lambda: nn.Linear(2, 1).double())
    set_flat(module, theta[:, 0])
    for prior in ("auto", 1e-3 / unit**2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            laplace(module, (x.double(), y), likelihood="gaussian", prior_precision=prior)
        said = [str(each.message) for each in caught if "has noise variance 1" in str(each.message)]
        assert len(said) == (not 0.1 <= residual <= 10.0)
        assert all(f"the residuals' is {residual:,.4g}" in each for each in said)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            laplace(module, (x.double(), y), likelihood=Gaussian(1.0), prior_precision=prior)
            laplace(module, (x.double(), y), likelihood="gaussian", prior_precision="evidence")
            laplace(module, (x.double(), y), likelihood=Gaussian("evidence"))
        assert not [each for each in caught if "has noise variance 1" in str(each.message)]
