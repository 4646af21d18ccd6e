"""Laplace: exact where it is exact, its error's rate where it is not, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from bayescope import density
from bayescope.errors import (
    BayescopeError,
    ConvergenceError,
    ConvergenceWarning,
    InputError,
    InputTypeError,
    NotPositiveDefiniteError,
    OptionError,
)
from bayescope.log_density import CallableDensity
from bayescope.posterior import GaussianPosterior, MixturePosterior
from tests.density.targets import CORRELATED, gamma_poisson, two_gaussians
from tests.reference import beta_bernoulli_evidence, gamma_poisson_evidence

SIZES = [2**k for k in range(5, 13)]


def slope(errors):
    """The exponent of a power law in N, fitted to the larger sizes."""
    return float(np.polyfit(np.log(SIZES[3:]), np.log(np.abs(errors[3:])), 1)[0])


class TestGaussianTarget:
    """A Gaussian log density is its own Laplace approximation."""

    @pytest.mark.parametrize("hessian", ["autograd", "finite_difference"])
    def test_everything_is_exact(self, hessian):
        tolerance = 1e-12 if hessian == "autograd" else 1e-7
        q = density.laplace(CORRELATED.log_density, [3.0, 3.0, -3.0], hessian=hessian)
        assert isinstance(q, GaussianPosterior)
        torch.testing.assert_close(q.mean, CORRELATED.mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(q.covariance, CORRELATED.covariance, rtol=tolerance, atol=tolerance)
        assert float(q.log_evidence()) == pytest.approx(CORRELATED.log_z, abs=tolerance)

    def test_a_function_that_is_not_torch(self):
        def in_numpy(x):
            return float(-0.5 * np.sum((x.numpy() - 2.0) ** 2) / 9.0)

        q = density.laplace(in_numpy, [0.0, 0.0], hessian="finite_difference")
        assert q.mean.tolist() == pytest.approx([2.0, 2.0])
        assert float(q.log_evidence()) == pytest.approx(math.log(2 * math.pi * 9.0), abs=1e-7)

    @pytest.mark.parametrize("unit", [1e-8, 1e8])
    def test_units_do_not_matter(self, unit):
        q = density.laplace(lambda x: -0.5 * ((x / unit - 1.0) ** 2).sum(), [0.0, 3 * unit])
        assert (q.mean / unit).tolist() == pytest.approx([1.0, 1.0])
        assert float(q.log_evidence()) == pytest.approx(math.log(2 * math.pi * unit**2))

    @pytest.mark.parametrize("sd", [1.0, 1e8])
    def test_a_mode_far_from_the_start(self, sd):
        q = density.laplace(lambda x: -0.5 * ((x - 3e8) / sd).square().sum(), [0.3])
        assert q.mean.tolist() == pytest.approx([3e8])
        assert float(q.covariance) == pytest.approx(sd**2)

    def test_the_best_of_several_starts(self):
        bimodal = two_gaussians(weights=(0.2, 0.8), separation=8.0)
        q = density.laplace(bimodal.log_density, [[-9.0], [7.0]])
        assert float(q.mean) == pytest.approx(8.0, abs=1e-6)
        assert density.laplace(bimodal.log_density, [-9.0]).mean.tolist() == pytest.approx([-8.0], abs=1e-6)

    def test_records_how_it_was_made(self):
        q = density.laplace(CORRELATED.log_density, [3.0, 3.0, -3.0])
        assert "laplace" in q.summary()
        assert q.trace["log density"] == sorted(q.trace["log density"])


class TestRates:
    """The error of Laplace's log evidence and of its means falls as 1/N (Tierney & Kadane 1986)."""

    @pytest.mark.parametrize("transform", [None, "positive"])
    def test_gamma_poisson(self, transform):
        evidence, means = [], []
        for rows in SIZES:
            target = gamma_poisson(total=1.5 * rows, rows=rows)
            q = density.laplace(target.log_density, [1.0], transform=transform)
            evidence.append(float(q.log_evidence()) - gamma_poisson_evidence(2.0, 1.0, 1.5 * rows, rows))
            means.append(float(q.mean) - float(target.mean))
        assert slope(evidence) == pytest.approx(-1.0, abs=0.03)
        assert slope(means) == pytest.approx(-1.0, abs=0.03)

    def test_beta_bernoulli(self):
        evidence, means = [], []
        for rows in SIZES:
            ones = rows / 4
            q = density.laplace(
                lambda x, ones=ones, rows=rows: (ones + 1) * x.log().sum() + (rows - ones + 2) * torch.log1p(-x).sum(),
                [0.5],
                transform="unit_interval",
            )
            evidence.append(float(q.log_evidence()) - beta_bernoulli_evidence(2.0, 3.0, ones, rows))
            means.append(float(q.mean) - (ones + 2) / (rows + 5))
        assert slope(evidence) == pytest.approx(-1.0, abs=0.03)
        assert slope(means) == pytest.approx(-1.0, abs=0.03)


