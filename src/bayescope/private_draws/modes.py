"""Calls of code that names no generator: what it draws comes from the present source.

User code runs at two places, where a network is called and where data are read. A mode stands around it there, except
where the code shows that it cannot draw.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar, final
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset, default_collate

from bayescope.private_draws.code import DRAWING, DROPOUT, SIGNATURES, CalledCode, Function, by_name
from bayescope.private_draws.sources import (
    Drawing,
    RandomSource,
    differentiated,
    present_source,
    source_of_numbers,
    unsettled,
)

_Item = TypeVar("_Item")
# By the name of an operation's overload, the name of the one that takes a generator, where it has another name.
_OVERLOADS = {
    "default": "generator",
    "low": "low_generator",
    "Tensor": "Tensor_generator",
    "low_dtype": "low_generator_dtype",
}


@contextmanager
def private_draws(seed: int = 0) -> Iterator[None]:
    """Has all code inside draw from generators that begin at a seed."""
    with RandomSource(seed).inside(), PrivateDraws():
        yield


@contextmanager
def draws_of(module: nn.Module) -> Iterator[None]:
    """Has a call of a network draw from the present source.

    A mode costs each call to torch about 7 µs. So it is on only while those layers run that may draw.
    """
    source = present_source()
    if source is None or source.globally:
        yield
        return
    calls = _CALLS.get(module)
    if calls is None or calls.state != calls.state_now():
        calls = _CALLS[module] = _Calls(module)
    token = differentiated.set(source.fit and (torch.is_grad_enabled() or differentiated.get()))
    try:
        with calls.privately():
            yield
    finally:
        differentiated.reset(token)


def drawn_privately(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items of a caller's data, whose shuffling and augmentation draw from the present source."""
    source = present_source()
    if source is None or source.globally:
        yield from items
        return
    nothing, mode = object(), PrivateDraws()
    with mode:
        iterator = iter(items)
        item: Any = next(iterator, nothing)
    # torch's own samplers draw before their first batch or from generators that they seeded then.
    later = nullcontext() if _draws_at_first(items) else mode
    while item is not nothing:
        yield item
        with later:
            item = next(iterator, nothing)


def _draws_at_first(items: Iterable[Any]) -> bool:
    """Whether a loader draws for its first batch alone."""
    if type(items) is not DataLoader or items.collate_fn is not default_collate:
        return False
    data = items.dataset
    while type(data) is Subset:
        data = data.dataset
    samplers = (items.sampler, items.batch_sampler)
    plain = all(type(each).__module__ == "torch.utils.data.sampler" for each in samplers)
    return plain and not hasattr(data, "__getitems__") and not CalledCode([data]).may_draw("__getitem__", data)


@final
class _Calls:
    """How a network is called while it has these layers and hooks and is in this mode; it keeps no layer alive.

    Attributes:
        state: the numbers of layers and hooks, and the modes.
    """

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        self._parts = [ref(part) for part in parts]
        self.state = self.state_now()
        code = CalledCode(parts)
        drawing = [part for part in parts if _may_draw(part, code)]
        hooked = (
            part is module or part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
            for part in drawing
        )
        self._mode: type[PrivateDraws | PrivateOperations] | None = None
        if any(hooked):  # hooks run outside of a layer's forward pass
            # A function mode bars torch's fused attention, which networks in eval mode take.
            fused = not module.training and any(isinstance(part, nn.MultiheadAttention) for part in parts)
            self._mode = PrivateOperations if fused else PrivateDraws
        self._layers = [] if self._mode else [(ref(part), _drawing_privately(ref(part))) for part in drawing]

    def state_now(self) -> list[int]:
        """What `state` would be now."""
        return [
            2 * (len(part._modules) + len(part._forward_hooks) + len(part._forward_pre_hooks)) + part.training
            for each in self._parts
            if (part := each()) is not None
        ]

    @contextmanager
    def privately(self) -> Iterator[None]:
        """Has the drawing layers run privately; they belong to a copy that nobody else calls meanwhile."""
        if self._mode is not None:
            with self._mode():
                yield
            return
        attributes = [(vars(each()), forward) for each, forward in self._layers]
        swapped = [(names, forward) for names, forward in attributes if "forward" not in names]
        for names, forward in swapped:
            names["forward"] = forward
        try:
            yield
        finally:
            for names, _ in swapped:
                del names["forward"]


_CALLS: WeakKeyDictionary[nn.Module, _Calls] = WeakKeyDictionary()


