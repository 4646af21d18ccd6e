"""Inference for outcomes that are numbers: expectations, tilted moments and posteriors beside brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bayescope.likelihoods import Likelihood, NegativeBinomial, Poisson, WithOffset
from bayescope.linear import (
    LinearDensity,
    expectation_propagation,
    expected_log_likelihood,
    laplace,
    variational,
    weight_prior,
)
from bayescope.linear.sites import log_concave_tilted
from bayescope.models import LinearModel

LIKELIHOODS = [Poisson(), NegativeBinomial(0.7)]
COUNTS = torch.tensor([0.0, 1.0, 3.0, 20.0, 1e4], dtype=torch.float64)[:, None]


def grid(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """f over ±12 sds, shape (S, N), and the log weights of N(mean, variance)."""
    z = torch.linspace(-12.0, 12.0, 40_001, dtype=torch.float64)[:, None]
    return mean + variance.sqrt() * z, torch.log_softmax(-0.5 * z.square(), 0)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
@pytest.mark.parametrize("sd", [1e-3, 0.3, 1.5])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_expected_log_likelihoods_are_integrals(likelihood: Likelihood, sd: float, shift: float):
    mean = torch.tensor([-2.0, 0.5, 1.0, 4.0, 8.0], dtype=torch.float64)
    variance = torch.full_like(mean, sd**2)
    f, log_weights = grid(mean, variance)
    weights = log_weights.exp()
    found = expected_log_likelihood(likelihood, mean[:, None], variance[:, None, None], COUNTS)
    if shift:
        y = WithOffset.join(COUNTS, torch.full((5,), shift, dtype=torch.float64))
        found = expected_log_likelihood(WithOffset(likelihood), mean[:, None] - shift, variance[:, None, None], y)
    for ours, each in zip(
        found,
        (likelihood.log_density, likelihood.slope, likelihood.bend),
        strict=True,  # type: ignore[attr-defined]
    ):
        brute = (weights * each(f[..., None], COUNTS)[..., 0]).sum(0)
        torch.testing.assert_close(ours.reshape(-1), brute, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
@pytest.mark.parametrize("variance", [1e-6, 0.5, 30.0])
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_tilted_moments_are_integrals(likelihood: Likelihood, variance: float, power: float):
    mean = torch.tensor([-3.0, 0.0, 2.0, 2.5, 9.0], dtype=torch.float64)
    v, e = torch.full_like(mean, variance), torch.full_like(mean, power)
    f, log_weights = grid(mean, v)
    terms = log_weights + power * likelihood.log_prob(f[..., None], COUNTS)
    log_normaliser = terms.logsumexp(0)
    weights = (terms - log_normaliser).exp()
    tilted_mean = (weights * f).sum(0)
    tilted_variance = (weights * (f - tilted_mean).square()).sum(0)
    found = log_concave_tilted(likelihood, mean, v, e, COUNTS)
    torch.testing.assert_close(found.log_normaliser, log_normaliser, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(mean + v * found.slope, tilted_mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(v * found.shrinkage, tilted_variance, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(v * (1.0 - v * found.bend), tilted_variance, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
def test_posteriors_of_one_weight_are_close_to_the_exact_one(likelihood: Likelihood):
    x = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)[:, None]
    y = torch.tensor([0.0, 0, 1, 0, 2, 1, 0, 3, 2, 4, 2, 5], dtype=torch.float64)[:, None]
    model = LinearModel(1, bias=False)
    density = LinearDensity.of(model, likelihood, weight_prior(model, 0.3, None), x, y)
    theta = torch.linspace(-8.0, 8.0, 20_001, dtype=torch.float64)
    log_joint = density.log_prob(theta[:, None])
    evidence = float(torch.logsumexp(log_joint, 0) + np.log(float(theta[1] - theta[0])))
    weights = torch.softmax(log_joint, 0)
    mean = float(weights @ theta)
    sd = float((weights @ (theta - mean).square()).sqrt())
    propagated, bound, simple = expectation_propagation(density), variational(density), laplace(density)
    assert float(propagated.mean) == pytest.approx(mean, abs=0.01 * sd)
    assert float(propagated.covariance.sqrt()) == pytest.approx(sd, rel=0.01)
    assert float(propagated.log_evidence()) == pytest.approx(evidence, abs=5e-3)
    assert float(bound.mean) == pytest.approx(mean, abs=0.02 * sd)
    assert evidence - 0.05 < float(bound.elbo) <= evidence
    assert float(simple.log_evidence()) == pytest.approx(evidence, abs=0.1)