class TestTransform:
    def test_changes_the_answer(self):
        """Gamma(3, 1): in λ the mode is 2 and the curvature ½; in log λ they are log 3 and 3."""
        target = gamma_poisson(total=1.0, rows=0)
        plain, logged = (density.laplace(target.log_density, [1.0], transform=t) for t in (None, "positive"))
        assert (float(plain.mean), float(plain.covariance)) == pytest.approx((2.0, 2.0))
        assert float(logged.mean) == pytest.approx(3.0 * math.exp(1 / 6))
        assert float(logged.covariance) == pytest.approx(9.0 * math.exp(1 / 3) * math.expm1(1 / 3))
        assert float(plain.log_evidence()) == pytest.approx(2 * math.log(2) - 2 + 0.5 * math.log(4 * math.pi))
        assert float(logged.log_evidence()) == pytest.approx(3 * math.log(3) - 3 + 0.5 * math.log(2 * math.pi / 3))

    @pytest.mark.parametrize("kind", [lambda f: f, lambda f: CallableDensity(f, 2)])
    def test_of_a_lognormal_is_exact(self, kind):
        def lognormal(x):
            return (-0.5 * ((x.log() - 0.3) / 0.7).square() - x.log()).sum()

        q = density.laplace(kind(lognormal), [1.0, 2.0], transform="positive")
        assert float(q.log_evidence()) == pytest.approx(math.log(2 * math.pi * 0.49))
        assert q.mean.tolist() == pytest.approx([math.exp(0.3 + 0.245)] * 2)
        draws = q.sample(200_000, generator=0)
        torch.testing.assert_close(draws.mean(0), q.mean, rtol=0.01, atol=0.0)
        torch.testing.assert_close(torch.cov(draws.mT), q.covariance, rtol=0.05, atol=0.02)

    def test_a_users_own(self):
        class Halved:
            def forward(self, u):
                return (2.0 * u).exp()

            def inverse(self, x):
                return 0.5 * x.log()

            def log_jacobian(self, u):
                return (2.0 * u + math.log(2.0)).sum(-1)

        target = gamma_poisson(total=1.0, rows=0)
        named, own = (density.laplace(target.log_density, [1.0], transform=t) for t in ("positive", Halved()))
        assert float(own.log_evidence()) == pytest.approx(float(named.log_evidence()))
        assert float(own.mean) == pytest.approx(float(named.mean), rel=1e-3)

    def test_a_wrong_jacobian_is_refused(self):
        class Forgetful:
            def forward(self, u):
                return u.exp()

            def inverse(self, x):
                return x.log()

            def log_jacobian(self, u):
                return 0.0 * u.sum(-1)

        with pytest.raises(InputError, match="log_jacobian"):
            density.laplace(gamma_poisson(total=1.0, rows=0).log_density, [3.0], transform=Forgetful())


