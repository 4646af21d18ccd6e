"""Block conjugate gradients: A X = B for many right-hand sides at once, from products with A alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError

Product = Callable[[Tensor], Tensor]

# Directions of the residual below this share of the largest are rounding, and leave the block.
ROUNDING = 1e-14


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """X with A X ≈ B.

    Attributes:
        x: X, shape (P, S).
        product: A X as it was computed in the end, shape (P, S).
        residual: the largest ‖b − A x‖ / ‖b‖ over the columns, from that product; norms are ‖r‖² = rᵀM⁻¹r.
        iterations: how many products with A it took, beside those that check the residual.
        trace: after each product, the residual as the recurrence has it.
    """

    x: Tensor
    product: Tensor
    residual: float
    iterations: int
    trace: tuple[float, ...]


def block_conjugate_gradients(
    product: Product, precondition: Product, b: Tensor, *, tolerance: float, iterations: int
) -> Solution:
    """Solves A X = B for a symmetric positive definite A by block conjugate gradients.

    The residuals R = Q δ are held with Q orthonormal in the inner product of M⁻¹, the preconditioner, so that nothing
    degenerates when right-hand sides converge at different times (O'Leary 1980; Dubrulle 2001, "Retooling the method of
    block conjugate gradients", algorithm BCGrQ): with D = M⁻¹Q at first,

        ξ = (DᵀAD)⁻¹,  X ← X + D ξ δ,  Q′ τ = Q − A D ξ,  D ← M⁻¹Q′ + D τᵀ,  δ ← τ δ.

    Args:
        product: V ↦ A V, shape (P, R) to (P, R).
        precondition: V ↦ M⁻¹ V, with M symmetric positive definite and close to A.
        b: B, shape (P, S).
        tolerance: on ‖r‖/‖b‖ of every column, in the norm of M⁻¹.
        iterations: the most products with A.

    Raises:
        ConvergenceError: if the tolerance is not reached.
    """
    norms = _norms(b, precondition)
    scale = torch.where(norms > 0, norms, 1.0)
    x, rest = torch.zeros_like(b), b / scale
    image = torch.zeros_like(b)
    residual, trace = 1.0, list[float]()
    while residual > tolerance and len(trace) < iterations:
        # The recurrence drifts from the true residual by rounding, that of the products above all: what is left is
        # solved for anew, for as long as that helps.
        before = residual
        run = _Run(product, precondition, rest, tolerance)
        x = x + run.to(iterations - len(trace), trace)
        image = product(x)
        rest = b / scale - image
        residual = float(_norms(rest, precondition).max())
        if not residual <= 0.5 * before:
            break
    if not residual <= tolerance:
        raise ConvergenceError(
            f"conjugate gradients: expected a residual of at most {tolerance:.2g} of the right-hand side, got "
            f"{residual:.2g} after {len(trace)} passes over the data. Allow a larger tolerance, give a larger prior "
            "precision, or read the network in float64."
        )
    return Solution(x * norms, image * norms, residual, len(trace), tuple(trace))


@final
class _Run:
    """The iteration from X = 0, for columns of at most unit length.

    Args:
        product: V ↦ A V.
        precondition: V ↦ M⁻¹ V.
        b: B.
        tolerance: the length that no column of the residual may exceed.
    """

    def __init__(self, product: Product, precondition: Product, b: Tensor, tolerance: float) -> None:
        self._product, self._precondition, self._tolerance = product, precondition, tolerance
        self._x = torch.zeros_like(b)
        self._q, self._delta, self._direction = _orthonormal(b, precondition)

    def to(self, iterations: int, trace: list[float]) -> Tensor:
        """X after the tolerance is met or so many products; the residual after each is added to the trace."""
        for _ in range(iterations):
            trace.append(self._step())
            if trace[-1] <= self._tolerance:
                break
        return self._x

    def _step(self) -> float:
        moved = self._product(self._direction)
        factor = torch.linalg.cholesky(_symmetric(self._direction.mT @ moved))
        self._x = self._x + self._direction @ torch.cholesky_solve(self._delta, factor)
        turned = torch.linalg.solve_triangular(factor, moved.mT, upper=False).mT  # A D L⁻ᵀ, and ξ = L⁻ᵀL⁻¹
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
        self._q, tau, image = _orthonormal(self._q - turned @ inverse, self._precondition)
        self._direction = image + self._direction @ tau.mT
        self._delta = tau @ self._delta
        return float(self._delta.square().sum(0).sqrt().max())


def _orthonormal(r: Tensor, precondition: Product) -> tuple[Tensor, Tensor, Tensor]:
    """Q, δ and M⁻¹Q with Q δ = R and QᵀM⁻¹Q = I; directions of rounding are left out."""
    image = precondition(r)
    values, vectors = torch.linalg.eigh(_symmetric(r.mT @ image))
    kept = values > ROUNDING * values[-1:].clamp_min(torch.finfo(r.dtype).tiny)
    root, vectors = values[kept].sqrt(), vectors[:, kept]
    q, image = r @ (vectors / root), image @ (vectors / root)
    # Once more: what was far smaller than the rest is orthogonal to it only up to the rounding of the rest.
    again = torch.linalg.cholesky(_symmetric(q.mT @ image))
    turned = [torch.linalg.solve_triangular(again, part.mT, upper=False).mT for part in (q, image)]
    return turned[0], again.mT @ (root[:, None] * vectors.mT), turned[1]


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)


def _norms(r: Tensor, precondition: Product) -> Tensor:
    """The preconditioned norm √(rᵀM⁻¹r) of each column of residuals."""
    return (r * precondition(r)).sum(0).clamp_min(0.0).sqrt()
