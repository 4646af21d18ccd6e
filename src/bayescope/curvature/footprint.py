"""How many bytes a reading of a network takes, from the sizes of its parts and one row read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from bayescope.curvature.kinds import BELOW_BYTES, DRAWN_TOGETHER, begins_below, below_columns
from bayescope.errors import InputError
from bayescope.network import Network, PartInfo
from bayescope.network.inputs import count_rows, map_tensors, take_rows, tensors
from bayescope.network.network import PIECE_BYTES
from bayescope.network.positions import COTANGENT_BYTES, COTANGENTS, HEAD_COPIES
from bayescope.network.trace import PROBES
from bayescope.precision.structure import COPIES, FLOAT64, Structure
from bayescope.tape import LookupTape, OuterTape, StreamedTape
from bayescope.tape.tape import BLOCK_BYTES, CACHE_BYTES, DEVICE_BYTES

# Numbers for each output of a row at a last layer: f, twice in float64, the softmax, Λ, and what is between.
HEAD_NUMBERS = 8
# The same before cotangents travel back: f in float64, and its log softmax.
OBSERVED = 4
# Vectors of the weights beside the curvature: the places of each part's weights, θ*, its gradient, and that of the log
# joint density while the Newton decrement is computed.
POSTERIOR = 4
# Numbers in float64 for each output of a prediction: mean and variance, and the integral over them.
INTEGRAL = 11
# U of one row and parameter after another goes through so many tensors of its size in a vectorised backward pass.
BACKWARD = 5


@final
@dataclass(frozen=True)
class Footprint:
    """The sizes that every count of bytes is made of.

    Attributes:
        parts: the network's.
        dim: P.
        rows: N, the rows of a batch.
        outputs: the entries of one row's output, S C.
        classes: C.
        itemsize: the bytes of a number in the passes.
        native: the bytes of a number in the network.
        held: the bytes that a forward pass holds of each row for the backward one.
        activations: per part, the entries of a of one row.
        cotangents: per part, the entries of g of one row and one cotangent.
        computed: per part, the entries of U of one row and one cotangent, where they are computed row by row.
        top: the place and the inputs H of the part below which the cotangents of the exact GGN begin where parts are
            summed apart.
        piece: the bytes of rows that are worked through together.

    A part that nothing depends on has no positions: there is nothing of it.
    """

    parts: tuple[PartInfo, ...]
    dim: int
    rows: int
    outputs: int
    classes: int
    itemsize: int
    native: int
    held: int
    activations: tuple[int, ...]
    cotangents: tuple[int, ...]
    computed: tuple[int, ...]
    top: tuple[int, int] | None
    piece: int

    @classmethod
    def of(cls, network: Network, inputs: Any) -> Footprint:
        """Reads one row of a batch, with one cotangent."""
        one = map_tensors(torch.clone, take_rows(inputs, slice(0, 1)))
        stored = {parameter.untyped_storage().data_ptr() for parameter in network.module.parameters()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in stored:
                kept[storage.data_ptr()] = max(kept.get(storage.data_ptr(), 0), storage.nbytes())
            return tensor.detach()

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                recording = network.record(one)
        except InputError:  # torch.func.grad inside of the network allows no such hooks; then nothing is recorded
            recording = network.record(one)
        f = recording.outputs
        tapes = recording.tape(torch.ones_like(f)[None]).parts
        activations, cotangents, computed = [], [], []
        for part, tape in zip(network.parts, tapes, strict=True):
            positions = tape.positions if isinstance(tape, OuterTape | StreamedTape | LookupTape) else 1
            groups, outputs, width = part.shape or (1, part.dim, 0)
            by_row = part.kind in ("per-row", "derived")  # U of all of the parameters, also of weights a mask has fixed
            activations.append(positions * groups * (1 if part.kind == "embedding" else width))
            cotangents.append(0 if by_row else positions * groups * outputs)
            computed.append(sum(network.module.get_parameter(name).numel() for name in part.parameters) * by_row)
        given = sum(tensor.nbytes for tensor in tensors(one))
        return cls(
            network.parts, network.dim, count_rows(inputs), f[0].numel(), f.shape[-1], f.element_size(),
            next(network.module.parameters()).element_size(),
            sum(kept.values()) + given, tuple(activations), tuple(cotangents), tuple(computed),
            (recording.top.part, recording.top.matrix.shape[1]) if begins_below(recording) and recording.top else None,
            min(BLOCK_BYTES, CACHE_BYTES) if f.device.type == "cpu" else DEVICE_BYTES,
        )  # fmt: skip

    @property
    def below(self) -> Footprint:
        """What is left where cotangents begin at the inputs of the last layer, in the place of the outputs."""
        assert self.top is not None
        top, width = self.top
        cotangents = tuple(0 if place == top else g for place, g in enumerate(self.cotangents))
        return replace(
            self, outputs=self.outputs // self.classes * width, classes=width, cotangents=cotangents, top=None
        )

    @property
    def below_columns(self) -> int:
        """The columns of a root at the inputs of the last layer, for each position."""
        return below_columns(self.classes, self.below.classes)

    def reading_below(self, below: Footprint, cotangents: int, structure: Structure, *, dense: bool) -> int:
        """One batch whose cotangents begin below the last layer, which is read as by `head`.

        Args:
            below: what is left there, of as many rows as are read at once.
            cotangents: how many travel at once.
            structure: of the curvature.
            dense: whether Σ Λ is summed, and not its diagonal alone.
        """
        one = 2 * FLOAT64 * self.classes * below.classes
        observations = below.rows * self.outputs // self.classes
        reduced = self.below_columns < self.classes  # by WᵀΛW in float64
        reducing = reduced * min(observations * one, max(BELOW_BYTES, one))
        outputs = below.rows * HEAD_NUMBERS * self.outputs * self.itemsize
        read = below.reading(cotangents, structure, below.root(self.below_columns), reducing)
        return read + outputs + 2 * dense * self.classes**2 * self.itemsize

    def tracing(self, *, head: bool) -> int:
        """A sum of the gradients of a few rows, by autograd and from the tape, while the two are compared.

        Each row has cotangents that are zero in the others, at the outputs and at every part.

        Args:
            head: whether the outputs are the only part: nothing then travels back.
        """
        travelling = 0 if head else 2 * max(self.cotangents)
        spread = PROBES * self.native * (2 * self.outputs + sum(self.cotangents) + travelling)
        sums = self.dim * (2 * self.itemsize + 2 * FLOAT64)  # and where each weight is in the flat vector, twice
        return sums + PROBES * (spread + self.held)

    def reading(self, cotangents: int, structure: Structure, root: int, reducing: int = 0) -> int:
        """One batch and so many of its cotangents: the graph, g of every part, and what is made of them.

        Args:
            cotangents: how many travel at once.
            structure: of the curvature.
            root: the bytes of the root of Λ that the cotangents are columns of.
            reducing: what is there besides while that is found.
        """
        each = self.rows * cotangents
        graph = self.rows * (self.held + OBSERVED * self.outputs * self.itemsize)
        converted = self.native != self.itemsize
        inputs = converted * self.rows * self.held * self.itemsize // self.native  # a in the dtype of the sums
        # The cotangents of f are a view of the root but where they are spread over positions, or go to another dtype.
        copied = self.outputs > self.classes or converted
        carried = each * self.itemsize * (sum(self.cotangents) + copied * self.outputs)
        travelling = each * self.native * max(self.cotangents)
        worked = max(travelling, self._written(cotangents, structure) + self._by_rows(self.rows, cotangents))
        return graph + max(2 * root + reducing, root + inputs + carried + worked)  # a root is joined from its blocks

    def drawing(self) -> int:
        """Labels being drawn, for so many observations at a time whatever the batch."""
        observations = self.rows * self.outputs // self.classes
        padded = -(-observations // DRAWN_TOGETHER) + 1
        return DRAWN_TOGETHER * self.classes * (padded * self.itemsize + OBSERVED * FLOAT64)

    def root(self, columns: int) -> int:
        """The root of Λ of one batch, with so many columns, from which chunks of cotangents are taken."""
        return self.rows * self.outputs * columns * self.itemsize

    def head(self, *, dense: bool) -> int:
        """One batch at a last layer read through the moments of Λ.

        Args:
            dense: whether Σ Λ is summed, and not its diagonal alone.
        """
        numbers = self.activations[0] + HEAD_NUMBERS * self.outputs
        return self.rows * (self.held + numbers * self.itemsize) + 2 * dense * self.classes**2 * self.itemsize

    def slope(self) -> int:
        """A batch and its gradient in the weights, with Σ over the batches."""
        return self.rows * (self.held + HEAD_NUMBERS * self.outputs * self.itemsize) + self.dim * (
            self.itemsize + FLOAT64
        )

    def variances(self, structure: Structure, *, dense: bool, head: bool, head_rows: int) -> int:
        """The variances of the outputs of one batch, as `Network.latent_variance` computes them, and an integral.

        Args:
            structure: of the curvature.
            dense: whether an output factor is a matrix.
            head: whether the weights are those of a last layer.
            head_rows: how many rows are then read at once.
        """
        answers = INTEGRAL * FLOAT64 * self.rows * self.outputs
        if not head:
            covariances = self.rows * FLOAT64 * self.outputs * self.classes
            return self.prediction(structure, head=False) - covariances + answers
        rows = min(self.rows, head_rows)
        piece = rows * (self.held + self.itemsize * (self.activations[0] + HEAD_COPIES * self.outputs))
        turned = structure.rotates and dense
        basis = COPIES * turned * self.classes**2 * self.itemsize
        return answers + piece + basis + self.dim * (FLOAT64 + self.itemsize)

    def prediction(self, structure: Structure, *, head: bool) -> int:
        """The covariance of the outputs of one batch, as `Network.latent_covariance` computes it.

        Some rows at a time, with the cotangents of a chunk of positions at once (all of them, where outputs are not
        dense), are turned into the structure's basis.

        Args:
            structure: of the curvature.
            head: whether the cotangents are the outputs themselves, and the same for all rows.
        """
        positions = self.outputs // self.classes
        together = self.classes * max(1, min(positions, COTANGENTS // self.classes))
        each = self.itemsize * (self.outputs + sum(self.cotangents) + sum(self.computed))
        together = together if head or positions > 1 else min(together, max(1, COTANGENT_BYTES // each))
        turned = 0
        if structure.rotates:
            g = 0 if head else together
            turned = max(a + g * o for a, o in zip(self.activations, self.cotangents, strict=True))
        seeded = 0 if head else together * (sum(self.cotangents) + sum(self.computed))
        rows = max(1, min(self.rows, PIECE_BYTES // max(1, seeded * self.itemsize)))
        reading = self.held + (0 if head else together * self.per_cotangent)
        worked = rows * (reading + self.itemsize * (turned + COPIES * together**2))
        blocks = self._blocks(0 if head else together) + self._by_rows(rows, together)
        return worked + blocks + self.rows * FLOAT64 * positions * self.classes**2

    @property
    def per_cotangent(self) -> int:
        """Bytes for each row and cotangent: the seed, g of every part, and the one that a backward pass works on."""
        return self.itemsize * (self.outputs + sum(self.cotangents) + max(self.cotangents))

    def _written(self, cotangents: int, structure: Structure) -> int:
        """What the rows of a tape are written out to while their sums are taken."""
        each = zip(self.parts, self.activations, self.cotangents, strict=True)
        if structure.writes == "jacobian":
            u = self.itemsize * cotangents * _alike(self.rows, BLOCK_BYTES // (FLOAT64 * cotangents * self.dim))
            # U, that of its widest part before it is placed, and U in float64 where it is not so already.
            widest = max(part.dim for part in self.parts)
            return u * (self.dim + max(widest, (self.itemsize != FLOAT64) * 2 * self.dim))
        if structure.writes == "rotated":
            return self.rows * self.itemsize * max(a + cotangents * g for _, a, g in each)
        squares = structure.writes == "squares"
        row = self.itemsize * max(_of_a_row(part, a, g, cotangents, squares=squares) for part, a, g in each)
        return min(self.rows * row, max(row, self.piece))

    def _blocks(self, cotangents: int) -> int:
        """Rows that are written out, a block at a time: unfolded inputs, or U itself."""
        widest = max(a + cotangents * g for a, g in zip(self.activations, self.cotangents, strict=True))
        row = self.itemsize * widest
        return min(self.rows * row, max(row, BLOCK_BYTES))

    def _by_rows(self, rows: int, cotangents: int) -> int:
        """What goes into U of a part that is read row by row: for a block of rows, or for one that takes more."""
        row = cotangents * max(self.computed)
        return BACKWARD * self.itemsize * row * _alike(rows, BLOCK_BYTES // max(1, FLOAT64 * row))


def _alike(rows: int, most: int) -> int:
    """The rows of a range where they are cut into ranges of like length, of at most so many, or of one."""
    return -(-rows // -(-rows // max(1, most)))


def _of_a_row(part: PartInfo, a: int, g: int, cotangents: int, *, squares: bool) -> int:
    """The numbers that a row of a tape is written out to for its Gram matrices, or for its squares.

    Args:
        part: what the tape is of.
        a: the entries of its activations, unfolded.
        g: those of one of its cotangents.
        cotangents: how many there are.
        squares: whether squares are summed, and not Gram matrices.
    """
    positions = 1 if part.shape is None else g // (part.shape[0] * part.shape[1])
    if not squares or part.kind == "embedding":
        return a + cotangents * g if positions > 1 else 0  # of one position they are views
    if positions > 2 * cotangents:  # U itself
        return a + cotangents * (g + part.dim)
    if positions > 1:  # both of each of T (T + 1)/2 pairs of positions
        return (positions + 1) * (a + cotangents * g)
    return a + g
