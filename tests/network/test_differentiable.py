"""Derivatives in x of a network's values, covariances and Jacobian products, against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.errors import InputError
from bayescope.network import Network, NetworkModel
from bayescope.precision import DensePrecision
from tests.network.networks import Function, built, numbers
from tests.network.test_positions import Segmentation


def by_value(m: Any, x: Tensor) -> Tensor:
    return torch.tanh(x @ m.w.T) if x.abs().max() < 1e9 else x @ m.w.T  # no vmap over x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2)), numbers(4, 3)),
    "pixels": (lambda: Segmentation(1), numbers(2, 2, 3, 4)),
    "by value": (lambda: Function(by_value, w=(2, 3)), numbers(4, 3)),
}


def directional(function: Callable[[Tensor], Tensor], x: Tensor, way: Tensor, step: float = 1e-5) -> Tensor:
    return (function(x + step * way) - function(x - step * way)) / (2 * step)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_derivatives_are_finite_differences(name: str, weights: str) -> None:
    make, x = NETWORKS[name]
    module = built(make)
    network = Network.trace(module, x, weights)
    plain = NetworkModel.of(network, x)
    model = plain.differentiable
    root = numbers(plain.dim, plain.dim, seed=5)
    precision = DensePrecision(root @ root.T + torch.eye(plain.dim, dtype=torch.float64))
    theta, v = plain.flat + 0.1 * numbers(plain.dim, seed=6), numbers(3, plain.dim, seed=7)
    for ask in (
        lambda f, x: f.forward(f.inputs(x), theta),
        lambda f, x: f.forward(f.inputs(x), torch.stack([theta, plain.flat])),
        lambda f, x: f.covariance(f.inputs(x), theta, precision),
        lambda f, x: f.variance(f.inputs(x), theta, precision),
        lambda f, x: f.jacobian_product(f.inputs(x), theta, v),
    ):
        leaf, way = x.clone().requires_grad_(), numbers(*x.shape, seed=8)
        answer = ask(model, leaf)
        torch.testing.assert_close(answer.detach(), ask(plain, x), rtol=1e-9, atol=1e-9)
        assert not ask(plain, leaf).requires_grad
        weight = numbers(*answer.shape, seed=9)
        (slope,) = torch.autograd.grad((answer * weight).sum(), leaf)
        want = directional(lambda x, ask=ask, weight=weight: (ask(plain, x) * weight).sum(), x, way)
        torch.testing.assert_close((slope * way).sum(), want, rtol=1e-6, atol=1e-7)
    assert module.training
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_a_backward_pass_leaves_the_module_alone() -> None:
    make, x = NETWORKS["mlp"]
    network = Network.trace(built(make), x, "last_layer")
    model = NetworkModel.of(network, x)
    leaf = x.clone().requires_grad_()
    precision = DensePrecision(torch.eye(model.dim, dtype=torch.float64))
    (model.differentiable.covariance(leaf, model.flat, precision).sum()).backward()
    model.differentiable.forward(leaf, model.flat).sum().backward()
    assert leaf.grad is not None
    assert all(parameter.grad is None for parameter in network.module.parameters())
    with pytest.raises(InputError, match="at least one row"):
        model.differentiable.inputs(leaf[:0])
