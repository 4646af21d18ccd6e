"""Block conjugate gradients against direct solves, on right-hand sides that are hard in some way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayescope.errors import ConvergenceError
from bayescope.laplace import Solution, block_conjugate_gradients
from tests.laplace.problems import normal

DIM = 60


def matrix(condition: float) -> Tensor:
    basis = torch.linalg.qr(normal(DIM, DIM, seed=1)).Q
    return basis @ torch.diag(torch.logspace(0.0, torch.tensor(condition).log10(), DIM).double()) @ basis.mT


def solved(a: Tensor, b: Tensor, *, tolerance: float = 1e-10, m: Tensor | None = None, most: int = 200) -> Solution:
    m = torch.eye(DIM).double() if m is None else m
    return block_conjugate_gradients(
        lambda v: a @ v, lambda v: torch.linalg.solve(m, v), b, tolerance=tolerance, iterations=most
    )


@pytest.mark.parametrize(
    ("condition", "columns"), [(1.0, 1), (1e2, 1), (1e2, 7), (1e5, 7), (1e5, DIM), (1e5, DIM + 20)]
)
def test_the_solution_of_the_system(condition: float, columns: int) -> None:
    a, b = matrix(condition), normal(DIM, columns, seed=2)
    solution = solved(a, b)
    torch.testing.assert_close(solution.x, torch.linalg.solve(a, b), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(solution.product, a @ solution.x, rtol=1e-12, atol=1e-9)
    norms = torch.linalg.vector_norm(b - a @ solution.x, dim=0) / torch.linalg.vector_norm(b, dim=0)
    assert solution.residual == pytest.approx(float(norms.max()), abs=1e-11)
    assert solution.residual <= 1e-10
    assert len(solution.trace) == solution.iterations


def test_columns_share_what_they_find() -> None:
    """Alone each column sees one direction a product; together they see as many as there are columns."""
    a, b = matrix(1e3), normal(DIM, 20, seed=3)
    alone, together = solved(a, b[:, :1]).iterations, solved(a, b).iterations
    assert together <= DIM // 20 + 2
    assert alone > 5 * together


def test_a_preconditioner_that_is_the_matrix_needs_one_product() -> None:
    a, b = matrix(1e6), normal(DIM, 5, seed=4)
    assert solved(a, b, m=a).iterations == 1
    torch.testing.assert_close(solved(a, b, m=matrix(1e6) + 0.1 * a.diag().diag()).x, torch.linalg.solve(a, b))


def test_columns_that_are_alike_zero_or_of_other_sizes() -> None:
    a, b = matrix(1e3), normal(DIM, 6, seed=5)
    b[:, 1] = b[:, 0]
    b[:, 2] = 0.0
    b[:, 3] *= 1e-12
    b[:, 4] = b[:, 0] + 1e-9 * b[:, 5]
    solution = solved(a, b)
    exact = torch.linalg.solve(a, b)
    scale = torch.linalg.vector_norm(exact, dim=0).clamp_min(1e-300)
    assert (torch.linalg.vector_norm(solution.x - exact, dim=0) / scale).max() < 1e-8
    assert torch.equal(solution.x[:, 2], torch.zeros(DIM).double())


def test_the_residual_is_that_of_the_answer_not_of_the_recurrence() -> None:
    """Products in single precision: the recurrence would go on to 1e-12, the answer cannot."""
    condition = 1e2
    a, b = matrix(condition), normal(DIM, 3, seed=6)

    def single(v: Tensor) -> Tensor:
        return (a.float() @ v.float()).double()

    def run(tolerance: float) -> Solution:
        return block_conjugate_gradients(single, lambda v: v, b, tolerance=tolerance, iterations=200)

    # A product is right to ε‖A‖‖x‖, and ‖A‖‖x‖ is up to the condition times ‖b‖.
    reachable = 8 * torch.finfo(torch.float32).eps * condition
    assert run(reachable).residual <= reachable
    with pytest.raises(ConvergenceError, match=r"residual of at most 1e-12"):
        run(1e-12)


def test_too_few_passes_are_loud() -> None:
    a, b = matrix(1e6), normal(DIM, 2, seed=7)
    with pytest.raises(ConvergenceError, match="after 3 passes"):
        solved(a, b, most=3)
