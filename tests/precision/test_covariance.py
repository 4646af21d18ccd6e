"""A covariance of low rank plus diagonal: zeros in its diagonal, what is refused, and the digits that it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.precision import BlockPrecision, LowRankCovariance
from tests.precision.cases import covariance, normal, outer_tape, positive, seeded

SHAPE, DIM = (1, 3, 4), 12
FIXED = {"one": [5], "fewer than columns": [0, 7], "more than columns": [0, 2, 3, 7, 11], "all": list(range(DIM))}


def with_zeros(fixed: list[int], factor: Tensor) -> tuple[LowRankCovariance, Tensor]:
    """The precision and its covariance, dense."""
    variances = positive(DIM, g=seeded(0))
    variances[fixed] = 0.0
    return LowRankCovariance(variances, factor), torch.diag(variances) + factor @ factor.mT


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("still", [False, True])
def test_weights_without_a_variance_of_their_own(fixed, rank, still):
    """They are exact functions of the others, or, where L is 0 as well, never move."""
    factor = normal(DIM, rank, g=seeded(1))
    if still:
        factor[FIXED[fixed]] = 0.0
    precision, truth = with_zeros(FIXED[fixed], factor)
    columns, tape = normal(DIM, 2, g=seeded(2)), outer_tape(SHAPE, 4, 2, 3, torch.float64)
    jacobian = tape.jacobian(slice(None))
    root = precision.sqrt_solve(torch.eye(DIM, dtype=torch.float64))
    torch.testing.assert_close(root @ root.mT, truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(precision.sqrt_solve(columns[:, 0]), root @ columns[:, 0])
    torch.testing.assert_close(precision.solve(columns), truth @ columns)
    torch.testing.assert_close(precision.marginal_variance(), truth.diagonal())
    torch.testing.assert_close(precision.covariance_of(tape), jacobian @ truth @ jacobian.mT)
    torch.testing.assert_close(precision.variance_of(tape), (jacobian @ truth @ jacobian.mT).diagonal(dim1=1, dim2=2))
    if still:
        assert torch.equal(precision.sqrt_solve(columns)[FIXED[fixed]], torch.zeros_like(columns[FIXED[fixed]]))


def test_a_prior_is_added_beside_zeros_as_to_the_limit():
    """(Σ⁻¹ + D)⁻¹ = Σ − Σ (D⁻¹ + Σ)⁻¹ Σ, which needs no Σ⁻¹."""
    precision, truth = with_zeros([0, 7], normal(DIM, 3, g=seeded(1)))
    prior = positive(DIM, g=seeded(3))
    expected = truth - truth @ torch.linalg.solve(torch.diag(1 / prior) + truth, truth)
    added = precision.add_diagonal(prior)
    torch.testing.assert_close(added.solve(torch.eye(DIM, dtype=torch.float64)), expected)
    assert added.rank == precision.rank


def test_what_needs_the_inverse_is_refused_beside_zeros():
    precision, _ = with_zeros([4], normal(DIM, 3, g=seeded(1)))
    one = torch.ones(DIM, dtype=torch.float64)
    for verb in (precision.logdet, precision.diagonal, precision.to_dense, lambda: precision.multiply(one)):
        with pytest.raises(NotPositiveDefiniteError, match=r"positive variances.*index 4") as caught:
            verb()
        assert caught.value.smallest_eigenvalue == 0.0
        assert caught.value.direction.nonzero().flatten().tolist() == [4]


def test_negative_and_non_finite_entries_are_refused():
    factor = torch.ones(3, 1)
    with pytest.raises(NotPositiveDefiniteError, match=r"0 or more, got -2 at index 1"):
        LowRankCovariance(torch.tensor([1.0, -2.0, 0.0]), factor)
    for variances, columns in ((torch.full((3,), float("nan")), factor), (torch.ones(3), factor / 0)):
        with pytest.raises(NotPositiveDefiniteError, match="finite"):
            LowRankCovariance(variances, columns)


def test_shapes_that_do_not_fit_are_refused():
    for variances, factor in (((4,), (3, 2)), ((4,), (4,)), ((4, 1), (4, 2)), ((), (1, 1))):
        with pytest.raises(InputError, match="expected variances"):
            LowRankCovariance(torch.ones(variances), torch.ones(factor))


def test_a_negative_diagonal_counts_where_the_precision_makes_up_for_it():
    precision = covariance(SHAPE, seeded(0))
    smallest = float(torch.linalg.eigvalsh(precision.to_dense())[0])
    enough = precision.add_diagonal(-0.9 * smallest)
    torch.testing.assert_close(enough.logdet(), torch.logdet(enough.to_dense()))
    for number in (-1.1 * smallest, -100.0):
        with pytest.raises(NotPositiveDefiniteError, match="added"):
            precision.add_diagonal(number)
    with pytest.raises(NotPositiveDefiniteError):
        precision.add_diagonal(float("nan"))


def test_precisions_held_by_their_covariances_do_not_add():
    """Two equal ones least of all: their tensors agree, and their sum is twice either."""
    precision = covariance(SHAPE, seeded(0))
    blocks = BlockPrecision([precision], [torch.arange(DIM)], DIM)
    for held in (precision, blocks):
        with pytest.raises(UnsupportedError, match="held by its inverse"):
            held + held


@pytest.mark.parametrize("wide", [1e3, 1e6, 1e9])
def test_narrow_directions_keep_their_digits_beside_wide_ones(wide):
    """Columns of L whose lengths differ by that factor: WᵀW would have lost the small ones."""
    columns = torch.linalg.qr(normal(DIM, 2, g=seeded(1)))[0]
    factor = columns * torch.tensor([wide, 1.0], dtype=torch.float64)
    turned = factor @ torch.linalg.qr(normal(2, 2, g=seeded(2)))[0]  # the wide direction is no column of its own
    precision = LowRankCovariance(torch.ones(DIM), turned)
    root = precision.sqrt_solve(torch.eye(DIM, dtype=torch.float64))
    narrow = root.mT @ columns[:, 1]
    torch.testing.assert_close(float(narrow @ narrow), 2.0, rtol=1e-15 * wide, atol=0)
    torch.testing.assert_close(float(-precision.logdet()), torch.tensor([1 + wide**2, 2.0]).double().log().sum().item())
