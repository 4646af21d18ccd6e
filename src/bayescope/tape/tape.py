"""What a tape is: the Jacobian of a model on one batch, held in whatever form its reading left it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

# A block of Jacobian rows is kept near this size: large enough for the matrix product to dominate, small
# enough to stay far from the memory of the machine.
BLOCK_BYTES = 32 * 2**20

# What is written and read again at once is kept near this size, which the cache of a CPU holds; and on a GPU near the
# other, since it takes long sums to occupy one.
CACHE_BYTES = 4 * 2**20
DEVICE_BYTES = 256 * 2**20


_block_limit: ContextVar[int | None] = ContextVar("block_limit", default=None)


def block_bytes(usual: int = BLOCK_BYTES) -> int:
    """The most bytes that a block takes: the usual number, or what `block_limit` says."""
    limit = _block_limit.get()
    return usual if limit is None else limit


@contextmanager
def block_limit(limit: int) -> Iterator[None]:
    """Inside, a block takes at most this many bytes, or is a single row or draw: less memory, and more time."""
    token = _block_limit.set(limit)
    try:
        yield
    finally:
        _block_limit.reset(token)


def row_blocks(rows: int, bytes_per_row: int, limit: int | None = None) -> Iterator[slice]:
    """Consecutive ranges of ``rows`` rows, of like length, that take at most ``limit`` bytes each or are single rows.

    Args:
        rows: how many rows there are.
        bytes_per_row: what one of them takes.
        limit: `block_bytes` where it is ``None``.
    """
    most = max(1, (block_bytes() if limit is None else limit) // max(1, bytes_per_row))
    size = -(-rows // max(1, -(-rows // most)))
    for start in range(0, rows, max(1, size)):
        yield slice(start, min(start + size, rows))


def pieces(rows: int, bytes_per_row: int, device: torch.device) -> list[slice]:
    """Ranges of rows to work through: on a CPU of what its cache holds, on a GPU of what fills it.

    Where there are no rows there is one empty range: what is summed or concatenated over it has a dtype and a shape.
    """
    limit = min(block_bytes(), CACHE_BYTES) if device.type == "cpu" else DEVICE_BYTES
    return list(row_blocks(rows, bytes_per_row, limit)) or [slice(0, 0)]


@runtime_checkable
class Tape(Protocol):
    """The rows u_nk = ∂(s_nkᵀ f_n)/∂θ of N inputs and K cotangents s_nk, in P weights: U of shape (N, K, P).

    With the identity for cotangents (K = C), U is the Jacobian J of the outputs. With a root of the likelihood's
    curvature, Λ_n = S_n S_nᵀ and s_nk its columns, Σ_n U_nᵀ U_n = Σ_n J_nᵀ Λ_n J_n is the generalised Gauss-Newton
    matrix.

    U itself is never built unless `jacobian` is called: each form answers the other questions from what it holds.
    Answers have the dtype of the reading (float32 for networks in half precision).
    """

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""

    @property
    def dim(self) -> int:
        """P, the number of weights."""

    def blocks(self) -> Iterator[slice]:
        """Consecutive ranges of rows whose (n, K, P) takes at most `block_bytes` (a single row may take more)."""

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""

    def squares(self) -> Tensor:
        """Σ_nk u_nkp², shape (P,): the diagonal of Σ_n U_nᵀ U_n."""

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K), for a scale of shape (P,)."""

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K): the diagonal of `gram`, without the rest of it."""

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w = Σ_nk u_nk w_nk, shape (P, R), for w of shape (N, K, R)."""

    def part(self, indices: Tensor) -> Tape:
        """The tape of some of the weights, in the order given by their positions in this tape's flat order."""


