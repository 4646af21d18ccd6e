from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import InputError, UnsupportedError
from bayescope.network import Network, forward
from tests.network.networks import Function, assert_exact, built, jacobian, numbers

x = numbers(5, 4)


def batch_statistics(m: Any, y: Tensor) -> Tensor:
    return F.linear(y - y.mean(0), m.w)


def random_numbers(m: Any, y: Tensor) -> Tensor:
    return F.linear(F.dropout(y, 0.5, training=True), m.w)


def by_row_number(m: Any, y: Tensor) -> Tensor:
    return F.linear(y * torch.arange(len(y))[:, None], m.w)


@pytest.mark.parametrize("function", [batch_statistics, random_numbers, by_row_number])
def test_rows_that_depend_on_their_batch_are_refused(function: Callable[..., Tensor]) -> None:
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="rows that do not depend on each other"):
        Network.trace(built(lambda: Function(function, w=(3, 4))), x)
    assert torch.equal(torch.get_rng_state(), before)


def test_batch_norm_that_keeps_no_statistics_is_refused() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    with pytest.raises(InputError, match="takes one row"):
        Network.trace(module, x)


class Scaled(torch.autograd.Function):
    """w y, in a function that the recorder cannot see into."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(y, w)
        return y * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        y, w = ctx.saved_tensors
        return g * w, (g * y).sum(0)


def test_gradients_that_the_sites_do_not_show_are_found_missing() -> None:
    """The matrix is seen at one site, and used behind the recorder's back at another."""

    def hidden(m: Any, y: Tensor) -> Tensor:
        return Scaled.apply(F.linear(y, m.w, m.b), m.b)

    module = built(lambda: Function(hidden, w=(3, 4), b=(3,)))
    network = Network.trace(module, x)
    assert [(part.name, part.kind) for part in network.parts] == [("w", "linear"), ("b", "per-row")]
    plain = built(lambda: Function(lambda m, y: F.linear(y, m.w, m.b) * m.b, w=(3, 4), b=(3,)))
    want = jacobian(plain, x, ("w", "b"))
    torch.testing.assert_close(network.tape(x).jacobian(slice(None)), want, rtol=1e-10, atol=1e-12)


def test_a_wrong_rule_is_found_and_its_weights_are_read_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(notes: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return forward.elementwise(notes, torch.add, (torch.mul(*args) - args[1].detach(), args[1]), kwargs)

    monkeypatch.setitem(forward.RULES, Tensor.mul, wrong)
    network = assert_exact(built(lambda: Function(lambda m, y: y * m.w + m.b, w=(4,), b=(4,))), x)
    assert [(part.kind, part.parameters) for part in network.parts] == [("per-row", ("w",)), ("elementwise", ("b",))]
    assert "not all of its gradients" in str(network.parts[0].reason)


def test_an_adapter_that_starts_at_zero_is_read_as_any_other() -> None:
    module = built(lambda: Function(lambda m, y: F.linear(F.linear(y, m.a), m.b).tanh(), a=(2, 4), b=(3, 2)))
    with torch.no_grad():
        module.b.zero_()
    network = Network.trace(module, x)
    assert [part.kind for part in network.parts] == ["linear", "linear"]
    with torch.no_grad():
        module.b.copy_(numbers(3, 2))
    got = network.tape(x).jacobian(slice(None))
    torch.testing.assert_close(got, jacobian(module, x, ("a", "b")), rtol=1e-10, atol=1e-12)


def tower(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), *last)


LAST: dict[str, tuple[Callable[[], nn.Module], set[str], bool]] = {
    "linear": (tower, {"2.weight", "2.bias"}, True),
    "then a norm": (lambda: tower(nn.LayerNorm(3)), {"2.weight", "2.bias", "3.weight", "3.bias"}, False),
    "then an activation": (lambda: tower(nn.Softplus()), {"2.weight", "2.bias"}, False),
    "product and shift": (
        lambda: Function(lambda m, y: (y @ m.a).tanh() @ m.w + m.b, w=(3, 2), b=(2,), a=(4, 3)),
        {"w", "b"},
        False,
    ),
    "by name of use, not of definition": (
        lambda: Function(lambda m, y: F.linear(F.linear(y, m.z).tanh(), m.a), a=(2, 3), z=(3, 4)),
        {"a"},
        True,
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Conv1d(2, 3, 3), nn.Flatten()),
        {"3.weight", "3.bias"},
        False,
    ),
    "parametrised": (
        lambda: tower(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
        {"3.bias", "3.parametrizations.weight.original0", "3.parametrizations.weight.original1"},
        False,
    ),
    "heads side by side": (
        lambda: Function(
            lambda m, y: torch.cat([F.linear(F.linear(y, m.w).tanh(), v) for v in (m.mean, m.variance)], 1),
            w=(4, 4),
            mean=(1, 4),
            variance=(1, 4),
        ),
        {"mean", "variance"},
        False,
    ),
    "after a skip": (
        lambda: Function(lambda m, y: F.linear(y + F.linear(y, m.w).tanh(), m.v), w=(4, 4), v=(3, 4)),
        {"v"},
        True,
    ),
    "reshaped output": (lambda: tower(nn.Unflatten(1, (3, 1))), {"2.weight", "2.bias"}, False),
}


