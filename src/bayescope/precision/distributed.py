"""Sums of precisions over processes, each of which has read its own share of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.precision.precision import Precision
from bayescope.precision.restore import restore
from bayescope.precision.state import State, unlike
from bayescope.processes import Processes, present


def all_reduce(precision: Precision, group: Any = None) -> Precision:
    """The sum of all processes' precisions, the same on each: ``+`` over torch.distributed.

    To be called by every process of the group, on the curvature of the data, before the prior is added: what has been
    added to the diagonal is summed too. `fit_curvature` and `laplace` do it by themselves, and share bases too.

    Args:
        precision: this process's.
        group: the process group; ``None`` for all processes. Without an initialised group there is one process.

    Raises:
        UnsupportedError: on every process, if the structures or shapes differ, or bases that have to be the same, or
            the structure is one that does not add.
        ProcessError: if another process has died, or does other work.
    """
    processes = present(group)
    if processes.count == 1:
        return precision
    state = precision.state()
    # All processes learn of a disagreement before any of them waits for a tensor that another never sends.
    for signature, digests in processes.gather((state.signature(), _digests(state))):
        _require_alike(state, signature)
        state.refuse_sums()
        for key, digest in _digests(state).items():
            if digests[key] != digest:
                raise unlike(state.name, key)
    return restore(_summed(processes, state))


def sum_over(processes: Processes, precision: Precision, *, counts: bool = True) -> Precision:
    """The sum of precisions whose bases are known to be the same on all processes.

    Args:
        processes: that have one each.
        precision: this process's.
        counts: whether it is to be counted; of a process without rows nothing but the shapes is.

    Raises:
        UnsupportedError: on every process, if the structures or shapes differ.
    """
    if processes.count == 1:
        return precision
    state = precision.state()
    for signature in processes.gather(state.signature()):
        _require_alike(state, signature)
    return restore(_summed(processes, state if counts else _nothing(state)))


def _require_alike(state: State, signature: str) -> None:
    if signature != state.signature():
        raise UnsupportedError(
            f"{state.name}: expected the same structure and shapes on all processes ({state.signature()}), got "
            f"{signature}. Fit all with the same model and structure."
        )


def _nothing(state: State) -> State:
    """The state of a sum over no rows at all."""
    return replace(
        state,
        sums={key: torch.zeros_like(tensor) for key, tensor in state.sums.items()},
        stacked={key: tensor[..., :0] for key, tensor in state.stacked.items()},
        parts=tuple(map(_nothing, state.parts)),
    )


def _summed(processes: Processes, state: State) -> State:
    """The state of the sum: all tensors that add, of all blocks, in one collective."""
    forms = processes.gather([_form(part) for part in _every(state)])
    diagonals = []
    for place, part in enumerate(_every(state)):
        if part.diagonal is not None:
            shape = torch.broadcast_shapes(*[form[place][0] for form in forms])
            diagonals.append(part.diagonal.expand(shape))
    own = [tensor for part in _every(state) for tensor in part.sums.values()]
    summed = iter(processes.sum([*own, *diagonals]))
    totals = [{key: next(summed) for key in part.sums} for part in _every(state)]
    over = [None if part.diagonal is None else next(summed) for part in _every(state)]
    definite = [any(form[place][1] for form in forms) for place in range(len(totals))]
    stacked = [
        {
            key: _stack(processes, tensor, [form[place][2][key] for form in forms])
            for key, tensor in part.stacked.items()
        }
        for place, part in enumerate(_every(state))
    ]
    return _with(state, iter(zip(totals, over, definite, stacked, strict=True)))


def _with(state: State, summed: Iterator[tuple[dict[str, Tensor], Tensor | None, bool, dict[str, Tensor]]]) -> State:
    """The state with what has been summed, in the order of `_every`."""
    sums, diagonal, definite, stacked = next(summed)
    parts = tuple(_with(part, summed) for part in state.parts)
    return replace(state, sums=sums, diagonal=diagonal, definite=definite, stacked=stacked, parts=parts)


def _every(state: State) -> Iterator[State]:
    """The state and its blocks, theirs too."""
    yield state
    for part in state.parts:
        yield from _every(part)


def _form(state: State) -> tuple[tuple[int, ...], bool, dict[str, tuple[int, ...]]]:
    """What may differ between processes: the shape of the diagonal and of what is stacked, and a requirement."""
    return _shape(state.diagonal), state.definite, _shapes(state.stacked)


def _stack(processes: Processes, tensor: Tensor, shapes: list[tuple[int, ...]]) -> Tensor:
    """Every process's tensor side by side along the last axis, whose length may differ, in the order of the ranks."""
    pieces = []
    for rank, shape in enumerate(shapes):
        piece = tensor.detach().clone() if rank == processes.rank else tensor.new_empty(shape)
        processes.share([piece], rank)
        pieces.append(piece)
    return torch.cat(pieces, -1)


def _digests(state: State, prefix: str = "") -> dict[str, str]:
    """A hash of each shared tensor, of the parts too: equal hashes for equal bytes."""
    own = {
        prefix + key: hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for key, tensor in state.shared.items()
    }
    for i, part in enumerate(state.parts):
        own |= _digests(part, f"{prefix}block {i} ")
    return own


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.shape)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: _shape(tensor) for key, tensor in tensors.items()}
