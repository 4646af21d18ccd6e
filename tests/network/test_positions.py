"""Dense outputs: J A⁻¹ Jᵀ for each position by itself, against `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.network import Network, ReadingLimits, positions
from bayescope.precision import DiagonalPrecision
from tests.network.networks import Function, built, generator, jacobian, numbers
from tests.network.test_network import Largest


class Segmentation(nn.Module):
    """Pixels that meet in a convolution, and a convolutional head."""

    def __init__(self, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh())
        self.head = nn.Conv2d(4, 3, kernel, stride=stride, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).permute(0, 2, 3, 1)


class Tagger(nn.Module):
    """Tokens that attend to each other, and classes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.mix = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.1)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.table(x)))


IMAGES = numbers(4, 2, 6, 5)
TOKENS = torch.randint(11, (4, 9), generator=generator(0))
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "pixels": (lambda: Segmentation(1), IMAGES),
    "wide head": (lambda: Segmentation(3), IMAGES),
    "strided head": (lambda: Segmentation(3, 2), IMAGES),
    "tokens": (Tagger, TOKENS),
    "apart": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), numbers(3, 20, 3)),
}


def reference(module: nn.Module, inputs: Tensor, network: Network) -> Tensor:
    """J, shape (N, *positions, C, P)."""
    shape = network.record(inputs).outputs.shape
    return jacobian(module, inputs, network.weights.names).reshape(*shape, -1)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("weights", ["all", "last_layer", "*.bias"])
@pytest.mark.parametrize("most", [1, 32, 10**6])
def test_each_position_by_itself(name: str, weights: str, most: int) -> None:
    make, inputs = NETWORKS[name]
    module = built(make)
    network = replace(Network.trace(module, inputs, weights), limits=ReadingLimits(cotangents=most))
    precision = DiagonalPrecision(1.0 + torch.arange(network.dim, dtype=torch.float64))
    j, v = reference(module, inputs, network), numbers(3, network.dim)
    want = torch.einsum("...cp,...dp->...cd", j / precision.diagonal(), j)
    for got, expected in [
        (network.latent_covariance(inputs, precision), want),
        (network.latent_variance(inputs, precision), want.diagonal(dim1=-2, dim2=-1)),
        (network.jacobian_product(inputs, v), torch.einsum("...p,rp->r...", j, v)),
    ]:
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    rows = want.flatten(1, -3)
    places = torch.randperm(rows.shape[1], generator=generator(1))[: 1 + rows.shape[1] // 3]  # in any order
    for got, expected in [
        (network.latent_covariance(inputs, precision, places=places), rows[:, places]),
        (network.latent_variance(inputs, precision, places=places), rows[:, places].diagonal(dim1=-2, dim2=-1)),
    ]:
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "weights", "apart"),
    [
        ("pixels", "last_layer", True), ("wide head", "last_layer", True), ("strided head", "last_layer", True),
        ("tokens", "last_layer", True), ("apart", "all", True), ("pixels", "all", False), ("tokens", "all", False),
        ("tokens", ["table.weight"], False),
    ],
)  # fmt: skip
def test_positions_that_share_nothing_but_weights_are_rows(name: str, weights: Any, apart: bool) -> None:
    make, inputs = NETWORKS[name]
    recording = Network.trace(built(make), inputs, weights).record(inputs)
    tapes = list(positions._rows_apart(recording, cotangents=1))
    count = recording.rows * recording.outputs.shape[1:-1].numel()
    assert sum(tape.rows for tape in tapes) == (count if apart else 0)


@pytest.mark.parametrize("pair", [(3, 5), (0, 1), (7, 8), (0, 63)])
def test_two_positions_that_meet_among_many_are_found(pair: tuple[int, int]) -> None:
    def met(m: Any, x: Tensor) -> Tensor:
        h = x @ m.w.T
        moved = torch.zeros_like(h)
        moved[:, pair[0]] = h[:, pair[1]].tanh()
        return h.sin() + moved

    module, x = built(lambda: Function(met, w=(2, 3))), numbers(3, 64, 3)
    network = Network.trace(module, x)
    precision = DiagonalPrecision(torch.ones(network.dim, dtype=torch.float64))
    j = reference(module, x, network)
    want = j @ j.mT
    torch.testing.assert_close(network.latent_covariance(x, precision), want, rtol=1e-10, atol=1e-10)


def test_nothing_holds_two_chunks_of_positions() -> None:
    network = Network.trace(built(lambda: Segmentation(3)), numbers(1, 2, 6, 5))
    inputs = numbers(2, 2, 24, 24)  # J would be 2 · 576 · 3 · 335 numbers, the joint covariances 2 · 1728²
    precision = DiagonalPrecision(torch.ones(network.dim, dtype=torch.float64))
    with Largest() as written:
        network.latent_variance(inputs, precision)
    assert written.numel < 2 * 576 * 3 * 335 / 2


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_outputs_in_chunks_have_the_covariance_of_all(chunk: int, chosen: bool) -> None:
    """Whole networks of many classes: cotangents travel some at a time, and pairs of chunks give what is between."""
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)))
    x = numbers(6, 3)
    network = Network.trace(module, x)
    precision = DiagonalPrecision(torch.rand(network.dim, dtype=torch.float64, generator=generator()) + 0.5)
    classes = torch.arange(24).reshape(6, 4) % 5 if chosen else None
    wanted = [network.latent_covariance(x, precision, classes), network.latent_variance(x, precision)]
    each = network.record(x).cotangent_bytes
    limits = ReadingLimits(chunk, cotangent_bytes=2 * chunk * each, variance_bytes=0, piece_bytes=2**40)
    network = replace(network, limits=limits)
    found = [network.latent_covariance(x, precision, classes), network.latent_variance(x, precision)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dense", [False, True])
def test_variances_of_very_many_outputs_hold_few_cotangents(dense: bool) -> None:
    outputs = 1500
    module = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)))
    x = numbers(2, 6, 3) if dense else numbers(2, 3)
    network = replace(Network.trace(module, x, "0.*"), limits=ReadingLimits(cotangents=8, variance_bytes=0))
    precision = DiagonalPrecision(torch.ones(network.dim, dtype=torch.float64))
    places = torch.tensor([4, 1]) if dense else None
    with Largest() as written:
        network.latent_variance(x, precision, places=places)
    assert written.numel < outputs**2 / 8  # the cotangents of all outputs at once are C² numbers for each position
