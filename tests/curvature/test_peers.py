"""The same matrices from curvlinops and backpack, on models that they treat rightly; skipped where they are absent."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayescope.likelihoods import Categorical
from tests.curvature.cases import BATCH, DTYPE, ROWS, Case, assert_close, case, fill, fit

pytestmark = pytest.mark.global_rng  # curvlinops compares two products with a random vector

# curvlinops knows Linear and Conv2d without groups.
LAYERED = ["mlp", "deep linear", "linear on tokens", "cnn"]
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def peers_warn_as_they_like() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def peer_case(name: str, likelihood: str) -> Case:
    """A case of the table without in-place layers, in evaluation mode."""
    entry = case(name, likelihood)
    module = copy.deepcopy(entry.module).eval()
    for part in module.modules():
        if hasattr(part, "inplace"):
            part.inplace = False
    return Case(module, entry.inputs, entry.targets, entry.likelihood)


def summed_loss(entry: Case) -> nn.Module:
    """−log p up to a constant, summed over rows; the squared loss without its half is that of the noise variance ½."""
    names = {"categorical": nn.CrossEntropyLoss, "bernoulli": nn.BCEWithLogitsLoss, "gaussian": nn.MSELoss}
    return names[entry.likelihood.name](reduction="sum")


def batches(entry: Case) -> list[tuple[Tensor, Tensor]]:
    y = entry.targets if entry.likelihood.name == "categorical" else entry.targets.to(entry.inputs)
    return [(entry.inputs[start : start + BATCH], y[start : start + BATCH]) for start in range(0, ROWS, BATCH)]


def dense(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("likelihood", ["categorical", "logit, 3 labels"])
@pytest.mark.parametrize("model", LAYERED)
@pytest.mark.parametrize("curvature", ["ggn", "hessian", "empirical_fisher"])
def test_full_matrices_of_curvlinops(model: str, curvature: str, likelihood: str) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    if curvature == "empirical_fisher" and likelihood != "categorical":
        pytest.skip("curvlinops' empirical Fisher of several labels is that of each label alone")
    operators = {
        "ggn": curvlinops.GGNLinearOperator,
        "hessian": curvlinops.HessianLinearOperator,
        "empirical_fisher": curvlinops.EFLinearOperator,
    }
    entry = peer_case(model, likelihood)
    parameters = list(entry.module.parameters())
    operator = operators[curvature](entry.module, summed_loss(entry), parameters, batches(entry))
    assert_close(fit(entry, "full", curvature).precision.to_dense(), dense(operator), TOLERANCE)


@pytest.mark.parametrize("structure", ["kfac", "ekfac"])
@pytest.mark.parametrize("likelihood", ["categorical", "logit"])
@pytest.mark.parametrize("model", LAYERED)
def test_kronecker_matrices_of_curvlinops(model: str, likelihood: str, structure: str) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    entry = peer_case(model, likelihood)
    names = {"kfac": curvlinops.KFACLinearOperator, "ekfac": curvlinops.EKFACLinearOperator}
    operator = names[structure](
        entry.module,
        summed_loss(entry),
        list(entry.module.parameters()),
        batches(entry),
        fisher_type=curvlinops.FisherType.TYPE2,
        separate_weight_and_bias=False,
    )
    assert_close(fit(entry, structure).precision.to_dense(), dense(operator), TOLERANCE)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("model", ["linear on tokens", "cnn"])
def test_sharing_of_curvlinops(model: str, sharing: str) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    entry = peer_case(model, "categorical")
    operator = curvlinops.KFACLinearOperator(
        entry.module,
        summed_loss(entry),
        list(entry.module.parameters()),
        batches(entry),
        fisher_type=curvlinops.FisherType.TYPE2,
        separate_weight_and_bias=False,
        kfac_approx=sharing,
    )
    assert_close(fit(entry, "kfac", sharing=sharing).precision.to_dense(), dense(operator), TOLERANCE)


def backpack_gradients(entry: Case, extension: Any) -> nn.Module:
    """One backward pass of all rows with an extension, whose results lie on the parameters."""
    import backpack

    module, loss = backpack.extend(copy.deepcopy(entry.module)), backpack.extend(summed_loss(entry))
    y = entry.targets if entry.likelihood.name == "categorical" else entry.targets.to(entry.inputs)
    with backpack.backpack(extension):
        loss(module(entry.inputs), y).backward()
    return module


def convolutional() -> Case:
    """Convolution, transposed convolution and pooling, in layers that backpack knows."""
    layers = [
        nn.Conv2d(1, 2, 3, stride=2, padding=1, groups=1),
        nn.Tanh(),
        nn.ConvTranspose2d(2, 2, 2),
        nn.MaxPool2d(2),
    ]
    generator = torch.Generator().manual_seed(0)
    module = fill(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)), generator)
    inputs = torch.randn(ROWS, 1, 6, 6, generator=generator, dtype=DTYPE)
    return Case(module.eval(), inputs, torch.arange(ROWS) % 3, Categorical())


@pytest.mark.parametrize("model", ["mlp", "deep linear", "logistic", "convolutional"])
def test_diagonals_of_backpack(model: str) -> None:
    extensions = pytest.importorskip("backpack.extensions")
    entry = convolutional() if model == "convolutional" else peer_case(model, "categorical")
    module = backpack_gradients(entry, extensions.DiagGGNExact())
    want = torch.cat([value.diag_ggn_exact.reshape(-1) for value in module.parameters()])
    assert_close(fit(entry, "diagonal").precision.diagonal(), want, TOLERANCE)


@pytest.mark.parametrize("model", ["mlp", "deep linear"])
def test_hessian_diagonals_of_backpack(model: str) -> None:
    extensions = pytest.importorskip("backpack.extensions")
    entry = peer_case(model, "categorical")
    module = backpack_gradients(entry, extensions.DiagHessian())
    want = torch.cat([value.diag_h.reshape(-1) for value in module.parameters()])
    assert_close(fit(entry, "diagonal", "hessian").precision.diagonal(), want, TOLERANCE)


def test_kronecker_factors_of_backpack() -> None:
    """backpack's KFLR: Σ g gᵀ and the mean of a aᵀ for the weights; the bias apart, so that weights alone compare."""
    extensions = pytest.importorskip("backpack.extensions")
    entry = peer_case("mlp", "categorical")
    module = backpack_gradients(entry, extensions.KFLR())
    weights = [module[0].weight, module[2].weight]
    want = torch.block_diag(*[torch.kron(*value.kflr) for value in weights])
    assert_close(fit(entry, "kfac", weights="*.weight").precision.to_dense(), want, TOLERANCE)
