from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.errors import InputError, UnsupportedError
from bayescope.network import Network
from bayescope.tape import LastHessian, OuterTape
from tests.network.networks import Function, built, jacobian, numbers

x = numbers(5, 4)


def mlp() -> nn.Module:
    return built(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def test_outputs_are_those_of_the_module() -> None:
    module = mlp()
    recording = Network.trace(module, x).record(x)
    assert recording.rows == 5
    assert torch.equal(recording.outputs, module(x))
    assert not recording.outputs.requires_grad


def test_rows_are_gradients_under_the_cotangents_again_and_again() -> None:
    module = mlp()
    network = Network.trace(module, x)
    recording = network.record(x)
    J = jacobian(module, x, network.weights.names)
    for k in (2, 1, 7):
        seeds = numbers(k, 5, 3, seed=k)
        got = recording.tape(seeds).jacobian(slice(None))
        torch.testing.assert_close(got, torch.einsum("knc,ncp->nkp", seeds, J), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_cotangents_that_all_rows_share_may_stand_there_once(weights: str) -> None:
    network = Network.trace(mlp(), x, weights)
    seeds = numbers(2, 1, 3)
    once, each = network.record(x).tape(seeds), network.record(x).tape(seeds.expand(2, 5, 3))
    torch.testing.assert_close(once.jacobian(slice(None)), each.jacobian(slice(None)), rtol=1e-12, atol=1e-12)
    assert once.outputs == 2


def test_cotangents_of_another_shape_are_refused() -> None:
    recording = Network.trace(mlp(), x).record(x)
    for shape in [(2, 5, 4), (2, 4, 3), (5, 3)]:
        with pytest.raises(InputError, match=r"seeds: expected shape \(K, \*\(5, 3\)\)"):
            recording.tape(numbers(*shape))


def test_a_head_needs_no_backward_pass_and_takes_no_cotangent_per_row() -> None:
    network = Network.trace(mlp(), x, "last_layer")
    (part,) = network.tape(x).parts
    assert isinstance(part, OuterTape)
    assert part.cotangents.shape == (3, 1, 1, 1, 3)


@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 4)])
def test_the_head_s_second_moments_come_from_the_hessian(shape: tuple[int, ...]) -> None:
    inputs = numbers(*shape)
    network = Network.trace(mlp(), inputs, "last_layer")
    recording = network.record(inputs)
    observations = recording.outputs.shape[:-1].numel()
    root = numbers(2, observations, 3)
    diagonal, total = torch.einsum("knc,knc->nc", root, root), torch.einsum("knc,knd->cd", root, root)
    tape = recording.head_tape(LastHessian(diagonal, lambda: total, lambda: root))
    want = Network.trace(mlp(), inputs.reshape(-1, 4), "last_layer").record(inputs.reshape(-1, 4)).tape(root)
    torch.testing.assert_close(tape.squares(), want.squares(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(tape.jacobian(slice(None)), want.jacobian(slice(None)), rtol=1e-10, atol=1e-12)


def test_what_is_no_head_has_no_head_tape() -> None:
    recording = Network.trace(mlp(), x).record(x)
    with pytest.raises(UnsupportedError, match="one linear layer"):
        recording.head_tape(LastHessian(numbers(5, 3), lambda: numbers(3, 3), lambda: numbers(2, 5, 3)))


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
@pytest.mark.parametrize("time_first", [False, True])
def test_layouts_hold_for_batches_of_any_size_and_length(rows: int, time_first: bool) -> None:
    def f(m: Any, inputs: Tensor) -> Tensor:
        y = inputs.transpose(0, 1) if time_first else inputs
        y = F.linear(F.linear(y, m.v).flatten(0, 1).tanh(), m.w, m.b).unflatten(0, y.shape[:2]).tanh()
        return y.sum(0 if time_first else 1)

    module = built(lambda: Function(f, v=(3, 4), w=(2, 3), b=(2,)))
    network = Network.trace(module, numbers(3, 3, 4))
    for length in (1, 3, 5):
        inputs = numbers(rows, length, 4, seed=rows)
        got = network.tape(inputs).jacobian(slice(None))
        torch.testing.assert_close(got, jacobian(module, inputs, network.weights.names), rtol=1e-10, atol=1e-12)


def test_recurrent_networks_may_be_read_at_any_length() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.GRU(4, 3, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.core(inputs)[0][:, -1]

    module = built(Last)
    network = Network.trace(module, numbers(4, 3, 4))
    for length in (1, 6):
        inputs = numbers(4, length, 4)
        got = network.tape(inputs).jacobian(slice(None))
        torch.testing.assert_close(got, jacobian(module, inputs, network.weights.names), rtol=1e-10, atol=1e-12)


STATES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "expand": lambda h, rows: h.expand(1, rows, 3),
    "contiguous": lambda h, rows: h.expand(1, rows, 3).contiguous(),
    "clone": lambda h, rows: h.expand(-1, rows, -1).clone(),
    "reshape": lambda h, rows: h.expand(2, rows, 3).reshape(1, -1, 3)[:, :rows],
    "repeat": lambda h, rows: h.repeat(1, rows, 1),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("traced", [1, 6])
def test_a_learned_first_state_is_read_in_batches_of_one_row_and_more(name: str, traced: int) -> None:
    def f(m: Any, inputs: Tensor) -> Tensor:
        h = STATES[name](m.h, len(inputs))[0]
        for y in inputs.unbind(1):
            h = (F.linear(y, m.w) + F.linear(h, m.u)).tanh()
        return h

    module = built(lambda: Function(f, h=(1, 1, 3), w=(3, 4), u=(3, 3)))
    network = Network.trace(module, numbers(traced, 2, 4))
    for rows in (1, 2, 5):
        inputs = numbers(rows, 2, 4)
        got = network.tape(inputs).jacobian(slice(None))
        torch.testing.assert_close(got, jacobian(module, inputs, ("h", "w", "u")), rtol=1e-10, atol=1e-12)


def overwrites(m: Any, inputs: Tensor) -> Tensor:
    y = torch.stack([inputs, inputs.square()], -1)
    z = F.linear(y.mT, m.w)  # torch keeps a copy for its own backward pass, as the rows are not contiguous
    y.add_(1.0)  # the activations that the weight has met
    return F.linear(z.sum(1) + y.sum(2), m.v)


def overwrites_inputs(m: Any, inputs: Tensor) -> Tensor:
    return F.linear(inputs.sub_(1.0).div_(2.0), F.normalize(m.w)) + F.linear(inputs, m.v)


@pytest.mark.parametrize("function", [overwrites, overwrites_inputs])
def test_networks_that_write_over_activations(function: Callable[..., Tensor]) -> None:
    module = built(lambda: Function(function, w=(4, 4), v=(4, 4)))
    given = x.clone()
    network = Network.trace(module, given)
    assert bool(network.treatment.overwritten) is (function is overwrites)
    got = network.tape(given).jacobian(slice(None))
    assert torch.equal(given, x)

    def f(random: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, random, (x.clone(),))

    found = torch.func.jacrev(f)({name: p.detach() for name, p in module.named_parameters()})
    torch.testing.assert_close(got, torch.cat([found[n].flatten(2) for n in ("w", "v")], -1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", [False, True])
def test_activations_in_place_after_a_layer_of_sequences(attention: bool) -> None:
    """torch's linear layers return views of matrices for some batches; a change of a view leaves its node behind."""

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 1) if attention else nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = x.transpose(0, 1)
            h = self.layer(h, h, h, need_weights=False)[0] if attention else self.layer(h)
            return self.head(F.relu_(h.transpose(0, 1)).mean(1))

    module, x = built(Sequences), numbers(6, 3, 4)
    network = Network.trace(module, x)
    assert {part.kind for part in network.parts} == {"linear"}
    want = jacobian(module, x, network.weights.names)
    for size in (6, 1):  # one row in a batch of its own lies in memory as a matrix, and six do not
        got = torch.cat([network.tape(part).jacobian(slice(None)) for part in x.split(size)])
        torch.testing.assert_close(got, want)


def test_a_batch_that_takes_another_way_is_refused() -> None:
    def f(m: Any, inputs: Tensor) -> Tensor:
        y = F.linear(inputs, m.w)
        return y if len(inputs) < 6 else y + F.linear(inputs, m.w).tanh() @ m.w

    network = Network.trace(built(lambda: Function(f, w=(4, 4))), x)
    with pytest.raises(InputError, match="another way"):
        network.tape(numbers(6, 4))


def test_a_batch_whose_rows_lie_elsewhere_is_refused() -> None:
    def f(m: Any, inputs: Tensor) -> Tensor:
        y = inputs if len(inputs) < 6 else inputs.reshape(-1, 2, 4).mT.reshape(-1, 2)
        y = F.linear(y.flatten(1)[:, :2] if len(inputs) >= 6 else y[:, :2], m.w)
        return y if len(inputs) < 6 else y.unflatten(0, (-1, 2)).mean(1)

    network = Network.trace(built(lambda: Function(f, w=(3, 2))), numbers(3, 4))
    with pytest.raises(InputError, match=r"rows were expected|expected outputs"):
        network.tape(numbers(8, 4))


def test_operations_that_take_one_cotangent_at_a_time_are_looped_over() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            ctx.save_for_backward(y)
            return y**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensors
            assert float(g.abs().sum()) >= 0.0  # a value of its own: vmap cannot have it
            return 3 * y**2 * g

    def f(m: Any, inputs: Tensor) -> Tensor:
        return Cube.apply(F.linear(inputs, m.w)) @ m.v

    def plain(m: Any, inputs: Tensor) -> Tensor:
        return F.linear(inputs, m.w) ** 3 @ m.v

    module = built(lambda: Function(f, w=(3, 4), v=(3, 2)))
    network = Network.trace(module, x)
    assert [part.kind for part in network.parts] == ["linear", "linear"]
    got = network.tape(x).jacobian(slice(None))
    want = jacobian(built(lambda: Function(plain, w=(3, 4), v=(3, 2))), x, ("w", "v"))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
