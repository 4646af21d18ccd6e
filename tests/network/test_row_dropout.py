"""Dropout on parts of a minibatch has the masks of the whole; other random calls are each process's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.network import call, compiled
from bayescope.private_draws import Cut, RandomSource, drawing

ROWS = 7
PARTS = [slice(0, 3), slice(3, 7)]
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4, True),
    "named": lambda x: F.dropout(input=x, p=0.4, training=True),
    "in place": lambda x: F.dropout(x.clone(), 0.4, True, True),
    "channels": lambda x: F.dropout1d(x, 0.4, True),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, True),
    "layers": nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.5)),
    "off": lambda x: F.dropout(F.dropout(x, 0.4, False), 0.0, True),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda x: x + torch.randn_like(x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
}


class Network(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The result on each process's part, from the same generators."""
    found = []
    for rank, part in enumerate(PARTS):
        with RandomSource(1).inside(), drawing(Cut(ROWS, part), RandomSource(rank)):
            found.append(call(Network(function), x[part]))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_parts_have_the_masks_of_the_whole(name: str) -> None:
    x = torch.arange(1.0, 1 + ROWS * 12).reshape(ROWS, 3, 4)
    with RandomSource(1).inside():
        whole = call(Network(CALLS[name]), x)
    assert torch.equal(torch.cat(in_parts(CALLS[name], x)), whole)


def test_gradients_go_through_the_masks() -> None:
    x = torch.ones(ROWS, 5, requires_grad=True)
    out = torch.cat(in_parts(CALLS["dropout"], x))
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_different_processes_have_different_numbers_in_other_calls(name: str) -> None:
    x = torch.ones(ROWS, 3, 4).cumsum(-1)
    first, second = in_parts(OTHERS[name], x)
    assert not torch.equal(first, second[: len(first)])


def test_the_shared_state_goes_on_alike_whatever_the_parts() -> None:
    states = []
    for rank, part in enumerate(PARTS):
        with RandomSource(1).inside() as source, drawing(Cut(ROWS, part), RandomSource(rank)):
            call(Network(lambda x: CALLS["layers"](OTHERS["noise"](x))), torch.ones(part.stop - part.start, 2, 2))
        states.append(source.states()["cpu"])
    assert torch.equal(*states)


def test_minibatches_of_one_s_own_are_drawn_from_one_s_own_state() -> None:
    found = []
    for rank in range(2):
        with RandomSource(1).inside(), drawing(None, RandomSource(rank)):
            found.append(call(nn.Dropout(0.5), torch.ones(50)))
    assert not torch.equal(*found)


def test_a_plain_network_is_not_compiled() -> None:
    assert not compiled(nn.Sequential(nn.Flatten(), nn.Dropout()))
