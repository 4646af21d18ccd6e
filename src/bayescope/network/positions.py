"""Dense outputs: C numbers at each of several positions (tokens, pixels), whose Jacobians are asked for apart.

Nothing is ever there that holds two positions of a row at once but within a chunk of them: T positions of C outputs
have T C cotangents, and their joint covariance (T C)² numbers a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple, cast, final

import torch
from torch import Tensor

from bayescope.network.recording import Recording
from bayescope.tape import ClassTape, JoinedTape, OuterTape, StreamedTape
from bayescope.tape.tape import row_blocks

# At a last layer: the answers, and what they are made of, at this many copies of an output each.
HEAD_COPIES = 4


@final
@dataclass(frozen=True)
class ReadingLimits:
    """How much of a network's rows, positions and outputs is read at once.

    Attributes:
        cotangents: the most that a chunk of several positions has: the products between its positions are discarded.
        cotangent_bytes: the cotangents of all layers together. A row whose cotangents take more is read by chunks of
            its outputs.
        variance_bytes: the cotangents of a chunk, where variances of very many outputs are asked for. A chunk has at
            least ``cotangents`` of them.
        piece_bytes: the cotangents of all layers and rows together: a deeper network is read in pieces of fewer rows.
    """

    cotangents: int = 64
    cotangent_bytes: int = 2**30
    variance_bytes: int = 2**20
    piece_bytes: int = 8 * 2**20


DEFAULT_LIMITS = ReadingLimits()


class Question(NamedTuple):
    """What is asked of a tape whose cotangents are the identity.

    Attributes:
        ask: the answer of a tape with n rows and K cotangents, n and K its first dimensions.
        apart: the answers (n, b, C, ...) for each position by itself, from those of K = b C cotangents.
    """

    ask: Callable[[JoinedTape], Tensor]
    apart: Callable[[Tensor, int], Tensor]


def by_cotangent(answer: Tensor, positions: int) -> Tensor:
    """Answers (n, b C, ...) for each cotangent by itself, as (n, b, C, ...)."""
    return answer.unflatten(1, (positions, -1))


def by_pair(answer: Tensor, positions: int) -> Tensor:
    """Answers (n, b C, b C) for pairs of cotangents, those of one position alone, (n, b, C, C)."""
    pairs = answer.unflatten(2, (positions, -1)).unflatten(1, (positions, -1))
    return pairs.diagonal(dim1=1, dim2=3).movedim(-1, 1)


def chunk_size(outputs: torch.Size, cotangents: int) -> int:
    """How many positions have their cotangents together, for outputs (*positions, C) of a row."""
    return max(1, min(outputs[:-1].numel(), cotangents // max(1, outputs[-1])))


def answer(
    recording: Recording,
    question: Question,
    classes: Tensor | None = None,
    places: Tensor | None = None,
    limits: ReadingLimits = DEFAULT_LIMITS,
) -> Tensor:
    """The answers for all rows and positions of a recording, shape (N, *positions, ...).

    Args:
        recording: of some rows.
        question: what is asked.
        classes: which outputs of a position are asked for, int64 of shape (N, *positions, K); ``None`` for all of them.
        places: the flat indices of the T positions that are asked about, for answers of shape (N, T, ...) to all their
            outputs; ``None`` for all positions.
        limits: how much is read at once.
    """
    shape = recording.outputs.shape[1:]

    def ask(tape: JoinedTape) -> Tensor:  # the caller's autocast is for the network
        with torch.autocast(recording.outputs.device.type, enabled=False):
            return question.ask(tape)

    if recording.is_head:
        if places is not None:
            rows = torch.arange(recording.rows, device=places.device)[:, None] * shape[:-1].numel() + places
            return _by_pieces(recording.class_tape(None), ask, rows.flatten()).unflatten(0, rows.shape)
        return _by_pieces(recording.class_tape(classes), ask).unflatten(0, recording.outputs.shape[:-1])
    paired = question.apart is by_pair
    if len(shape) == 1:
        return _by_chunks(recording, classes, ask, limits, paired=paired)
    every = classes is None and places is None
    answers = [ask(tape) for tape in _rows_apart(recording, limits.cotangents)] if every else []
    if answers:
        return torch.cat(answers).unflatten(0, (recording.rows, *shape[:-1]))
    chosen = torch.arange(shape[:-1].numel()) if places is None else places
    width = shape[-1] if classes is None else classes.shape[-1]
    chunks = []
    together = chunk_size(torch.Size((*shape[:-1], width)), limits.cotangents) if places is None else 1
    most = None if paired else limits.cotangents
    for some in chosen.split(together):
        found = torch.cat([ask(recording.tape(seeds)) for seeds in _seeds(recording, classes, some, most)], 1)
        chunks.append(question.apart(found, len(some)))
    return torch.cat(chunks, 1) if places is not None else torch.cat(chunks, 1).unflatten(1, shape[:-1])


def _by_chunks(
    recording: Recording,
    classes: Tensor | None,
    ask: Callable[[JoinedTape], Tensor],
    limits: ReadingLimits,
    *,
    paired: bool,
) -> Tensor:
    """The answers for all cotangents of a row, as many at a time as memory allows, and at least one.

    Pairs of cotangents in two chunks are asked for by a tape of both: with m chunks each cotangent travels through the
    network about m times.
    """
    width = recording.outputs.shape[1] if classes is None else classes.shape[1]
    one = recording.cotangent_bytes + recording.outputs[:1].nbytes
    at_once = max(1, limits.cotangent_bytes // one) if paired else max(limits.cotangents, limits.variance_bytes // one)
    outputs = torch.arange(width, device=recording.outputs.device)

    def tape(some: Tensor) -> JoinedTape:
        return recording.tape(_identity(recording, some) if classes is None else _units(recording, classes[:, some]))

    if width <= at_once or not paired:
        return torch.cat([ask(tape(some)) for some in outputs.split(at_once)], 1)
    parts = outputs.split(max(1, at_once // 2))
    rows = [[torch.empty(0)] * len(parts) for _ in parts]
    for i, j in combinations_with_replacement(range(len(parts)), 2):
        both = ask(tape(parts[i] if i == j else torch.cat([parts[i], parts[j]])))
        size = len(parts[i])
        rows[i][j] = both[:, :size, -len(parts[j]) :]
        rows[j][i] = rows[i][j].mT
    return torch.cat([torch.cat(row, 2) for row in rows], 1)


def _by_pieces(joined: JoinedTape, ask: Callable[[JoinedTape], Tensor], chosen: Tensor | None = None) -> Tensor:
    """The answers of a last layer's tape, whose rows are all positions of all rows, some at a time."""
    (tape,) = cast(tuple[ClassTape, ...], joined.parts)
    tape = tape if chosen is None else tape.take(chosen)
    numbers = HEAD_COPIES * tape.outputs * min(tape.outputs, 2) + tape.shape[2]
    blocks = row_blocks(tape.rows, numbers * tape.activations.element_size())
    return torch.cat([ask(JoinedTape((tape.take(rows),), joined.indices, joined.dim)) for rows in blocks])


