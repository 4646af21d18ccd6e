"""The recorder: sees every call to torch that a network makes, and notes those that random weights take part in."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from bayescope.network.moves import moves_rows
from bayescope.network.notes import RANDOM, Notes, flows, replaced
from bayescope.network.pointwise import POINTWISE
from bayescope.network.rewrites import OF_WEIGHTS, REWRITES
from bayescope.network.rules import RULES, computed, unknown


@final
class Recorder(TorchFunctionMode):
    """Runs a network's calls to torch so that each site's cotangents can be asked for afterwards.

    No graph is built before the first random weight: reading a last layer is a forward pass.
    """

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = self._notes.parameters(args, kwargs)
        if moves_rows(func, args) and self._notes.parameters(args[:1], {}) is None:  # a table of weights holds no rows
            self._notes.moves_rows = True
        if found is None and not flows(args, kwargs):
            return self._constant(func(*args, **kwargs), args, kwargs)
        if found and getattr(func, "__name__", "") == "__get__":
            value = func(*args, **kwargs)
            if not (isinstance(value, Tensor) and value.requires_grad):  # a shape, the flag requires_grad, W.data
                return value
        return self._called(func, args, kwargs, found)

    def _called(self, func: Any, args: Any, kwargs: Any, found: str | None) -> Any:
        """What a call returns in which weights take part, or through which a gradient has to pass."""
        random = found == RANDOM and torch.is_grad_enabled()
        if func in REWRITES and (random or flows(args, kwargs)):
            with self:  # its own calls are seen as the network's are
                result = REWRITES[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if random and self._notes.takes_weights_alone(args, kwargs):
            followed = func in OF_WEIGHTS or self._notes.is_followed(args, kwargs)
            return (computed if followed else unknown)(self._notes, OF_WEIGHTS.get(func, func), args, kwargs)
        if random:
            return RULES.get(func, unknown)(self._notes, func, args, kwargs)
        if found:
            given = replaced(args, kwargs, self._notes.plain)
            if not flows(*given):
                return self._constant(func(*given[0], **given[1]), args, kwargs)
            args, kwargs = given
        return _differentiable(func)(*args, **kwargs)

    def _constant(self, result: Any, args: Any, kwargs: Any) -> Any:
        """What a call has returned; noted, where it took nothing that differs between rows."""
        if isinstance(result, Tensor) and not torch.is_grad_enabled():
            return result
        if self._notes.takes_weights_alone(args, kwargs):
            self._notes.note_constant(result, args)
        return result


def _differentiable(func: Any) -> Any:
    """The function in the form whose backward pass takes many cotangents at once."""
    if func is functional.scaled_dot_product_attention:
        return _attention  # the fused kernels have no batched backward pass
    return POINTWISE.get(func, func)


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*args, **kwargs)
