from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.network.inputs import call, count_rows, map_tensors, take_rows


class Sum(nn.Module):
    def __init__(self, wrap: Any = lambda f: f) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, a: Tensor, b: Tensor | int = 0) -> Any:
        return self.wrap(a + b)


a, b = torch.arange(6.0).reshape(3, 2), torch.ones(3, 2)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(a, a), ((a, b), a + b), ([a, b], a + b), ({"a": a, "b": b}, a + b), ({"a": a, "b": 2}, a + 2)],
)
def test_tensors_tuples_and_dicts_are_passed_as_the_module_takes_them(inputs: Any, expected: Tensor) -> None:
    assert torch.equal(call(Sum(), inputs), expected)
    assert count_rows(inputs) == 3
    assert torch.equal(call(Sum(), take_rows(inputs, slice(1, 3))), expected[1:3])


@pytest.mark.parametrize(
    "wrap", [lambda f: SimpleNamespace(logits=f), lambda f: {"logits": f}, lambda f: OrderedDict(loss=None, logits=f)]
)
def test_outputs_may_carry_logits(wrap: Any) -> None:
    assert torch.equal(call(Sum(wrap), a), a)


def test_other_outputs_are_refused() -> None:
    with pytest.raises(InputTypeError, match="logits"):
        call(Sum(lambda f: (f, f)), a)


def test_rows_have_to_agree() -> None:
    with pytest.raises(InputError, match="same number of rows"):
        count_rows((a, b[:2]))
    with pytest.raises(InputError, match="same number of rows"):
        count_rows(torch.tensor(1.0))
    with pytest.raises(InputTypeError, match="expected a tensor"):
        count_rows("text")


def test_mapping_keeps_what_is_no_tensor() -> None:
    assert map_tensors(lambda tensor: tensor.sum().item(), {"a": a, "n": 3}) == {"a": 15.0, "n": 3}
