from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayescope.likelihoods import Gaussian
from bayescope.linear import (
    Expansion,
    LikelihoodExpansion,
    LinearDensity,
    PrecisionSearch,
    compile_density,
    laplace,
    weight_prior,
)
from bayescope.models import LinearModel
from bayescope.priors import Prior

INTERCEPT = 0.3


@pytest.fixture
def table() -> LinearDensity:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, dtype=torch.float64, generator=generator) + 0.5
    y = x[:, :2].sum(1) + torch.randn(30, dtype=torch.float64, generator=generator) + 1.0
    return LinearDensity.of(LinearModel(4), Gaussian(1.0), Prior(), x, y[:, None])


def expansion(table: LinearDensity, theta: torch.Tensor, slope: float = 0.0) -> Expansion:
    return Expansion.at(theta, table.read(theta), table.model, INTERCEPT, slope)


def exact(table: LinearDensity, t: float) -> float:
    prior = weight_prior(table.model, math.exp(t), INTERCEPT)
    return float(
        laplace(compile_density(table.model, table.likelihood, prior, table.features, table.targets)).log_evidence()
    )


def test_for_a_quadratic_likelihood_the_expansion_is_exact_wherever_it_is_made(table: LinearDensity):
    grid = np.array([-3.0, -0.5, 0.0, 2.0, 5.0])
    truth = np.array([exact(table, t) for t in grid])
    for theta in (torch.zeros(5).double(), torch.arange(5).double()):
        got = expansion(table, theta).log_evidence(grid)
        np.testing.assert_allclose(got - got[0], truth - truth[0], rtol=0, atol=1e-9)


def test_the_derivative_is_that_of_the_evidence(table: LinearDensity):
    e, h = expansion(table, torch.zeros(5).double(), slope=0.7), 1e-5
    for t in (-4.0, 0.0, 3.0):
        difference = np.diff(e.log_evidence(np.array([t - h, t + h])))[0] / (2 * h)
        assert float(e.derivative(t)) == pytest.approx(difference, abs=1e-7)


def test_uphill_ends_at_a_maximum_or_a_bound(table: LinearDensity):
    e = expansion(table, torch.zeros(5).double())
    best = e.uphill(0.0, -20.0, 20.0)
    assert abs(float(e.derivative(best))) < 1e-10
    assert e.uphill(8.0, -20.0, 20.0) == pytest.approx(best, abs=1e-10)
    assert e.uphill(8.0, 5.0, 20.0) == 5.0
    assert expansion(table, torch.zeros(5).double(), slope=1e6).uphill(0.0, -20.0, 20.0) == 20.0
    assert best == pytest.approx(e.highest(-20.0, 20.0), abs=40 / 160)


def test_a_climb_takes_bounded_steps_and_knows_when_it_rests(table: LinearDensity):
    theta = torch.zeros(5).double()
    reading = table.read(theta)
    climb = PrecisionSearch(table, INTERCEPT, (-30.0, 30.0), 15.0)
    path = [15.0]
    while not climb.settled:
        path.append(math.log(climb.step(theta, reading)))
    assert np.abs(np.diff(path)).max() <= 3.0 + 1e-12
    assert path[-1] == pytest.approx(expansion(table, theta).uphill(0.0, -30.0, 30.0), abs=1e-9)


def test_a_climb_held_by_a_bound_rests_there(table: LinearDensity):
    theta = torch.zeros(5).double()
    climb = PrecisionSearch(table, INTERCEPT, (6.0, 30.0), 7.0)
    assert math.log(climb.step(theta, table.read(theta))) == pytest.approx(6.0)
    assert climb.settled


def test_a_climb_that_is_sent_to_and_fro_comes_to_rest(table: LinearDensity):
    theta = torch.zeros(5).double()
    up, down = table.read(theta), table.read(theta)
    up = LikelihoodExpansion(up.log_likelihood, 0.01 * up.gradient, up.curvature)  # next to no signal: α is to be large
    climb = PrecisionSearch(table, INTERCEPT, (-30.0, 30.0), 3.0)
    path = [math.log(climb.step(theta, reading)) for _ in range(20) for reading in (up, down)]
    assert abs(path[1] - path[0]) > 1.0
    assert abs(path[-1] - path[-2]) < 1e-3
