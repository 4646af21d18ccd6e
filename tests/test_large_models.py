"""Networks as people use them, at a small width: exact against the dense matrices, layer by layer, also in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bayescope as bs
from tests.curvature import reference
from tests.curvature.cases import Case, assert_close, fill, fit
from tests.curvature.test_kronecker import definitions
from tests.large_models import ResNet, VisionTransformer

CLASSES = 3
SMALL: dict[str, Callable[[], nn.Module]] = {
    "resnet": lambda: ResNet(CLASSES, 2, (1, 1)),
    "transformer": lambda: VisionTransformer(CLASSES, 4, 1, 2, 4, 8),
}
SIDES = {"resnet": 16, "transformer": 8}
FULL_SIZE = {"resnet": (ResNet, 11_689_512), "transformer": (VisionTransformer, 5_717_416)}
# What bfloat16's 8 bits may change of sums over the layers' numbers, relative to their norm: seen 0.002 to 0.008 for
# the GGN, and to 0.011 for gradients at the labels.
COARSE = 0.03
NO_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # these weights are random


def small(name: str, rows: int = 5) -> Case:
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        module = fill(SMALL[name](), generator)
    inputs = torch.randn(rows, 3, SIDES[name], SIDES[name], dtype=torch.float64, generator=generator)
    return Case(module, inputs, torch.arange(rows) % CLASSES, bs.Categorical())


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_sizes_are_those_of_the_papers(name: str) -> None:
    make, weights = FULL_SIZE[name]
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in make().parameters()) == weights


@pytest.mark.parametrize("name", SMALL)
def test_every_layer_is_read_exactly(name: str) -> None:
    entry = small(name)
    assert_close(fit(entry, "full").precision.to_dense(), reference.full(entry, "ggn"))
    assert_close(fit(entry, "diagonal").precision.diagonal(), reference.full(entry, "ggn").diagonal())


@pytest.mark.parametrize("name", SMALL)
def test_kronecker_factors_are_their_definition(name: str) -> None:
    entry = small(name)
    assert_close(fit(entry, "kfac").precision.to_dense(), definitions(entry, name)["kfac"])


@pytest.mark.parametrize("name", SMALL)
def test_no_layer_is_read_row_by_row(name: str) -> None:
    found = fit(small(name), "kfac")
    assert not [part for part in found.network.parts if part.kind == "per-row"]
    modules = dict(found.network.module.named_modules())
    layers = {name for name, module in modules.items() if isinstance(module, nn.Linear | nn.Conv2d)}
    assert layers == {part.name for part in found.network.parts if part.factored}


@NO_MODE
@pytest.mark.parametrize("name", SMALL)
def test_linearised_predictions_over_all_layers(name: str) -> None:
    entry = small(name)
    q = bs.laplace(entry.module, (entry.inputs, entry.targets), likelihood="categorical", prior_precision=300.0)
    matrix, j = definitions(entry, name)["kfac"], reference.jacobian(entry)
    posterior = matrix + 300.0 * torch.eye(len(matrix), dtype=torch.float64)
    assert_close(q.predict(entry.inputs).latent_cov, j @ torch.linalg.solve(posterior, j.mT))


@pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
@pytest.mark.parametrize("name", SMALL)
def test_weights_in_bfloat16_have_sums_in_higher_precision(name: str, curvature: str) -> None:
    """The same weights read in float32 give the same, but for the rounding of the network's own products."""
    entry = small(name)
    half = copy.deepcopy(entry.module).to(torch.bfloat16)
    coarse, fine = (
        fit(Case(module, entry.inputs, entry.targets, entry.likelihood), "kfac", curvature, generator=0)
        for module in (half, copy.deepcopy(half).float())
    )
    found, wanted = coarse.precision.to_dense(), fine.precision.to_dense()
    assert found.dtype == torch.float64
    assert float((found - wanted).norm() / wanted.norm()) < COARSE
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_a_sum_over_many_rows_in_bfloat16_does_not_stall() -> None:
    """Of a sum in bfloat16 nothing is left to add after 256 equal terms."""
    module = fill(nn.utils.skip_init(nn.Linear, 2, 2), torch.Generator().manual_seed(0)).to(torch.bfloat16)
    x, y = torch.ones(4096, 2), torch.zeros(4096, dtype=torch.int64)
    found = bs.fit_curvature(module, (x, y), likelihood="categorical", structure="kfac", batch_size=64)
    few = bs.fit_curvature(module, (x[:64], y[:64]), likelihood="categorical", structure="kfac", batch_size=64)
    torch.testing.assert_close(found.precision.to_dense(), 64 * few.precision.to_dense(), rtol=1e-5, atol=0.0)


@NO_MODE
@pytest.mark.parametrize("name", SMALL)
def test_predictions_of_bfloat16_are_answered_in_float32(name: str) -> None:
    entry = small(name)
    half = copy.deepcopy(entry.module).to(torch.bfloat16)
    data = (entry.inputs, entry.targets)
    options = {"likelihood": "categorical", "prior_precision": 300.0}
    found, wanted = (bs.laplace(module, data, **options).predict(data[0]) for module in (half, half.float()))
    assert found.probs.dtype == torch.float32
    assert found.latent.mean.dtype == torch.float64
    assert float((found.probs - wanted.probs).abs().max()) < COARSE


@pytest.mark.parametrize("name", SMALL)
def test_under_autocast_the_sums_keep_their_precision(name: str) -> None:
    entry = small(name)
    single = Case(entry.module.float(), entry.inputs.float(), entry.targets, entry.likelihood)
    with torch.autocast("cpu", torch.bfloat16):
        found = fit(single, "kfac").precision.to_dense()
    wanted = fit(single, "kfac").precision.to_dense()
    assert found.dtype == torch.float64
    assert 0 < float((found - wanted).norm() / wanted.norm()) < COARSE
