"""Modules that call dropout in train mode alone are found, and nothing but them is put into it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import UnsupportedError
from bayescope.network import random_outputs, reading, switched_on, switches_of
from tests.dropout.networks import ROWS, Looping, Moody, Switched, case
from tests.network.networks import built, generator, numbers


def test_only_modules_that_switch_dropout_are_in_train_mode() -> None:
    module, x = case("switched")
    before = module.child.count.clone()
    assert switches_of(module, x) == ([module], frozenset())
    with reading(module), switched_on([module]):
        f, sites = random_outputs(module, x, 50, generator())
    assert sites == 1
    assert (f.std(0) > 0).all()
    assert f.abs().max() < 90, "the child was in train mode"
    assert torch.equal(module.child.count, before)
    assert switches_of(built(Looping), numbers(ROWS, 3)) == ([], frozenset())


def test_dropout_in_train_mode_that_cannot_be_switched_on_is_refused() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other, self.linear = Moody(), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(F.dropout(x, 0.2) if self.other.training else x)

    with pytest.raises(UnsupportedError, match="1 calls in train mode alone"):
        switches_of(built(Asking), numbers(ROWS, 3))


@pytest.mark.parametrize("use", [True, False])
def test_dropout_that_is_off_in_train_mode_stays_off(use: bool) -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop, self.use = nn.Linear(3, 1), nn.Dropout(0.5), use

        def forward(self, x: Tensor) -> Tensor:
            h = F.dropout(self.linear(x), 0.5, training=self.training and self.use)
            return self.drop(h) + F.dropout(h, 0.3, training=self.training)

    module, x = built(Choosing), numbers(ROWS, 3)
    switched, off = switches_of(module, x)
    assert switched == []
    assert off == (frozenset() if use else {0})
    with reading(module):
        f, sites = random_outputs(module, x, 20, generator(), off)
    assert sites == (3 if use else 2)
    assert bool((f == 0).all((1, 2)).any())


def test_switches_are_found_on_a_single_row() -> None:
    assert len(switches_of(built(Switched), numbers(1, 3, 4)).modules) == 1
