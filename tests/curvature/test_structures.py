"""Accumulators: each structure against its definition in terms of U, a and g, however the tapes are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from bayescope.precision import (
    BlockPrecision,
    BlockSum,
    DenseSum,
    EigenvalueCorrectedPrecision,
    KroneckerSum,
    Precision,
    ProductSum,
    SquareSum,
    Sum,
    TapeSum,
)
from bayescope.tape import JoinedTape, OuterTape

ROWS, COTANGENTS, POSITIONS, GROUPS, OUT, IN = 11, 3, 4, 2, 2, 3
DIM = GROUPS * OUT * (IN + 1)
Cut = Callable[[slice, slice], OuterTape]


def _tape(dtype: torch.dtype = torch.float64, seed: int = 0) -> OuterTape:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(ROWS, POSITIONS, GROUPS, IN, generator=generator, dtype=torch.float64)
    g = torch.randn(COTANGENTS, ROWS, POSITIONS, GROUPS, OUT, generator=generator, dtype=torch.float64)
    return OuterTape(a.to(dtype), g.to(dtype), bias=True)


def _cut(tape: OuterTape, rows: slice, cotangents: slice) -> OuterTape:
    return OuterTape(tape.activations[rows], tape.cotangents[cotangents, rows], tape.bias)


def _fill(sums: TapeSum[Precision], tape: OuterTape, rows: int, cotangents: int) -> Tensor:
    """The result over batches of so many rows and chunks of so many cotangents."""
    for start in range(0, ROWS, rows):
        for chunk in range(0, COTANGENTS, cotangents):
            sums.add(_cut(tape, slice(start, start + rows), slice(chunk, chunk + cotangents)), chunk == 0)
    return sums.finish().to_dense()


def _jacobian(tape: OuterTape) -> Tensor:
    """U from its definition, shape (N K, P)."""
    a = torch.cat([tape.activations, torch.ones_like(tape.activations[..., :1])], -1)
    return torch.einsum("kntgo,ntgd->nkgod", tape.cotangents, a).flatten(2).flatten(0, 1)


def _kronecker(tape: OuterTape, reduce: bool) -> Tensor:
    a = torch.cat([tape.activations, torch.ones_like(tape.activations[..., :1])], -1)
    g = tape.cotangents
    if reduce:
        a, g = a.mean(1, keepdim=True), g.sum(2, keepdim=True)
    count = a.shape[0] * a.shape[1]
    blocks = [
        torch.kron(
            torch.einsum("knto,kntp->op", g[..., group, :], g[..., group, :]),
            torch.einsum("ntd,nte->de", a[:, :, group], a[:, :, group]),
        )
        / count
        for group in range(GROUPS)
    ]
    return torch.block_diag(*blocks)


FORMS = {
    "dense": (lambda: DenseSum(DIM), lambda tape: _jacobian(tape).mT @ _jacobian(tape)),
    "squares": (SquareSum, lambda tape: torch.diag(_jacobian(tape).square().sum(0))),
    "expand": (lambda: KroneckerSum("expand"), lambda tape: _kronecker(tape, reduce=False)),
    "reduce": (lambda: KroneckerSum("reduce"), lambda tape: _kronecker(tape, reduce=True)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "cotangents"), [(ROWS, COTANGENTS), (4, COTANGENTS), (1, 2), (5, 1)])
def test_sums_equal_their_definitions_however_they_are_cut(form: str, rows: int, cotangents: int) -> None:
    make, definition = FORMS[form]
    tape = _tape()
    torch.testing.assert_close(_fill(make(), tape, rows, cotangents), definition(tape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_single_precision_agrees_and_the_result_is_double(form: str) -> None:
    make, definition = FORMS[form]
    result = _fill(make(), _tape(torch.float32), 2, 2)
    assert result.dtype == torch.float64
    truth = definition(_tape())
    torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


def test_a_long_sum_of_single_precision_terms_keeps_its_digits() -> None:
    """10,000 terms of 1 + 2⁻²⁰, over 2²⁴ times the last digit of the sum were it held in float32."""
    term = torch.full((1,), 1 + 2.0**-20, dtype=torch.float32) * 4096
    total = Sum()
    for _ in range(10_001):
        total.add(term)
    assert total.total().item() == pytest.approx(10_001 * 4096 * (1 + 2.0**-20), rel=1e-12)
    assert total.total().item() == pytest.approx(10_001 * 4096 * (1 + 2.0**-20), rel=1e-12)  # asking changes nothing


def test_a_sum_leaves_its_terms_as_they_are() -> None:
    term, total = torch.ones(2, dtype=torch.float64), Sum()
    for _ in range(3 * 8):
        total.add(term)
        total.total()
    assert torch.equal(term, torch.ones(2, dtype=torch.float64))


def test_the_corrected_diagonal_is_exact_in_the_kronecker_basis() -> None:
    tape = _tape()
    first = KroneckerSum("expand")
    first.add(tape, True)
    kronecker = first.finish()
    sums = SquareSum(kronecker.basis.rotate, partial(EigenvalueCorrectedPrecision, kronecker.basis))
    corrected = _fill(sums, tape, 4, 2)
    basis = kronecker.basis.to_dense()
    exact = _jacobian(tape).mT @ _jacobian(tape)
    inside = basis.mT @ corrected @ basis
    torch.testing.assert_close(inside.diagonal(), (basis.mT @ exact @ basis).diagonal(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), rtol=0, atol=1e-11)
    torch.testing.assert_close(corrected.trace(), exact.trace())


def _joined() -> tuple[JoinedTape, tuple[Tensor, ...]]:
    """Two parts whose weights interleave."""
    order = torch.randperm(2 * DIM, generator=torch.Generator().manual_seed(3))
    indices = (order[:DIM], order[DIM:])
    return JoinedTape((_tape(), _tape(seed=1)), indices, 2 * DIM), indices


def test_blocks_are_the_full_matrix_within_the_groups_and_zero_between() -> None:
    tape, indices = _joined()
    full, blocks = DenseSum(2 * DIM), BlockSum([DenseSum(DIM), SquareSum()], indices)
    for sums in (full, blocks):
        sums.add(tape, True)
    exact, got = full.finish().to_dense(), BlockPrecision(blocks.finish(), indices, 2 * DIM).to_dense()
    first, second = indices
    torch.testing.assert_close(got[first][:, first], exact[first][:, first])
    torch.testing.assert_close(got[second][:, second], torch.diag(exact.diagonal()[second]))
    assert not got[first][:, second].any()


def test_products_are_those_of_the_full_matrix() -> None:
    tape = _tape()
    vectors = torch.randn(DIM, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    products, exact = ProductSum(vectors), _jacobian(tape).mT @ _jacobian(tape)
    for start in range(0, ROWS, 4):
        for cotangent in range(COTANGENTS):
            products.add(_cut(tape, slice(start, start + 4), slice(cotangent, cotangent + 1)), cotangent == 0)
    torch.testing.assert_close(products.finish(), exact @ vectors, rtol=1e-12, atol=1e-11)


def test_inputs_are_counted_once_for_all_their_cotangents() -> None:
    """Batches may have unlike numbers of chunks: only then would counting them each time show in the product."""
    tape, sums = _tape(), KroneckerSum("expand")
    for chunk in range(COTANGENTS):
        sums.add(_cut(tape, slice(0, 4), slice(chunk, chunk + 1)), chunk == 0)
    sums.add(_cut(tape, slice(4, ROWS), slice(None)), True)
    got = sums.finish()
    assert float(got.factors.normaliser) == ROWS * POSITIONS
    torch.testing.assert_close(got.to_dense(), _kronecker(tape, reduce=False), rtol=1e-12, atol=1e-12)
