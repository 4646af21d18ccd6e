"""Function space is weight space with all the data: the same predictive and evidence, as of a Gaussian process."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from bayescope import laplace, largest_variance
from bayescope.gaussian_process import function_space
from bayescope.laplace import LaplaceFit, tune_prior
from bayescope.likelihoods import Gaussian
from bayescope.posterior import GaussianPosterior, Posterior
from bayescope.priors import Prior
from bayescope.tape import block_limit
from tests.gaussian_process.problems import CLOSE, NEW, ROWS, TASKS, X, assert_equal, dense_prior, gaussian
from tests.laplace.problems import closed_form, mlp, normal, penalty, seeded, set_flat, train, with_ones

pytestmark = pytest.mark.filterwarnings("ignore:.*expected weights:bayescope.errors.ConvergenceWarning")


def priors(dim: int) -> dict[str, Any]:
    return {
        "weak": 0.01,
        "by layer": {"0": 0.4, "2": 3.0},
        "by weight, about a mean": Prior(0.2 + normal(dim, seed=7).square(), normal(dim, seed=8)),
        "dense": Prior(dense_prior(dim)),
    }


@pytest.mark.parametrize("prior", priors(1))
@pytest.mark.parametrize("task", TASKS)
def test_weight_space_and_function_space_are_the_same(task: str, prior: str) -> None:
    likelihood, outputs, y = TASKS[task]
    module = mlp(outputs)
    chosen = priors(sum(p.numel() for p in module.parameters()))[prior]
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": chosen}
    full = laplace(module, (X, y), structure="full", **options)
    process = function_space(module, (X, y), **options)
    assert_equal(process, full, NEW)
    torch.testing.assert_close(process.covariance, full.covariance, **CLOSE)
    for name in ("newton_decrement", "effective_parameters"):
        ours, theirs = (getattr(cast(LaplaceFit, q.fit), name)() for q in (process, full))
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("weights", ["last_layer", "*.weight", "2.bias", largest_variance(5)])
def test_the_weights_that_are_random_are_a_choice(weights: Any) -> None:
    likelihood, outputs, y = TASKS["categorical"]
    options: dict[str, Any] = {"likelihood": likelihood, "weights": weights, "prior_precision": 0.5}
    full = laplace(mlp(outputs), (X, y), structure="full", **options)
    assert_equal(function_space(mlp(outputs), (X, y), **options), full, NEW)


def test_outputs_with_positions() -> None:
    module = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1), _Last()))
    x, y = normal(5, 1, 3, 3, seed=9), torch.randint(0, 3, (5, 3, 3), generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    process = function_space(module, (x, y), **options)
    assert_equal(process, laplace(module, (x, y), structure="full", **options), x[:2])


class _Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


@pytest.mark.parametrize("task", ["gaussian", "categorical"])
@pytest.mark.parametrize("prior", priors(1))
def test_rows_are_read_again_in_pieces_where_they_are_not_held(task: str, prior: str) -> None:
    likelihood, outputs, y = TASKS[task]
    module = mlp(outputs)
    dim = sum(p.numel() for p in module.parameters())
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": priors(dim)[prior]}
    held = function_space(module, (X, y), **options)
    with block_limit(8 * dim):  # one row of U; eight of them would be held
        read = function_space(module, (X, y), batch_size=7, **options)
        _assert_alike(read, held, options["prior_precision"], dim)
    _assert_alike(read, held, options["prior_precision"], dim)


def _assert_alike(read: Posterior, held: Posterior, prior: Any, dim: int) -> None:
    assert_equal(read, held, NEW)
    draws = [q.sample_functions(NEW, 3, generator=1) for q in (read, held)]
    torch.testing.assert_close(*draws, **CLOSE)
    diagonals = [gaussian(q).precision.diagonal() for q in (read, held)]
    torch.testing.assert_close(*diagonals, **CLOSE)
    if not isinstance(prior, Prior):
        slopes = [_slope(q, dim) for q in (read, held)]
        torch.testing.assert_close(*slopes, **CLOSE)


def _slope(q: Posterior, dim: int) -> Tensor:
    diagonal = torch.linspace(0.5, 2.0, dim, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(q.log_evidence(prior_precision=diagonal), diagonal)[0]


@pytest.mark.parametrize("centre", [0.0, 0.7])
def test_a_linear_model_is_gaussian_process_regression(centre: float) -> None:
    design, y = with_ones(X), normal(ROWS, seed=10)
    prior = 0.3 + normal(3, seed=11).square()
    closed = closed_form(design, y, prior, 0.4, centre)
    module = seeded(lambda: nn.Linear(2, 1))
    set_flat(module, closed.mean)
    process = function_space(
        module,
        (X, y[:, None]),
        likelihood=Gaussian(0.4),
        prior_precision=Prior(prior, torch.full((3,), centre, dtype=torch.float64)),
    )
    torch.testing.assert_close(process.log_evidence(), closed.log_evidence, rtol=1e-10, atol=1e-10)
    # Rasmussen and Williams (2006, eq. 2.25 and 2.26), with the prior's mean function
    new = with_ones(NEW)
    kernel, cross = (design / prior) @ design.mT + 0.4 * torch.eye(ROWS, dtype=torch.float64), (new / prior) @ design.mT
    mean = new.sum(1) * centre + cross @ torch.linalg.solve(kernel, y - design.sum(1) * centre)
    variance = ((new / prior) * new).sum(1) - (cross * torch.linalg.solve(kernel, cross.mT).mT).sum(1)
    p = process.predict(NEW)
    torch.testing.assert_close(p.latent_mean[:, 0], mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.latent_cov[:, 0, 0], variance, rtol=1e-10, atol=1e-10)


def test_functions_are_joint_over_the_inputs() -> None:
    likelihood, outputs, y = TASKS["categorical"]
    module = mlp(outputs)
    process = function_space(module, (X, y), likelihood=likelihood)
    full = laplace(module, (X, y), likelihood=likelihood, structure="full")
    count = 20_000
    draws = process.sample_functions(NEW, count, generator=5).flatten(1)
    exact = _joint(gaussian(full), outputs)
    expected = process.predict(NEW).latent_mean.flatten()
    deviation = (draws.mean(0) - expected) / (exact.diagonal() / count).sqrt()
    assert deviation.abs().max() < 5.5  # of 18 normal deviates: false by chance once in 10⁶
    centred = draws - expected
    covariance = centred.mT @ centred / count
    error = ((exact.square() + exact.diagonal()[:, None] * exact.diagonal()) / count).sqrt()
    assert ((covariance - exact) / error).abs().max() < 6.0
    twice = [process.sample_functions(NEW, 4, generator=5) for _ in range(2)]
    assert torch.equal(*twice)


def _joint(full: GaussianPosterior, outputs: int) -> Tensor:
    """J A⁻¹ Jᵀ over all rows and outputs."""
    assert full.function is not None
    identity = torch.eye(full.precision.dim, dtype=torch.float64)
    jacobian = full.function.jacobian_product(NEW, full.location, identity).flatten(1).mT
    assert jacobian.shape[0] == len(NEW) * outputs
    return jacobian @ full.covariance @ jacobian.mT


@pytest.mark.parametrize("approximation", [{}, {"approximation": "nystrom", "points": 4}])
def test_the_mean_is_the_network_away_from_a_mode(approximation: dict[str, Any]) -> None:
    module, y = mlp(1), 5.0 + normal(ROWS, 1, seed=12)
    process = function_space(module, (X, y), likelihood=Gaussian(0.1), **approximation)
    with torch.no_grad():
        torch.testing.assert_close(process.predict(NEW).mean, module(NEW), rtol=1e-12, atol=1e-12)


def test_the_evidence_is_differentiable_and_tuned_as_in_weight_space() -> None:
    module, y = mlp(1), normal(ROWS, 1, seed=12)
    train(module, lambda: 0.5 * (module(X) - y).square().sum() / 0.3 + penalty(module, 1.0))
    full = laplace(module, (X, y), likelihood=Gaussian(0.3), structure="full")
    process = function_space(module, (X, y), likelihood=Gaussian(0.3))
    slopes = []
    for q in (process, full):
        prior, noise = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 0.5))
        slopes.append(torch.autograd.grad(q.log_evidence(prior_precision=prior, noise_variance=noise), (prior, noise)))
    torch.testing.assert_close(*slopes, **CLOSE)
    torch.testing.assert_close(_slope(process, 17), _slope(full, 17), **CLOSE)
    tuned = [tune_prior(q, share_prior="layer") for q in (process, full)]
    assert_equal(*tuned, NEW, rtol=1e-5, atol=1e-5)
    learnt = function_space(module, (X, y), likelihood=Gaussian(0.3), prior_precision="evidence")
    torch.testing.assert_close(learnt.log_evidence(), tuned[0].log_evidence(), rtol=1e-5, atol=1e-5)
