"""Weights of at least 0: modes and evidence against dense solvers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from torch import Tensor

from bayescope.additive import BlockEvidence, Design, MonotoneSteps, settled, step, tightest_log_evidence
from bayescope.likelihoods import Bernoulli, Gaussian, Likelihood
from tests.additive.problems import (
    FIRST,
    Case,
    dense_evidence,
    hyperparameters,
    labels,
    nets,
    normal,
    problem_of,
    seeded,
    steps,
    table,
)


def case(likelihood: Likelihood) -> Case:
    """Targets that the first feature moves as its effect may, and the second against its direction."""
    rows = table(60, seed=4)
    f = 1.5 * torch.tanh(rows.values[:, :1]) + rows.values[:, 1:2] + 0.3 * normal(60, 1, seed=7)
    targets = (f > 0).long() if isinstance(likelihood, Bernoulli) else f
    weights = 0.5 + torch.rand(60, generator=seeded(5), dtype=torch.float64)
    return Case("", problem_of([steps(hidden=16), labels()], rows, targets, weights), rows, likelihood, 1)


def mode(of: Case) -> tuple[Tensor, Tensor]:
    """Where steps end, and the diagonal of the prior's precision."""
    at = hyperparameters(of.problem, of.likelihood)
    return settled(of.problem, of.problem.centre, at, {}, "rest", 1e-9).theta, at.diagonal(of.problem.families)


def test_the_mode_of_a_linear_model_is_that_of_bounded_least_squares() -> None:
    of = case(Gaussian(0.3))
    theta, diagonal = mode(of)
    root = (of.problem.weights / 0.3).sqrt()[:, None]
    jacobian = of.plain.jacobian(theta)[:, 0]
    matrix = torch.cat([root * jacobian, torch.diag(diagonal.sqrt())])
    right = torch.cat([root[:, 0] * of.problem.targets[:, 0], torch.zeros(len(theta), dtype=torch.float64)])
    lowest = torch.where(of.problem.bounded, 0.0, -torch.inf)
    exact = lsq_linear(matrix.numpy(), right.numpy(), (lowest.numpy(), torch.inf), tol=1e-14, method="bvls").x
    jumps = jacobian @ (theta - torch.from_numpy(exact))
    assert float(jumps.abs().max()) < 1e-4
    held = of.problem.held(theta)
    assert 3 < int(held.sum()) < int(of.problem.bounded.sum())
    assert bool((theta[of.problem.bounded] >= 0.0).all())


def test_the_mode_of_a_logistic_model_is_that_of_a_bounded_search() -> None:
    of = case(Bernoulli())
    theta, diagonal = mode(of)

    def loss(some: Tensor) -> Tensor:
        return 0.5 * (diagonal * some.square()).sum() - of.plain.log_likelihood(some, of.likelihood)

    both = torch.func.grad_and_value(loss)

    def search(x) -> tuple[float, object]:
        slope, value = both(torch.from_numpy(x))
        return float(value), slope.numpy()

    bounds = [(0.0, None) if bounded else (None, None) for bounded in of.problem.bounded.tolist()]
    found = minimize(
        search,
        theta.numpy() + 0.1,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": 2000},
    )
    assert float(loss(theta)) == pytest.approx(found.fun, abs=1e-4)


def test_one_step_leads_to_the_best_point_of_the_face_that_it_reaches() -> None:
    of = case(Gaussian(0.3))
    at = hyperparameters(of.problem, of.likelihood)
    inside = of.problem.centre + 0.4 * of.problem.bounded

    def slope(theta: Tensor) -> Tensor:
        linear = of.problem.linearized(theta, of.likelihood)
        return linear.transposed(linear.slope) - at.diagonal(of.problem.families) * (theta - of.problem.centre)

    reached = step(of.problem, inside, at, 1e-8).theta
    held = of.problem.held(reached)
    assert int(held.sum()) > 3
    # On the way there the steps are found by conjugate gradients to a tenth of the gradient.
    assert float(slope(reached)[~held].norm()) < 0.1 * float(slope(inside)[~held].norm())


def test_the_evidence_is_that_of_the_weights_which_are_not_held() -> None:
    of = case(Bernoulli())
    theta, diagonal = mode(of)
    at = hyperparameters(of.problem, of.likelihood)
    evidence = BlockEvidence.of(of.problem, theta, at, of.problem.linearized(theta, of.likelihood))
    free = ~of.problem.held(theta)
    blocks = [block[free[block]] for block in of.plain.places]
    # A held weight's prior stands against the same number in log∣A∣.
    expected = dense_evidence(of.plain, theta, of.problem.centre, diagonal, of.likelihood, blocks)
    assert float(evidence.value) == pytest.approx(float(expected - 0.5 * diagonal[~free].log().sum()), abs=1e-8)
    whole = dense_evidence(of.plain, theta, of.problem.centre, diagonal, of.likelihood, [free.nonzero()[:, 0]])
    fit = settled(of.problem, theta, at, {}, "rest", 1e9)
    fit = replace(fit, theta=theta, evidence=evidence, linear=of.problem.linearized(theta, of.likelihood))
    assert tightest_log_evidence(fit) == pytest.approx(float(whole - 0.5 * diagonal[~free].log().sum()), abs=1e-8)
    determined = [float(gamma.sum()) for gamma in evidence.determined]
    assert 0 < determined[0] <= float(free[: theta.shape[0] - 6].sum())


def test_there_is_a_step_for_each_part_of_the_data() -> None:
    family, rows = steps(hidden=10), table(25, seed=8)
    numbers = rows.values[rows.levels[:, 0] == -1, 0].sort().values
    first, line = family.centres[0, :5], family.centres[0, 5]
    assert line == first[2]
    assert first.tolist() == sorted(first.tolist())
    assert [round(float((numbers < at).double().mean()), 1) for at in first] == [0.1, 0.3, 0.5, 0.7, 0.9]
    widths = torch.stack([first[1] - first[0], *(first[2:] - first[:-2]) / 2, first[-1] - first[-2]])
    torch.testing.assert_close(family.slopes[0, :5], 1.0 / widths)
    assert float(family.slopes[0, 5]) == pytest.approx(0.5 / float(first[4] - first[0]))


def test_steps_at_one_value_have_a_width() -> None:
    rows = table(25, seed=8)
    rows.values[:20, 0] = 0.0
    bare = nets(FIRST)
    design = Design.of(bare, rows, torch.ones(25, dtype=torch.float64))
    family = MonotoneSteps.of([FIRST], [1], 1, 20, design.points, design.mass)
    assert bool(family.slopes.isfinite().all())
    assert bool((family.slopes > 0).all())
