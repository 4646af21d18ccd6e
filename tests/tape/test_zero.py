"""Zeros of any size: no memory, and nothing added to what is summed."""

import torch

from bayescope.tape import OuterTape, ZeroTape
from tests.tape.autograd import draw


def test_no_answer_builds_the_jacobian():
    tape = ZeroTape(10**6, 3, (1, 10**6, 1), torch.zeros(1))  # U would take 12 TB
    assert tape.jacobian(slice(2, None)).shape == (10**6 - 2, 3, 10**6)
    assert tape.jacobian(slice(None)).untyped_storage().nbytes() == 4
    scale = torch.ones(10**6)
    assert tape.norms(scale).shape == (10**6, 3)
    assert tape.gram(scale).shape == (10**6, 3, 3)
    assert tape.squares().shape == (10**6,)
    assert tape.part(torch.arange(5)).dim == 5


def test_sums_over_batches_stay_as_they_are():
    used = OuterTape(draw(5, 2, 1, 3), draw(4, 5, 2, 1, 2))
    unused = ZeroTape(5, 4, used.shape, draw(1))
    before = used.input_gram(), used.output_gram()
    assert torch.equal(unused.input_gram(before[0].clone()), before[0])
    assert torch.equal(unused.output_gram(before[1].clone()), before[1])
    assert torch.equal(used.input_gram(unused.input_gram()), before[0])
    assert unused.reduced().positions == unused.positions == 0


def test_the_gram_of_one_hot_inputs_is_a_diagonal():
    tape = ZeroTape(5, 4, (1, 2, 1000), draw(1), one_hot=True)
    assert tape.input_gram().shape == (1, 1000)
    assert tape.output_gram().shape == (1, 2, 2)
