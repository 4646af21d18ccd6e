import numpy as np
import pytest
import torch

from bayescope.errors import InputError
from bayescope.precision import DensePrecision
from bayescope.priors import Prior

DENSE = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 4.0]], dtype=torch.float64)
PRIORS = {
    "scalar": (Prior(0.25), 0.25 * torch.eye(3), torch.zeros(3)),
    "vector": (Prior([0.5, 1.0, 4.0], [1.0, 2.0, 3.0]), torch.diag(torch.tensor([0.5, 1.0, 4.0])), [1.0, 2.0, 3.0]),
    "dense": (Prior(DensePrecision(DENSE), -1.0), DENSE, -torch.ones(3)),
}


@pytest.mark.parametrize("case", PRIORS)
def test_log_prob_and_gradient_are_the_gaussian_s(case):
    prior, precision, mean = PRIORS[case]
    mean = torch.as_tensor(mean, dtype=torch.float64)
    reference = torch.distributions.MultivariateNormal(mean, precision_matrix=precision.to(torch.float64))
    theta = torch.linspace(-2, 3, 12, dtype=torch.float64).reshape(2, 2, 3)
    torch.testing.assert_close(prior.log_prob(theta), reference.log_prob(theta))
    point = theta[1, 0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(reference.log_prob(point), point)
    torch.testing.assert_close(prior.gradient(point.detach()), expected)
    torch.testing.assert_close(prior.diagonal(3), precision.diagonal().to(torch.float64))


@pytest.mark.parametrize("flat", [1, 3])
def test_flat_intercepts_have_the_density_one(flat):
    prior, weights = Prior([0.5, 2.0], flat=flat), torch.tensor([0.3, -1.0], dtype=torch.float64)
    intercepts = torch.linspace(-2.0, 5.0, flat, dtype=torch.float64)
    expected = Prior([0.5, 2.0]).log_prob(weights)
    theta = torch.cat([weights, intercepts])
    torch.testing.assert_close(prior.log_prob(theta), expected)
    torch.testing.assert_close(prior.log_prob(theta.expand(2, 4, -1)), expected.expand(2, 4))
    point = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(prior.log_prob(point), point)
    torch.testing.assert_close(prior.gradient(theta), slope)
    assert prior.diagonal(2 + flat).tolist() == [0.5, 2.0, *[0.0] * flat]


def test_the_precision_of_some_weights_is_replaced():
    changed = Prior([0.5, 2.0, 3.0], 1.0, flat=2).with_precision(torch.tensor([True, False, True, False, False]), 7.0)
    assert changed.diagonal(5).tolist() == [7.0, 2.0, 7.0, 0.0, 0.0]
    assert (changed.flat, float(changed.mean)) == (2, 1.0)


def test_a_structured_precision_has_no_flat_intercepts():
    with pytest.raises(InputError, match="flat intercepts"):
        Prior(DensePrecision(DENSE), flat=1)


@pytest.mark.parametrize("bad", [0.0, -1.0, [1.0, 0.0], [[1.0]], float("nan")])
def test_bad_precisions_are_refused(bad):
    with pytest.raises(InputError):
        Prior(bad)


def test_a_prior_does_not_change_with_the_caller_s_array():
    array = np.array([1.0, 2.0])
    prior = Prior(array)
    array[0] = 9.0
    assert prior.diagonal(2).tolist() == [1.0, 2.0]


def test_a_prior_for_another_number_of_weights_is_refused():
    for prior in (Prior([1.0, 2.0]), Prior(DensePrecision(DENSE)), Prior(1.0, [0.0, 0.0])):
        with pytest.raises(InputError, match=r"expected .*5"):
            prior.log_prob(torch.zeros(5, dtype=torch.float64))
