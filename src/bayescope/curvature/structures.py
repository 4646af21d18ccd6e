"""Sums over the batches of a pass, one form for each structure of the result.

Every form takes tapes one after another and gives a `Precision` in the end. None depends on where batches begin, nor on
how many cotangents a tape holds, except by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast, final

import torch
from torch import Tensor

from bayescope.curvature.output_factor import DENSE, DIAGONAL
from bayescope.precision import (
    BlockPrecision,
    DensePrecision,
    DiagonalPrecision,
    EigenvalueCorrectedPrecision,
    KroneckerPrecision,
    Precision,
)
from bayescope.tape import FactoredTape, Tape
from bayescope.tape.gram import add_gram

# So many terms are summed in the dtype of the passes before the sum goes to float64: for a factor of 785² the
# conversion of each term would take a third of the time of a batch.
STAGED = 8


class Accumulator(Protocol):
    """A sum over tapes that becomes a precision."""

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds a tape.

        Args:
            tape: the rows u_nk of one batch and some of its cotangents.
            fresh: whether it is the first tape of its rows: what depends on the inputs alone is added once.
        """

    def finish(self) -> Precision:
        """The sum, without any prior."""


@final
class Sum:
    """A float64 sum of tensors of one shape, of which a few at a time are summed in their own dtype."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._staged: Tensor | None = None
        self._count = 0

    def add(self, term: Tensor) -> None:
        """Adds a term, in place where there is a sum already."""
        self.add_by(lambda onto: term if onto is None else onto.add_(term))

    def add_by(self, added: Callable[[Tensor | None], Tensor]) -> None:
        """Adds a term that is added in place, without being there by itself.

        Args:
            added: adds the term to a tensor, or returns it where there is none: a tape's `input_gram`, for one.
        """
        # The first term may be a tape's own tensor, which is not ours to add to.
        self._staged = added(None).clone() if self._staged is None else added(self._staged)
        self._count += 1
        if self._count == STAGED:
            self.total()

    def total(self) -> Tensor:
        """The sum so far, of at least one term, in float64."""
        assert self._staged is not None
        if self._total is None:
            self._total = torch.zeros_like(self._staged, dtype=torch.float64)
        if self._count:
            self._total += self._staged
            self._staged.zero_()
            self._count = 0
        return self._total

    def taken(self) -> Tensor:
        """The same, which is the caller's from then on: nothing of the sum is kept here."""
        total, self._total, self._staged = self.total(), None, None
        return total


@final
class Dense:
    """Σ_n U_nᵀ U_n, shape (P, P)."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._upper: Tensor | None = None

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds the Gram matrix of U, a block of rows at a time."""
        for rows in tape.blocks():
            # In float64: a small prior is to be seen beside the sum. Without a name U is gone before the next is there.
            self._upper = add_gram(self._upper, tape.jacobian(rows).flatten(0, 1).to(torch.float64).mT[None])

    def finish(self) -> DensePrecision:
        if self._upper is None:
            return DensePrecision(torch.zeros(self._dim, self._dim, dtype=torch.float64), semidefinite=True)
        (matrix,) = _mirrored(self._upper)
        self._upper = None
        return DensePrecision(matrix, semidefinite=True)


