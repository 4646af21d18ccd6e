"""Laplace's evidence by blocks and its fixed points, against dense matrices and autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bayescope.additive import (
    AdditiveHyperparameters,
    AdditiveProblem,
    BlockEvidence,
    first_precisions,
    settled,
)
from bayescope.likelihoods import Gaussian, Likelihood
from tests.additive.problems import (
    CASES,
    FIRST,
    LEVELS,
    OFF,
    SECOND,
    Case,
    dense_evidence,
    hyperparameters,
    labels,
    nets,
    normal,
    problem_of,
    seeded,
    state_of,
    table,
)

NOISE = ("noise_variance",)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def evidence_of(problem: AdditiveProblem, state: torch.Tensor, at: AdditiveHyperparameters) -> BlockEvidence:
    return BlockEvidence.of(problem, state, at, problem.linearized(state, at.likelihood))


def dense(case: Case, state: torch.Tensor, at: AdditiveHyperparameters, blocks: list[torch.Tensor]) -> torch.Tensor:
    diagonal = at.diagonal(case.problem.families)
    return dense_evidence(case.plain, state, case.problem.centre, diagonal, case.likelihood, blocks)


def everything(case: Case) -> list[torch.Tensor]:
    return [torch.cat(case.plain.places)]


def test_value_is_laplaces_formula_by_blocks(case: Case) -> None:
    state, at = state_of(case.problem, case.outputs), hyperparameters(case.problem, case.likelihood)
    value = evidence_of(case.problem, state, at).value
    torch.testing.assert_close(value, dense(case, state, at, case.plain.places), rtol=1e-10, atol=1e-10)


def test_blocks_bound_the_full_ggns_evidence_from_below(case: Case) -> None:
    """Fischer: the determinant of a positive definite matrix is at most the product of its blocks'."""
    state, at = state_of(case.problem, case.outputs), hyperparameters(case.problem, case.likelihood)
    gap = dense(case, state, at, everything(case)) - evidence_of(case.problem, state, at).value
    assert float(gap) > 1e-3


def test_one_gaussian_term_beside_its_intercept_loses_nothing() -> None:
    """The effect is centred, so that it and the constant have no curvature in common."""
    rows, y = table(15), normal(15, 1)
    problem = problem_of(
        [nets(FIRST, hidden=4)], rows, y, 0.5 + torch.rand(15, dtype=torch.float64, generator=seeded())
    )
    case = Case("one term", problem, rows, Gaussian(0.3), 1)
    state, at = state_of(problem, 1), hyperparameters(problem, case.likelihood)
    value = evidence_of(problem, state, at).value
    torch.testing.assert_close(value, dense(case, state, at, everything(case)), rtol=1e-10, atol=1e-10)


def test_determined_weights_are_counted_from_the_inverse(case: Case) -> None:
    state, at = state_of(case.problem, case.outputs), hyperparameters(case.problem, case.likelihood)
    evidence, diagonal = evidence_of(case.problem, state, at), at.diagonal(case.problem.families)
    a = case.plain.ggn(state, case.likelihood) + torch.diag(diagonal)
    each = [1.0 - diagonal[place] * torch.linalg.inv(a[place][:, place]).diagonal() for place in case.plain.places]
    assert evidence.total == pytest.approx(float(torch.cat(each).sum()))
    places = iter(each)
    departures, _ = case.problem.split(state - case.problem.centre)
    for family, gamma, squares, off in zip(
        case.problem.families, evidence.determined, evidence.squares, departures, strict=True
    ):
        for term in range(len(family.terms)):
            of_term = next(places)
            for layer in range(len(family.layers)):
                inside = family.layer == layer
                assert float(gamma[term, layer]) == pytest.approx(float(of_term[inside].sum()))
                assert float(squares[term, layer]) == pytest.approx(float(off[term, inside].square().sum()))


# --- fixed points ----------------------------------------------------------------------------------------------------


def rested(case: Case, state: torch.Tensor, groups: str, *, fixed: bool = False) -> AdditiveHyperparameters:
    """The hyperparameters at which an update changes nothing, for weights that stay."""
    at = hyperparameters(case.problem, case.likelihood)
    linear = case.problem.linearized(state, at.likelihood)
    for _ in range(300):
        evidence = BlockEvidence.of(case.problem, state, at, linear.under(at.likelihood))
        at = evidence.raised(case.problem, at, groups, learn=True, learns=() if fixed else NOISE)
    return at


def slopes(
    case: Case, state: torch.Tensor, at: AdditiveHyperparameters
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """∂ log Z / ∂ log δ for each precision, and ∂ log Z / ∂ log σ², through dense determinants."""
    logs = [precision.log().requires_grad_() for precision in at.precisions]
    moved = replace(at, precisions=tuple(log.exp() for log in logs))

    def value(factor: float = 1.0) -> torch.Tensor:
        some: Likelihood = at.likelihood
        if isinstance(some, Gaussian):
            some = Gaussian(factor * some.noise_variance)
        return dense(replace(case, likelihood=some), state, replace(moved, likelihood=some), case.plain.places)

    value().backward()
    gaussian = isinstance(at.likelihood, Gaussian)
    by_noise = (value(math.exp(1e-4)) - value(math.exp(-1e-4))).detach() / 2e-4 if gaussian else None
    return [log.grad for log in logs], by_noise


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[5]], ids=lambda case: case.name)
def test_at_rest_the_evidence_has_no_slope(case: Case) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    state = state_of(case.problem, case.outputs)
    if isinstance(case.likelihood, Gaussian):  # weights that fit, so that some are determined beside the noise
        state = settled(case.problem, case.problem.centre, at, {}, ended="rest").theta
    here = rested(case, state, "layer")
    by_precision, by_noise = slopes(case, state, here)
    for slope, precision in zip(by_precision, here.precisions, strict=True):
        inside = precision < OFF
        assert inside.any()
        assert float(slope[inside].abs().max()) < 1e-6
    if by_noise is not None:
        assert abs(float(by_noise)) < 1e-6
        assert evidence_of(case.problem, state, here).total > 1.0
    before, _ = slopes(case, state, hyperparameters(case.problem, case.likelihood))
    assert max(float(slope.abs().max()) for slope in before) > 0.1


