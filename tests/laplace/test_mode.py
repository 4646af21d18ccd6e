"""One pass for the log likelihood and its gradient, and the fingerprint of the data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bayescope import laplace
from bayescope.errors import InputError
from bayescope.laplace import Slope, fit_evidence, read_slope
from bayescope.likelihoods import Categorical, Gaussian
from bayescope.network import Batches, Fingerprint, Weights
from tests.laplace.problems import mlp, normal, nothing_written, seeded, unlike


def slope_of(module: nn.Module, x: Tensor, y: Tensor, weights: object = "all", size: int = 4) -> Slope:
    likelihood = Gaussian(0.5) if y.is_floating_point() else Categorical()
    return read_slope(module, Weights.select(module, weights), Batches((x, y), module, batch_size=size), likelihood)


@pytest.mark.parametrize("size", [3, 4, 100])
def test_gradient_is_autograds(size: int) -> None:
    net, x, y = mlp(3), normal(10, 2, seed=1), torch.arange(10) % 3
    slope = slope_of(net, x, y, size=size)
    total = -F.cross_entropy(net(x), y, reduction="sum")
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(net.parameters()))])
    torch.testing.assert_close(slope.gradient, truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope.log_likelihood, total.detach(), rtol=1e-12, atol=1e-12)
    assert (slope.rows, slope.observations) == (10, 10)


def test_gradient_of_a_part_of_the_weights() -> None:
    net, x, y = mlp(2), normal(10, 2, seed=1), normal(10, 2, seed=2)
    whole = slope_of(net, x, y).gradient
    mask = torch.arange(22) % 3 == 0
    torch.testing.assert_close(slope_of(net, x, y, mask).gradient, whole[mask])
    torch.testing.assert_close(slope_of(net, x, y, "2.bias").gradient, whole[-2:])


def test_weights_that_are_not_in_use_and_shared_ones() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.idle = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(1, 1)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    net, x, y = seeded(Tied), normal(6, 2, seed=1), normal(6, 2, seed=2)
    slope = slope_of(net, x, y)
    total = Gaussian(0.5).log_prob(net(x), y).sum()
    named = dict(net.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    truth = [torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), found, strict=True)]
    torch.testing.assert_close(slope.gradient, torch.cat([g.flatten() for g in truth]))


def test_positions_are_observations() -> None:
    net = seeded(lambda: nn.Conv1d(2, 3, 3, padding=1))

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).movedim(1, -1)

    x, y = normal(5, 2, 7, seed=1), torch.arange(35).reshape(5, 7) % 3
    slope = slope_of(Dense(), x, y)
    assert (slope.rows, slope.observations) == (5, 35)
    torch.testing.assert_close(slope.log_likelihood, -F.cross_entropy(net(x), y, reduction="sum").detach())


def test_reading_leaves_the_network_as_it_was() -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))).train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    with nothing_written(net):
        slope_of(net, normal(8, 2, seed=1), torch.arange(8) % 2)


def test_outputs_that_are_not_finite() -> None:
    net = seeded(lambda: nn.Linear(2, 2))
    net.weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match="finite log likelihood"):
        slope_of(net, normal(8, 2, seed=1), torch.arange(8) % 2)


def fingerprint(x: Tensor, y: Tensor, sizes: list[int]) -> str:
    found = Fingerprint()
    for inputs, targets in zip(x.split(sizes), y.split(sizes), strict=True):
        found.add(inputs, targets)
    return found.hex()


def test_fingerprint_knows_neither_order_nor_batches_nor_precision() -> None:
    x, y = normal(12, 3, 2, seed=1).float(), torch.arange(12) % 3
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    truth = fingerprint(x, y, [12])
    assert fingerprint(x, y, [5, 7]) == truth
    assert fingerprint(x[order], y[order], [1] * 12) == truth
    assert fingerprint(x.double(), y.double(), [4, 4, 4]) == truth


def test_fingerprint_sees_every_change() -> None:
    x, y = normal(12, 6, seed=1), torch.arange(12) % 3
    moved, swapped, relabelled = x.clone(), x.clone(), y.clone()
    moved[3, 2] += 1e-6
    swapped[:, [0, 1]] = x[:, [1, 0]]
    relabelled[[0, 1]] = y[[1, 0]]
    seen = {
        fingerprint(*data, [len(data[1])])
        for data in [(x, y), (moved, y), (swapped, y), (x, relabelled), (x[:11], y[:11]), (x[:, :5], y), (2 * x, y)]
    }
    assert len(seen) == 7


@pytest.mark.global_rng
def test_a_shuffled_loader_has_the_same_fingerprint() -> None:
    net, x, y = mlp(2), normal(20, 2, seed=1), torch.arange(20) % 2
    loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
    shuffled = read_slope(net, Weights.select(net, "all"), Batches(loader, net), Categorical())
    assert shuffled.fingerprint == slope_of(net, x, y).fingerprint


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("source", ["torch", "numpy", "replacement", "dropped"])
@pytest.mark.parametrize("call", ["laplace", "samples", "evidence", "fit_evidence", "condition"])
def test_passes_over_other_rows_are_refused_with_the_generator_as_it_was(call: str, source: str) -> None:
    """Random states that are put back after each pass would otherwise repeat the noise, and hide it."""
    x, y = normal(23, 2, seed=1), torch.arange(23) % 2
    data, plain = unlike(x, y, source), laplace(mlp(2), (x, y), likelihood="categorical", structure="full")
    calls: dict[str, Callable[[], object]] = {
        "laplace": lambda: laplace(mlp(2), data, likelihood="categorical"),
        "samples": lambda: laplace(mlp(2), data, likelihood="categorical", structure="samples", samples=2),
        "evidence": lambda: laplace(mlp(2), data, likelihood="categorical", prior_precision="evidence"),
        "fit_evidence": lambda: fit_evidence(
            mlp(2), data, likelihood="categorical", epochs=2, burn_in=1, every=1, progress=False, generator=0
        ),
        "condition": lambda: plain.condition(data),
    }
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=r"data: expected every pass to give the same rows.*random augmentation"):
        calls[call]()
    if call != "fit_evidence":  # whose epochs draw from it
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac", "diagonal"])
def test_a_loader_that_only_shuffles_is_taken(structure: str) -> None:
    x, y = normal(23, 2, seed=1), torch.arange(23) % 2
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    options = {"likelihood": "categorical", "structure": structure}
    before = torch.get_rng_state()
    q, truth = laplace(mlp(2), loader, **options), laplace(mlp(2), (x, y), **options)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(q.log_evidence(), truth.log_evidence())
    if structure != "ekfac":
        torch.testing.assert_close(q.condition(loader).mean, truth.condition((x, y)).mean, rtol=1e-4, atol=1e-5)
    fit_evidence(mlp(2), loader, epochs=2, burn_in=1, every=1, progress=False, generator=0, **options)
