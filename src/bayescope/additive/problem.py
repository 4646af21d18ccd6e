"""The rows, terms and targets that weights are sought for, and all that a step towards them has to know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from bayescope.additive.design import Design
from bayescope.additive.families import TermFamily
from bayescope.additive.jacobian import Jacobian
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods import Likelihood
from bayescope.process_state import one_thread


@final
@dataclass(frozen=True, eq=False)
class TermWeights:
    """Weights.

    Attributes:
        thetas: of each family, shape (G, P).
        intercept: b, shape (C,): the mean of f − offset over the data, since terms are centred.
    """

    thetas: tuple[Tensor, ...]
    intercept: Tensor


@final
@dataclass(frozen=True, eq=False)
class AdditiveHyperparameters:
    """What the evidence is maximised over.

    Attributes:
        precisions: prior precisions δ of each family, one a term and layer, shape (G, L).
        intercept_precision: that of b.
        likelihood: p(y∣f), with the present noise.
    """

    precisions: tuple[Tensor, ...]
    intercept_precision: float
    likelihood: Likelihood

    def diagonal(self, families: Sequence[TermFamily]) -> tuple[Tensor, ...]:
        """δ of each weight, shape (G, P) for each family."""
        return tuple(precision[:, family.layer] for precision, family in zip(self.precisions, families, strict=True))


@final
@dataclass(frozen=True, eq=False)
class AdditiveProblem:
    """Weighted rows and the terms that read them, with centred terms: f = offset + b + Σ_g (f_g − f̄_g).

    Attributes:
        families: of terms.
        designs: what each family reads.
        targets: canonical, shape (N, ...).
        weights: of the rows, shape (N,): row n counts as weight n times, in every sum over the data.
        centres: prior means of each family's weights, shape (G, P).
        offset: shape (N, C), or ``None``.
        passes: how the rows are read.
    """

    families: tuple[TermFamily, ...]
    designs: tuple[Design, ...]
    targets: RowValues
    weights: RowValues
    centres: tuple[Tensor, ...]
    offset: RowValues | None
    passes: RowPasses = field(default_factory=RowPasses)

    def outputs(self, state: TermWeights) -> RowValues:
        """f of each row, shape (N, C)."""
        tables = []
        for family, design, theta in zip(self.families, self.designs, state.thetas, strict=True):
            values = family.values(theta, design.points)
            tables.append(design.less(values, design.mean(values)))
        return self.passes.kept(lambda rows: self._sums(state.intercept, tables, rows, self.offset))

    def _sums(self, constant: Tensor, tables: Sequence[Tensor], rows: slice, offset: RowValues | None) -> Tensor:
        """The constant, the offset and the terms' values at the points of some rows, shape (n, C)."""
        total = constant if offset is None else constant + offset[rows]
        for design, table in zip(self.designs, tables, strict=True):
            total = total + design.gathered(table, rows)
        return total

    def gathered(self, constant: Tensor, tables: Sequence[Tensor]) -> RowValues:
        """The constant (C,) and the terms' values at the points of each row, of (G, U, C) for each family."""
        return self.passes.computed(lambda rows: self._sums(constant, tables, rows, None))

    def scattered(self, values: RowValues) -> list[Tensor]:
        """Sums over the rows of each point, shape (G, U, ...) for each family, and last over all rows, shape (...)."""

        def part(rows: slice) -> list[Tensor]:
            some = values[rows]
            return [*[design.scattered(some, rows) for design in self.designs], some.sum(0)]

        return self.passes.summed(part)

    def log_likelihood(self, f: RowValues, likelihood: Likelihood) -> Tensor:
        """The log likelihood of all rows, Σ_n w_n log p(y_n∣f_n)."""
        (total,) = self.passes.summed(
            lambda rows: [self.weights[rows] @ likelihood.log_prob(f[rows], self.targets[rows])]
        )
        return total

    def squared_residuals(self, f: RowValues) -> Tensor:
        """Σ_n w_n (y_n − f_n)², shape (C,)."""
        (total,) = self.passes.summed(lambda rows: [self.weights[rows] @ (self.targets[rows] - f[rows]).square()])
        return total

    def log_joint(self, state: TermWeights, at: AdditiveHyperparameters, f: RowValues | None = None) -> Tensor:
        """log p(y∣f) − ½ Σ δ (θ−m)² − ½ δ_b b²: the log joint but for the prior's constants."""
        pull = at.intercept_precision * state.intercept.square().sum()
        for departure, diagonal in zip(self.departures(state), at.diagonal(self.families), strict=True):
            pull = pull + (diagonal * departure.square()).sum()
        return self.log_likelihood(self.outputs(state) if f is None else f, at.likelihood) - 0.5 * pull

    def departures(self, state: TermWeights) -> list[Tensor]:
        """θ − m of each family, shape (G, P)."""
        return [theta - centre for theta, centre in zip(state.thetas, self.centres, strict=True)]

    def linearized(self, state: TermWeights, likelihood: Likelihood, f: RowValues | None = None) -> Linearized:
        """The Jacobians of the centred terms, the slope of log p(y∣f) and the curvature −∂² log p(y∣f) of the GGN.

        Args:
            state: where.
            likelihood: p(y∣f).
            f: the outputs there, if they are known.
        """
        jacobians, means = [], []
        for family, design, theta in zip(self.families, self.designs, state.thetas, strict=True):
            jacobian = family.jacobian(theta, design.points)
            mean = replace(jacobian, shared=design.mean(jacobian.shared), separate=design.mean(jacobian.separate))
            shared, separate = design.less(jacobian.shared, mean.shared), design.less(jacobian.separate, mean.separate)
            jacobians.append(replace(jacobian, shared=shared, separate=separate))
            means.append(mean.dense())
        f = self.outputs(state) if f is None else f
        return Linearized(self, likelihood, f, tuple(jacobians), tuple(means), *self.expansion(f, likelihood))

    def expansion(self, f: RowValues, likelihood: Likelihood) -> tuple[RowValues, RowValues]:
        """∂ log p/∂f, shape (N, C), and the Λ of the GGN, shape (N, C, C), of each row, times its weight."""

        def slope(rows: slice) -> Tensor:
            return likelihood.gradient(f[rows], self.targets[rows]) * self.weights[rows][:, None]

        def curvature(rows: slice) -> Tensor:
            root = self.root(f, likelihood, rows)
            return root @ root.mT

        return self.passes.computed(slope), self.passes.computed(curvature)

    def root(self, f: RowValues, likelihood: Likelihood, rows: slice) -> Tensor:
        """R with R Rᵀ = Λ of some rows, times their weights, shape (n, C, K)."""
        return likelihood.ggn_sqrt(f[rows], self.targets[rows]) * self.weights[rows].sqrt()[:, None, None]

    @property
    def numbers(self) -> int:
        """How many numbers the Jacobians of all terms are."""
        pairs = zip(self.families, self.designs, strict=True)
        return sum(design.mass.numel() * family.outputs * family.weights for family, design in pairs)

    def rows(self) -> float:
        """Σ_n w_n, how many rows there are by weight."""
        return self._rows

    @cached_property
    def _rows(self) -> float:
        (total,) = self.passes.summed(lambda rows: [self.weights[rows].sum()])
        return float(total)


