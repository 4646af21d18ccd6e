"""A diagonal plus a low rank as the covariance: what variational families and averages over a trajectory give."""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision.precision import Precision, not_positive, refuse_not_finite
from bayescope.storage import stored
from bayescope.tape import Tape


@stored("low_rank_covariance", parts={"_variances": Tensor, "_factor": Tensor, "_name": str}, kept=("_whitened",))
@final
class LowRankCovariance(Precision):
    """The precision A = Σ⁻¹ of a covariance Σ = diag(s) + L Lᵀ, in float64; nothing of shape P×P is built.

    What asks for Σ alone (`solve`, `sqrt_solve`, `covariance_of`, `variance_of`, `marginal_variance`) reads it off s
    and L, where s may have zeros: a weight that never moves, or one that is an exact function of others. What asks for
    A itself (`multiply`, `logdet`, `diagonal`, `to_dense`) needs s > 0: with W = S^{−½} L and I + WᵀW = C Cᵀ,

        A = S^{−½} (I − W C⁻ᵀ C⁻¹ Wᵀ) S^{−½},   log∣A∣ = −Σ log s − 2 Σ log C_ii   (Woodbury).

    Args:
        variances: s, shape (P,), not below 0.
        factor: L, shape (P, r).
        name: what the matrix is, for messages.

    Raises:
        InputError: if the shapes do not fit.
        NotPositiveDefiniteError: if a variance is below 0, or an entry is not finite.
    """

    def __init__(self, variances: Tensor, factor: Tensor, *, name: str = "the covariance") -> None:
        if factor.ndim != 2 or variances.shape != factor.shape[:1]:
            raise InputError(
                f"{name}: expected variances (P,) and a factor (P, r), got {tuple(variances.shape)} and "
                f"{tuple(factor.shape)}."
            )
        self._variances, self._factor = variances.to(torch.float64), factor.to(torch.float64)
        self._name = name
        refuse_not_finite(name, self._variances, self._factor)
        if (self._variances < 0).any():
            raise not_positive(name, self._variances, "variances of 0 or more")

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._factor.shape[0]

    @property
    def rank(self) -> int:
        """r, the number of columns of L."""
        return self._factor.shape[1]

    def add_diagonal(self, diagonal: Tensor | float) -> LowRankCovariance:
        """A + diag(d) for d a scalar or of shape (P,).

        With T = diag(1 / (1 + s d)), (A + D)⁻¹ = S T + T L (I + Lᵀ D T L)⁻¹ Lᵀ T (Woodbury twice): no entry is divided
        by s, so that a weight of variance 0 keeps it.

        Raises:
            NotPositiveDefiniteError: if d is so far below 0 that A + diag(d) is not positive definite.
        """
        d = torch.as_tensor(diagonal, dtype=torch.float64, device=self._factor.device).expand(self.dim)
        shrunk = 1 + self._variances * d
        if not (shrunk > 0).all():
            raise NotPositiveDefiniteError(
                f"{self._name}: expected a precision that stays positive with {float(d.min()):.6g} added to its "
                "diagonal, got one that does not. Add less of a negative number."
            )
        turned = self._factor / shrunk[:, None]
        inner = self._identity() + self._factor.mT @ (d[:, None] * turned)
        lower, info = torch.linalg.cholesky_ex(inner)
        if int(info) or not torch.isfinite(lower).all():
            raise NotPositiveDefiniteError(
                f"{self._name}: expected a precision that is positive definite with the diagonal that was added, got "
                "one that is not. Add finite numbers that are not below 0."
            )
        factor = torch.linalg.solve_triangular(lower, turned.mT, upper=False).mT
        return LowRankCovariance(self._variances / shrunk, factor, name=self._name)

    def _check_stored(self) -> None:
        LowRankCovariance(self._variances, self._factor)

    def scaled(self, factor: Tensor | float) -> LowRankCovariance:
        """c A for a positive number c: the covariance is Σ / c."""
        return LowRankCovariance(self._variances / factor, self._factor / factor**0.5, name=self._name)

    def logdet(self) -> Tensor:
        """log∣A∣ = −Σ log s − 2 Σ log C_ii."""
        return -2.0 * self._whitened[1].diagonal().log().sum() - self._variances.log().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        whitened, lower = self._whitened
        root = self._variances.rsqrt()[:, None]
        x = root * v.reshape(self.dim, -1)
        return (root * (x - whitened @ torch.cholesky_solve(whitened.mT @ x, lower))).reshape(v.shape)

    def solve(self, b: Tensor) -> Tensor:
        """Σ b for b of shape (P,) or (P, K)."""
        columns = b.reshape(self.dim, -1)
        return (self._variances[:, None] * columns + self._factor @ (self._factor.mT @ columns)).reshape(b.shape)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z with R Rᵀ = Σ, for z of shape (P,) or (P, K): as many random numbers as weights.

        Where s > 0, R = S^{½} (I + W (I + C)⁻¹ Wᵀ), since with Y = (I + C)⁻¹ the product of the bracket with its
        transpose is I + W (Y + Yᵀ + Y WᵀW Yᵀ) Wᵀ, and Y⁻¹ + Y⁻ᵀ + WᵀW = 2I + C + Cᵀ + (C Cᵀ − I) = Y⁻¹ Y⁻ᵀ.

        The numbers that belong to zeros of s take the directions of L that those weights lie in: with Q₁ spanning the
        rows of L there and Q₂ the rest, L Lᵀ = (L Q₁)(L Q₁)ᵀ + (L Q₂)(L Q₂)ᵀ, and L Q₂ is 0 for those weights.
        """
        noise = z.reshape(self.dim, -1)
        moving = self._variances > 0
        if moving.all():
            return self._rooted(noise).reshape(z.shape)
        basis, _ = torch.linalg.qr(self._factor[~moving].mT, mode="complete")
        along, beside = basis.split([taken := min(int((~moving).sum()), self.rank), self.rank - taken], dim=1)
        rest = LowRankCovariance(self._variances[moving], self._factor[moving] @ beside, name=self._name)
        return (
            ((self._factor @ along) @ noise[~moving][:taken])
            .index_add(0, torch.nonzero(moving).flatten(), rest._rooted(noise[moving]))
            .reshape(z.shape)
        )

    def covariance_of(self, tape: Tape) -> Tensor:
        """J Σ Jᵀ per row, shape (N, K, K): J S Jᵀ + (J L)(J L)ᵀ, from the tape."""
        along = tape.multiply(self._factor).to(torch.float64)
        return tape.gram(self._variances).to(torch.float64) + along @ along.mT

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        along = tape.multiply(self._factor).to(torch.float64)
        return tape.norms(self._variances).to(torch.float64) + along.square().sum(-1)

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        whitened, lower = self._whitened
        explained = torch.linalg.solve_triangular(lower, whitened.mT, upper=False).square().sum(0)
        return (1 - explained) / self._variances

    def marginal_variance(self) -> Tensor:
        """The diagonal of Σ, shape (P,)."""
        return self._variances + self._factor.square().sum(1)

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        return self.multiply(torch.eye(self.dim, dtype=torch.float64, device=self._factor.device))

    @cached_property
    def _whitened(self) -> tuple[Tensor, Tensor]:
        """W and C; C by the triangle of [I; W], which squares nothing: WᵀW would lose what lies under its largest."""
        if (self._variances == 0).any():
            raise not_positive(
                self._name, self._variances, "positive variances beside the low rank, to have an inverse"
            )
        whitened = self._variances.rsqrt()[:, None] * self._factor
        _, upper = torch.linalg.qr(torch.cat([self._identity(), whitened]))
        return whitened, (upper * upper.diagonal().detach().sign()[:, None]).mT

    def _rooted(self, z: Tensor) -> Tensor:
        """S^{½} (I + W (I + C)⁻¹ Wᵀ) z for z of shape (P, K)."""
        whitened, lower = self._whitened
        inner = torch.linalg.solve_triangular(lower + self._identity(), whitened.mT @ z, upper=False)
        return self._variances.sqrt()[:, None] * (z + whitened @ inner)

    def _identity(self) -> Tensor:
        return torch.eye(self.rank, dtype=torch.float64, device=self._factor.device)
