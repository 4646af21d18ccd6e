from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.network.networks import Function, assert_exact, built, numbers

Calls = dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[str, ...]]]


def written(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 3, 4, dtype=x.dtype)
    y[:, 1:] = x
    y[:, 0] = m.w
    return y.tanh().sum(1)


def token_by_cat(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m.w.expand(len(x), -1, -1), x], 1).tanh().sum(1)


def in_place(m: Any, x: Tensor) -> Tensor:
    y = x.mean(1) * 1.0
    y += m.w
    y.mul_(m.v)
    y *= m.v
    return y


# name: the function of the parameters and of x (N, 2, 4), their shapes, and how they are to be read
CALLS: Calls = {
    "linear by name": (
        lambda m, x: F.linear(input=x, weight=m.w, bias=m.b).mean(1),
        {"w": (3, 4), "b": (3,)},
        ("linear",),
    ),
    "matmul": (lambda m, x: torch.matmul(x, m.w).tanh().mean(1), {"w": (4, 3)}, ("linear",)),
    "@": (lambda m, x: (x @ m.w).tanh().mean(1), {"w": (4, 3)}, ("linear",)),
    "@ T": (lambda m, x: (x @ m.w.T).mean(1), {"w": (3, 4)}, ("linear",)),
    "@ transposed twice": (lambda m, x: (x @ m.w.t().transpose(0, 1)).mean(1), {"w": (4, 3)}, ("linear",)),
    "mm": (lambda m, x: torch.mm(x.mean(1), m.w), {"w": (4, 3)}, ("linear",)),
    "matrix first": (lambda m, x: (m.w @ x.mT).mean(2), {"w": (3, 4)}, ("linear",)),
    "matrix first, two dimensions": (lambda m, x: (m.w @ x.mean(1).T).T, {"w": (3, 4)}, ("linear",)),
    "vector": (lambda m, x: (x @ m.w).tanh(), {"w": (4,)}, ("linear",)),
    "addmm": (lambda m, x: torch.addmm(m.b, x.mean(1), m.w), {"w": (4, 3), "b": (3,)}, ("linear",)),
    "addmm, folded": (
        lambda m, x: torch.addmm(m.b, x.reshape(-1, 4), m.w).view(len(x), 2, 3).tanh().sum(1),
        {"w": (4, 3), "b": (3,)},
        ("linear",),
    ),
    "addmm, bias alone": (
        lambda m, x: torch.addmm(m.b, x.mean(1), torch.ones(4, 3).double()),
        {"b": (3,)},
        ("elementwise",),
    ),
    "addmm, scaled": (
        lambda m, x: torch.addmm(m.b, x.mean(1), m.w, beta=2.0),
        {"w": (4, 3), "b": (3,)},
        ("per-row",),
    ),
    "positions folded inside": (
        lambda m, x: F.linear(x.transpose(0, 1).reshape(-1, 4), m.w).tanh().view(2, len(x), 3).sum(0),
        {"w": (3, 4)},
        ("linear",),
    ),
    "time first": (lambda m, x: F.linear(x.transpose(0, 1), m.w).tanh().sum(0), {"w": (3, 4)}, ("linear",)),
    "chunks": (
        lambda m, x: torch.tanh(F.linear(x, m.w[:2], m.b[:2]) * F.linear(x.tanh(), m.w[2:], m.b[2:])).mean(1),
        {"w": (4, 4), "b": (4,)},
        ("linear", "linear"),
    ),
    "a chunk alone": (lambda m, x: F.linear(x, m.w.chunk(2)[1]).mean(1), {"w": (4, 4)}, ("linear", "unused")),
    "chunks that overlap": (
        lambda m, x: F.linear(x, m.w[:2]).mean(1) + F.linear(x, m.w[1:3]).tanh().mean(1),
        {"w": (3, 4)},
        ("per-row",),
    ),
    "all of it and transposed": (
        lambda m, x: F.linear(F.linear(x, m.w).tanh(), m.w.T).mean(1),
        {"w": (4, 4)},
        ("mixed",),
    ),
    "matrix and scale": (lambda m, x: (F.linear(x, m.w) * m.w[1]).mean(1), {"w": (4, 4)}, ("mixed",)),
    "matrix with its bias, and scale": (
        lambda m, x: (F.linear(x, m.w, m.b) * m.w[1]).mean(1),
        {"w": (4, 4), "b": (4,)},
        ("mixed", "elementwise"),
    ),
    "a copy that lies otherwise": (
        lambda m, x: F.linear(x[..., :2], m.w.t().contiguous()[1:]).mean(1),
        {"w": (2, 4)},
        ("derived",),
    ),
    "images of one row": (
        lambda m, x: F.conv1d(x.reshape(-1, 1, 4), m.w, m.b).view(len(x), 2, 3, 3).tanh().sum((1, 3)),
        {"w": (3, 1, 2), "b": (3,)},
        ("convolution",),
    ),
    "images of one row, bias alone": (
        lambda m, x: F.conv1d(x.reshape(-1, 1, 4), torch.ones(3, 1, 2).double(), m.b).view(len(x), -1).tanh()[:, :5],
        {"b": (3,)},
        ("elementwise",),
    ),
    "bare convolution": (
        lambda m, x: F.conv1d(x, m.w, stride=2, padding="valid").tanh().sum(2),
        {"w": (3, 2, 2)},
        ("convolution",),
    ),
    "transposed, bare": (
        lambda m, x: F.conv_transpose1d(x, m.w, m.b, 2, groups=2).tanh().sum(2),
        {"w": (2, 3, 2), "b": (6,)},
        ("convolution", "elementwise"),
    ),
    "one matrix, two biases": (
        lambda m, x: F.linear(F.linear(x, m.w, m.b).tanh(), m.w, m.c).mean(1),
        {"w": (4, 4), "b": (4,), "c": (4,)},
        ("linear", "elementwise"),
    ),
    "a bias that also scales": (
        lambda m, x: (F.linear(x, m.w, m.b) * m.b).mean(1),
        {"w": (3, 4), "b": (3,)},
        ("linear", "elementwise"),
    ),
    "scale and shift": (lambda m, x: (x * m.w + m.b).tanh().mean(1), {"w": (4,), "b": (1,)}, ("elementwise",)),
    "by methods": (
        lambda m, x: x.div(m.w).sub(m.b).tanh().mean(1).add(m.b, alpha=2.0),
        {"w": (4,), "b": ()},
        ("elementwise",),
    ),
    "on the left": (lambda m, x: (m.w - m.b / x.exp() * 2.0).mean(1), {"w": (2, 4), "b": (2, 1)}, ("elementwise",)),
    "in place": (in_place, {"w": (4,), "v": (4,)}, ("elementwise",)),
    "where": (lambda m, x: torch.where(x > 0, x * m.w, m.w).mean(1), {"w": (4,)}, ("elementwise",)),
    "lerp": (lambda m, x: torch.lerp(x, x.square(), m.w).mean(1), {"w": (4,)}, ("elementwise",)),
    "addcmul": (
        lambda m, x: torch.addcmul(m.b, x, m.w, value=0.5).tanh().mean(1),
        {"w": (4,), "b": (4,)},
        ("elementwise",),
    ),
    "power": (lambda m, x: ((x.square() + 1) ** m.w).mean(1), {"w": (4,)}, ("elementwise",)),
    "maximum": (lambda m, x: torch.maximum(x, other=m.w).mean(1), {"w": (2, 4)}, ("elementwise",)),
    "views": (lambda m, x: (x * m.w.view(2, 2).flatten()[None, None]).mean(1), {"w": (4,)}, ("elementwise",)),
    "positions cut to length": (
        lambda m, x: (x + m.w[:, : x.shape[1]]).tanh().mean(1),
        {"w": (1, 5, 4)},
        ("elementwise",),
    ),
    "unbound": (lambda m, x: (x * m.w.unbind(0)[1]).mean(1), {"w": (2, 4)}, ("elementwise",)),
    "cast": (lambda m, x: (x * m.w.to(x.dtype).contiguous()).mean(1), {"w": (4,)}, ("elementwise",)),
    "cloned": (lambda m, x: F.linear(x, m.w.clone()).mean(1), {"w": (3, 4)}, ("linear",)),
    "token by cat": (token_by_cat, {"w": (1, 1, 4)}, ("elementwise",)),
    "token by repeat": (
        lambda m, x: torch.cat([m.w.repeat(len(x), 1, 1), x], 1).tanh().sum(1),
        {"w": (1, 1, 4)},
        ("elementwise",),
    ),
    "token by assignment": (written, {"w": (4,)}, ("elementwise",)),
    "queries through a matrix": (
        lambda m, x: (F.linear(m.w.expand(len(x), -1, -1), m.v) * x).mean(1),
        {"w": (1, 2, 4), "v": (4, 4)},
        ("elementwise", "linear"),
    ),
    "softmax of a weight": (lambda m, x: (x * m.w.softmax(0)).mean(1), {"w": (4,)}, ("derived",)),
    "einsum": (lambda m, x: torch.einsum("nd, cd -> nc", x.tanh().sum(1), m.w), {"w": (3, 4)}, ("linear",)),
    "einsum with an ellipsis": (
        lambda m, x: torch.einsum("dc,...d->...c", m.w, x).tanh().mean(1),
        {"w": (4, 3)},
        ("linear",),
    ),
    "einsum over two indices": (
        lambda m, x: torch.einsum("ntd,otd->on", x, m.w).T,
        {"w": (3, 2, 4)},
        ("linear",),
    ),
    "einsum to two indices": (
        lambda m, x: torch.einsum("ntd,dhe->nhte", x, m.w).tanh().sum((1, 2)),
        {"w": (4, 2, 3)},
        ("linear",),
    ),
    "einsum with an index in all": (lambda m, x: torch.einsum("ntd,td->nt", x, m.w), {"w": (2, 4)}, ("per-row",)),
    "einsum without an arrow": (lambda m, x: torch.einsum("ad,dc", x.mean(1), m.w), {"w": (4, 3)}, ("per-row",)),
    "einsum that sums the data": (lambda m, x: torch.einsum("ntd,cd->nc", x, m.w), {"w": (3, 4)}, ("per-row",)),
    "einsum that sums the weight": (lambda m, x: torch.einsum("ntd,cd->nt", x, m.w), {"w": (3, 4)}, ("per-row",)),
    "normalised matrix": (lambda m, x: F.linear(x, F.normalize(m.w)).mean(1), {"w": (3, 4)}, ("derived",)),
    "cut from the graph": (
        lambda m, x: (x * m.w.detach() * m.v).mean(1),
        {"w": (4,), "v": (4,)},
        ("unused", "elementwise"),
    ),
    "shapes alone": (lambda m, x: x.mean(1) * m.w.shape[0] * m.v * m.w.requires_grad, {"w": (4,), "v": (4,)}, ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_read_exactly_and_in_its_own_way(name: str) -> None:
    function, shapes, kinds = CALLS[name]
    module = built(lambda: Function(function, **shapes))
    network = assert_exact(module, numbers(5, 2, 4))
    if kinds:
        assert tuple(part.kind for part in network.parts) == kinds
    # every way of choosing some of the parameters leaves the rest fixed
    for parameter in shapes:
        if "unused" not in kinds and len(shapes) > 1 and name != "shapes alone":
            assert_exact(module, numbers(4, 2, 4, seed=3), [parameter])


@pytest.mark.parametrize(("padding", "kinds"), [(None, ("embedding",)), (-1, ("embedding",))])
def test_tokens_are_looked_up(padding: int | None, kinds: tuple[str, ...]) -> None:
    tokens = torch.tensor([[0, 1, 1], [4, 2, 0], [3, 4, 4], [0, 0, 0]])
    module = built(lambda: Function(lambda m, t: F.embedding(t, m.w, padding).tanh().sum(1), w=(5, 3)))
    network = assert_exact(module, tokens)
    assert tuple(part.kind for part in network.parts) == kinds


def test_a_table_that_changes_while_it_is_read_is_read_row_by_row() -> None:
    tokens = torch.tensor([[0, 1], [2, 0], [1, 1]])
    module = built(lambda: Function(lambda m, t: F.embedding(t, m.w, max_norm=100.0).tanh().sum(1), w=(5, 3)))
    network = assert_exact(module, tokens)
    assert [part.kind for part in network.parts] == ["per-row"]
