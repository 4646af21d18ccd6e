"""Variational inference: exact for Gaussians, optimal elsewhere, and always a bound."""

import math

import pytest
import torch

from bayescope import density
from bayescope.density import fresh_rules, standard_rule
from bayescope.errors import BayescopeError, ConvergenceError, InputError, OptionError
from bayescope.precision import DensePrecision, DiagonalPrecision
from tests.density.targets import CORRELATED, gamma_poisson, gaussian, two_gaussians, vector

WIDE = gaussian(
    vector(1.0, -2.0, 0.5, 0.0, 3.0),
    torch.diag(vector(1.0, 4.0, 0.25, 2.0, 1.0))
    + 0.5 * torch.outer(vector(1, -1, 0.5, 1, 0), vector(1, -1, 0.5, 1, 0)),
)


class TestGaussianTarget:
    """Product and quasi-Monte-Carlo nodes alike have the exact first two moments."""

    @pytest.mark.parametrize("target", [CORRELATED, WIDE], ids=["3 coordinates", "5 coordinates"])
    def test_full_is_exact(self, target):
        q = density.variational(target.log_density, target.mean.shape[0], family="full")
        torch.testing.assert_close(q.mean, target.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(q.covariance, target.covariance, rtol=1e-7, atol=1e-7)
        assert float(q.elbo) == pytest.approx(target.log_z, abs=1e-9)

    @pytest.mark.parametrize("target", [CORRELATED, WIDE], ids=["3 coordinates", "5 coordinates"])
    def test_mean_field_has_the_conditional_variances(self, target):
        """The best diagonal q has variance 1/A_ii and KL ½ (Σ log A_ii − log∣A∣) (Bishop 2006, eq. 10.13)."""
        precision = torch.linalg.inv(target.covariance)
        q = density.variational(target.log_density, target.mean.shape[0], family="mean_field")
        assert isinstance(q.precision, DiagonalPrecision)
        torch.testing.assert_close(q.mean, target.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(q.covariance.diagonal(), 1.0 / precision.diagonal(), rtol=1e-7, atol=0.0)
        gap = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
        assert float(q.elbo) == pytest.approx(target.log_z - float(gap), abs=1e-9)

    def test_low_rank_of_sufficient_rank_is_exact(self):
        """A precision of diagonal minus rank one has a covariance of diagonal plus rank one."""
        direction = vector(1.0, -1.0, 0.5, 1.0, 2.0)
        covariance = torch.diag(vector(1.0, 0.5, 2.0, 1.0, 0.1)) + torch.outer(direction, direction)
        target = gaussian(vector(0.0, 1.0, 2.0, 3.0, 4.0), torch.linalg.inv(covariance))
        q = density.variational(target.log_density, 5, family="low_rank", rank=1)
        assert isinstance(q.precision, DensePrecision)
        torch.testing.assert_close(q.covariance, covariance, rtol=1e-6, atol=1e-6)
        assert float(q.elbo) == pytest.approx(target.log_z, abs=1e-8)

    def test_more_freedom_is_a_tighter_bound(self):
        bounds = [
            float(density.variational(WIDE.log_density, 5, family=family, rank=rank).elbo)
            for family, rank in (("mean_field", None), ("low_rank", 1), ("full", None))
        ]
        assert bounds == sorted(bounds)
        assert bounds[0] < bounds[2] - 0.01


class TestOptimum:
    def test_gamma_in_log_coordinates(self):
        """For Gamma(a, 1) the optimum in log λ is N(log a − 1/(2a), 1/a), whose ELBO is in closed form."""
        shape = 3.0
        q = density.variational(gamma_poisson(total=1.0, rows=0).log_density, 1, transform="positive")
        assert float(q.location) == pytest.approx(math.log(shape) - 0.5 / shape)
        assert float(q.precision.to_dense()) == pytest.approx(shape)
        assert float(q.mean) == pytest.approx(shape)
        entropy = 0.5 * (1 + math.log(2 * math.pi / shape))
        assert float(q.elbo) == pytest.approx(shape * math.log(shape) - 0.5 - shape + entropy)

    def test_the_bound_is_its_three_terms(self):
        q = density.variational(gamma_poisson(total=1.0, rows=0).log_density, 1, transform="positive")
        assert set(q.elbo_terms) == {"expected log density", "expected log jacobian", "entropy"}
        assert float(sum(q.elbo_terms.values())) == pytest.approx(float(q.elbo))
        assert float(q.elbo_terms["expected log jacobian"]) == pytest.approx(float(q.location))

    @pytest.mark.parametrize("family", ["full", "mean_field", "low_rank"])
    @pytest.mark.parametrize("total", [0.5, 3.0, 20.0])
    def test_is_a_lower_bound_and_its_gap_the_divergence(self, family, total):
        target = gamma_poisson(total=total, rows=4)
        q = density.variational(target.log_density, 1, family=family, transform="positive")
        assert float(q.elbo) <= target.log_z
        assert target.log_z - float(q.elbo) == pytest.approx(float(density.kl(q, target.log_density)), abs=3e-4)

    def test_no_neighbour_is_better(self):
        """The stationarity conditions E[∇f] = 0 and E[∇²f] = −Σ⁻¹ at fresh nodes (Opper & Archambeau 2009, eq. 6–7)."""

        def log_density(x):
            return -x.exp().sum() + 2 * x.sum() - 0.3 * (x[0] - x[1]) ** 2 - 0.1 * x[2:].pow(4).sum()

        q = density.variational(log_density, 4)
        draws = q.sample(100_000, generator=3)
        gradients = torch.func.vmap(torch.func.grad(log_density))(draws)
        assert (gradients.mean(0).abs() < 5 * gradients.std(0) / 100_000**0.5 + 0.01).all()
        some = draws[:2000]
        hessians = torch.stack([torch.autograd.functional.hessian(log_density, draw) for draw in some]).mean(0)
        torch.testing.assert_close(-hessians, q.precision.to_dense(), rtol=0.1, atol=0.05)

    def test_seeks_one_mode(self):
        target = two_gaussians(weights=(0.3, 0.7), separation=8.0)
        q = density.variational(target.log_density, 1, start=[7.0])
        assert float(q.mean) == pytest.approx(8.0)
        assert float(q.elbo) == pytest.approx(math.log(0.7))

    def test_a_density_without_a_mode(self):
        """A flat top: Laplace has no curvature to work with, the best Gaussian exists."""

        def box(x):
            return -(x.pow(8)).sum()

        q = density.variational(box, 2, start=[0.0, 0.0])
        assert float(q.elbo) < 2 * math.log(2 * math.gamma(9 / 8))
        assert q.mean.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


class TestReproducible:
    def test_the_same_by_default_and_by_seed(self):
        def run(generator):
            return density.variational(
                lambda x: -x.exp().sum() + x.sum(), 5, family="mean_field", generator=generator
            ).location

        assert torch.equal(run(None), run(None))
        assert torch.equal(run(3), run(3))
        assert not torch.equal(run(3), run(4))

    def test_the_reported_error_covers_the_scatter_over_nodes(self):
        bounds, errors = [], []
        for seed in range(6):
            q = density.variational(lambda x: -x.exp().sum() + x.sum(), 4, family="mean_field", generator=seed)
            bounds.append(float(q.elbo))
            errors.append(float(q.record.notes["standard error of the bound"]))
        scatter = float(torch.tensor(bounds).std())
        assert scatter < 5 * max(errors)
        assert max(bounds) - min(bounds) < 0.02


@pytest.mark.parametrize(("dim", "count"), [(1, 1024), (2, 1024), (3, 1024), (4, 1024), (40, 1024)])
def test_rules_have_the_moments_of_a_standard_normal(dim, count):
    for rule in [standard_rule(dim, count, 0), *fresh_rules(dim, count, 0)[:2]]:
        assert float(rule.weights.sum()) == pytest.approx(1.0)
        torch.testing.assert_close(rule.weights @ rule.nodes, torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-12)
        second = rule.nodes.mT @ (rule.weights[:, None] * rule.nodes)
        torch.testing.assert_close(second, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-11)


class TestRefusals:
    def test_options(self):
        with pytest.raises(OptionError, match="mean_field"):
            density.variational(CORRELATED.log_density, 3, family="meanfield")
        with pytest.raises(InputError, match="family='low_rank'"):
            density.variational(CORRELATED.log_density, 3, rank=2)
        with pytest.raises(InputError, match="at most the 3 coordinates"):
            density.variational(CORRELATED.log_density, 3, family="low_rank", rank=4)
        with pytest.raises(InputError, match="power of two"):
            density.variational(CORRELATED.log_density, 3, nodes=1000)

    @pytest.mark.parametrize("improper", [lambda x: x @ x, lambda x: 0.0 * x.sum(), lambda x: x.sum()])
    def test_improper_densities(self, improper):
        with pytest.raises(ConvergenceError, match="without bound"):
            density.variational(improper, 2)

    def test_a_start_outside_the_support(self):
        with pytest.raises(InputError, match="finite log density"):
            density.variational(lambda x: (x.log() - x).sum(), 1, start=[-1.0])

    def test_a_support_with_an_edge(self):
        """A Gaussian has mass beyond any edge, where the log density is −∞: the bound is −∞ without a transform."""
        with pytest.raises(BayescopeError):
            density.variational(lambda x: torch.where(x > 0, -x, -math.inf).sum(), 1, start=[0.01])


def growth(rats, seed):
    """A normal model of growth with five weighings a rat, not centred, as BUGS has one of thirty, with made-up data.

    Returns:
        The log density over (μ_a, μ_b, log σ_a, log σ_b, log σ_y, z_a, z_b), and the least-squares (μ_a, μ_b).
    """
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    days = torch.tensor([8.0, 15.0, 22.0, 29.0, 36.0], dtype=torch.float64) - 22.0
    y = 242 + 14 * normal(rats, 1) + (6.2 + 0.5 * normal(rats, 1)) * days + 6 * normal(rats, 5)

    def log_density(u):
        sds, z = u[2:5].exp(), u[5:].reshape(2, rats)
        curves = u[0] + sds[0] * z[0], u[1] + sds[1] * z[1]
        residuals = (y - curves[0][:, None] - curves[1][:, None] * days) / sds[2]
        prior = (u[:2] / 1000).square().sum() + (sds / 100).square().sum() + z.square().sum()
        return -0.5 * (residuals.square().sum() + prior) - y.numel() * u[4] + u[2:5].sum()

    return log_density, torch.stack([y.mean(), (y * days).sum() / (rats * days.square().sum())])


@pytest.mark.parametrize("family", ["full", "mean_field"])
def test_a_hierarchy_that_is_not_centred_is_integrable(family):
    """Its joint density has no mode, and steps overflow on the way: they are shortened, and no verdict is passed."""
    log_density, means = growth(6, 0)
    q = density.variational(log_density, 17, family=family)
    sds = torch.tensor([14.0, 0.5], dtype=torch.float64) / 6**0.5
    assert ((q.mean[:2] - means).abs() < 0.5 * sds).all()
    assert (q.mean[2:5] - torch.tensor([14.0, 0.5, 6.0], dtype=torch.float64).log()).abs().max() < 0.8
