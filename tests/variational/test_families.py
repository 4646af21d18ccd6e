"""Families of covariances: what they say of themselves is what their draws and their dense matrices say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.errors import ConvergenceError
from bayescope.network import Weights
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from bayescope.variational.families import FIRST_DIRECTIONS, PACE, Full, LogScale, LowRank, MeanField, kl_divergence
from tests.training.toys import perceptron
from tests.variational.toys import STANDARD_ERRORS, family_of, seeded_draws

FAMILIES = ("mean_field", "low_rank", "full")
MODULE = perceptron(hidden=2)
WEIGHTS = Weights.select(MODULE, "all")
DIM = 9


def covariance(name: str) -> Tensor:
    return torch.linalg.inv(family_of(name, MODULE, WEIGHTS).precision().to_dense())


def some_matrix(seed: int = 1) -> Tensor:
    root = torch.randn(DIM, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.mT + torch.eye(DIM, dtype=torch.float64)


@pytest.mark.parametrize("name", FAMILIES)
def test_verbs_are_those_of_the_dense_matrix(name: str) -> None:
    family, sigma = family_of(name, MODULE, WEIGHTS), covariance(name)
    matrix = some_matrix()
    offsets = torch.randn(4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(family.solve(offsets), torch.linalg.solve(sigma, offsets.mT).mT)
    torch.testing.assert_close(family.trace(DensePrecision(matrix)), (matrix * sigma).sum())
    torch.testing.assert_close(family.logdet(), torch.logdet(sigma))
    torch.testing.assert_close(family.variance(), sigma.diagonal())


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_have_the_covariance(name: str) -> None:
    """Each entry of the sample covariance, in standard errors: √((Σ_ij² + Σ_ii Σ_jj)/n)."""
    n, sigma = 40_000, covariance(name)
    with seeded_draws(0):
        noise = family_of(name, MODULE, WEIGHTS).noise(n).detach()
    found = noise.mT @ noise / n
    variances = sigma.diagonal()
    errors = ((sigma.square() + variances[:, None] * variances) / n).sqrt()
    assert ((found - sigma) / errors).abs().max() < STANDARD_ERRORS
    assert (noise.mean(0) / (variances / n).sqrt()).abs().max() < STANDARD_ERRORS


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "prior",
    [
        Prior(2.0),
        Prior(torch.arange(1.0, DIM + 1), torch.linspace(-1, 1, DIM)),
        Prior(DensePrecision(some_matrix(2)), 0.3),
    ],
)
def test_divergence_from_the_prior_is_that_of_dense_gaussians(name: str, prior: Prior) -> None:
    family, mean = family_of(name, MODULE, WEIGHTS), torch.linspace(-0.5, 1.0, DIM, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal
    expected = torch.distributions.kl_divergence(
        normal(mean, covariance(name)), normal(prior.centre(DIM), precision_matrix=prior.structured(DIM).to_dense())
    )
    torch.testing.assert_close(kl_divergence(family, mean, prior), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_begins_with_the_sds_that_it_is_given(name: str) -> None:
    sds = torch.linspace(0.01, 3.0, DIM, dtype=torch.float64)
    with seeded_draws(0):
        family = {
            "mean_field": MeanField(WEIGHTS, LogScale(WEIGHTS, WEIGHTS.parameters(MODULE), sds)),
            "low_rank": LowRank(sds, 3),
            "full": Full(sds),
        }[name]
    # The low rank's first directions add about a hundredth to each variance.
    slack = 10.0 * FIRST_DIRECTIONS**2 if name == "low_rank" else 1e-12
    torch.testing.assert_close(family.variance().sqrt(), sds, rtol=slack, atol=0.0)


def test_a_step_changes_every_sd_by_the_same_share_of_itself() -> None:
    family = family_of("mean_field", MODULE, WEIGHTS)
    before = family.variance().detach().sqrt()
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.add_(1e-3)
    torch.testing.assert_close(family.variance().sqrt(), before * torch.tensor(1e-3 * PACE).exp().double())


def test_masked_entries_do_not_scatter() -> None:
    mask = torch.ones(DIM, dtype=torch.bool)
    mask[[0, 5]] = False
    weights = Weights.select(MODULE, mask)
    family = family_of("mean_field", MODULE, weights)
    assert family.variance().shape == (7,)
    sds = torch.cat([sd.flatten() for sd in family.scale.sds().values()])
    assert bool((sds[~mask] == 0).all())
    assert bool((sds[mask] > 0).all())


def test_a_full_covariance_is_read_from_its_root() -> None:
    """A product of the root with itself would have lost half of its digits."""
    sds = torch.logspace(-9, 0, DIM, dtype=torch.float64)
    family = Full(sds)
    with torch.no_grad():
        family.below.copy_(0.2 * some_matrix())
    precision = family.precision()
    root = torch.linalg.inv(precision.to_dense() * sds * sds[:, None])  # of unit scale
    expected = family.variance() / sds.square()
    torch.testing.assert_close(root.diagonal(), expected, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(precision.logdet(), -family.logdet().detach())
    noise = precision.sqrt_solve(torch.eye(DIM, dtype=torch.float64))
    torch.testing.assert_close((noise @ noise.mT).diagonal(), family.variance().detach(), rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("value", [float("nan"), -300.0])
def test_a_covariance_that_has_run_away_says_what_to_do(value: float) -> None:
    family = Full(torch.ones(DIM, dtype=torch.float64))
    with torch.no_grad():
        family.rho[3] = value  # −300: an sd that underflows
    with pytest.raises(ConvergenceError, match="take a smaller lr"):
        family.precision()
