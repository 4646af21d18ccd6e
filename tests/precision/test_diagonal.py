"""What is diagonal alone: what is refused, when, and how."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import NotPositiveDefiniteError, UnsupportedError
from bayescope.precision import DiagonalPrecision


def test_non_finite_and_non_positive_entries_are_refused():
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        DiagonalPrecision(torch.tensor([1.0, float("inf")]))
    with pytest.raises(NotPositiveDefiniteError, match="index 1") as caught:
        DiagonalPrecision(torch.tensor([1.0, -2.0]))
    assert caught.value.smallest_eigenvalue == -2.0
    assert caught.value.direction.tolist() == [0.0, 1.0]


def test_a_semidefinite_matrix_is_refused_when_the_inverse_is_needed():
    curvature = DiagonalPrecision(torch.tensor([1.0, 0.0]), name="the curvature", semidefinite=True)
    assert curvature.diagonal().tolist() == [1.0, 0.0]
    one = torch.ones(2, dtype=torch.float64)
    for verb in (curvature.logdet, curvature.marginal_variance, lambda: curvature.solve(one)):
        with pytest.raises(NotPositiveDefiniteError, match="the curvature"):
            verb()
    assert curvature.add_diagonal(1.0).solve(one).tolist() == [0.5, 1.0]
    with pytest.raises(NotPositiveDefiniteError, match="index 1"):
        curvature.add_diagonal(torch.tensor([1.0, 0.0]))
    assert (curvature + curvature).diagonal().tolist() == [2.0, 0.0]


def test_sizes_that_differ_are_not_summed():
    with pytest.raises(UnsupportedError, match=r"\(3,\)"):
        DiagonalPrecision(torch.ones(2)) + DiagonalPrecision(torch.ones(3))
