from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError
from bayescope.network import call, count_rows, explained, first_not_finite, map_tensors, take_rows


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


def test_the_first_row_that_is_not_finite_is_found_in_any_tensor() -> None:
    later, sooner = a.clone(), b.clone()
    later[2, 0], sooner[1, 1] = torch.nan, torch.inf
    assert first_not_finite(a) is None
    assert first_not_finite({"a": later, "ids": torch.arange(3), "n": 2}) == 2
    assert first_not_finite((later, sooner)) == 1
    assert first_not_finite(torch.tensor([0.0, torch.nan])) == 1


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (
            nn.utils.skip_init(nn.Linear, 3, 1),
            a,
            r"inputs of shape \(3, 2\) and dtype float32: mat1 and mat2 shapes .*\)\.$",
        ),
        (nn.utils.skip_init(nn.Linear, 3, 1), torch.ones(4), r"shape \(4,\) .* one row is X\[:1\]"),
        (
            nn.utils.skip_init(nn.Linear, 2, 1),
            a.long(),
            r"dtype int64: .*Whole numbers stay whole, .* give X\.astype\(float\)",
        ),
        (
            nn.utils.skip_init(nn.Linear, 2, 1),
            {"x": a},
            r"x: shape \(3, 2\).* 'x'\. .* keyword arguments, forward\(x=…\)",
        ),
        (
            nn.utils.skip_init(nn.Linear, 2, 1),
            (a, b),
            r"shape \(3, 2\).*, shape \(3, 2\).* passed as 2 positional arguments",
        ),
        (nn.utils.skip_init(nn.Embedding, 2, 1), torch.arange(3), r"index out of range in self\.$"),
    ],
)
def test_inputs_that_a_network_cannot_take_are_described(module: nn.Module, inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught, explained(module, inputs):
        call(module, inputs)
    assert isinstance(caught.value.__cause__, RuntimeError | TypeError | IndexError)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), KeyError("mine"), InputTypeError("ours")])
def test_other_errors_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained(Sum(), a):
        raise error
    assert caught.value is error
