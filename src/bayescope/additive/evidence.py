"""Laplace's evidence of an additive model by blocks, and the precisions and noise that raise it.

log Z ≈ log p(y∣f) − ½ Σ δ(θ−m)² + ½ Σ log δ − ½ Σ_g log∣A_g∣, over blocks A_g = H_g + diag(δ_g) of the GGN in centred
coordinates. By Fischer's inequality the product of the blocks' determinants is at least that of the full GGN, so that
this is at most the full GGN's log Z (Immer et al. 2023; Bouchiat et al. 2024, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from bayescope.additive.passes import RowValues
from bayescope.additive.problem import AdditiveHyperparameters, AdditiveProblem, BlockFactors, Linearized
from bayescope.likelihoods import Likelihood

# δ between these; at the upper end a term is switched off: in standardised units its effects are below 1e-4.
LEAST_PRECISION, MOST_PRECISION = 1e-6, 1e8
# One update moves a hyperparameter by at most this factor: the mode has to follow.
FARTHEST = 5.0
# The least noise variance, as a share of the targets' variance: data that are interpolated have no largest evidence.
LEAST_NOISE = 1e-8
# The degrees of freedom that determine the noise are at least this share of the rows.
LEAST_FREEDOM = 0.05
# With fewer determined weights than this, which may be rounding, the data say nothing of their precision.
LEAST_DETERMINED = 1e-10
GROUPS = ("net", "layer")


@final
@dataclass(frozen=True, eq=False)
class BlockEvidence:
    """log Z at weights and hyperparameters, with what its fixed points need.

    Attributes:
        value: log Z, a float64 scalar.
        determined: γ of each family, shape (G, L): how many weights of a layer the data determine.
        squares: ‖θ − m‖² of each family, shape (G, L).
        total: γ of all weights, the intercepts among them.
        f: the outputs, shape (N, C).
    """

    value: Tensor
    determined: tuple[Tensor, ...]
    squares: tuple[Tensor, ...]
    total: float
    f: RowValues

    @classmethod
    def of(
        cls, problem: AdditiveProblem, theta: Tensor, at: AdditiveHyperparameters, linear: Linearized
    ) -> BlockEvidence:
        """Computes log Z and γ from the curvature's blocks at the weights, where the model is linearised."""
        diagonal = at.diagonal(problem.families)
        blocks = BlockFactors.of(linear.blocks, diagonal)
        value = problem.log_joint(theta, at, linear.f) + 0.5 * (diagonal.log().sum() - blocks.logdet())
        gamma = 1.0 - diagonal * blocks.inverse_diagonal()
        determined, squares = (
            tuple(
                torch.zeros_like(precision).scatter_add(1, family.layer.expand_as(part), part)
                for precision, family, part in zip(at.precisions, problem.families, problem.split(each)[0], strict=True)
            )
            for each in (gamma, (theta - problem.centre).square())
        )
        return cls(value, determined, squares, float(gamma.sum()), linear.f)

    def raised(
        self, problem: AdditiveProblem, at: AdditiveHyperparameters, groups: str, *, learn: bool, fixed: bool
    ) -> AdditiveHyperparameters:
        """Hyperparameters one fixed-point step on: δ = γ/‖θ − m‖² and σ² = RSS/(N − γ) (MacKay 1992, eqs. 4.12, 4.16).

        Args:
            problem: the rows.
            at: the present hyperparameters.
            groups: "net" for one precision a term, "layer" for one for each of its layers.
            learn: whether precisions are learnt; else they stay.
            fixed: whether the noise stays.
        """
        precisions = self._precisions(at, groups) if learn else at.precisions
        likelihood = at.likelihood
        if likelihood.noise_variance is not None and not fixed:
            likelihood = likelihood.with_noise_variance(self._noise(problem, likelihood))
        return replace(at, precisions=precisions, likelihood=likelihood)

    def _precisions(self, at: AdditiveHyperparameters, groups: str) -> tuple[Tensor, ...]:
        precisions = []
        for gamma, squares, before in zip(self.determined, self.squares, at.precisions, strict=True):
            if groups == "net":
                gamma, squares = (part.sum(1, keepdim=True).expand_as(part) for part in (gamma, squares))  # noqa: PLW2901
                before = before.log().mean(1, keepdim=True).exp().expand_as(before)  # noqa: PLW2901
            proposed = (gamma / squares).clamp(LEAST_PRECISION, MOST_PRECISION)
            proposed = torch.where((squares > 0) & (gamma > LEAST_DETERMINED), proposed, before)
            precisions.append((before * (proposed / before).clamp(1.0 / FARTHEST, FARTHEST)).clamp(max=MOST_PRECISION))
        return tuple(precisions)

    def _noise(self, problem: AdditiveProblem, likelihood: Likelihood) -> Tensor:
        """One for each output, shape (D,), which are taken to have used up as many degrees of freedom each."""
        residuals = problem.squared_residuals(self.f)
        count = problem.rows()
        proposed = residuals / max(count - self.total / len(residuals), LEAST_FREEDOM * count)
        before = likelihood.noise(residuals)
        return (before * (proposed / before).clamp(1.0 / FARTHEST, FARTHEST)).clamp(min=LEAST_NOISE)


def first_precisions(problem: AdditiveProblem, *, inner: float, other: float) -> tuple[Tensor, ...]:
    """Where the precisions start: those of inner layers, and all others."""
    return tuple(
        torch.tensor([inner if name == "inner" else other for name in family.layers], dtype=torch.float64).repeat(
            len(family.terms), 1
        )
        for family in problem.families
    )