@pytest.mark.parametrize("name", LAST)
def test_the_last_layer_is_found_by_use(name: str) -> None:
    make, names, head = LAST[name]
    network = assert_exact(built(make), x, "last_layer")
    assert set(network.weights.names) == names
    assert network.head is head


def test_two_linear_layers_are_no_head() -> None:
    assert not Network.trace(built(tower), x).head
    # nor is one that is used twice, the second time as the output
    module = built(lambda: Function(lambda m, y: F.linear(F.linear(y, m.w), m.w), w=(4, 4)))
    assert not Network.trace(module, x).head


def test_nothing_random_in_use_is_refused() -> None:
    module = built(lambda: Function(lambda m, y: y * 2.0, w=(3,)))
    with pytest.raises(InputError, match="depends on"):
        Network.trace(module, x)


def test_a_network_that_torch_cannot_differentiate_is_refused() -> None:
    def f(m: Any, y: Tensor) -> Tensor:
        z = F.linear(y, m.w).sigmoid()
        return z.mul_(2.0)  # the backward pass of a sigmoid needs its output

    with pytest.raises(UnsupportedError, match="inplace operation"):
        Network.trace(built(lambda: Function(f, w=(3, 4))), x)


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="at least one row"):
        Network.trace(built(tower), x[:0])


def test_a_last_layer_that_applies_no_matrix_is_asked_for_by_name() -> None:
    def cosine(m: Any, y: Tensor) -> Tensor:
        return F.linear(F.normalize(F.linear(y, m.w).tanh()), F.normalize(m.v))

    module = built(lambda: Function(cosine, w=(4, 4), v=(3, 4)))
    with pytest.raises(InputError, match=r"got 'v', used in another way, after 'w'\. Name"):
        Network.trace(module, x, "last_layer")
    assert_exact(module, x, ["v"])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rows_in_chunks_or_filled_up_are_read_one_by_one(size: int) -> None:
    def chunked(m: Any, y: Tensor) -> Tensor:
        return torch.cat([F.linear(some, m.w).tanh() for some in y.split(size)])

    def filled(m: Any, y: Tensor) -> Tensor:
        return F.linear(F.pad(y, (0, 0, 0, -len(y) % size)), m.w).tanh()[: len(y)]

    for function in (chunked, filled):
        module = built(lambda f=function: Function(f, w=(3, 4)))
        network = Network.trace(module, x)
        for rows in (1, 4, 5):
            y = numbers(rows, 4)
            got = network.tape(y).jacobian(slice(None))
            torch.testing.assert_close(got, jacobian(module, y, ("w",)), rtol=1e-10, atol=1e-12)


def test_a_small_gradient_that_no_site_shows_is_found_missing_in_a_coarse_dtype() -> None:
    """It is within the tolerance of bfloat16, which is a share of the largest of all gradients."""
    module = built(lambda: Function(lambda m, y: Scaled.apply(F.linear(y, m.w), 1e-3 * m.c), w=(3, 4), c=(3,)))

    def f(m: Any, y: Tensor) -> Tensor:
        return F.linear(y, m.w) + 1e-3 * Scaled.apply(F.linear(y, m.w), m.c)

    module.function = f
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = Network.trace(module, x).parts
    assert [(part.name, part.kind) for part in parts] == [("w", "linear"), ("c", "per-row")]
    assert "not seen" in str(parts[1].reason)


def test_data_that_are_not_finite_are_named_as_the_cause() -> None:
    y = x.clone()
    y[3, 1] = torch.nan
    with pytest.raises(
        InputError, match="expected finite outputs, got NaN or infinite ones, as are the inputs, first in row"
    ):
        Network.trace(built(tower), y)


def test_torch_func_inside_a_network_is_read_row_by_row_and_has_no_last_layer() -> None:
    module = built(lambda: Function(lambda m, y: torch.func.vmap(lambda row: m.w @ row)(y), w=(3, 4)))
    (part,) = Network.trace(module, x).parts
    assert part.kind == "per-row"
    assert "the calls to torch cannot be recorded" in str(part.reason)
    with pytest.raises(UnsupportedError, match=r"Name the weights that are to be random"):
        Network.trace(module, x, "last_layer")
