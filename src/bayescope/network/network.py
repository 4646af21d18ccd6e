"""A network with some of its weights random, read batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from bayescope.errors import InputError, UnsupportedError
from bayescope.network.draws import push_forward
from bayescope.network.forward import reading
from bayescope.network.inputs import Inputs, count_rows, placed, take_rows
from bayescope.network.positions import (
    DEFAULT_LIMITS,
    HEAD_COPIES,
    Question,
    ReadingLimits,
    answer,
    by_cotangent,
    by_pair,
    chunk_size,
)
from bayescope.network.recording import Recording, Treatment
from bayescope.network.trace import rounding, trace
from bayescope.network.weights import Choice, Weights
from bayescope.precision import Precision
from bayescope.precision.structure import PartInfo
from bayescope.storage import stored
from bayescope.tape import JoinedTape, Tape
from bayescope.tape.tape import row_blocks

# A last layer needs no cotangents: at most this many rows are read at once, and as many as take this many bytes.
HEAD_ROWS = 1024
HEAD_BYTES = 128 * 2**20


@stored("network", without=("limits",))
@final
@dataclass(frozen=True, eq=False)
class Network:
    """A module, its random weights and the way in which each of them is read.

    Attributes:
        module: the module, read in eval mode and left as found.
        treatment: its random weights, and how they are read.
        limits: how much of its rows, positions and outputs is read at once.
    """

    module: nn.Module
    treatment: Treatment
    limits: ReadingLimits = DEFAULT_LIMITS

    @classmethod
    def trace(cls, module: nn.Module, inputs: Inputs, weights: Choice = "all") -> Network:
        """Finds out on a few rows of a batch how each random weight can be read, and checks it against autograd.

        Args:
            module: the network. f = module(inputs) or its ``logits``, of shape (N, ..., C).
            inputs: a batch: a tensor, a tuple of positional arguments or a dict of named ones.
            weights: "all", "last_layer", names or globs, a mask: see `Weights.select`.

        Raises:
            InputError: if rows are not independent, f has another shape, or nothing that is random is in use.
            UnsupportedError: if a parameter's gradients cannot be read row by row.
        """
        return cls(module, trace(module, inputs, weights))

    @property
    def weights(self) -> Weights:
        """Which weights are random, and their flat order."""
        return self.treatment.weights

    @property
    def parts(self) -> tuple[PartInfo, ...]:
        """The sets of weights that are read together."""
        return self.treatment.infos

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """For each part the flat positions of its weights, the very tensors that every tape carries."""
        return self.treatment.indices

    @property
    def head(self) -> bool:
        """Whether all random weights are those of one linear layer or convolution whose output is f itself."""
        return self.treatment.head

    @property
    def dim(self) -> int:
        """P, the number of random weights."""
        return self.weights.dim

    def record(self, inputs: Inputs) -> Recording:
        """Runs the network on a batch: f, and the tape under any cotangents.

        Raises:
            InputError: if the batch takes another way through the network than the one it was traced on.
            UnsupportedError: if the network came from a file, which does not keep how its weights are read.
        """
        if not self.treatment.parts:
            raise UnsupportedError(
                "network: expected one that was traced here, got one from a file, which does not keep how its weights "
                "are read. Trace it again: Network.trace(network.module, inputs, network.weights)."
            )
        return Recording(self.module, self.treatment, inputs)

    def tape(self, inputs: Inputs) -> JoinedTape:
        """The Jacobian J of the outputs: cotangents are the identity. Outputs (N, S, C) count as S C of them."""
        recording = self.record(inputs)
        shape = recording.outputs.shape[1:]
        identity = torch.eye(shape.numel(), dtype=recording.outputs.dtype, device=recording.outputs.device)
        return recording.tape(identity.unflatten(1, (1, *shape)))

    def recordings(self, inputs: Inputs) -> list[Recording]:
        """The network run on all rows, in the pieces in which its answers read them: for several questions."""
        return [self.record(placed(take_rows(inputs, rows), self.module)) for rows in self._pieces(inputs)]

    def latent_covariance(
        self,
        inputs: Inputs,
        precision: Precision,
        classes: Tensor | None = None,
        recordings: Sequence[Recording] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """J A⁻¹ Jᵀ for each row and position, shape (N, *positions, C, C), float64.

        Rows are read in pieces: few enough for the cotangents of all layers to stay within a few megabytes, or one by
        one where those of a row take more. Of dense outputs a chunk of positions is read at a time. The answer and what
        a forward pass of a piece takes come on top of that.
        Autocast, where the caller has turned it on, holds for the network and not for A.

        Args:
            inputs: a batch. As in a fit, it goes to the device of the module, and floating-point numbers get the dtype
                of its parameters.
            precision: A, over the random weights.
            classes: which outputs, int64 of shape (N, *positions, K), each row and position its own: then K stands for
                C above, and only K cotangents a row travel through the network. ``None`` for all of them.
            recordings: those of these inputs, where they are there already.
            places: the flat indices of the T positions that are asked about, for all classes and an answer of shape
                (N, T, C, C); ``None`` for all positions.

        Raises:
            InputError: if there are no rows, or A is over another number of weights.
        """
        self._check(precision)
        return self.answers(inputs, Question(precision.covariance_of, by_pair), classes, recordings, places)

    def latent_variance(
        self,
        inputs: Inputs,
        precision: Precision,
        recordings: Sequence[Recording] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """The diagonal of `latent_covariance` without the rest of it, shape (N, *positions, C): for many classes."""
        self._check(precision)
        return self.answers(inputs, Question(precision.variance_of, by_cotangent), None, recordings, places)

    def jacobian(self, inputs: Inputs) -> Tensor:
        """J for each row, shape (N, *positions, C, P), float64: N C P numbers, for few rows."""
        return self.answers(inputs, Question(_written_out, by_cotangent))

    def jacobian_product(self, inputs: Inputs, v: Tensor) -> Tensor:
        """J v for each row, shape (R, N, *positions, C), float64, for v of shape (R, P).

        Of dense outputs there are many more than directions, as a rule: forward-mode derivatives are tried first.
        """
        if len(self.treatment.outputs) > 1 and not self.head:
            moved = self._pushed_forward(placed(inputs, self.module), v)
            if moved is not None:
                return moved
        moved = self.answers(inputs, Question(lambda tape: tape.multiply(v.mT).to(torch.float64), by_cotangent))
        return moved.movedim(-1, 0)

    def _pushed_forward(self, inputs: Inputs, v: Tensor) -> Tensor | None:
        """J v by forward-mode derivatives, where torch has all of them and the first row's are right.

        They pass through ``torch.no_grad()``, by which a network may have left something out of its gradients.
        """
        try:
            with reading(self.module), torch.no_grad():
                moved = push_forward(self.module, self.weights, inputs, v, copy=self.treatment.overwrites_inputs)
        except (RuntimeError, ValueError):  # an operation without a forward-mode derivative
            return None
        recording = self.record(take_rows(inputs, slice(0, 1)))
        f = recording.outputs
        seed = torch.randn(f.shape, generator=torch.Generator().manual_seed(0)).to(f)
        want = recording.tape(seed[None]).multiply(v.mT).to(torch.float64).flatten()
        terms = (moved[:, :1] * seed).flatten(1)
        limit = rounding(f) * terms.abs().sum(1).max()
        return moved if (terms.sum(1) - want).abs().max() <= limit else None

    def _check(self, precision: Precision) -> None:
        if precision.dim != self.dim:
            raise InputError(
                f"precision: expected one over the {self.dim} random weights of this network, got {precision.dim}."
            )

    def answers(
        self,
        inputs: Inputs,
        question: Question,
        classes: Tensor | None = None,
        recordings: Sequence[Recording] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """What is asked of the tapes of J, for each row and position, shape (N, *positions, ...): rows in pieces."""
        found = []
        for piece, rows in enumerate(self._pieces(inputs)):
            some = (
                self.record(placed(take_rows(inputs, rows), self.module)) if recordings is None else recordings[piece]
            )
            found.append(answer(some, question, _some(classes, rows), places, self.limits))
        return torch.cat(found)

    @property
    def head_rows(self) -> int:
        """How many rows of a last layer are read at once: what f and the inputs of the layer take goes by the row."""
        *positions, outputs = self.treatment.outputs
        width = outputs * HEAD_COPIES + sum(part.shape[2] for part in self.parts if part.shape is not None)
        size = next(self.module.parameters()).element_size()
        return max(1, min(HEAD_ROWS, HEAD_BYTES // (math.prod(positions) * width * size)))

    def _pieces(self, inputs: Inputs) -> Iterator[slice]:
        rows = count_rows(inputs)
        if rows == 0:
            raise InputError("inputs: expected at least one row, got none.")
        if self.head:
            return row_blocks(rows, 1, self.head_rows)
        outputs = self.treatment.outputs
        chunk = chunk_size(outputs, self.limits.cotangents)
        together = self.treatment.row_numbers * chunk // max(1, outputs[:-1].numel())
        size = next(self.module.parameters()).element_size()
        return row_blocks(rows, together * size, self.limits.piece_bytes)


def _written_out(tape: Tape) -> Tensor:
    return tape.jacobian(slice(0, tape.rows)).to(torch.float64)


def _some(classes: Tensor | None, rows: slice) -> Tensor | None:
    return None if classes is None else classes[rows]
