"""Prior precisions and noise in closed form: where the bound is highest in them."""

from __future__ import annotations

import math

import pytest
import torch

from bayescope.laplace import PriorGroups
from bayescope.likelihoods import Gaussian
from bayescope.priors import Prior
from bayescope.training import LearntLikelihood
from bayescope.variational.elbo import Bound
from bayescope.variational.objective import Hyperparameters

MEAN = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
VARIANCE = torch.tensor([0.2, 0.1, 0.05, 0.3], dtype=torch.float64)
GROUPS = PriorGroups("layer", ("first", "second"), torch.tensor([0, 0, 0, 1]))


def test_prior_precisions_are_where_the_divergence_is_lowest() -> None:
    start = Prior(1.0, [0.0, 0.5, 0.0, 0.0])
    learnt = Hyperparameters(start, GROUPS, LearntLikelihood(Gaussian(0.5), ()))
    assert learnt.prior.precision.tolist() == [1.0] * 4
    learnt.fit_prior(MEAN, VARIANCE)
    offset = MEAN - start.centre(4)
    precisions = learnt.prior.diagonal(4).clone().requires_grad_()
    divergence = 0.5 * (precisions * (offset.square() + VARIANCE) - precisions.log()).sum()
    divergence.backward()
    assert precisions.grad is not None
    torch.testing.assert_close(GROUPS.sums(precisions.grad), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(learnt.prior.centre(4), start.centre(4))
    assert learnt.entries()["prior_precision"] == pytest.approx(precisions.detach()[[0, 3]].tolist())


def test_noise_is_the_mean_square() -> None:
    residuals = torch.tensor([[0.3, -0.1], [0.2, 0.5], [-0.4, 0.0]], dtype=torch.float64)
    learnt = Hyperparameters(Prior(1.0), None, LearntLikelihood(Gaussian(2.0), ("noise_variance",)))
    for some in residuals.split(2):
        learnt.learnt.observe(torch.zeros_like(some), some)
    learnt.learnt.refit()
    assert float(learnt.likelihood.noise_variance) == pytest.approx(float(residuals.square().mean()))
    assert learnt.entries() == {"noise_variance": pytest.approx(float(residuals.square().mean()))}


def test_the_bound_at_the_best_noise() -> None:
    learnt = Hyperparameters(Prior(1.0), None, LearntLikelihood(Gaussian(2.0), ("noise_variance",)))
    squares, outcomes = 3.0, 8
    before = torch.tensor(-0.5 * (squares / 2.0 + outcomes * math.log(4.0 * math.pi)), dtype=torch.float64)
    found = learnt.refitted(Bound(before, torch.tensor(1.0), 0.1, 16, outcomes))
    noise = squares / outcomes
    assert float(learnt.likelihood.noise_variance) == pytest.approx(noise)
    expected = -0.5 * (squares / noise + outcomes * math.log(2.0 * math.pi * noise))
    assert float(found.expected_log_likelihood) == pytest.approx(expected)
    assert found.standard_error == pytest.approx(0.1 * 2.0 / noise)


def test_what_is_given_stays() -> None:
    prior, likelihood = Prior([1.0, 2.0, 3.0, 4.0]), Gaussian(0.5)
    given = Hyperparameters(prior, None, LearntLikelihood(likelihood, ()))
    given.fit_prior(MEAN, VARIANCE)
    given.learnt.refit()
    assert given.prior is prior
    assert given.likelihood.noise_variance == 0.5
    assert given.entries() == {}
    judged = Bound(torch.tensor(-1.0), torch.tensor(1.0), 0.1, 16, 8)
    assert given.refitted(judged) is judged