def _drawing_privately(layer: ReferenceType[nn.Module]) -> Callable[..., Any]:
    """The forward pass of a layer, in which it draws from the present source."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        part: Any = layer()
        if type(part) is nn.Dropout and part.p and len(args) == 1 and _plain(args[0]):
            return _dropped(source_of_numbers(), args[0], part.p, inplace=part.inplace)
        with PrivateDraws():
            return type(part).forward(part, *args, **kwargs)

    return forward


def _may_draw(part: nn.Module, code: CalledCode) -> bool:
    """Whether a layer may draw by itself, in the mode in which it is; its children are asked by themselves."""
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    known = ("torch.",) if part.training else ("torch.", "bayescope.")  # dropout that a fit inserts
    if not all(getattr(hook, "__module__", "").startswith(known) for hook in hooks):
        return True
    written = type(part).__module__
    if "forward" in vars(part) or not written.startswith(("torch.nn.", "bayescope.")):
        return code.may_draw("forward", part)
    if isinstance(part, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    rate = getattr(part, "dropout", 0.0)
    return part.training and (
        (isinstance(rate, float | int) and rate > 0) or isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU)
    )


@final
class PrivateOperations(TorchDispatchMode):
    """What draws inside, and is given no generator, draws from the present source.

    On the CPU the numbers are those that torch's global generator gives after ``torch.manual_seed(seed)``. On a GPU the
    fused kernels of attention and recurrent layers draw their dropout from the GPU's global generator: they take no
    other.
    """

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        taken, source = _arguments(func), present_source()
        if not taken or source is None:
            return func(*args, **kwargs)
        given = dict(zip(taken, args, strict=False)) | kwargs
        if given.get("generator") is not None:
            return func(*args, **kwargs)
        tensors = (value.device for value in tree_leaves(args) if isinstance(value, Tensor))
        device = torch.device(kwargs.get("device") or next(tensors, "cpu"))
        if device.type == "meta":  # without values there are no numbers to draw
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default and given["train"] is not False:  # it takes no generator
            x = given["input"]
            mask = torch.empty_like(x).bernoulli_(1.0 - given["p"], generator=source.generator(device))
            return x * mask * (0.0 if given["p"] == 1 else 1.0 / (1.0 - given["p"])), mask.bool()
        if "generator" not in taken:
            func = getattr(func.overloadpacket, _OVERLOADS.get(func._overloadname, ""), None) or func
            if "generator" not in _arguments(func):
                return func(*args, **kwargs)
        return func(*args, **kwargs | {"generator": source.generator(device)})


@cache
def _arguments(func: OpOverload) -> tuple[str, ...]:
    """What an operation takes that may draw; nothing for any other operation."""
    taken = tuple(argument.name for argument in func._schema.arguments)
    return taken if torch.Tag.nondeterministic_seeded in func.tags or "generator" in taken else ()


@final
class PrivateDraws(TorchFunctionMode):
    """`PrivateOperations` around those functions alone that draw: it costs less, and bars torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def __torch_function__(
        self, func: Function, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func not in DRAWING or kwargs.get("generator") is not None or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        if present_source() is None or os.getpid() != self._process:  # a loader's workers have their own seeds
            return func(*args, **kwargs)
        source, part = source_of_numbers(), unsettled()
        if part is not None:
            return _of_part(part, func, args, kwargs)
        if func is F.dropout and args and _plain(args[0]):
            return _dropped(source, *args, **kwargs)
        with PrivateOperations():  # some draw inside of torch's C++ code, where no function mode sees it
            return func(*args, **kwargs)


def _of_part(part: Drawing, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """A random call on a process's part of a minibatch.

    Dropout is called on the whole minibatch, the other processes' rows being zeros: the masks are those that a single
    process would draw. Other random calls, such as dropout inside attention, draw from generators of the process.
    """
    given, cut = [*args, kwargs.get("input")], part.cut
    x: Tensor = given[0]
    if func not in DROPOUT or x.ndim < 2 or x.shape[0] != cut.count:
        with part.local.inside(), PrivateOperations():
            return func(*args, **kwargs)
    before, after = (x.new_zeros(rows, *x.shape[1:]) for rows in (cut.local.start, cut.rows - cut.local.stop))
    whole = torch.cat([before, x, after])
    with PrivateOperations():
        result = func(whole, *args[1:], **{name: value for name, value in kwargs.items() if name != "input"})
    return x.copy_(result[cut.local]) if result is whole else result[cut.local]  # where it writes in place


def _plain(x: Tensor) -> bool:
    """Whether no mode but ours sees a call on a whole minibatch, and a generator of ours may draw it."""
    return torch._C._len_torch_function_stack() == 0 and x.device.type == "cpu" and unsettled() is None


def _dropped(
    source: RandomSource,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,  # noqa: ARG001
    inplace: bool = False,
) -> Tensor:
    """`F.dropout` in training, without the dispatch mode that costs more than it."""
    mask = torch.empty_like(input).bernoulli_(1.0 - p, generator=source.generator(input.device))
    if p < 1:
        mask.div_(1.0 - p)
    return input.mul_(mask) if inplace else input * mask


def _draws(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a function that may draw does."""
    if func not in SIGNATURES:
        return bool(kwargs.get("training", True))
    given = by_name(SIGNATURES[func], args, kwargs)
    if func in DROPOUT:
        _, rate, training, *_ = given.values()
        return bool(rate) and bool(training)
    return bool(given["dropout_p"]) and bool(given.get("training", True))
