"""Inducing points: the rows of the data that leave least of the curvature unseen, chosen one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from bayescope.gaussian_process.rows import Rows


def greedy_points(rows: Rows, cotangents: int, prior: Tensor, points: int) -> Tensor:
    """The places of inputs, each the one that leaves most of tr(P₀⁻¹(H − H̃)) after those before it.

    A pivoted Cholesky factorisation of K = U P₀⁻¹ Uᵀ in blocks of an input's rows: its diagonal is what the trace in
    the evidence bound is a sum of (Burt, Rasmussen and van der Wilk 2020, "Convergence of sparse variational inference
    in Gaussian processes regression"). It takes a product with U for each point, and no other kernel.

    Args:
        rows: U of the candidates, shape (N K, P), the rows of an input side by side.
        cotangents: K.
        prior: the diagonal of P₀, shape (P,).
        points: how many, at most N.

    Returns:
        int64, sorted; fewer where nothing is left.
    """
    inverse = prior.reciprocal()
    left = rows.norms(inverse).unflatten(0, (-1, cotangents))
    rounding = torch.finfo(torch.float64).eps * float(left.sum())
    factor = left.new_zeros(rows.count, 0)
    chosen: list[int] = []
    for _ in range(points):
        place = int(left.sum(1).argmax())
        if float(left[place].sum()) <= rounding:
            break
        chosen.append(place)
        own = slice(place * cotangents, (place + 1) * cotangents)
        columns = rows.multiply(rows.take(own).mT * inverse[:, None]) - factor @ factor[own].mT
        values, vectors = torch.linalg.eigh(0.5 * (columns[own] + columns[own].mT))
        kept = values > rounding / len(values)
        fresh = columns @ (vectors[:, kept] * values[kept].rsqrt())
        factor = torch.cat([factor, fresh], 1)
        left = (left - fresh.square().sum(1).unflatten(0, (-1, cotangents))).clamp_min(0.0)  # rounding below it
    return torch.tensor(sorted(chosen), dtype=torch.int64)
