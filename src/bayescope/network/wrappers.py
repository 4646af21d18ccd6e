"""Modules that are wrapped for training on several devices or processes: what is read is the network inside."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bayescope.errors import UnsupportedError


def unwrapped(model: object) -> Any:
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
