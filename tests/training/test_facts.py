"""The words that runs are told apart by: the same for the same run, others for another."""

from __future__ import annotations

import pytest
import torch

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.training import facts
from tests.training.toys import perceptron

EYE = torch.eye(6, dtype=torch.float64)


def test_likelihoods() -> None:
    every: list[Likelihood] = [
        Gaussian(), Gaussian(0.5), Gaussian([0.5, 1.0]), Gaussian("evidence"), Categorical(), Bernoulli(),
        Bernoulli("probit"), HeteroscedasticGaussian(), HeteroscedasticGaussian("natural"),
    ]  # fmt: skip
    assert len({facts.of_likelihood(likelihood) for likelihood in every}) == len(every)
    assert facts.of_likelihood(Gaussian(0.5)) == "gaussian(noise_variance=0.5)"


def test_priors() -> None:
    ramp = torch.arange(1.0, 7.0, dtype=torch.float64)
    every = [
        Prior(1.0), Prior(2.0), Prior(ramp), Prior(ramp.flip(0)), Prior(1.0, 0.1), Prior(1.0, ramp),
        Prior(DensePrecision(2.0 * EYE)), Prior(DensePrecision(2.0 * EYE + 0.1)),
    ]  # fmt: skip
    assert len({facts.of_prior(prior) for prior in every}) == len(every)
    assert facts.of_prior(Prior(DensePrecision(2.0 * EYE))) == facts.of_prior(Prior(DensePrecision(2.0 * EYE)))


def test_weights() -> None:
    module = perceptron()
    masks = [torch.arange(33) == place for place in (0, 1)]
    choices = ["all", ["0.*"], *masks]
    assert len({facts.of_weights(Weights.select(module, choice)) for choice in choices}) == len(choices)


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_is_what_its_steps_are(fused: bool) -> None:
    parameters = list(perceptron().parameters())
    told = facts.of_optimizer(torch.optim.Adam(parameters, lr=0.1, fused=fused))
    assert told == facts.of_optimizer(torch.optim.Adam(parameters, lr=0.1))
    assert told["lr"] == "0.1"
    assert told["optimizer"] != facts.of_optimizer(torch.optim.Adam(parameters, lr=0.1, betas=(0.8, 0.9)))["optimizer"]
    by_layer = torch.optim.Adam([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.3}], lr=0.1)
    assert facts.of_optimizer(by_layer)["lr"] == "0.1, 0.3"
