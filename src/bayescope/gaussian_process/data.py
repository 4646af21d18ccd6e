"""A network with its training data, as the approximations in function space read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from bayescope.curvature.kinds import Observations
from bayescope.curvature.passes import DIFFERS, Passes
from bayescope.errors import InputError
from bayescope.gaussian_process.rows import BLOCKS, FLOAT64, KernelRows, RereadRows
from bayescope.likelihoods import Likelihood
from bayescope.memory import require_memory
from bayescope.network.batches import Batches
from bayescope.network.forward import reading
from bayescope.network.inputs import Inputs, map_tensors, take_rows
from bayescope.network.network import Network
from bayescope.network.shards import Fingerprint
from bayescope.tape import Tape, block_bytes

# Of an m×m matrix there are at once: the kernel, I + K, its factor or eigenvectors, and what a library works in.
COPIES = 4


@final
@dataclass(frozen=True, eq=False)
class TrainingData:
    """What the rows of U are read from.

    Attributes:
        network: as it was traced.
        batches: the data.
        likelihood: p(y∣f).
        rows: N.
        fingerprint: of the data, as another pass has read them.
        cotangents: K, the columns of Λ's root at all positions of a row.
        budget: the bytes that may be taken.
        points: of an approximation, how many rows it is built from.
        generator: draws them.
        progress: whether a bar is drawn.
    """

    network: Network
    batches: Batches
    likelihood: Likelihood
    rows: int
    fingerprint: str
    cotangents: int
    budget: int
    points: int | None
    generator: torch.Generator
    progress: bool

    def require_kernel(self, rows: int, *, vectors: int = 0) -> None:
        """Checks that a kernel between some of the data fits, with vectors over the weights beside it.

        Raises:
            MemoryBudgetError: if it does not; the message names what would.
        """
        side = rows * self.cotangents
        # Rows that are held, with a block more while they are read, and a stretch of them with its products.
        rows_bytes = FLOAT64 * side * self.network.dim
        needed = COPIES * FLOAT64 * (side**2 + vectors * self.network.dim)
        needed += min((BLOCKS + 1) * block_bytes(), rows_bytes) + 2 * min(BLOCKS * block_bytes(), rows_bytes)
        require_memory(
            needed,
            f"the kernel between {rows:,} rows of data with {self.cotangents:,} cotangents each",
            "Take approximation='subset', 'nystrom' or 'inducing' with fewer points=, or raise memory=.",
            budget=self.budget,
        )

    def drawn(self) -> Tensor:
        """The places of ``points`` rows, sorted."""
        assert self.points is not None
        if self.points > self.rows:
            raise InputError(f"points: expected at most the {self.rows} rows of the data, got {self.points}.")
        return torch.randperm(self.rows, generator=self.generator)[: self.points].sort().values

    def of(self, chosen: Tensor | None = None) -> KernelRows:
        """The rows U of all the data, or of those at some places in their order.

        Args:
            chosen: int64, sorted; ``None`` for all.

        Raises:
            InputError: if the data are not those of the other pass.
        """
        network = self.network
        with reading(network.module):
            source = RereadRows.of(network, self.likelihood, self._batches(chosen), self.cotangents)
            held = FLOAT64 * source.shape[0] * source.shape[1] <= BLOCKS * block_bytes()
            return KernelRows(torch.cat(list(source.blocks())) if held else source)

    def run(self, add: Callable[[Tape], None]) -> None:
        """Gives every tape of one pass over all the data to ``add``."""
        at_once = max(1, block_bytes() // (FLOAT64 * max(1, self.network.treatment.row_numbers)))
        passes = Passes(
            self.network, self.batches, self.likelihood, curvature="ggn", seed=0, rows=at_once,
            cotangents=self.cotangents, progress=self.progress,
        )  # fmt: skip
        with torch.no_grad():
            passes.run(lambda tape, *_: add(tape))

    def _batches(self, chosen: Tensor | None) -> Iterator[tuple[Any, Tensor]]:
        first, fingerprint = 0, Fingerprint()
        for inputs, targets in self.batches:
            count = len(targets)
            fingerprint.add(inputs, targets)
            if chosen is None:
                yield inputs, targets
            else:
                inside = chosen[(chosen >= first) & (chosen < first + count)] - first
                if len(inside):
                    index = inside.to(targets.device)
                    yield map_tensors(partial(torch.index_select, dim=0, index=index), inputs), targets[index]
            first += count
        if fingerprint.hex() != self.fingerprint:
            raise InputError(
                f"data: expected every pass to give the same rows, got {self.rows} in one pass and {first} in another, "
                f"which are not all the same. {DIFFERS}"
            )


def count_cotangents(network: Network, inputs: Inputs, targets: Tensor, likelihood: Likelihood) -> int:
    """K, the columns of Λ's root at all positions of a row."""
    with torch.no_grad():
        f = network.record(take_rows(inputs, slice(0, 1))).outputs
        observations = Observations.read(likelihood, f, targets[:1], 0)
        return f[0, ..., 0].numel() * observations.root().shape[0]
