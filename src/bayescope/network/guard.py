"""A network is read in eval mode and left as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

# The modules being read at this moment: what a reading inside a reading finds is the outer one's to restore.
_guarded: ContextVar[frozenset[int]] = ContextVar("guarded modules", default=frozenset())


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Puts a module into eval mode for the time of a reading and leaves no trace of it, exceptions included.

    Restored are the training flags of every submodule, the buffers (those written in place and those replaced),
    the ``grad`` and ``requires_grad`` of every parameter, and torch's random states, on the CPU and on the GPUs that
    the module lies on. The flags are set one by one: ``module.eval()`` may be overridden to do more than that.

    Args:
        module: the network. Entering again for the same module costs nothing.
    """
    outer = _guarded.get()
    if id(module) in outer:
        yield
        return
    submodules = list(module.modules())
    training = [submodule.training for submodule in submodules]
    registered = [dict(submodule._buffers) for submodule in submodules]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    parameters = [(parameter, parameter.grad, parameter.requires_grad) for parameter in module.parameters()]
    token = _guarded.set(outer | {id(module)})
    try:
        with torch.random.fork_rng(devices=_gpus(module)):
            for submodule in submodules:
                submodule.training = False
            yield
    finally:
        _guarded.reset(token)
        for submodule, mode in zip(submodules, training, strict=True):  # before anything that may fail
            submodule.training = mode
        for parameter, gradient, required in parameters:
            parameter.requires_grad_(required)
            parameter.grad = gradient
        for submodule, found in zip(submodules, registered, strict=True):
            submodule._buffers.clear()
            submodule._buffers.update(found)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):  # a batch norm writes its statistics without a new version
                    buffer.copy_(content)


def _gpus(module: nn.Module) -> list[int]:
    """The CUDA devices that hold a part of the module."""
    held = {tensor.device for tensors in (module.parameters(), module.buffers()) for tensor in tensors}
    return sorted({device.index for device in held if device.type == "cuda"})
