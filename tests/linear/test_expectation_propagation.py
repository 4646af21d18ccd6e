from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayescope.errors import ConvergenceError, InputError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Categorical, Likelihood
from bayescope.linear import LinearDensity, SiteFit, compile_density, expectation_propagation, fixed_point
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.cases import PLANAR_TABLES, PlanarTable
from tests.reference import Plane, binary_log_joint, integrate_plane, tilted_moments

LINKS = ("logit", "probit")
# A slow quadrature for each row, and one over the plane: tables of at most 80 rows.
TABLES = [name for name, table in PLANAR_TABLES.items() if table.labels.shape[0] <= 80]
EVERY = pytest.mark.parametrize("name", TABLES)
BOTH = pytest.mark.parametrize("link", LINKS)


def prior_of(table: PlanarTable) -> Prior:
    return Prior(DensePrecision(table.precision), table.mean)


def fit(link: str, table: PlanarTable, **options: object) -> GaussianPosterior:
    return expectation_propagation(density_of(link, table), **options)


def density_of(link: str, table: PlanarTable, weights: Tensor | None = None) -> LinearDensity:
    model = LinearModel(table.features.shape[1], bias=table.bias)
    return compile_density(model, Bernoulli(link), prior_of(table), table.features, table.labels, weights)


@cache
def truth(link: str, name: str) -> Plane:
    return integrate(link, PLANAR_TABLES[name])


def integrate(link: str, table: PlanarTable) -> Plane:
    log_joint = binary_log_joint(link, table.jacobian, table.labels, table.precision, table.mean)
    return integrate_plane(log_joint, torch.zeros(2, dtype=torch.float64))


def cavities(found: SiteFit, table: PlanarTable) -> tuple[Tensor, Tensor]:
    """Mean and variance of each activation under the prior and all sites but its own, from the sites alone."""
    jacobian = table.jacobian
    means, variances = [], []
    for n, row in enumerate(jacobian):
        others = torch.arange(jacobian.shape[0]) != n
        j, sites = jacobian[others], found.sites
        precision = table.precision + j.mT @ (sites.precision[others, None] * j)
        mean = torch.linalg.solve(precision, table.precision @ table.mean + j.mT @ sites.shift[others])
        means.append(row @ mean)
        variances.append(row @ torch.linalg.solve(precision, row))
    return torch.stack(means), torch.stack(variances)


@cache
def tilted(link: str, name: str) -> tuple[SiteFit, list[tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]]]:
    """The fixed point, and each row's cavity mean, cavity variance and tilted moments by quadrature."""
    table = PLANAR_TABLES[name]
    found = fixed_point(density_of(link, table))
    each = zip(table.labels, *cavities(found, table), strict=True)
    return found, [(mean, spread, tilted_moments(link, label, mean, spread)) for label, mean, spread in each]


@BOTH
@EVERY
def test_fixed_point_matches_the_tilted_moments_of_every_row(link: str, name: str) -> None:
    table = PLANAR_TABLES[name]
    found, rows = tilted(link, name)
    covariance = torch.linalg.inv(found.precision.to_dense())
    activation, variance = table.jacobian @ found.mean, (table.jacobian @ covariance * table.jacobian).sum(1)
    for n, (_, _, (_, tilted_mean, tilted_variance)) in enumerate(rows):
        assert abs(tilted_mean - activation[n]) < 1e-6 * variance[n].sqrt(), n
        assert abs(tilted_variance / variance[n] - 1.0) < 1e-6, n


@BOTH
@EVERY
def test_log_evidence_is_the_product_of_the_normalisers(link: str, name: str) -> None:
    """Z = ∫ p(θ) Π_n s̃_n(θ) dθ with scaled sites, each scaled so that its cavity gives Ẑ_n: from the definition."""
    table = PLANAR_TABLES[name]
    found, rows = tilted(link, name)
    j, tau, nu = table.jacobian, found.sites.precision, found.sites.shift
    log_scales = torch.zeros((), dtype=torch.float64)
    for n, (mean, spread, (log_normaliser, _, _)) in enumerate(rows):
        log_scales += log_normaliser - gaussian_log_integral(1.0 / spread, mean / spread, tau[n], nu[n])
    whole = gaussian_log_integral(table.precision, table.precision @ table.mean, j.mT @ (tau[:, None] * j), j.mT @ nu)
    assert_close(found.log_evidence, log_scales + whole, rtol=1e-8, atol=1e-7)


