"""The curvature seen from a few rows, drawn or chosen: Nyström features and inducing points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayescope.gaussian_process.data import TrainingData
from bayescope.gaussian_process.rows import KernelRows
from bayescope.laplace.fit import GivenNoise, GivenPrior, LaplaceFit
from bayescope.network.priors import prior_diagonal
from bayescope.precision import LowRankPrecision
from bayescope.priors import Prior
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


@final
@dataclass(frozen=True, eq=False)
class EvidenceBound:
    """A lower bound on Laplace's log evidence under the full GGN, from a projection of it.

    log∣I + K∣ ≤ log∣I + K̃∣ + tr(K − K̃) for K − K̃ ⪰ 0, so that (Titsias 2009, eq. 9, with the mean at the mode)

        log Z ≥ log Z̃ − ½ tr(P₀⁻¹(H − H̃)).

    Attributes:
        fit: of the projection, whose own log evidence log Z̃ is an upper bound.
        left_over: the diagonal of H − H̃, shape (P,).
    """

    fit: LaplaceFit
    left_over: Tensor

    def log_evidence(self, prior_precision: GivenPrior = None, noise_variance: GivenNoise = None) -> Tensor:
        """The bound, a float64 scalar; a bound for priors that are multiples of the fit's own, and else near one."""
        given = self.fit.prior.precision if prior_precision is None else prior_precision
        diagonal = given.precision if isinstance(given, Prior) else prior_diagonal(given, self.fit.function.weights)
        assert isinstance(diagonal, Tensor)
        trace = (self.left_over / diagonal.to(self.left_over)).sum()
        if noise_variance is not None:
            trace = trace * self.fit.noise_variance / torch.as_tensor(noise_variance, dtype=torch.float64)
        return self.fit.log_evidence(prior_precision, noise_variance) - 0.5 * trace


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
