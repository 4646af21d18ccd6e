"""A network at draws of independent weights: right for each row, the same whatever stands beside it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.network import NetworkModel, Weights, map_tensors, reading
from bayescope.network.draws import outputs_at, outputs_under
from bayescope.precision import DiagonalPrecision
from tests.network.networks import built, generator, numbers
from tests.network.test_random_weights import NETWORKS, made
from tests.test_reparameterization import assert_standard


def spread(dim: int) -> Tensor:
    return 0.4 * torch.rand(dim, generator=generator(8), dtype=torch.float64)


def under(module: nn.Module, weights: Weights, x: Any, n: int, seed: int = 5, **options: Any) -> Tensor:
    """f at n draws around the module's weights."""
    mean, sd = weights.flat(module), spread(weights.dim)
    with reading(module):
        return outputs_under(module, weights, copy.deepcopy(x), mean, sd, n, generator(seed), copy=True, **options)


@pytest.mark.parametrize("name", NETWORKS)
def test_each_row_has_the_distribution_of_drawn_weights(name: str) -> None:
    n = 200 if name in ("by value", "lstm") else 4000  # those go one by one
    module, x, _ = made(name)
    weights = Weights.select(module, "all")
    got = under(module, weights, x, n)
    theta = weights.flat(module) + spread(weights.dim) * numbers(2 * n, weights.dim, seed=6)
    with reading(module):
        want = outputs_at(module, weights, x, theta, copy=True)
    seen, known = (f.flatten(2) for f in (got, want))
    directions = numbers(seen.shape[2], 4, seed=31)  # their sums tell of correlations within a row
    seen, known = torch.cat([seen, seen @ directions], 2), torch.cat([known, known @ directions], 2)
    centre, z = known.mean(0), []
    for power in (1, 2):
        a, b = (seen - centre) ** power, (known - centre) ** power
        z.append((a.mean(0) - b.mean(0)) / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt())
    assert_standard(torch.stack(z))
    assert got.dtype == torch.float64
    assert not got.requires_grad


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "by value"])
def test_a_row_has_the_same_draws_whatever_stands_beside_it(name: str) -> None:
    module, x, _ = made(name)
    weights = Weights.select(module, "all")
    together = under(module, weights, x, 7)
    for row in (0, 2):
        alone = under(module, weights, map_tensors(lambda t, row=row: t[row : row + 1], x), 7)
        torch.testing.assert_close(alone[:, 0], together[:, row], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(under(module, weights, x, 7, memory=1), together, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(under(module, weights, x, 3, memory=1), together[:3], rtol=1e-10, atol=1e-10)
    assert not torch.equal(under(module, weights, x, 3, seed=6), together[:3])


def test_only_weights_that_meet_the_inputs_are_not_drawn() -> None:
    module, x, _ = made("mlp")
    weights, used, known = Weights.select(module, "all"), generator(0), generator(0)
    with reading(module):
        outputs_under(module, weights, x, weights.flat(module), spread(weights.dim), 2, used, copy=True)
    for _ in range(2):
        torch.randn(5 + 5 + 12, dtype=torch.float64, generator=known)  # of the outputs of "0"; of "3.weight", "3.bias"
    assert torch.equal(used.get_state(), known.get_state())


def test_some_weights_alone_may_be_random() -> None:
    module, x, _ = made("mlp")
    for choice in ("0.weight", "0.bias", "3.weight", ["0.weight", "3.bias"]):
        weights = Weights.select(module, choice)
        f = under(module, weights, x, 4000)
        theta = weights.flat(module) + spread(weights.dim) * numbers(4000, weights.dim, seed=6)
        with reading(module):
            want = outputs_at(module, weights, x, theta, copy=False)
        error = ((f.var(0) + want.var(0)) / 4000).sqrt()
        assert_standard((f.mean(0) - want.mean(0)) / error)
        torch.testing.assert_close(f.var(0), want.var(0), rtol=0.15, atol=1e-3)


def test_a_mask_holds_weights() -> None:
    module, x, _ = made("mlp")
    mask = torch.zeros(5, 3, dtype=torch.bool)
    mask[0, 0] = True
    weights = Weights.select(module, {"0.weight": mask})
    f = under(module, weights, x, 2000)
    theta = weights.flat(module) + spread(1) * numbers(2000, 1, seed=6)
    with reading(module):
        want = outputs_at(module, weights, x, theta, copy=False)
    torch.testing.assert_close(f.std(0), want.std(0), rtol=0.1, atol=1e-6)


def test_single_precision_and_many_rows() -> None:
    module = built(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))).float()
    weights = Weights.select(module, "all")
    x = numbers(3000, 3).float()
    f = under(module, weights, x, 4)
    assert f.dtype == torch.float64
    torch.testing.assert_close(f[:, 2000:2003], under(module, weights, x[2000:2003], 4), rtol=1e-5, atol=1e-5)


def test_a_model_takes_it_for_a_diagonal_precision_and_leaves_no_trace() -> None:
    module, x, _ = made("mlp")
    weights = Weights.select(module, "all")
    model = NetworkModel(module, weights, 2)
    module.train()
    state, before = torch.get_rng_state(), copy.deepcopy(module.state_dict())
    precision = DiagonalPrecision(spread(weights.dim).square().reciprocal())
    f = model.sampled(x, model.flat, precision, 6, generator(5))
    torch.testing.assert_close(f, under(module, weights, x, 6), rtol=1e-6, atol=1e-6)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(f, model.sampled(x, model.flat, precision, 6, generator(5)))