def gaussian_log_integral(precision: Tensor, linear: Tensor, more_precision: Tensor, more_linear: Tensor) -> Tensor:
    """log ∫ N(θ) exp(bᵀθ − ½ θᵀBθ) dθ for a Gaussian in natural parameters."""

    def log_volume(matrix: Tensor, vector: Tensor) -> Tensor:
        matrix, vector = torch.atleast_2d(matrix), torch.atleast_1d(vector)
        return 0.5 * (vector @ torch.linalg.solve(matrix, vector) - torch.logdet(matrix))

    return log_volume(precision + more_precision, linear + more_linear) - log_volume(precision, linear)


@BOTH
@pytest.mark.parametrize("name", [name for name in TABLES if PLANAR_TABLES[name].labels.shape[0] >= 60])
def test_tables_of_sixty_rows_and_more_are_close_to_the_truth(link: str, name: str) -> None:
    table, plane = PLANAR_TABLES[name], truth(link, name)
    q = fit(link, table)
    assert abs(q.log_evidence() - plane.log_evidence) < 0.02
    wide = 2.0 * table.features
    at = torch.cat([wide, torch.ones_like(wide)], 1) if table.bias else wide
    activation = plane.nodes @ at.mT
    exact = plane.expect(torch.special.ndtr(activation) if link == "probit" else torch.sigmoid(activation))
    assert (q.predict(wide).probs[:, 1] - exact).abs().max() < 0.005


@BOTH
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_row_is_exact(link: str, label: float) -> None:
    table = PlanarTable(
        torch.tensor([[1.3, -0.7]], dtype=torch.float64),
        torch.tensor([label], dtype=torch.float64),
        torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=torch.float64),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
    )
    plane, q = integrate(link, table), fit(link, table)
    assert_close(q.log_evidence(), plane.log_evidence, rtol=0, atol=1e-8)
    assert_close(q.mean, plane.mean, rtol=0, atol=1e-7)
    assert_close(q.covariance, plane.covariance, rtol=0, atol=1e-6)


@BOTH
@pytest.mark.parametrize("weight", [0.3, 0.95])
def test_one_row_of_less_than_weight_one_is_exact(link: str, weight: float) -> None:
    """It has one site, for the power of its likelihood."""
    x, precision = torch.tensor([[1.5]], dtype=torch.float64), torch.tensor([0.4], dtype=torch.float64)
    q = expectation_propagation(
        compile_density(LinearModel(1, bias=False), Bernoulli(link), Prior(precision), x, [0], [weight])
    )
    prior = (torch.zeros(1, dtype=torch.float64)[0], 1.5**2 / precision[0])
    log_normaliser, mean, variance = tilted_moments(link, torch.tensor(0.0), *prior, power=weight)
    assert_close(q.log_evidence(), log_normaliser, rtol=0, atol=1e-9)
    assert_close(1.5 * q.mean[0], mean, rtol=0, atol=1e-8)
    assert_close(1.5**2 * q.covariance[0, 0], variance, rtol=0, atol=1e-8)


def test_weights_of_zero_are_refused() -> None:
    table = PLANAR_TABLES[next(iter(PLANAR_TABLES))]
    with pytest.raises(InputError, match="weights"):
        expectation_propagation(density_of("logit", table, torch.zeros(table.features.shape[0])))


@BOTH
def test_log_evidence_changes_with_the_prior_as_its_derivative_says(link: str) -> None:
    """At the fixed point d log Z = E_q[d log p(θ)]: it holds only if log Z and the moments are both right."""
    table, step = PLANAR_TABLES["60 rows"], 1e-4
    q = fit(link, table)

    def log_z(precision: Tensor, mean: Tensor) -> Tensor:
        return fit(link, table._replace(precision=precision, mean=mean), tolerance=1e-11).log_evidence()

    for direction in (torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 0.02])), table.precision):
        change = step * direction.double()
        slope = (log_z(table.precision + change, table.mean) - log_z(table.precision - change, table.mean)) / (2 * step)
        spread = torch.linalg.inv(table.precision) - q.covariance - torch.outer(q.mean, q.mean)
        assert_close(slope, 0.5 * (direction.double() * spread).sum(), rtol=1e-5, atol=1e-6)
    for k in range(2):
        change = step * torch.eye(2, dtype=torch.float64)[k]
        slope = (log_z(table.precision, table.mean + change) - log_z(table.precision, table.mean - change)) / (2 * step)
        assert_close(slope, (table.precision @ (q.mean - table.mean))[k], rtol=1e-5, atol=1e-6)


