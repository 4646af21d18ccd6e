"""The largest eigenvalues of a curvature and their eigenvectors, from its products with vectors alone.

A block Lanczos iteration (Golub & Underwood 1977) from a random block, with full reorthogonalisation and thick restarts
(Wu & Simon 2000): each pass over the data multiplies one block of vectors. For orthonormal columns B that hold all
earlier blocks, G B = B T + Q R [0 … 0 I] with the next block Q ⊥ B, so that a Ritz pair (θ, B s) of T = Bᵀ G B leaves
the residual ‖R s_last‖, and G has an eigenvalue within it of θ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError
from bayescope.precision import LowRankPrecision

# Columns beyond the wanted rank: they speed up the last wanted ones (Halko, Martinsson & Tropp 2011, section 4.3).
OVERSAMPLING = 10
# The width of a block where a tolerance, not a rank, is given.
TOLERANCE_BLOCK = 32
# A Ritz pair has settled when its residual falls below this share of the largest eigenvalue. Eigenvalues are then right
# to its square. By whether the passes are in float64: those in float32 leave 1e-6 of their own in each product.
SETTLED = {True: 1e-5, False: 1e-3}
# What is below this share of the largest eigenvalue is rounding: there the curvature has no rank left.
ROUNDING = 1e-12
# The basis is cut down to its leading Ritz vectors when it holds so many blocks.
BLOCKS = 8
PASSES = 100

Product = Callable[[Tensor], Tensor]
Draw = Callable[[int], Tensor]


def low_rank(
    product: Product, draw: Draw, dim: int, rank: int | None, tolerance: float | None, settled: float
) -> LowRankPrecision:
    """The leading part Σ_i λ_i v_i v_iᵀ of a positive semidefinite curvature G.

    Args:
        product: V ↦ G V for V of shape (P, R), float64: one pass over the data.
        draw: R ↦ random vectors (P, R), standard normal up to a factor, on the device that products are computed on.
        dim: P.
        rank: how many eigenvalues; from P on the result is exact. ``None`` where a tolerance is given.
        tolerance: the rank is the smallest after which the next eigenvalue is below this share of the largest.
        settled: the share of the largest eigenvalue that residuals have to fall below.

    Raises:
        ConvergenceError: if the eigenvalues have not settled after `PASSES` passes.
    """
    values, vectors = _leading(product, draw, dim, rank, tolerance, settled)
    kept = min(_wanted(values, rank, tolerance), int((values > ROUNDING * values[0]).sum()))
    # A copy of their own: a view would keep all that the iteration has found.
    return LowRankPrecision(vectors[:, :kept].contiguous(), values[:kept], 0.0)


def _leading(
    product: Product, draw: Draw, dim: int, rank: int | None, tolerance: float | None, settled: float
) -> tuple[Tensor, Tensor]:
    """Eigenvalues, decreasing, and vectors, the wanted ones among them.

    A block of R vectors sees no eigenvalue more than R times. Under a tolerance the block therefore grows, from what it
    has found, until it is wider than the rank.
    """
    width = TOLERANCE_BLOCK if rank is None else rank + OVERSAMPLING
    start = draw(min(width, dim))
    while width < dim:
        values, vectors = _iterate(product, start, rank, tolerance, settled)
        wanted = _wanted(values, rank, tolerance)
        if wanted < width:
            return values, vectors
        width = 2 * wanted
        start = torch.cat([vectors[:, :wanted], draw(wanted)], 1)
    return _exact(product, torch.eye(dim, dtype=torch.float64, device=start.device))


def _exact(product: Product, identity: Tensor) -> tuple[Tensor, Tensor]:
    matrix = product(identity)
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    return values.flip(0), vectors.flip(1)


def _iterate(
    product: Product, start: Tensor, rank: int | None, tolerance: float | None, settled: float
) -> tuple[Tensor, Tensor]:
    """Ritz values, decreasing, and vectors, of which the wanted ones have settled."""
    krylov = _Krylov(torch.linalg.qr(start).Q)
    watched, worst = 0, 0.0
    for _ in range(PASSES):
        values, residuals = krylov.extend(product)
        # By tolerance the value after the last wanted one has to be known too: it is what says that they are all.
        watched = _wanted(values, rank, tolerance) + (tolerance is not None)
        worst = float(residuals[:watched].max())
        if krylov.complete or (watched <= len(values) and worst <= settled * float(values[0])):
            return values, krylov.ritz_vectors()
        krylov.restart(keep=watched + OVERSAMPLING)
    raise ConvergenceError(
        f"low_rank: the leading {watched} eigenvalues have not settled after {PASSES} passes over the data: a residual "
        f"of {worst:.2g} is left. Ask for a smaller rank or a larger tolerance."
    )


def _wanted(values: Tensor, rank: int | None, tolerance: float | None) -> int:
    above = len(values) if tolerance is None else int((values >= tolerance * values[0]).sum())
    return above if rank is None else min(rank, above)


@final
class _Krylov:
    """The basis B, T = Bᵀ G B and the next block of the iteration.

    Args:
        start: the first block, orthonormal columns, shape (P, R).
    """

    def __init__(self, start: Tensor) -> None:
        self._width = start.shape[1]
        self._basis = start[:, :0]
        self._matrix = start.new_zeros(0, 0)
        self._next = start
        self._values, self._rotation = start.new_zeros(0), start.new_zeros(0, 0)

    @property
    def complete(self) -> bool:
        """Whether the basis holds an invariant space: nothing is left of G outside that a product can reach."""
        return self._next.shape[1] == 0

    def extend(self, product: Product) -> tuple[Tensor, Tensor]:
        """Multiplies the next block; returns the Ritz values, decreasing, and the norms of their residuals."""
        block = self._next
        image = product(block)
        self._basis = torch.cat([self._basis, block], 1)
        coupling = self._basis.mT @ image
        old = self._matrix.shape[0]
        matrix = block.new_zeros(self._basis.shape[1], self._basis.shape[1])
        matrix[:old, :old] = self._matrix
        matrix[:, old:], matrix[old:, :old] = coupling, coupling[:old].mT
        matrix[old:, old:] = 0.5 * (coupling[old:] + coupling[old:].mT)
        self._matrix = matrix
        values, rotation = torch.linalg.eigh(matrix)
        self._values, self._rotation = values.flip(0), rotation.flip(1)
        rest = image - self._basis @ coupling
        rest -= self._basis @ (self._basis.mT @ rest)  # what cancels leaves rounding along the basis
        fresh, scale = _orthonormal(rest, float(values.abs().max()))
        fresh = fresh - self._basis @ (self._basis.mT @ fresh)  # and what was small has now grown to norm 1
        self._next = torch.linalg.qr(fresh).Q[:, : self._basis.shape[0] - self._basis.shape[1]]
        return self._values, torch.linalg.vector_norm(scale @ self._rotation[old:], dim=0)

    def ritz_vectors(self) -> Tensor:
        """The Ritz vectors, those of the largest values first, shape (P, columns of B)."""
        return self._basis @ self._rotation

    def restart(self, keep: int) -> None:
        """Cuts a basis that has grown too wide down to its leading Ritz vectors, in which T is diagonal."""
        if self._basis.shape[1] < max(BLOCKS * self._width, 2 * keep):
            return
        self._basis = self._basis @ self._rotation[:, :keep]
        self._matrix = torch.diag(self._values[:keep])


def _orthonormal(rest: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Q of orthonormal columns and R with Q R = rest, the directions of rounding (below ``size`` × 1e-12) left out."""
    q, r = torch.linalg.qr(rest)
    u, s, vt = torch.linalg.svd(r)
    kept = s > ROUNDING * size
    return q @ u[:, kept], s[kept, None] * vt[kept]
