"""The rows U = SᵀJ of some data: held where they are few, else read from the network again, a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, final

import torch
from torch import Tensor

from bayescope.curvature.kinds import Observations
from bayescope.likelihoods import Likelihood
from bayescope.network.guard import private
from bayescope.network.inputs import count_rows, map_tensors, take_rows
from bayescope.network.network import Network
from bayescope.storage import stored, unstorable
from bayescope.tape.tape import BLOCK_BYTES, row_blocks

FLOAT64 = 8
# Rows that are read from the network together.
PIECE_BYTES = BLOCK_BYTES
# Rows that all others are multiplied with at once: each such block costs a pass over them.
OUTER_BYTES = 8 * BLOCK_BYTES


class Source(Protocol):
    """Where the rows come from, the same ones in the same order each time."""

    @property
    def count(self) -> int:
        """m, the number of rows."""

    @property
    def dim(self) -> int:
        """P, the number of weights."""

    @property
    def device(self) -> torch.device:
        """The device that the rows are on."""

    def blocks(self) -> Iterator[Tensor]:
        """The rows in order, blocks of shape (n, P), float64."""


@stored("held_rows")
@final
@dataclass(frozen=True, eq=False)
class Held:
    """Rows that are there.

    Attributes:
        matrix: U, shape (m, P), float64.
    """

    matrix: Tensor

    @property
    def count(self) -> int:
        return self.matrix.shape[0]

    @property
    def dim(self) -> int:
        return self.matrix.shape[1]

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def blocks(self) -> Iterator[Tensor]:
        yield self.matrix


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """Some inputs with their cotangents: what a block of rows is read from.

    Attributes:
        inputs: a few rows of the data.
        seeds: the columns of the roots of Λ, shape (K, n, *positions, C).
    """

    inputs: Any
    seeds: Tensor

    @property
    def count(self) -> int:
        """n K rows of U."""
        return self.seeds.shape[0] * self.seeds.shape[1]

    def read(self, network: Network) -> Tensor:
        """U, shape (n K, P), float64: the cotangents of an input side by side."""
        with torch.no_grad():
            tape = network.record(self.inputs).tape(self.seeds)
            with torch.autocast(self.seeds.device.type, enabled=False):
                return torch.cat([tape.jacobian(rows).to(torch.float64) for rows in tape.blocks()]).flatten(0, 1)


@unstorable(
    "expected rows that are held, got some that are read from the data each time, at {path}. Files keep no data: take "
    "approximation='subset' or 'nystrom' with fewer points=, or bs.laplace(structure='full')."
)
@final
@dataclass(frozen=True, eq=False)
class Read:
    """Rows that are read from the network each time.

    Attributes:
        network: as it was traced.
        pieces: what a block of rows is read from.
    """

    network: Network
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        return sum(piece.count for piece in self.pieces)

    @property
    def dim(self) -> int:
        return self.network.dim

    @property
    def device(self) -> torch.device:
        return self.network.indices[0].device

    def blocks(self) -> Iterator[Tensor]:
        """A block for each piece."""
        for piece in self.pieces:
            with private(self.network.module) as module:
                block = piece.read(replace(self.network, module=module))
            yield block


def pieces_of(
    network: Network, likelihood: Likelihood, batches: Iterable[tuple[Any, Tensor]], cotangents: int
) -> tuple[Piece, ...]:
    """Data cut into pieces whose U takes about `PIECE_BYTES`, or single rows.

    Args:
        network: as it was traced.
        likelihood: p(y∣f).
        batches: inputs, on the network's device, with their targets.
        cotangents: K, for each row of the data.
    """
    pieces = []
    row_bytes = FLOAT64 * (cotangents * network.dim + network.treatment.row_numbers)
    for inputs, targets in batches:
        for some in row_blocks(count_rows(inputs), row_bytes, PIECE_BYTES):
            rows = map_tensors(torch.clone, take_rows(inputs, some))  # the caller may write to its own
            with torch.no_grad():
                observations = Observations.read(likelihood, network.record(rows).outputs, targets[some], 0)
                pieces.append(Piece(rows, torch.cat(list(observations.seeds("ggn", 0, None)))))
    return tuple(pieces)


@stored("rows", parts={"_source": Source})
@final
class Rows:
    """U of shape (m, P) as the questions that are asked of it.

    Args:
        source: where the rows come from.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def count(self) -> int:
        """m, the number of rows."""
        return self._source.count

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self._source.dim

    @property
    def device(self) -> torch.device:
        return self._source.device

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (m, R), for v of shape (P, R)."""
        return torch.cat([block @ v for block in self._source.blocks()])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (m, R)."""
        total, start = w.new_zeros(self.dim, w.shape[1]), 0
        for block in self._source.blocks():
            total.addmm_(block.mT, w[start : start + len(block)])
            start += len(block)
        return total

    def square_sums(self) -> Tensor:
        """The diagonal of UᵀU, shape (P,)."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for block in self._source.blocks():
            total += block.square().sum(0)
        return total

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_ip² scale_p, shape (m,)."""
        return torch.cat([block.square() @ scale for block in self._source.blocks()])

    def take(self, some: slice) -> Tensor:
        """Some consecutive rows, shape (n, P)."""
        found, first = [], 0
        for block in self._source.blocks():
            found.append(block[max(0, some.start - first) : max(0, some.stop - first)])
            first += len(block)
        return torch.cat(found)

    def squares(self, weight: Tensor) -> Tensor:
        """The diagonal of Uᵀ W U for a symmetric W of shape (m, m), shape (P,)."""
        total, start = weight.new_zeros(self.dim), 0
        for block in self._outer():
            turned = self.transpose_multiply(weight[:, start : start + len(block)])  # (P, n)
            total += (turned * block.mT).sum(1)
            start += len(block)
        return total

    def kernel(self, inverse_diagonal: Tensor) -> Tensor:
        """K = U D⁻¹ Uᵀ, shape (m, m), for D⁻¹ of shape (P,); differentiable in it."""
        kernel: Tensor = _Kernel.apply(inverse_diagonal, self)
        return kernel

    def kernel_of(self, solve: Any) -> Tensor:
        """K = U A⁻¹ Uᵀ, shape (m, m), for a function V ↦ A⁻¹ V of (P, R): the lower half is computed."""
        lower = None
        start = 0
        for outer in self._outer():
            solved = solve(outer.mT)
            if lower is None:
                lower = outer.new_zeros(self.count, self.count)
            first = 0
            for block in self._source.blocks():
                if first + len(block) > start:
                    lower[first : first + len(block), start : start + len(outer)] = block @ solved
                first += len(block)
            start += len(outer)
        assert lower is not None
        lower = lower.tril()
        return lower + lower.tril(-1).mT

    @cached_property
    def unit_kernel(self) -> Tensor:
        """U Uᵀ, shape (m, m)."""
        return self.kernel_of(lambda v: v)

    def _outer(self) -> Iterator[Tensor]:
        """The rows in order, in blocks of about `OUTER_BYTES`."""
        most = max(1, OUTER_BYTES // (FLOAT64 * self.dim))
        waiting: list[Tensor] = []
        for block in self._source.blocks():
            if waiting and sum(map(len, waiting)) + len(block) > most:
                yield torch.cat(waiting)
                waiting = []
            waiting.append(block)
        if waiting:
            yield torch.cat(waiting)


class _Kernel(torch.autograd.Function):
    """U D⁻¹ Uᵀ, whose derivative in D⁻¹ is the diagonal of Uᵀ G U: no graph over the rows is kept."""

    @staticmethod
    def forward(ctx: Any, inverse_diagonal: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.kernel_of(lambda v: inverse_diagonal[:, None] * v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.squares(0.5 * (gradient + gradient.mT)), None
