"""One reading of J for many priors gives what a precision for each of them gives."""

from __future__ import annotations

import pytest
import torch

from bayescope.curvature import fit_curvature
from bayescope.laplace import GroupBlock
from tests.laplace.problems import DTYPE, mlp, normal

STRUCTURES = ("full", "diagonal", "kfac", "ekfac", "low_rank")


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_covariances_are_those_of_each_precision(structure: str, factor: float) -> None:
    options = {"rank": 10} if structure == "low_rank" else {}
    data = (normal(9, 2, seed=1), normal(9, 3, seed=2))
    curvature = fit_curvature(mlp(3), data, likelihood="gaussian", structure=structure, generator=0, **options)
    precision = curvature.precision.scaled(factor)
    tape = curvature.network.tape(normal(4, 2, seed=3))
    blocks = [(precision, tape)]
    if structure in ("kfac", "ekfac"):
        pairs = zip(precision.blocks, precision.indices, strict=True)  # type: ignore[attr-defined]
        blocks = [(block, tape.part(index)) for block, index in pairs]
    shifts = torch.tensor([1e-3, 0.4, 70.0], dtype=DTYPE)
    for matrix, part in blocks:
        many = GroupBlock(matrix)
        expected = torch.stack([matrix.add_diagonal(shift).covariance_of(part) for shift in shifts])
        torch.testing.assert_close(many.answers(part, shifts, variances=False), expected, rtol=1e-9, atol=1e-11)
        diagonals = expected.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(many.answers(part, shifts, variances=True), diagonals, rtol=1e-9, atol=1e-11)
        smallest = float(torch.linalg.eigvalsh(matrix.to_dense())[0])
        assert abs(many.smallest() - smallest) < 1e-9
