"""Every structure of a precision, against dense float64 linear algebra."""

import math

import pytest
import torch

from bayescope import tape as tape_module
from bayescope.errors import NotPositiveDefiniteError
from bayescope.precision import DensePrecision, DiagonalPrecision, Precision
from bayescope.tape import LinearTape


def random_dense(dim: int, seed: int) -> torch.Tensor:
    root = torch.randn(dim, dim + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.mT / dim


def random_diagonal(dim: int, seed: int) -> torch.Tensor:
    return torch.rand(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.3


STRUCTURES = {
    "dense": lambda dim, seed: DensePrecision(random_dense(dim, seed)),
    "diagonal": lambda dim, seed: DiagonalPrecision(random_diagonal(dim, seed)),
}
TAPES = {
    "one output": (7, 4, 1, True),
    "one output, no bias": (5, 3, 1, False),
    "three outputs": (6, 4, 3, True),
    "one row": (1, 2, 3, False),
    "no rows": (0, 3, 2, True),
}


@pytest.fixture(params=STRUCTURES)
def structure(request):
    return STRUCTURES[request.param]


def make_tape(case: str, dtype: torch.dtype = torch.float64) -> LinearTape:
    rows, features, outputs, bias = TAPES[case]
    inputs = torch.randn(rows, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return LinearTape(inputs.to(dtype), outputs, bias)


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_agrees_with_dense_algebra(structure, dim):
    precision = structure(dim, dim)
    assert isinstance(precision, Precision)
    dense = precision.to_dense()
    columns = torch.randn(dim, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(precision.logdet(), torch.logdet(dense), rtol=1e-12, atol=1e-12)
    for b in (columns, columns[:, 0]):
        torch.testing.assert_close(precision.solve(b), torch.linalg.solve(dense, b), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(precision.multiply(b), dense @ b)
    torch.testing.assert_close(precision.diagonal(), dense.diagonal())
    torch.testing.assert_close(precision.marginal_variance(), torch.linalg.inv(dense).diagonal(), rtol=1e-9, atol=1e-9)


def test_the_root_squares_to_the_covariance(structure):
    precision = structure(6, 3)
    root = precision.sqrt_solve(torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(precision.to_dense()), rtol=1e-9, atol=1e-9)
    vector = torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(precision.sqrt_solve(vector), root @ vector)


def test_adding_a_diagonal_returns_a_new_precision(structure):
    precision = structure(4, 5)
    before = precision.to_dense().clone()
    for diagonal in (2.5, torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)):
        added = precision.add_diagonal(diagonal)
        expected = before + torch.diag(torch.as_tensor(diagonal, dtype=torch.float64).expand(4))
        torch.testing.assert_close(added.to_dense(), expected)
    assert torch.equal(precision.to_dense(), before)


@pytest.mark.parametrize("case", TAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block_bytes", [1, 400, 2**25])
def test_output_covariance_is_the_sandwich(structure, case, dtype, block_bytes, monkeypatch):
    monkeypatch.setattr(tape_module, "BLOCK_BYTES", block_bytes)
    tape = make_tape(case, dtype)
    precision = structure(tape.dim, 2)
    jacobian = tape.jacobian(slice(None)).to(torch.float64)
    expected = jacobian @ torch.linalg.inv(precision.to_dense()) @ jacobian.mT
    actual = precision.covariance_of(tape)
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


def test_samples_have_the_covariance(structure):
    """Σ z² of whitened samples is χ² with n·P degrees of freedom: |z-score| < 5 fails falsely once in 10⁶."""
    precision, n = structure(5, 8), 20_000
    noise = torch.randn(5, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    samples = precision.sqrt_solve(noise)
    chi = (samples * (precision.to_dense() @ samples)).sum()
    assert abs(float(chi - 5 * n)) / math.sqrt(2 * 5 * n) < 5


def test_an_indefinite_matrix_is_refused_with_its_direction():
    with pytest.raises(NotPositiveDefiniteError, match="smallest eigenvalue -1") as caught:
        DensePrecision(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert caught.value.smallest_eigenvalue == pytest.approx(-1.0)
    torch.testing.assert_close(caught.value.direction.abs(), torch.full((2,), 0.5**0.5, dtype=torch.float64))


def test_non_finite_and_non_positive_entries_are_refused():
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        DensePrecision(torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]))
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        DiagonalPrecision(torch.tensor([1.0, float("inf")]))
    with pytest.raises(NotPositiveDefiniteError, match="index 1") as caught:
        DiagonalPrecision(torch.tensor([1.0, -2.0]))
    assert caught.value.direction.tolist() == [0.0, 1.0]


def test_no_jitter_rescues_a_singular_matrix():
    with pytest.raises(NotPositiveDefiniteError):
        DensePrecision(torch.zeros(2, 2))
