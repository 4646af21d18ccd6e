"""KL: the closed form against the numerical one, both against mpmath, and the two directions."""

import math

import mpmath
import pytest
import torch

from bayescope import density
from bayescope.errors import ConvergenceError, UnsupportedError
from bayescope.posterior import GaussianPosterior, Record
from bayescope.precision import DensePrecision
from bayescope.transforms import resolve
from tests.density.targets import CORRELATED, gamma_poisson, two_gaussians, vector


def posterior(mean, covariance, transform=None):
    precision = DensePrecision.from_covariance(torch.tensor(covariance, dtype=torch.float64))
    return GaussianPosterior(vector(*mean), precision, Record("test"), transform=resolve(transform, len(mean)))


def unnormalised(gaussian):
    """The Gaussian's log density in torch alone, times e⁷."""
    matrix = gaussian.precision.to_dense()
    return lambda x: 7.0 - 0.5 * (x - gaussian.location) @ matrix @ (x - gaussian.location)


P1, Q1 = posterior([0.3], [[0.5]]), posterior([-0.4], [[2.0]])
P2 = posterior([0.3, -1.0], [[0.5, 0.2], [0.2, 1.0]])
Q2 = posterior([0.0, 0.5], [[1.0, -0.3], [-0.3, 0.7]])


class TestGaussians:
    def test_one_dimension(self):
        expected = 0.5 * (0.25 + 0.7**2 / 2 - 1 + math.log(4))
        assert float(density.kl(P1, Q1)) == pytest.approx(expected)

    @pytest.mark.parametrize(("p", "q"), [(P1, Q1), (Q1, P1), (P2, Q2), (Q2, P2)])
    def test_numerically_the_same(self, p, q):
        """A bare function has no closed form: the other side, as a function, is integrated and normalised."""
        closed = float(density.kl(p, q))
        assert float(density.kl(p, unnormalised(q))) == pytest.approx(closed, abs=1e-7)
        assert float(density.kl(unnormalised(p), q)) == pytest.approx(closed, abs=1e-7)

    def test_invariant_under_a_common_transform(self):
        p, q = posterior([0.3], [[0.5]], "positive"), posterior([-0.4], [[2.0]], "positive")
        assert float(density.kl(p, q)) == pytest.approx(float(density.kl(P1, Q1)))
        assert float(density.kl(p, q.log_prob)) == pytest.approx(float(density.kl(P1, Q1)), abs=1e-6)

    def test_of_itself_is_zero_and_otherwise_positive(self):
        assert float(density.kl(P2, P2)) == pytest.approx(0.0, abs=1e-12)
        assert float(density.kl(P2, Q2)) > 0

    def test_any_dimension(self):
        p = density.laplace(CORRELATED.log_density, [0.0] * 3)
        q = density.variational(CORRELATED.log_density, 3, family="mean_field")
        assert float(density.kl(q, p)) == pytest.approx(CORRELATED.log_z - float(q.elbo), abs=1e-7)


class TestNumerical:
    def test_between_a_gaussian_and_a_gamma(self):
        """KL(q‖p) for q lognormal and p Gamma(3, 1), against adaptive quadrature."""
        target = gamma_poisson(total=1.0, rows=0)
        q = density.laplace(target.log_density, [1.0], transform="positive")
        m, s = float(q.location), float(q.precision.to_dense()) ** -0.5
        lognormal = lambda u: mpmath.npdf(u, m, s)  # noqa: E731
        ratio = lambda u: mpmath.log(mpmath.npdf(u, m, s)) - (3 * u - mpmath.exp(u) - target.log_z)  # noqa: E731
        expected = mpmath.quad(lambda u: lognormal(u) * ratio(u), [m + k * s for k in range(-12, 13, 4)])
        assert float(density.kl(q, target.log_density)) == pytest.approx(float(expected), abs=1e-7)

    def test_between_different_transforms(self):
        p, q = posterior([0.3], [[0.02]], "positive"), posterior([1.4], [[0.1]])
        x_mean, x_square = math.exp(0.31), math.exp(0.6 + 2 * 0.02)
        entropy = 0.5 * math.log(2 * math.pi * math.e * 0.02) + 0.3
        expected = -entropy + 0.5 * math.log(2 * math.pi * 0.1) + (x_square - 2 * 1.4 * x_mean + 1.4**2) / 0.2
        assert float(density.kl(p, q)) == pytest.approx(expected, abs=1e-7)

    def test_mass_where_the_other_has_none_is_infinite(self):
        assert float(density.kl(posterior([0.3], [[1.0]]), posterior([0.3], [[1.0]], "positive"))) == math.inf

    @pytest.mark.parametrize("weights", [(0.3, 0.7), (0.5, 0.5)])
    def test_mode_seeking_and_mass_covering(self, weights):
        """KL(q‖p) prefers a q in one mode, KL(p‖q) one over both."""
        target = two_gaussians(weights=weights, separation=6.0)
        one = density.variational(target.log_density, 1, start=[5.0])
        both = posterior([float(target.mean)], target.covariance.tolist())
        assert float(density.kl(one, target.log_density)) < float(density.kl(both, target.log_density))
        assert float(density.kl(target.log_density, both)) < float(density.kl(target.log_density, one))
        assert float(density.kl(one, target.log_density)) == pytest.approx(-math.log(weights[1]), abs=1e-6)

    def test_mixtures(self):
        target = two_gaussians(weights=(0.3, 0.7), separation=6.0)
        q = density.laplace(target.log_density, [[-6.0], [6.0]], modes=2)
        assert float(density.kl(q, target.log_density)) == pytest.approx(0.0, abs=1e-6)

    def test_in_one_thread(self):
        """Threads inside the sums wait for each other; the caller's setting comes back."""
        seen = []

        def watched(x):
            seen.append(torch.get_num_threads())
            return unnormalised(Q1)(x)

        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            density.kl(P1, watched)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert set(seen) == {1}


class TestRefusals:
    def test_more_than_two_dimensions(self):
        p = density.laplace(CORRELATED.log_density, [0.0] * 3)
        with pytest.raises(UnsupportedError, match="one or two dimensions, got 3"):
            density.kl(p, CORRELATED.log_density)

    def test_two_functions(self):
        with pytest.raises(UnsupportedError, match="at least one posterior"):
            density.kl(P1.log_prob, Q1.log_prob)

    def test_draws(self):
        with pytest.raises(UnsupportedError, match="Gaussian or mixture"):
            density.kl(density.metropolis(P1.log_prob, [0.0], generator=0), P1)

    def test_an_improper_function(self):
        with pytest.raises(ConvergenceError, match="cannot be normalised"):
            density.kl(P1, lambda x: 0.0 * x.sum())
