"""Hessian products against dense second derivatives, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from bayescope.curvature import Observations, add_blocks, add_diagonal, check_symmetric, hessian_product
from bayescope.errors import UnsupportedError
from bayescope.network.forward import reading
from bayescope.network.weights import Weights
from tests.curvature import reference
from tests.curvature.cases import LIKELIHOODS, Case, case

LAYERS = [
    "embedding",
    "layer norm",
    "group norm",
    "batch norm",
    "self-attention",
    "transformer encoder",
    "lstm",
    "gru",
    "tied embedding",
    "dict",
    "weight norm",
    "cnn",
]


def _product(this: Case, weights: Weights | None = None) -> Callable[[Tensor], Tensor]:
    observe = partial(Observations.read, this.likelihood, targets=this.targets, first=0)
    with reading(this.module):
        return hessian_product(this.module, weights or Weights.select(this.module, "all"), this.inputs, observe)[0]


def _dense(product: Callable[[Tensor], Tensor], dim: int) -> Tensor:
    return product(torch.eye(dim, dtype=torch.float64))


@pytest.mark.parametrize("layer", LAYERS)
def test_products_equal_the_dense_hessian(layer: str) -> None:
    this = case(layer, outputs=4 if layer == "tied embedding" else 3)
    truth = reference.hessian(this)
    vectors = torch.randn(len(truth), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = truth @ vectors
    torch.testing.assert_close(_product(this)(vectors), expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_has_second_derivatives(likelihood: str) -> None:
    this = case("functional linear", likelihood)
    truth = reference.hessian(this)
    torch.testing.assert_close(_dense(_product(this), len(truth)), truth, rtol=1e-8, atol=1e-9)


def test_a_mask_restricts_the_hessian() -> None:
    this = case("layer norm")
    truth = reference.hessian(this)
    mask = torch.rand(len(truth), generator=torch.Generator().manual_seed(1)) < 0.4
    got = _dense(_product(this, Weights.select(this.module, mask)), int(mask.sum()))
    torch.testing.assert_close(got, truth[mask][:, mask], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("columns", [None, 1, 4])
def test_blocks_and_the_diagonal_are_parts_of_it(columns: int | None) -> None:
    this = case("functional linear")
    truth, product = reference.hessian(this), _product(this)
    dim = len(truth)
    order = torch.randperm(dim, generator=torch.Generator().manual_seed(2))
    groups = [order[:5], order[5:]]
    totals = [torch.ones(len(group), len(group), dtype=torch.float64) for group in groups]
    add_blocks(totals, product, groups, dim, columns)
    for total, group in zip(totals, groups, strict=True):
        torch.testing.assert_close(total - 1.0, truth[group][:, group], rtol=1e-8, atol=1e-9)
    diagonal = torch.ones(dim, dtype=torch.float64)
    add_diagonal(diagonal, product, columns)
    torch.testing.assert_close(diagonal - 1.0, truth.diagonal(), rtol=1e-8, atol=1e-9)


def test_a_wrong_second_derivative_is_refused() -> None:
    matrix = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check_symmetric(lambda v: (matrix + matrix.mT) @ v, 6, torch.device("cpu"), torch.float64)
    with pytest.raises(UnsupportedError, match="expected a symmetric Hessian, got uᵀHv = "):
        check_symmetric(lambda v: matrix @ v, 6, torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_is_no_wrong_derivative_and_what_is_above_it_is(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, skew = torch.randn(2, 50, 50, dtype=torch.float64, generator=generator)
    symmetric, skew = matrix + matrix.mT, skew - skew.mT
    noise = symmetric * torch.finfo(dtype).eps * torch.randn(50, 50, dtype=torch.float64, generator=generator)
    check_symmetric(lambda v: (symmetric + noise) @ v, 50, torch.device("cpu"), dtype)
    wrong = symmetric + 20 * torch.finfo(dtype).eps ** 0.5 * skew
    with pytest.raises(UnsupportedError):
        check_symmetric(lambda v: wrong @ v, 50, torch.device("cpu"), dtype)


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients_get_the_same(caller: type) -> None:
    this = case("functional linear")
    truth = reference.hessian(this)
    with caller():
        got = _dense(_product(this), len(truth))
    torch.testing.assert_close(got, truth, rtol=1e-8, atol=1e-9)
