"""Intervals, simplexes and correlation matrices: inverse, Jacobian, normalisation, moments, and inference on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Dirichlet, LKJCholesky

import bayescope as bs
from bayescope.density import between, convergence, diagnosed
from bayescope.errors import InputError, OptionError
from bayescope.posterior import Record
from bayescope.transforms import check_at, constrained_dim, pushforward_moments, resolve, resolve_by_name, unconstrain
from tests.density.targets import vector

# A transform, and how many numbers x and u have.
CASES = {
    "interval": (resolve(between(-1.5, 4.0), 3), 3, 3),
    "above": (resolve(between(2.0), 2), 2, 2),
    "below": (resolve(between(high=-3.0), 2), 2, 2),
    "two parts": (resolve("simplex", 2), 2, 1),
    "simplex": (resolve("simplex", 5), 5, 4),
    "factor": (resolve("cholesky_correlation", 16), 16, 6),
    "correlation": (resolve("correlation", 9), 9, 3),
    "list": (resolve(["simplex", "simplex", "simplex", None, between(0.0, 2.0), "ordered", "ordered"], 7), 7, 6),
    "named": (
        resolve_by_name(
            {"p": "simplex", "R": "correlation", "age": [None, "positive"]},
            {"p": (2, 3), "R": (2, 2), "age": (2,), "b": ()},
        ),
        13,
        8,
    ),
}
FEW = {"draws": 250, "tune": 150, "chains": 1, "generator": 0, "progress": False}
ALPHA = vector(2.0, 3.0, 4.5)


def draws(dim, n=5, *, sd=1.0, seed=0):
    return sd * torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dirichlet(x):
    return ((ALPHA - 1.0) * x.log()).sum()


LOG_Z = float(torch.lgamma(ALPHA).sum() - torch.lgamma(ALPHA.sum()))


def on_grid(transform, log_density, dim, *, half=12.0, nodes=81):
    """∫ exp(log p(x(u))) ∣∂x/∂u∣ du by a trapezoidal sum over a cube."""
    axis = torch.linspace(-half, half, nodes, dtype=torch.float64)
    u = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    values = log_density(transform.forward(u)) + transform.log_jacobian(u)
    return float(values.exp().sum() * (axis[1] - axis[0]) ** dim)


@pytest.mark.parametrize(("transform", "dim", "free"), CASES.values(), ids=CASES.keys())
class TestMaps:
    def test_inverse_undoes_forward(self, transform, dim, free):
        u = draws(free)
        x = transform.forward(u)
        assert x.shape == (5, dim)
        assert constrained_dim(transform, free) == dim
        torch.testing.assert_close(transform.inverse(x), u, rtol=1e-9, atol=1e-9)

    def test_log_jacobian_is_that_of_autograd(self, transform, dim, free):
        assert len(transform.free) == free
        for u in draws(free, seed=1):
            jacobian = torch.autograd.functional.jacobian(transform.forward, u)[transform.free]
            torch.testing.assert_close(transform.log_jacobian(u), torch.linalg.slogdet(jacobian).logabsdet)

    def test_passes_its_own_check_and_broadcasts(self, transform, dim, free):
        u = draws(free, 6).reshape(2, 3, free)
        check_at(transform, u[0, 0])
        assert transform.forward(u).shape == (2, 3, dim)
        assert transform.log_jacobian(u).shape == (2, 3)
        torch.testing.assert_close(torch.func.vmap(transform.forward)(u[1]), transform.forward(u)[1])

    def test_only_fixed_coordinates_never_move(self, transform, dim, free):
        spread = transform.forward(draws(free, 50)).std(0)
        assert torch.equal(spread < 1e-12, transform.fixed)

    def test_a_file_has_it(self, transform, dim, free, tmp_path):
        gaussian = bs.density.laplace(lambda u: -0.5 * (u @ u), [0.1] * free)
        q = type(gaussian)(gaussian.location, gaussian.precision, gaussian.record, transform=transform)
        back = bs.load(q.save(tmp_path / "q.bayes"))
        assert back.transform == transform
        assert torch.equal(back.sample(3, generator=0), q.sample(3, generator=0))
        assert back.sizes == (dim,)


class TestRanges:
    def test_simplex(self):
        x = resolve("simplex", 4).forward(draws(3, 100, sd=5.0))
        assert (x > 0).all()
        torch.testing.assert_close(x.sum(-1), torch.ones(100, dtype=torch.float64))

    def test_parts_are_alike(self):
        """A permutation of the parts is a rotation of u: the norm of u stays."""
        transform = resolve("simplex", 4)
        x = transform.forward(draws(3, 20))
        for order in ([1, 2, 3, 0], [3, 1, 0, 2]):
            torch.testing.assert_close(transform.inverse(x[:, order]).norm(dim=-1), transform.inverse(x).norm(dim=-1))

    def test_correlations(self):
        x = resolve("correlation", 9).forward(draws(3, 100, sd=2.0)).reshape(100, 3, 3)
        assert (torch.linalg.eigvalsh(x) > 0).all()
        torch.testing.assert_close(x.diagonal(dim1=1, dim2=2), torch.ones(100, 3, dtype=torch.float64))
        factor = resolve("cholesky_correlation", 9).forward(draws(3, 100, sd=2.0)).reshape(100, 3, 3)
        torch.testing.assert_close(factor @ factor.mT, x)
        assert torch.equal(factor, factor.tril())

    def test_far_out_nothing_overflows(self):
        u = vector(-400.0, 400.0, 3.0)
        assert torch.isfinite(resolve("simplex", 4).log_jacobian(u))
        assert torch.isfinite(resolve("cholesky_correlation", 9).log_jacobian(u))


class TestNormalisation:
    def test_dirichlet(self):
        transform = resolve("simplex", 3)
        assert on_grid(transform, lambda x: Dirichlet(ALPHA, validate_args=False).log_prob(x), 2) == pytest.approx(1.0)

    def test_beta_on_an_interval(self):
        """x = −1 + 5 b with b ~ Beta(3, 4): B(3, 4) 5⁶ times the density's constant."""

        def log_density(x):
            return (2.0 * (x + 1.0).log() + 3.0 * (4.0 - x).log()).sum(-1)

        expected = math.exp(math.lgamma(3) + math.lgamma(4) - math.lgamma(7) + 6 * math.log(5.0))
        assert on_grid(resolve(between(-1.0, 4.0), 1), log_density, 1, half=30.0, nodes=4001) == pytest.approx(expected)

    @pytest.mark.parametrize("concentration", [1.5, 3.0])
    def test_lkj(self, concentration):
        target = LKJCholesky(3, torch.tensor(concentration, dtype=torch.float64), validate_args=False)
        total = on_grid(
            resolve("cholesky_correlation", 9), lambda x: target.log_prob(x.reshape(-1, 3, 3)), 3, half=10.0, nodes=61
        )
        assert total == pytest.approx(1.0, rel=1e-6)

    def test_the_volume_of_all_correlation_matrices(self):
        """2 for K = 2 and π²/2 for K = 3 (Joe 2006)."""

        def one(x):
            return torch.zeros(len(x), dtype=torch.float64)

        assert on_grid(resolve("correlation", 4), one, 1, nodes=801) == pytest.approx(2.0, rel=1e-6)
        assert on_grid(resolve("correlation", 9), one, 3, nodes=61) == pytest.approx(math.pi**2 / 2, rel=1e-4)


