"""A table of fewer rows than columns, fitted in the space that its rows span: N weights an output instead of D.

With s_j = 1/√α_j, or 1 where all weights share one precision α that may still be learnt, let X diag(s) = Z Qᵀ, with the
D×N matrix Q of orthonormal columns (a QR decomposition of the transpose). The weights w = diag(s) v have v ~ N(0, α I),
and the rows see of v only u = Qᵀv ~ N(0, α I): f = Z u. The fit to the N×N table Z is therefore the fit to X, with the
same evidence; in the directions that no row has, v keeps its prior. No rank is decided: Q may have more columns than
the rows span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar, final

import torch
from torch import Tensor

from bayescope.linear.density import Again
from bayescope.linear.evidence import InterceptPrecision, weight_prior
from bayescope.linear.table import Batch, RowTable
from bayescope.memory import require_memory
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior
from bayescope.precision import BlockPrecision, LowRankPrecision, Precision
from bayescope.priors import Prior

# How many tables of N×D numbers the space of the rows takes: the rows to be factorised, and both factors; and how often
# the numbers of the precision that is lifted from it are there; and the matrices of a precision, with its factor.
FACTORS, LIFTS, HELD = 3, 2, 2

P = TypeVar("P", bound=GaussianPosterior | PointPosterior | DrawsPosterior)


@final
@dataclass(frozen=True, eq=False)
class RowSpace:
    """The coordinates that a table is fitted in: the space that its rows span, or the columns as they are.

    Attributes:
        wide: the model of the D columns.
        table: the rows Z, of N columns, or X itself.
        precision: α, one number, or one a column or a weight where these stay unchanged; ``None`` where it is to be
            learnt, one number or one an output.
        basis: Q, shape (D, N), or ``None`` where the columns stay unchanged.
        scale: s, shape (D,).
    """

    wide: LinearModel
    table: RowTable
    precision: Tensor | None
    basis: Tensor | None
    scale: Tensor

    @classmethod
    def of(
        cls,
        model: LinearModel,
        table: RowTable,
        precision: Tensor | None,
        *,
        matrices: int,
        turned: bool = True,
        lifted: bool = True,
        apart: bool = False,
    ) -> RowSpace:
        """The space of the rows of a table in memory with fewer rows than columns, or the columns of any other table.

        Args:
            model: of the D columns.
            table: the rows.
            precision: of the weights, a number, one a column, shape (D,), or one each, (C, D), for which the columns
                stay unchanged; ``None`` where one number, or one an output, is to be learnt.
            matrices: how many P×P matrices the inference has at once.
            turned: whether the columns may be left.
            lifted: whether the posterior has a precision, which is then lifted to that of the columns.
            apart: whether each output has matrices of its own, one output after another.

        Raises:
            MemoryBudgetError: if memory does not hold what the inference takes; nothing has been made then.
        """
        scale = torch.ones(model.features, dtype=torch.float64)
        turned = turned and table.in_memory and table.count < model.features
        turned = turned and (precision is None or precision.ndim < 2)
        require_room(model, matrices, rows=table.count if turned else None, lifted=lifted, apart=apart)
        if not turned:
            return cls(model, table, precision, None, scale)
        if precision is not None and precision.ndim:
            scale, precision = precision.rsqrt(), torch.ones((), dtype=torch.float64)
        features, targets, weights = table.held()
        basis, triangle = torch.linalg.qr((features * scale).mT)
        return cls(model, RowTable.of(Batch(triangle.mT.contiguous(), targets, weights)), precision, basis, scale)

    @property
    def model(self) -> LinearModel:
        """The model of the columns of `table`."""
        return self.wide if self.basis is None else replace(self.wide, features=self.basis.shape[1])

    def lift(
        self, posterior: P, prior: Prior, intercept: InterceptPrecision, generator: torch.Generator | None = None
    ) -> tuple[P, Prior]:
        """The posterior and the prior of the weights of the D columns.

        Args:
            posterior: of the weights of the columns of `table`.
            prior: that it was found under.
            intercept: the prior precision of the intercept; ``None`` for a flat intercept.
            generator: draws what a posterior of draws has in the directions that no row has.
        """
        if self.basis is None:
            return posterior, prior
        precision = self.model.unflat(prior.diagonal(self.model.dim))[0][:, :1]
        lifted = weight_prior(self.wide, precision / self.scale.square(), intercept)
        if isinstance(posterior, PointPosterior):
            return replace(posterior, location=self.weights(posterior.location), function=self.wide), lifted
        if isinstance(posterior, DrawsPosterior):
            assert generator is not None
            draws = self.weights(posterior.draws, self._unseen(posterior.draws, precision, generator))
            # How well the chains have mixed is known of the weights of Z: a warning has come where they have not.
            return replace(posterior, draws=draws, function=self.wide, r_hat=None, effective_draws=None), lifted
        assert isinstance(posterior.infer, Again)
        gaussian = replace(
            posterior,
            location=self.weights(posterior.location),
            precision=self._precision(posterior.precision, precision),
            function=self.wide,
            infer=replace(posterior.infer, model=self.wide),
        )
        return gaussian, lifted

    def weights(self, theta: Tensor, unseen: Tensor | float = 0.0) -> Tensor:
        """Flat weights of the D columns, shape (..., P), from those of Z; ``unseen`` is v in the other directions."""
        if self.basis is None:
            return theta
        weights, bias = self.model.unflat(theta)
        flat = ((weights @ self.basis.mT + unseen) * self.scale).flatten(-2)
        return flat if bias is None else torch.cat([flat, bias], -1)

    def _unseen(self, draws: Tensor, precision: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of v from its prior in the directions that no row has, shape (..., C, D)."""
        assert self.basis is not None
        shape = *draws.shape[:-1], self.wide.outputs, self.wide.features
        noise = torch.randn(shape, dtype=torch.float64, generator=generator) * precision.rsqrt()
        return noise - (noise @ self.basis) @ self.basis.mT

    def _precision(self, found: Precision, precision: Tensor) -> Precision:
        """The precision of the weights of the D columns: where each output has a block, block by block.

        Args:
            found: A, of the weights of Z.
            precision: α, shape (C, 1).
        """
        if not isinstance(found, BlockPrecision):
            return self._lifted(found.to_dense(), precision)
        one = replace(self, wide=replace(self.wide, outputs=1))
        pairs = zip(found.blocks, precision.expand(self.wide.outputs, 1), strict=True)
        blocks = [one._lifted(block.to_dense(), alpha[None]) for block, alpha in pairs]
        return BlockPrecision(blocks, self.wide.places_of_outputs, self.wide.dim, name="the precision of the log joint")

    def _lifted(self, matrix: Tensor, precision: Tensor) -> LowRankPrecision:
        """α I + Q (A − α I) Qᵀ in v, as D^{½}(I + U diag(m) Uᵀ)D^{½} in w, with the intercepts beside it.

        α, of shape (C, 1), is one number for each output. With d = α for the weights and A's own diagonal for the
        intercepts, m and E are the eigenvalues and eigenvectors of d^{−½} A d^{−½} − I, and U = diag(Q, …, Q, I) E.
        """
        assert self.basis is not None
        outputs, split = self.wide.outputs, self.model.outputs * self.model.features
        diagonal = matrix.diagonal().clone()
        diagonal[:split] = precision.expand(outputs, self.model.features).flatten()
        root = diagonal.rsqrt()
        values, vectors = torch.linalg.eigh(matrix * root * root[:, None])
        weights = self.basis @ vectors[:split].unflatten(0, (outputs, -1))  # (C, D, C N + C)
        d = torch.cat([(precision / self.scale.square()).flatten(), diagonal[split:]])
        lifted = torch.cat([weights.flatten(0, 1), vectors[split:]])
        return LowRankPrecision.from_whitened(lifted, values - 1.0, d, name="the precision of the log joint")


def require_room(
    model: LinearModel, matrices: int, *, rows: int | None = None, lifted: bool = False, apart: bool = False
) -> None:
    """Refuses a fit whose matrices memory does not hold, before they are made.

    Args:
        model: of the D columns.
        matrices: how many P×P matrices the inference has at once.
        rows: N, where the fit is made in the space of the rows.
        lifted: whether a precision is lifted from there.
        apart: whether each output has matrices of its own, of which only the precisions stay.

    Raises:
        MemoryBudgetError: if it does not.
    """
    outputs = model.outputs if apart else 1
    wide = replace(model, outputs=1) if apart else model
    narrow = wide if rows is None else replace(wide, features=rows)
    numbers = (matrices + HELD * (outputs - 1)) * narrow.dim**2
    if rows is not None:
        numbers += FACTORS * rows * model.features + LIFTS * lifted * outputs * wide.dim * narrow.dim
    require_memory(
        8 * numbers,
        f"a fit of {model.dim:,} weights, with matrices of {narrow.dim:,} × {narrow.dim:,} numbers,",
        "Leave out columns, put rare labels together, or fit fewer rows than there are columns: such a fit needs room "
        "for its rows alone.",
    )
