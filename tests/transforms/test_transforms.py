"""Transforms: inverse, Jacobian and moments against autograd, closed forms and quadrature."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayescope.errors import InputError, InputTypeError, OptionError
from bayescope.transforms import Transform, check_at, pushforward_moments, resolve, unconstrain
from tests.cases import TRANSFORMS
from tests.reference import bivariate_expectation


class Affine:
    """The user's own transform: x = A u + b."""

    matrix = torch.tensor([[2.0, 0.5], [0.0, 3.0]], dtype=torch.float64)
    shift = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def forward(self, u):
        return u @ self.matrix.mT + self.shift

    def inverse(self, x):
        return torch.linalg.solve(self.matrix, (x - self.shift)[..., None])[..., 0]

    def log_jacobian(self, u):
        return torch.linalg.slogdet(self.matrix).logabsdet.expand(u.shape[:-1])


class WrongJacobian(Affine):
    """An affine map that forgets its Jacobian."""

    def log_jacobian(self, u):
        return torch.zeros(u.shape[:-1], dtype=u.dtype)


class WrongInverse(Affine):
    """An affine map whose inverse is the map itself."""

    def inverse(self, x):
        return self.forward(x)


def draws(dim, n=5, *, sd=1.5, seed=0):
    return sd * torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spec", TRANSFORMS.values(), ids=TRANSFORMS.keys())
class TestNamed:
    def test_inverse_undoes_forward(self, spec):
        transform, u = resolve(spec, 5), draws(5)
        torch.testing.assert_close(transform.inverse(transform.forward(u)), u, rtol=1e-12, atol=1e-12)

    def test_log_jacobian_is_that_of_autograd(self, spec):
        transform = resolve(spec, 5)
        for u in draws(5):
            jacobian = torch.autograd.functional.jacobian(transform.forward, u)
            torch.testing.assert_close(transform.log_jacobian(u), torch.linalg.slogdet(jacobian).logabsdet)

    def test_broadcasts(self, spec):
        transform, u = resolve(spec, 5), draws(5, 12).reshape(3, 4, 5)
        assert transform.forward(u).shape == (3, 4, 5)
        assert transform.log_jacobian(u).shape == (3, 4)
        torch.testing.assert_close(transform.forward(u)[1, 2], transform.forward(u[1, 2]))

    def test_moments_are_those_of_many_draws(self, spec):
        """400,000 draws: the mean to five standard errors, the covariances to five of theirs by batches."""
        transform = resolve(spec, 5)
        mean = torch.tensor([0.3, -0.5, 0.2, 0.4, -0.3], dtype=torch.float64)
        root = 0.25 * draws(5, 5, sd=1.0, seed=3) + 0.2 * torch.eye(5, dtype=torch.float64)
        noise = draws(5, 400_000, sd=1.0, seed=4)
        x = transform.forward(mean + noise @ root.mT)
        got_mean, got_covariance = pushforward_moments(transform, mean, root @ root.mT)
        assert ((x.mean(0) - got_mean).abs() < 5 * x.std(0) / 400_000**0.5).all()
        batches = torch.stack([torch.cov(batch.mT) for batch in x.split(10_000)])
        error = batches.std(0) / math.sqrt(batches.shape[0])
        assert ((batches.mean(0) - got_covariance).abs() < 5 * error + 1e-12).all()


def test_ranges():
    u = draws(4, 100, sd=5.0)
    assert (resolve("positive", 4).forward(u) > 0).all()
    interval = resolve("unit_interval", 4).forward(u)
    assert ((interval > 0) & (interval < 1)).all()
    assert (resolve("ordered", 4).forward(u).diff(dim=-1) > 0).all()


def test_consecutive_ordered_entries_form_one_group_and_others_part_it():
    transform = resolve(["ordered", "ordered", None, "ordered", "ordered"], 5)
    x = transform.forward(torch.tensor([5.0, 0.0, 2.0, -7.0, 0.0], dtype=torch.float64))
    assert x.tolist() == [5.0, 6.0, 2.0, -7.0, -6.0]


def test_log_jacobian_is_stable_far_out():
    u = torch.tensor([-800.0, 800.0], dtype=torch.float64)
    assert float(resolve("unit_interval", 2).log_jacobian(u)) == pytest.approx(-1600.0)