def _identity(recording: Recording, some: Tensor) -> Tensor:
    """The cotangents that pick out each of some outputs, shape (K, 1, *1, C): at all positions at once."""
    f = recording.outputs
    seeds = f.new_zeros(len(some), f.shape[-1]).scatter_(1, some[:, None], 1.0)
    return seeds.reshape(len(some), *[1] * (f.ndim - 1), f.shape[-1])


def _units(recording: Recording, classes: Tensor) -> Tensor:
    """The cotangents that pick out each row's own outputs (N, K), shape (K, N, C)."""
    seeds = recording.outputs.new_zeros(classes.shape[1], *recording.outputs.shape)
    return seeds.scatter_(2, classes.mT[..., None], 1.0)


def _seeds(recording: Recording, classes: Tensor | None, places: Tensor, most: int | None) -> Iterator[Tensor]:
    """The cotangents that pick out the outputs of b positions, by position and output.

    They are of shape (b C, 1, *positions, C), at most ``most`` at a time; of K chosen outputs a position,
    (b K, N, *positions, C), all at once.
    """
    shape, like = recording.outputs.shape[1:], recording.outputs
    positions, outputs = shape[:-1].numel(), shape[-1]
    places = places.to(like.device)
    if classes is not None:
        chosen = classes.flatten(1, -2)[:, places].movedim(0, -1)  # (b, K, N)
        seeds = like.new_zeros(*chosen.shape, positions * outputs)
        yield seeds.scatter_(3, (places[:, None, None] * outputs + chosen)[..., None], 1.0).reshape(
            -1, like.shape[0], *shape
        )
        return
    index = (places[:, None] * outputs + torch.arange(outputs, device=like.device)).flatten()
    for some in index.split(most or len(index)):
        yield like.new_zeros(len(some), positions * outputs).scatter_(1, some[:, None], 1.0).reshape(-1, 1, *shape)


