"""A block-diagonal precision: weights in groups that are independent of each other, each group in its own structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import add
from typing import final

import torch
from torch import Tensor

from bayescope.errors import InputError
from bayescope.precision.dense import DensePrecision, DenseSum, dense_bytes
from bayescope.precision.precision import Precision, shared
from bayescope.precision.structure import Bytes, Structure, StructureOptions, StructureReading, TapeSum
from bayescope.storage import stored
from bayescope.tape import Tape


@stored("block_precision", parts={"_blocks": tuple[Precision, ...], "_indices": tuple[Tensor, ...], "_name": str})
@final
class BlockPrecision(Precision):
    """A = Σ_i E_i A_i E_iᵀ, where E_i puts the weights of block i, in its own order, at their flat positions.

    Args:
        blocks: the A_i.
        indices: for each block the flat positions of its weights, int64. Together they are 0, …, P − 1, each once.
        dim: P.
        name: what the matrix is, for messages.

    Raises:
        InputError: if the positions are not those of the weights, each once.
    """

    def __init__(
        self, blocks: Sequence[Precision], indices: Sequence[Tensor], dim: int, *, name: str = "the precision"
    ) -> None:
        sizes = [index.shape[0] for index in indices]
        if [block.dim for block in blocks] != sizes or sum(sizes) != dim or dim == 0:
            raise InputError(
                f"{name}: expected as many positions as each block has weights, {dim} together and at least one, got "
                f"blocks of {[block.dim for block in blocks]} and {sizes} positions."
            )
        places = torch.cat(list(indices))
        inside = bool(((places >= 0) & (places < dim)).all())
        if not inside or not bool((torch.bincount(places, minlength=dim) == 1).all()):
            raise InputError(f"{name}: expected the positions 0 to {dim - 1}, each once, got others.")
        self._blocks, self._indices, self._name = tuple(blocks), tuple(indices), name

    @property
    def dim(self) -> int:
        """P, the number of rows."""
        return sum(index.shape[0] for index in self._indices)

    @property
    def blocks(self) -> tuple[Precision, ...]:
        """The A_i, each a precision over its own group of weights."""
        return self._blocks

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """For each block the flat positions of its weights."""
        return self._indices

    def add_diagonal(self, diagonal: Tensor | float) -> BlockPrecision:
        """A + diag(d) for d a scalar or of shape (P,), in flat order."""
        if not isinstance(diagonal, Tensor) or diagonal.ndim == 0:
            return self._with([block.add_diagonal(diagonal) for block in self._blocks])
        if diagonal.shape != (self.dim,):
            raise InputError(f"{self._name}: expected a diagonal of shape ({self.dim},), got {tuple(diagonal.shape)}.")
        pairs = zip(self._blocks, self._indices, strict=True)
        return self._with([block.add_diagonal(diagonal[index]) for block, index in pairs])

    def add_per_block(self, values: Tensor) -> BlockPrecision:
        """A_i + v_i I for v of shape (B,), one number a block."""
        if values.shape != (len(self._blocks),):
            raise InputError(f"{self._name}: expected {len(self._blocks)} numbers, got shape {tuple(values.shape)}.")
        return self._with([block.add_diagonal(value) for block, value in zip(self._blocks, values, strict=True)])

    def scaled(self, factor: Tensor | float) -> BlockPrecision:
        """c A_i for a positive number c."""
        return self._with([block.scaled(factor) for block in self._blocks])

    def logdet(self) -> Tensor:
        """The sum of the log determinants of the blocks, Σ_i log∣A_i∣."""
        return reduce(add, (block.logdet() for block in self._blocks))

    def multiply(self, v: Tensor) -> Tensor:
        """A v for v of shape (P,) or (P, K)."""
        return self._blockwise(lambda block, part: block.multiply(part), v)

    def solve(self, b: Tensor) -> Tensor:
        """A⁻¹ b for b of shape (P,) or (P, K)."""
        return self._blockwise(lambda block, part: block.solve(part), b)

    def sqrt_solve(self, z: Tensor) -> Tensor:
        """R z with R Rᵀ = A⁻¹, block by block, for z of shape (P,) or (P, K)."""
        return self._blockwise(lambda block, part: block.sqrt_solve(part), z)

    def covariance_of(self, tape: Tape) -> Tensor:
        """J A⁻¹ Jᵀ = Σ_i J_i A_i⁻¹ J_iᵀ per row, shape (N, K, K)."""
        pairs = zip(self._blocks, self._indices, strict=True)
        return reduce(add, (block.covariance_of(tape.part(index)) for block, index in pairs))

    def variance_of(self, tape: Tape) -> Tensor:
        """The diagonal of `covariance_of`, shape (N, K)."""
        pairs = zip(self._blocks, self._indices, strict=True)
        return reduce(add, (block.variance_of(tape.part(index)) for block, index in pairs))

    def diagonal(self) -> Tensor:
        """The diagonal of A, shape (P,)."""
        return self._placed([block.diagonal() for block in self._blocks])

    def marginal_variance(self) -> Tensor:
        """The diagonal of A⁻¹, shape (P,)."""
        return self._placed([block.marginal_variance() for block in self._blocks])

    def to_dense(self) -> Tensor:
        """The precision A as a matrix, shape (P, P)."""
        joined = torch.block_diag(*[block.to_dense() for block in self._blocks])
        return joined[self._order][:, self._order]

    def signature(self) -> str:
        """The structure and the shapes that two summands have in common."""
        return f"block: [{'; '.join(block.signature() for block in self._blocks)}]"

    def _plus(self, other: BlockPrecision) -> BlockPrecision:
        pairs = enumerate(zip(self._indices, other._indices, strict=True))
        indices = [shared(f"indices {place}", mine, theirs) for place, (mine, theirs) in pairs]
        blocks = [mine + theirs for mine, theirs in zip(self._blocks, other._blocks, strict=True)]
        return BlockPrecision(blocks, indices, self.dim, name=self._name)

    def _check_stored(self) -> None:
        BlockPrecision(self._blocks, self._indices, self.dim)

    def _with(self, blocks: list[Precision]) -> BlockPrecision:
        precision = BlockPrecision.__new__(BlockPrecision)
        precision._blocks, precision._indices, precision._name = tuple(blocks), self._indices, self._name
        precision._order = self._order
        return precision

    @cached_property
    def _order(self) -> Tensor:
        """Where each flat position stands in the blocks side by side."""
        places = torch.cat(self._indices)
        return torch.empty_like(places).index_copy_(0, places, torch.arange(len(places), device=places.device))

    def _blockwise(self, verb: Callable[[Precision, Tensor], Tensor], v: Tensor) -> Tensor:
        pairs = zip(self._blocks, self._indices, strict=True)
        return self._placed([verb(block, v[index]) for block, index in pairs])

    def _placed(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)[self._order]


@final
class BlockSum:
    """Sums over tapes, one for each block of weights.

    Args:
        sums: one for each block.
        indices: for each block the flat positions of its weights.
    """

    def __init__(self, sums: Sequence[TapeSum[Precision]], indices: Sequence[Tensor]) -> None:
        self._sums, self._indices = sums, indices

    def add(self, tape: Tape, fresh: bool, weights: Tensor | None = None) -> None:
        """Adds each block's part of the tape."""
        for block, index in zip(self._sums, self._indices, strict=True):
            block.add(tape.part(index), fresh, weights)

    def totals(self) -> list[Tensor]:
        return [total for block in self._sums for total in block.totals()]

    def finish(self) -> list[Precision]:
        """The precision of each block."""
        return [block.finish() for block in self._sums]


def _read(reading: StructureReading) -> BlockPrecision:
    sums = BlockSum([DenseSum(len(block), reading.device) for block in reading.blocks], reading.blocks)
    return BlockPrecision(reading.read(sums), reading.blocks, reading.dim)


def _hessian(reading: StructureReading) -> BlockPrecision:
    matrices = [DensePrecision(each, semidefinite=True) for each in reading.hessian_blocks(reading.blocks)]
    return BlockPrecision(matrices, reading.blocks, reading.dim)


def _bytes(asked: StructureOptions, itemsize: int) -> Bytes:  # noqa: ARG001
    return dense_bytes([len(block) for block in asked.blocks], asked.dim)


BLOCK = Structure("block", _read, _bytes, ("blocks",), _hessian, "jacobian")
