"""The bound over all rows: exact at the posterior, right within its standard error elsewhere."""

from __future__ import annotations

import math
from typing import final

import pytest
import torch
from torch import Tensor

from bayescope.network import NetworkModel, Weights
from bayescope.precision import DensePrecision, DiagonalPrecision
from bayescope.priors import Prior
from bayescope.reparameterization import gaussian_kl
from bayescope.training import Minibatches
from bayescope.variational import elbo
from bayescope.variational.elbo import Bound, Draws, bound, row_draws, weight_draws
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
    draws: Draws = weight_draws(function, structured, prior, GAUSSIAN, rows, kl, source)
    if by_row:
        draws = row_draws(function, structured, GAUSSIAN, rows, source)
    found = bound([draws], rows, kl, most)
    assert found is not None
    return found


def expected_log_likelihood(problem: Regression, mean: Tensor, precision: Tensor) -> float:
    squares = (problem.y[:, 0] - problem.design @ mean).square().sum()
    squares = squares + (problem.design @ torch.linalg.inv(precision) * problem.design).sum()
    return float(-0.5 * (squares / NOISE + len(problem.x) * math.log(2.0 * math.pi * NOISE)))


def test_at_the_posterior_it_is_the_evidence_whatever_is_drawn() -> None:
    problem = regression()
    found = bound_at(problem, problem.mean, problem.precision)
    assert float(sum(found.terms.values())) == pytest.approx(problem.evidence, abs=1e-9)
    assert found.standard_error < 1e-9
    assert found.draws == elbo.FEWEST_DRAWS
    assert not found.interrupted
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


@pytest.mark.parametrize("noise", [0.95, 0.6])
def test_near_the_posterior_it_stops_where_it_is_as_accurate_as_it_says(noise: float) -> None:
    """Where it stops depends on the error that it sees: the root mean square of 200 z-scores has an sd of 0.05."""
    problem = regression(60)
    precision = noise * problem.precision
    exact = expected_log_likelihood(problem, problem.mean, precision)
    found = [bound_at(problem, problem.mean, precision, seed=seed) for seed in range(200)]
    scores = torch.tensor([(float(each.expected_log_likelihood) - exact) / each.standard_error for each in found])
    assert 0.8 < float(scores.square().mean().sqrt()) < 1.2
    assert min(each.draws for each in found) >= elbo.FEWEST_DRAWS


@final
class Told:
    """Draws that are written out, and then Ctrl-C."""

    def __init__(self, *rounds: tuple[Tensor, Tensor]) -> None:
        self._rounds = list(rounds)

    def __call__(self) -> tuple[Tensor, Tensor]:
        if not self._rounds:
            raise KeyboardInterrupt
        return self._rounds.pop(0)


def test_the_error_is_that_of_a_regression() -> None:
    """The intercept's standard error at a control of 0, by the formula (XᵀX)⁻¹ s²."""
    source = torch.Generator().manual_seed(0)
    controls = torch.randn(16, generator=source, dtype=torch.float64) + 2.0
    values = 3.0 + 1.5 * controls + torch.randn(16, generator=source, dtype=torch.float64)
    problem = regression()
    rows = Minibatches((problem.x, problem.y), network(), GAUSSIAN, 128, torch.Generator())
    found = bound([Told((values, controls))], rows, torch.tensor(0.0), 1024)
    design = torch.stack([torch.ones_like(controls), controls], 1)
    solution = torch.linalg.lstsq(design, values[:, None]).solution[:, 0]
    variance = (values - design @ solution).square().sum() / 14 * torch.linalg.inv(design.mT @ design)[0, 0]
    assert found is not None
    assert float(found.expected_log_likelihood) == pytest.approx(float(solution[0]))
    assert found.standard_error == pytest.approx(float(variance.sqrt()))


def test_ctrl_c_ends_the_drawing_and_keeps_what_there_is() -> None:
    problem = regression()
    rows = Minibatches((problem.x, problem.y), network(), GAUSSIAN, 128, torch.Generator())
    values, zeros = torch.arange(16).double(), torch.zeros(16).double()
    found = bound([Told((values, zeros), (values + 2.0, zeros))], rows, torch.tensor(1.0), 1024)
    assert found is not None
    assert (found.draws, float(found.expected_log_likelihood)) == (32, 8.5)
    assert "from 32 draws, ended by an interrupt" in found.note
    second = bound([Told((values, zeros)), Told()], rows, torch.tensor(1.0), 1024)
    assert second is not None
    assert second.draws == 16
    assert bound([Told()], rows, torch.tensor(1.0), 1024) is None


def test_rows_by_themselves_have_less_noise_in_a_network() -> None:
    """Rows that share their weights err together."""
    module = perceptron(hidden=20)
    x, y = regression(200).x, regression(200).y
    weights = Weights.select(module, "all")
    function = NetworkModel(module, weights, 1)
    rows = Minibatches((x, y), module, GAUSSIAN, 256, torch.Generator())
    precision = DiagonalPrecision(torch.full((weights.dim,), 100.0))
    kl = gaussian_kl(weights.flat(module), precision.marginal_variance().sqrt(), 1.0)
    by_row = row_draws(function, precision, GAUSSIAN, rows, torch.Generator().manual_seed(0))
    by_weights = weight_draws(function, precision, Prior(1.0), GAUSSIAN, rows, kl, torch.Generator().manual_seed(0))
    own, shared, best = (bound(each, rows, kl, 1024) for each in ([by_row], [by_weights], [by_weights, by_row]))
    assert own is not None
    assert shared is not None
    assert best is not None
    assert own.standard_error < 0.5 * shared.standard_error
    assert best.standard_error == pytest.approx(own.standard_error, rel=0.2)
    apart = float(own.expected_log_likelihood - shared.expected_log_likelihood)
    assert abs(apart) < 4.5 * math.hypot(own.standard_error, shared.standard_error)


def test_draws_are_affordable() -> None:
    """Many for little work; of a long training a share; never fewer than a round, nor more than can be read."""
    assert elbo.affordable(100, 50, 1) == elbo.MOST_DRAWS
    assert elbo.affordable(235_146, 60_000, 1) == elbo.ROUND
    assert elbo.affordable(235_146, 2_560, 100) == 75
    assert elbo.affordable(235_146, 60_000, 100) == elbo.ROWS_READ // 60_000


def test_draws_stop_where_there_are_enough() -> None:
    problem = regression()
    away = 1e-4 * problem.precision  # noisy: no number of draws is accurate
    assert bound_at(problem, problem.mean, away).draws == elbo.MOST_DRAWS
    assert bound_at(problem, problem.mean, away, most=40).draws == 48
    assert bound_at(problem, problem.mean, away, by_row=True).outcomes == 12


def test_many_rows_are_read_in_parts() -> None:
    problem = regression(2 * elbo.MOST_ROWS + 50)
    found = bound_at(problem, problem.mean, problem.precision)
    assert float(sum(found.terms.values())) == pytest.approx(problem.evidence, abs=1e-6)
    diagonal = torch.diag(problem.precision.diagonal())
    by_row = bound_at(problem, problem.mean, diagonal, by_row=True)
    exact = expected_log_likelihood(problem, problem.mean, diagonal)
    assert abs(float(by_row.expected_log_likelihood) - exact) < 4.5 * by_row.standard_error
