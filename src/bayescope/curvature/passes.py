"""Passes over the data: every batch read once, under the network's guard, its cotangents a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor

from bayescope.curvature.hessian import Product, check_symmetric, hessian_product
from bayescope.curvature.kinds import Observations, begins_below
from bayescope.errors import BayescopeWarning, InputError, warn
from bayescope.likelihoods import Likelihood, place_of, warn_of_probabilities
from bayescope.network.batches import Batches, row_totals
from bayescope.network.forward import reading
from bayescope.network.inputs import Inputs, count_rows, first_not_finite, take_rows
from bayescope.network.network import Network
from bayescope.network.recording import Recording
from bayescope.progress import progress_bar
from bayescope.tape import LastHessian, Tape
from bayescope.tape.tape import row_blocks

# Two passes over the same data differ in Σ log p(y∣f) by rounding, which is far below this share of it.
SAME = 1e-4
# What to do about passes that differ by more.
DIFFERS = (
    "Take out random augmentation, draws with replacement, a shuffle that drops the last batch, and whatever else "
    "differs between passes."
)


# Takes a tape, whether it is the first of its rows, and what each row counts, ``None`` for once.
AddTape = Callable[[Tape, bool, Tensor | None], None]


@final
class Passes:
    """What is the same in all passes over the data of one fit.

    Args:
        network: as it was traced.
        batches: the data.
        likelihood: p(y∣f).
        curvature: the kind.
        seed: what the labels of the kind "fisher" are drawn with; the same ones in every pass.
        rows: the most that are read together.
        cotangents: the most that travel through the network together.
        progress: whether a bar is drawn.
        example: a batch, from which a process without rows has its shapes; see `Batches.example`.

    Attributes:
        rows: N, the number of rows of all processes; 0 before the first pass.
        log_likelihood: Σ log p(y∣f) over all observations, a float64 scalar.
        count: how many passes there have been.
        counts: whether this process has rows. Where it has none a pass gives it the example, which it must not count.
    """

    def __init__(
        self,
        network: Network,
        batches: Batches,
        likelihood: Likelihood,
        *,
        curvature: str,
        seed: int,
        rows: int,
        cotangents: int,
        progress: bool,
        example: tuple[Inputs, Tensor] | None = None,
    ) -> None:
        self.rows = self.count = 0
        self.counts = True
        self._symmetric = False  # whether a Hessian's product has been found to be
        self._example = example
        self.log_likelihood = torch.zeros((), dtype=torch.float64)
        self.network, self._batches, self._likelihood = network, batches, likelihood
        self._curvature, self._seed, self._progress = curvature, seed, progress
        self._at_once, self._cotangents = rows, cotangents

    def run(self, add: AddTape, *, moments: bool = False, positions_apart: bool = True) -> None:
        """Gives every tape of one pass to ``add``, with whether it is the first of its rows, and with their weights.

        Args:
            add: takes a tape.
            moments: whether second moments of the tapes are all that is asked for: then a last layer under the GGN is
                read through Λ itself, and no root of it is built.
            positions_apart: whether each position of f has moments of its own. Where they are summed first, Λ is read
                so only of outputs that have none.
        """

        def visit(inputs: Inputs, observe: Observe) -> Observations:
            recording = self.network.record(inputs)
            observations = observe(recording.outputs)
            direct = moments and self._curvature == "ggn" and (positions_apart or recording.outputs.ndim == 2)
            if direct and self.network.head:
                tapes: Iterator[tuple[Tape, bool]] = iter([(recording.head_tape(observations.ggn()), True)])
            elif direct and begins_below(recording):
                tapes = self._below(recording, observations)
            else:
                seeds = observations.seeds(self._curvature, self._seed, self._cotangents)
                tapes = ((recording.tape(cotangents), chunk == 0) for chunk, cotangents in enumerate(seeds))
            for tape, fresh in tapes:
                # Autocast is for the network's own products; those of the sums keep the dtype of the tape.
                with torch.autocast(recording.outputs.device.type, enabled=False):
                    add(tape, fresh, observations.row_weights)
                del tape  # else its cotangents would be there while the next ones travel
            return observations

        self._pass(visit)

    def _below(self, recording: Recording, observations: Observations) -> Iterator[tuple[Tape, bool]]:
        """Tapes whose cotangents begin below the last layer, which is read through Λ itself, once."""
        assert recording.top is not None
        hessian: LastHessian | None = observations.ggn()
        for seeds in observations.seeds_below(recording.top.matrix, self._cotangents):
            yield recording.tape_below(seeds, hessian), hessian is not None
            hessian = None

    def run_hessian(self, add: Callable[[Product], None]) -> None:
        """Gives the Hessian's product of every batch of one pass to ``add``."""

        def visit(inputs: Inputs, observe: Observe) -> Observations:
            product, observations = hessian_product(self.network.module, self.network.weights, inputs, observe)
            if not self._symmetric:
                self._symmetric = True
                device = self.network.indices[0].device
                check_symmetric(product, self.network.dim, device, self._coarsest(observations.f))
            add(product)
            return observations

        self._pass(visit)

    def sum(self, totals: list[Tensor]) -> list[Tensor]:
        """Totals over all rows, in place of those that this process has added up in a pass."""
        if not self.counts:  # the pass over the example has given the shapes, and must not count
            for total in totals:
                total.zero_()
        for total, summed in zip(totals, self._batches.sum(totals), strict=True):
            if total is not summed:
                total.copy_(summed)
        return totals

    def _coarsest(self, f: Tensor) -> torch.dtype:
        """The dtype with the largest rounding that a forward pass computes in."""
        dtypes = {f.dtype, *(p.dtype for p in self.network.module.parameters() if p.is_floating_point())}
        if torch.is_autocast_enabled(f.device.type):
            dtypes.add(torch.get_autocast_dtype(f.device.type))
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def _pass(self, visit: Callable[[Inputs, Observe], Observations]) -> None:
        local, own_total = self._own_pass(visit)
        rows, log_likelihood = row_totals(local, float(own_total))
        if self.count == 0:
            self._batches.check_shards()
            self._warn_of_dropped(int(rows))
        if self.count and (rows != self.rows or not _same(log_likelihood, float(self.log_likelihood))):
            raise InputError(
                f"data: expected every pass to give the same rows, got {self.rows} with the log likelihood "
                f"{float(self.log_likelihood):.6g} in the first and {int(rows)} with {log_likelihood:.6g} in the next. "
                f"{DIFFERS}"
            )
        self.rows, self.counts = int(rows), local > 0
        self.log_likelihood = torch.tensor(log_likelihood, dtype=torch.float64)
        self.count += 1

    def _own_pass(self, visit: Callable[[Inputs, Observe], Observations]) -> tuple[int, Tensor]:
        """This process's part of a pass: its rows, and their log likelihood."""
        rows, shard = 0, self._batches.shard
        total = torch.zeros((), dtype=torch.float64)
        # What a reading draws begins at the same seed each time, so that a shuffling loader repeats its order.
        with reading(self.network.module), torch.no_grad(), progress_bar("reading", visible=self._progress) as report:
            for inputs, targets in self._pieces():
                report(rows, max(self.rows, rows), f"the data, pass {self.count + 1}")
                observations = visit(inputs, self._observer(targets, shard.first + rows * shard.step, shard.step))
                if rows == self.count == 0:
                    warn_of_probabilities(self._likelihood, observations.f)
                rows += observations.shape[0]
                total += observations.log_likelihood().to(total)
                _require_finite(total, observations)
            if rows == 0 and self._example is not None:
                visit(self._example[0], self._observer(self._example[1], 0, 1))
        return rows, total

    def _observer(self, targets: Tensor, first: int, step: int) -> Observe:
        return partial(Observations.read, self._likelihood, targets=targets, first=first, step=step)

    def _warn_of_dropped(self, rows: int) -> None:
        dropped = int(row_totals(self._batches.dropped)[0])
        if dropped:
            warn(
                f"data: expected all {rows + dropped} rows of the data set, got {rows}: the loader drops the rest, "
                "which the posterior then knows nothing of. Make the DataLoader with drop_last=False.",
                BayescopeWarning,
            )

    def _pieces(self) -> Iterator[tuple[Inputs, Tensor]]:
        for inputs, targets in self._batches:
            blocks = list(row_blocks(count_rows(inputs), 1, self._at_once))
            if len(blocks) == 1:
                yield inputs, targets
            else:
                yield from ((take_rows(inputs, some), targets[some]) for some in blocks)


Observe = Callable[[Tensor], Observations]


def _require_finite(total: Tensor, observations: Observations) -> None:
    """Refuses a log likelihood that the last observations have made infinite or NaN."""
    if torch.isfinite(total):
        return
    index = first_not_finite(observations.f)
    culprit = "A label has probability zero, or the outputs overflow."
    if index is not None:
        place = place_of(observations.before + index, observations.positions)
        culprit = f"The model's outputs hold NaN or infinity, first in {place}: check the data there."
    raise InputError(f"data: expected a finite log likelihood, got {float(total)}. {culprit}")


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)
