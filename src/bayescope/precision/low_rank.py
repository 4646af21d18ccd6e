"""A low rank plus a diagonal: a few directions that the data determine, and the prior in all the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError, NotPositiveDefiniteError
from bayescope.precision.diagonals import diagonal_times, not_positive, refuse_not_finite
from bayescope.precision.precision import Precision
from bayescope.precision.state import State
from bayescope.storage import stored
from bayescope.tape import Tape

# A variance is the prior's less what the data determine. Where less than this share of it is left, the difference of
# two numbers in the tape's dtype keeps too few digits: fewer than eight of float64's, fewer than three of float32's.
SHARE = {torch.float64: 1e-8, torch.float32: 1e-4}


@stored("whitened_precision")
@final
@dataclass(frozen=True, eq=False)
class WhitenedPrecision:
    """A = D^{½} (I + U diag(m) Uᵀ) D^{½}, with U orthonormal.

    Attributes:
        vectors: U, shape (P, r).
        values: m, shape (r,), all above −1.
        diagonal: d, shape (P,), or (1,) where it is constant.
    """

    vectors: Tensor
    values: Tensor
    diagonal: Tensor


@stored(
    "low_rank_precision",
    parts={"_vectors": Tensor, "_values": Tensor, "_diagonal": Tensor, "_name": str},
    kept=("_eigen", "_whitened"),
)
@final
class LowRankPrecision:
    """A = V diag(λ) Vᵀ + diag(d), in float64; nothing of shape P×P is built.

    With D = diag(d) and the eigenvectors U of D^{−½} V diag(λ) Vᵀ D^{−½} = U diag(m) Uᵀ,
    A⁻¹ = D^{−½} (I − U diag(m / (1 + m)) Uᵀ) D^{−½} and log∣A∣ = Σ log d + Σ log(1 + m) (Woodbury). For a constant
    diagonal, U are eigenvectors of V diag(λ) Vᵀ, found once, and m = μ/d.

    Args:
        vectors: V, shape (P, r); they need not be orthonormal.
        values: λ, shape (r,).
        diagonal: d, one number or shape (P,); 0 for a curvature without its prior.
        name: what the matrix is, for messages.

    Raises:
        InputError: if the shapes do not fit.
    """

    def __init__(
        self, vectors: Tensor, values: Tensor, diagonal: Tensor | float = 0.0, *, name: str = "the precision"
    ) -> None:
        d = torch.as_tensor(diagonal, dtype=torch.float64, device=vectors.device)
        d = d.reshape(1) if d.ndim == 0 else d
        if vectors.ndim != 2 or values.shape != vectors.shape[1:] or d.shape not in {(1,), vectors.shape[:1]}:
            raise InputError(
                f"{name}: expected vectors (P, r), values (r,) and a diagonal of one number or (P,), got "
                f"{tuple(vectors.shape)}, {tuple(values.shape)} and {tuple(d.shape)}."
            )
        self._vectors, self._values = vectors.to(torch.float64), values.to(torch.float64)
        self._diagonal, self._name = d, name

    @classmethod
    def from_whitened(
        cls, vectors: Tensor, values: Tensor, diagonal: Tensor, *, name: str = "the precision"
    ) -> LowRankPrecision:
        """A = D^{½} (I + U diag(m) Uᵀ) D^{½} for orthonormal U, shape (P, r), m > −1 and D = diag(d), shape (P,)."""
        precision = cls(diagonal_times(diagonal.sqrt(), vectors), values, diagonal, name=name)
        precision._whitened = WhitenedPrecision(vectors, values, diagonal)
        return precision

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._vectors.shape[0]

    @property
    def rank(self) -> int:
        """r, the number of vectors."""
        return self._vectors.shape[1]

    def add_diagonal(self, diagonal: Tensor | float) -> LowRankPrecision:
        """A + diag(e) for e a scalar or of shape (P,)."""
        added = self._diagonal + torch.as_tensor(diagonal, dtype=torch.float64, device=self._diagonal.device)
        precision = LowRankPrecision(self._vectors, self._values, added, name=self._name)
        precision._eigen = self._eigen  # of the part that does not change
        return precision

    def _check_stored(self) -> None:
        LowRankPrecision(self._vectors, self._values, self._diagonal)

    def scaled(self, factor: Tensor | float) -> LowRankPrecision:
        """c A for a positive number c: c λ and c d."""
        precision = LowRankPrecision(self._vectors, self._values * factor, self._diagonal * factor, name=self._name)
        precision._eigen = (self._eigen[0], self._eigen[1] * factor)
        return precision

    def __add__(self, other: Precision) -> LowRankPrecision:
        """The sum of two: the ranks add up."""
        return LowRankPrecision.from_state(self.state() + other.state())

    def logdet(self) -> Tensor:
        """Σ log d + Σ log(1 + m). Differentiable in d."""
        w = self._whitened
        return w.diagonal.log().expand(self.dim).sum() + w.values.log1p().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._vectors @ diagonal_times(self._values, self._vectors.mT @ v) + diagonal_times(self._diagonal, v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        w = self._whitened
        root = w.diagonal.rsqrt()
        x = diagonal_times(root, b)
        return diagonal_times(root, x - w.vectors @ diagonal_times(w.values / (1 + w.values), w.vectors.mT @ x))

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """D^{−½} (I + U diag((1 + m)^{−½} − 1) Uᵀ) z for z of shape (P,) or (P, K)."""
        w = self._whitened
        coefficients = (1 + w.values).rsqrt() - 1
        return diagonal_times(w.diagonal.rsqrt(), z + w.vectors @ diagonal_times(coefficients, w.vectors.mT @ z))

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K): J D⁻¹ Jᵀ less what the data determine, from the tape.

        Where the difference would lose its digits, J is read a block of rows at a time, in float64.
        """
        w = self._whitened
        prior = _single(tape.gram((1 / w.diagonal).expand(self.dim)))
        along = tape.multiply(diagonal_times(w.diagonal.rsqrt(), w.vectors)).to(torch.float64)
        posterior = prior.to(torch.float64) - (along * (w.values / (1 + w.values))) @ along.mT
        if _keeps_digits(posterior.diagonal(dim1=-2, dim2=-1), prior.diagonal(dim1=-2, dim2=-1)):
            return posterior
        return torch.cat([outside @ outside.mT + inside @ inside.mT for outside, inside in self._split(tape)])

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        w = self._whitened
        prior = _single(tape.norms((1 / w.diagonal).expand(self.dim)))
        along = tape.multiply(diagonal_times(w.diagonal.rsqrt(), w.vectors)).to(torch.float64)
        posterior = prior.to(torch.float64) - along.square() @ (w.values / (1 + w.values))
        if _keeps_digits(posterior, prior):
            return posterior
        return torch.cat([o.square().sum(-1) + i.square().sum(-1) for o, i in self._split(tape)])

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._vectors.square() @ self._values + self._diagonal

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,): (1 − Σ_i u_pi² m_i/(1 + m_i)) / d_p."""
        w = self._whitened
        return (1 - w.vectors.square() @ (w.values / (1 + w.values))) / w.diagonal

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        return (self._vectors * self._values) @ self._vectors.mT + torch.diag(self._diagonal.expand(self.dim))

    def state(self) -> State:
        """The vectors and their values, which are put side by side."""
        stacked = {"vectors": self._vectors, "values": self._values}
        return State("low_rank", self._name, stacked=stacked, diagonal=self._diagonal)

    @classmethod
    def from_state(cls, state: State) -> LowRankPrecision:
        """The precision that a state was taken of."""
        diagonal = 0.0 if state.diagonal is None else state.diagonal
        return cls(state.stacked["vectors"], state.stacked["values"], diagonal, name=state.name)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvectors (P, min(P, r)) and eigenvalues of V diag(λ) Vᵀ."""
        return _eigen(self._vectors, self._values, self._name)

    @cached_property
    def _whitened(self) -> WhitenedPrecision:
        d = self._diagonal
        if not d.min() > 0:
            expected = "a positive diagonal beside the low rank"
            raise not_positive(self._name, d.expand(self.dim), expected, "Add a prior precision.")
        if d.shape == (1,):
            vectors, values = self._eigen[0], self._eigen[1] / d
        else:
            vectors, values = _eigen(diagonal_times(d.rsqrt(), self._eigen[0]), self._eigen[1], self._name)
        if values.numel() and not values.min() > -1:
            index = int(values.argmin())
            direction = d.rsqrt() * vectors[:, index].detach()
            smallest = float(1 + values[index])
            raise NotPositiveDefiniteError(
                f"{self._name}: expected a positive definite matrix, got the eigenvalue {smallest:.6g} relative to its "
                "diagonal. Raise the prior precision.",
                smallest,
                direction / direction.norm(),
            )
        return WhitenedPrecision(vectors, values, d)

    def _split(self, tape: Tape) -> Iterator[tuple[Tensor, Tensor]]:
        """Roots of the two parts of J A⁻¹ Jᵀ for blocks of rows: beside U (n, K, P), and along it (n, K, r)."""
        w = self._whitened
        for rows in tape.blocks():
            whitened = tape.jacobian(rows).to(torch.float64) * w.diagonal.rsqrt()
            along = whitened @ w.vectors
            yield whitened - along @ w.vectors.mT, along * (1 + w.values).rsqrt()


def _eigen(vectors: Tensor, values: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The eigenvectors and eigenvalues of V diag(λ) Vᵀ, by V = Q R and those of the small R diag(λ) Rᵀ."""
    refuse_not_finite(name, vectors, values)
    orthonormal, triangle = torch.linalg.qr(vectors)
    eigenvalues, rotation = torch.linalg.eigh((triangle * values) @ triangle.mT)
    return orthonormal @ rotation, eigenvalues


def _single(values: Tensor) -> Tensor:
    """At least in float32: under autocast a product comes in half precision, which none of these differences bears."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _keeps_digits(posterior: Tensor, prior: Tensor) -> bool:
    return bool((posterior >= SHARE[prior.dtype] * prior).all())
