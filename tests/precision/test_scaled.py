"""c A for every structure: the same matrix as the dense one times c, its factors kept, c in its graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.precision import Precision
from tests.precision.cases import ADDING, BLOCKS, CASES, Calls, blocks, normal, per_group, seeded

NAMES = [*CASES, "blocks"]


def curvature(name: str, seed: int = 0) -> Precision:
    return blocks(seed) if name == "blocks" else CASES[name].data(seed)


def prior(name: str) -> Tensor | float:
    return 0.7 if name == "blocks" else CASES[name].prior(CASES[name].shape, seeded(99))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [0.3, 4.0])
def test_before_and_after_the_prior(name: str, factor: float) -> None:
    data, added = curvature(name), prior(name)
    dense = data.to_dense()
    diagonal = torch.diag(torch.as_tensor(added, dtype=torch.float64).expand(data.dim))
    b = normal(data.dim, 2, g=seeded(4))
    pairs = [
        (data.scaled(factor).add_diagonal(added), factor * dense + diagonal),
        (data.add_diagonal(added).scaled(factor), factor * (dense + diagonal)),
        (data.add_diagonal(added).scaled(factor).scaled(2.0), 2 * factor * (dense + diagonal)),
    ]
    for precision, truth in pairs:
        torch.testing.assert_close(precision.to_dense(), truth, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(precision.diagonal(), truth.diagonal(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(precision.multiply(b), truth @ b)
        torch.testing.assert_close(precision.solve(b), torch.linalg.solve(truth, b))
        torch.testing.assert_close(precision.logdet(), torch.logdet(truth))
        torch.testing.assert_close(precision.marginal_variance(), torch.linalg.inv(truth).diagonal())
        root = precision.sqrt_solve(torch.eye(data.dim, dtype=torch.float64))
        torch.testing.assert_close(root @ root.mT, torch.linalg.inv(truth))


@pytest.mark.parametrize("name", NAMES)
def test_the_factor_stays_in_its_graph(name: str) -> None:
    data, added = curvature(name), prior(name)
    dense = data.to_dense()
    diagonal = torch.diag(torch.as_tensor(added, dtype=torch.float64).expand(data.dim))
    factor = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    b = normal(data.dim, g=seeded(4))
    pairs = [
        (data.scaled(factor).add_diagonal(added), factor * dense + diagonal),
        (data.add_diagonal(added).scaled(factor), factor * (dense + diagonal)),
    ]
    for scaled, truth in pairs:
        value = scaled.logdet() + b @ scaled.solve(b) + b @ scaled.multiply(b)
        (got,) = torch.autograd.grad(value, factor)
        reference = torch.logdet(truth) + b @ torch.linalg.solve(truth, b) + b @ truth @ b
        (expected,) = torch.autograd.grad(reference, factor)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", [*ADDING, "blocks"])
def test_a_curvature_without_its_prior_stays_one(name: str) -> None:
    data = curvature(name).scaled(2.0)
    torch.testing.assert_close((data + curvature(name).scaled(2.0)).to_dense(), 4.0 * curvature(name).to_dense())
    if name == "diagonal":
        with pytest.raises(NotPositiveDefiniteError):
            data.logdet()


def test_sums_of_scaled_kronecker_curvatures_are_those_of_scaled_data() -> None:
    """Cotangents scaled by √c on all data: the factor of the outputs is c times as large."""
    shape = (2, 4, 3)
    one, other = (CASES["kronecker, groups"].curvature(shape, seeded(seed)) for seed in (1, 2))
    torch.testing.assert_close((one.scaled(3.0) + other.scaled(3.0)).to_dense(), 3.0 * (one + other).to_dense())


def test_eigenbases_are_found_once() -> None:
    """Scaling and another prior take no other decomposition."""
    shape = (3, 2, 4)
    precisions: list[Precision] = [
        CASES["kronecker, groups"].curvature(shape, seeded(0)),
        CASES["eigenvalue-corrected"].curvature(shape, seeded(0)),
        CASES["low rank"].curvature(shape, seeded(0)),
    ]
    for precision in precisions:
        precision.add_diagonal(1.0).logdet()
    with Calls("eigh") as calls:
        for precision in precisions:
            precision.scaled(2.0).add_diagonal(0.3).logdet()
        precisions[0].scaled(2.0).add_diagonal(per_group(shape, seeded(3))).logdet()
    assert calls.count == 0


def test_blocks_are_all_scaled() -> None:
    assert len(blocks().scaled(2.0).blocks) == len(BLOCKS)