@runtime_checkable
class FactoredTape(Tape, Protocol):
    """A tape whose rows are sums of outer products: U_nk = Σ_t g_nkt ⊗ a_nt, what a Kronecker structure can treat.

    The P weights are a matrix per group, (G, O, D) in row-major order: g has O entries, a has D. T positions share the
    weights (tokens, pixels, the calls of a module used several times). A joined bias is one more column of a, of ones.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, O, D), with G O D = P."""

    def rotated(self, left: Tensor | None, right: Tensor | None) -> Tape:
        """The tape of leftᵀ U_nk right, for U_nk as a matrix (O, D) per group: g ↦ leftᵀ g, a ↦ rightᵀ a.

        Each of left (G, O, O) or (G, O) and right (G, D, D) or (G, D) is a matrix, the diagonal of one, or ``None`` for
        the identity. In flat order U ↦ U (left ⊗ right).
        """


class Blockwise:
    """The verbs of a tape by U itself, which is written out for one block of rows at a time."""

    def blocks(self: Tape) -> Iterator[slice]:
        """Ranges of rows whose Jacobians take at most `block_bytes`."""
        return row_blocks(self.rows, 8 * self.outputs * self.dim)

    def squares(self: Tape) -> Tensor:
        return reduce(add, (u.square().sum((0, 1)) for _, u in _written_out(self)))

    def gram(self: Tape, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return torch.cat([(u * scale.to(u)) @ u.mT for _, u in _written_out(self)])

    def norms(self: Tape, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return torch.cat([u.square() @ scale.to(u) for _, u in _written_out(self)])

    def multiply(self: Tape, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return torch.cat([u @ v.to(u) for _, u in _written_out(self)])

    def transpose_multiply(self: Tape, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        products = (torch.tensordot(u, w[rows].to(u), dims=([0, 1], [0, 1])) for rows, u in _written_out(self))
        return reduce(add, products)

    def part(self: Tape, indices: Tensor) -> Tape:
        """The tape of some of the weights."""
        return SelectedTape(self, indices)


def _written_out(tape: Tape) -> Iterator[tuple[slice, Tensor]]:
    """U of each block of rows; of no rows where there are none, for its dtype and shape."""
    for rows in list(tape.blocks()) or [slice(0, 0)]:
        yield rows, tape.jacobian(rows)


@final
@dataclass(frozen=True)
class DenseTape(Blockwise):
    """The tape of weights that act entry by entry (the scale of a norm, a bare parameter), with U held.

    Where all of the weights are in use, U takes no more than the cotangents of the activations that they act on.
    Weights without such a bound have a `ComputedTape`.

    Attributes:
        values: U, shape (N, K, P).
    """

    values: Tensor

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.values.shape[0]

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.values.shape[1]

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.values.shape[2]

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self.values[rows]


@final
@dataclass(frozen=True)
class ComputedTape(Blockwise):
    """The tape of weights whose U has no form but its entries, too many of them to be held for all rows.

    Every verb computes all of U, block by block, and keeps none of it.

    Attributes:
        rows: N, the number of inputs read.
        outputs: K, the number of cotangents per input.
        dim: P, the number of weights.
        compute: U of a range of rows, shape (n, K, P); with the right dtype and shape also of no rows.
    """

    rows: int
    outputs: int
    dim: int
    compute: Callable[[slice], Tensor]

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self.compute(rows)


@final
@dataclass(frozen=True)
class SelectedTape:
    """Some weights of another tape: the others are treated as known, so that their columns of U fall away.

    Attributes:
        tape: the tape of all the weights.
        indices: the positions of the selected ones in its flat order, each at most once, shape (P,).
    """

    tape: Tape
    indices: Tensor

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.tape.rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.tape.outputs

    @property
    def dim(self) -> int:
        """P, the number of selected weights."""
        return self.indices.shape[0]

    def blocks(self) -> Iterator[slice]:
        """Ranges of rows bounded by what the tape of all the weights takes, from which columns are selected."""
        return row_blocks(self.rows, 8 * self.outputs * self.tape.dim)

    def jacobian(self, rows: slice) -> Tensor:
        """The selected columns of U, shape (n, K, P)."""
        return self.tape.jacobian(rows).index_select(-1, self.indices)

    def squares(self) -> Tensor:
        return self.tape.squares().index_select(0, self.indices)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K): the others have scale 0."""
        return self.tape.gram(self._spread(scale))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return self.tape.norms(self._spread(scale))

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return self.tape.multiply(self._spread(v))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self.tape.transpose_multiply(w).index_select(0, self.indices)

    def part(self, indices: Tensor) -> SelectedTape:
        """Some of the selected weights, straight from the tape of all."""
        return SelectedTape(self.tape, self.indices[indices])

    def _spread(self, values: Tensor) -> Tensor:
        spread = values.new_zeros(self.tape.dim, *values.shape[1:])
        return spread.index_copy(0, self.indices, values)


@final
@dataclass(frozen=True)
class SumTape(Blockwise):
    """U = Σ_i U_i for weights that enter a network in unlike ways, such as an embedding tied to the last layer.

    What is linear in U is summed over the tapes. What is quadratic has cross terms between them and goes through blocks
    of U itself; uses of one kind are better joined along their positions, as `OuterTape.join` does.

    Attributes:
        tapes: the U_i, at least one, of the same rows, cotangents and weights in the same order.
    """

    tapes: tuple[Tape, ...]

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.tapes[0].rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.tapes[0].outputs

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self.tapes[0].dim

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return reduce(add, (tape.jacobian(rows) for tape in self.tapes))

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return reduce(add, (tape.multiply(v) for tape in self.tapes))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return reduce(add, (tape.transpose_multiply(w) for tape in self.tapes))


@final
@dataclass(frozen=True)
class JoinedTape(Blockwise):
    """The tape of a network, whose parts (layers, mostly) have disjoint weights: U_nk is their rows side by side.

    Attributes:
        parts: the tapes of the parts, at least one, of the same rows and cotangents.
        indices: for each part the flat positions of its weights, in its own order. Together they are 0, …, P − 1.
        dim: P, the number of weights.
    """

    parts: tuple[Tape, ...]
    indices: tuple[Tensor, ...]
    dim: int

    @property
    def rows(self) -> int:
        """N, the number of inputs read."""
        return self.parts[0].rows

    @property
    def outputs(self) -> int:
        """K, the number of cotangents per input."""
        return self.parts[0].outputs

    def jacobian(self, rows: slice) -> Tensor:
        """U for the given rows, shape (n, K, P)."""
        return self._placed([part.jacobian(rows) for part in self.parts], -1)

    def squares(self) -> Tensor:
        return self._placed([part.squares() for part in self.parts], 0)

    def gram(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp scale_p u_nlp, shape (N, K, K)."""
        return reduce(add, (part.gram(scale[index]) for part, index in self._pairs()))

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_nkp² scale_p, shape (N, K)."""
        return reduce(add, (part.norms(scale[index]) for part, index in self._pairs()))

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (N, K, R), for v of shape (P, R)."""
        return reduce(add, (part.multiply(v[index]) for part, index in self._pairs()))

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (N, K, R)."""
        return self._placed([part.transpose_multiply(w) for part in self.parts], 0)

    def part(self, indices: Tensor) -> Tape:
        """The tape of a part, where ``indices`` are all of a part's in its order; else that of the selected weights."""
        for part, index in self._pairs():
            if index is indices:
                return part
        for part, index in self._pairs():
            if torch.equal(index, indices):
                return part
        return SelectedTape(self, indices)

    def _pairs(self) -> Iterator[tuple[Tape, Tensor]]:
        return zip(self.parts, self.indices, strict=True)

    def _placed(self, values: list[Tensor], axis: int) -> Tensor:
        shape = list(values[0].shape)
        shape[axis] = self.dim
        placed = values[0].new_zeros(shape)
        for index, value in zip(self.indices, values, strict=True):
            placed.index_copy_(axis, index, value.to(placed))
        return placed
