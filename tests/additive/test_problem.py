"""The training model, its first and second order, against the same model written out plainly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayescope.additive import BlockFactors, TermWeights, noise_of
from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods import Bernoulli, Gaussian
from tests.additive.problems import (
    CASES,
    FIRST,
    SECOND,
    Case,
    flat,
    hyperparameters,
    labels,
    nets,
    normal,
    problem_of,
    start_of,
    state_of,
    table,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def state(case: Case) -> TermWeights:
    return state_of(case.problem, case.outputs)


def theta_of(state: TermWeights) -> torch.Tensor:
    return flat(state.thetas, state.intercept)


def test_outputs_are_the_sum_of_centred_terms(case: Case, state: TermWeights) -> None:
    torch.testing.assert_close(case.problem.outputs(state), case.plain.f(theta_of(state)), **CLOSE)


def test_the_intercept_is_the_mean_of_f_less_the_offset(case: Case, state: TermWeights) -> None:
    f = case.problem.outputs(state)
    f = f if case.problem.offset is None else f - case.problem.offset
    share = case.problem.weights / case.problem.rows()
    torch.testing.assert_close(share @ f, state.intercept, **CLOSE)


def test_log_joint_is_the_likelihood_and_the_prior(case: Case, state: TermWeights) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    diagonal = flat(
        at.diagonal(case.problem.families), torch.full((case.outputs,), at.intercept_precision, dtype=torch.float64)
    )
    theta, means = theta_of(state), theta_of(start_of(case.problem, case.outputs))
    expected = case.plain.log_likelihood(theta, case.likelihood) - 0.5 * (diagonal * (theta - means).square()).sum()
    torch.testing.assert_close(case.problem.log_joint(state, at), expected, **CLOSE)


def test_jacobians_and_the_gradient_are_autograds(case: Case, state: TermWeights) -> None:
    linear, theta = case.problem.linearized(state, case.likelihood), theta_of(state)
    jacobian = case.plain.jacobian(theta)
    columns = iter(case.plain.places)
    for own, design in zip(linear.jacobians, case.problem.designs, strict=True):
        for term, place in zip(own, design.place, strict=True):
            torch.testing.assert_close(term[place], jacobian[..., next(columns)], **CLOSE)
    gradient = torch.func.grad(lambda at: case.plain.log_likelihood(at, case.likelihood))(theta)
    torch.testing.assert_close(flat(*linear.gradient()), gradient, **CLOSE)


def test_products_are_those_of_the_dense_jacobian(case: Case, state: TermWeights) -> None:
    linear, jacobian = case.problem.linearized(state, case.likelihood), case.plain.jacobian(theta_of(state))
    v = state_of(case.problem, case.outputs, seed=30)
    torch.testing.assert_close(linear.forward(v.thetas, v.intercept), jacobian @ theta_of(v), **CLOSE)
    u = normal(*jacobian.shape[:2], seed=31)
    torch.testing.assert_close(flat(*linear.transposed(u)), torch.einsum("ncp,nc->p", jacobian, u), **CLOSE)


def test_blocks_are_those_of_the_dense_ggn(case: Case, state: TermWeights) -> None:
    linear = case.problem.linearized(state, case.likelihood)
    ggn = case.plain.ggn(theta_of(state), case.likelihood)
    blocks, intercept = linear.blocks
    for place, block in zip(case.plain.places, _each(blocks, intercept), strict=True):
        torch.testing.assert_close(block, ggn[place][:, place], **CLOSE)


def _each(blocks: list[torch.Tensor], intercept: torch.Tensor) -> list[torch.Tensor]:
    return [*[block for family in blocks for block in family], intercept]


def test_what_is_added_back_gives_the_jacobians_before_they_were_centred(case: Case, state: TermWeights) -> None:
    linear = case.problem.linearized(state, case.likelihood)
    parts = zip(case.problem.families, case.problem.designs, state.thetas, linear.jacobians, linear.means, strict=True)
    for family, design, theta, jacobian, mean in parts:
        raw = family.jacobian(theta, design.points).dense()
        there = (design.centred > 0)[..., None, None]
        torch.testing.assert_close(jacobian + torch.where(there, mean[0][:, None], mean[1][:, None]), raw, **CLOSE)


@pytest.mark.parametrize(
    "case", [some for some in CASES if isinstance(some.likelihood, Gaussian)], ids=lambda some: some.name
)
def test_another_noise_is_read_at_the_same_weights(case: Case) -> None:
    state = state_of(case.problem, case.outputs)
    linear = case.problem.linearized(state, case.likelihood)
    changed = linear.under(Gaussian(0.9))
    expected = case.problem.linearized(state, Gaussian(0.9))
    torch.testing.assert_close(changed.slope, expected.slope)
    torch.testing.assert_close(changed.curvature, expected.curvature)
    torch.testing.assert_close(changed.blocks, expected.blocks)


def test_solves_and_determinants_are_those_of_the_dense_blocks(case: Case, state: TermWeights) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    blocks = BlockFactors.of(case.problem.linearized(state, case.likelihood).blocks, case.problem.families, at, 0.0)
    diagonal = flat(
        at.diagonal(case.problem.families), torch.full((case.outputs,), at.intercept_precision, dtype=torch.float64)
    )
    dense = torch.zeros(len(diagonal), len(diagonal), dtype=torch.float64)
    full = case.plain.ggn(theta_of(state), case.likelihood) + torch.diag(diagonal)
    for place in case.plain.places:
        dense[place[:, None], place] = full[place][:, place]
    torch.testing.assert_close(blocks.logdet(), torch.linalg.slogdet(dense)[1], **CLOSE)
    v = state_of(case.problem, case.outputs, seed=33)
    torch.testing.assert_close(
        flat(*blocks.solve(v.thetas, v.intercept)), torch.linalg.solve(dense, theta_of(v)), **CLOSE
    )
    inverse = torch.linalg.inv(dense).diagonal()[: -case.outputs]
    torch.testing.assert_close(torch.cat([part.flatten() for part in blocks.inverse_diagonals()]), inverse, **CLOSE)


def test_damping_stands_on_the_diagonal() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    curvature = case.problem.linearized(start_of(case.problem, 1), case.likelihood).blocks
    damped = BlockFactors.of(curvature, case.problem.families, at, 7.0)
    (factor,), (block,) = damped.factors, curvature[0]
    (diagonal,) = at.diagonal(case.problem.families)
    torch.testing.assert_close(factor @ factor.mT, block + torch.diag_embed(diagonal + 7.0), **CLOSE)
    intercept = curvature[1] + (at.intercept_precision + 7.0) * torch.eye(1, dtype=torch.float64)
    torch.testing.assert_close(damped.intercept @ damped.intercept.mT, intercept, **CLOSE)


def test_a_block_that_is_not_positive_definite_is_refused() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    blocks, intercept = case.problem.linearized(start_of(case.problem, 1), case.likelihood).blocks
    for bad in (blocks[0] - 1e6 * torch.eye(blocks[0].shape[-1], dtype=torch.float64), blocks[0] * torch.nan):
        with pytest.raises(NotPositiveDefiniteError, match="positive definite"):
            BlockFactors.of(([bad], intercept), case.problem.families, at, 0.0)


def test_a_weight_is_so_many_rows() -> None:
    rows, y = table(10, seed=8, outputs=1), normal(10, 1)
    times = torch.tensor([1, 2, 3, 1, 1, 2, 1, 4, 1, 1])
    again = torch.arange(10).repeat_interleave(times)
    families = [nets(FIRST, SECOND), labels()]
    weighted = problem_of(families, rows, y, times.to(torch.float64))
    repeated = problem_of(families, rows[again], y[again])
    state, at = state_of(weighted, 1), hyperparameters(weighted, Gaussian(0.4))
    for here, there in zip(weighted.designs, repeated.designs, strict=True):
        torch.testing.assert_close(here.mass, there.mass)
    repeated = replace(repeated, centres=weighted.centres)
    torch.testing.assert_close(weighted.log_joint(state, at), repeated.log_joint(state, at), **CLOSE)
    one, other = (problem.linearized(state, Gaussian(0.4)) for problem in (weighted, repeated))
    torch.testing.assert_close(flat(*one.gradient()), flat(*other.gradient()), **CLOSE)
    for mine, theirs in zip(_each(*one.blocks), _each(*other.blocks), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_only_a_gaussian_has_a_noise() -> None:
    assert noise_of(Gaussian(0.25)) == 0.25
    assert noise_of(Bernoulli()) is None
