"""A network at many weights at once is the network at each of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.network import Weights, reading
from bayescope.network.draws import outputs_at
from tests.network.networks import Function, built, call, generator, numbers
from tests.network.test_network import Largest


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.mix = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.1)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.table(tokens)))


def by_value(m: Any, x: Tensor) -> Tensor:
    return x @ m.w.T if m.w.sum() > 0 else -x @ m.w.T  # no vmap over w


def doubling(m: Any, x: Tensor) -> Tensor:
    x.mul_(2.0)
    return torch.tanh(x @ m.w.T)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2)), numbers(7, 3)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        numbers(7, 1, 4, 4),
    ),
    "lstm": (Recurrent, numbers(7, 5, 3)),
    "encoder": (Encoder, {"tokens": torch.randint(11, (7, 4), generator=generator(0))}),
    "two inputs": (lambda: nn.Bilinear(3, 2, 4), (numbers(7, 3), numbers(7, 2))),
    "by value": (lambda: Function(by_value, w=(2, 3)), numbers(7, 3)),
    "writes over its input": (lambda: Function(doubling, w=(2, 3)), numbers(7, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("limit", [1, 20_000, 2**26])
def test_it_is_the_network_with_those_weights(name: str, limit: int) -> None:
    make, x = NETWORKS[name]
    module = built(make)
    weights = Weights.select(module, ["*.weight"] if name in ("mlp", "lstm") else "all", None)
    if name == "lstm":
        weights = Weights.select(module, "all", None)
    theta = numbers(5, weights.dim, seed=4)
    kept = copy.deepcopy(x)
    with reading(module):
        got = outputs_at(module, weights, x, theta, copy=name.startswith("writes"), memory=limit)
    one = copy.deepcopy(module).eval()
    for values, outputs in zip(theta, got, strict=True):
        with torch.no_grad():
            for key, value in weights.unflat(values, module).items():
                one.get_parameter(key).copy_(value)
            torch.testing.assert_close(outputs, call(one, copy.deepcopy(x)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    assert not got.requires_grad


def test_draws_go_through_together_where_torch_can() -> None:
    calls = []
    for name in ("mlp", "cnn", "encoder", "by value"):
        make, x = NETWORKS[name]
        module = built(make)
        weights = Weights.select(module, "all", None)
        module.register_forward_pre_hook(lambda *_: calls.append(1))
        with reading(module):
            outputs_at(module, weights, x, numbers(50, weights.dim), copy=False)
        assert len(calls) == (52 if name == "by value" else 2), name  # one to see how wide it is
        calls.clear()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 100), nn.Tanh(), nn.Linear(100, 1)), (500, 3)),
        (lambda: nn.Sequential(nn.Conv1d(1, 1, 3), nn.Flatten(), nn.AvgPool1d(998)), (20, 1, 1000)),  # wider than θ
    ],
)
def test_memory_does_not_grow_with_draws_or_rows(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    module = built(make).float()
    weights = Weights.select(module, "all", None)
    x, theta = numbers(*shape).float(), numbers(400, weights.dim, seed=3)
    with Largest() as written:
        outputs_at(module, weights, x, theta, copy=False, memory=2**20)
    assert written.numel <= 2**20 / 4  # all together would be 400 · 500 · 100 numbers, or 400 · 20 · 1000
