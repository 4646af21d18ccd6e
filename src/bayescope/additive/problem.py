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
from bayescope.additive.families import Jacobian, TermFamily
from bayescope.additive.passes import RowPasses, RowValues
from bayescope.errors import NotPositiveDefiniteError
from bayescope.likelihoods import Likelihood
from bayescope.process_state import one_thread


def split_weights(theta: Tensor, families: Sequence[TermFamily], outputs: int) -> list[Tensor]:
    """Views of flat weights (..., P): of each family, shape (..., G, P), and last of the intercepts, (..., 1, C)."""
    shapes = [*[(len(family.terms), family.weights) for family in families], (1, outputs)]
    sizes = [terms * weights for terms, weights in shapes]
    return [part.unflatten(-1, shape) for part, shape in zip(theta.split(sizes, -1), shapes, strict=True)]


@final
@dataclass(frozen=True, eq=False)
class AdditiveHyperparameters:
    """What the evidence is maximised over.

    Attributes:
        precisions: prior precisions δ of each family, one a term and layer, shape (G, L).
        intercept_precision: that of b, the mean of f − offset over the data, as terms are centred.
        likelihood: p(y∣f), with the present noise.
    """

    precisions: tuple[Tensor, ...]
    intercept_precision: float
    likelihood: Likelihood

    def diagonal(self, families: Sequence[TermFamily]) -> Tensor:
        """δ of each weight, shape (P,)."""
        pairs = zip(self.precisions, families, strict=True)
        of_terms = [precision[:, family.layer].flatten() for precision, family in pairs]
        return torch.cat([*of_terms, torch.full((families[0].outputs,), self.intercept_precision, dtype=torch.float64)])


@final
@dataclass(frozen=True, eq=False)
class AdditiveProblem:
    """Weighted rows and the terms that read them, with centred terms: f = offset + b + Σ_g (f_g − f̄_g).

    All weights are one vector θ of P numbers: the families' in their order, each (G, P) row-major, and last b.

    Attributes:
        families: of terms.
        designs: what each family reads.
        targets: canonical, shape (N, ...).
        weights: of the rows, shape (N,): row n counts as weight n times, in every sum over the data.
        centre: the prior mean m of the weights, shape (P,).
        offset: shape (N, C), or ``None``.
        passes: how the rows are read.
    """

    families: tuple[TermFamily, ...]
    designs: tuple[Design, ...]
    targets: RowValues
    weights: RowValues
    centre: Tensor
    offset: RowValues | None
    passes: RowPasses = field(default_factory=RowPasses)

    def split(self, theta: Tensor) -> tuple[list[Tensor], Tensor]:
        """Views of flat weights: of each family, shape (G, P), and of the intercepts, shape (C,)."""
        *of_families, intercept = split_weights(theta, self.families, self.families[0].outputs)
        return of_families, intercept[0]

    def outputs(self, theta: Tensor) -> RowValues:
        """f of each row, shape (N, C)."""
        weights, intercept = self.split(theta)
        tables = []
        for family, design, of_family in zip(self.families, self.designs, weights, strict=True):
            values = family.values(of_family, design.points)
            tables.append(design.less(values, design.mean(values)))
        return self.passes.kept(lambda rows: self._sums(intercept, tables, rows, self.offset))

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

    def log_joint(self, theta: Tensor, at: AdditiveHyperparameters, f: RowValues | None = None) -> Tensor:
        """log p(y∣f) − ½ Σ δ (θ − m)²: the log joint but for the prior's constants."""
        pull = (at.diagonal(self.families) * (theta - self.centre).square()).sum()
        return self.log_likelihood(self.outputs(theta) if f is None else f, at.likelihood) - 0.5 * pull

    def linearized(self, theta: Tensor, likelihood: Likelihood, f: RowValues | None = None) -> Linearized:
        """The Jacobians of the centred terms, the slope of log p(y∣f) and the curvature −∂² log p(y∣f) of the GGN.

        Args:
            theta: where.
            likelihood: p(y∣f).
            f: the outputs there, if they are known.
        """
        jacobians, means = [], []
        for family, design, of_family in zip(self.families, self.designs, self.split(theta)[0], strict=True):
            jacobian = family.jacobian(of_family, design.points)
            mean = replace(jacobian, shared=design.mean(jacobian.shared), separate=design.mean(jacobian.separate))
            shared, separate = design.less(jacobian.shared, mean.shared), design.less(jacobian.separate, mean.separate)
            jacobians.append(replace(jacobian, shared=shared, separate=separate))
            means.append(mean.dense())
        f = self.outputs(theta) if f is None else f
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

    @cached_property
    def bounded(self) -> Tensor:
        """Which weights are at least 0, bool (P,)."""
        of_families = [family.bounded.repeat(len(family.terms)) for family in self.families]
        return torch.cat([*of_families, torch.zeros(self.families[0].outputs, dtype=torch.bool)])

    def held(self, theta: Tensor) -> Tensor:
        """Which weights are at their bound, bool (P,)."""
        return self.bounded & (theta <= 0.0)

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
    known: list[Tensor] | None = None

    def under(self, likelihood: Likelihood) -> Linearized:
        """The same at the same weights, under another likelihood."""
        if likelihood is self.likelihood:
            return self
        slope, curvature = self.problem.expansion(self.f, likelihood)
        return replace(self, likelihood=likelihood, slope=slope, curvature=curvature, known=self._scaled(likelihood))

    def _scaled(self, likelihood: Likelihood) -> list[Tensor] | None:
        """The blocks under another noise, where that is a number: Λ = 1/σ² is the same but for a factor."""
        if likelihood.noise_variance is None or self.likelihood.noise_variance is None or self.outputs > 1:
            return None
        one = torch.ones(1, dtype=torch.float64)
        factor = self.likelihood.noise(one) / likelihood.noise(one)
        return [factor * block for block in self.blocks]

    @property
    def outputs(self) -> int:
        return self.problem.families[0].outputs

    @cached_property
    def jacobians(self) -> tuple[Tensor, ...]:
        """The Jacobians written out, shape (G, U, C, P) for each family."""
        return tuple(jacobian.dense() for jacobian in self.structured)

    def forward(self, v: Tensor) -> RowValues:
        """J v, shape (N, C), for v of shape (P,)."""
        of_families, intercept = self.problem.split(v)
        tables = [jacobian.multiply(part) for jacobian, part in zip(self.structured, of_families, strict=True)]
        return self.problem.gathered(intercept, tables)

    def transposed(self, rows: RowValues) -> Tensor:
        """Jᵀ u, shape (P,), for u of shape (N, C)."""
        *sums, total = self.problem.scattered(rows)
        pairs = zip(self.structured, sums, strict=True)
        return torch.cat([*[jacobian.transpose_multiply(at_points).flatten() for jacobian, at_points in pairs], total])

    def product(self, v: Tensor) -> Tensor:
        """The curvature times a vector, Jᵀ Λ J v."""
        moved, curvature = self.forward(v), self.curvature
        bent = self.problem.passes.computed(lambda rows: (curvature[rows] @ moved[rows][..., None])[..., 0])
        return self.transposed(bent)

    @cached_property
    def blocks(self) -> list[Tensor]:
        """Σ_n J_gᵀ Λ_n J_g of each term, shape (G, P, P) for each family, and Σ_n Λ_n of the intercepts, (1, C, C)."""
        if self.known is not None:
            return self.known
        *sums, total = self.problem.scattered(self.curvature)
        pairs = zip(self.structured, sums, strict=True)
        return [*[jacobian.curvature(at_points) for jacobian, at_points in pairs], total[None]]


