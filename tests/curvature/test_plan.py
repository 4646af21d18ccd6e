from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from bayescope import largest_variance
from bayescope.curvature import Plan, fit_curvature, plan
from bayescope.errors import InputError, MemoryBudgetError, OptionError, UnsupportedError
from bayescope.memory import free_memory, readable


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside hold at once, by asking storages whether they still live.

    They are asked only where what was made since they were last asked could be a new peak.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._total = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor) or tensor.device.type == "meta":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                _, before = self._live.get(storage._cdata, (None, 0))
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._total += storage.nbytes() - before
        if self._total > self.bytes:
            self._live = {key: found for key, found in self._live.items() if not found[0].expired()}
            self._total = sum(size for _, size in self._live.values())
            self.bytes = max(self.bytes, self._total)
        return out


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def initialised(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.utils.skip_init(nn.Linear, inputs, outputs)


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.utils.skip_init(nn.Conv2d, inputs, outputs, 3, padding=1)


def sequence(classes: int = 10) -> nn.Module:
    return initialised(nn.Sequential(linear(20, 30), nn.Tanh(), linear(30, classes)))


def pictures() -> nn.Module:
    stages = [convolution(3, 16), nn.ReLU(), nn.MaxPool2d(2), convolution(16, 16), nn.Tanh()]
    return initialised(nn.Sequential(*stages, nn.Flatten(), linear(1024, 10)))


def words() -> nn.Module:
    embedding = nn.utils.skip_init(nn.Embedding, 2000, 24)
    return initialised(nn.Sequential(embedding, linear(24, 24), nn.Tanh(), nn.Flatten(), linear(288, 5)))


class Standardised(nn.Module):
    """A linear layer with a standardised weight, which is read row by row."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight / self.weight.std(1, keepdim=True)).T


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = linear(20, 10), linear(100, 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def data(rows: int = 256, *shape: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    return randn(rows, *(shape or (20,))), torch.arange(rows) % classes


MODELS: dict[str, tuple[nn.Module, tuple[Tensor, Tensor], dict[str, Any]]] = {
    "dense": (sequence(), data(), {"batch_size": 64}),
    "wide": (
        initialised(nn.Sequential(linear(300, 100), nn.Tanh(), linear(100, 50), nn.Tanh(), linear(50, 10))),
        data(256, 300),
        {"batch_size": 128},
    ),
    "images": (pictures(), data(64, 3, 16, 16), {"batch_size": 32}),
    "head": (
        initialised(nn.Sequential(linear(100, 300), nn.ReLU(), linear(300, 100))),
        data(256, 100, classes=100),
        {"batch_size": 128, "weights": "last_layer"},
    ),
    "tokens": (words(), (torch.arange(1200).reshape(100, 12) % 2000, torch.arange(100) % 5), {"batch_size": 50}),
    "by rows": (
        initialised(nn.Sequential(Standardised(200, 100), nn.Tanh(), linear(100, 10))),
        data(32, 200),
        {"batch_size": 32},
    ),
}
PLANNED = [
    *(("dense", name, "ggn") for name in ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")),
    *(("wide", name, "ggn") for name in ("diagonal", "kfac", "ekfac")),
    *(("images", name, "ggn") for name in ("diagonal", "kfac", "ekfac")),
    *(("head", name, "ggn") for name in ("diagonal", "kfac")),
    *(("tokens", name, "ggn") for name in ("diagonal", "kfac")),
    *(("by rows", name, "ggn") for name in ("diagonal", "kfac")),
    ("images", "kfac", "fisher"),
    ("wide", "kfac", "empirical_fisher"),
]


@pytest.mark.parametrize(("name", "structure", "curvature"), PLANNED)
def test_what_is_planned_is_what_is_taken_within_a_factor_of_two(name: str, structure: str, curvature: str) -> None:
    model, (x, y), options = MODELS[name]
    options = {"likelihood": "categorical", "structure": structure, "curvature": curvature, **options}
    if structure == "low_rank":
        options["rank"] = 10
    planned = plan(model, (x, y), memory=2**34, **options)

    with Peak() as fitting:
        fitted = fit_curvature(model, (x, y), memory=2**34, **options)
    taken = planned.fitting_bytes
    assert fitting.bytes / 2 < taken < 2 * fitting.bytes

    with Peak() as predicting:
        fitted.network.latent_covariance(x[: planned.rows], fitted.with_prior(1.0))
    assert predicting.bytes / 2 < planned.curvature_bytes + planned.prediction_bytes
    assert planned.prediction_bytes < planned.curvature_bytes + 3 * predicting.bytes


def test_sizes_are_those_of_the_model_and_the_data() -> None:
    planned = plan(sequence(), data(100), likelihood="categorical", batch_size=64, weights="2", memory=10**9)
    assert planned.weights == 310
    assert planned.parameters == 940
    assert planned.rows == 64
    assert planned.cotangents == 9  # a root of the softmax's curvature has one column less than there are classes
    assert planned.curvature == "ggn"
    assert planned.budget == 10**9
    assert planned.fallbacks == {}
    assert list(planned.alternatives) == ["full", "block", "diagonal", "kfac", "ekfac", "low_rank"]
    assert planned.alternatives["kfac"] == planned.bytes
    assert planned.fits
    assert planned.require() is planned


@pytest.mark.parametrize(
    ("curvature", "structure", "cotangents"),
    [("fisher", "kfac", 1), ("empirical_fisher", "kfac", 1), ("hessian", "full", 32), ("ggn", "kfac", 9)],
)
def test_the_kind_decides_how_many_cotangents_there_are(curvature: str, structure: str, cotangents: int) -> None:
    planned = plan(sequence(), data(), likelihood="categorical", curvature=curvature, structure=structure, memory=2**34)
    assert planned.cotangents == cotangents


def test_the_number_of_rows_does_not_matter_only_that_of_a_batch() -> None:
    few, many = (
        plan(pictures(), data(rows, 3, 16, 16), likelihood="categorical", batch_size=16) for rows in (16, 1000)
    )
    assert many.alternatives == few.alternatives
    assert many.reading_bytes == few.reading_bytes


@pytest.mark.parametrize("structure", ["diagonal", "kfac", "ekfac"])
def test_weights_that_nothing_depends_on_are_not_read(structure: str) -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "structure": structure, "memory": 2**34}
    every = plan(initialised(nn.Sequential(linear(20, 20), Unused())), data(), **options)
    used = plan(initialised(nn.Sequential(linear(20, 20), Unused())), data(), weights=["0.*", "1.used.*"], **options)
    assert every.reading_bytes == used.reading_bytes
    assert every.prediction_bytes == used.prediction_bytes
    # Yet they are held: with the prior and without it.
    assert every.curvature_bytes >= used.curvature_bytes + 2 * 8 * 10_000


def test_dense_outputs_have_cotangents_for_each_position() -> None:
    inputs, labels = randn(8, 5, 20), torch.zeros(8, 5, dtype=torch.long)
    planned = plan(sequence(4), (inputs, labels), likelihood="categorical", memory=2**30)
    assert planned.cotangents == 5 * 3


def test_a_run_over_the_budget_is_refused_before_it_starts() -> None:
    model, read = sequence(), []
    model.register_forward_hook(lambda *_: read.append(1))
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "full", "memory": 4_000_000}
    planned = plan(model, data(), **options)
    assert not planned.fits
    with pytest.raises(MemoryBudgetError, match=r"Structures that fit: .*'diagonal'.*'kfac'") as caught:
        planned.require()
    assert isinstance(caught.value, MemoryError)
    assert "'full' (" not in str(caught.value)
    assert "does not fit" in str(planned)
    looked = len(read)
    with pytest.raises(MemoryBudgetError, match="expected at most 4 MB"):
        fit_curvature(model, data(100_000), **options)
    assert len(read) - looked < 20


def test_where_nothing_fits_the_message_says_what_to_do() -> None:
    with pytest.raises(MemoryBudgetError, match="smaller batch_size, or raise memory="):
        plan(sequence(), data(), likelihood="categorical", memory=1000).require()


def test_an_infinite_budget_is_no_limit() -> None:
    unlimited = plan(sequence(), data(), likelihood="categorical", structure="full", memory=float("inf"))
    assert unlimited.fits
    assert unlimited.summary()


def test_less_memory_means_fewer_cotangents_at_once_and_the_same_curvature() -> None:
    model, examples = sequence(), data()
    options: dict[str, Any] = {"likelihood": "categorical", "structure": "diagonal", "batch_size": 256}
    roomy = plan(model, examples, memory=2**34, **options)
    tight = plan(model, examples, memory=roomy.curvature_bytes + roomy.reading_bytes // 2, **options)
    assert 1 <= tight.cotangents < roomy.cotangents
    assert tight.reading_bytes < roomy.reading_bytes
    one, other = (
        fit_curvature(model, examples, cotangents=planned.cotangents, memory=2**34, **options).precision.diagonal()
        for planned in (roomy, tight)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_parts_in_another_structure_are_named() -> None:
    model = initialised(nn.Sequential(linear(20, 30), nn.LayerNorm(30), nn.ReLU(), linear(30, 3)))
    planned = plan(model, data(64, classes=3), likelihood="categorical", memory=2**30)
    fitted = fit_curvature(model, data(64, classes=3), likelihood="categorical")
    assert planned.fallbacks == fitted.fallbacks
    assert planned.fallbacks["1"].structure == "full"
    assert "1: full: elementwise weights" in str(planned)
    assert plan(model, data(64, classes=3), likelihood="categorical", structure="diagonal").fallbacks == {}


def test_the_summary_tells_the_numbers() -> None:
    planned = plan(sequence(), data(), likelihood="categorical", memory=10**9)
    text = planned.summary()
    assert str(planned) == text
    for told in ("'kfac'", "940 of 940", "256 rows, 9 cotangents", "1 GB: fits", readable(planned.curvature_bytes)):
        assert told in text
    for name, size in planned.alternatives.items():
        assert any(line.split()[:3] == [name, *readable(size).split()] for line in text.splitlines())


@pytest.mark.global_rng
def test_a_model_and_the_random_state_are_left_as_found() -> None:
    model = sequence().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    plan(model, DataLoader(TensorDataset(*data()), batch_size=32, shuffle=True), likelihood="categorical")
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_only_a_fit_can_find_are_counted() -> None:
    assert plan(sequence(), data(), likelihood="categorical", weights=largest_variance(17)).weights == 17


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"structure": "kfca"}, OptionError, "Did you mean 'kfac'"),
        ({"structure": "kfac", "curvature": "hessian"}, UnsupportedError, "Supported"),
        ({"memory": -1}, InputError, "positive number of bytes"),
        ({"memory": "2GB"}, InputError, "positive number of bytes"),
        ({"memory": float("nan")}, InputError, "positive number of bytes"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(sequence(), data(), likelihood="categorical", **options)


def test_the_default_budget_is_half_of_what_is_free() -> None:
    cpu = torch.device("cpu")
    before = free_memory(cpu)
    budget = plan(sequence(), data(), likelihood="categorical").budget
    free = before, free_memory(cpu)
    assert 0.4 * min(free) < budget < 0.6 * max(free)  # other processes take and give back memory meanwhile


def test_a_plan_is_frozen() -> None:
    planned = plan(sequence(), data(), likelihood="categorical")
    assert isinstance(planned, Plan)
    with pytest.raises(AttributeError):
        planned.weights = 3  # type: ignore[misc]
