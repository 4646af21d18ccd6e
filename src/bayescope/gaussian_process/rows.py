"""The rows U = SᵀJ of some data: held where they are few, else read from the network again, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from bayescope.curvature.kinds import Observations
from bayescope.likelihoods import Likelihood
from bayescope.network.guard import private
from bayescope.network.inputs import count_rows, map_tensors, take_rows
from bayescope.network.network import Network
from bayescope.storage import stored, unstorable
from bayescope.tape import block_bytes, row_blocks

FLOAT64 = 8
# Rows that all others are multiplied with at once are this many blocks, since each costs a pass over the others.
# Rows that take no more than this are held; others are read from the network each time.
BLOCKS = 8


@unstorable(
    "expected rows that are held, got some that are read from the data each time, at {path}. Files keep no data: take "
    "approximation='subset' or 'nystrom' with fewer points=, or bs.laplace(structure='full')."
)
@final
@dataclass(frozen=True, eq=False)
class RereadRows:
    """Rows that are read from the network each time, the same ones in the same order.

    Attributes:
        network: as it was traced.
        pieces: what each block of rows is read from: a few inputs, and their cotangents, the columns of the roots of Λ,
            shape (K, n, *positions, C).
    """

    network: Network
    pieces: tuple[tuple[Any, Tensor], ...]

    @classmethod
    def of(
        cls, network: Network, likelihood: Likelihood, batches: Iterable[tuple[Any, Tensor]], cotangents: int
    ) -> RereadRows:
        """Data cut into pieces whose U takes about a block, or single rows.

        Args:
            network: as it was traced.
            likelihood: p(y∣f).
            batches: inputs, on the network's device, with their targets.
            cotangents: K, for each row of the data.
        """
        pieces = []
        row_bytes = FLOAT64 * (cotangents * network.dim + network.treatment.row_numbers)
        for inputs, targets in batches:
            for some in row_blocks(count_rows(inputs), row_bytes):
                rows = map_tensors(torch.clone, take_rows(inputs, some))  # the caller may write to its own
                with torch.no_grad():
                    observations = Observations.read(likelihood, network.record(rows).outputs, targets[some], 0)
                    pieces.append((rows, torch.cat(list(observations.seeds("ggn", 0, None)))))
        return cls(network, tuple(pieces))

    @property
    def shape(self) -> tuple[int, int]:
        """(m, P); an input has K rows side by side."""
        return sum(seeds.shape[0] * seeds.shape[1] for _, seeds in self.pieces), self.network.dim

    @property
    def device(self) -> torch.device:
        return self.network.indices[0].device

    def blocks(self) -> Iterator[Tensor]:
        """The rows of one piece after another, shape (n K, P), float64."""
        for inputs, seeds in self.pieces:
            with private(self.network.module) as module, torch.no_grad():
                tape = replace(self.network, module=module).record(inputs).tape(seeds)
                with torch.autocast(seeds.device.type, enabled=False):
                    block = torch.cat([tape.jacobian(rows).to(torch.float64) for rows in tape.blocks()]).flatten(0, 1)
            yield block


@stored("kernel_rows", parts={"_source": Tensor})
@final
class KernelRows:
    """U of shape (m, P) as the questions that are asked of it.

    Args:
        source: the rows themselves, float64, or where they are read from.
    """

    def __init__(self, source: Tensor | RereadRows) -> None:
        self._source = source

    @property
    def count(self) -> int:
        """m, the number of rows."""
        return self._source.shape[0]

    @property
    def dim(self) -> int:
        """P, the number of weights."""
        return self._source.shape[1]

    @property
    def device(self) -> torch.device:
        return self._source.device

    def _blocks(self) -> Iterator[Tensor]:
        """The rows in order, blocks of shape (n, P), float64."""
        return iter((self._source,)) if isinstance(self._source, Tensor) else self._source.blocks()

    def multiply(self, v: Tensor) -> Tensor:
        """U v, shape (m, R), for v of shape (P, R)."""
        return torch.cat([block @ v for block in self._blocks()])

    def transpose_multiply(self, w: Tensor) -> Tensor:
        """Uᵀ w, shape (P, R), for w of shape (m, R)."""
        total, start = w.new_zeros(self.dim, w.shape[1]), 0
        for block in self._blocks():
            total.addmm_(block.mT, w[start : start + len(block)])
            start += len(block)
        return total

    def square_sums(self) -> Tensor:
        """The diagonal of UᵀU, shape (P,)."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for block in self._blocks():
            total += block.square().sum(0)
        return total

    def norms(self, scale: Tensor) -> Tensor:
        """Σ_p u_ip² scale_p, shape (m,)."""
        return torch.cat([block.square() @ scale for block in self._blocks()])

    def take(self, some: slice) -> Tensor:
        """Some consecutive rows, shape (n, P)."""
        found, first = [], 0
        for block in self._blocks():
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

    def kernel_of(self, solve: Callable[[Tensor], Tensor]) -> Tensor:
        """K = U A⁻¹ Uᵀ, shape (m, m), for a function V ↦ A⁻¹ V of (P, R): the lower half is computed."""
        lower = None
        start = 0
        for outer in self._outer():
            solved = solve(outer.mT)
            if lower is None:
                lower = outer.new_zeros(self.count, self.count)
            first = 0
            for block in self._blocks():
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
        """The rows in order, in stretches of about `BLOCKS` blocks."""
        most = max(1, BLOCKS * block_bytes() // (FLOAT64 * self.dim))
        waiting: list[Tensor] = []
        for block in self._blocks():
            if waiting and sum(map(len, waiting)) + len(block) > most:
                yield torch.cat(waiting)
                waiting = []
            waiting.append(block)
        if waiting:
            yield torch.cat(waiting)


class _Kernel(torch.autograd.Function):
    """U D⁻¹ Uᵀ, whose derivative in D⁻¹ is the diagonal of Uᵀ G U: no graph over the rows is kept."""

    @staticmethod
    def forward(ctx: Any, inverse_diagonal: Tensor, rows: KernelRows) -> Tensor:
        ctx.rows = rows
        return rows.kernel_of(lambda v: inverse_diagonal[:, None] * v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.squares(0.5 * (gradient + gradient.mT)), None
