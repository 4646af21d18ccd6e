"""Very many outputs: what is planned is at least what is taken, and a fit that does not fit is refused before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import MemoryBudgetError
from bayescope.network import Network
from tests.curvature.test_output_factor import Pixels
from tests.curvature.test_plan import Peak
from tests.network.networks import built

pytestmark = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # nothing is trained


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def classifier(classes: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, classes))


@dataclass(frozen=True)
class Case:
    """A network, the shape of its inputs, that of its labels, and options of the fit."""

    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    labels: tuple[int, ...]
    classes: int
    options: dict[str, Any] = field(default_factory=dict)

    def data(self) -> tuple[Tensor, Tensor]:
        return randn(*self.inputs), torch.arange(torch.Size(self.labels).numel()).reshape(self.labels) % self.classes


LAST = {"weights": "last_layer"}
# The covariances of f in a batch of a last layer take more than 256 MB, so its predictions hold variances alone.
CASES = {
    "800 classes, dense": Case(lambda: classifier(800, 24), (64, 16), (64,), 800, LAST),
    "1,000 classes, diagonal factor": Case(
        lambda: classifier(1000, 24), (64, 16), (64,), 1000, {**LAST, "output_factor": "diagonal"}
    ),
    "1,000 classes, diagonal": Case(
        lambda: classifier(1000, 24), (64, 16), (64,), 1000, {**LAST, "structure": "diagonal"}
    ),
    "1,000 classes, all layers": Case(
        lambda: classifier(1000, 24), (16, 16), (16,), 1000,
        {"curvature": "fisher", "output_factor": {"2": "diagonal"}, "generator": 0},
    ),
    "1,000 classes, all layers, exactly": Case(
        lambda: classifier(1000, 24), (16, 16), (16,), 1000, {"output_factor": {"2": "diagonal"}}
    ),
    "200 classes of wide layers, exactly": Case(lambda: classifier(200, 100), (64, 16), (64,), 200),
    "pixels, last layer": Case(lambda: Pixels(90, 8), (2, 2, 48, 48), (2, 48, 48), 90, LAST),
    "pixels, all layers": Case(
        lambda: Pixels(21, 8), (2, 2, 48, 48), (2, 48, 48), 21, {"curvature": "fisher", "generator": 0}
    ),
    "sequences": Case(lambda: classifier(300, 24), (4, 128, 16), (4, 128), 300, LAST),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_more_is_taken_than_was_planned(name: str) -> None:
    case = CASES[name]
    model, (x, y) = built(case.make).float(), case.data()
    options = {"likelihood": "categorical", "memory": 2**34, **case.options}
    asked = {key: value for key, value in options.items() if key != "generator"}
    planned = bs.plan(model, (x, y), **asked)
    with Peak() as fitting:
        q = bs.laplace(model, (x, y), **options)
    assert fitting.bytes <= planned.bytes <= 3 * fitting.bytes
    with Peak() as tuning:
        q = bs.tune_prior(q)
    assert tuning.bytes <= planned.bytes
    some = 2
    if q.function.network.head:
        some = len(x)
        with Peak() as predicting:
            predictive = q.predict(x, integral="mackay")
            assert (predictive.probs.shape, predictive.epistemic.shape) == ((*y.shape, case.classes),) * 2
        assert predicting.bytes <= planned.variance_bytes
    with Peak() as top:
        assert q.predict(x[:some], top=3, integral="mackay").probs.shape == (some, *y.shape[1:], 3)
    assert top.bytes <= planned.variance_bytes


def test_the_check_of_many_weights_takes_what_was_planned() -> None:
    model, x, y = built(lambda: classifier(2000, 200)).float(), randn(8, 16), torch.arange(8)
    planned = bs.plan(model, (x, y), likelihood="categorical", weights="last_layer", output_factor="diagonal")
    with Peak() as tracing:
        Network.trace(model, x, "last_layer")
    assert tracing.bytes <= planned.tracing_bytes <= 2 * tracing.bytes


def test_a_dense_output_factor_that_does_not_fit_is_refused_before_anything_is_read() -> None:
    model, rows = built(lambda: classifier(50_000, 4)).float(), 8
    data = randn(rows, 16), torch.arange(rows)
    options: dict[str, Any] = {"likelihood": "categorical", "weights": "last_layer"}
    planned = bs.plan(model, data, memory=10**10, **options)
    assert planned.output_factor_bytes == 8 * 50_000**2
    assert planned.output_factors["dense"] > 8 * 50_000**2
    assert "the largest of which is 20 GB if dense" in planned.summary()
    looked: list[int] = []
    handle = model[2].register_forward_hook(lambda *_: looked.append(1))
    with pytest.raises(MemoryBudgetError, match=r"output factor is 20 GB: output_factor='diagonal' keeps"):
        bs.laplace(model, data, memory=10**10, **options)
    handle.remove()
    assert bs.plan(model, data, memory=10**10, output_factor="diagonal", **options).fits


def test_all_classes_as_cotangents_are_refused_and_one_sampled_label_is_not() -> None:
    """Where f is that of a linear layer they begin below it, and fit."""
    model, rows = built(lambda: nn.Sequential(*classifier(50_000, 4), nn.LogSoftmax(-1))).float(), 8
    data = randn(rows, 16), torch.arange(rows)
    options: dict[str, Any] = {"likelihood": "categorical", "output_factor": "diagonal", "memory": 10**10}
    exact = bs.plan(model, data, **options)
    assert exact.cotangents <= 49_999
    assert not exact.fits
    with pytest.raises(MemoryBudgetError, match="curvature='fisher'"):
        exact.require()
    assert bs.plan(model, data, curvature="fisher", **options).fits
    assert bs.plan(model[:-1], data, **options).fits
