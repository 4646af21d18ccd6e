"""A low rank plus a diagonal: a few directions that the data determine, and the prior in all the others.

The directions are those of a curvature's largest eigenvalues, found from its products with vectors alone:
a block Lanczos iteration (Golub & Underwood 1977) from a random block, with full reorthogonalisation and thick restarts
(Wu & Simon 2000): each pass over the data multiplies one block of vectors. For orthonormal columns B that hold all
earlier blocks, G B = B T + Q R [0 … 0 I] with the next block Q ⊥ B, so that a Ritz pair (θ, B s) of T = Bᵀ G B leaves
the residual ‖R s_last‖, and G has an eigenvalue within it of θ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from bayescope.errors import ConvergenceError, InputError, NotPositiveDefiniteError
from bayescope.precision.precision import Precision, diagonal_times, not_positive, refuse_not_finite
from bayescope.precision.structure import COPIES, FLOAT64, Bytes, Structure, StructureOptions, StructureReading
from bayescope.storage import stored
from bayescope.tape import Tape

# A variance is the prior's less what the data determine. Where less than this share of it is left, the difference of
# two numbers in the tape's dtype keeps too few digits: fewer than eight of float64's, fewer than three of float32's.
SHARE = {torch.float64: 1e-8, torch.float32: 1e-4}

# Columns beyond the wanted rank: they speed up the last wanted ones (Halko, Martinsson & Tropp 2011, section 4.3).
OVERSAMPLING = 10
# The width of a block where a cutoff, not a rank, is given.
CUTOFF_BLOCK = 32
# A Ritz pair has settled when its residual falls below this share of the largest eigenvalue. Eigenvalues are then right
# to its square. By whether the passes are in float64: those in float32 leave 1e-6 of their own in each product.
SETTLED = {True: 1e-5, False: 1e-3}
# What is below this share of the largest eigenvalue is rounding: there the curvature has no rank left.
ROUNDING = 1e-12
# The basis is cut down to its leading Ritz vectors when it holds this many blocks.
BLOCKS = 8
PASSES = 100


Product = Callable[[Tensor], Tensor]
Draw = Callable[[int], Tensor]


# A = D^{½} (I + U diag(m) Uᵀ) D^{½}, with U orthonormal: U of shape (P, r), m of shape (r,), all above −1, and the
# diagonal d of shape (P,), or (1,) where it is constant.
Whitened: TypeAlias = tuple[Tensor, Tensor, Tensor]


@stored(
    "low_rank_precision",
    parts={"_vectors": Tensor, "_values": Tensor, "_diagonal": Tensor, "_name": str},
    kept=("_eigen", "_whitened"),
)
@final
class LowRankPrecision(Precision):
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
        precision._whitened = (vectors, values, diagonal)
        return precision

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return self._vectors.shape[0]

    @property
    def vectors(self) -> Tensor:
        """The vectors that the low rank is made of, V of shape (P, r)."""
        return self._vectors

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

    def logdet(self) -> Tensor:
        """Σ log d + Σ log(1 + m). Differentiable in d."""
        _, values, d = self._whitened
        return d.log().expand(self.dim).sum() + values.log1p().sum()

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._vectors @ diagonal_times(self._values, self._vectors.mT @ v) + diagonal_times(self._diagonal, v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        vectors, values, d = self._whitened
        root = d.rsqrt()
        x = diagonal_times(root, b)
        return diagonal_times(root, x - vectors @ diagonal_times(values / (1 + values), vectors.mT @ x))

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """D^{−½} (I + U diag((1 + m)^{−½} − 1) Uᵀ) z for z of shape (P,) or (P, K)."""
        vectors, values, d = self._whitened
        coefficients = (1 + values).rsqrt() - 1
        return diagonal_times(d.rsqrt(), z + vectors @ diagonal_times(coefficients, vectors.mT @ z))

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ per row, shape (N, K, K): J D⁻¹ Jᵀ less what the data determine, from the tape.

        Where the difference would lose its digits, J is read a block of rows at a time, in float64.
        """
        vectors, values, d = self._whitened
        prior = _single(tape.gram((1 / d).expand(self.dim)))
        along = tape.multiply(diagonal_times(d.rsqrt(), vectors)).to(torch.float64)
        posterior = prior.to(torch.float64) - (along * (values / (1 + values))) @ along.mT
        if _keeps_digits(posterior.diagonal(dim1=-2, dim2=-1), prior.diagonal(dim1=-2, dim2=-1)):
            return posterior
        return torch.cat([outside @ outside.mT + inside @ inside.mT for outside, inside in self._split(tape)])

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        vectors, values, d = self._whitened
        prior = _single(tape.norms((1 / d).expand(self.dim)))
        along = tape.multiply(diagonal_times(d.rsqrt(), vectors)).to(torch.float64)
        posterior = prior.to(torch.float64) - along.square() @ (values / (1 + values))
        if _keeps_digits(posterior, prior):
            return posterior
        return torch.cat([o.square().sum(-1) + i.square().sum(-1) for o, i in self._split(tape)])

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._vectors.square() @ self._values + self._diagonal

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,): (1 − Σ_i u_pi² m_i/(1 + m_i)) / d_p."""
        vectors, values, d = self._whitened
        return (1 - vectors.square() @ (values / (1 + values))) / d

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        return (self._vectors * self._values) @ self._vectors.mT + torch.diag(self._diagonal.expand(self.dim))

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"low_rank: vectors of {self.dim} entries"

    def _plus(self, other: LowRankPrecision) -> LowRankPrecision:
        """The vectors of both side by side."""
        vectors, values = torch.cat([self._vectors, other._vectors], 1), torch.cat([self._values, other._values])
        return LowRankPrecision(vectors, values, self._diagonal + other._diagonal, name=self._name)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvectors (P, min(P, r)) and eigenvalues of V diag(λ) Vᵀ."""
        return _eigen(self._vectors, self._values, self._name)

    @cached_property
    def _whitened(self) -> Whitened:
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
        return vectors, values, d

    def _split(self, tape: Tape) -> Iterator[tuple[Tensor, Tensor]]:
        """Roots of the two parts of J A⁻¹ Jᵀ for blocks of rows: beside U (n, K, P), and along it (n, K, r)."""
        vectors, values, d = self._whitened
        for rows in tape.blocks():
            whitened = tape.jacobian(rows).to(torch.float64) * d.rsqrt()
            along = whitened @ vectors
            yield whitened - along @ vectors.mT, along * (1 + values).rsqrt()


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


