"""The bound over all rows: exact at the posterior, right within its standard error elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescope.network.model import NetworkModel
from bayescope.network.weights import Weights
from bayescope.precision import DensePrecision, DiagonalPrecision
from bayescope.priors import Prior
from bayescope.reparameterization import gaussian_kl
from bayescope.training.minibatches import Minibatches
from bayescope.variational import elbo
from bayescope.variational.elbo import Bound, RowDraws, WeightDraws, bound
from tests.training.toys import perceptron
from tests.variational.toys import GAUSSIAN, NOISE, Regression, network, regression


def bound_at(
    problem: Regression,
    mean: Tensor,
    precision: Tensor,
    *,
    by_row: bool = False,
    seed: int = 0,
    most: int = elbo.MOST_DRAWS,
) -> Bound:
    module = network()
    weights = Weights.select(module, "all")
    with torch.no_grad():
        for name, value in weights.unflat(mean).items():
            module.get_parameter(name).copy_(value)
    structured = DiagonalPrecision(precision.diagonal()) if by_row else DensePrecision(precision)
    normal, prior = torch.distributions.MultivariateNormal, problem.prior
    kl = torch.distributions.kl_divergence(
        normal(mean, precision_matrix=structured.to_dense()),
        normal(prior.centre(3), precision_matrix=prior.structured(3).to_dense()),
    )
    function, source = NetworkModel(module, weights, 1), torch.Generator().manual_seed(seed)
    rows = Minibatches((problem.x, problem.y), module, GAUSSIAN, 128, torch.Generator())
    if by_row:
        return bound([RowDraws(function, structured, GAUSSIAN, rows, source)], rows, kl, most)
    return bound([WeightDraws(function, structured, prior, GAUSSIAN, rows, kl, source)], rows, kl, most)


def expected_log_likelihood(problem: Regression, mean: Tensor, precision: Tensor) -> float:
    squares = (problem.y[:, 0] - problem.design @ mean).square().sum()
    squares = squares + (problem.design @ torch.linalg.inv(precision) * problem.design).sum()
    return float(-0.5 * (squares / NOISE + len(problem.x) * math.log(2.0 * math.pi * NOISE)))


def test_at_the_posterior_it_is_the_evidence_whatever_is_drawn() -> None:
    problem = regression()
    found = bound_at(problem, problem.mean, problem.precision)
    assert float(sum(found.terms.values())) == pytest.approx(problem.evidence, abs=1e-9)
    assert found.standard_error < 1e-9
    assert found.draws == elbo.ROUND
    assert found.outcomes == 12


@pytest.mark.parametrize("by_row", [False, True])
def test_elsewhere_it_is_off_by_as_much_as_it_says(by_row: bool) -> None:
    """z-scores over seeds have mean 0 and variance 1: of 60, neither is beyond 4.5 standard errors."""
    problem = regression()
    mean, precision = problem.mean + 0.3 * problem.sds, 0.6 * problem.precision + torch.eye(3).double()
    precision = torch.diag(precision.diagonal()) if by_row else precision
    exact = expected_log_likelihood(problem, mean, precision)
    found = [bound_at(problem, mean, precision, by_row=by_row, seed=seed, most=128) for seed in range(60)]
    scores = torch.tensor([(float(each.expected_log_likelihood) - exact) / each.standard_error for each in found])
    assert abs(float(scores.mean())) < 4.5 / 60**0.5
    assert abs(float(scores.var()) - 1.0) < 4.5 * (2.0 / 59) ** 0.5


def test_rows_by_themselves_have_less_noise_in_a_network() -> None:
    """Rows that share their weights err together."""
    module = perceptron(hidden=20)
    x, y = regression(200).x, regression(200).y
    weights = Weights.select(module, "all")
    function = NetworkModel(module, weights, 1)
    rows = Minibatches((x, y), module, GAUSSIAN, 256, torch.Generator())
    precision = DiagonalPrecision(torch.full((weights.dim,), 100.0))
    kl = gaussian_kl(weights.flat(module), precision.marginal_variance().sqrt(), 1.0)
    by_row = RowDraws(function, precision, GAUSSIAN, rows, torch.Generator().manual_seed(0))
    by_weights = WeightDraws(function, precision, Prior(1.0), GAUSSIAN, rows, kl, torch.Generator().manual_seed(0))
    own, shared = (bound([each], rows, kl, 1024) for each in (by_row, by_weights))
    assert own.standard_error < 0.5 * shared.standard_error
    assert bound([by_weights, by_row], rows, kl, 1024).standard_error == pytest.approx(own.standard_error, rel=0.2)
    apart = float(own.expected_log_likelihood - shared.expected_log_likelihood)
    assert abs(apart) < 4.5 * math.hypot(own.standard_error, shared.standard_error)


def test_draws_are_affordable() -> None:
    """Many for little work; of a long training a share; never fewer than a round, nor more than can be read."""
    assert elbo.affordable(100, 50, 1) == elbo.MOST_DRAWS
    assert elbo.affordable(235_146, 60_000, 1) == elbo.ROUND
    assert elbo.affordable(235_146, 2_560, 100) == 75
    assert elbo.affordable(235_146, 60_000, 100) == elbo.ROWS_READ // 60_000


def test_draws_stop_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = regression()
    away = 0.5 * problem.precision
    monkeypatch.setattr(elbo, "ACCURATE", 0.0)
    assert bound_at(problem, problem.mean, away).draws == elbo.MOST_DRAWS
    whole = bound_at(problem, problem.mean, away, most=40)
    assert whole.draws == 48
    monkeypatch.setattr(elbo, "NUMBERS", 200)  # some rows at a time: the same answer
    again = bound_at(problem, problem.mean, away, most=40)
    torch.testing.assert_close(again.expected_log_likelihood, whole.expected_log_likelihood)
    assert bound_at(problem, problem.mean, away, by_row=True).outcomes == 12