@BOTH
def test_order_of_rows_and_names_of_classes_do_not_matter(link: str) -> None:
    table = PLANAR_TABLES["60 rows"]
    q = fit(link, table)
    shuffled = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    other = fit(link, table._replace(features=table.features[shuffled], labels=table.labels[shuffled]))
    assert_close(other.mean, q.mean, rtol=0, atol=1e-8)
    assert_close(other.log_evidence(), q.log_evidence(), rtol=0, atol=1e-10)
    swapped = fit(link, table._replace(labels=1.0 - table.labels))
    assert_close(swapped.mean, -q.mean, rtol=0, atol=1e-8)
    assert_close(swapped.log_evidence(), q.log_evidence(), rtol=0, atol=1e-9)


@BOTH
def test_damping_does_not_change_the_fixed_point(link: str) -> None:
    table = PLANAR_TABLES["separable"]
    q, damped = fit(link, table), fit(link, table, damping=0.5)
    assert_close(damped.mean, q.mean, rtol=0, atol=1e-6)
    assert len(damped.trace["residual"]) > 5
    assert damped.trace["residual"][-1] <= 1e-8


@BOTH
def test_many_rows_updated_at_once_do_not_run_away(link: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = 1.5 * torch.randn(1000, 1, dtype=torch.float64, generator=generator)
        y = torch.rand(1000, dtype=torch.float64, generator=generator) < torch.sigmoid(1.5 * x[:, 0] + 0.3)
        prior = Prior(torch.tensor([1.0, 0.01]))
        q = expectation_propagation(compile_density(LinearModel(1), Bernoulli(link), prior, x, y))
        assert len(q.trace["residual"]) < 12


@BOTH
def test_separable_classes_under_an_almost_flat_prior(link: str) -> None:
    table = PLANAR_TABLES["separable"]
    weak = table._replace(precision=1e-8 * torch.eye(2, dtype=torch.float64))
    q = fit(link, weak)
    assert torch.isfinite(q.log_evidence())
    right = q.predict(table.features).probs[:, 1] > 0.5
    assert (right == table.labels.bool()).all()


@BOTH
def test_tuned_precision_is_stationary_and_leaves_the_intercept_alone(link: str) -> None:
    table = PLANAR_TABLES["200 rows"]
    model, mask = LinearModel(1), torch.tensor([True, False])

    def at(precision: float, tuned: Tensor | None = None) -> GaussianPosterior:
        prior = Prior(torch.tensor([precision, 1e-3]))
        return expectation_propagation(
            compile_density(model, Bernoulli(link), prior, table.features, table.labels), tuned=tuned
        )

    q = at(30.0, mask)
    learnt = q.trace["prior_precision"][-1]
    assert_close(at(learnt).log_evidence(), q.log_evidence(), rtol=0, atol=1e-10)
    for factor in (0.8, 1.25):
        assert at(learnt * factor).log_evidence() < q.log_evidence() - 1e-4
    slope = (at(learnt * 1.001).log_evidence() - at(learnt / 1.001).log_evidence()) / 0.002
    assert abs(slope) < 1e-4
    assert_close(at(1e-3, mask).trace["prior_precision"][-1], learnt, rtol=1e-5, atol=0)


@BOTH
def test_condition_takes_the_posterior_as_the_prior(link: str) -> None:
    table = PLANAR_TABLES["200 rows"]
    x, y = table.features, table.labels
    first = fit(link, table._replace(features=x[:100], labels=y[:100]))
    both = first.condition((x[100:], y[100:]))
    whole = fit(link, table)
    sd = whole.covariance.diagonal().sqrt()
    assert ((both.mean - whole.mean).abs() < 0.5 * sd).all()
    assert_close(both.covariance.diagonal().sqrt(), sd, rtol=0.15, atol=0)
    again = fit(link, PlanarTable(x[100:], y[100:], first.precision.to_dense(), first.mean))
    assert_close(both.mean, again.mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 2)])
def test_other_likelihoods_are_refused(likelihood: Likelihood, outputs: int) -> None:
    y = torch.zeros(3, 2) if likelihood.name == "bernoulli" else torch.zeros(3)
    density = compile_density(LinearModel(1, outputs), likelihood, Prior(), torch.ones(3, 1), y)
    with pytest.raises(UnsupportedError, match="with one output"):
        expectation_propagation(density)


def test_unreached_tolerance_and_bad_damping_are_loud() -> None:
    table = PLANAR_TABLES["60 rows"]
    with pytest.raises(ConvergenceError, match="after 2 sweeps"):
        fit("logit", table, max_sweeps=2)
    with pytest.raises(InputError, match="damping"):
        fit("logit", table, damping=1.0)
