"""The posterior at a mode, by blocks and in full, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayescope.additive import AdditiveFit, laplace_at, point_at, settled
from bayescope.likelihoods import Gaussian
from bayescope.posterior import GaussianPosterior, PointPosterior
from bayescope.quadrature import normal_nodes
from tests.additive.problems import CASES, Case, hyperparameters, seeded
from tests.additive.test_model import model_of


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def fit(case: Case) -> AdditiveFit:
    at = hyperparameters(case.problem, case.likelihood)
    trace = {"log_evidence": [0.0], "log_joint": [0.0]}
    return settled(case.problem, case.problem.centre, at, trace, ended="rest")


def precision_of(case: Case, fit: AdditiveFit) -> torch.Tensor:
    theta = fit.theta
    return case.plain.ggn(theta, case.likelihood) + torch.diag(fit.at.diagonal(case.problem.families))


def made(case: Case, fit: AdditiveFit, structure: str, **options: float) -> GaussianPosterior:
    model = model_of(case, fit.theta)
    return laplace_at(fit, model, structure, options.get("log_unit", 0.0))


def test_full_is_the_dense_ggn_and_block_its_blocks(case: Case, fit: AdditiveFit) -> None:
    full, block = (made(case, fit, structure).precision.to_dense() for structure in ("full", "block"))
    if isinstance(case.likelihood, Gaussian):
        torch.testing.assert_close(full, precision_of(case, fit), rtol=1e-9, atol=1e-9)
    blocks = torch.zeros_like(full)
    for place in case.plain.places:
        blocks[place[:, None], place] = full[place][:, place]
    torch.testing.assert_close(block, blocks, rtol=1e-9, atol=1e-9)


def test_the_curvature_is_its_average_over_the_posterior(case: Case, fit: AdditiveFit) -> None:
    """A = Σ_n w_n J_nᵀ E[Λ(f_n)] J_n + D, for f_n ~ N(f(θ*), J_n A⁻¹ J_nᵀ) by A's own blocks."""
    theta = fit.theta
    jacobian, f = case.plain.jacobian(theta), case.plain.f(theta).detach()
    block = made(case, fit, "block").precision.to_dense()
    spread = torch.linalg.cholesky(jacobian @ torch.linalg.inv(block) @ jacobian.mT)
    drawn = f + (spread @ normal_nodes(case.outputs, 4096)[:, None, :, None])[..., 0]
    roots = torch.stack([case.likelihood.ggn_sqrt(at, case.plain.targets) for at in drawn])
    average = (roots @ roots.mT).mean(0)
    data = torch.einsum("n,ncp,ncd,ndq->pq", case.plain.weights, jacobian, average, jacobian)
    at_mode = precision_of(case, fit)
    prior = at_mode - case.plain.ggn(theta, case.likelihood)
    off = (made(case, fit, "full").precision.to_dense() - data - prior).norm() / data.norm()
    assert off < 0.03
    if not isinstance(case.likelihood, Gaussian):
        assert (at_mode - data - prior).norm() > 0.1 * data.norm()  # at the mode it is another


def test_the_full_evidence_is_at_least_that_of_blocks(case: Case, fit: AdditiveFit) -> None:
    block, full = (made(case, fit, structure) for structure in ("block", "full"))
    assert float(block.log_evidence()) == fit.log_evidence
    dense = precision_of(case, fit)
    apart = sum(torch.linalg.slogdet(dense[place][:, place])[1] for place in case.plain.places)
    gap = 0.5 * (apart - torch.linalg.slogdet(dense)[1])
    assert float(gap) > 0.0
    torch.testing.assert_close(full.log_evidence() - block.log_evidence(), gap, rtol=1e-8, atol=1e-8)


def test_another_unit_of_y_costs_its_logarithm_a_row(case: Case, fit: AdditiveFit) -> None:
    here, there = made(case, fit, "block"), made(case, fit, "block", log_unit=0.7)
    lost = 0.7 * fit.problem.weights.sum()
    torch.testing.assert_close(here.log_evidence() - there.log_evidence(), lost)


def test_it_predicts_with_the_linearised_spread(case: Case, fit: AdditiveFit) -> None:
    for structure in ("block", "full"):
        posterior = made(case, fit, structure)
        latent = posterior.predict(case.rows)
        theta = fit.theta
        jacobian = case.plain.jacobian(theta)
        covariance = jacobian @ torch.linalg.inv(posterior.precision.to_dense()) @ jacobian.mT
        torch.testing.assert_close(torch.as_tensor(latent.latent_mean), case.plain.f(theta))
        torch.testing.assert_close(torch.as_tensor(latent.latent_cov), covariance, rtol=1e-7, atol=1e-9)


def test_the_summary_tells_what_was_fitted(case: Case, fit: AdditiveFit) -> None:
    summary = made(case, fit, "block").summary()
    terms = [term.name for family in case.problem.families for term in family.terms]
    assert f"{len(terms)}, " in summary
    assert "a block of the GGN for each term" in summary
    assert "the full GGN" in made(case, fit, "full").summary()
    for name in terms:
        assert name in summary
    assert f"effective parameters: {fit.evidence.total:.1f}" in summary


def test_a_point_has_no_spread(case: Case, fit: AdditiveFit) -> None:
    point = point_at(fit, model_of(case, fit.theta))
    assert isinstance(point, PointPosterior)
    theta = fit.theta
    assert torch.equal(point.mean, theta)
    draws = point.sample(3, generator=seeded())
    assert torch.equal(draws, theta.expand(3, -1))
    assert not point.predict(case.rows).epistemic.any()


def test_the_noise_is_in_ys_unit() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    fit = settled(case.problem, case.problem.centre, at, {}, ended="rest")
    scaled = model_of(case, fit.theta, unit=True)
    posterior = laplace_at(fit, scaled, "block", 0.0)
    assert isinstance(posterior.likelihood, Gaussian)
    assert float(posterior.likelihood.noise_variance) == pytest.approx(0.3 * float(scaled.scale) ** 2)
    plain = laplace_at(fit, model_of(case, fit.theta), "block", 0.0)
    here, there = posterior.predict(case.rows), plain.predict(case.rows)
    scale, shift = float(scaled.scale), float(scaled.shift)
    np.testing.assert_allclose(here.mean, shift + scale * there.mean)
    np.testing.assert_allclose(here.variance, scale**2 * there.variance)