@final
class Squares:
    """The sum of squared cotangents of each weight, Σ_nk u_nkp², shape (P,)."""

    def __init__(self) -> None:
        self._sum = Sum()

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds the squares of U."""
        self._sum.add(tape.squares())

    def finish(self) -> DiagonalPrecision:
        return DiagonalPrecision(self._sum.taken(), semidefinite=True)


@final
class Kronecker:
    """(Σ_nt a_nt a_ntᵀ) ⊗ (Σ_nkt g_nkt g_nktᵀ)/(N T), per group of a weight matrix.

    The sum runs over all N T positions, of every use of the weight. Sharing "expand" takes each position for a row of
    its own, "reduce" treats ā = T⁻¹ Σ_t a and ḡ = Σ_t g as one (Eschenhagen et al. 2023, eq. 19 and 22).

    Args:
        sharing: "expand" or "reduce".
        output_factor: "dense", or "diagonal" for the diagonal of Σ g gᵀ alone: for a layer of very many outputs.
    """

    def __init__(self, sharing: str, output_factor: str = DENSE) -> None:
        self._reduce, self._diagonal = sharing == "reduce", output_factor == DIAGONAL
        self._inputs, self._outputs = Sum(), Sum()
        self._count = 0

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds both factors of a `FactoredTape`, that of the inputs once for its rows."""
        factored = cast(FactoredTape, tape)
        if self._reduce:
            factored = factored.reduced()
        if fresh:
            self._inputs.add_by(factored.input_gram)
            self._count += factored.rows * factored.positions
        if self._diagonal:
            self._outputs.add(factored.output_squares())
        else:
            self._outputs.add_by(factored.output_gram)

    def finish(self) -> KroneckerPrecision:
        """Both factors, and N T."""
        inputs, outputs = (
            _mirrored(total) if total.ndim == 3 else total  # a diagonal, as the counts of tokens are
            for total in (self._inputs.taken(), self._outputs.taken())
        )
        return KroneckerPrecision(inputs, outputs, self._count)


@final
class Corrected:
    """The diagonal of Σ_n U_nᵀ U_n in the eigenbasis of a Kronecker product (George et al. 2018, eq. 10).

    Args:
        kronecker: the product.
    """

    def __init__(self, kronecker: KroneckerPrecision) -> None:
        self._kronecker = kronecker
        self._sum = Sum()

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds the squares of the rotated U."""
        self._sum.add(self._kronecker.basis.rotate(tape).squares())

    def finish(self) -> EigenvalueCorrectedPrecision:
        """The same basis with the exact second moments."""
        return self._kronecker.corrected(self._sum.taken())


@final
class Kept:
    """A block that an earlier pass has summed.

    Args:
        precision: its result.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def add(self, tape: Tape, fresh: bool) -> None: ...

    def finish(self) -> Precision:
        return self._precision


@final
class Blocks:
    """A block-diagonal sum: each block its own accumulator.

    Args:
        sums: one for each block.
        indices: for each block the flat positions of its weights.
        dim: P, the number of weights.
    """

    def __init__(self, sums: Sequence[Accumulator], indices: Sequence[Tensor], dim: int) -> None:
        self._sums, self._indices, self._dim = tuple(sums), tuple(indices), dim

    def add(self, tape: Tape, fresh: bool) -> None:
        """Adds each block's part of the tape."""
        for block, index in zip(self._sums, self._indices, strict=True):
            block.add(tape.part(index), fresh)

    def finish(self) -> BlockPrecision:
        return BlockPrecision(tuple(block.finish() for block in self._sums), self._indices, self._dim)


@final
class Diagonal:
    """Σ_nk u_nkp² of a network, part by part: the sums are put in the flat order once, in the end.

    Args:
        indices: for each part the flat positions of its weights.
        dim: P, the number of weights.
    """

    def __init__(self, indices: Sequence[Tensor], dim: int) -> None:
        self._sums, self._indices, self._dim = tuple(Sum() for _ in indices), tuple(indices), dim

    def add(self, tape: Tape, fresh: bool) -> None:
        for part, index in zip(self._sums, self._indices, strict=True):
            part.add(tape.part(index).squares())

    def finish(self) -> DiagonalPrecision:
        """The diagonal in the flat order, a part after another."""
        values = torch.empty(self._dim, dtype=torch.float64, device=self._indices[0].device)
        for part, index in zip(self._sums, self._indices, strict=True):
            values[index] = part.taken()
        return DiagonalPrecision(values, semidefinite=True)


@final
class Products:
    """G V = Σ_n U_nᵀ (U_n V), for V of shape (P, R).

    Args:
        vectors: V.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._vectors = vectors
        self._total = torch.zeros_like(vectors)

    def add(self, tape: Tape, fresh: bool) -> None:
        self._total += tape.transpose_multiply(tape.multiply(self._vectors))

    def total(self) -> Tensor:
        """G V, shape (P, R), float64."""
        return self._total


def _mirrored(total: Tensor) -> Tensor:
    """The symmetric matrices (G, D, D) that have this upper triangle, in its place."""
    upper = total.triu_()
    return upper.add_(upper.triu(1).mT)
