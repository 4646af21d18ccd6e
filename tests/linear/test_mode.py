from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bayescope.errors import ConvergenceError
from bayescope.likelihoods import Bernoulli, Categorical
from bayescope.linear import Batch, LinearDensity, RowTable, find_mode
from bayescope.models import LinearModel
from bayescope.priors import Prior
from tests.cases import LINEAR_CASES, LinearCase


@pytest.fixture(params=LINEAR_CASES.values(), ids=LINEAR_CASES)
def case(request: pytest.FixtureRequest) -> LinearCase:
    return request.param


def distance(density: LinearDensity, theta: torch.Tensor) -> float:
    """√(gᵀ A⁻¹ g): how many posterior standard deviations θ is from the mode."""
    gradient = density.value_and_gradient(theta)[1]
    return float((gradient @ torch.linalg.solve(-density.hessian(theta), gradient)).clamp(min=0).sqrt())


def test_the_gradient_vanishes_at_the_mode(case: LinearCase):
    mode = find_mode(case.density)
    assert distance(case.density, mode.theta) < 1e-10
    assert_close(mode.log_joint, case.density.log_prob(mode.theta), rtol=1e-12, atol=1e-12)
    assert_close(mode.precision.to_dense(), -case.density.hessian(mode.theta), rtol=1e-8, atol=1e-10)
    climb = torch.tensor(mode.trace["log_joint"], dtype=torch.float64)
    # The last steps change less than the sum over the rows is rounded by.
    assert (climb.diff() >= -1e-12 * (1.0 + climb[:-1].abs())).all()


@settings(max_examples=20)
@given(scale=st.floats(-2, 2), seed=st.integers(0, 20))
def test_the_mode_is_the_same_from_every_start(scale: float, seed: int):
    case = LINEAR_CASES["logit"]
    direction = torch.randn(case.model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = find_mode(case.density, 10**scale * direction).theta
    assert_close(found, find_mode(case.density).theta, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("likelihood", [Bernoulli("logit"), Bernoulli("probit"), Categorical()], ids=lambda x: x.name)
@pytest.mark.parametrize(("unit", "precision"), [(1.0, 1e-6), (1.0, 1e-10), (1e-2, 1e-6), (1e2, 1e-6)])
def test_separable_data_with_a_weak_prior_converge(likelihood, unit: float, precision: float):
    x = unit * torch.tensor([[-2.0, 1.0], [-1.0, -1.0], [-1.5, 0.5], [1.0, 1.0], [2.0, -1.0], [1.2, 0.3]]).double()
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    outputs = 2 if likelihood.name == "categorical" else 1
    model = LinearModel(2, outputs)
    density = LinearDensity.of(model, likelihood, Prior(precision), x, likelihood.targets(labels, outputs))
    mode = find_mode(density)
    assert distance(density, mode.theta) < 1e-7
    probabilities = likelihood.conditional(model.forward(x, mode.theta))[0]
    assert (probabilities.argmax(1) == labels).all()
    if unit == 1.0:
        assert probabilities.amax(1).min() > 0.99


def test_a_large_table_is_begun_on_some_of_its_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 5, dtype=torch.float64, generator=generator)
    model = LinearModel(5)
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0, 0.3], dtype=torch.float64)
    y = Bernoulli().sample(model.forward(x, truth), generator)
    density = LinearDensity.of(model, Bernoulli(), Prior(2.0), x, y)
    exact = find_mode(density, torch.zeros(6, dtype=torch.float64))
    passes = []
    table = RowTable.streamed(lambda: passes.append(1) or (Batch(x, y),), 20_000, 20_000.0)
    mode = find_mode(LinearDensity(model, density.likelihood, density.prior, table))
    assert len(passes) - 1 < len(exact.trace["decrement"])  # one pass takes the rows to begin on
    assert distance(density, mode.theta) < 1e-6
    assert_close(mode.precision.to_dense(), exact.precision.to_dense(), rtol=1e-8, atol=1e-8 * 20_000)
    assert_close(mode.log_joint, exact.log_joint, rtol=0, atol=1e-8)


def test_a_share_of_the_rows_counts_for_all():
    case = LINEAR_CASES["logit"]
    part = case.density.every(4)
    assert part.features.data_ptr() == case.features.data_ptr()
    assert float(part.weights.sum()) == pytest.approx(case.features.shape[0])
    again = part.every(2)
    assert float(again.weights.sum()) == pytest.approx(case.features.shape[0])


def test_the_climb_goes_on_under_the_prior_that_it_is_given():
    case = LINEAR_CASES["logit"]
    wanted = Prior(3.0)
    mode = find_mode(case.density, retune=lambda theta, reading: wanted)
    assert mode.density.prior is wanted
    assert_close(mode.theta, find_mode(case.density.with_prior(wanted)).theta, rtol=1e-9, atol=1e-9)


def test_a_climb_that_is_cut_short_says_so():
    with pytest.raises(ConvergenceError, match="Newton decrement"):
        find_mode(LINEAR_CASES["logit"].density, steps=2)
