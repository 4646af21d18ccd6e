"""Low rank plus diagonal: what it refuses, and the digits that it keeps."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision import LowRankPrecision
from tests.precision.cases import any_diagonal, low_rank, normal, outer_tape, positive, seeded

SHAPE = (1, 3, 4)


def test_ranks_add_up():
    a, b = low_rank(SHAPE, seeded(0), 2), low_rank(SHAPE, seeded(1), 3).add_diagonal(any_diagonal(SHAPE, seeded(2)))
    total = a + b
    assert total.rank == 5
    torch.testing.assert_close(total.to_dense(), a.to_dense() + b.to_dense())
    torch.testing.assert_close(total.logdet(), torch.logdet(total.to_dense()))


def test_without_a_diagonal_there_is_no_inverse():
    data = low_rank(SHAPE, seeded(0))
    assert data.multiply(torch.ones(12, dtype=torch.float64)).isfinite().all()
    for diagonal in (0.0, torch.tensor([1.0] * 5 + [-2.0] + [1.0] * 6), float("nan")):
        with pytest.raises(NotPositiveDefiniteError, match="Add a prior precision"):
            data.add_diagonal(diagonal).logdet()


def test_a_negative_value_counts_where_the_diagonal_makes_up_for_it():
    vectors = torch.linalg.qr(normal(6, 2, g=seeded(0)))[0]
    data = LowRankPrecision(vectors, torch.tensor([3.0, -1.0]))
    enough = data.add_diagonal(1.5)
    torch.testing.assert_close(enough.logdet(), torch.logdet(enough.to_dense()))
    with pytest.raises(NotPositiveDefiniteError, match="relative to its diagonal") as caught:
        data.add_diagonal(0.5).logdet()
    torch.testing.assert_close(caught.value.direction.abs(), vectors[:, 1].abs())


@pytest.mark.parametrize("diagonal", ["number", "any"])
@pytest.mark.parametrize("determined", [1e2, 1e6, 1e12])
def test_what_the_data_determine_leaves_a_small_variance_with_its_digits(diagonal, determined):
    """The prior's variance less what is known of it: in float32 the difference alone would have none left."""
    vectors = torch.linalg.qr(normal(12, 12, g=seeded(0)))[0]
    prior = 0.5 if diagonal == "number" else positive(12, g=seeded(1))
    precision = LowRankPrecision(vectors, determined * positive(12, g=seeded(2)), prior)
    tape = outer_tape(SHAPE, 4, 2, 3, torch.float32)
    jacobian = tape.jacobian(slice(None)).double()
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(precision.to_dense()), jacobian.mT, upper=False)
    expected = whitened.mT @ whitened
    torch.testing.assert_close(precision.covariance_of(tape), expected, rtol=1e-3, atol=1e-3 * float(expected.max()))
    torch.testing.assert_close(precision.variance_of(tape), expected.diagonal(dim1=1, dim2=2), rtol=1e-3, atol=0)


def test_shapes_that_do_not_fit_are_refused():
    for vectors, values, diagonal in (((4, 2), (3,), ()), ((4, 2), (2,), (3,)), ((4,), (), ())):
        with pytest.raises(InputError, match="expected vectors"):
            LowRankPrecision(torch.ones(vectors), torch.ones(values), torch.ones(diagonal))


def test_non_finite_vectors_are_refused():
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        LowRankPrecision(torch.full((3, 1), float("nan")), torch.ones(1), 1.0).logdet()