@final
class ProductSum:
    """G V = Σ_n U_nᵀ (U_n V), for V of shape (P, R).

    Args:
        vectors: V.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._vectors = vectors
        self._total = torch.zeros_like(vectors)

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        self._total += tape.transpose_multiply(tape.multiply(self._vectors))

    def totals(self) -> list[Tensor]:
        return [self._total]

    def finish(self) -> Tensor:
        return self._total


@final
class LowRankGoal(NamedTuple):
    """Which eigenvalues are wanted, and when they are found.

    Attributes:
        rank: how many; from P on the result is exact. ``None`` where a cutoff is given.
        cutoff: the rank is the smallest after which the next eigenvalue is below this share of the largest.
        settled: the share of the largest eigenvalue that residuals have to fall below: see `SETTLED`.
        passes: over the data, at most.
    """

    rank: int | None
    cutoff: float | None
    settled: float = SETTLED[True]
    passes: int = PASSES

    def count(self, values: Tensor) -> int:
        """How many of the eigenvalues, which decrease, are wanted."""
        above = len(values) if self.cutoff is None else int((values >= self.cutoff * values[0]).sum())
        return above if self.rank is None else min(self.rank, above)


def leading_part(product: Product, draw: Draw, dim: int, goal: LowRankGoal) -> LowRankPrecision:
    """The leading part Σ_i λ_i v_i v_iᵀ of a positive semidefinite curvature G.

    A block of R vectors sees no eigenvalue more than R times. Under a cutoff the block therefore grows, from what it
    has found, until it is wider than the rank.

    Args:
        product: V ↦ G V for V of shape (P, R), float64: one pass over the data.
        draw: R ↦ random vectors (P, R), standard normal up to a factor, on the device that products are computed on.
        dim: P.
        goal: which eigenvalues are wanted.

    Raises:
        ConvergenceError: if the eigenvalues have not settled after the passes that the goal allows.
    """
    width = CUTOFF_BLOCK if goal.rank is None else goal.rank + OVERSAMPLING
    start = draw(min(width, dim))
    while True:
        if width < dim:
            values, vectors = _iterate(product, start, goal)
        else:
            matrix = product(torch.eye(dim, dtype=torch.float64, device=start.device))
            values, vectors = (each.flip(-1) for each in torch.linalg.eigh(0.5 * (matrix + matrix.mT)))
        if (wanted := goal.count(values)) < width or width >= dim:
            break
        width = 2 * wanted
        start = torch.cat([vectors[:, :wanted], draw(wanted)], 1)
    kept = min(wanted, int((values > ROUNDING * values[0]).sum()))
    # A copy of their own: a view would keep all that the iteration has found.
    return LowRankPrecision(vectors[:, :kept].contiguous(), values[:kept], 0.0)


def _iterate(product: Product, start: Tensor, goal: LowRankGoal) -> tuple[Tensor, Tensor]:
    """Ritz values, decreasing, and vectors, of which the wanted ones have settled."""
    krylov = _Krylov(torch.linalg.qr(start).Q)
    watched, worst = 0, 0.0
    for _ in range(goal.passes):
        values, residuals = krylov.extend(product)
        # Under a cutoff the value after the last wanted one has to be known too: it shows that these are all.
        watched = goal.count(values) + (goal.cutoff is not None)
        worst = float(residuals[:watched].max())
        if krylov.complete or (watched <= len(values) and worst <= goal.settled * float(values[0])):
            return values, krylov.ritz_vectors()
        krylov.restart(keep=watched + OVERSAMPLING)
    raise ConvergenceError(
        f"low_rank: the leading {watched} eigenvalues have not settled after {goal.passes} passes over the data: a "
        f"residual of {worst:.2g} is left. Ask for a smaller rank or a larger cutoff."
    )


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


def _read(reading: StructureReading) -> LowRankPrecision:
    """The leading part; all processes iterate on the whole curvature."""
    goal = LowRankGoal(reading.rank, reading.cutoff, SETTLED[reading.double])
    return leading_part(lambda vectors: reading.read(ProductSum(vectors)), reading.draw, reading.dim, goal)


def _bytes(asked: StructureOptions, itemsize: int) -> Bytes:  # noqa: ARG001
    width = CUTOFF_BLOCK if asked.rank is None else asked.rank + OVERSAMPLING
    if width >= asked.dim:
        held = COPIES * FLOAT64 * asked.dim**2
    else:  # the basis, once more while it grows by a block, and that block with its image and what is left of it
        held = FLOAT64 * asked.dim * (2 * min(BLOCKS * width, asked.dim) + 3 * width)
    return Bytes(held, 0, held, 2 * FLOAT64 * asked.dim)


LOW_RANK = Structure("low_rank", _read, _bytes, ("rank", "cutoff"))
