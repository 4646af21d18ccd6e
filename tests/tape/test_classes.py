"""The Jacobian of a last layer, against that of cotangents which pick out its outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.tape import ClassTape, Convolution, LookupTape, OuterTape, StreamedTape, Tape, block_limit
from tests.tape.autograd import draw

N, C, D = 5, 7, 4
CHOSEN = torch.tensor([[1, 6], [0, 3], [6, 1], [2, 2], [5, 0]])


def pair(classes: Tensor | None, *, bias: bool, scale: Tensor | None = None) -> tuple[ClassTape, OuterTape]:
    """The tape, and that of cotangents of C numbers each."""
    a, eye = draw(N, D), torch.eye(C, dtype=torch.float64)
    eye = eye if scale is None else torch.diag(scale)
    g = eye[:, None] if classes is None else eye[classes.mT]
    return ClassTape(a, C, bias, classes, scale), OuterTape(a[:, None, None], g[:, :, None, None], bias)


def assert_same(ours: Tape, theirs: Tape) -> None:
    assert (ours.rows, ours.outputs, ours.dim) == (theirs.rows, theirs.outputs, theirs.dim)
    scale, v, w = draw(ours.dim).square(), draw(ours.dim, 3), draw(ours.rows, ours.outputs, 2)
    for name, arguments in {
        "squares": (), "gram": (scale,), "norms": (scale,), "multiply": (v,), "transpose_multiply": (w,),
    }.items():  # fmt: skip
        torch.testing.assert_close(getattr(ours, name)(*arguments), getattr(theirs, name)(*arguments), msg=name)
    rows = slice(1, 4)
    torch.testing.assert_close(ours.jacobian(rows), theirs.jacobian(rows))
    some = torch.tensor([3, 0, 9])
    torch.testing.assert_close(ours.part(some).norms(scale[some]), theirs.part(some).norms(scale[some]))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [None, draw(C)])
@pytest.mark.parametrize("classes", [None, CHOSEN])
def test_it_is_the_tape_of_the_unit_vectors(classes: Tensor | None, scale: Tensor | None, bias: bool) -> None:
    ours, theirs = pair(classes, bias=bias, scale=scale)
    assert_same(ours, theirs)
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("classes", [None, CHOSEN])
@pytest.mark.parametrize("left", [None, draw(1, C), draw(1, C, C)])
@pytest.mark.parametrize("right", [None, draw(1, D + 1), draw(1, D + 1, D + 1)])
@pytest.mark.parametrize("scale", [None, draw(C)])
def test_rotated_it_is_the_other_rotated(
    classes: Tensor | None, left: Tensor | None, right: Tensor | None, scale: Tensor | None
) -> None:
    ours, theirs = pair(classes, bias=True, scale=scale)
    assert_same(ours.rotated(left, right), theirs.rotated(left, right))


def test_in_pieces_it_is_the_same() -> None:
    for classes in (None, CHOSEN):
        with block_limit(1):
            assert_same(*pair(classes, bias=True))


TAPES: dict[str, OuterTape | LookupTape | StreamedTape] = {
    "positions and groups": OuterTape(draw(N, 3, 2, D), draw(2, N, 3, 2, C)),
    "strided": OuterTape(draw(N, 3, 2, D), draw(N, 2, 3, 2, C).transpose(0, 1)),
    "shared by all rows": OuterTape(draw(N, 3, 2, D), draw(2, 1, 3, 2, C)),
    "tokens": LookupTape(CHOSEN, draw(3, N, 2, D), 8),
    "pixels": Convolution.of(draw(3, 2, 2, 2)).tape(draw(N, 2, 3, 3), draw(2, N, 3, 2, 2), bias=True),
    "nothing": OuterTape(draw(N, 0, 1, D), draw(2, N, 0, 1, C)),
}


@pytest.mark.parametrize("name", TAPES)
def test_squares_of_the_outputs_are_the_diagonal_of_their_gram(name: str) -> None:
    tape = TAPES[name]
    torch.testing.assert_close(tape.output_squares(), tape.output_gram().diagonal(dim1=1, dim2=2))
