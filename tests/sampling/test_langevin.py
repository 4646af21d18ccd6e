"""Langevin steps: their stationary moments are those that the discretised chain has in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor, nn

from bayescope.sampling import Langevin, StepSizes

REPLICAS = 20_000
# Bounds of z-scores: a variance is judged ten times below, each with a false alarm in 10⁵ runs.
Z = 4.4


def stationary(step: float, curvature: float, friction: float, temperature: float) -> np.ndarray:
    """The covariance S of (θ, v) with S = F S Fᵀ + Q, for v' = (1−α)v − ηΛθ + √(2αηT) ξ and θ' = θ + v'."""
    keep, pull = 1.0 - friction, step * curvature
    moves = np.array([[1.0 - pull, keep], [-pull, keep]])
    noise = 2.0 * friction * step * temperature * np.ones((2, 2))
    return solve_discrete_lyapunov(moves, noise)


@pytest.mark.parametrize("step", [0.01, 0.5, 1.5])
@pytest.mark.parametrize("friction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_documented_variance_solves_the_lyapunov_equation(step: float, friction: float, temperature: float) -> None:
    curvature = 0.9
    closed = temperature / (curvature * (1.0 - step * curvature / (2.0 * (2.0 - friction))))
    assert stationary(step, curvature, friction, temperature)[0, 0] == pytest.approx(closed, rel=1e-9)


def walked(optimizer: Langevin, theta: nn.Parameter, curvature: Tensor, rows: int, steps: int) -> None:
    def closure() -> Tensor:
        theta.grad = curvature * theta.detach() / rows
        return torch.zeros(())

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize(
    ("step", "friction", "temperature"), [(0.3, 1.0, 1.0), (0.02, 1.0, 0.5), (0.2, 0.2, 1.0), (0.5, 0.6, 2.0)]
)
def test_moments_of_the_chain_are_the_closed_form(step: float, friction: float, temperature: float) -> None:
    """Replicas are independent, so that a variance's standard error is √(2/R) of it."""
    rows, curvature = 10, torch.tensor([0.5, 2.0], dtype=torch.float64)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        theta = nn.Parameter(torch.randn(REPLICAS, 2, dtype=torch.float64))
        optimizer = Langevin(
            [theta], sizes=StepSizes(step * rows), friction=friction, temperature=temperature, rows=rows, masks={}
        )
        walked(optimizer, theta, curvature, rows, int(12 * max(1.0, friction / step)) + 60)
    velocity = optimizer.state[theta]["velocity"]
    for place, of_one in enumerate(curvature.tolist()):
        expected = stationary(step, of_one, friction, temperature)
        position, speed = theta.detach()[:, place], velocity[:, place]
        assert abs(float(position.mean())) < Z * math.sqrt(expected[0, 0] / REPLICAS)
        for found, sure in ((position, expected[0, 0]), (speed, expected[1, 1])):
            assert abs(float(found.square().mean()) / sure - 1.0) < Z * math.sqrt(2.0 / REPLICAS)
        product = float((position * speed).mean())
        spread = math.sqrt((expected[0, 0] * expected[1, 1] + expected[0, 1] ** 2) / REPLICAS)
        assert abs(product - expected[0, 1]) < Z * spread


def test_entries_that_a_mask_leaves_out_stay() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    with torch.random.fork_rng():
        theta = nn.Parameter(torch.ones(3, 2, 2))
        optimizer = Langevin([theta], sizes=StepSizes(0.1), friction=0.5, temperature=1.0, rows=1, masks={0: mask})
        walked(optimizer, theta, torch.ones(2, 2), 1, 5)
    assert bool((theta[:, ~mask] == 1.0).all())
    assert bool((theta[:, mask] != 1.0).all())


def test_cycles_fall_by_a_cosine_and_are_quiet_at_first() -> None:
    sizes = StepSizes(2.0, cycle=8, quiet=3)
    found = [sizes.at(step) for step in range(16)]
    assert [noisy for _, noisy in found] == ([False] * 3 + [True] * 5) * 2
    assert found[:8] == found[8:]
    assert [lr for lr, _ in found[:8]] == pytest.approx([1.0 + math.cos(math.pi * k / 8) for k in range(8)])
    assert StepSizes(2.0).at(1000) == (2.0, True)


def test_without_noise_it_is_gradient_descent_with_momentum() -> None:
    curvature = torch.tensor([0.5, 2.0])
    theta, other = nn.Parameter(torch.tensor([1.0, -3.0])), nn.Parameter(torch.tensor([1.0, -3.0]))
    quiet = Langevin(
        [theta], sizes=StepSizes(0.2, cycle=10**9, quiet=10**9), friction=0.1, temperature=1.0, rows=5, masks={}
    )
    walked(quiet, theta, curvature, 5, 30)
    momentum = torch.optim.SGD([other], lr=0.2, momentum=0.9)
    for _ in range(30):
        other.grad = curvature * other.detach() / 5
        momentum.step()
    torch.testing.assert_close(theta, other)
