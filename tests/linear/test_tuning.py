"""The search for a shared precision, on a posterior in closed form: regression with known noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayescope.errors import ConvergenceWarning, InputError, UnsupportedError
from bayescope.likelihoods import Gaussian
from bayescope.linear import LinearDensity, tune_precision, variational
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior

MASK = torch.tensor([True, True, True, False])


def table(signal: float, start: float = 1.0) -> LinearDensity:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(30, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(30, 1, dtype=torch.float64, generator=generator)
    y = signal * x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + noise
    prior = Prior(torch.tensor([start] * 3 + [0.1]), torch.tensor([0.2, 0.0, 0.0, 1.0]))
    return LinearDensity.of(LinearModel(3), Gaussian(), prior, x, y)


def conjugate(density: LinearDensity, _: GaussianPosterior | None, __: float = 1e-8) -> GaussianPosterior:
    return variational(density)


def log_evidence(density: LinearDensity, log_precision: Tensor) -> Tensor:
    """log N(y; J m₀, I + J P₀⁻¹ Jᵀ)."""
    j = density.model.tape(density.features).jacobian(slice(0, 30))[:, 0]
    variance = torch.cat([(-log_precision).exp().expand(3), torch.tensor([10.0], dtype=torch.float64)])
    covariance = torch.eye(30, dtype=torch.float64) + (j * variance) @ j.mT
    return torch.distributions.MultivariateNormal(j @ density.prior_mean, covariance).log_prob(density.targets[:, 0])


@pytest.mark.parametrize("signal", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("start", [1e-6, 1.0, 1e5])
def test_finds_the_maximum_of_the_evidence(signal: float, start: float) -> None:
    density = table(signal, start)
    fit, precisions = tune_precision(conjugate, density, MASK)
    at = torch.tensor(math.log(precisions[-1]), dtype=torch.float64, requires_grad=True)
    value = log_evidence(density, at)
    assert_close(fit.elbo, value.detach(), rtol=1e-8, atol=1e-8)
    assert abs(torch.autograd.grad(value, at)[0]) < 1e-6
    assert log_evidence(density, at + 0.1) < value
    assert log_evidence(density, at - 0.1) < value
    assert len(precisions) < 20


def test_weights_that_tell_nothing_end_at_the_bound_with_a_warning() -> None:
    density = table(0.0)
    x = density.features
    flat = LinearDensity.of(
        density.model, density.likelihood, Prior(torch.ones(4)), x, torch.zeros(30, 1, dtype=torch.float64)
    )
    with pytest.warns(ConvergenceWarning, match="the inputs tell nothing of y"):
        fit, _ = tune_precision(conjugate, flat, MASK)
    assert fit.mean[:3].abs().max() < 1e-3


def test_dense_priors_and_wrong_masks_are_refused() -> None:
    density = table(1.0)
    dense = density.with_prior(Prior(DensePrecision(torch.eye(4, dtype=torch.float64))))
    with pytest.raises(UnsupportedError, match="precision per weight"):
        tune_precision(conjugate, dense, MASK)
    for mask in (MASK[:3], MASK.double(), torch.zeros(4, dtype=torch.bool)):
        with pytest.raises(InputError, match="boolean mask"):
            tune_precision(conjugate, density, mask)
