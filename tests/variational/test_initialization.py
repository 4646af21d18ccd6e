"""Where a variational training starts from at a trained network."""

from __future__ import annotations

import torch
from torch import nn

from bayescope.training import fit_map
from bayescope.variational import variational
from tests.network.networks import built, generator


def blobs(rows: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes of points in twenty dimensions, of which two tell them apart."""
    source = generator(0)
    labels = torch.arange(rows) % 4
    x = torch.randn(rows, 20, generator=source)
    x[:, 0] += 2.0 * (labels % 2)
    x[:, 1] += 2.0 * (labels // 2)
    return x, labels


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))


def test_laplace_s_sds_leave_a_deep_network_what_it_has_learnt() -> None:
    """Most of 2,600 weights are not told by 120 rows: with the prior's sd in all of them nothing is left of f."""
    data = blobs()
    mode = fit_map(network(), data, likelihood="categorical", epochs=200, lr=0.01, generator=0)
    q = variational(mode.model, data, likelihood="categorical", initial_sd="laplace", epochs=0, generator=0)
    cold = variational(mode.model, data, likelihood="categorical", epochs=0, generator=0)
    guessing = float(torch.log(torch.tensor(4.0)))
    assert -q.predict(data[0], samples=100, generator=0).log_prob(data[1]).mean() < 0.7 * guessing
    assert float(q.elbo) > float(cold.elbo) + 100


def test_where_the_data_tell_the_weights_laplace_s_sds_stay() -> None:
    source = generator(1)
    x = torch.randn(60, 3, generator=source, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    mode = fit_map(built(lambda: nn.Linear(3, 1), 0), (x, y), likelihood="gaussian", optimizer="lbfgs", epochs=5).model
    q = variational(mode, (x, y), likelihood="gaussian", initial_sd="laplace", epochs=0, generator=0)
    inputs = torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(q.precision.diagonal(), inputs.square().sum(0) + 1.0)
