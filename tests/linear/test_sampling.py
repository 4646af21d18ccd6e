from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from bayescope.errors import InputError
from bayescope.likelihoods import Bernoulli
from bayescope.linear import compile_density, conjugate, metropolis, nuts
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior
from bayescope.priors import Prior
from tests.cases import LINEAR_CASES, PLANAR_TABLES
from tests.reference import binary_log_joint, integrate_plane

SAMPLERS = {
    "nuts": (nuts, {"draws": 600, "tune": 500, "chains": 2}),
    "metropolis": (metropolis, {"draws": 4000, "tune": 1500, "chains": 8}),
}


@pytest.fixture(params=SAMPLERS.values(), ids=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> tuple[Callable[..., DrawsPosterior], dict[str, int]]:
    return request.param


def test_draws_of_a_regression_have_the_exact_moments(sampler):
    sample, sizes = sampler
    case = LINEAR_CASES["gaussian"]
    exact, q = conjugate(case.density), sample(case.density, generator=0, **sizes)
    sd = exact.covariance.diagonal().sqrt()
    error = (q.mean - exact.mean).abs() / sd * q.effective_draws.sqrt()
    assert error.max() < 4.5  # Monte Carlo standard errors
    assert ((q.covariance.diagonal().sqrt() / sd).log().abs() < 0.1).all()
    assert q.r_hat.max() < 1.01
    assert q.divergences == 0
    assert q.likelihood is case.likelihood
    assert q.model is case.model


def test_draws_of_a_skewed_posterior_have_the_moments_of_the_integral(sampler):
    """Separable data under a weak prior: Laplace's Gaussian, from which the chains start, is far off."""
    sample, sizes = sampler
    table = PLANAR_TABLES["separable"]
    plane = integrate_plane(
        binary_log_joint("logit", table.jacobian, table.labels, table.precision, table.mean), table.mean
    )
    model, prior = LinearModel(1), Prior(table.precision.diagonal(), table.mean)
    q = sample(compile_density(model, Bernoulli(), prior, table.features, table.labels), generator=1, **sizes)
    sd = plane.covariance.diagonal().sqrt()
    assert ((q.mean - plane.mean).abs() / sd * q.effective_draws.sqrt()).max() < 4.5
    assert ((q.covariance.diagonal().sqrt() / sd).log().abs() < 0.1).all()


def test_a_seed_repeats_the_draws():
    case = LINEAR_CASES["logit"]
    sizes = {"draws": 200, "tune": 200, "chains": 2}
    for sample in (nuts, metropolis):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # far too few draws
            first, again, other = (sample(case.density, generator=seed, **sizes) for seed in (3, 3, 4))
        assert torch.equal(first.draws, again.draws)
        assert not torch.equal(first.draws, other.draws)
        assert first.draws.shape == (2, 200, case.model.dim)


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"chains": -1}, {"tune": 2.5}])
def test_counts_are_checked(sampler, wrong: dict[str, int]):
    sample, _ = sampler
    case = LINEAR_CASES["logit"]
    with pytest.raises(InputError, match=next(iter(wrong))):
        sample(case.density, generator=0, **wrong)
