"""The leading eigenpairs from products alone, against spectra that are hard in some way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayescope.errors import ConvergenceError
from bayescope.precision import SETTLED, LowRankGoal, LowRankPrecision, leading_part

DIM = 200


def _with_spectrum(values: Tensor) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with the given eigenvalues, and its eigenvectors."""
    generator = torch.Generator().manual_seed(len(values))
    basis = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)).Q
    return basis @ torch.diag(values) @ basis.mT, basis


def _drawn(seed: int = 0) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda columns: torch.randn(DIM, columns, dtype=torch.float64, generator=generator)


def _count(dim: int) -> Tensor:
    return torch.arange(1, dim + 1, dtype=torch.float64)


def _run(
    matrix: Tensor, *, rank: int | None = None, cutoff: float | None = None, seed: int = 0, most: int = 100
) -> tuple[LowRankPrecision, int]:
    passes = 0

    def product(vectors: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return matrix @ vectors

    result = leading_part(product, _drawn(seed), DIM, LowRankGoal(rank, cutoff, passes=most))
    return result, passes


def _rank(precision: LowRankPrecision) -> int:
    return int(torch.linalg.matrix_rank(precision.to_dense(), rtol=1e-10, hermitian=True))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rank", [1, 7, 30])
def test_the_leading_part_of_slow_and_fast_decays(power: float, rank: int) -> None:
    values = _count(DIM) ** -power
    matrix, basis = _with_spectrum(values)
    got, passes = _run(matrix, rank=rank)
    leading = basis[:, :rank] @ torch.diag(values[:rank]) @ basis[:, :rank].mT
    assert _rank(got) == rank
    kept = torch.linalg.eigvalsh(got.to_dense()).flip(0)[:rank]
    torch.testing.assert_close(kept, values[:rank], rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(got.to_dense(), leading, rtol=0, atol=2e-3)
    assert passes < 12


@pytest.mark.parametrize("rank", [DIM - 5, DIM, DIM + 50])
def test_at_full_rank_it_is_the_matrix_itself(rank: int) -> None:
    matrix, _ = _with_spectrum(_count(DIM) ** -1.0)
    got, passes = _run(matrix, rank=rank)
    assert passes == 1
    if rank >= DIM:
        torch.testing.assert_close(got.to_dense(), matrix, rtol=0, atol=1e-13)


def test_a_matrix_of_lower_rank_is_found_whole() -> None:
    values = torch.cat([_count(20).flip(0), torch.zeros(DIM - 20, dtype=torch.float64)])
    matrix, _ = _with_spectrum(values)
    for options in ({"rank": 40}, {"cutoff": 1e-6}):
        got, _ = _run(matrix, **options)
        assert _rank(got) == 20
        torch.testing.assert_close(got.to_dense(), matrix, rtol=0, atol=1e-11)


@pytest.mark.parametrize("cutoff", [0.3, 0.021, 0.0101])
def test_the_cutoff_gives_the_smallest_rank_that_meets_it(cutoff: float) -> None:
    values = _count(DIM) ** -1.0
    matrix, _ = _with_spectrum(3.0 * values)
    got, _ = _run(matrix, cutoff=cutoff)
    assert _rank(got) == int((values >= cutoff).sum())


@pytest.mark.parametrize("copies", [40, 80])
def test_eigenvalues_with_more_copies_than_a_block_has_columns_are_all_found(copies: int) -> None:
    """As of a last layer with a Gaussian likelihood, whose GGN is I ⊗ Σ a aᵀ."""
    values = torch.cat([torch.full((copies,), 2.0), torch.full((DIM - copies,), 0.01)]).double()
    matrix, basis = _with_spectrum(values)
    got, _ = _run(matrix, cutoff=0.1)
    torch.testing.assert_close(got.to_dense(), 2.0 * basis[:, :copies] @ basis[:, :copies].mT, rtol=0, atol=1e-6)


HARD = {
    "linear": (1.0 - _count(DIM) / 201, {"cutoff": 0.853}),
    "exponential": (10 ** (-_count(DIM) / 2), {"rank": 20}),
    "two levels apart by little": (
        torch.cat([torch.full((20,), 1.0), torch.full((30,), 0.5001), torch.full((150,), 0.4999)]).double(),
        {"cutoff": 0.5},
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_vectors_stay_orthonormal_where_rounding_builds_up(name: str) -> None:
    values, options = HARD[name]
    matrix, _ = _with_spectrum(values)
    got, _ = _run(matrix, **options)
    vectors = got.vectors
    wanted = options.get("rank") or int((values >= options["cutoff"] * values[0]).sum())
    assert vectors.shape == (DIM, wanted)
    identity = torch.eye(wanted, dtype=torch.float64)
    torch.testing.assert_close(vectors.mT @ vectors, identity, rtol=0, atol=1e-12)
    eigenvalues = torch.linalg.eigvalsh(got.to_dense()).flip(0)[:wanted]
    torch.testing.assert_close(eigenvalues, values[:wanted], rtol=0, atol=1e-9 * float(values[0]))


def test_no_curvature_has_no_rank() -> None:
    got, _ = _run(torch.zeros(DIM, DIM, dtype=torch.float64), rank=5)
    assert not got.to_dense().any()
    torch.testing.assert_close(got.add_diagonal(2.0).to_dense(), 2.0 * torch.eye(DIM, dtype=torch.float64))


def test_the_generator_decides_the_start_and_not_the_result() -> None:
    matrix, _ = _with_spectrum(_count(DIM) ** -1.0)
    one, again, other = (_run(matrix, rank=10, seed=seed)[0].to_dense() for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-3)


def test_products_in_single_precision_settle_too() -> None:
    matrix, _ = _with_spectrum(_count(DIM) ** -1.0)
    single = matrix.to(torch.float32)
    product = lambda v: (single @ v.to(torch.float32)).to(torch.float64)  # noqa: E731
    got = leading_part(product, _drawn(), DIM, LowRankGoal(10, None, SETTLED[False]))
    values = torch.linalg.eigvalsh(got.to_dense()).flip(0)[:10]
    torch.testing.assert_close(values, _count(10) ** -1.0, rtol=1e-5, atol=1e-6)


def test_what_has_not_settled_is_not_handed_out() -> None:
    matrix, _ = _with_spectrum(1.0 - 1e-4 * _count(DIM))
    with pytest.raises(ConvergenceError, match="the leading 3 eigenvalues have not settled after 2 passes"):
        _run(matrix, rank=3, most=2)
