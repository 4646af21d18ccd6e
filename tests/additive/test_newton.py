"""Steps that climb the log joint, against dense solves and autograd."""

from __future__ import annotations

import pytest
import torch

from bayescope.additive import AdditiveHyperparameters, BlockFactors, NewtonStep, solved, step
from bayescope.likelihoods import Gaussian
from tests.additive.problems import (
    CASES,
    FIRST,
    Case,
    hyperparameters,
    labels,
    nets,
    normal,
    problem_of,
    state_of,
    table,
)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def diagonal_of(case: Case, at: AdditiveHyperparameters) -> torch.Tensor:
    return at.diagonal(case.problem.families)


def gradient(case: Case, state: torch.Tensor, at: AdditiveHyperparameters) -> torch.Tensor:
    """That of the log joint, by autograd of the plain model."""
    theta, means = state, case.problem.centre
    slope = torch.func.grad(lambda some: case.plain.log_likelihood(some, case.likelihood))(theta)
    return slope - diagonal_of(case, at) * (theta - means)


def climbed(case: Case, at: AdditiveHyperparameters, steps: int) -> tuple[torch.Tensor, list[NewtonStep]]:
    state, damping, taken = case.problem.centre, 1.0, []
    for _ in range(steps):
        taken.append(step(case.problem, state, at, damping))
        state, damping = taken[-1].theta, taken[-1].damping
    return state, taken


def test_a_step_never_lowers_the_log_joint(case: Case) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    before = case.problem.log_joint(case.problem.centre, at)
    _, taken = climbed(case, at, 8)
    for each in taken:
        assert each.gain >= 0.0
        assert float(each.log_joint) == float(case.problem.log_joint(each.theta, at))
        assert float(each.log_joint - before) == pytest.approx(each.gain, abs=1e-9)
        before = each.log_joint
    assert taken[0].gain > 0.1


def test_steps_end_at_a_mode(case: Case) -> None:
    at = hyperparameters(case.problem, case.likelihood)

    def left(state: torch.Tensor) -> float:
        """What a Newton step would still gain, ½ gᵀ A⁻¹ g, in nats."""
        a = case.plain.ggn(state, case.likelihood) + torch.diag(diagonal_of(case, at))
        slope = gradient(case, state, at)
        return float(0.5 * slope @ torch.linalg.solve(a, slope))

    state, _ = climbed(case, at, 120)
    assert left(case.problem.centre) > 2.0
    assert left(state) < 0.02


def test_a_step_goes_along_the_solution_of_the_damped_system_of_the_full_ggn(case: Case) -> None:
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    damping = 2000.0
    taken = step(case.problem, state, at, damping)
    dense = case.plain.ggn(state, case.likelihood) + torch.diag(diagonal_of(case, at))
    slope = gradient(case, state, at)
    expected = torch.linalg.solve(dense + damping * torch.eye(len(slope), dtype=torch.float64), slope)
    moved = taken.theta - state
    assert float((moved - expected).norm()) < 0.15 * float(expected.norm())
    foretold = float(slope @ moved - 0.5 * moved @ dense @ moved)
    factor = 1.0 - (2.0 * taken.gain / foretold - 1.0) ** 3
    assert taken.damping == pytest.approx(damping * max(1.0 / 3.0, factor), rel=0.02)
    assert taken.gain > 0.0


def test_conjugate_gradients_need_no_more_iterations_than_there_are_weights(case: Case) -> None:
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    linear, diagonal = case.problem.linearized(state, case.likelihood), diagonal_of(case, at) + 1e-6
    g = state_of(case.problem, case.outputs, seed=60)
    expected = torch.linalg.solve(case.plain.ggn(state, case.likelihood) + torch.diag(diagonal), g)
    found = solved(linear, diagonal, g, residual=1e-12, most=len(state))
    assert float((found - expected).norm()) < 1e-7 * float(expected.norm())


def test_conjugate_gradients_stop_at_an_ascent_direction(case: Case) -> None:
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    taken = step(case.problem, state, at, 50.0)
    assert float(gradient(case, state, at) @ (taken.theta - state)) > 0.0


def test_a_linear_model_is_solved_at_once() -> None:
    rows, y = table(40), normal(40, 1)
    problem = problem_of([labels()], rows, y)
    at = hyperparameters(problem, Gaussian(0.3))
    taken = step(problem, problem.centre, at, 1e-8)
    again = step(problem, taken.theta, at, taken.damping)
    assert again.gain < 1e-6 * taken.gain
    one_hot = torch.nn.functional.one_hot(rows.levels[:, 2], labels().levels).to(torch.float64)
    design = torch.cat([one_hot - one_hot.mean(0), torch.ones(40, 1, dtype=torch.float64)], 1)
    diagonal = at.diagonal(problem.families)
    ridge = torch.linalg.solve(design.T @ design / 0.3 + torch.diag(diagonal), design.T @ y[:, 0] / 0.3)
    torch.testing.assert_close(taken.theta, ridge, rtol=1e-6, atol=1e-7)


def test_damping_rises_until_a_step_raises_the_log_joint() -> None:
    problem = problem_of([nets(FIRST, hidden=6)], table(30), 30.0 * normal(30, 1))
    at, state = hyperparameters(problem, Gaussian(1e-4)), state_of(problem, 1)
    taken = step(problem, state, at, 1e-8)
    assert taken.gain > 0.0
    assert 3.0 * taken.damping > 1e-8
    assert float(taken.log_joint) > float(problem.log_joint(state, at))


def test_at_the_mode_there_is_no_step() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    state, _ = climbed(case, at, 80)
    taken = step(case.problem, state, at, 1e-3)
    assert taken.gain < 1e-10
    torch.testing.assert_close(taken.theta, state, rtol=0.0, atol=1e-4)


def test_a_curvature_at_hand_is_not_computed_again() -> None:
    case = CASES[1]
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    linear = case.problem.linearized(state, case.likelihood)
    given, computed = step(case.problem, state, at, 1.0, linear), step(case.problem, state, at, 1.0)
    assert torch.equal(given.theta, computed.theta)


def test_the_block_diagonal_is_a_good_preconditioner() -> None:
    """Its blocks are those of the full GGN, so that the preconditioned system has few far eigenvalues."""
    case = CASES[2]
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    blocks = BlockFactors.of(case.problem.linearized(state, case.likelihood).blocks, diagonal_of(case, at))
    dense = case.plain.ggn(state, case.likelihood) + torch.diag(diagonal_of(case, at))
    eigenvalues = torch.linalg.eigvals(torch.stack([blocks.solve(column) for column in dense.T], 1)).real
    # diag(A⁻¹ A) = 1 block by block: the mean of the eigenvalues is 1.
    assert float(eigenvalues.mean()) == pytest.approx(1.0)
    assert float(eigenvalues.max()) <= len(case.plain.places) + 1e-9
