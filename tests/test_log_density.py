"""Log densities: gradients and Hessians against autograd and differences, and what a user's function may be."""

import pytest
import torch

import bayescope as bs
from bayescope.errors import InputError, InputTypeError
from bayescope.log_density import (
    CallableDensity,
    LogDensity,
    TransformedDensity,
    curvature_scale,
    finite_difference_hessian,
)
from bayescope.transforms import resolve
from tests.reference import central_gradient

MATRIX = torch.tensor([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 4.0]], dtype=torch.float64)


def smooth(x):
    """A log density with all derivatives: not quadratic, coupled, on the positive orthant."""
    return (3.0 * x.log() - x).sum() - 0.1 * (x @ MATRIX @ x) + torch.sin(x[0] * x[1])


def points(n, seed=0):
    return 0.5 + torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def hessian_by_autograd(function, theta):
    return torch.autograd.functional.hessian(function, theta)


class TestCallable:
    density = CallableDensity(smooth, 3)

    def test_is_a_log_density(self):
        assert isinstance(self.density, LogDensity)
        assert not isinstance(smooth, LogDensity)

    def test_values_over_leading_dimensions(self):
        theta = points(6).reshape(2, 3, 3)
        expected = torch.stack([smooth(t) for t in theta.reshape(-1, 3)]).reshape(2, 3)
        torch.testing.assert_close(self.density.log_prob(theta), expected)
        assert self.density.log_prob(theta[:0]).shape == (0, 3)

    def test_gradient_and_hessian(self):
        for theta in points(3):
            value, gradient = self.density.value_and_gradient(theta)
            assert value == smooth(theta)
            torch.testing.assert_close(gradient, central_gradient(smooth, theta), rtol=1e-7, atol=1e-7)
            torch.testing.assert_close(self.density.hessian(theta), hessian_by_autograd(smooth, theta))

    def test_hessian_of_a_linear_density_is_zero(self):
        assert torch.equal(CallableDensity(torch.sum, 3).hessian(points(1)[0]), torch.zeros(3, 3, dtype=torch.float64))

    def test_works_without_gradients_around_and_leaves_none_behind(self):
        theta = points(1)[0]
        with torch.no_grad():
            self.density.value_and_gradient(theta)
            self.density.hessian(theta)
        assert not theta.requires_grad

    def test_a_function_that_branches_is_looped_over(self):
        def branching(x):
            return -x.sum() if x[0] > 1 else -x.square().sum()

        theta = points(20)
        expected = torch.stack([branching(t) for t in theta])
        density = CallableDensity(branching, 3)
        for _ in range(2):
            torch.testing.assert_close(density.log_prob(theta), expected)

    def test_vectorised_values_can_be_differentiated(self):
        theta = points(4).requires_grad_()
        (gradient,) = torch.autograd.grad(self.density.log_prob(theta).sum(), theta)
        torch.testing.assert_close(gradient[2], self.density.value_and_gradient(theta[2])[1])


class TestRefusals:
    theta = torch.zeros(3, dtype=torch.float64)

    def test_not_a_scalar(self):
        with pytest.raises(InputError, match=r"a scalar \(shape \(\)\), got shape \(3,\)"):
            CallableDensity(lambda x: -x, 3).log_prob(self.theta)

    def test_not_a_scalar_of_several_points(self):
        with pytest.raises(InputError, match="Sum the terms"):
            CallableDensity(lambda x: -x, 3).log_prob(points(2))

    def test_not_a_tensor(self):
        with pytest.raises(InputTypeError, match="scalar torch tensor, got float"):
            CallableDensity(lambda x: 1.0, 3).log_prob(self.theta)

    def test_single_precision(self):
        with pytest.raises(InputTypeError, match=r"got torch\.float32"):
            CallableDensity(lambda x: x.float().sum(), 3).log_prob(self.theta)

    def test_a_broken_chain(self):
        with pytest.raises(InputError, match="through torch operations"):
            CallableDensity(lambda x: x.detach().sum(), 3).value_and_gradient(self.theta)

    def test_the_functions_own_error_surfaces(self):
        def broken(_):
            raise RuntimeError("no such table")

        with pytest.raises(RuntimeError, match="no such table"):
            CallableDensity(broken, 3).log_prob(points(2))


class TestTransformed:
    transform = resolve(["positive", "ordered", "ordered"], 3)

    @staticmethod
    def quartic(x):
        return -0.1 * x.pow(4).sum() + x[0] * x[2] - 0.5 * (x @ MATRIX @ x)

    def test_is_the_pullback_with_its_jacobian(self):
        """Against autograd of log p(x(u)) + log∣∂x/∂u∣ as one function, for a target that gives only g and H."""

        def pulled_back(u):
            return self.quartic(self.transform.forward(u)) + self.transform.log_jacobian(u)

        density = TransformedDensity(CallableDensity(self.quartic, 3), self.transform)
        for u in points(3) - 1.0:
            value, gradient = density.value_and_gradient(u)
            torch.testing.assert_close(value, pulled_back(u))
            torch.testing.assert_close(density.log_prob(u), pulled_back(u))
            torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(pulled_back, u))
            torch.testing.assert_close(density.hessian(u), hessian_by_autograd(pulled_back, u))

    def test_inferences_take_the_derivatives_of_a_density_that_autograd_cannot_differentiate(self):
        density = CallableDensity(lambda x: float(smooth(x)), 3, differences=True)
        found = bs.density.laplace(density, start=[1.0, 1.0, 1.0], transform="positive")
        wanted = bs.density.laplace(smooth, start=[1.0, 1.0, 1.0], transform="positive")
        torch.testing.assert_close(found.covariance, wanted.covariance, rtol=1e-5, atol=1e-8)


class TestDifferences:
    def test_derivatives_from_values_alone(self):
        density = CallableDensity(lambda x: float(smooth(x)), 3, differences=True)
        for theta in points(3):
            _, gradient = density.value_and_gradient(theta)
            exact = hessian_by_autograd(smooth, theta)
            torch.testing.assert_close(
                gradient, CallableDensity(smooth, 3).value_and_gradient(theta)[1], rtol=1e-9, atol=1e-9
            )
            torch.testing.assert_close(density.hessian(theta), exact, rtol=1e-7, atol=1e-7)

    @pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
    def test_the_step_follows_the_units(self, unit):
        scale = torch.tensor([1.0, unit, 1.0], dtype=torch.float64)

        def log_prob(x):
            return smooth(x / scale)

        theta = points(1)[0]
        density = CallableDensity(log_prob, 3)
        got = finite_difference_hessian(
            density.log_prob, theta * scale, curvature_scale(density.log_prob, theta * scale)
        )
        exact = hessian_by_autograd(smooth, theta)
        torch.testing.assert_close(got * scale * scale[:, None], exact, rtol=1e-6, atol=1e-6)


def test_data_of_another_dtype_are_refused_with_what_to_do() -> None:
    rows = torch.ones(4, 2)
    density = CallableDensity(lambda theta: -(rows @ theta).square().sum(), 2)
    with pytest.raises(InputTypeError, match=r"expected a function of a float64 tensor .* Make its data float64"):
        density.log_prob(torch.zeros(2, dtype=torch.float64))
