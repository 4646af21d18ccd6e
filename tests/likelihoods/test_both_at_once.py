"""The pair that a sampler asks for, against the two methods of the likelihood."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from bayescope.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli("probit"), Categorical(), Gaussian(0.5)])
def test_both_at_once_are_the_two_methods(likelihood: Likelihood, outputs: int):
    generator = torch.Generator().manual_seed(0)
    f = 3.0 * torch.randn(50, outputs, dtype=torch.float64, generator=generator)
    y = likelihood.sample(f, generator)
    log_prob, gradient = likelihood.log_prob_and_gradient(f, y)
    assert_close(log_prob, likelihood.log_prob(f, y), rtol=1e-14, atol=0.0)
    assert_close(gradient, likelihood.gradient(f, y), rtol=1e-14, atol=0.0)


def test_the_tails_of_a_label_are_as_exact_as_its_middle():
    size = torch.tensor([0.0, 1e-9, 1.0, 30.0, 700.0, 1e4], dtype=torch.float64)
    f = torch.cat([-size, size])[:, None]
    for y in (torch.zeros_like(f), torch.ones_like(f)):
        log_prob, gradient = Bernoulli().log_prob_and_gradient(f, y)
        assert_close(log_prob, Bernoulli().log_prob(f, y), rtol=1e-14, atol=0.0)
        assert_close(gradient, Bernoulli().gradient(f, y), rtol=1e-14, atol=0.0)
