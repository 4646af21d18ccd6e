"""The tape of a network: parts, and selections that are none."""

import torch

from bayescope.tape import DenseTape, JoinedTape, SelectedTape
from tests.tape.autograd import draw


def test_rows_lie_where_the_indices_say():
    first, second = draw(4, 2, 3), draw(4, 2, 2)
    indices = (torch.tensor([4, 0, 2]), torch.tensor([3, 1]))
    tape = JoinedTape((DenseTape(first), DenseTape(second)), indices, 5)
    u = tape.jacobian(slice(1, 3))
    assert torch.equal(u[..., [4, 0, 2]], first[1:3])
    assert torch.equal(u[..., [3, 1]], second[1:3])


def test_a_part_is_given_back_as_it_is():
    parts = (DenseTape(draw(4, 2, 3)), DenseTape(draw(4, 2, 2)))
    indices = (torch.tensor([4, 0, 2]), torch.tensor([3, 1]))
    tape = JoinedTape(parts, indices, 5)
    assert tape.part(indices[1]) is parts[1]
    assert tape.part(indices[0].clone()) is parts[0]
    assert isinstance(tape.part(torch.tensor([0, 4, 2])), SelectedTape)  # the same weights in another order