@final
@dataclass(frozen=True, eq=False)
class Linearized:
    """The model and its loss to second order about weights.

    Attributes:
        problem: what is linearised.
        likelihood: p(y∣f).
        f: the outputs, shape (N, C).
        structured: the Jacobians of the centred terms at their points, for each family.
        means: what they were centred by, shape (2, G, C, P).
        slope: ∂ log p/∂f of each row, times its weight, shape (N, C).
        curvature: Λ of each row, times its weight, shape (N, C, C).
        known: the `blocks`, if they are known.
    """

    problem: AdditiveProblem
    likelihood: Likelihood
    f: RowValues
    structured: tuple[Jacobian, ...]
    means: tuple[Tensor, ...]
    slope: RowValues
    curvature: RowValues
    known: tuple[list[Tensor], Tensor] | None = None

    def under(self, likelihood: Likelihood) -> Linearized:
        """The same at the same weights, under another likelihood."""
        if likelihood is self.likelihood:
            return self
        slope, curvature = self.problem.expansion(self.f, likelihood)
        return replace(self, likelihood=likelihood, slope=slope, curvature=curvature, known=self._scaled(likelihood))

    def _scaled(self, likelihood: Likelihood) -> tuple[list[Tensor], Tensor] | None:
        """The blocks under another noise, where that is a number: Λ = 1/σ² is the same but for a factor."""
        if likelihood.noise_variance is None or self.likelihood.noise_variance is None or self.outputs > 1:
            return None
        one = torch.ones(1, dtype=torch.float64)
        factor = self.likelihood.noise(one) / likelihood.noise(one)
        blocks, intercept = self.blocks
        return [factor * block for block in blocks], factor * intercept

    @property
    def outputs(self) -> int:
        return self.problem.families[0].outputs

    @cached_property
    def jacobians(self) -> tuple[Tensor, ...]:
        """The Jacobians written out, shape (G, U, C, P) for each family."""
        return tuple(jacobian.dense() for jacobian in self.structured)

    def gradient(self) -> tuple[list[Tensor], Tensor]:
        """Jᵀ ∂ log p/∂f: shape (G, P) for each family, and (C,) for the intercept."""
        return self.transposed(self.slope)

    def forward(self, thetas: Sequence[Tensor], intercept: Tensor) -> RowValues:
        """J v, shape (N, C)."""
        tables = [jacobian.multiply(v) for jacobian, v in zip(self.structured, thetas, strict=True)]
        return self.problem.gathered(intercept, tables)

    def transposed(self, rows: RowValues) -> tuple[list[Tensor], Tensor]:
        """Jᵀ u for u of shape (N, C)."""
        *sums, total = self.problem.scattered(rows)
        pairs = zip(self.structured, sums, strict=True)
        return [jacobian.transpose_multiply(at_points) for jacobian, at_points in pairs], total

    def product(self, thetas: Sequence[Tensor], intercept: Tensor) -> tuple[list[Tensor], Tensor]:
        """The curvature times a vector, Jᵀ Λ J v."""
        moved, curvature = self.forward(thetas, intercept), self.curvature
        bent = self.problem.passes.computed(lambda rows: (curvature[rows] @ moved[rows][..., None])[..., 0])
        return self.transposed(bent)

    @cached_property
    def blocks(self) -> tuple[list[Tensor], Tensor]:
        """Σ_n J_gᵀ Λ_n J_g for each term, shape (G, P, P) for each family, and Σ_n Λ_n of the intercepts, (C, C)."""
        if self.known is not None:
            return self.known
        *sums, total = self.problem.scattered(self.curvature)
        return [jacobian.curvature(at_points) for jacobian, at_points in zip(self.structured, sums, strict=True)], total


