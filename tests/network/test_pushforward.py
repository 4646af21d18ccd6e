"""J v by forward-mode derivatives, against the Jacobian written out; and where it may not be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayescope.network import Network, reading
from bayescope.network.draws import push_forward
from tests.network.networks import Function, built, numbers
from tests.network.test_positions import NETWORKS, reference


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("weights", ["all", "*.bias"])
@pytest.mark.parametrize("limit", [1, 2**26])
def test_it_is_the_jacobian_times_v(name: str, weights: str, limit: int) -> None:
    make, x = NETWORKS[name]
    module = built(make)
    network = Network.trace(module, x, weights)
    v = numbers(3, network.dim, seed=3)
    with reading(module), torch.no_grad():
        got = push_forward(module, network.weights, x, v, copy=False, memory=limit)
    want = torch.einsum("...p,rp->r...", reference(module, x, network), v)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert module.training
    assert not got.requires_grad


def test_weights_that_a_mask_fixes_do_not_move() -> None:
    make, x = NETWORKS["apart"]
    module = built(make)
    mask = torch.arange(sum(parameter.numel() for parameter in module.parameters())) % 3 == 0
    network = Network.trace(module, x, mask)
    v = numbers(2, network.dim, seed=3)
    every = Network.trace(module, x)
    want = torch.einsum("...p,rp->r...", reference(module, x, every)[..., mask], v)
    with reading(module), torch.no_grad():
        got = push_forward(module, network.weights, x, v, copy=False)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network.jacobian_product(x, v), want, rtol=1e-10, atol=1e-10)


class Doubled(torch.autograd.Function):
    """2 x, without a forward-mode derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2.0 * gradient


def stopped(m: Any, x: Tensor) -> Tensor:
    """A factor that gradients do not see, and forward-mode derivatives do."""
    with torch.no_grad():
        scale = 1.0 + m.w.square().sum()
    return scale * torch.tanh(x @ m.w.T)


@pytest.mark.parametrize("function", [stopped, lambda m, x: Doubled.apply(torch.tanh(x @ m.w.T))])
def test_a_network_without_forward_mode_derivatives_is_read_by_its_tape(function: Any) -> None:
    module, x = built(lambda: Function(function, w=(2, 3))), numbers(3, 20, 3)
    network = Network.trace(module, x)
    v = numbers(2, network.dim, seed=3)
    want = torch.einsum("...p,rp->r...", network.tape(x).jacobian(slice(None)).unflatten(1, (20, 2)), v)
    torch.testing.assert_close(network.jacobian_product(x, v), want, rtol=1e-10, atol=1e-10)
