"""Weights that the outputs do not depend on: a sum over no positions, which adds nothing and takes no memory."""

import torch

from bayescope.tape import LookupTape, OuterTape
from tests.tape.autograd import draw


def unused(rows: int, cotangents: int, shape: tuple[int, int, int]) -> OuterTape:
    groups, outputs, inputs = shape
    return OuterTape(draw(rows, 0, groups, inputs), draw(cotangents, rows, 0, groups, outputs))


def test_the_jacobian_is_not_built():
    tape = unused(10**6, 3, (1, 10**6, 1))  # U would take 24 TB
    scale = torch.ones(10**6)
    assert tape.norms(scale).shape == (10**6, 3)
    assert tape.gram(scale).shape == (10**6, 3, 3)
    assert tape.squares().shape == (10**6,)
    assert tape.part(torch.arange(5)).dim == 5


def test_sums_over_batches_stay_unchanged():
    used = OuterTape(draw(5, 2, 1, 3), draw(4, 5, 2, 1, 2))
    zero = unused(5, 4, used.shape)
    before = used.input_gram(), used.output_gram()
    assert torch.equal(zero.input_gram(before[0].clone()), before[0])
    assert torch.equal(zero.output_gram(before[1].clone()), before[1])
    assert torch.equal(used.input_gram(zero.input_gram()).triu(), before[0].triu())
    assert zero.reduced().positions == zero.positions == 0


def test_the_gram_of_one_hot_inputs_is_a_diagonal():
    tape = LookupTape(torch.zeros(5, 0, dtype=torch.int64), draw(4, 5, 0, 2), 1000)
    assert tape.input_gram().shape == (1, 1000)
    assert tape.output_gram().shape == (1, 2, 2)
    assert tape.reduced().positions == 0
