"""Dropout is found where it is, and put before the layers that were named, under the names that there were."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.dropout import mc_dropout
from bayescope.dropout.network import calling_order, calls_dropout, insert, own_dropout
from bayescope.errors import InputTypeError, OptionError, UnsupportedError
from bayescope.likelihoods import Gaussian
from tests.dropout.networks import Functional, Switched, Tokens, encoder
from tests.network.networks import built, numbers


def layers() -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(18, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("before", "chosen"),
    [
        ("all", ["0.0", "2", "4"]),
        ("hidden", ["2", "4"]),
        ("4", ["4"]),
        ("0.*", ["0.0"]),
        (["4", "0.*"], ["0.0", "4"]),
    ],
)
def test_dropout_is_put_before_the_layers_that_are_named(before: Any, chosen: list[str]) -> None:
    module = built(layers)
    names, x = [name for name, _ in module.named_parameters()], numbers(6, 1, 5, 5)
    plain = module.eval()(x)
    made = insert(module, before, lambda _, kind: kind(0.5))
    assert list(made) == chosen
    assert [name for name, _ in module.named_parameters()] == names
    assert list(module.state_dict()) == names
    assert {name: type(part) for name, part in made.items() if name == "0.0"} in ({}, {"0.0": nn.Dropout2d})
    assert own_dropout(module) == {f"{name}.input_dropout": 0.5 for name in chosen}
    assert torch.equal(module(x), plain)
    with torch.random.fork_rng():
        assert not torch.equal(module.train()(x), plain)


class Backwards(nn.Module):
    """Registers its layers in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(5, 1), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class ByWeight(nn.Module):
    """Never calls its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.a(x)), self.b.weight, self.b.bias)


@pytest.mark.parametrize("rate", [0.5, "concrete"])
def test_hidden_layers_are_those_that_are_called_later(rate: Any) -> None:
    module, x = built(Backwards), numbers(6, 3)
    assert calling_order(module, x) == ["first", "last"]
    q = mc_dropout(module, (x, x[:, :1]), likelihood=Gaussian(0.5), rate=rate, before="hidden", epochs=1)
    assert list(own_dropout(q.model)) == ["last.input_dropout"]
    with pytest.raises(UnsupportedError, match=r"'hidden' for a Backwards. Name the layers \(last, first\)"):
        mc_dropout(module, likelihood=Gaussian(0.5), rate=0.5, before="hidden")
    q = mc_dropout(module, likelihood=Gaussian(0.5), rate=0.5, before="last")
    assert list(own_dropout(q.model)) == ["last.input_dropout"]


@pytest.mark.parametrize("before", ["all", "hidden", "b"])
def test_dropout_that_would_do_nothing_is_refused(before: str) -> None:
    module, x = built(ByWeight), numbers(6, 3)
    data = (x, x[:, :1])
    if before != "hidden":
        for rate in (0.5, "concrete"):
            with pytest.raises(UnsupportedError, match="got 'b', which a pass does not call"):
                mc_dropout(module, data, likelihood=Gaussian(0.5), rate=rate, before=before, epochs=1)
        q = mc_dropout(module, likelihood=Gaussian(0.5), rate=0.5, before=before)  # nobody can know it yet
        with pytest.raises(UnsupportedError, match="got 'b', which a pass does not call"):
            q.predict(x)
        return
    with pytest.raises(UnsupportedError, match="got 'b', which a pass does not call"):
        mc_dropout(module, data, likelihood=Gaussian(0.5), rate=0.5, before=before, epochs=1)


@pytest.mark.global_rng
def test_dropout_at_rate_0_is_none() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.0), nn.Linear(5, 1))
    q = mc_dropout(module, likelihood=Gaussian(0.5), rate=0.5)
    assert q.record.notes["dropout"] == "rate 0.5 at 0, 2"
    noise = {"weight_decay": 1e-4, "prior_precision": 1e-2, "rows": 10}
    mc_dropout(module, likelihood="gaussian", rate=0.5, **noise)


def test_a_layer_that_is_called_by_keyword_has_its_dropout_too() -> None:
    module = built(lambda: nn.Linear(3, 2))
    insert(module, "all", lambda _, kind: kind(1.0))
    assert torch.equal(module.train()(input=numbers(2, 3)), module.bias.expand(2, 2))


def test_a_network_with_inserted_dropout_can_be_copied_and_saved() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    insert(module, "all", lambda _, kind: kind(1.0))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert torch.equal(other.train()(numbers(2, 3)), module[2].bias.expand(2, 1))


def test_a_layer_that_attention_holds_and_never_calls_is_left_out() -> None:
    module = built(encoder)
    made = insert(module, "all", lambda _, kind: kind(0.1))
    assert not any("self_attn" in name for name in made)
    assert {"0.layers.0.linear1", "0.layers.1.linear2", "1"} <= set(made)


def test_layers_that_are_not_there_are_refused() -> None:
    module = built(layers)
    for before in (3, [], ["2", 4], None):
        with pytest.raises(InputTypeError, match="before: expected 'all', 'hidden'"):
            insert(module, before, lambda _, kind: kind(0.5))
    with pytest.raises(OptionError, match="before: expected one of"):
        insert(module, "5", lambda _, kind: kind(0.5))
    with pytest.raises(UnsupportedError, match="linear or convolutional layers"):
        insert(nn.Tanh(), "all", lambda _, kind: kind(0.5))


@pytest.mark.global_rng
def test_dropout_that_is_there_is_found() -> None:
    module = nn.ModuleDict({"a": nn.Sequential(nn.Dropout(0.0), nn.AlphaDropout(0.3)), "b": Tokens(batch_first=True)})
    assert own_dropout(module) == {"a.0": 0.0, "a.1": 0.3, "b.attention": 0.3, "b.drop": 0.2}
    assert own_dropout(nn.LSTM(2, 2, num_layers=1)) == {}
    with pytest.raises(UnsupportedError, match=r"'inner' with dropout between"):
        own_dropout(nn.ModuleDict({"inner": nn.GRU(2, 2, num_layers=2, dropout=0.1)}))


class Nested(nn.Module):
    """Calls dropout in a function inside its own."""

    def forward(self, x: Tensor) -> Tensor:
        def drop(part: Tensor) -> Tensor:
            return F.dropout(part, 0.1)

        return drop(x)


@pytest.mark.global_rng
def test_code_that_names_dropout_is_told_from_code_that_does_not() -> None:
    assert calls_dropout(nn.Sequential(nn.Linear(2, 2), Functional()))
    assert calls_dropout(Nested())
    assert calls_dropout(Switched())
    assert not calls_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.TransformerEncoderLayer(4, 2)))
