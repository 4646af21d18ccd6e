"""Calls to torch, seen and answered in one place, whoever makes them: a module, a loop, or the inside of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bayescope.private_draws import SIGNATURES as CALLS_OF_DROPOUT
from bayescope.private_draws import by_name

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Rewrites = Mapping[Function, Function]


def named(*names: str) -> list[Function]:
    """The functions of these names in torch and among the methods of tensors, and the methods that write in place."""
    owners = [(torch, name) for name in names] + [(Tensor, name + end) for name in names for end in ("", "_")]
    return [getattr(owner, name) for owner, name in owners if hasattr(owner, name)]


_LINEAR = {"input": None, "weight": None, "bias": None}
_KERNEL = {**_LINEAR, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED = {**_LINEAR, "stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
_TABLE = {
    "input": None,
    "weight": None,
    "padding_idx": None,
    "max_norm": None,
    "norm_type": 2.0,
    "scale_grad_by_freq": False,
    "sparse": False,
}
_PRODUCT = {"input": None, "other": None}
KERNELS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED_KERNELS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
# The arguments of functions, in order, with their defaults.
SIGNATURES: Mapping[Function, Mapping[str, Any]] = {
    F.linear: _LINEAR,
    **dict.fromkeys(KERNELS, _KERNEL),
    **dict.fromkeys(TRANSPOSED_KERNELS, _TRANSPOSED),
    F.embedding: _TABLE,
    **dict.fromkeys(named("matmul", "mm", "__matmul__"), _PRODUCT),
    **CALLS_OF_DROPOUT,
}


def bound(func: Function, args: Args, kwargs: Kwargs) -> Kwargs:
    """The arguments of a call by name, defaults included."""
    return by_name(SIGNATURES[func], args, kwargs)


def leaves(args: Args, kwargs: Kwargs) -> Iterator[Any]:
    """The arguments of a call and, if an argument is a list or tuple, its entries."""
    for value in (*args, *kwargs.values()):
        if type(value) is list or type(value) is tuple:
            yield from value
        else:
            yield value


def replaced(args: Args, kwargs: Kwargs, replace: Callable[[Any], Any]) -> tuple[Args, Kwargs]:
    """The arguments of a call, each of their `leaves` replaced."""

    def inner(value: Any) -> Any:
        return type(value)(map(replace, value)) if type(value) in (list, tuple) else replace(value)

    return tuple(map(inner, args)), {name: inner(value) for name, value in kwargs.items()}


def flows(args: Args, kwargs: Kwargs) -> bool:
    """Whether a gradient has to pass through a call."""
    return any(isinstance(value, Tensor) and value.requires_grad for value in leaves(args, kwargs))


def plainly(func: Function, args: Args, kwargs: Kwargs) -> object:
    """What torch itself answers to a call."""
    return func(*args, **kwargs)


@final
class Interception(TorchFunctionMode):
    """Answers every call to torch that is made inside.

    Args:
        answer: from a function and its positional and named arguments to what the call returns.
        rewrites: by function, what is run in its place. The calls that a rewrite makes come here again. If it returns
            ``NotImplemented``, the call is answered as others are.
        rewritten: from the arguments of a call to whether it is rewritten.
        value: from an argument, as the network gives it, to what takes its place before anything else.
    """

    def __init__(
        self,
        answer: Callable[[Function, Args, Kwargs], object] = plainly,
        rewrites: Rewrites = MappingProxyType({}),
        rewritten: Callable[[Args, Kwargs], bool] = lambda *_: True,
        value: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self._answer, self._rewrites, self._rewritten, self._value = answer, rewrites, rewritten, value

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self._value is not None:
            args, kwargs = tuple(map(self._value, args)), {name: self._value(each) for name, each in kwargs.items()}
        if func in self._rewrites and self._rewritten(args, kwargs):
            with self:
                result = self._rewrites[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._answer(func, args, kwargs)


def observed(note: Callable[[Function, Args, Kwargs, Any], object]) -> Interception:
    """Calls to torch that are noted, with what they return, and otherwise left as they are."""

    def answer(func: Function, args: Args, kwargs: Kwargs) -> object:
        result = func(*args, **kwargs)
        note(func, args, kwargs, result)
        return result

    return Interception(answer)
