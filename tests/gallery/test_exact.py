"""The grids that the pictures call the truth, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from bayescope.gallery import exact

MEAN = torch.tensor([0.3, -0.2], dtype=torch.float64)
COVARIANCE = torch.tensor([[1.5, 0.6], [0.6, 0.8]], dtype=torch.float64)


def unnormalised(theta: torch.Tensor) -> torch.Tensor:
    return MultivariateNormal(MEAN, COVARIANCE).log_prob(theta) + 3.0


@pytest.fixture(scope="module")
def plane():
    return exact.grid(unnormalised, (-12, 12), (-9, 9), size=401)


def test_normaliser_and_moments(plane):
    assert plane.log_normaliser == pytest.approx(3.0, abs=1e-12)
    assert float(plane.mass.sum()) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(plane.mean, MEAN)
    torch.testing.assert_close(plane.covariance, COVARIANCE)


def test_both_divergences_are_the_gaussians_closed_form(plane):
    q = MultivariateNormal(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    p = MultivariateNormal(MEAN, COVARIANCE)
    log_q = q.log_prob(plane.points)
    assert plane.kl_from(log_q) == pytest.approx(float(torch.distributions.kl_divergence(q, p)), abs=1e-10)
    assert plane.kl_to(log_q) == pytest.approx(float(torch.distributions.kl_divergence(p, q)), abs=1e-10)


def test_a_density_that_stops_at_an_edge():
    line = exact.grid(lambda x: (x.log() - x)[..., 0], (1e-9, 60.0), size=400_001)
    assert line.log_normaliser == pytest.approx(math.lgamma(2), abs=1e-8)


def test_the_ends_of_a_span_count_half():
    assert exact.grid(
        lambda x: torch.zeros(len(x), dtype=torch.float64), (0, 1), (0, 2), size=11
    ).log_normaliser == pytest.approx(math.log(2), abs=1e-12)


def test_curve_evaluates_points_of_a_line():
    np.testing.assert_allclose(exact.curve(lambda x: x[..., 0] ** 2, np.array([1.0, 2.0])), [1.0, 4.0])
