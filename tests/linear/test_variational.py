from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from bayescope.errors import ConvergenceError, ConvergenceWarning, OptionError, UnsupportedError
from bayescope.likelihoods import Bernoulli, Categorical, Gaussian
from bayescope.linear import compile_density, variational
from bayescope.models import LinearModel
from bayescope.posterior import GaussianPosterior
from bayescope.precision import DensePrecision
from bayescope.priors import Prior
from tests.cases import PLANAR_TABLES, PlanarTable
from tests.reference import Plane, binary_log_joint, integrate_plane

BOTH = pytest.mark.parametrize("link", ["logit", "probit"])
EVERY = pytest.mark.parametrize("name", PLANAR_TABLES)
FAMILY = pytest.mark.parametrize("family", ["full", "mean_field"])
# Every table with both families and both links, and every family with every link.
LINKS_OF_TABLES = [
    (("logit", "probit")[(row + column) % 2], name, family)
    for row, name in enumerate(PLANAR_TABLES)
    for column, family in enumerate(("full", "mean_field"))
]


@cache
def fit(link: str, name: str, family: str = "full") -> GaussianPosterior:
    return fit_table(link, PLANAR_TABLES[name], family)


def fit_table(link: str, table: PlanarTable, family: str = "full", **options: object) -> GaussianPosterior:
    model = LinearModel(table.features.shape[1], bias=table.bias)
    prior = Prior(DensePrecision(table.precision), table.mean)
    return variational(
        compile_density(model, Bernoulli(link), prior, table.features, table.labels), family=family, **options
    )


@cache
def truth(link: str, name: str) -> Plane:
    table = PLANAR_TABLES[name]
    log_joint = binary_log_joint(link, table.jacobian, table.labels, table.precision, table.mean)
    return integrate_plane(log_joint, torch.zeros(2, dtype=torch.float64))


def binary_elbo(link: str, table: PlanarTable, mean: Tensor, root: Tensor) -> Tensor:
    """The bound at N(mean, root rootᵀ) from its definition, with 2,001 points a row; differentiable."""
    log_link = torch.special.log_ndtr if link == "probit" else torch.nn.functional.logsigmoid
    z = torch.linspace(-10.0, 10.0, 2001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * z.square(), 0)
    j = table.jacobian
    activation = (j @ mean)[:, None] + (j @ root).square().sum(1).sqrt()[:, None] * z
    expected = (log_link((2.0 * table.labels - 1.0)[:, None] * activation) @ weights).sum()
    return expected - divergence_from_prior(mean, root, table.precision, table.mean)


def divergence_from_prior(mean: Tensor, root: Tensor, precision: Tensor, centre: Tensor) -> Tensor:
    """KL between two Gaussians."""
    offset, covariance = mean - centre, root @ root.mT
    terms = (precision * covariance).sum() + offset @ precision @ offset - mean.shape[0]
    return 0.5 * (terms - torch.logdet(precision) - torch.logdet(covariance))


@pytest.mark.parametrize(("link", "name", "family"), LINKS_OF_TABLES)
def test_bound_is_the_evidence_less_the_divergence(link: str, name: str, family: str) -> None:
    """log Z − ELBO = KL(q‖p), with log Z by integration and KL by nodes of q: all terms and constants are right."""
    table, plane, q = PLANAR_TABLES[name], truth(link, name), fit(link, name, family)
    assert q.elbo < plane.log_evidence
    axis = torch.linspace(-9.0, 9.0, 181, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    weights = torch.softmax(-0.5 * z.square().sum(1), 0)
    theta = q.mean + z @ torch.linalg.cholesky(q.covariance).mT
    log_joint = binary_log_joint(link, table.jacobian, table.labels, table.precision, table.mean)
    divergence = weights @ (q.log_prob(theta) - log_joint(theta)) + plane.log_evidence
    assert_close(plane.log_evidence - q.elbo, divergence, rtol=1e-6, atol=1e-8)


@BOTH
@EVERY
def test_gradient_of_the_bound_is_zero(link: str, name: str) -> None:
    table, q = PLANAR_TABLES[name], fit(link, name)
    root = torch.linalg.cholesky(q.covariance)
    assert_close(binary_elbo(link, table, q.mean, root), q.elbo, rtol=1e-9, atol=1e-8)
    # in units of q's own sds: m + L u and L (I + E) with u and the lower triangle E at zero
    u, tilt = (torch.zeros(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2,), (2, 2)))
    eye = torch.eye(2, dtype=torch.float64)
    value = binary_elbo(link, table, q.mean + root @ u, root @ (eye + tilt.tril()))
    for gradient in torch.autograd.grad(value, (u, tilt)):
        assert gradient.abs().max() < 2e-7


