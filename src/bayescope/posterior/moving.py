"""Copies of posteriors on other devices, and with networks of other floating-point types."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from bayescope.errors import InputError, InputTypeError, UnsupportedError
from bayescope.models import Model
from bayescope.module_copies import Moved, module_copy
from bayescope.network.model import network_of

T = TypeVar("T")
# What a model has computed from the weights that its module had, and what belongs to the user.
_COMPUTED = ("flat", "source", "_found")


def moved(value: T, models: Sequence[Model], device: object, dtype: object) -> T:
    """A copy of a posterior whose tensors are on a device, and whose networks have a type; see `Posterior.to`.

    Args:
        value: the posterior.
        models: all that it has.
        device: ``None`` for where each tensor is.
        dtype: ``None`` for the one that each parameter has.
    """
    place, kind = _checked_device(device), _checked_dtype(dtype)
    networks = [network for model in models if (network := network_of(model)) is not None]
    if place is not None and place.type != "cpu" and len(networks) < len(models):
        raise UnsupportedError(
            f"device: expected 'cpu' for the posterior of a model of tables, which is computed there, got {device!r}."
        )
    if kind is not None and not networks:
        raise UnsupportedError(f"dtype: expected None where there is no network: all is float64, got {kind}.")
    memo: dict[int, Any] = {}
    for network in networks:
        memo |= {id(vars(network)[name]): None for name in _COMPUTED[1:] if name in vars(network)}
        module = network.module
        if id(module) not in memo:
            memo[id(module)] = module_copy(module).to(device=place, dtype=kind)
    with Moved(place):
        copied = copy.deepcopy(value, memo)
    for network in networks:
        for name in _COMPUTED:
            vars(memo[id(network)]).pop(name, None)
    return copied


def _checked_device(device: object) -> torch.device | None:
    if device is None:
        return None
    if isinstance(device, torch.dtype):
        raise InputTypeError(f"device: expected a device, got {device}. Write dtype={device}.")
    if not isinstance(device, str | torch.device):
        raise InputTypeError(f"device: expected a name such as 'cuda', or a torch.device, got {device!r}.")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"device: expected one that torch finds here, got {str(device)!r} ({reason}).") from None
    if place.type == "meta":
        raise InputError("device: expected one that keeps numbers, got 'meta'.")
    return place


def _checked_dtype(dtype: object) -> torch.dtype | None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputTypeError(f"dtype: expected a floating-point type such as torch.float32, got {dtype!r}.")
    return dtype
