"""Samples of N(0, A⁻¹) from every structure: their covariance, by an identity and by a test of known size."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.curvature import reference
from tests.curvature.cases import Case, assert_close, case, fit

STRUCTURES = ["full", "block", "diagonal", "kfac", "ekfac", "low_rank"]
MODELS = ["mlp", "conv2d groups", "embedding", "layer norm", "lstm"]
DRAWS = 4000
SIZE = 1e-6  # the chance that a right sampler fails


def fitted(entry: Case, structure: str) -> object:
    return fit(entry, structure, **({"rank": 6, "generator": 0} if structure == "low_rank" else {})).with_prior(0.3)


def smallest_p_value(draws: Tensor, precision: Tensor, generator: torch.Generator) -> float:
    """For directions u, Σ (uᵀθ)²/(uᵀA⁻¹u) over n draws is χ² with n degrees of freedom; Bonferroni over the directions.

    The directions are the axes, the eigenvectors of A, and random ones, 60 at the most of each.
    """
    dim = len(precision)
    vectors = torch.linalg.eigh(precision).eigenvectors[:, :60]
    axes = torch.eye(dim, dtype=torch.float64)[:, :60]
    directions = torch.cat([vectors, axes, torch.randn(dim, 60, generator=generator, dtype=torch.float64)], 1)
    variance = (directions * torch.linalg.solve(precision, directions)).sum(0)
    statistic = ((directions.T @ draws).square().sum(1) / variance).numpy()
    tails = [2 * min(stats.chi2.cdf(s, draws.shape[1]), stats.chi2.sf(s, draws.shape[1])) for s in statistic]
    return min(1.0, len(tails) * min(tails))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("model", MODELS)
def test_the_root_is_a_root_of_the_covariance(model: str, structure: str) -> None:
    precision = fitted(case(model), structure)
    root = precision.sqrt_solve(torch.eye(precision.dim, dtype=torch.float64))
    covariance = torch.linalg.inv(precision.to_dense())
    assert_close(root @ root.T, covariance, 1e-9)
    assert_close(precision.marginal_variance(), covariance.diagonal(), 1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_samples_have_the_covariance(structure: str) -> None:
    precision = fitted(case("mlp"), structure)
    generator = torch.Generator().manual_seed(0)
    draws = precision.sqrt_solve(torch.randn(precision.dim, DRAWS, generator=generator, dtype=torch.float64))
    assert smallest_p_value(draws, precision.to_dense(), generator) > SIZE


def test_the_statistic_finds_a_transpose() -> None:
    precision = fitted(case("mlp"), "full").to_dense()
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(len(precision), DRAWS, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(precision)
    right = torch.linalg.solve_triangular(factor.mT, z, upper=True)
    wrong = torch.linalg.solve_triangular(factor, z, upper=False)
    assert smallest_p_value(right, precision, generator) > SIZE
    assert smallest_p_value(wrong, precision, generator) < SIZE


def test_the_statistic_has_its_size() -> None:
    """A right sampler's smallest p-values are no smaller than uniform ones: at the level 0.1 about a tenth, at most."""
    precision = torch.diag(torch.linspace(0.5, 2.0, 5, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    rejected = 0
    for _ in range(100):
        sample = torch.linalg.inv(precision).sqrt() @ torch.randn(5, 50, generator=generator, dtype=torch.float64)
        rejected += smallest_p_value(sample, precision, generator) < 0.1
    assert rejected <= stats.binom.ppf(1 - SIZE, 100, 0.1)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_solves_and_determinants(structure: str) -> None:
    for model in MODELS:
        precision = fitted(case(model), structure)
        dense = precision.to_dense()
        v = torch.randn(len(dense), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert_close(precision.solve(v), torch.linalg.solve(dense, v), 1e-9)
        assert_close(precision.multiply(v), dense @ v, 1e-9)
        assert math.isclose(float(precision.logdet()), float(torch.logdet(dense)), rel_tol=1e-9, abs_tol=1e-9)
        assert_close(precision.diagonal(), dense.diagonal(), 1e-12)


def test_the_reference_of_these_tests_is_the_exact_matrix() -> None:
    entry = case("mlp")
    exact = reference.full(entry, "ggn")
    assert_close(fitted(entry, "full").to_dense(), exact + 0.3 * torch.eye(len(exact), dtype=torch.float64), 1e-9)
