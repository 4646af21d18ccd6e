"""The cotangents of the GGN that begin below a linear layer on top, against those that begin at the outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.curvature import Observations
from bayescope.likelihoods import Weighted
from bayescope.network import Network
from bayescope.precision import Precision
from tests.network.networks import built
from tests.network.test_network import Largest

CLASSES, ROWS = 65, 7


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Tied(nn.Module):
    """The matrix on top is that of the layer below too."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.shared = nn.Linear(4, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.shared(self.into(x))))


class Skipped(nn.Module):
    """Something else is added to what the last linear layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.top, self.skip = nn.Linear(4, 3), nn.Linear(3, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.tanh(self.into(x))) + self.skip(x)


def mlp(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, width), nn.ReLU(), nn.Linear(width, CLASSES))


def curvature(module: nn.Module, x: Tensor, y: Tensor, **options: Any) -> tuple[Precision, int]:
    """The curvature, and the size of the largest tensor that its fit writes."""
    chosen = {"likelihood": "categorical", "progress": False, "batch_size": ROWS, **options}
    with Largest() as written:
        found = bs.fit_curvature(module, (x, y), **chosen).precision
    return found, written.numel


def both(module: nn.Module, x: Tensor, y: Tensor, **options: Any) -> tuple[Precision, Precision, bool]:
    """The curvature, that of cotangents which begin at the outputs, and whether those of the first began below.

    Cotangents begin at the outputs where something follows the layer on top: then a root of Λ is written out.
    """
    found, size = curvature(module, x, y, **options)
    followed = copy.deepcopy(module)
    followed.register_forward_hook(lambda _, inputs, outputs: outputs * 1.0)
    want, most = curvature(followed, x, y, **options)
    root = ROWS * CLASSES * (CLASSES - 1)
    assert most >= root
    return found, want, size < root


def assert_same(found: Precision, want: Precision, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found.to_dense(), want.to_dense(), rtol=tolerance, atol=1e-3 * tolerance)


def seeds_below(likelihood: bs.Likelihood, f: Tensor, y: Tensor, width: int, cotangents: int | None) -> list[int]:
    """How many cotangents begin together below a layer of so many inputs."""
    chunks = Observations.read(likelihood, f, y, 0).seeds_below(numbers(CLASSES, width, seed=2), cotangents)
    return [len(seeds) for seeds in chunks]


X, Y = numbers(20, 4), torch.arange(20) % CLASSES


@pytest.mark.parametrize(("width", "columns"), [(2, 2), (16, 16), (17, CLASSES)])
def test_they_are_as_many_as_the_layer_has_inputs(width: int, columns: int) -> None:
    """Or as many as it has outputs, where these are not far more."""
    f = numbers(ROWS, CLASSES)
    assert seeds_below(bs.Categorical(), f, Y[:ROWS], width, None) == [columns]
    assert seeds_below(bs.Categorical(), f, Y[:ROWS], width, 2) == [2] * (columns // 2) + [1] * (columns % 2)


@pytest.mark.parametrize(
    ("structure", "options"), [("kfac", {}), ("diagonal", {}), ("ekfac", {}), ("kfac", {"cotangents": 20})]
)
@pytest.mark.parametrize("width", [2, 17])
def test_they_give_the_same_curvature(width: int, structure: str, options: dict[str, Any]) -> None:
    found, want, below = both(built(mlp(width), 3).double(), X, Y, structure=structure, **options)
    assert_same(found, want)
    assert below or structure == "ekfac"  # which reads the layer on top through a root


def test_a_probability_near_1_loses_nothing() -> None:
    module = built(mlp(2), 3).double()
    with torch.no_grad():
        list(module.parameters())[-2].mul_(60.0)
    found, want, below = both(module, X, Y, structure="diagonal")
    assert below
    largest = float(want.diagonal().max())
    torch.testing.assert_close(found.diagonal(), want.diagonal(), rtol=1e-6, atol=1e-12 * largest)


def test_tokens_weights_of_rows_and_labels_that_are_ignored() -> None:
    module = built(mlp(2), 3).double()
    tokens, labels = numbers(6, 3, 4), torch.arange(18).reshape(6, 3) % CLASSES
    labels[0, 1] = -100
    for likelihood, data in (
        (bs.Categorical(ignored=-100), (tokens, labels)),
        (Weighted(bs.Categorical()), (X, torch.stack([Y.double(), torch.arange(20) / 4.0], 1))),
        (bs.Gaussian(noise_variance=0.5), (X, numbers(20, CLASSES, seed=1))),
    ):
        found, want, below = both(module, *data, likelihood=likelihood)
        assert_same(found, want)
        assert below or likelihood.name == "gaussian"  # a diagonal root, which is written out
    assert seeds_below(bs.Categorical(ignored=-100), numbers(6, 3, CLASSES), labels, 2, None) == [6]  # three positions


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Tied, {}),
        (Skipped, {}),
        (lambda: nn.Sequential(mlp(2)(), nn.LogSoftmax(-1)), {}),
        (mlp(2), {"weights": ["0.*", "2.*"]}),
        (mlp(2), {"weights": ["0.*", "4.weight"]}),
        (mlp(2), {"weights": bs.largest_magnitude(20)}),
        (mlp(2), {"structure": "full"}),
    ],
)
def test_elsewhere_they_begin_at_the_outputs(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    found, want, below = both(built(make, 3).double(), X, Y, **options)
    torch.testing.assert_close(found.diagonal(), want.diagonal(), rtol=1e-12, atol=1e-14)
    assert below == (options.get("weights") == ["0.*", "4.weight"])  # of its bias nothing is asked


def test_the_layer_on_top_is_found() -> None:
    network = Network.trace(built(mlp(2), 3).double(), X[:ROWS])
    recording = network.record(X[:ROWS])
    assert recording.top is not None
    assert recording.top.matrix.shape == (CLASSES, 2)
