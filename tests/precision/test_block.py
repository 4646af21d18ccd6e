"""A block-diagonal precision: where its blocks lie, and a prior for each."""

from __future__ import annotations

import pytest
import torch

from bayescope.errors import InputError, UnsupportedError
from bayescope.precision import BlockPrecision, DensePrecision, DiagonalPrecision, LowRankPrecision
from tests.precision.cases import block_indices, blocks, positive, seeded


def test_each_block_lies_where_its_indices_say():
    precision = blocks()
    dense = precision.to_dense()
    expected = torch.zeros_like(dense)
    for block, index in zip(precision.blocks, precision.indices, strict=True):
        for i, row in enumerate(index.tolist()):
            for j, column in enumerate(index.tolist()):
                expected[row, column] = block.to_dense()[i, j]
    torch.testing.assert_close(dense, expected)


def test_one_number_a_block():
    values = positive(4, g=seeded(1)).requires_grad_()
    precision = blocks().add_per_block(values)
    flat = torch.zeros(precision.dim, dtype=torch.float64)
    for value, index in zip(values.detach(), block_indices(), strict=True):
        flat[index] = value
    torch.testing.assert_close(precision.to_dense(), blocks().to_dense() + torch.diag(flat))
    torch.testing.assert_close(precision.to_dense(), blocks().add_diagonal(flat).to_dense())
    (gradient,) = torch.autograd.grad(precision.logdet(), values)
    variance = precision.marginal_variance().detach()
    torch.testing.assert_close(gradient, torch.stack([variance[index].sum() for index in block_indices()]))
    with pytest.raises(InputError, match="expected 4 numbers"):
        blocks().add_per_block(torch.ones(3))


def test_a_vector_is_in_flat_order():
    index = [torch.tensor([2, 0]), torch.tensor([1])]
    precision = BlockPrecision([DiagonalPrecision(torch.ones(2)), DensePrecision(torch.ones(1, 1))], index, 3)
    assert precision.add_diagonal(torch.tensor([1.0, 2.0, 3.0])).diagonal().tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(InputError, match=r"shape \(3,\), got \(2,\)"):
        precision.add_diagonal(torch.ones(2))


def test_blocks_are_summed_each_to_its_own():
    total = blocks(1) + blocks(1)
    torch.testing.assert_close(total.to_dense(), 2 * blocks(1).to_dense())
    elsewhere = BlockPrecision(blocks(1).blocks, [index.flip(0) for index in block_indices()], blocks().dim)
    with pytest.raises(UnsupportedError, match="indices 0"):
        blocks(1) + elsewhere
    with pytest.raises(UnsupportedError):
        blocks(1) + DensePrecision(torch.eye(blocks().dim))


def test_blocks_of_unlike_structure_are_not_summed():
    index = [torch.arange(2)]
    one = BlockPrecision([DiagonalPrecision(torch.ones(2))], index, 2)
    with pytest.raises(UnsupportedError, match="low_rank"):
        one + BlockPrecision([LowRankPrecision(torch.ones(2, 1), torch.ones(1))], index, 2)


def test_blocks_in_blocks():
    inner = BlockPrecision(
        [DiagonalPrecision(torch.tensor([1.0])), DiagonalPrecision(torch.tensor([2.0]))],
        [torch.tensor([1]), torch.tensor([0])],
        2,
    )
    outer = BlockPrecision(
        [inner, DensePrecision(torch.full((1, 1), 5.0))], [torch.tensor([0, 2]), torch.tensor([1])], 3
    )
    assert (outer + outer).diagonal().tolist() == [4.0, 10.0, 2.0]


@pytest.mark.parametrize("index", [[[0, 1], [1]], [[0, 1], [3]], [[-1, 0], [1]], [[0], [1, 2]], [[0, 1]], []])
def test_positions_that_are_not_those_of_the_weights_are_refused(index):
    parts = [DiagonalPrecision(torch.ones(2)), DiagonalPrecision(torch.ones(1))][: len(index) or 2]
    with pytest.raises(InputError, match="positions"):
        BlockPrecision(parts, [torch.tensor(i) for i in index], 3)
