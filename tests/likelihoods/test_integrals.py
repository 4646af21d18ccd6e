"""The integrals over f together: each against adaptive quadrature or far more points, as in `bench/integrals.py`."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from bayescope.likelihoods import Bernoulli, Categorical
from bayescope.quadrature import normal_nodes
from tests.reference import gaussian_expectation

SDS = [0.1, 0.3, 1.0, 3.0, 10.0]
# The largest errors that bench/results/integrals.md shows, rounded up.
BINARY_ERRORS = {"mackay": 0.02, "laplace_bridge": 0.51}


def _fine(mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """E[softmax(f)] of each row and its standard error, by 8 scramblings of 2¹³ nodes."""
    root = torch.linalg.cholesky(cov)
    each = torch.stack(
        [
            torch.softmax(mean + torch.einsum("nck,sk->snc", root, normal_nodes(mean.shape[1], 2**13, seed=seed)), -1)
            .mean(0)
            for seed in range(500, 508)
        ]
    )  # fmt: skip
    return each.mean(0), each.std(0) / math.sqrt(8)


@pytest.mark.parametrize("outputs", [3, 10])
@pytest.mark.parametrize("sd", SDS)
def test_multiclass_probabilities_are_right_to_their_stated_error(outputs: int, sd: float) -> None:
    generator = torch.Generator().manual_seed(outputs)
    mean = 2.0 * torch.randn(12, outputs, dtype=torch.float64, generator=generator)
    root = torch.randn(12, outputs, outputs + 1, dtype=torch.float64, generator=generator)
    cov = sd**2 * root @ root.mT / (outputs + 1)
    truth, spread = _fine(mean, cov)
    stated = Categorical().integration_error(mean, cov, "quadrature")
    error = Categorical().predictive(mean, cov, "quadrature").mean - truth
    assert ((error / torch.hypot(stated, spread)).abs() < 6).all()
    assert error.abs().max() < 0.015 * max(0.1, min(1.0, sd))  # far less than what the closed forms miss by
    for integral in ("mackay", "laplace_bridge"):
        off = Categorical().predictive(mean, cov, integral).mean - truth
        assert off.abs().max() > 5 * error.abs().max()


@pytest.mark.parametrize("sd", [0.0, *SDS, 1e2, 1e4])
def test_binary_probabilities_are_right_to_1e_8_and_the_closed_forms_to_what_is_said(sd: float) -> None:
    means = [0.0, -1.0, 8.0, sd, -3.0 * sd]
    exact = [float(gaussian_expectation(lambda a: 1 / (1 + mpmath.exp(-a)), mean, sd)) for mean in means]
    truth = torch.tensor(exact, dtype=torch.float64)
    mean = torch.tensor(means, dtype=torch.float64)[:, None]
    cov = torch.full((len(means), 1, 1), sd**2, dtype=torch.float64)
    got = Bernoulli().predictive(mean, cov, "quadrature").mean[:, 1]
    assert (got - truth).abs().max() < 1e-8
    for integral, most in BINARY_ERRORS.items():
        off = Bernoulli().predictive(mean, cov, integral).mean[:, 1] - truth
        assert off.abs().max() < most