def test_one_precision_a_net_is_the_best_of_those_that_layers_share() -> None:
    case, state = CASES[0], state_of(CASES[0].problem, 1)
    here = rested(case, state, "net", fixed=True)
    (precisions,) = here.precisions
    assert torch.equal(precisions[:, 0], precisions[:, 1])
    assert not torch.equal(precisions[0], precisions[1])
    (slope,), _ = slopes(case, state, here)
    assert float(slope.sum(1).abs().max()) < 1e-6
    assert float(slope.abs().max()) > 1e-3


def test_what_is_not_learnt_stays() -> None:
    case, state = CASES[0], state_of(CASES[0].problem, 1)
    at = hyperparameters(case.problem, case.likelihood)
    evidence = evidence_of(case.problem, state, at)
    noise = evidence.raised(case.problem, at, "layer", learn=False, learns=NOISE)
    assert torch.equal(noise.precisions[0], at.precisions[0])
    assert float(noise.likelihood.noise_variance) != 0.3
    precisions = evidence.raised(case.problem, at, "layer", learn=True, learns=())
    assert float(precisions.likelihood.noise_variance) == 0.3
    assert not torch.equal(precisions.precisions[0], at.precisions[0])
    assert precisions.intercept_precision == at.intercept_precision


def test_an_update_goes_only_so_far() -> None:
    case, state = CASES[0], state_of(CASES[0].problem, 1)
    at = replace(hyperparameters(case.problem, Gaussian(1e-6)), precisions=(torch.full((2, 2), 1e-5).double(),))
    moved = evidence_of(case.problem, state, at).raised(case.problem, at, "layer", learn=True, learns=NOISE)
    factors = moved.precisions[0] / at.precisions[0]
    assert float(factors.max()) <= 5.0 * (1 + 1e-12)
    assert float(factors.max()) == pytest.approx(5.0)
    assert float(moved.likelihood.noise_variance) == pytest.approx(5e-6)


def test_a_net_that_does_nothing_is_switched_off() -> None:
    case, state = CASES[0], state_of(CASES[0].problem, 1)
    idle, _ = case.problem.split(state)
    idle[0][1] = case.problem.split(case.problem.centre)[0][0][1] + 1e-9
    (precisions,) = rested(case, state, "net", fixed=True).precisions
    assert float(precisions[1].min()) == OFF
    assert float(precisions[0].max()) < 1e3


def test_weights_at_the_priors_mean_tell_nothing_of_its_width() -> None:
    case = CASES[0]
    at, state = hyperparameters(case.problem, case.likelihood), case.problem.centre
    moved = evidence_of(case.problem, state, at).raised(case.problem, at, "layer", learn=True, learns=())
    assert torch.equal(moved.precisions[0], at.precisions[0])


def test_precisions_start_by_layer() -> None:
    problem = problem_of([nets(FIRST, SECOND), labels()], table(10), normal(10, 1))
    of_nets, of_labels = first_precisions(problem.families, inner=0.3, other=2.0)
    assert of_nets.tolist() == [[0.3, 2.0]] * 2
    assert of_labels.tolist() == [[2.0]]
    assert of_nets.dtype == torch.float64


def test_random_effects_have_their_exact_evidence() -> None:
    """One factor and Gaussian noise: log N(y; 0, σ² I + Z Zᵀ/δ + 1 1ᵀ/δ_b), with Z the centred indicators."""
    rows, y = table(25), normal(25, 1)
    weights = torch.ones(25, dtype=torch.float64)
    problem = problem_of([labels()], rows, y, weights)
    at = AdditiveHyperparameters((torch.tensor([[1.7]], dtype=torch.float64),), 0.02, Gaussian(0.3))
    indicators = torch.nn.functional.one_hot(rows.levels[:, 2], LEVELS).to(torch.float64)
    z = indicators - indicators.mean(0)
    one = torch.ones(25, 1, dtype=torch.float64)
    covariance = 0.3 * torch.eye(25, dtype=torch.float64) + z @ z.T / 1.7 + one @ one.T / 0.02
    marginal = torch.distributions.MultivariateNormal(torch.zeros(25, dtype=torch.float64), covariance)
    design, prior = torch.cat([z, one], 1), torch.tensor([1.7] * LEVELS + [0.02], dtype=torch.float64)
    mode = torch.linalg.solve(design.T @ design / 0.3 + torch.diag(prior), design.T @ y[:, 0] / 0.3)
    torch.testing.assert_close(evidence_of(problem, mode, at).value, marginal.log_prob(y[:, 0]))
