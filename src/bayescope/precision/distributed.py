"""Sums of precisions over processes, each of which has read its own share of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed

from bayescope.errors import UnsupportedError
from bayescope.precision.precision import Precision
from bayescope.precision.restore import restore
from bayescope.precision.state import State, unlike


def all_reduce(precision: Precision, group: Any = None) -> Precision:
    """The sum of all processes' precisions, the same on each: ``+`` over torch.distributed.

    To be called by every process of the group, on the curvature of the data, before the prior is added: what has been
    added to the diagonal is summed too. Each tensor is reduced by itself; the vectors of a low rank are gathered.

    Args:
        precision: this process's, on a device that the group's backend communicates from.
        group: the process group; ``None`` for all processes. Without an initialised group there is one process.

    Raises:
        UnsupportedError: on every process, if the structures or shapes differ, or bases that have to be the same, or
            the structure is one that does not add.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size(group) == 1:
        return precision
    return restore(_reduced(precision.state(), group))


def _reduced(state: State, group: Any) -> State:
    # All processes learn of a disagreement before any of them waits for a tensor that another never sends.
    everyone = _gathered((state.signature(), _digests(state)), group)
    for signature, digests in everyone:
        if signature != state.signature():
            raise UnsupportedError(
                f"{state.name}: expected the same structure and shapes on all processes ({state.signature()}), got "
                f"{signature}. Fit all with the same model and structure."
            )
        state.refuse_sums()
        for key, digest in _digests(state).items():
            if digests[key] != digest:
                raise unlike(state.name, key)
    return _summed(state, group)


def _summed(state: State, group: Any) -> State:
    everyone = _gathered((_shape(state.diagonal), state.definite, _shapes(state.stacked)), group)
    shape = torch.broadcast_shapes(*[shape for shape, _, _ in everyone])
    return State(
        state.structure,
        state.name,
        {key: _sum(tensor, group) for key, tensor in state.sums.items()},
        state.shared,
        {
            key: _stack(tensor, [shapes[key] for _, _, shapes in everyone], group)
            for key, tensor in state.stacked.items()
        },
        None if state.diagonal is None else _sum(state.diagonal.expand(shape), group),
        any(definite for _, definite, _ in everyone),
        tuple(_summed(part, group) for part in state.parts),
    )


def _sum(tensor: Tensor, group: Any) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def _stack(tensor: Tensor, shapes: list[tuple[int, ...]], group: Any) -> Tensor:
    """Every process's tensor side by side along the last axis, whose length may differ, in the order of the ranks."""
    pieces = []
    for rank, shape in enumerate(shapes):
        mine = rank == distributed.get_rank(group)
        piece = tensor.detach().contiguous().clone() if mine else tensor.new_empty(shape)
        distributed.broadcast(piece, distributed.get_global_rank(group, rank) if group else rank, group=group)
        pieces.append(piece)
    return torch.cat(pieces, -1)


def _gathered(value: Any, group: Any) -> list[Any]:
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, value, group=group)
    return everyone


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
