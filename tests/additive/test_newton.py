"""Steps that climb the log joint, against dense solves and autograd."""

from __future__ import annotations

import pytest
import torch

from bayescope.additive import AdditiveHyperparameters, BlockFactors, NewtonStep, TermWeights, step
from bayescope.additive import fit as newton
from bayescope.additive.fit import FIRST_DAMPING, LEAST_DAMPING
from bayescope.likelihoods import Gaussian
from tests.additive.problems import (
    CASES,
    FIRST,
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


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def theta_of(state: TermWeights) -> torch.Tensor:
    return flat(state.thetas, state.intercept)


def diagonal_of(case: Case, at: AdditiveHyperparameters) -> torch.Tensor:
    constant = torch.full((case.outputs,), at.intercept_precision, dtype=torch.float64)
    return flat(at.diagonal(case.problem.families), constant)


def gradient(case: Case, state: TermWeights, at: AdditiveHyperparameters) -> torch.Tensor:
    """That of the log joint, by autograd of the plain model."""
    theta, means = theta_of(state), theta_of(start_of(case.problem, case.outputs))
    slope = torch.func.grad(lambda some: case.plain.log_likelihood(some, case.likelihood))(theta)
    return slope - diagonal_of(case, at) * (theta - means)


def climbed(case: Case, at: AdditiveHyperparameters, steps: int) -> tuple[TermWeights, list[NewtonStep]]:
    state, damping, taken = start_of(case.problem, case.outputs), FIRST_DAMPING, []
    for _ in range(steps):
        taken.append(step(case.problem, state, at, damping))
        state, damping = taken[-1].state, taken[-1].damping
    return state, taken


def test_a_step_never_lowers_the_log_joint(case: Case) -> None:
    at = hyperparameters(case.problem, case.likelihood)
    before = case.problem.log_joint(start_of(case.problem, case.outputs), at)
    _, taken = climbed(case, at, 8)
    for each in taken:
        assert each.gain >= 0.0
        assert float(each.log_joint) == float(case.problem.log_joint(each.state, at))
        assert float(each.log_joint - before) == pytest.approx(each.gain, abs=1e-9)
        before = each.log_joint
    assert taken[0].gain > 0.1


def test_steps_end_at_a_mode(case: Case) -> None:
    at = hyperparameters(case.problem, case.likelihood)

    def left(state: TermWeights) -> float:
        """What a Newton step would still gain, ½ gᵀ A⁻¹ g, in nats."""
        a = case.plain.ggn(theta_of(state), case.likelihood) + torch.diag(diagonal_of(case, at))
        slope = gradient(case, state, at)
        return float(0.5 * slope @ torch.linalg.solve(a, slope))

    state, _ = climbed(case, at, 120)
    assert left(start_of(case.problem, case.outputs)) > 2.0
    assert left(state) < 0.02


def test_a_step_solves_the_damped_system_of_the_full_ggn(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "RESIDUAL", 1e-12)
    monkeypatch.setattr(newton, "ITERATIONS", 500)
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    damping = 200.0
    taken = step(case.problem, state, at, damping)
    dense = case.plain.ggn(theta_of(state), case.likelihood) + torch.diag(diagonal_of(case, at))
    slope = gradient(case, state, at)
    expected = torch.linalg.solve(dense + damping * torch.eye(len(slope), dtype=torch.float64), slope)
    torch.testing.assert_close(theta_of(taken.state) - theta_of(state), expected, rtol=1e-6, atol=1e-8)
    foretold = float(slope @ expected - 0.5 * expected @ dense @ expected)
    factor = 1.0 - (2.0 * taken.gain / foretold - 1.0) ** 3
    assert taken.damping == pytest.approx(damping * max(newton.FALL, factor))
    assert taken.gain > 0.0


def test_conjugate_gradients_need_no_more_iterations_than_there_are_weights(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    monkeypatch.setattr(newton, "RESIDUAL", 1e-12)
    monkeypatch.setattr(newton, "ITERATIONS", len(theta_of(state)))
    linear = case.problem.linearized(state, case.likelihood)
    damping = 1e-6
    blocks = BlockFactors.of(linear.blocks, case.problem.families, at, damping)
    solver = newton._Solver(linear, blocks, at.diagonal(case.problem.families), at.intercept_precision, damping)
    g = state_of(case.problem, case.outputs, seed=60)
    dense = case.plain.ggn(theta_of(state), case.likelihood) + torch.diag(diagonal_of(case, at) + damping)
    expected = torch.linalg.solve(dense, theta_of(g))
    found = flat(*solver.solve(g.thetas, g.intercept))
    assert float((found - expected).norm()) < 1e-7 * float(expected.norm())


def test_conjugate_gradients_stop_at_an_ascent_direction(case: Case) -> None:
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    taken = step(case.problem, state, at, 50.0)
    assert float(gradient(case, state, at) @ (theta_of(taken.state) - theta_of(state))) > 0.0


def test_a_linear_model_is_solved_at_once() -> None:
    rows, y = table(40), normal(40, 1)
    problem = problem_of([labels()], rows, y)
    at = hyperparameters(problem, Gaussian(0.3))
    taken = step(problem, start_of(problem, 1), at, LEAST_DAMPING)
    again = step(problem, taken.state, at, taken.damping)
    assert again.gain < 1e-6 * taken.gain
    one_hot = torch.nn.functional.one_hot(rows.levels[:, 2], labels().levels).to(torch.float64)
    design = torch.cat([one_hot - one_hot.mean(0), torch.ones(40, 1, dtype=torch.float64)], 1)
    diagonal = torch.cat([at.diagonal(problem.families)[0].flatten(), torch.tensor([at.intercept_precision])])
    ridge = torch.linalg.solve(design.T @ design / 0.3 + torch.diag(diagonal), design.T @ y[:, 0] / 0.3)
    torch.testing.assert_close(flat(taken.state.thetas, taken.state.intercept), ridge, rtol=1e-6, atol=1e-7)


def test_damping_rises_until_a_step_raises_the_log_joint() -> None:
    problem = problem_of([nets(FIRST, hidden=6)], table(30), 30.0 * normal(30, 1))
    at, state = hyperparameters(problem, Gaussian(1e-4)), state_of(problem, 1)
    taken = step(problem, state, at, LEAST_DAMPING)
    assert taken.gain > 0.0
    tried = taken.damping / newton.FALL
    assert tried > LEAST_DAMPING
    assert float(taken.log_joint) > float(problem.log_joint(state, at))


def test_at_the_mode_there_is_no_step() -> None:
    case = CASES[0]
    at = hyperparameters(case.problem, case.likelihood)
    state, _ = climbed(case, at, 80)
    taken = step(case.problem, state, at, 1e-3)
    assert taken.gain < 1e-10
    torch.testing.assert_close(theta_of(taken.state), theta_of(state), rtol=0.0, atol=1e-4)


def test_a_curvature_at_hand_is_not_computed_again() -> None:
    case = CASES[1]
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    linear = case.problem.linearized(state, case.likelihood)
    given, computed = step(case.problem, state, at, 1.0, linear), step(case.problem, state, at, 1.0)
    assert torch.equal(theta_of(given.state), theta_of(computed.state))


def test_the_block_diagonal_is_a_good_preconditioner() -> None:
    """Its blocks are those of the full GGN, so that the preconditioned system has few far eigenvalues."""
    case = CASES[2]
    at, state = hyperparameters(case.problem, case.likelihood), state_of(case.problem, case.outputs)
    blocks = BlockFactors.of(case.problem.linearized(state, case.likelihood).blocks, case.problem.families, at, 0.0)
    dense = case.plain.ggn(theta_of(state), case.likelihood) + torch.diag(diagonal_of(case, at))
    columns = []
    for column in dense.T:
        parts, intercept = _split(column, blocks, case.outputs)
        columns.append(flat(*blocks.solve(parts, intercept)))
    eigenvalues = torch.linalg.eigvals(torch.stack(columns, 1)).real
    # diag(A⁻¹ A) = 1 block by block: the mean of the eigenvalues is 1.
    assert float(eigenvalues.mean()) == pytest.approx(1.0)
    assert float(eigenvalues.max()) <= len(case.plain.places) + 1e-9


def _split(v: torch.Tensor, blocks: BlockFactors, outputs: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    sizes = [factor.shape[0] * factor.shape[1] for factor in blocks.factors]
    *parts, intercept = v.split([*sizes, outputs])
    return [part.view(factor.shape[:2]) for part, factor in zip(parts, blocks.factors, strict=True)], intercept
