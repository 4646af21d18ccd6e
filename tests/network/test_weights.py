from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.network import Weights, largest_magnitude, largest_variance


class Network(nn.Module):
    """Two layers, the second used twice under two names, a bare number, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self._layer(3, 2, 0.0)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.second = self._layer(2, 2, 10.0)
        self.again = self.second
        self.frozen = self._layer(2, 2, 20.0).requires_grad_(False)

    @staticmethod
    def _layer(inputs: int, outputs: int, start: float) -> nn.Module:
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
        size = inputs * outputs
        layer.weight.data = torch.arange(start, start + size).reshape(outputs, inputs)
        layer.bias.data = torch.arange(start + size, start + size + outputs)
        return layer


# In the order of module.parameters(): a module's own parameters stand before its children's.
NAMES = ("scale", "first.weight", "first.bias", "second.weight", "second.bias")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("all", NAMES),
        ("first.weight", ("first.weight",)),
        ("*.weight", ("first.weight", "second.weight")),
        ("*", NAMES),
        ("first", ("first.weight", "first.bias")),
        (["second.*", "scale"], ("scale", "second.weight", "second.bias")),
        (["again.weight"], ("second.weight",)),
        (("first.bias", "first.*"), ("first.weight", "first.bias")),
    ],
)
def test_names_and_globs(choice: Any, names: tuple[str, ...]) -> None:
    assert Weights.select(Network(), choice).names == names


def test_flat_order_is_that_of_the_parameters_with_shared_ones_once() -> None:
    module = Network()
    weights = Weights.select(module, "all")
    expected = torch.cat([p.flatten() for p in module.parameters() if p.requires_grad])
    assert weights.dim == len(expected) == 15
    assert torch.equal(weights.flat(module), expected)
    assert not weights.flat(module).requires_grad
    named = weights.unflat(weights.flat(module))
    assert all(torch.equal(named[name], module.get_parameter(name)) for name in NAMES)
    assert [(place.start, place.stop) for place in weights.slices] == [(0, 1), (1, 7), (7, 9), (9, 13), (13, 15)]
    assert weights.mask("first.bias").tolist() == [True, True]


def test_flat_and_unflat_take_leading_axes() -> None:
    weights = Weights.select(Network(), ["scale", "first"])
    draws = torch.arange(4.0 * weights.dim).reshape(2, 2, weights.dim)
    named = weights.unflat(draws)
    assert {name: tuple(tensor.shape) for name, tensor in named.items()} == {
        "scale": (2, 2),
        "first.weight": (2, 2, 2, 3),
        "first.bias": (2, 2, 2),
    }
    assert torch.equal(weights.flatten(named), draws)
    with pytest.raises(InputError, match="expected 9 entries"):
        weights.unflat(draws[..., 1:])


def masked(module: nn.Module) -> tuple[Weights, Tensor]:
    mask = torch.zeros(15, dtype=torch.bool)
    mask[[0, 2, 5, 7, 8, 14]] = True
    return Weights.select(module, mask), mask


def test_a_flat_mask_chooses_entries() -> None:
    module = Network()
    weights, mask = masked(module)
    assert weights.names == ("scale", "first.weight", "first.bias", "second.bias")
    assert weights.dim == 6
    everything = torch.cat([p.flatten() for p in module.parameters() if p.requires_grad]).detach()
    assert torch.equal(weights.flat(module), everything[mask])
    assert weights.mask("first.weight").tolist() == [[False, True, False], [False, True, False]]
    assert weights.mask("first.bias").all()
    assert [place.start for place in weights.slices] == [0, 1, 3, 5]


def test_what_a_mask_leaves_out_is_zero_or_the_modules() -> None:
    module = Network()
    weights, _ = masked(module)
    vector = torch.arange(12.0).reshape(2, 6) - 3
    alone, filled = weights.unflat(vector), weights.unflat(vector, module)
    assert alone["first.weight"][1].tolist() == [[0, 4, 0], [0, 5, 0]]
    assert filled["first.weight"][1].tolist() == [[0, 4, 2], [3, 5, 5]]
    assert torch.equal(weights.flatten(alone), vector)
    assert torch.equal(weights.flatten(filled), vector)


def test_gradients_pass_through() -> None:
    module = Network()
    weights, _ = masked(module)
    vector = torch.ones(6, requires_grad=True)
    sum(tensor.sum() for tensor in weights.unflat(vector, module).values()).backward()
    assert vector.grad is not None
    assert torch.equal(vector.grad, torch.ones(6))


def test_masks_by_name() -> None:
    first = torch.tensor([[True, False, False], [False, False, True]])
    weights = Weights.select(Network(), {"second.bias": torch.ones(2).bool(), "first.weight": first})
    assert weights.names == ("first.weight", "second.bias")
    assert weights.flat(Network()).tolist() == [0.0, 5.0, 14.0, 15.0]
    assert set(weights.masks) == {"first.weight"}


@pytest.mark.parametrize(("k", "expected"), [(3, [13.0, 14.0, 15.0]), (0.2, [13.0, 14.0, 15.0])])
def test_largest_magnitude(k: int | float, expected: list[float]) -> None:
    module = Network()
    module.second.weight.data[0, 0] = -100.0
    weights = Weights.select(module, largest_magnitude(k))
    assert sorted(weights.flat(module).tolist()) == sorted([-100.0, *expected[1:]])


def test_largest_variance_takes_the_variances() -> None:
    variances = torch.tensor([1.0, 5.0, 5.0, 2.0])
    assert largest_variance(2).mask(variances).tolist() == [False, True, True, False]
    assert largest_variance(1).mask(variances).tolist() == [False, True, False, False]
    with pytest.raises(UnsupportedError, match="needs data"):
        Weights.select(Network(), largest_variance(2))


@pytest.mark.parametrize("k", [0, -1, 1.5, 0.0, True, "3"])
def test_impossible_counts_are_refused(k: Any) -> None:
    with pytest.raises(InputError, match=r"positive whole number or a fraction"):
        largest_magnitude(k)


def test_more_weights_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(InputError, match="at most 15"):
        Weights.select(Network(), largest_magnitude(16))


def test_the_last_layer_is_found_by_whoever_traces() -> None:
    assert Weights.select(Network(), "last_layer", lambda: ["second.weight", "second.bias"]).dim == 6
    with pytest.raises(UnsupportedError, match="tracing"):
        Weights.select(Network(), "last_layer")


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ("frist.weight", OptionError, "Did you mean 'first.weight'"),
        ("*.wait", OptionError, "'second.bias'"),
        (["first.*", "third.*"], OptionError, "third"),
        ("frozen.weight", InputError, "frozen. Set requires_grad=True"),
        ("frozen.*", InputError, "frozen"),
        ({"frozen.weight": torch.ones(2, 2).bool()}, InputError, "frozen"),
        ({"nowhere": torch.ones(2, 2).bool()}, OptionError, "nowhere"),
        ({"first.bias": torch.ones(3).bool()}, InputError, r"shape \(2,\)"),
        ({"first.bias": torch.ones(2)}, InputError, "boolean"),
        ({"first.bias": torch.zeros(2).bool()}, InputError, "at least one true"),
        (torch.ones(14).bool(), InputError, r"shape \(15,\)"),
        (torch.ones(15), InputError, "boolean"),
        ([], InputError, "empty list"),
        (3, InputTypeError, "expected 'all'"),
        ([3], InputTypeError, "expected 'all'"),
    ],
)
def test_what_cannot_be_chosen_is_refused(choice: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Weights.select(Network(), choice)


def test_a_module_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="Unfreeze"):
        Weights.select(Network().requires_grad_(False), "all")


def test_weights_already_chosen_stay_as_they_are() -> None:
    weights = Weights.select(Network(), "first")
    assert Weights.select(Network(), weights) is weights