class TestModes:
    target = two_gaussians(weights=(0.3, 0.7), separation=8.0)

    @pytest.mark.parametrize("start", [[0.4], [[-7.0], [9.0]]], ids=["one start", "two starts"])
    def test_mixture_with_its_weights(self, start):
        q = density.laplace(self.target.log_density, start, modes=2)
        assert isinstance(q, MixturePosterior)
        assert q.weights.tolist() == pytest.approx([0.7, 0.3])
        assert float(q.log_evidence()) == pytest.approx(self.target.log_z)
        assert float(q.mean) == pytest.approx(float(self.target.mean))
        assert float(q.covariance) == pytest.approx(float(self.target.covariance))

    def test_the_weightiest_are_kept(self):
        def three(x):
            heights = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64).log()
            centres = torch.tensor([-10.0, 0.0, 10.0], dtype=torch.float64)
            return torch.logsumexp(heights - 0.5 * (x - centres).square(), 0)

        q = density.laplace(three, [[-10.0], [0.5], [9.0]], modes=2)
        assert q.weights.tolist() == pytest.approx([2 / 3, 1 / 3])

    def test_too_few_modes_are_said(self):
        with pytest.warns(ConvergenceWarning, match="found 2 of the 3"):
            q = density.laplace(self.target.log_density, [0.4], modes=3)
        assert len(q.components) == 2

    def test_repeats(self):
        first, second = (density.laplace(self.target.log_density, [0.4], modes=2, generator=7) for _ in range(2))
        assert torch.equal(first.log_weights, second.log_weights)


