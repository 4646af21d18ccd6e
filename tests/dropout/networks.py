"""Small networks with dropout in all the places where networks have it, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.network.networks import built, generator, numbers

ROWS = 5


class Functional(nn.Module):
    """Calls dropout as a function, on what it also uses undropped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        return self.second(hidden + F.dropout(hidden, 0.3, training=self.training))


class Overwriting(nn.Module):
    """Dropout in place, on what is used once more afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(3, 6), nn.Dropout(0.4, inplace=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        dropped = self.drop(hidden)
        return self.second(dropped) + hidden[:, :2]


class Tokens(nn.Module):
    """Sequences, with attention's own dropout; rows come first or second."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=batch_first)
        self.drop, self.head, self.batch_first = nn.Dropout(0.2), nn.Linear(8, 3), batch_first

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(self.drop(x))


class Folded(nn.Module):
    """Positions folded together with the rows before dropout, the row running slowest or fastest."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        self.first, self.drop, self.second, self.inner = nn.Linear(2, 5), nn.Dropout(0.4), nn.Linear(5, 3), inner

    def forward(self, x: Tensor) -> Tensor:  # (N, T, 2)
        x = x.transpose(0, 1) if self.inner else x
        hidden = self.drop(torch.tanh(self.first(x.reshape(-1, 2))))
        f = self.second(hidden).reshape(*x.shape[:2], 3)
        return f.transpose(0, 1) if self.inner else f


class Recurrent(nn.Module):
    """An LSTM, which vmap loops over or cannot take at all, with dropout after it."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.drop, self.head = nn.LSTM(3, 5, batch_first=True), nn.Dropout(0.3), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.recurrent(x)[0][:, -1]))


class Keywords(nn.Module):
    """Two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return self.layers(torch.cat([left, right], 1))


class Looping(nn.Module):
    """Branches on a value, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.first(x))
        return self.second(hidden) * (2.0 if float(hidden.detach().abs().sum()) >= 0 else 1.0)


class Switched(nn.Module):
    """Attention whose rate is 0 but in train mode, beside a child that does something else there."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.child, self.head = nn.Linear(4, 12), Moody(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:  # (N, T, 4)
        q, k, v = self.project(x).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4 if self.training else 0.0)
        return self.head(self.child(mixed).mean(1))


class Moody(nn.Module):
    """Adds a hundred in train mode, and counts how often it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            return x + 100.0
        return x


def perceptron(rate: float = 0.3) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(rate), nn.Linear(6, 2))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Dropout2d(0.3), nn.BatchNorm2d(4), nn.SELU(), nn.FeatureAlphaDropout(0.2), nn.Flatten(),
        nn.AlphaDropout(0.3), nn.Linear(36, 3),
    )  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 2))


def tokens() -> Tensor:
    return torch.randint(11, (ROWS, 4), generator=generator(3))


# By name: how the network is made, and inputs of `ROWS` rows.
CASES: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "perceptron": (perceptron, lambda: numbers(ROWS, 3)),
    "convolutional": (convolutional, lambda: numbers(ROWS, 2, 5, 5)),
    "functional": (Functional, lambda: numbers(ROWS, 3)),
    "overwriting": (Overwriting, lambda: numbers(ROWS, 3)),
    "attention": (lambda: Tokens(batch_first=True), tokens),
    "attention, rows second": (lambda: Tokens(batch_first=False), tokens),
    "encoder": (encoder, lambda: numbers(ROWS, 3, 8)),
    "folded": (lambda: Folded(inner=False), lambda: numbers(ROWS, 4, 2)),
    "folded, row fastest": (lambda: Folded(inner=True), lambda: numbers(ROWS, 4, 2)),
    "recurrent": (Recurrent, lambda: numbers(ROWS, 4, 3)),
    "keywords": (Keywords, lambda: {"left": numbers(ROWS, 2), "right": numbers(ROWS, 3, seed=5)}),
    "looping": (Looping, lambda: numbers(ROWS, 3)),
    "switched": (Switched, lambda: numbers(ROWS, 3, 4)),
}


def case(name: str) -> tuple[nn.Module, Any]:
    """The network, in float64, and its inputs."""
    make, inputs = CASES[name]
    return built(make), inputs()
