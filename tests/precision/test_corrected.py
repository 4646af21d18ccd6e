"""The eigenvalue-corrected structure against its definition, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, NotPositiveDefiniteError, UnsupportedError
from bayescope.precision import EigenvalueCorrectedPrecision
from tests.precision.cases import counted, kronecker, outer_tape, per_group, positive, seeded, separable

SHAPE = (2, 4, 3)


def corrected(seed: int = 0, values: int = 1) -> EigenvalueCorrectedPrecision:
    return kronecker(SHAPE, seeded(seed)).corrected(positive(24, g=seeded(values)))


def test_the_definition():
    """Q diag(s) Qᵀ with the eigenvectors of each factor in the columns of each side."""
    data, values = kronecker(SHAPE, seeded(0)), positive(24, g=seeded(1)).reshape(SHAPE)
    dense = torch.zeros(24, 24, dtype=torch.float64)
    for g in range(2):
        for i in range(4):
            for j in range(3):
                vector = torch.zeros(SHAPE, dtype=torch.float64)
                vector[g] = torch.outer(data.basis.left[g, :, i], data.basis.right[g, :, j])
                dense += values[g, i, j] * torch.outer(vector.flatten(), vector.flatten())
    torch.testing.assert_close(data.corrected(values.flatten()).to_dense(), dense)


def test_with_the_products_own_eigenvalues_it_is_the_product():
    for data in (kronecker(SHAPE, seeded(0)), counted((1, 3, 6), seeded(0))):
        basis = data.basis.to_dense()
        own = (basis.mT @ data.to_dense() @ basis).diagonal()
        torch.testing.assert_close(data.corrected(own).to_dense(), data.to_dense())


def test_the_diagonal_is_exact_in_the_basis_and_with_it_the_trace():
    tape = outer_tape(SHAPE, 6, 2, 3, torch.float64)
    basis = kronecker(SHAPE, seeded(0)).basis
    precision = EigenvalueCorrectedPrecision(basis, basis.rotate(tape).squares())
    jacobian = tape.jacobian(slice(None)).flatten(0, 1)
    exact, q = jacobian.mT @ jacobian, basis.to_dense()
    torch.testing.assert_close((q.mT @ precision.to_dense() @ q).diagonal(), (q.mT @ exact @ q).diagonal())
    torch.testing.assert_close(precision.diagonal().sum(), exact.trace())


def test_a_diagonal_that_would_turn_the_eigenvectors_is_refused():
    assert corrected().add_diagonal(per_group(SHAPE, seeded(2))).logdet().isfinite()
    with pytest.raises(UnsupportedError, match=r"one number per group of weights, got another.*'low_rank'"):
        corrected().add_diagonal(separable(SHAPE, seeded(2)))


def test_sums_in_the_same_basis_only():
    total = corrected() + corrected(values=2)
    torch.testing.assert_close(total.to_dense(), corrected().to_dense() + corrected(values=2).to_dense())
    with pytest.raises(UnsupportedError, match="output_basis, got two that differ"):
        corrected() + corrected(seed=5)


def test_what_is_not_positive_definite_is_refused():
    with pytest.raises(NotPositiveDefiniteError) as caught:
        corrected().add_diagonal(-1.0).logdet()
    assert caught.value.smallest_eigenvalue == pytest.approx(float(positive(24, g=seeded(1)).min()) - 1)


def test_as_many_eigenvalues_as_weights():
    with pytest.raises(InputError, match="24 eigenvalues, got 23"):
        kronecker(SHAPE, seeded(0)).corrected(torch.ones(23))
