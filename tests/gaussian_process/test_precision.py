"""A precision held over rows against the same matrix held over weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayescope.errors import NotPositiveDefiniteError
from bayescope.gaussian_process import KernelPrecision, KernelRows
from bayescope.precision import DensePrecision, DiagonalPrecision, Precision
from bayescope.tape import DenseTape
from tests.laplace.problems import normal

DIM = 7
FACTOR = 2.5
TAPE = DenseTape(normal(4, 3, DIM, seed=3))
DIAGONAL = 0.2 + normal(DIM, seed=1).square()
DENSE = DensePrecision(normal(DIM, DIM, seed=2) @ normal(DIM, DIM, seed=2).mT + 0.3 * torch.eye(DIM).double())
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def rows_of(count: int) -> Tensor:
    """U, its last row twice: the kernel is singular."""
    u = normal(count, DIM, seed=count)
    u[-1] = u[0]
    return u


def pair(count: int, prior: str) -> tuple[Precision, DensePrecision]:
    """c UᵀU + P₀ both ways."""
    u = rows_of(count)
    kernel = KernelPrecision(KernelRows(u), factor=FACTOR)
    seen = FACTOR * u.mT @ u
    if prior == "constant":
        return kernel.add_diagonal(0.6), DensePrecision(seen + 0.6 * torch.eye(DIM).double())
    if prior == "diagonal":
        return kernel.add_diagonal(DIAGONAL), DensePrecision(seen + torch.diag(DIAGONAL))
    return kernel + DENSE, DensePrecision(seen + DENSE.to_dense())


@pytest.mark.parametrize("count", [1, 5, 12])
@pytest.mark.parametrize("prior", ["constant", "diagonal", "dense"])
def test_every_verb(count: int, prior: str) -> None:
    ours, dense = pair(count, prior)
    assert isinstance(ours, Precision)
    v = normal(DIM, 2, seed=5)
    for verb in ("logdet", "diagonal", "marginal_variance", "to_dense"):
        torch.testing.assert_close(getattr(ours, verb)(), getattr(dense, verb)(), **CLOSE)
    for verb in ("multiply", "solve"):
        for argument in (v, v[:, 0]):
            torch.testing.assert_close(getattr(ours, verb)(argument), getattr(dense, verb)(argument), **CLOSE)
    for verb in ("covariance_of", "variance_of"):
        torch.testing.assert_close(getattr(ours, verb)(TAPE), getattr(dense, verb)(TAPE), **CLOSE)
    assert ours.sqrt_solve(v[:, 0]).shape == (DIM,)
    root = ours.sqrt_solve(torch.eye(DIM).double())
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(dense.to_dense()), **CLOSE)
    for change in (lambda a: a.scaled(3.0), lambda a: a.add_diagonal(DIAGONAL), lambda a: a.add_diagonal(0.3)):
        torch.testing.assert_close(change(ours).to_dense(), change(dense).to_dense(), **CLOSE)
        torch.testing.assert_close(change(ours).solve(v), change(dense).solve(v), **CLOSE)
    torch.testing.assert_close(ours.add_diagonal(0.3).logdet(), dense.add_diagonal(0.3).logdet(), **CLOSE)
    added = DiagonalPrecision(DIAGONAL) if prior != "dense" else DENSE
    torch.testing.assert_close((ours + added).to_dense(), dense.to_dense() + added.to_dense(), **CLOSE)


@pytest.mark.parametrize("shape", [(), (DIM,)])
def test_the_determinant_is_differentiable_in_prior_and_factor(shape: tuple[int, ...]) -> None:
    u = rows_of(5)

    def slopes(curvature: Precision) -> tuple[Tensor, ...]:
        prior = (0.5 + normal(DIM, seed=9).square()).mean().expand(shape).clone().requires_grad_()
        factor = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(curvature.scaled(factor).add_diagonal(prior).logdet(), (prior, factor))

    dense = DensePrecision(u.mT @ u, semidefinite=True)
    torch.testing.assert_close(slopes(KernelPrecision(KernelRows(u))), slopes(dense), **CLOSE)


@pytest.mark.parametrize("weak", [1e-6, 1e-12])
def test_a_variance_that_is_almost_all_explained_keeps_its_digits(weak: float) -> None:
    """At the row u itself J A⁻¹ Jᵀ = k/(1 + k): as k − k²/(1 + k) it would be rounding for k = 10¹²."""
    u = normal(1, DIM, seed=4)
    precision = KernelPrecision(KernelRows(u)).add_diagonal(weak)
    k = u.square().sum() / weak
    variance = precision.variance_of(DenseTape(u[None]))[0, 0]
    torch.testing.assert_close(variance, k / (1 + k), rtol=1e-9 if weak == 1e-6 else 1e-5, atol=0.0)


def test_a_curvature_without_its_prior_is_singular() -> None:
    curvature = KernelPrecision(KernelRows(rows_of(3)))
    torch.testing.assert_close(curvature.to_dense(), rows_of(3).mT @ rows_of(3), **CLOSE)
    torch.testing.assert_close(curvature.diagonal(), rows_of(3).square().sum(0), **CLOSE)
    with pytest.raises(NotPositiveDefiniteError, match="prior"):
        curvature.logdet()


def test_a_kernel_that_is_no_number_is_refused() -> None:
    precision = KernelPrecision(KernelRows(torch.full((2, DIM), 1e300, dtype=torch.float64))).add_diagonal(1e-300)
    with pytest.raises(NotPositiveDefiniteError, match="kernel"):
        precision.logdet()
