from __future__ import annotations

import threading

import pytest
import torch

from bayescope.linear import rows
from bayescope.linear.rows import Rows


def test_blocks_cover_every_row_once_and_in_order():
    table = Rows(100_003, 7, 2)
    covered = [index for block in table.blocks(50) for index in (block.start, block.stop)]
    assert covered[0] == 0
    assert covered[-1] == 100_003
    assert covered[1:-1:2] == covered[2::2]


@pytest.mark.parametrize(("columns", "outputs", "copies"), [(2, 1, 1), (50, 1, 4000), (3, 300, 1), (4000, 2, 1)])
def test_a_block_takes_bounded_memory(columns: int, outputs: int, copies: int):
    block = next(Rows(10**7, columns, outputs).blocks(copies))
    count = block.stop - block.start
    assert count * 8 * outputs * max(outputs, copies) <= rows.WORK_BYTES
    assert count <= rows.LEAST_ROWS or count * 8 * columns <= rows.CACHE_BYTES


def test_the_sum_is_the_same_to_the_last_bit_for_any_number_of_threads():
    x = torch.randn(300_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    used = set()

    def block(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        used.add(threading.get_ident())
        return x[part].sum(), x[part].mT @ x[part]

    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            used.clear()
            answers.append(Rows(300_000, 3).sum(block, size=9))
            assert torch.get_num_threads() == threads
            assert (threading.get_ident() in used) == (threads == 1)
    finally:
        torch.set_num_threads(before)
    for answer in answers[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(answer, answers[0], strict=True))
    assert float(answers[0][0]) == pytest.approx(float(x.sum()), rel=1e-10)


def test_sums_as_large_as_the_table_are_not_held_many_times():
    table, calls = Rows(20_000, 100), set()

    def block(part: slice) -> tuple[torch.Tensor]:
        calls.add(threading.get_ident())
        return (torch.tensor(float(part.stop - part.start)),)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        table.sum(block, size=20_000 * 100)
    finally:
        torch.set_num_threads(before)
    assert calls == {threading.get_ident()}


def test_a_table_of_many_rows_is_no_single_block_however_few_its_columns():
    assert Rows(2_000, 200).are_one_block()
    assert Rows(16_384, 2).are_one_block()
    assert not Rows(100_000, 2).are_one_block()
