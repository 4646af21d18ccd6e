from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayescope.network.forward import recorder
from bayescope.network.notes import Notes
from tests.network.networks import Function, assert_exact, built, numbers

x = numbers(5, 4)


def run(module: nn.Module, *names: str, inputs: Tensor = x) -> tuple[Tensor, Notes]:
    random = {id(p): (name, p) for name, p in module.named_parameters() if name in names}
    notes = Notes(random, {id(p): p for name, p in module.named_parameters() if name not in names})
    with torch.enable_grad(), recorder(notes):
        return module(inputs), notes


def nodes(f: Tensor) -> int:
    """How many nodes the graph behind a tensor has."""
    seen: set[Any] = set()
    todo = [f.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    return len(seen)


def deep() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh())], nn.Linear(4, 2))


def test_no_graph_is_built_before_the_first_random_weight() -> None:
    module = built(deep)
    last, _ = run(module, "12.weight", "12.bias")
    every, _ = run(module, *[name for name, _ in module.named_parameters()])
    assert nodes(last) <= 3
    assert nodes(every) >= 13
    nothing, notes = run(module)
    assert not nothing.requires_grad
    assert not notes.sites


def test_parameters_get_no_gradient() -> None:
    module = built(deep)
    f, _ = run(module, *[name for name, _ in module.named_parameters()])
    f.sum().backward()
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_output_is_that_of_the_module() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)))
    f, _ = run(module, *[name for name, _ in module.named_parameters()])
    torch.testing.assert_close(f, module(x), rtol=1e-12, atol=1e-12)


def test_sites_come_in_the_order_of_execution_under_the_names_of_their_weights() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))
    _, notes = run(module, "0.weight", "2.weight", "3.bias")
    assert [[view.name for view in site.views] for site in notes.sites] == [["0.weight"], ["2.weight"], ["3.bias"]]


def test_what_a_network_does_without_gradients_has_none() -> None:
    def stopped(m: Any, y: Tensor) -> Tensor:
        with torch.no_grad():
            scale = F.linear(y, m.w).square().mean(1, keepdim=True) + m.v.sum() + len(m.v)
        return F.linear(y, m.w) * scale

    network = assert_exact_without_gradient(stopped)
    assert [part.kind for part in network.parts] == ["linear", "unused"]


def assert_exact_without_gradient(function: Any) -> Any:
    from bayescope.network import Network

    module = built(lambda: Function(function, w=(3, 4), v=(2,)))
    network = Network.trace(module, x)
    f = module(x)
    tape = network.tape(x)
    for c in range(3):
        g = torch.autograd.grad(f[:, c].sum(), list(module.parameters()), retain_graph=True, materialize_grads=True)
        one = torch.zeros(5, 3, 1, dtype=torch.float64)
        one[:, c] = 1.0
        want = torch.cat([part.flatten() for part in g])
        torch.testing.assert_close(tape.transpose_multiply(one)[:, 0], want, rtol=1e-10, atol=1e-12)
    return network


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_one_call(causal: bool) -> None:
    def attention(m: Any, y: Tensor) -> Tensor:
        q, k, v = F.linear(y, m.w, m.b).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2).mean(1)

    network = assert_exact(built(lambda: Function(attention, w=(12, 4), b=(12,))), numbers(5, 3, 4))
    assert [part.kind for part in network.parts] == ["linear"]


def test_a_frozen_layer_beside_a_random_one_is_differentiated_through() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.PReLU()))
    module[1].requires_grad_(False)
    module[3].requires_grad_(False)
    assert_exact(module, x)