class TestRefusals:
    def test_a_saddle_gives_the_smallest_eigenvalue_and_its_direction(self):
        with pytest.raises(NotPositiveDefiniteError, match="saddle") as caught:
            density.laplace(lambda x: -(x[0] ** 2) + 1.5 * (x[1] + x[0]) ** 2 - x[1] ** 4, [0.0, 0.0])
        hessian = torch.tensor([[-1.0, -3.0], [-3.0, -3.0]], dtype=torch.float64)
        values, vectors = torch.linalg.eigh(hessian)
        assert caught.value.smallest_eigenvalue == pytest.approx(float(values[0]))
        assert abs(float(caught.value.direction @ vectors[:, 0])) == pytest.approx(1.0)
        assert "prior" not in str(caught.value)  # a density has none that could be raised
        assert "Start from another point" in str(caught.value)

    def test_a_saddle_with_a_quartic_direction_is_a_saddle(self):
        with pytest.raises(NotPositiveDefiniteError, match="saddle") as caught:
            density.laplace(lambda x: -(x[0] ** 4) + 0.5 * x[1] ** 2 - x[1] ** 4, [0.1, 0.0])
        assert caught.value.smallest_eigenvalue == pytest.approx(-1.0)

    def test_a_saddle_reached_along_its_ridge(self):
        with pytest.raises(NotPositiveDefiniteError, match="smallest eigenvalue -1"):
            density.laplace(lambda x: -0.5 * x[0] ** 2 + 0.5 * x[1] ** 2 - x[1] ** 4, [2.0, 0.0])

    @pytest.mark.parametrize("start", [[1, 2], np.array([1, 2]), torch.tensor([1, 2]), np.array([True, False])])
    def test_integer_starts(self, start):
        with pytest.raises(InputTypeError, match="continuous parameters"):
            density.laplace(CORRELATED.log_density, start)

    @pytest.mark.parametrize(
        "kinked",
        [
            lambda x: -x.abs().sum(),
            lambda x: -x.abs().sum() - 0.5 * x @ x,
            lambda x: -x[0].abs() - 0.5 * x @ x,
            lambda x: -(x[0] + x[1]).abs() - 0.5 * x @ x,
            lambda x: -torch.maximum(x[0], -3.0 * x[0]) - x[1] ** 2,
        ],
        ids=["laplace", "elastic", "one coordinate", "oblique", "skewed"],
    )
    @pytest.mark.parametrize("start", [[1.3, 2.1], [0.0, 0.0]], ids=["beside", "on it"])
    def test_kinks(self, kinked, start):
        with pytest.raises(BayescopeError, match=r"[kK]ink"):
            density.laplace(kinked, start)

    def test_a_kink_that_differences_smooth_over(self):
        with pytest.raises(BayescopeError, match=r"[kK]ink"):
            density.laplace(lambda x: -x.abs().sum() - 0.5 * x @ x, [1.3, 2.1], hessian="finite_difference")

    @pytest.mark.parametrize("hessian", ["autograd", "finite_difference"])
    def test_steps_have_no_curvature(self, hessian):
        with pytest.raises(NotPositiveDefiniteError, match=r"Hessian of zeros.*Discrete"):
            density.laplace(lambda x: -(torch.floor(x) ** 2).sum(), [1.5, 0.5], hessian=hessian)

    def test_a_hessian_that_is_not_finite(self):
        with pytest.raises(NotPositiveDefiniteError, match="finite Hessian"):
            density.laplace(lambda x: -x.abs().pow(1.5).sum(), [0.0, 0.0])

    def test_a_direction_that_the_density_does_not_determine(self):
        with pytest.raises(NotPositiveDefiniteError) as caught:
            density.laplace(lambda x: -0.5 * (x[0] - x[1]) ** 2, [1.0, 0.0])
        assert caught.value.smallest_eigenvalue == pytest.approx(0.0, abs=1e-12)
        assert caught.value.direction.abs().tolist() == pytest.approx([2**-0.5] * 2)

    @pytest.mark.parametrize("power", [4, 6, 8])
    @pytest.mark.parametrize("offset", [0.0, -1000.0])
    def test_a_smooth_maximum_without_curvature(self, power, offset):
        """It is no kink: −x⁴ falls by a sixteenth over half the distance, a kink by a half."""
        with pytest.raises(NotPositiveDefiniteError, match="Hessian that is zero") as caught:
            density.laplace(lambda x: offset - x[0] ** power - x[1] ** 2, [0.3, 0.4])
        assert caught.value.smallest_eigenvalue == pytest.approx(0.0, abs=1e-6)
        assert caught.value.direction.abs().tolist() == pytest.approx([1.0, 0.0])

    @pytest.mark.parametrize("slope", [1e-3, 1e-2])
    def test_a_faint_kink_on_a_curved_maximum(self, slope):
        with pytest.raises(InputError, match="kink"):
            density.laplace(lambda x: -slope * x.abs().sum() - 0.5 * x @ x, [0.3])

    @pytest.mark.parametrize("rising", [lambda x: x.sum(), lambda x: x @ x, lambda x: x[0] - 0.5 * x[1] ** 2])
    def test_a_density_that_rises_for_ever(self, rising):
        with pytest.raises(BayescopeError, match=r"without bound|no Laplace"):
            density.laplace(rising, [1.0, 0.0])

    @pytest.mark.parametrize(
        ("rising", "transform", "hessian"),
        [
            (lambda x: x.sum(), None, "autograd"),
            (lambda x: x.sum(), None, "finite_difference"),
            (lambda x: x.exp().sum(), None, "autograd"),
            (lambda x: x.log().sum(), None, "autograd"),
            (lambda x: x.log().sum(), "positive", "autograd"),
            (lambda x: x.log().sum(), "positive", "finite_difference"),
            (lambda x: torch.log1p(x * x).sum(), None, "autograd"),
        ],
    )
    def test_a_rise_is_given_up_soon(self, rising, transform, hessian):
        calls = []

        def counted(x):
            calls.append(None)
            return rising(x)

        with pytest.raises(ConvergenceError, match="without bound"):
            density.laplace(counted, [0.3], transform=transform, hessian=hessian)
        assert len(calls) < 2000

    def test_separable_data_without_a_prior(self):
        with pytest.raises(BayescopeError, match=r"rise for ever|without bound"):
            density.laplace(lambda x: torch.nn.functional.logsigmoid(x).sum(), [0.0])

    def test_a_convergence_error_is_one(self):
        with pytest.raises(ConvergenceError):
            density.laplace(lambda x: x @ x, [1.0, 0.0])

    def test_starts_outside_the_support(self):
        with pytest.raises(InputError, match="expected a finite log density"):
            density.laplace(lambda x: (x.log() - x).sum(), [-1.0])
        with pytest.raises(InputError, match="got -1 in coordinate 0"):
            density.laplace(lambda x: (x.log() - x).sum(), [-1.0], transform="positive")

    def test_shapes_and_options(self):
        with pytest.raises(InputError, match="expected shape"):
            density.laplace(CORRELATED.log_density, 1.0)
        with pytest.raises(OptionError, match="finite_difference"):
            density.laplace(CORRELATED.log_density, [0.0] * 3, hessian="finite")
        with pytest.raises(InputError, match="modes"):
            density.laplace(CORRELATED.log_density, [0.0] * 3, modes=0)
        with pytest.raises(InputTypeError, match="a function"):
            density.laplace(3.0, [0.0])
