from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bayescope.errors import InputError
from bayescope.likelihoods import Bernoulli
from bayescope.linear import LinearDensity
from bayescope.models import LinearModel
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.cases import LINEAR_CASES, LinearCase
from tests.reference import linear_log_joint

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=LINEAR_CASES.values(), ids=LINEAR_CASES)
def case(request: pytest.FixtureRequest) -> LinearCase:
    return request.param


@pytest.fixture
def theta(case: LinearCase) -> torch.Tensor:
    return torch.randn(case.model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def log_joint(case: LinearCase):
    return linear_log_joint(case.likelihood, case.jacobian, case.targets, case.precision, case.mean)


def test_value_gradient_and_hessian_are_those_of_autograd(case: LinearCase, theta: torch.Tensor):
    reference = log_joint(case)
    value, gradient = case.density.value_and_gradient(theta)
    assert_close(value, reference(theta), **EXACT)
    assert_close(case.density.log_prob(theta), value, **EXACT)
    assert_close(gradient, torch.func.grad(reference)(theta), **EXACT)
    assert_close(case.density.hessian(theta), torch.func.jacrev(torch.func.grad(reference))(theta), **EXACT)


def test_many_weights_at_once_are_as_one_by_one(case: LinearCase, theta: torch.Tensor):
    chains = theta + torch.randn(2, 5, case.model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    singly = torch.stack([torch.stack([case.density.log_prob(t) for t in chain]) for chain in chains])
    assert_close(case.density.log_prob(chains), singly, **EXACT)


def test_a_reading_has_the_likelihood_alone(case: LinearCase, theta: torch.Tensor):
    other = case.density.with_prior(Prior(7.0))
    reading, again = case.density.read(theta), other.read(theta)
    assert torch.equal(reading.log_likelihood, again.log_likelihood)
    assert torch.equal(reading.curvature, again.curvature)
    assert_close(reading.log_likelihood + case.prior.log_prob(theta), case.density.log_prob(theta), **EXACT)
    assert_close(case.density.curvature(theta), reading.curvature, **EXACT)


def test_products_with_the_jacobian(case: LinearCase):
    generator = torch.Generator().manual_seed(5)
    count, outputs = case.features.shape[0], case.model.outputs
    jacobian, density = case.jacobian, case.density
    g = torch.randn(count, outputs, dtype=torch.float64, generator=generator)
    assert_close(density.pull_back(case.features, g), torch.einsum("ncp,nc->p", jacobian, g), **EXACT)
    lam = torch.randn(count, outputs, outputs, dtype=torch.float64, generator=generator)
    for weights in (lam + lam.mT, lam @ lam.mT):  # with and without negative entries on the diagonal
        expected = torch.einsum("ncp,nck,nkq->pq", jacobian, weights, jacobian)
        assert_close(density.gram_of_all(weights), expected, **EXACT)
    precision = DensePrecision(density.gram_of_all(lam @ lam.mT) + torch.diag(case.precision))
    assert_close(density.latent_variance(precision), precision.covariance_of(case.model.tape(case.features)), **EXACT)
    assert_close(density.outputs(case.mean), jacobian @ case.mean, **EXACT)


def test_rows_that_count_twice_are_as_rows_that_stand_twice(case: LinearCase, theta: torch.Tensor):
    counts = torch.arange(case.features.shape[0]) % 3
    weighted = LinearDensity.of(case.model, case.likelihood, case.prior, case.features, case.targets, counts.double())
    repeated = LinearDensity.of(
        case.model,
        case.likelihood,
        case.prior,
        case.features.repeat_interleave(counts, 0),
        case.targets.repeat_interleave(counts, 0),
    )
    assert_close(weighted.log_prob(theta), repeated.log_prob(theta), **EXACT)
    assert_close(weighted.value_and_gradient(theta)[1], repeated.value_and_gradient(theta)[1], **EXACT)
    assert_close(weighted.hessian(theta), repeated.hessian(theta), **EXACT)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_threads_change_nothing_but_rounding(case: LinearCase, theta: torch.Tensor, threads: int):
    """A table of so many copies of the rows that it is read in blocks and summed in parts."""
    rows, columns = case.features.shape
    times = -(-600_000 // (rows * columns))
    copies = case.features.repeat(times, 1), case.targets.repeat(times, *[1] * (case.targets.ndim - 1))
    large = LinearDensity.of(case.model, case.likelihood, case.prior, *copies)
    few, chains, precision = case.density.read(theta), torch.stack([theta, -theta]), torch.diag(case.precision)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        many = large.read(theta)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_close(many.log_likelihood / times, few.log_likelihood, **EXACT)
    assert_close(many.gradient / times, few.gradient, **EXACT)
    assert_close(many.curvature / times, few.curvature, **EXACT)
    assert_close(large.log_likelihood(chains) / times, case.density.log_likelihood(chains), **EXACT)
    variance = case.density.latent_variance(DensePrecision(precision))
    found = large.latent_variance(DensePrecision(precision)).unflatten(0, (times, rows))
    assert_close(found, variance.expand_as(found), **EXACT)


def test_strides_do_not_matter_and_the_table_is_not_written(case: LinearCase, theta: torch.Tensor):
    expected = case.density.read(theta)
    columns = np.asfortranarray(case.features.numpy())
    wide = torch.full((2 * case.features.shape[0], case.features.shape[1]), torch.nan, dtype=torch.float64)
    wide[::2] = case.features
    for table in (torch.from_numpy(columns), wide[::2]):
        before = table.clone()
        density = LinearDensity.of(case.model, case.likelihood, case.prior, table, case.targets)
        reading = density.read(theta)
        assert_close(reading.gradient, expected.gradient, **EXACT)
        assert_close(reading.curvature, expected.curvature, **EXACT)
        assert torch.equal(table, before)


def test_rows_of_inputs_and_targets_have_to_match():
    with pytest.raises(InputError, match="y: expected 3 rows"):
        LinearDensity.of(LinearModel(2), Bernoulli(), Prior(), torch.zeros(3, 2).double(), torch.zeros(4, 1).double())


def test_what_numpy_raises_at_elsewhere_is_no_error_here():
    x, y = torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64), torch.tensor([1, 1, 0])
    density = LinearDensity.of(LinearModel(1, 1, False), Bernoulli(), Prior(1.0), x, Bernoulli().targets(y, 1), None)
    with np.errstate(all="raise"):
        value, gradient = density.value_and_gradient(torch.tensor([800.0], dtype=torch.float64))
        infinite, _ = density.value_and_gradient(torch.tensor([1e308], dtype=torch.float64) * 10.0)
    assert_close(value, density.log_prob(torch.tensor([800.0], dtype=torch.float64)), **EXACT)
    assert gradient.isfinite().all()
    assert not infinite.isfinite()
