from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.network import substituted


def test_values_take_the_place_of_parameters_wherever_they_are_held() -> None:
    parameter, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 5.0))
    with substituted(nn.Module(), [parameter], [torch.full((3,), 2.0)]):
        assert torch.equal(torch.stack([parameter, other]), torch.tensor([[2.0] * 3, [5.0] * 3]))
        assert torch.equal(parameter * other, torch.full((3,), 10.0))
        assert torch.equal(torch.add(input=other, other=parameter), torch.full((3,), 7.0))
    assert torch.equal(parameter * 1, torch.ones(3))


def test_a_rewrite_sees_the_values_and_may_call_functions_that_have_one() -> None:
    parameter = nn.Parameter(torch.tensor([-1.0, 2.0]))

    def relu(x: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.clamp(x, 0)

    def clamp(x: Tensor, *_: Any) -> Tensor:
        return x + 100

    with substituted(nn.Module(), [parameter], [torch.tensor([-3.0, 4.0])], {F.relu: relu, torch.clamp: clamp}):
        assert torch.equal(F.relu(parameter), torch.tensor([97.0, 104.0]))
    with substituted(nn.Module(), [parameter], [torch.tensor([-3.0, 4.0])], {F.relu: lambda *_, **__: NotImplemented}):
        assert torch.equal(F.relu(parameter), torch.tensor([0.0, 4.0]))


def test_layers_hold_the_values_until_the_end_also_after_an_error() -> None:
    with torch.random.fork_rng(devices=[]):
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    before, value = dict(module.named_parameters(remove_duplicate=False)), torch.zeros(2, 2)

    def broken() -> None:
        with substituted(module, [module[0].weight], [value]):
            assert module[0].weight is module[1].weight is value
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert all(parameter is before[name] for name, parameter in module.named_parameters(remove_duplicate=False))