@final
@dataclass(frozen=True, eq=False)
class BlockFactors:
    """The Cholesky factors of A_g = H_g + diag(δ_g) + damping, block by block.

    Attributes:
        factors: lower triangular, shape (G, P, P) for each family, and last of the intercepts, shape (1, C, C).
    """

    factors: tuple[Tensor, ...]

    @classmethod
    def of(cls, blocks: Sequence[Tensor], diagonal: Tensor, held: Tensor | None = None) -> BlockFactors:
        """Factorise the blocks H_g, shape (G, P, P) each, plus a diagonal of shape (P,).

        Of weights that are held where they are, bool (P,), only the diagonal counts.

        Raises:
            NotPositiveDefiniteError: if a block is not positive definite in float64.
        """
        sizes = [block[..., 0].numel() for block in blocks]
        if held is not None and bool(held.any()):
            free = [part.view(block.shape[:2]) for part, block in zip((~held).split(sizes), blocks, strict=True)]
            blocks = [block * (of[:, None] & of[..., None]) for block, of in zip(blocks, free, strict=True)]
        parts = zip(blocks, diagonal.split(sizes), strict=True)
        with one_thread():  # batches of small matrices are many times slower in two
            return cls(tuple(_cholesky(block + torch.diag_embed(part.view(block.shape[:2]))) for block, part in parts))

    def solve(self, v: Tensor) -> Tensor:
        """The inverse of the block matrix times a vector, A⁻¹ v."""
        parts = v.split([factor[..., 0].numel() for factor in self.factors])
        pairs = [(part.view(*factor.shape[:2], 1), factor) for part, factor in zip(parts, self.factors, strict=True)]
        return torch.cat([torch.cholesky_solve(part, factor).flatten() for part, factor in pairs])

    def logdet(self) -> Tensor:
        """The log determinant, Σ_g log∣A_g∣ over the blocks."""
        each = [factor.diagonal(dim1=-2, dim2=-1).log().sum() for factor in self.factors]
        return 2.0 * torch.stack(each).sum()

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""
        with one_thread():
            inverses = [torch.cholesky_inverse(factor) for factor in self.factors]
        return torch.cat([inverse.diagonal(dim1=-2, dim2=-1).flatten() for inverse in inverses])


def output_variances(linear: Linearized, blocks: BlockFactors) -> RowValues:
    """The covariance of f of each row by the blocks, shape (N, C²)."""
    *factors, of_intercept = blocks.factors
    tables = []
    for jacobian, factor in zip(linear.jacobians, factors, strict=True):
        rows = jacobian.flatten(1, 2)  # (G, U C, P)
        half = torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT.reshape(jacobian.shape)
        tables.append((half @ half.mT).flatten(2))
    return linear.problem.gathered(torch.cholesky_inverse(of_intercept).flatten(), tables)


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
