"""Parts of a minibatch have the random numbers that the whole of it would have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayescope.private_draws import (
    Cut,
    RandomSource,
    RecomputedError,
    by_process,
    by_row,
    drawing,
    for_all,
    standard_normal,
)
from bayescope.reparameterization import ESTIMATORS, GaussianTensor, convolution, embedding, linear

ROWS = 7
PARTS = [slice(0, 3), slice(3, 7)]


def source(seed: int = 5) -> AbstractContextManager[RandomSource]:
    return RandomSource(seed).inside()


def normal(shape: Sequence[int]) -> Tensor:
    return standard_normal(shape, torch.ones(()))


def in_parts(draw: object, parts: list[slice] = PARTS) -> list[Tensor]:
    """What each process draws for its part, from the same random state."""
    found = []
    for rank, part in enumerate(parts):
        with source(), drawing(Cut(ROWS, part), RandomSource(rank)):
            found.append(draw(part))  # type: ignore[operator]
    return found


@pytest.mark.parametrize("axis", [0, 1])
def test_each_part_has_its_rows_numbers(axis: int) -> None:
    def draw(part: slice) -> Tensor:
        shape = [4, 4]
        shape[axis] = part.stop - part.start
        return by_row(normal, shape, axis)

    with source():
        whole = normal([ROWS, 4] if axis == 0 else [4, ROWS])
    assert torch.equal(torch.cat(in_parts(draw), axis), whole)


def test_what_all_rows_share_is_the_same_and_what_is_each_process_s_own_is_not() -> None:
    with source():
        whole = normal([5])
    shared = in_parts(lambda _: for_all(lambda: normal([5])))
    assert all(torch.equal(part, whole) for part in shared)
    own = in_parts(lambda _: torch.cat([by_process(lambda: normal([5])) for _ in range(2)]))
    assert not torch.equal(*own)
    assert not torch.equal(*own[0].split(5))  # it goes on


def test_a_state_of_its_own_leaves_the_shared_one_as_it_was() -> None:
    with source() as shared:
        before = shared.states()["cpu"]
        with drawing(Cut(ROWS, PARTS[0]), RandomSource(1)):
            by_process(lambda: normal([3]))
        assert torch.equal(shared.states()["cpu"], before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_backward_pass_would_draw_again_is_refused(*, reentrant: bool) -> None:
    def noisy(x: Tensor) -> Tensor:
        return x * by_row(normal, x.shape, 0)

    x = torch.ones(3, 4, requires_grad=True)
    with source(), drawing(Cut(ROWS, PARTS[0]), RandomSource(0)), pytest.raises(RecomputedError):
        checkpoint(noisy, x, use_reentrant=reentrant)
    with source(), drawing(Cut(ROWS, PARTS[0]), RandomSource(0), backward=False):
        assert checkpoint(noisy, x, use_reentrant=reentrant).shape == x.shape


def layers(estimator: str, x: Tensor, tokens: Tensor) -> list[Tensor]:
    """Outputs drawn by an estimator for some rows."""
    gaussian = GaussianTensor(torch.ones(3, 4), torch.full((3, 4), 0.5))
    bias = GaussianTensor(torch.zeros(3), torch.ones(3))
    kernel = GaussianTensor(torch.ones(2, 4, 1), torch.ones(2, 4, 1))
    return [
        linear(x, gaussian, bias, estimator),
        linear(x[:, None].expand(-1, 2, -1), gaussian, bias, estimator),
        convolution(torch.nn.functional.conv1d, x[..., None], kernel, None, estimator),
        embedding(tokens, GaussianTensor(torch.zeros(9, 2), torch.ones(9, 2)), estimator),
    ]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_draws_for_parts_what_it_draws_for_the_whole(estimator: str) -> None:
    x, tokens = torch.arange(28.0).reshape(ROWS, 4) / 28, torch.arange(ROWS)
    with source():
        whole = layers(estimator, x, tokens)
    parts = []
    for rank, part in enumerate(PARTS):
        with source(), drawing(Cut(ROWS, part), RandomSource(rank)):
            parts.append(layers(estimator, x[part], tokens[part]))
    exact = whole[:3] if estimator == "flipout" else whole  # tokens of other processes are not known here
    for place, expected in enumerate(exact):
        torch.testing.assert_close(torch.cat([part[place] for part in parts]), expected)
