"""Weights that are drawn are those of the gradient, or a network that is run again in the backward pass is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayescope as bs
from bayescope.network import substituted
from bayescope.network.substitution import RecomputedWeightsError
from bayescope.training import obstacle


class Recomputing(nn.Module):
    """Two layers, the second of which keeps no activations in training mode."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 3)
        self.recomputes, self.reentrant = True, reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if not (self.training and self.recomputes):
            return self.second(h)
        return checkpoint(self.second, h, use_reentrant=self.reentrant)


@pytest.fixture(params=[False, True], ids=["", "reentrant"])
def module(request: pytest.FixtureRequest) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return Recomputing(reentrant=request.param)


X, Y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3


def test_replaced_weights_are_refused_where_a_gradient_follows(module: nn.Module) -> None:
    values = [torch.zeros_like(parameter, requires_grad=True) for parameter in module.parameters()]
    with (
        substituted(module, list(module.parameters()), values),
        pytest.raises(RecomputedWeightsError, match="checkpoint"),
    ):
        module(X)
    with torch.no_grad(), substituted(module, list(module.parameters()), values), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: no input has a gradient
        assert torch.equal(module(X), torch.zeros(9, 3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "sticking_the_landing"},
        {"estimator": "reparameterization"},
        {"optimizer": "ivon"},
        {"family": "low_rank", "rank": 1},
    ],
    ids=str,
)
def test_variational_inference_refuses_it(module: nn.Module, options: Any) -> None:
    with pytest.raises(RecomputedWeightsError):
        bs.variational(module, (X, Y), likelihood="categorical", epochs=1, generator=0, progress=False, **options)


def test_what_trains_the_module_s_own_weights_takes_it(module: nn.Module) -> None:
    def trained() -> Tensor:
        q = bs.fit_map(module, (X, Y), likelihood="categorical", epochs=2, batch_size=4, generator=0, progress=False)
        return torch.cat([parameter.flatten() for parameter in q.model.parameters()])

    recomputed = trained()
    module.recomputes = False
    assert torch.equal(recomputed, trained())


def test_networks_are_then_not_trained_side_by_side(module: nn.Module) -> None:
    assert obstacle([module.train(), module.train()], X)
