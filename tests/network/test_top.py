"""The cotangents of the GGN that begin below a linear layer on top, against those that begin at the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.curvature import kinds
from bayescope.likelihoods import Weighted
from bayescope.network import Network, Recording
from tests.network.networks import built

CLASSES = 9


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


def curvature(module: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    chosen = {"likelihood": "categorical", "progress": False, "batch_size": 7, **options}
    return bs.fit_curvature(module, (x, y), **chosen).precision.to_dense()


def both(monkeypatch: pytest.MonkeyPatch, *given: Any, **options: Any) -> tuple[Tensor, Tensor, list[int]]:
    """The curvature with cotangents from below the layer on top, that with all of them, and how many began below."""
    seen: list[int] = []
    below = Recording.tape_below

    def watched(recording: Recording, seeds: Tensor, *others: Any) -> Any:
        seen.append(len(seeds))
        return below(recording, seeds, *others)

    monkeypatch.setattr(Recording, "tape_below", watched)
    monkeypatch.setattr(kinds, "MANY_OUTPUTS", 2)
    found = curvature(*given, **options)
    monkeypatch.setattr(kinds, "MANY_OUTPUTS", 10**9)
    return found, curvature(*given, **options), seen


X, Y = numbers(20, 4), torch.arange(20) % CLASSES


@pytest.mark.parametrize("structure", ["kfac", "diagonal", "ekfac"])
@pytest.mark.parametrize(("width", "columns"), [(2, 2), (6, CLASSES), (12, CLASSES)])
def test_they_are_as_many_as_the_layer_has_inputs_and_tell_the_same(
    width: int, columns: int, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = built(mlp(width), 3).double()
    found, want, seen = both(monkeypatch, module, X, Y, structure=structure)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
    assert sum(seen) == 3 * columns  # of three batches
    found, want, seen = both(monkeypatch, module, X, Y, structure=structure, cotangents=2)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
    assert max(seen) == 2


def test_a_probability_near_1_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = built(mlp(2), 3).double()
    with torch.no_grad():
        list(module.parameters())[-2].mul_(60.0)
    found, want, _ = both(monkeypatch, module, X, Y, structure="diagonal")
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-12 * float(want.max()))


def test_tokens_weights_of_rows_and_labels_that_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    module = built(mlp(2), 3).double()
    tokens, labels = numbers(6, 3, 4), torch.arange(18).reshape(6, 3) % CLASSES
    labels[0, 1] = -100
    for likelihood, data in (
        (bs.Categorical(ignored=-100), (tokens, labels)),
        (Weighted(bs.Categorical()), (X, torch.stack([Y.double(), torch.arange(20) / 4.0], 1))),
        (bs.Gaussian(noise_variance=0.5), (X, numbers(20, CLASSES, seed=1))),
    ):
        found, want, seen = both(monkeypatch, module, *data, likelihood=likelihood)
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
        assert set(seen) == {2} or max(seen) == 6  # three positions a row


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
def test_elsewhere_they_begin_at_the_outputs(
    make: Callable[[], nn.Module], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, want, seen = both(monkeypatch, built(make, 3).double(), X, Y, **options)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)
    assert not seen or options.get("weights") == ["0.*", "4.weight"]  # of its bias nothing is asked


def test_the_layer_on_top_is_found() -> None:
    network = Network.trace(built(mlp(2), 3).double(), X[:7])
    recording = network.record(X[:7])
    assert recording.top is not None
    assert recording.top.matrix.shape == (CLASSES, 2)