class TestMoments:
    """Entry by entry against closed forms and two-dimensional quadrature."""

    mean = torch.tensor([0.4, -0.2], dtype=torch.float64)

    @given(st.floats(-0.95, 0.95), st.floats(0.05, 1.5))
    def test_lognormal(self, correlation, sd):
        covariance = torch.tensor([[sd**2, correlation * sd], [correlation * sd, 1.0]], dtype=torch.float64)
        mean, cov = pushforward_moments(resolve("positive", 2), self.mean, covariance)
        expected = torch.exp(self.mean + 0.5 * covariance.diagonal())
        torch.testing.assert_close(mean, expected, rtol=1e-13, atol=0.0)
        torch.testing.assert_close(cov, expected[:, None] * expected * torch.expm1(covariance), rtol=1e-12, atol=0.0)

    @pytest.mark.parametrize("names", [(None, "unit_interval"), ("positive", "unit_interval"), ("unit_interval",) * 2])
    @pytest.mark.parametrize("sd", [0.3, 1.0, 3.0])
    def test_logistic_by_quadrature(self, names, sd):
        covariance = torch.tensor([[0.8, 0.6 * sd], [0.6 * sd, sd**2]], dtype=torch.float64)
        maps = {None: lambda a: a, "positive": torch.exp, "unit_interval": torch.sigmoid}
        first, second = (maps[name] for name in names)
        mean, cov = pushforward_moments(resolve(list(names), 2), self.mean, covariance)

        def expect(h):
            return bivariate_expectation(h, self.mean, covariance)

        means = [expect(lambda a, _: first(a)), expect(lambda _, b: second(b))]
        cross = expect(lambda a, b: first(a) * second(b)) - means[0] * means[1]
        variance = expect(lambda _, b: second(b) ** 2) - means[1] ** 2
        assert mean.tolist() == pytest.approx(means, rel=1e-9)
        assert float(cov[0, 1]) == pytest.approx(cross, abs=2e-9)
        assert float(cov[1, 1]) == pytest.approx(variance, abs=2e-9)

    def test_ordered_is_the_cumulative_sum_of_lognormals(self):
        covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
        mean, cov = pushforward_moments(resolve("ordered", 2), self.mean, covariance)
        step = math.exp(-0.2 + 0.15)
        assert mean.tolist() == pytest.approx([0.4, 0.4 + step])
        cross = 0.5 + 0.2 * step
        assert cov[0].tolist() == pytest.approx([0.5, cross])
        assert float(cov[1, 1]) == pytest.approx(0.5 + 2 * 0.2 * step + step**2 * math.expm1(0.3))

    def test_of_a_users_transform_by_fixed_nodes(self):
        covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
        mean, cov = pushforward_moments(Affine(), self.mean, covariance)
        torch.testing.assert_close(mean, Affine().forward(self.mean), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(cov, Affine.matrix @ covariance @ Affine.matrix.mT, rtol=1e-3, atol=1e-3)
        again = pushforward_moments(Affine(), self.mean, covariance)
        assert torch.equal(mean, again[0])


class TestResolve:
    def test_none_and_lists_of_none_leave_the_coordinates(self):
        assert resolve(None, 3) is None
        assert resolve([None, None], 2) is None

    def test_an_object_is_taken_as_it_is(self):
        transform = Affine()
        assert isinstance(transform, Transform)
        assert resolve(transform, 2) is transform

    def test_unknown_name(self):
        with pytest.raises(OptionError, match="'positive'"):
            resolve("positve", 2)
        with pytest.raises(OptionError, match="expected one of"):
            resolve([None, "log"], 2)

    def test_wrong_length(self):
        with pytest.raises(InputError, match="each of the 3 coordinates, got 2"):
            resolve([None, "positive"], 3)

    def test_neither_name_nor_transform(self):
        with pytest.raises(InputTypeError, match="forward, inverse and log_jacobian"):
            resolve(3.0, 2)


class TestCheck:
    point = torch.tensor([0.3, -0.7], dtype=torch.float64)

    def test_a_correct_transform_passes(self):
        check_at(Affine(), self.point)

    def test_wrong_jacobian(self):
        with pytest.raises(InputError, match=r"log\|det ∂forward\(u\)/∂u\| = 1.79"):
            check_at(WrongJacobian(), self.point)

    def test_wrong_inverse(self):
        with pytest.raises(InputError, match=r"inverse\(forward\(u\)\) = u"):
            check_at(WrongInverse(), self.point)

    def test_unconstrain_checks_the_range_and_names_the_coordinate(self):
        with pytest.raises(InputError, match="got -2 in coordinate 1"):
            unconstrain(resolve("positive", 2), torch.tensor([1.0, -2.0], dtype=torch.float64))
        with pytest.raises(InputError, match="coordinate 1"):
            unconstrain(resolve("ordered", 2), torch.tensor([1.0, 1.0], dtype=torch.float64))
