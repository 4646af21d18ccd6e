"""The rows that are chosen leave least of the trace; none is chosen twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.gaussian_process import KernelRows, greedy_points
from tests.laplace.problems import normal

COTANGENTS, DIM = 2, 15
PRIOR = 0.3 + normal(DIM, seed=1).square()


def left_over(u: Tensor, chosen: list[int]) -> float:
    """tr(P₀⁻¹(H − H̃)): the squared distances of the whitened rows from the span of the chosen inputs'."""
    white = (u / PRIOR.sqrt()).unflatten(0, (-1, COTANGENTS))
    basis = white[chosen].flatten(0, 1)
    projected = white.flatten(0, 1) @ torch.linalg.pinv(basis) @ basis if chosen else 0.0 * white.flatten(0, 1)
    return float((white.flatten(0, 1) - projected).square().sum())


def by_search(u: Tensor, points: int) -> list[int]:
    """Each the input whose own rows have the most left over."""
    white = (u / PRIOR.sqrt()).unflatten(0, (-1, COTANGENTS))
    chosen: list[int] = []
    for _ in range(points):
        basis = white[chosen].flatten(0, 1)
        rest = white.flatten(0, 1)
        if chosen:
            rest = rest - rest @ torch.linalg.pinv(basis) @ basis
        chosen.append(int(rest.square().sum(1).unflatten(0, (-1, COTANGENTS)).sum(1).argmax()))
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(5))
def test_each_is_the_one_that_those_before_explain_least(seed: int) -> None:
    # Rows that are much alike: what those before explain decides, not what is largest.
    u = normal(1, DIM, seed=seed) + 0.7 * normal(20 * COTANGENTS, DIM, seed=100 + seed)
    for points in (1, 2, 4, 6):
        found = greedy_points(KernelRows(u), COTANGENTS, PRIOR, points).tolist()
        assert found == by_search(u, points)


def test_nothing_is_chosen_once_nothing_is_left() -> None:
    few = normal(3 * COTANGENTS, DIM, seed=3)
    u = torch.cat([few, few, 0.5 * few])  # three inputs, three times over
    chosen = greedy_points(KernelRows(u), COTANGENTS, PRIOR, 9).tolist()
    assert len(chosen) == 3
    assert left_over(u, chosen) < 1e-10