class TestMoments:
    mean, covariance = vector(0.4, -0.2), torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)

    def test_an_interval_stretches_the_unit_interval(self):
        unit_mean, unit = pushforward_moments(resolve("unit_interval", 2), self.mean, self.covariance)
        mean, covariance = pushforward_moments(resolve(between(-1.0, 4.0), 2), self.mean, self.covariance)
        torch.testing.assert_close(mean, -1.0 + 5.0 * unit_mean)
        torch.testing.assert_close(covariance, 25.0 * unit)

    def test_half_lines_shift_and_turn_lognormals(self):
        log_mean, log = pushforward_moments(resolve("positive", 2), self.mean, self.covariance)
        for transform, sign in ((between(2.0), 1.0), (between(high=2.0), -1.0)):
            mean, covariance = pushforward_moments(resolve(transform, 2), self.mean, self.covariance)
            torch.testing.assert_close(mean, 2.0 + sign * log_mean)
            torch.testing.assert_close(covariance, log)

    def test_two_parts_are_a_logistic(self):
        """x_1 = 1/(1 + exp(−√2 u))."""
        mean, covariance = pushforward_moments(resolve("simplex", 2), vector(0.4), vector(0.5)[:, None])
        expected = pushforward_moments(resolve("unit_interval", 1), vector(0.4 * 2**0.5), vector(1.0)[:, None])
        assert mean.tolist() == pytest.approx([float(expected[0]), 1.0 - float(expected[0])], abs=2e-5)
        v = float(expected[1])
        torch.testing.assert_close(covariance, vector(v, -v, -v, v).reshape(2, 2), rtol=1e-3, atol=0.0)


