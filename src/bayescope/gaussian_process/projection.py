"""The curvature seen from a few rows, drawn or chosen: Nyström features and inducing points."""

from __future__ import annotations

import torch
from torch import Tensor

from bayescope.gaussian_process.data import TrainingData
from bayescope.gaussian_process.rows import KernelRows
from bayescope.precision import LowRankPrecision
from bayescope.tape import Tape

# Directions of the rows whose prior variance is below this share of the largest: they are rounding.
ROUNDING = 1e-11


def project(rows: KernelRows, data: TrainingData, prior: Tensor) -> tuple[LowRankPrecision, Tensor]:
    """The curvature H = UᵀU of all the data on the span of a few rows Z, H̃ = ΠᵀHΠ, read in one pass.

    In whitened weights P₀^{½}θ, Π projects orthogonally onto the span of Z P₀^{−½}. With G = Z P₀⁻¹ Zᵀ = X⁻ᵀX⁻¹ and
    V = P₀⁻¹ZᵀX, whose columns are orthonormal there, H̃ = P₀ V M Vᵀ P₀ with M = Σ φφᵀ over all rows of U and their
    features φ = Vᵀu: the Gaussian process with the Nyström kernel φᵀφ′ in place of k (Deng, Zhou and Zhu 2022).
    Outside the span, where the Nyström kernel has no variance at all, A = H̃ + P₀ keeps the prior's: that makes it
    the variational posterior with inducing variables at Z (Titsias 2009; Ortega et al. 2024).

    Args:
        rows: Z.
        data: where H is read from.
        prior: the diagonal of P₀, shape (P,).

    Returns:
        H̃, without its prior, and the diagonal of H − H̃, shape (P,).
    """
    values, vectors = torch.linalg.eigh(rows.kernel(prior.reciprocal()))
    kept = values > ROUNDING * values[-1]
    scaled = vectors[:, kept] * values[kept].rsqrt()  # X
    spanned = rows.transpose_multiply(scaled)  # P₀ V
    features = spanned / prior[:, None]
    moment = torch.zeros(len(scaled.mT), len(scaled.mT)).to(features)
    squares = torch.zeros_like(prior)

    def add(tape: Tape) -> None:
        phi = tape.multiply(features).to(torch.float64).flatten(0, 1)
        moment.addmm_(phi.mT, phi)
        squares.add_(tape.squares())

    data.run(add)
    curvature, rotation = torch.linalg.eigh(moment)
    turned = spanned @ rotation
    return LowRankPrecision(turned, curvature), squares - (turned.square() * curvature).sum(1)


def greedy_points(rows: KernelRows, cotangents: int, prior: Tensor, points: int) -> Tensor:
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
        at = slice(place * cotangents, (place + 1) * cotangents)
        columns = rows.multiply(rows.take(at).mT * inverse[:, None]) - factor @ factor[at].mT
        values, vectors = torch.linalg.eigh(0.5 * (columns[at] + columns[at].mT))
        kept = values > rounding / len(values)
        fresh = columns @ (vectors[:, kept] * values[kept].rsqrt())
        factor = torch.cat([factor, fresh], 1)
        left = (left - fresh.square().sum(1).unflatten(0, (-1, cotangents))).clamp_min(0.0)  # rounding below it
    return torch.tensor(sorted(chosen), dtype=torch.int64)