@BOTH
@EVERY
def test_gradient_of_the_mean_field_bound_is_zero(link: str, name: str) -> None:
    table, q = PLANAR_TABLES[name], fit(link, name, "mean_field")
    sd = q.covariance.diagonal().sqrt()
    assert (q.covariance[~torch.eye(2, dtype=torch.bool)] == 0).all()
    u, stretch = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    value = binary_elbo(link, table, q.mean + sd * u, torch.diag(sd * stretch.exp()))
    for gradient in torch.autograd.grad(value, (u, stretch)):
        assert gradient.abs().max() < 2e-7


@BOTH
@pytest.mark.parametrize("name", ["6 rows", "80 rows, dense prior", "separable"])
@FAMILY
def test_every_gaussian_near_by_is_worse(link: str, name: str, family: str) -> None:
    table, q = PLANAR_TABLES[name], fit(link, name, family)
    root, generator = torch.linalg.cholesky(q.covariance), torch.Generator().manual_seed(0)
    best = binary_elbo(link, table, q.mean, root)
    for _ in range(20):
        u = 0.02 * torch.randn(2, dtype=torch.float64, generator=generator)
        tilt = 0.02 * torch.randn(2, 2, dtype=torch.float64, generator=generator).tril()
        if family == "mean_field":
            tilt = torch.diag(tilt.diagonal())
        moved = binary_elbo(link, table, q.mean + root @ u, root @ (torch.eye(2, dtype=torch.float64) + tilt))
        assert moved < best


@BOTH
@EVERY
def test_mean_field_is_narrower_and_its_bound_lower(link: str, name: str) -> None:
    full, mean_field = fit(link, name), fit(link, name, "mean_field")
    assert (mean_field.covariance.diagonal() <= full.covariance.diagonal() * (1 + 1e-6)).all()
    assert mean_field.elbo <= full.elbo + 1e-9


@BOTH
@EVERY
@FAMILY
def test_bound_rises_at_every_iteration(link: str, name: str, family: str) -> None:
    trace = torch.tensor(fit(link, name, family).trace["elbo"], dtype=torch.float64)
    assert (trace.diff() > -1e-9 * (1 + trace[:-1].abs())).all()
    assert_close(trace[-1], fit(link, name, family).elbo, rtol=0, atol=1e-12)


def test_gaussian_likelihood_gives_the_conjugate_posterior_and_its_evidence() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    model, noise = LinearModel(3, 2), torch.tensor([0.5, 2.0], dtype=torch.float64)
    spread = torch.randn(8, 8, dtype=torch.float64, generator=generator)
    prior_precision = spread @ spread.mT + torch.eye(8, dtype=torch.float64)
    centre = torch.arange(8, dtype=torch.float64) / 4
    q = variational(compile_density(model, Gaussian(noise), Prior(DensePrecision(prior_precision), centre), x, y))
    j = model.tape(x).jacobian(slice(0, 40)).reshape(80, 8)
    observed, each = y.reshape(-1), noise.repeat(40)
    precision = prior_precision + j.mT @ (j / each[:, None])
    mean = torch.linalg.solve(precision, prior_precision @ centre + j.mT @ (observed / each))
    marginal = torch.distributions.MultivariateNormal(
        j @ centre, torch.diag(each) + j @ torch.linalg.solve(prior_precision, j.mT)
    )
    assert_close(q.mean, mean, rtol=0, atol=1e-10)
    assert_close(q.precision.to_dense(), precision, rtol=0, atol=1e-9)
    assert_close(q.elbo, marginal.log_prob(observed), rtol=0, atol=1e-9)


# --- more than two classes --------------------------------------------------------------------------------------------