class TestInference:
    def test_laplace_on_a_dirichlet(self):
        q = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex")
        # In these coordinates the mode is the mean of the Dirichlet: Σ α_k log x_k is largest at α/Σ α.
        torch.testing.assert_close(q.transform.forward(q.location), ALPHA / ALPHA.sum())
        assert float(q.log_evidence()) == pytest.approx(LOG_Z, abs=0.15)
        assert q.mean.shape == (3,)
        assert float(q.mean.sum()) == pytest.approx(1.0)
        assert q.covariance.sum(0).abs().max() < 1e-12
        torch.testing.assert_close(q.sd, q.covariance.diagonal().sqrt())
        checked = bs.density.importance(dirichlet, q, generator=0)
        assert float(checked.log_evidence) == pytest.approx(LOG_Z, abs=4 * float(checked.standard_error))

    def test_laplace_does_not_depend_on_the_order_of_the_parts(self):
        order = [2, 0, 1]

        def permuted(x):
            return dirichlet(x[torch.tensor(order).argsort()])

        q = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex")
        other = bs.density.laplace(permuted, [0.5, 0.2, 0.3], transform="simplex")
        assert float(other.log_evidence()) == pytest.approx(float(q.log_evidence()), abs=1e-9)
        torch.testing.assert_close(other.transform.forward(other.location), q.transform.forward(q.location)[order])

    def test_differences_find_the_same(self):
        q = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex")
        other = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex", hessian="finite_difference")
        assert float(other.log_evidence()) == pytest.approx(float(q.log_evidence()), abs=1e-6)

    def test_the_bound_misses_by_the_divergence(self):
        q = bs.density.variational(dirichlet, 3, transform="simplex")
        gap = LOG_Z - float(q.elbo)
        assert 0.0 < gap < 0.05
        assert float(bs.density.kl(q, dirichlet)) == pytest.approx(gap, abs=1e-4)
        torch.testing.assert_close(q.mean, Dirichlet(ALPHA).mean, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(q.sd, Dirichlet(ALPHA).stddev, rtol=0.05, atol=0.0)

    def test_densities_over_other_coordinates_have_no_divergence(self):
        q = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex")
        flat = bs.density.laplace(lambda x: -0.5 * x @ x, [0.2, 0.3, 0.5])
        for pair in ((q, flat), (flat, q)):
            with pytest.raises(InputError, match="over the same coordinates"):
                bs.density.kl(*pair)

    def test_coordinates_that_a_matrix_fixes_warn_of_nothing(self):
        q = diagnosed(draws(3, 4000).reshape(4, 1000, 3), Record("nuts"), transform=resolve("correlation", 9))
        assert torch.equal(q.r_hat.isnan(), torch.eye(3, dtype=torch.bool).flatten())
        assert float(q.record.notes["largest R-hat"]) < 1.05

    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    def test_nuts_on_a_dirichlet(self):
        q = bs.density.nuts(dirichlet, 3, transform="simplex", **FEW)
        error = q.sd / q.effective_draws.sqrt()
        assert ((q.mean - Dirichlet(ALPHA).mean).abs() < 5 * error).all()
        torch.testing.assert_close(q.sd, Dirichlet(ALPHA).stddev, rtol=0.3, atol=0.0)

    @pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
    def test_nuts_on_an_lkj(self):
        """A correlation r of a K × K matrix from LKJ(η) has mean 0 and variance 1/(2η + K − 1).

        The density of the factor is Π_k L_kk^(K − k + 2η − 2), here with η = 2.
        """

        def lkj(L):
            return (vector(3.0, 2.0) * L.diagonal()[1:].log()).sum()

        q = bs.density.nuts(lkj, {"L": (3, 3)}, transform={"L": "cholesky_correlation"}, **FEW)
        L = q.named(q.draws)["L"]
        r = (L @ L.mT)[..., *torch.tril_indices(3, 3, -1)]
        for values, truth in ((r, 0.0), (r.square(), 1 / 6)):
            error = values[0].std(0) / convergence(values)[1].sqrt()
            assert ((values[0].mean(0) - truth).abs() < 5 * error).all()
        assert float(r.square().mean()) == pytest.approx(1 / 6, rel=0.3)

    def test_several_modes(self):
        def two(x):
            first, second = (((a - 1.0) * x.log()).sum() for a in (vector(30.0, 5.0, 5.0), vector(5.0, 5.0, 30.0)))
            return torch.logaddexp(first, second)

        q = bs.density.laplace(two, [[0.7, 0.15, 0.15], [0.15, 0.15, 0.7]], modes=2, transform="simplex")
        assert q.weights.tolist() == pytest.approx([0.5, 0.5], abs=1e-3)
        torch.testing.assert_close(q.sample(50, generator=0).sum(-1), torch.ones(50, dtype=torch.float64))
        assert q.covariance.shape == (3, 3)


class TestMessages:
    @pytest.mark.parametrize(
        ("transform", "x", "message"),
        [
            (between(0.0, 2.0), [1.0, 2.5], "numbers between 0 and 2, got 2.5 in coordinate 1"),
            (between(high=0.0), [-1.0, 1.0], "numbers below 0, got 1 in coordinate 1"),
            ("simplex", [0.5, 0.6], "positive numbers whose sum is 1, got 0.5, 0.6 in coordinates 0 to 1"),
            ("simplex", [-0.5, 1.5], "positive numbers whose sum is 1"),
            (
                "cholesky_correlation",
                [1.0, 0.0, 0.6, 0.7],
                "rows of length 1, got 1, 0, 0.6, 0.7 in coordinates 0 to 3",
            ),
            ("cholesky_correlation", [1.0, 0.6, 0.0, 1.0], "lower triangular"),
            ("cholesky_correlation", [1.0, 0.0, 0.6, -0.8], "positive diagonal"),
            ("correlation", [1.0, 1.2, 1.2, 1.0], "positive definite"),
            ("correlation", [1.0, 0.2, 0.3, 1.0], "symmetric"),
            ("correlation", [2.0, 0.2, 0.2, 2.0], "diagonal of ones"),
        ],
    )
    def test_points_outside(self, transform, x, message):
        with pytest.raises(InputError, match=f"start: expected .*{message}"):
            unconstrain(resolve(transform, len(x)), torch.tensor(x, dtype=torch.float64))

    def test_numbers_in_float32_are_inside(self):
        x = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float32).double()
        assert torch.isfinite(unconstrain(resolve("simplex", 3), x)).all()

    def test_counts_that_make_no_matrix_or_simplex(self):
        with pytest.raises(InputError, match=r"K × K coordinates with K ≥ 2 for 'correlation', got 5"):
            resolve("correlation", 5)
        with pytest.raises(InputError, match="at least 2 coordinates"):
            resolve([None, "simplex"], 2)

    def test_bounds(self):
        with pytest.raises(InputError, match="lower or an upper bound"):
            between()
        with pytest.raises(InputError, match="below the upper one, got 2 and 1"):
            between(2.0, 1.0)
        with pytest.raises(InputError, match="finite"):
            between(0.0, np.inf)

    def test_a_density_outside_is_no_number(self):
        q = bs.density.laplace(dirichlet, [0.2, 0.3, 0.5], transform="simplex")
        assert q.log_prob([0.5, 0.5, 0.5]).isnan()

    def test_names_of_likelihoods_are_not_for_densities(self):
        with pytest.raises(OptionError, match="simplex"):
            resolve("between_1_and_2", 2)
