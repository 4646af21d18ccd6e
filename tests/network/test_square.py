"""As many rows as outputs, where two vmaps run over axes of one length and one may be taken for the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bayescope.curvature import fit_curvature
from bayescope.network import Network, NetworkModel
from bayescope.network.rowwise import rowwise
from bayescope.precision import DensePrecision
from tests.network.networks import built, numbers

ROWS, WIDTH = 3, 6


class Slopes(nn.Module):
    """PReLU by the method of a tensor, or by the operation behind it."""

    def __init__(self, call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.call = nn.Parameter(torch.ones(1)), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, self.weight)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: kind
        for kind in (
            nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU,
            nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
            nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
        )
    },
    "PReLU, method": lambda: Slopes(torch.Tensor.prelu), "PReLU, operation": lambda: Slopes(torch.ops.aten.prelu),
    "PReLU by channel": lambda: nn.PReLU(WIDTH), "Threshold": lambda: nn.Threshold(0.1, 0.2),
    "Softmax": lambda: nn.Softmax(-1), "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH), "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH), "BatchNorm1d": lambda: nn.BatchNorm1d(WIDTH),
}  # fmt: skip


def network(layer: str) -> nn.Module:
    """A layer behind weights that are read row by row."""

    def make() -> nn.Module:
        return nn.Sequential(weight_norm(nn.Linear(4, WIDTH, bias=False)), LAYERS[layer](), nn.Linear(WIDTH, ROWS))

    return built(make).eval()


def by_rows(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """J, shape (N, C, P), by one plain backward pass for each output of each row."""
    parameters = list(module.parameters())
    return torch.stack([
        torch.stack([
            torch.cat([g.flatten() for g in torch.autograd.grad(output, parameters, retain_graph=True)])
            for output in module(row[None])[0]
        ])
        for row in x
    ])  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_keeps_rows_and_outputs_apart(layer: str) -> None:
    module, x, y = network(layer), numbers(ROWS, 4), numbers(ROWS, ROWS, seed=3)
    want = by_rows(module, x)
    seeds = torch.eye(ROWS, dtype=torch.float64)[:, None].expand(ROWS, ROWS, ROWS)
    names = [name for name, _ in module.named_parameters()]
    torch.testing.assert_close(rowwise(module, names, x, seeds), want, rtol=1e-10, atol=1e-12)
    curvature = fit_curvature(module, (x, y), likelihood="gaussian", structure="full").precision.to_dense()
    torch.testing.assert_close(curvature, torch.einsum("ncp,ncq->pq", want, want), rtol=1e-10, atol=1e-12)
    network_model = NetworkModel.of(Network.trace(module, x), x)
    model, identity = network_model.differentiable, DensePrecision(torch.eye(want.shape[-1], dtype=torch.float64))
    with torch.no_grad():
        covariance = model.covariance(model.inputs(x), network_model.flat, identity)
    torch.testing.assert_close(covariance, want @ want.mT, rtol=1e-10, atol=1e-12)
