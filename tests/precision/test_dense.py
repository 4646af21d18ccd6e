"""What is dense alone: what is refused, when, and how."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import NotPositiveDefiniteError, UnsupportedError
from bayescope.precision import DensePrecision, DiagonalPrecision


def test_an_indefinite_matrix_is_refused_with_its_direction():
    with pytest.raises(NotPositiveDefiniteError, match="smallest eigenvalue -1") as caught:
        DensePrecision(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert caught.value.smallest_eigenvalue == pytest.approx(-1.0)
    torch.testing.assert_close(caught.value.direction.abs(), torch.full((2,), 0.5**0.5, dtype=torch.float64))


def test_non_finite_entries_are_refused():
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        DensePrecision(torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]))


def test_no_jitter_rescues_a_singular_matrix():
    with pytest.raises(NotPositiveDefiniteError):
        DensePrecision(torch.zeros(2, 2))


def test_a_semidefinite_matrix_is_refused_when_a_factor_is_needed():
    curvature = DensePrecision(torch.diag(torch.tensor([2.0, 0.0])), name="the curvature", semidefinite=True)
    assert curvature.multiply(torch.ones(2, dtype=torch.float64)).tolist() == [2.0, 0.0]
    for verb in (curvature.logdet, curvature.marginal_variance):
        with pytest.raises(NotPositiveDefiniteError, match="the curvature"):
            verb()
    assert curvature.add_diagonal(1.0).logdet().exp() == pytest.approx(3.0)


def test_with_a_diagonal_added_a_semidefinite_matrix_is_an_ordinary_one():
    curvature = DensePrecision(torch.zeros(2, 2), semidefinite=True)
    with pytest.raises(NotPositiveDefiniteError):
        curvature.add_diagonal(torch.tensor([1.0, 0.0]))


def test_a_sum_is_semidefinite_where_both_are():
    curvature = DensePrecision(torch.zeros(2, 2), semidefinite=True)
    assert (curvature + curvature).to_dense().count_nonzero() == 0
    definite = curvature + DensePrecision(torch.eye(2))
    assert definite.logdet() == 0
    with pytest.raises(NotPositiveDefiniteError):  # at once, and not when a factor is first needed
        definite + DensePrecision(-2.0 * torch.eye(2), semidefinite=True)


def test_unlike_structures_and_sizes_are_not_summed():
    precision = DensePrecision(torch.eye(2))
    with pytest.raises(UnsupportedError, match=r"full: matrix \(2, 2\).*diagonal"):
        precision + DiagonalPrecision(torch.ones(2))
    with pytest.raises(UnsupportedError, match=r"\(3, 3\)"):
        precision + DensePrecision(torch.eye(3))


def test_from_the_covariance():
    covariance = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    precision = DensePrecision.from_covariance(covariance)
    torch.testing.assert_close(precision.to_dense() @ covariance, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(precision.add_diagonal(1.0).logdet(), torch.logdet(covariance.inverse() + torch.eye(2)))


def test_what_is_read_of_a_precision_can_be_written_to() -> None:
    for precision in (DensePrecision(torch.eye(3).double()), DiagonalPrecision(torch.ones(3))):
        precision.diagonal().mul_(4.0)
        assert torch.equal(precision.diagonal(), torch.ones(3, dtype=torch.float64))


def test_of_no_weights_there_are_no_variances() -> None:
    assert DensePrecision(torch.zeros(0, 0)).marginal_variance().shape == (0,)
