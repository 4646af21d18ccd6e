"""Dense outputs: C numbers at each of several positions (tokens, pixels), whose Jacobians are asked for apart.

Nothing is ever there that holds two positions of a row at once but within a chunk of them: T positions of C outputs
have T C cotangents, and their joint covariance (T C)² numbers a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import NamedTuple, cast

import torch
from torch import Tensor

from bayescope.network.recording import Recording
from bayescope.tape import ClassTape, JoinedTape, OuterTape, StreamedTape
from bayescope.tape.tape import row_blocks

# The most cotangents that a chunk of several positions has: the products between its positions are thrown away.
COTANGENTS = 64
# The cotangents of all layers that are there together: outputs of a row are asked for in chunks where they take more.
COTANGENT_BYTES = 2**30
# At a last layer: the answers, and what they are made of, at so many copies of an output each.
HEAD_COPIES = 4


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


def chunk_size(outputs: torch.Size) -> int:
    """How many positions have their cotangents together, for outputs (*positions, C) of a row."""
    return max(1, min(outputs[:-1].numel(), COTANGENTS // max(1, outputs[-1])))


def answer(
    recording: Recording, question: Question, classes: Tensor | None = None, places: Tensor | None = None
) -> Tensor:
    """The answers for all rows and positions of a recording, shape (N, *positions, ...).

    Args:
        recording: of some rows.
        question: what is asked.
        classes: which outputs of a position are asked for, int64 of shape (N, *positions, K); ``None`` for all of them.
        places: the flat indices of the T positions that are asked about, for answers of shape (N, T, ...) to all their
            outputs; ``None`` for all positions.
    """
    shape = recording.outputs.shape[1:]

    def ask(tape: JoinedTape) -> Tensor:  # the caller's autocast is for the network
        with torch.autocast(recording.outputs.device.type, enabled=False):
            return question.ask(tape)

    if places is not None and not recording.is_head:
        chunks = [question.apart(ask(recording.tape(seeds)), some) for seeds, some in _at_places(recording, places)]
        return torch.cat(chunks, 1)
    if recording.is_head:
        if places is not None:
            rows = torch.arange(recording.rows, device=places.device)[:, None] * shape[:-1].numel() + places
            return _by_pieces(recording.class_tape(None), ask, rows.flatten()).unflatten(0, rows.shape)
        return _by_pieces(recording.class_tape(classes), ask).unflatten(0, recording.outputs.shape[:-1])
    if len(shape) == 1:
        seeds = _identity(recording) if classes is None else _units(recording, classes)
        return _by_chunks(recording, seeds, ask, paired=question.apart is by_pair)
    answers = [] if classes is not None else [ask(tape) for tape in _rows_apart(recording)]
    if answers:
        return torch.cat(answers).unflatten(0, (recording.rows, *shape[:-1]))
    chunks = [question.apart(ask(recording.tape(seeds)), some) for seeds, some in _chunks(recording, classes)]
    return torch.cat(chunks, 1).unflatten(1, shape[:-1])


def _by_chunks(recording: Recording, seeds: Tensor, ask: Callable[[JoinedTape], Tensor], *, paired: bool) -> Tensor:
    """The answers for all cotangents of a row, as many at a time as memory allows, and at least one.

    Pairs of cotangents in two chunks are asked for by a tape of both: with m chunks each cotangent travels through the
    network about m times.
    """
    at_once = max(1, COTANGENT_BYTES // recording.cotangent_bytes)
    if len(seeds) <= at_once:
        return ask(recording.tape(seeds))
    if not paired:
        return torch.cat([ask(recording.tape(some)) for some in seeds.split(at_once)], 1)
    parts = seeds.split(max(1, at_once // 2))
    rows = [[torch.empty(0)] * len(parts) for _ in parts]
    for i, j in combinations_with_replacement(range(len(parts)), 2):
        both = ask(recording.tape(parts[i] if i == j else torch.cat([parts[i], parts[j]])))
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


def _identity(recording: Recording) -> Tensor:
    """The cotangents that pick out each output, shape (C, 1, *1, C): at all positions at once."""
    f = recording.outputs
    outputs = f.shape[-1]
    eye = torch.eye(outputs, dtype=f.dtype, device=f.device)
    return eye.reshape(outputs, *[1] * (f.ndim - 1), outputs)


def _units(recording: Recording, classes: Tensor) -> Tensor:
    """The cotangents that pick out each row's own outputs (N, K), shape (K, N, C)."""
    seeds = recording.outputs.new_zeros(classes.shape[1], *recording.outputs.shape)
    return seeds.scatter_(2, classes.mT[..., None], 1.0)


def _chunks(recording: Recording, classes: Tensor | None) -> Iterator[tuple[Tensor, int]]:
    """The cotangents that pick out each output of b positions, and b.

    They are of shape (b C, 1, *positions, C); of K chosen outputs a position, (b K, N, *positions, C).
    """
    shape = recording.outputs.shape[1:]
    positions, outputs, width = shape[:-1].numel(), shape[-1], shape[-1] if classes is None else classes.shape[-1]
    size = chunk_size(torch.Size((*shape[:-1], width)))
    for start in range(0, positions, size):
        some = min(size, positions - start)
        if classes is None:
            seeds = recording.outputs.new_zeros(some * outputs, positions * outputs)
            seeds.diagonal(start * outputs).fill_(1.0)
            yield seeds.reshape(-1, 1, *shape), some
            continue
        chosen = classes.flatten(1, -2)[:, start : start + some].movedim(0, -1)  # (b, K, N)
        seeds = recording.outputs.new_zeros(some, width, recording.rows, positions * outputs)
        first = outputs * torch.arange(start, start + some, device=chosen.device)[:, None, None]
        yield seeds.scatter_(3, (first + chosen)[..., None], 1.0).reshape(-1, recording.rows, *shape), some


def _at_places(recording: Recording, places: Tensor) -> Iterator[tuple[Tensor, int]]:
    """The cotangents (b C, 1, *positions, C) that pick out each output of b of the chosen positions, and b."""
    shape = recording.outputs.shape[1:]
    eye = torch.eye(shape[-1], dtype=recording.outputs.dtype, device=recording.outputs.device)
    for some in places.split(1):
        seeds = recording.outputs.new_zeros(len(some), shape[-1], shape[:-1].numel(), shape[-1])
        seeds[torch.arange(len(some)), :, some] = eye
        yield seeds.reshape(-1, 1, *shape), len(some)


def _rows_apart(recording: Recording) -> Iterator[JoinedTape]:
    """Tapes in which each position is a row of its own, where that is what it is; else none.

    Where an output at one position meets the random weights at that position alone (a last layer, convolutional or
    not; layers after the last one in which positions meet), the cotangents of all positions can travel together:
    U_ntc = g_ntc ⊗ a_nt, one backward pass for each of the C outputs and not for T C of them.
    """
    shape = recording.outputs.shape
    few = shape[1:].numel() <= COTANGENTS
    if few or not _keeps_positions(recording):
        return
    joined = recording.tape(_identity(recording).expand(-1, 1, *shape[1:]))
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