@final
@dataclass(frozen=True, eq=False)
class BlockFactors:
    """The Cholesky factors of A_g = H_g + diag(δ_g) + damping, block by block.

    Attributes:
        factors: lower triangular, shape (G, P, P) for each family.
        intercept: of the intercepts, shape (C, C).
    """

    factors: tuple[Tensor, ...]
    intercept: Tensor

    @classmethod
    def of(
        cls,
        curvature: tuple[list[Tensor], Tensor],
        families: Sequence[TermFamily],
        at: AdditiveHyperparameters,
        damping: float,
    ) -> BlockFactors:
        """Factorises.

        Raises:
            NotPositiveDefiniteError: if a block is not positive definite in float64.
        """
        factors = []
        with one_thread():  # batches of small matrices are many times slower in two
            for block, diagonal in zip(curvature[0], at.diagonal(families), strict=True):
                factors.append(_cholesky(block + torch.diag_embed(diagonal + damping)))
        identity = torch.eye(curvature[1].shape[0], dtype=torch.float64)
        return cls(tuple(factors), _cholesky(curvature[1] + (at.intercept_precision + damping) * identity))

    def solve(self, thetas: Sequence[Tensor], intercept: Tensor) -> tuple[list[Tensor], Tensor]:
        """The inverse of the block matrix times a vector, A⁻¹ v."""
        solved = [
            torch.cholesky_solve(v[..., None], factor)[..., 0] for v, factor in zip(thetas, self.factors, strict=True)
        ]
        return solved, torch.cholesky_solve(intercept[:, None], self.intercept)[:, 0]

    def logdet(self) -> Tensor:
        """The log determinant, Σ_g log∣A_g∣ over the blocks."""
        each = [factor.diagonal(dim1=-2, dim2=-1).log().sum() for factor in (*self.factors, self.intercept)]
        return 2.0 * torch.stack(each).sum()

    def inverse_diagonals(self) -> list[Tensor]:
        """The diagonals of A_g⁻¹, shape (G, P) for each family."""
        with one_thread():
            return [torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) for factor in self.factors]


def noise_of(likelihood: Likelihood) -> float | None:
    """The noise variance of a Gaussian likelihood, the mean over its outputs; others have none."""
    if likelihood.noise_variance is None:
        return None
    return float(torch.as_tensor(likelihood.noise_variance, dtype=torch.float64).mean())


def _cholesky(matrix: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info.max()) or not math.isfinite(float(factor.diagonal(dim1=-2, dim2=-1).sum())):
        raise NotPositiveDefiniteError(
            "the curvature of an additive model: expected blocks that are positive definite in float64, got one that "
            "is not. Raise the prior precision, or look for columns whose numbers are far out."
        )
    return factor
