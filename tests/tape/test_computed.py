"""Rows of U that are computed when they are asked for, and never all together."""

import pytest
import torch

from bayescope.tape import ComputedTape, block_limit
from tests.tape.autograd import draw

VERBS = {
    "squares": lambda tape: tape.squares(),
    "gram": lambda tape: tape.gram(torch.ones(6)),
    "norms": lambda tape: tape.norms(torch.ones(6)),
    "multiply": lambda tape: tape.multiply(torch.ones(6, 2)),
    "transpose_multiply": lambda tape: tape.transpose_multiply(torch.ones(10, 3, 2)),
    "a part's squares": lambda tape: tape.part(torch.tensor([4, 0])).squares(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_computes_each_row_once_and_a_block_at_a_time(verb):
    u, asked = draw(10, 3, 6), []

    def compute(rows):
        asked.append(range(10)[rows])
        return u[rows]

    with block_limit(3 * 8 * 3 * 6):
        VERBS[verb](ComputedTape(10, 3, 6, compute))
    assert [n for rows in asked for n in rows] == list(range(10))
    assert max(map(len, asked)) <= 3


def test_nothing_is_computed_before_it_is_asked_for():
    tape = ComputedTape(4, 2, 3, lambda rows: pytest.fail("computed"))
    assert (tape.rows, tape.outputs, tape.dim) == (4, 2, 3)
    assert len(list(tape.blocks())) == 1
