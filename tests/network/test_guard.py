from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from bayescope.network import call, reading


class Counting(nn.Module):
    """A layer that counts its calls in a buffer, replaces another buffer, draws random numbers, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(2))
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.sum()
        torch.rand(1)
        self.register_buffer("late", x.clone())
        if self.fails:
            raise RuntimeError("in the middle")
        return x * self.weight


def network() -> nn.Sequential:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), Counting())
    module[0].eval()  # a mixture of modes
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    return module


def test_modes_are_eval_inside_and_restored_one_by_one() -> None:
    module = network()
    with reading(module):
        assert not any(submodule.training for submodule in module.modules())
    assert [submodule.training for submodule in module.modules()] == [True, False, True, True]


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_gradients_and_random_states_are_as_they_were(fails: bool) -> None:
    module = network()
    module[2].fails = fails
    state, buffers = torch.get_rng_state(), dict(module.named_buffers())
    gradients = [parameter.grad for parameter in module.parameters()]
    with pytest.raises(RuntimeError, match="in the middle") if fails else nullcontext(), reading(module):
        module[2].weight.grad = None
        module[2].weight.requires_grad_(False)
        module[0].train()
        call(module, torch.ones(4, 2) + torch.arange(4.0)[:, None])
    assert torch.equal(torch.get_rng_state(), state)
    assert dict(module.named_buffers()).keys() == buffers.keys()
    assert all(after is buffers[name] for name, after in module.named_buffers())
    assert module[2].calls.item() == 0
    assert not module[0].running_mean.any()
    assert module[0].num_batches_tracked.item() == 0
    assert all(after.grad is before for after, before in zip(module.parameters(), gradients, strict=True))
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert [submodule.training for submodule in module.modules()] == [True, False, True, True]


def test_a_guard_inside_a_guard_does_nothing() -> None:
    module = network()
    with reading(module):
        with reading(module):
            module[2].calls += 5
        assert module[2].calls.item() == 5
        assert not module.training
    assert module[2].calls.item() == 0
    with reading(module):
        assert not module.training
    assert module.training


def test_two_modules_are_guarded_apart() -> None:
    one, two = network(), network()
    with reading(one), reading(two):
        two[2].calls += 1
        assert not two.training
    assert two[2].calls.item() == 0


def test_an_overridden_train_is_not_called() -> None:
    class Merging(nn.Module):
        def train(self, mode: bool = True) -> Merging:
            raise AssertionError("merges weights")

    with reading(Merging()):
        pass


@pytest.mark.parametrize("callers", [torch.no_grad, torch.inference_mode])
def test_it_works_under_callers_without_gradients(callers: Callable[[], AbstractContextManager[None]]) -> None:
    module = network()
    with callers(), reading(module):
        call(module, torch.ones(4, 2))
    assert module[2].calls.item() == 0
