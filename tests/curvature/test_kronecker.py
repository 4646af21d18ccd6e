"""Kronecker and eigenvalue-corrected Kronecker curvatures: their definitions, and where theory says they are exact.

Definition. A weight matrix W that T positions of each of N rows share (tokens, pixels, calls), with inputs a_nt and
output derivatives g_nkt under the k-th column of a root of Λ_n, has the curvature (N T)⁻¹ (Σ_nkt g gᵀ) ⊗ (Σ_nt a aᵀ), a
bias being one more column of W with the input 1. "Reduce" has one position, Σ_t g and the mean of a. A convolution's a
is the patch, one product a group; a transposed convolution's a is the pixel and its g the patch of output derivatives;
an embedding's a is one-hot. Eigenvalue-corrected: the same eigenvectors, with the second moment of ∂f along each.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bayescope.likelihoods import Gaussian
from bayescope.precision import Precision
from tests.curvature import reference
from tests.curvature.cases import DTYPE, LIKELIHOODS, NAMES, Case, Mean, assert_close, case, fill, fit
from tests.curvature.test_exact import chosen_draws, drawn
from tests.curvature.twins import TWINS

KINDS = ["ggn", "fisher", "empirical_fisher"]
# What a layer contributes depends on neither: each kind of label is taken with one of the structures.
FISHERS = [("fisher", "kfac"), ("empirical_fisher", "ekfac")]
OTHER_LIKELIHOODS = [
    (model, name)
    for model in ("mlp", "dense outputs", "conv2d groups")
    for name in LIKELIHOODS
    if name not in ("logit", "categorical")
]


def definitions(entry: Case, model: str, kind: str = "ggn", reduce: bool = False) -> dict[str, Tensor]:
    """The dense matrices: Kronecker blocks at the sites, the exact block of each other layer."""
    middle = reference.output_curvature(entry, kind)
    found = reference.factors(entry, middle, twin=TWINS.get(model), reduce=reduce)
    full, layers = reference.full(entry, kind), reference.layers(entry, TWINS.get(model))
    blocks = {"kfac": reference.kfac_blocks(found), "ekfac": reference.ekfac_blocks(found, middle)}
    return {name: reference.assembled(len(full), parts, full, layers) for name, parts in blocks.items()}


def check(entry: Case, model: str, kind: str, structures: tuple[str, ...] = ("kfac", "ekfac")) -> dict[str, Precision]:
    found = {name: fit(chosen_draws(entry), name, kind, generator=0).precision for name in structures}
    want = definitions(drawn(entry) if kind == "fisher" else entry, model, kind)
    for name, precision in found.items():
        assert_close(precision.to_dense(), want[name])
    return found


@pytest.mark.parametrize(("model", "outputs"), NAMES)
def test_every_layer(model: str, outputs: int) -> None:
    """Whatever the basis, the corrected eigenvalues are the diagonal of the exact block in it: the trace is exact."""
    entry = case(model, outputs=outputs)
    got, exact = check(entry, model, "ggn")["ekfac"], reference.full(entry, "ggn")
    assert_close(got.diagonal().sum(), exact.trace(), 1e-9)
    assert torch.linalg.eigvalsh(got.to_dense()).min() > -1e-9 * exact.trace()


@pytest.mark.parametrize(("kind", "structure"), FISHERS)
@pytest.mark.parametrize("model", [model for model, outputs in NAMES if outputs != 1])
def test_every_layer_with_gradients_of_labels(model: str, kind: str, structure: str) -> None:
    check(case(model, outputs=dict(NAMES)[model]), model, kind, (structure,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "likelihood"), OTHER_LIKELIHOODS)
def test_every_likelihood(model: str, likelihood: str, kind: str) -> None:
    check(case(model, likelihood), model, kind)


@pytest.mark.parametrize("outputs", [3, 64], ids=["from the outputs", "begun below the top"])
@pytest.mark.parametrize(
    "model", ["conv2d groups", "linear on tokens", "embedding", "tied linear", "self-attention", "dense outputs"]
)
def test_reduced_sharing(model: str, outputs: int) -> None:
    entry = case(model, outputs=outputs)
    got = fit(entry, "kfac", sharing="reduce").precision.to_dense()
    assert_close(got, definitions(entry, model, reduce=True)["kfac"])


@pytest.mark.parametrize("outputs", [1, 3])
def test_exact_in_deep_linear_networks_with_squared_loss(outputs: int) -> None:
    """There g does not depend on the row: the mean of a product is the product of the means."""
    entry = case("deep linear", outputs=outputs)
    noise = torch.linspace(0.5, 2.0, outputs, dtype=DTYPE)
    targets = torch.randn(7, outputs, dtype=DTYPE, generator=torch.Generator().manual_seed(1))
    entry = Case(entry.module, entry.inputs, targets, Gaussian(noise))
    exact = reference.restricted(reference.full(entry, "ggn"), reference.layers(entry))
    assert_close(fit(entry, "kfac").precision.to_dense(), exact)


@pytest.mark.parametrize("model", ["mlp", "activations", "frozen", "lora", "relu in place"])
@pytest.mark.parametrize("structure", ["kfac", "ekfac"])
def test_exact_on_copies_of_one_row(model: str, structure: str) -> None:
    entry = case(model).rows(torch.zeros(5, dtype=torch.long))
    exact = reference.restricted(reference.full(entry, "ggn"), reference.layers(entry))
    assert_close(fit(entry, structure).precision.to_dense(), exact)


@pytest.mark.parametrize("model", ["mlp", "conv2d groups", "linear on tokens", "tied linear"])
def test_the_corrected_diagonal_is_exact_in_its_basis(model: str) -> None:
    entry = case(model)
    exact = reference.full(entry, "ggn")
    dense = fit(entry, "ekfac").precision.to_dense()
    values, basis = torch.linalg.eigh(dense)
    gaps = values.diff().abs().min()
    assert gaps > 0
    alone = values > 1e-9 * values.max()  # in the null space any basis does
    assert_close((basis.T @ exact @ basis).diagonal()[alone], values[alone], 1e-6)


@pytest.mark.global_rng
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_each_sharing_is_exact_in_its_own_deep_linear_network(sharing: str) -> None:
    """Eschenhagen et al. (2023): "expand" where each position has outputs, "reduce" where their mean goes on."""
    pooling = [Mean()] if sharing == "reduce" else []
    module = fill(nn.Sequential(nn.Linear(3, 2), *pooling, nn.Linear(2, 2)), torch.Generator().manual_seed(0))
    inputs = torch.randn(7, 4, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(1))
    targets = inputs.mean(1)[:, :2] if pooling else inputs[..., :2]
    entry = Case(module, inputs, targets, Gaussian([0.5, 2.0]))
    exact = reference.restricted(reference.full(entry, "ggn"), reference.layers(entry))
    assert_close(fit(entry, "kfac", sharing=sharing).precision.to_dense(), exact)


@pytest.mark.parametrize("model", ["mlp", "conv2d groups", "dense outputs", "layer norm"])
def test_low_rank_at_full_rank_is_the_full_matrix(model: str) -> None:
    entry = case(model)
    exact = reference.full(entry, "ggn")
    assert_close(fit(entry, "low_rank", rank=len(exact), generator=0).precision.to_dense(), exact)


@pytest.mark.parametrize("model", ["mlp", "conv2d groups"])
def test_low_rank_keeps_the_largest_eigenvalues(model: str) -> None:
    entry, rank = case(model), 4
    values, vectors = torch.linalg.eigh(reference.full(entry, "ggn"))
    best = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    assert_close(fit(entry, "low_rank", rank=rank, generator=0).precision.to_dense(), best, 1e-5)
