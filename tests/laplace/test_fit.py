"""The evidence and its hyperparameters against dense references, in every structure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescope.curvature import CurvatureOptions
from bayescope.errors import InputError, OptionError, UndefinedQuantityError, UnsupportedError
from bayescope.laplace import LaplaceFit, LaplaceOptions
from bayescope.likelihoods import Categorical, Gaussian, Likelihood
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.laplace.problems import closed_form, flat, mlp, normal, seeded, set_flat, with_ones

STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
PRIORS: dict[str, Any] = {
    "number": lambda values: values[0],
    "layers": lambda values: {"0": values[0], "2": values[1]},
    "globs": lambda values: {"*.weight": values[0], "*.bias": values[1]},
    "tensors": lambda values: dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), values, strict=True)),
    "weights": lambda values: values.repeat_interleave(torch.tensor([8, 4, 8, 2])),
}
# EKFAC's diagonal is one number per group of weights: a bias with a precision of its own turns its eigenvectors.
PAIRS = [
    (structure, prior)
    for structure in STRUCTURES
    for prior in PRIORS
    if structure != "ekfac" or prior in ("number", "layers")
]


def reading(likelihood: Likelihood, structure: str, temperature: float = 1.0, **options: Any) -> LaplaceOptions:
    return LaplaceOptions(likelihood, temperature=temperature, curved=CurvatureOptions(structure=structure, **options))


def fitted(structure: str, likelihood: Likelihood | None = None, prior: Any = 1.3, **options: Any) -> LaplaceFit:
    likelihood = likelihood or Gaussian(0.3)
    x = normal(9, 2, seed=1)
    y = torch.arange(9) % 2 if likelihood.discrete else normal(9, 2, seed=2)
    if structure == "low_rank":
        options["rank"] = 12
    return reading(likelihood, structure=structure, **options).fit(mlp(2), (x, y), prior)


def dense_evidence(fit: LaplaceFit, diagonal: Tensor, noise: Tensor) -> Tensor:
    """log Z from H as a dense matrix, the residuals themselves and the prior weight by weight."""
    x, y = normal(9, 2, seed=1), normal(9, 2, seed=2)
    residual = y - fit.function.module(x).detach()
    log_likelihood = (-0.5 * (residual.square() / noise + (2 * math.pi * noise).log())).sum()
    diagonal = diagonal.expand(fit.mode.shape[0])
    precision = fit.curvature.precision.to_dense() * 0.3 / noise / fit.temperature + torch.diag(diagonal)
    offset = fit.mode - fit.prior.centre(len(fit.mode))
    log_prior = 0.5 * (diagonal.log() - diagonal * offset.square()).sum()
    return log_likelihood / fit.temperature + log_prior - 0.5 * torch.logdet(precision)


def under(fit: LaplaceFit, prior: Prior, noise: float | None = None) -> LaplaceFit:
    return replace(fit if noise is None else fit.at_noise(noise), prior=prior)


def leaf(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("structure", "prior"), PAIRS)
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_evidence_and_its_gradient_are_those_of_the_dense_matrix(
    structure: str, prior: str, temperature: float
) -> None:
    fit = fitted(structure, temperature=temperature)
    fit = replace(fit, prior=Prior(1.3, 0.2))
    values, noise = leaf([0.7, 1.6, 0.4, 2.5]), leaf(0.8)
    given = PRIORS[prior](values)
    evidence = fit.log_evidence(given, noise)
    gradients = torch.autograd.grad(evidence, (values, noise))

    counts = {"layers": [(0, 12), (1, 10)], "globs": [(0, 8), (1, 4), (0, 8), (1, 2)]}
    order = counts.get(prior, [(0, 22)] if prior == "number" else [(0, 8), (1, 4), (2, 8), (3, 2)])
    diagonal = torch.cat([values[i].expand(n) for i, n in order])
    truth = dense_evidence(fit, diagonal, noise)
    expected = torch.autograd.grad(truth, (values, noise))
    torch.testing.assert_close(evidence, truth, rtol=1e-11, atol=1e-10)
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradient_against_finite_differences(structure: str) -> None:
    fit = fitted(structure)

    def evidence(layers: Tensor, noise: Tensor) -> Tensor:
        return fit.log_evidence({"0": layers[0], "2": layers[1]}, noise)

    assert torch.autograd.gradcheck(evidence, (leaf([0.7, 1.6]), leaf(0.8)))


def test_without_arguments_the_evidence_is_the_fits_own() -> None:
    fit = fitted("kfac", prior={"0": 0.5, "2": 2.0})
    assert fit.log_evidence() == pytest.approx(float(fit.log_evidence({"0": 0.5, "2": 2.0}, 0.3)), rel=1e-13)
    assert fit.log_evidence() != fit.log_evidence(0.5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_another_noise_needs_no_other_fit(structure: str) -> None:
    moved, anew = fitted(structure).at_noise(0.9), fitted(structure, Gaussian(0.9))
    torch.testing.assert_close(moved.curvature.precision.to_dense(), anew.curvature.precision.to_dense())
    torch.testing.assert_close(moved.curvature.log_likelihood, anew.curvature.log_likelihood)
    torch.testing.assert_close(moved.gradient, anew.gradient)
    torch.testing.assert_close(moved.log_evidence(), anew.log_evidence())
    assert moved.noise_variance == 0.9


def test_noise_of_a_fit_without_its_gradient() -> None:
    options = reading(Gaussian(0.3), structure="diagonal")
    data = (normal(9, 2, seed=1), normal(9, 2, seed=2))
    bare, whole = options.fit(mlp(2), data, gradient=False), options.fit(mlp(2), data)
    torch.testing.assert_close(bare.log_evidence(2.0, 0.7), whole.log_evidence(2.0, 0.7))
    with pytest.raises(UndefinedQuantityError, match="without the gradient"):
        bare.newton_decrement()


def test_a_noise_for_each_output_is_no_factor() -> None:
    fit = fitted("full", Gaussian([0.3, 0.4]))
    with pytest.raises(UnsupportedError, match="one number for all outputs"):
        fit.log_evidence(1.0, 0.5)
    with pytest.raises(UnsupportedError, match="'categorical', which has none"):
        fitted("full", Categorical()).log_evidence(1.0, 0.5)
    with pytest.raises(InputError, match="positive"):
        fitted("full").log_evidence(1.0, -1.0)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_effective_parameters(structure: str, temperature: float) -> None:
    fit = fitted(structure, Categorical(), temperature=temperature)
    curvature = fit.curvature.precision.to_dense() / temperature
    for prior in (0.01, 1.3, 50.0):
        share = torch.linalg.solve(curvature + prior * torch.eye(22, dtype=torch.float64), curvature).trace()
        assert under(fit, Prior(prior)).effective_parameters() == pytest.approx(float(share), rel=1e-9)


def test_effective_parameters_under_a_structured_prior() -> None:
    fit = fitted("full")
    root = normal(22, 22, seed=5)
    prior = root @ root.mT + torch.eye(22, dtype=torch.float64)
    hessian = fit.curvature.precision.to_dense()
    share = torch.linalg.solve(hessian + prior, hessian).trace()
    assert under(fit, Prior(DensePrecision(prior))).effective_parameters() == pytest.approx(float(share), rel=1e-9)


def test_newton_decrement_is_the_gain_of_a_quadratic() -> None:
    """For a linear model the log joint density is quadratic: ½ λ² is just what its mode has more than any point."""
    x, y = normal(12, 3, seed=3), normal(12, seed=4)
    closed = closed_form(with_ones(x), y, torch.full((4,), 0.8, dtype=torch.float64), 0.5)
    net = seeded(lambda: torch.nn.Linear(3, 1))
    fit = reading(Gaussian(0.5), structure="full").fit(net, (x, y), 0.8)
    offset = flat(net) - closed.mean
    assert fit.newton_decrement() ** 2 == pytest.approx(float(offset @ closed.precision @ offset), rel=1e-11)
    set_flat(net, closed.mean)
    assert reading(Gaussian(0.5), structure="full").fit(net, (x, y), 0.8).newton_decrement() < 1e-12


@pytest.mark.parametrize("prior", [Prior(1.3, 0.2), Prior(DensePrecision(torch.eye(22) * 4.0), -0.2)])
def test_gradient_of_the_log_joint_is_autograds(prior: Prior) -> None:
    fit = under(fitted("full", temperature=2.5), prior, 0.9)
    x, y, net = normal(9, 2, seed=1), normal(9, 2, seed=2), mlp(2)
    theta = torch.nn.utils.parameters_to_vector(net.parameters())
    joint = Gaussian(0.9).log_prob(net(x), y).sum() / 2.5 + prior.log_prob(theta)
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(joint, list(net.parameters()))])
    torch.testing.assert_close(fit.joint_gradient(), truth, rtol=1e-10, atol=1e-10)


def test_newton_decrement_follows_prior_and_noise() -> None:
    fit = fitted("full")
    anew = fitted("full", Gaussian(0.9), prior=Prior(4.0, 0.3))
    moved = under(fit, Prior(4.0, 0.3), 0.9)
    assert moved.newton_decrement() == pytest.approx(float(anew.newton_decrement()), rel=1e-11)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_posterior_under_other_hyperparameters_is_that_of_a_new_fit(structure: str) -> None:
    fit = fitted(structure)
    moved, anew = under(fit, Prior(2.0), 0.9).posterior(), fitted(structure, Gaussian(0.9), 2.0).posterior()
    torch.testing.assert_close(moved.precision.to_dense(), anew.precision.to_dense())
    torch.testing.assert_close(moved.log_evidence(), anew.log_evidence())
    torch.testing.assert_close(moved.log_evidence(prior_precision=3.0), anew.log_evidence(prior_precision=3.0))
    x = normal(4, 2, seed=7)
    for answer in ("mean", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(moved.predict(x), answer), getattr(anew.predict(x), answer))
    assert fit.noise_variance == 0.3


def test_hyperparameters_that_cannot_be_used() -> None:
    fit = fitted("ekfac")
    with pytest.raises(OptionError, match=r"'0\.weight'"):
        fit.log_evidence({"0": 1.0, "1": 1.0})
    with pytest.raises(InputError, match="none for"):
        fit.log_evidence({"0": 1.0})
    with pytest.raises(InputError, match=r"prior_precision\['0'\]: expected positive"):
        fit.log_evidence({"0": -1e-12, "2": 1.0})
    with pytest.raises(UnsupportedError, match="one number per group"):
        fit.log_evidence({"*.weight": 1.0, "*.bias": 2.0})
    with pytest.raises(InputError, match=r"shape \(22,\)"):
        fit.log_evidence(torch.ones(3))
