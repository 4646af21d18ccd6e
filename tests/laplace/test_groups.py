"""Groups of weights that share a prior precision, and sums with a curvature in every structure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bayescope.curvature import Curvature, fit_curvature
from bayescope.errors import OptionError, UnsupportedError
from bayescope.laplace import PriorGroups
from bayescope.network import Network, prior_diagonal
from bayescope.priors import Prior
from tests.laplace.problems import DTYPE, mlp, normal, seeded

KINDS = ("scalar", "layer", "tensor", "weight", "feature")
STRUCTURES = ("full", "block", "diagonal", "kfac", "ekfac", "low_rank")
# EKFAC's eigenvectors bear one number a layer, KFAC's also one for each column, and neither one for each weight.
REFUSED = [("ekfac", "tensor"), ("ekfac", "weight"), ("ekfac", "feature"), ("kfac", "weight")]


def traced(module: nn.Module, inputs: Tensor, weights: object = "all") -> Network:
    return Network.trace(module, inputs, weights=weights)


def curvature_of(structure: str) -> Curvature:
    options = {"rank": 10} if structure == "low_rank" else {}
    data = (normal(9, 2, seed=1), normal(9, 1, seed=2))
    return fit_curvature(mlp(), data, likelihood="gaussian", structure=structure, generator=0, **options)


def convolutional() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))


def test_groups_are_named_and_hold_what_their_names_say() -> None:
    network = traced(mlp(), normal(5, 2, seed=0))  # 0.weight (4, 2), 0.bias (4,), 2.weight (1, 4), 2.bias (1,)
    layer = [0] * 12 + [1] * 5
    expected = {
        "scalar": (("all",), [0] * 17),
        "layer": (("0", "2"), layer),
        "tensor": (("0.weight", "0.bias", "2.weight", "2.bias"), [0] * 8 + [1] * 4 + [2] * 4 + [3]),
        "feature": (("0.weight[:, 0]", "0.weight[:, 1]", "0.bias", "2"), [0, 1] * 4 + [2] * 4 + [3] * 5),
    }
    for kind, (names, index) in expected.items():
        groups = PriorGroups.of(network, kind)
        assert groups.names == names
        assert groups.index.tolist() == index
    alone = PriorGroups.of(network, "weight")
    assert alone.index.tolist() == list(range(17))
    assert (alone.names[0], alone.names[8], alone.names[16]) == ("0.weight[0, 0]", "0.bias[0]", "2.bias[0]")


def test_features_of_a_convolution_are_its_input_channels() -> None:
    groups = PriorGroups.of(traced(convolutional(), normal(2, 3, 3, 3, seed=0)), "feature")
    assert groups.names == ("0.weight[:, 0]", "0.weight[:, 1]", "0.weight[:, 2]", "0.bias", "3")
    channels = torch.arange(3).repeat_interleave(4).repeat(4)
    assert groups.index[:48].equal(channels)
    assert groups.counts.tolist() == [16, 16, 16, 4, 34]


def test_a_mask_leaves_out_groups_without_weights() -> None:
    mask = torch.ones(17, dtype=torch.bool)
    mask[0:8:2] = False  # all of feature 0
    groups = PriorGroups.of(traced(mlp(), normal(5, 2, seed=0), mask), "feature")
    assert groups.names == ("0.weight[:, 1]", "0.bias", "2")
    assert groups.counts.tolist() == [4, 4, 5]


def test_parameters_of_the_network_itself_are_a_layer() -> None:
    groups = PriorGroups.of(traced(seeded(lambda: nn.Linear(2, 1)), normal(5, 2, seed=0)), "layer")
    assert groups.names == ("weight + bias",)
    assert groups.counts.tolist() == [3]


@pytest.mark.parametrize("kind", ["layer", "tensor"])
def test_diagonals_are_those_of_the_prior_by_name(kind: str) -> None:
    network = traced(mlp(), normal(5, 2, seed=0))
    groups = PriorGroups.of(network, kind)
    values = torch.rand(len(groups), dtype=DTYPE, generator=torch.Generator().manual_seed(0)) + 0.5
    by_name = prior_diagonal(dict(zip(groups.names, values, strict=True)), network.weights)
    assert torch.equal(groups.diagonal(values), by_name)
    torch.testing.assert_close(groups.precisions(Prior(by_name)), values)
    prior = groups.prior(values, Prior(1.0, 0.3))
    assert torch.equal(prior.diagonal(17), by_name)
    assert float(prior.mean) == 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_geometric_means(kind: str) -> None:
    groups = PriorGroups.of(traced(mlp(), normal(5, 2, seed=0)), kind)
    values = normal(17, seed=3).exp()
    for group in range(len(groups)):
        members = values[groups.index == group]
        torch.testing.assert_close(groups.sums(values)[group], members.sum())
        torch.testing.assert_close(groups.precisions(Prior(values))[group], members.log().mean().exp())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_curvature_plus_a_prior_is_the_dense_sum(structure: str, kind: str) -> None:
    curvature = curvature_of(structure)
    groups = PriorGroups.of(curvature.network, kind)
    if (structure, kind) in REFUSED:
        with pytest.raises(UnsupportedError, match=rf"share_prior: expected 'scalar' or 'layer' .* got '{kind}'"):
            groups.require(curvature.precision, structure)
        return
    groups.require(curvature.precision, structure)
    values = torch.rand(len(groups), dtype=DTYPE, generator=torch.Generator().manual_seed(0)) + 0.5
    values.requires_grad_()
    total = groups.adder(curvature.precision)(curvature.precision, values)
    dense = curvature.precision.to_dense() + torch.diag(groups.diagonal(values))
    torch.testing.assert_close(total.to_dense(), dense, rtol=1e-10, atol=1e-10)
    (gradient,) = torch.autograd.grad(total.logdet(), values)
    (expected,) = torch.autograd.grad(torch.logdet(dense), values)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)


def test_kronecker_eigenvectors_stay_with_one_number_a_layer() -> None:
    curvature = curvature_of("kfac")
    groups = PriorGroups.of(curvature.network, "layer")
    total = groups.adder(curvature.precision)(curvature.precision, torch.tensor([1.0, 2.0], dtype=DTYPE))
    for block, bare in zip(total.blocks, curvature.precision.blocks, strict=True):  # type: ignore[attr-defined]
        assert block.basis is bare.basis


def test_what_cannot_be_grouped_is_refused() -> None:
    network = traced(mlp(), normal(5, 2, seed=0))
    with pytest.raises(OptionError, match=r"share_prior: expected one of 'scalar', .*Did you mean 'layer'"):
        PriorGroups.of(network, "layers")
    embedding = seeded(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 1)))
    with pytest.raises(UnsupportedError, match="share_prior: 'feature' expects the first random layer to be linear"):
        PriorGroups.of(traced(embedding, torch.arange(8).reshape(4, 2) % 5), "feature")