def _rows_apart(recording: Recording, cotangents: int) -> Iterator[JoinedTape]:
    """Tapes in which each position is a row of its own, where that is what it is; else none.

    Where an output at one position meets the random weights at that position alone (a last layer, convolutional or
    not; layers after the last one in which positions meet), the cotangents of all positions can travel together:
    U_ntc = g_ntc ⊗ a_nt, one backward pass for each of the C outputs and not for T C of them.
    """
    shape = recording.outputs.shape
    few = shape[1:].numel() <= cotangents
    if few or not _keeps_positions(recording):
        return
    every = torch.arange(shape[-1], device=recording.outputs.device)
    joined = recording.tape(_identity(recording, every).expand(-1, 1, *shape[1:]))
    tapes = _factors(joined, shape[1:-1].numel())
    numbers = sum(tape.positions * (shape[-1] * tape.shape[0] * tape.shape[1] + tape.dim) for tape in tapes)
    for rows in row_blocks(recording.rows, numbers * recording.outputs.element_size()):
        yield JoinedTape(tuple(_apart(tape.take(rows)) for tape in tapes), joined.indices, joined.dim)


def _keeps_positions(recording: Recording) -> bool:
    """Whether no output's cotangents leave its position, at the places where random weights meet the data.

    Two positions differ in a bit of their number. Cotangents that are zero wherever a bit is 0, or wherever it is 1,
    have to be zero there at these places too: for all bits together that leaves no pair of positions out.
    """
    shape = recording.outputs.shape[1:]
    positions = shape[:-1].numel()
    bits = torch.arange(positions)[None] >> torch.arange(max(1, (positions - 1).bit_length()))[:, None] & 1
    seeded = torch.cat([bits, 1 - bits]).bool()
    noise = torch.randn(len(seeded), positions, shape[-1], generator=torch.Generator().manual_seed(0))
    seeds = (noise * seeded[..., None]).to(recording.outputs).reshape(-1, 1, *shape)
    tapes = _factors(recording.tape(seeds), positions)
    unseeded = ~seeded.to(recording.outputs.device)
    return bool(tapes) and not any(tape.take(slice(None)).cotangents.movedim(2, 1)[unseeded].any() for tape in tapes)


def _factors(joined: JoinedTape, positions: int) -> list[OuterTape | StreamedTape]:
    """The tapes of the parts, where all of them are sums of outer products over as many positions; else none."""
    tapes = [tape for tape in joined.parts if isinstance(tape, OuterTape | StreamedTape)]
    return tapes if len(tapes) == len(joined.parts) and all(tape.positions == positions for tape in tapes) else []


def _apart(tape: OuterTape) -> OuterTape:
    """The tape whose rows are the positions of the rows of another."""
    a, g = tape.activations.flatten(0, 1)[:, None], tape.cotangents
    if g.stride(2) == 0 and (g.shape[1] == 1 or g.stride(1) == 0):  # the same everywhere, as at a last linear layer
        return OuterTape(a, g[:, :1, :1], tape.bias)
    return OuterTape(a, g.expand(-1, tape.rows, -1, -1, -1).flatten(1, 2)[:, :, None], tape.bias)
