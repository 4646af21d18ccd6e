"""Modules that are wrapped for training on several devices or processes: what is read is the network inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bayescope.errors import InputError, UnsupportedError
from bayescope.processes import present

# Sums over the same weights differ by rounding where processes use other numbers of threads, which is far below this.
SAME = 1e-9


def unwrapped(model: Any) -> Any:
    """The network inside of `DistributedDataParallel` or `DataParallel`; anything else as it is.

    Raises:
        UnsupportedError: if its parameters are themselves spread over processes (FSDP).
    """
    inner = getattr(model, "_orig_mod", model)  # of a wrapper that has been compiled
    if isinstance(inner, DistributedDataParallel | DataParallel):
        return unwrapped(inner.module)
    if isinstance(model, nn.Module) and any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise UnsupportedError(
            "model: expected a network that each process holds as a whole, got one whose parameters are spread over "
            "processes. Gather its full state_dict, and load that into the plain network."
        )
    return model


def require_same_weights(module: nn.Module, *, own: bool = False) -> None:
    """Checks that all processes have the same module; of a single one there is nothing to check.

    Args:
        module: the network.
        own: whether it is a copy that nobody else holds. Buffers are then rank 0's everywhere, as they are with
            `DistributedDataParallel`, under which the statistics of batch norm differ between processes.

    Raises:
        InputError: on all processes, with the first parameter or buffer that differs.
    """
    processes = present()
    if processes.count == 1:
        return
    buffers = dict(module.named_buffers())
    everyone = processes.gather(_moments(module))
    ours = everyone[0]
    for rank, theirs in enumerate(everyone):
        compared = {name: slice(0, 1 if own and name in buffers else None) for name in {**ours, **theirs}}
        names = [
            name for name, some in compared.items() if not _alike(ours.get(name, ())[some], theirs.get(name, ())[some])
        ]
        if names:
            raise InputError(
                f"model: expected the same weights and buffers on all {processes.count} processes, got others in "
                f"{names[0]!r} on rank {rank} than on rank 0. Load the same state_dict everywhere, or let "
                "DistributedDataParallel share them; its buffers, such as the statistics of batch norm, differ after a "
                "training until rank 0's are broadcast."
            )
    if own:
        processes.share(list(buffers.values()))


def _moments(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """The shape, Σ θ, Σ |θ| and Σ θ² of each parameter and buffer."""
    return {name: _sums(tensor.detach()) for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _sums(tensor: Tensor) -> tuple[Any, ...]:
    values = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
    sums = [part.sum(dtype=torch.float64) for part in (values, values.abs(), values.square())]
    return tuple(tensor.shape), *torch.stack(sums).tolist()


def _alike(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two tensors have the same shape, and sums, if given, that differ by no more than rounding.

    A NaN among them is for the pass over the data to report.
    """
    if one[:1] != other[:1]:
        return False
    scales = one[2:3] + one[2:]  # Σ |θ| for Σ θ
    return not any(abs(a - b) > SAME * scale for a, b, scale in zip(one[1:], other[1:], scales, strict=True))
