"""The training model, its first and second order, against the same model written out plainly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bayescope.additive import BlockFactors, noise_of
from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods import Bernoulli, Gaussian
from tests.additive.problems import (
    CASES,
    FIRST,
    SECOND,
    Case,
    hyperparameters,
    labels,
    nets,
    normal,
    problem_of,
    state_of,
    table,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def state(case: Case) -> torch.Tensor:
    return state_of(case.problem, case.outputs)


def test_outputs_are_the_sum_of_centred_terms(case: Case, state: torch.Tensor) -> None:
    torch.testing.assert_close(case.problem.outputs(state), case.plain.f(state), **CLOSE)


def test_the_intercept_is_the_mean_of_f_less_the_offset(case: Case, state: torch.Tensor) -> None:
    f = case.problem.outputs(state)
    f = f if case.problem.offset is None else f - case.problem.offset
    share = case.problem.weights / case.problem.rows()
    torch.testing.assert_close(share @ f, state[-case.outputs :], **CLOSE)


def test_log_joint_is_the_likelihood_and_the_prior(case: Case, state: torch.Tensor) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    diagonal = at.diagonal(case.problem.families)
    theta, means = state, case.problem.centre
    expected = case.plain.log_likelihood(theta, case.likelihood) - 0.5 * (diagonal * (theta - means).square()).sum()
    torch.testing.assert_close(case.problem.log_joint(state, at), expected, **CLOSE)


def test_jacobians_and_the_gradient_are_autograds(case: Case, state: torch.Tensor) -> None:
    linear, theta = case.problem.linearized(state, case.likelihood), state
    jacobian = case.plain.jacobian(theta)
    columns = iter(case.plain.places)
    for own, design in zip(linear.jacobians, case.problem.designs, strict=True):
        for term, place in zip(own, design.place, strict=True):
            torch.testing.assert_close(term[place], jacobian[..., next(columns)], **CLOSE)
    gradient = torch.func.grad(lambda at: case.plain.log_likelihood(at, case.likelihood))(theta)
    torch.testing.assert_close(linear.transposed(linear.slope), gradient, **CLOSE)


def test_products_are_those_of_the_dense_jacobian(case: Case, state: torch.Tensor) -> None:
    linear, jacobian = case.problem.linearized(state, case.likelihood), case.plain.jacobian(state)
    v = state_of(case.problem, case.outputs, seed=30)
    torch.testing.assert_close(linear.forward(v), jacobian @ v, **CLOSE)
    u = normal(*jacobian.shape[:2], seed=31)
    torch.testing.assert_close(linear.transposed(u), torch.einsum("ncp,nc->p", jacobian, u), **CLOSE)


def test_blocks_are_those_of_the_dense_ggn(case: Case, state: torch.Tensor) -> None:
    linear = case.problem.linearized(state, case.likelihood)
    ggn = case.plain.ggn(state, case.likelihood)
    for place, block in zip(case.plain.places, _each(linear.blocks), strict=True):
        torch.testing.assert_close(block, ggn[place][:, place], **CLOSE)


def _each(blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    return [block for family in blocks for block in family]


def test_what_is_added_back_gives_the_jacobians_before_they_were_centred(case: Case, state: torch.Tensor) -> None:
    linear = case.problem.linearized(state, case.likelihood)
    parts = zip(
        case.problem.families,
        case.problem.designs,
        case.problem.split(state)[0],
        linear.jacobians,
        linear.means,
        strict=True,
    )
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


def test_solves_and_determinants_are_those_of_the_dense_blocks(case: Case, state: torch.Tensor) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    diagonal = at.diagonal(case.problem.families)
    blocks = BlockFactors.of(case.problem.linearized(state, case.likelihood).blocks, diagonal)
    dense = torch.zeros(len(diagonal), len(diagonal), dtype=torch.float64)
    full = case.plain.ggn(state, case.likelihood) + torch.diag(diagonal)
    for place in case.plain.places:
        dense[place[:, None], place] = full[place][:, place]
    torch.testing.assert_close(blocks.logdet(), torch.linalg.slogdet(dense)[1], **CLOSE)
    v = state_of(case.problem, case.outputs, seed=33)
    torch.testing.assert_close(blocks.solve(v), torch.linalg.solve(dense, v), **CLOSE)
    torch.testing.assert_close(blocks.inverse_diagonal(), torch.linalg.inv(dense).diagonal(), **CLOSE)


def test_a_block_that_is_not_positive_definite_is_refused() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    block, intercept = case.problem.linearized(case.problem.centre, case.likelihood).blocks
    for bad in (block - 1e6 * torch.eye(block.shape[-1], dtype=torch.float64), block * torch.nan):
        with pytest.raises(NotPositiveDefiniteError, match="positive definite"):
            BlockFactors.of([bad, intercept], at.diagonal(case.problem.families))


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
    repeated = replace(repeated, centre=weighted.centre)
    torch.testing.assert_close(weighted.log_joint(state, at), repeated.log_joint(state, at), **CLOSE)
    one, other = (problem.linearized(state, Gaussian(0.4)) for problem in (weighted, repeated))
    torch.testing.assert_close(one.transposed(one.slope), other.transposed(other.slope), **CLOSE)
    for mine, theirs in zip(_each(one.blocks), _each(other.blocks), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_only_a_gaussian_has_a_noise() -> None:
    assert noise_of(Gaussian(0.25)) == 0.25
    assert noise_of(Bernoulli()) is None