def three_classes(rows: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    y = torch.arange(rows) % 3
    centres = torch.tensor([[0.0, 1.5], [1.5, -1.0], [-1.5, -1.0]], dtype=torch.float64)
    return centres[y] + torch.randn(rows, 2, dtype=torch.float64, generator=generator), y


@cache
def fit_three(family: str, nodes: int = 512) -> GaussianPosterior:
    prior = Prior(torch.tensor([0.5] * 6 + [0.01] * 3))
    return variational(
        compile_density(LinearModel(2, 3), Categorical(), prior, *three_classes()), family=family, nodes=nodes
    )


@FAMILY
def test_multinomial_gradient_vanishes_under_many_other_draws(family: str) -> None:
    """The gradient in units of q's sds by 120,000 draws, where the fit used 512 fixed points."""
    x, y = three_classes()
    q, dim = fit_three(family), 9
    root = torch.linalg.cholesky(q.covariance)
    j = LinearModel(2, 3).tape(x).jacobian(slice(0, 60))
    u, tilt = (torch.zeros(*shape, dtype=torch.float64, requires_grad=True) for shape in ((dim,), (dim, dim)))
    shape = tilt.tril() if family == "full" else torch.diag(tilt.diagonal())
    z = torch.randn(60000, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    factor = root @ (torch.eye(dim, dtype=torch.float64) + shape)
    theta = q.mean + root @ u + torch.cat([z, -z]) @ factor.mT
    chosen = sum(log_softmax(theta @ j[n].mT, -1)[:, y[n]] for n in range(60)).mean()
    precision = torch.diag(torch.tensor([0.5] * 6 + [0.01] * 3, dtype=torch.float64))
    value = chosen - divergence_from_prior(q.mean + root @ u, factor, precision, torch.zeros(dim, dtype=torch.float64))
    assert_close(value, q.elbo, rtol=0, atol=0.05)
    for gradient in torch.autograd.grad(value, (u, tilt)):
        assert gradient.abs().max() < 0.03


@FAMILY
def test_multinomial_converges_in_the_number_of_nodes(family: str) -> None:
    few, many = fit_three(family, 256), fit_three(family, 2048)
    sd = many.covariance.diagonal().sqrt()
    assert ((few.mean - many.mean).abs() < 0.03 * sd).all()
    assert_close(few.covariance.diagonal().sqrt(), sd, rtol=0.03, atol=0)
    assert_close(few.elbo, many.elbo, rtol=0, atol=0.05)
    trace = torch.tensor(many.trace["elbo"])
    assert (trace.diff() > -1e-7).all()


def test_multinomial_is_nearly_symmetric_under_relabelling() -> None:
    x, y = three_classes()
    prior = Prior(torch.tensor([0.5] * 6 + [0.01] * 3))
    relabelled = variational(compile_density(LinearModel(2, 3), Categorical(), prior, x, (y + 1) % 3))
    weights, bias = LinearModel(2, 3).unflat(fit_three("full").mean)
    moved, moved_bias = LinearModel(2, 3).unflat(relabelled.mean)
    assert_close(moved.roll(-1, 0), weights, rtol=0, atol=0.01)
    assert_close(moved_bias.roll(-1, 0), bias, rtol=0, atol=0.05)


# --- the prior, the order, the ways to fail ---------------------------------------------------------------------------


@BOTH
@FAMILY
def test_tuned_precision_is_stationary_and_leaves_the_intercept_alone(link: str, family: str) -> None:
    table, mask = PLANAR_TABLES["200 rows"], torch.tensor([True, False])

    def at(precision: float, tuned: Tensor | None = None) -> GaussianPosterior:
        prior = Prior(torch.tensor([precision, 1e-3]))
        return variational(
            compile_density(LinearModel(1), Bernoulli(link), prior, table.features, table.labels),
            family=family,
            tuned=tuned,
        )

    q = at(30.0, mask)
    learnt = q.trace["prior_precision"][-1]
    assert_close(at(learnt).elbo, q.elbo, rtol=0, atol=1e-10)
    second_moment = q.mean[0] ** 2 + q.covariance[0, 0]
    assert_close(learnt * second_moment, torch.ones((), dtype=torch.float64), rtol=0, atol=1e-6)
    for factor in (0.8, 1.25):
        assert at(learnt * factor).elbo < q.elbo - 1e-4
    assert math.isclose(at(1e-3, mask).trace["prior_precision"][-1], learnt, rel_tol=1e-5)


@BOTH
def test_order_of_rows_and_names_of_classes_do_not_matter(link: str) -> None:
    table, q = PLANAR_TABLES["60 rows"], fit(link, "60 rows")
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    shuffled = fit_table(link, table._replace(features=table.features[order], labels=table.labels[order]))
    assert_close(shuffled.mean, q.mean, rtol=0, atol=1e-8)
    assert_close(shuffled.elbo, q.elbo, rtol=0, atol=1e-10)
    swapped = fit_table(link, table._replace(labels=1.0 - table.labels))
    assert_close(swapped.mean, -q.mean, rtol=0, atol=1e-7)


@FAMILY
def test_condition_takes_the_posterior_as_the_prior(family: str) -> None:
    table = PLANAR_TABLES["200 rows"]
    x, y = table.features, table.labels
    first = fit_table("logit", table._replace(features=x[:100], labels=y[:100]), family)
    both = first.condition((x[100:], y[100:]))
    again = fit_table("logit", PlanarTable(x[100:], y[100:], first.precision.to_dense(), first.mean), family)
    assert_close(both.mean, again.mean, rtol=0, atol=1e-10)
    assert_close(both.covariance, again.covariance, rtol=0, atol=1e-10)
    assert both.record.method == first.record.method


def test_unknown_family_other_likelihoods_and_unreached_tolerance_are_loud() -> None:
    table = PLANAR_TABLES["60 rows"]
    with pytest.raises(OptionError, match="mean_field"):
        fit_table("logit", table, "meanfield")
    with pytest.raises(UnsupportedError, match="numbers that depend on an output each"):
        variational(compile_density(LinearModel(1, 2), Bernoulli(), Prior(), torch.ones(3, 1), torch.zeros(3, 2)))
    with pytest.raises(ConvergenceError, match="after 2 iterations"):
        fit_table("logit", table, max_iterations=2)
    with pytest.warns(ConvergenceWarning, match="after 6 iterations"):
        fit_table("logit", table, max_iterations=6)
