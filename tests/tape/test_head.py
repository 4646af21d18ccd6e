"""Last layers, against the tape of the roots."""

import torch

from bayescope.tape import HeadTape, LastHessian, OuterTape
from tests.tape.autograd import draw


def test_sums_over_the_cotangents_need_no_root():
    def no_root() -> torch.Tensor:
        raise AssertionError("the root was asked for")

    root, a = draw(3, 6, 4), draw(6, 1, 1, 5)
    tape = HeadTape(
        a, LastHessian(root.square().sum(0), lambda: torch.einsum("knc,knd->cd", root, root), no_root), bias=True
    )
    rooted = OuterTape(a, root[:, :, None, None], bias=True)
    assert torch.allclose(tape.squares(), rooted.squares())
    assert torch.allclose(tape.input_gram(), rooted.input_gram())
    assert torch.allclose(tape.output_gram(), rooted.output_gram())
    assert (tape.shape, tape.positions, tape.reduced()) == (rooted.shape, 1, tape)
