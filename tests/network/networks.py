"""Networks with weights from a generator of their own, and their Jacobians by plain `torch.func`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayescope.network import Network


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def built(make: Callable[[], nn.Module], seed: int = 2) -> nn.Module:
    """A module in float64 with drawn weights and buffers; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        module = make().double()
    source = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=source, dtype=torch.float64))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=source, dtype=torch.float64))
    return module


def call(function: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, tuple) else function(inputs)


def jacobian(module: nn.Module, inputs: Any, names: tuple[str, ...]) -> Tensor:
    """∂f/∂θ of the named parameters in evaluation mode, (N, S C, P)."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    fixed = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def f(random: dict[str, Tensor]) -> Tensor:
        return call(lambda *a, **k: torch.func.functional_call(module, fixed | random, a, k), inputs)

    with warnings.catch_warnings():  # about rules that vmap has not got
        warnings.filterwarnings("ignore", "There is a performance drop")
        parts = torch.func.jacrev(f)({name: fixed[name] for name in names})
    for part, training in modes:
        part.training = training
    rows = next(iter(parts.values())).shape[0]
    return torch.cat([parts[name].reshape(rows, -1, fixed[name].numel()) for name in names], -1)


def assert_exact(module: nn.Module, inputs: Any, weights: Any = "all", *, traced_on: Any = None) -> Network:
    """The Jacobian from the tape is that of automatic differentiation; the network is returned."""
    network = Network.trace(module, inputs if traced_on is None else traced_on, weights)
    tape = network.tape(inputs)
    want = jacobian(module, inputs, network.weights.names)
    got = tape.jacobian(slice(None))
    assert tape.dim == network.dim == want.shape[-1]
    assert not got.requires_grad
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    return network


class Function(nn.Module):
    """A module that is a function of its inputs and of some bare parameters."""

    def __init__(self, function: Callable[..., Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)
