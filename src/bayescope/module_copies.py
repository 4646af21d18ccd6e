"""Copies of a user's module that share no weights with it, and whose functions call the copy."""

from __future__ import annotations

import copy
import dis
import functools
import gc
import logging
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayescope.errors import InputError


def module_copy(model: nn.Module, instead: dict[int, Any] | None = None, *, sparse: bool = False) -> nn.Module:
    """Returns a copy of a module that shares no weights with it, without gradients.

    ``copy.deepcopy`` does not copy functions: a lambda, a hook or a compiled ``forward`` that holds the module would go
    on calling the module that was copied. In the copy returned here these functions hold the copy, and compiled ones
    run as they were written.

    Args:
        model: the module.
        instead: by the id of a part, what stands in its place in the copy.
        sparse: whether embeddings with sparse gradients keep them. The gradients of the copy are dense otherwise, since
            most optimisers take no sparse ones.

    Raises:
        InputError: if it cannot be copied: its layers are nested too deeply, it has parameters without a shape, it
            keeps results of a forward pass, or a part of the copy would still use the weights of the module.
    """
    try:
        memo = {**_recomputed(initialised(model)), **(instead or {})}  # what is in there passes for a copy
        copied = copy.deepcopy(model, memo)
        _Rebinding(model, copied, memo).run()
    except RecursionError:
        raise InputError(
            "model: expected layers that are nested less deeply than Python's functions may call one another, got ones "
            f"that do not fit in {sys.getrecursionlimit()} calls. Join containers that hold nothing but one another "
            "(nn.Sequential(*layers)), or raise that number by sys.setrecursionlimit."
        ) from None
    except (RuntimeError, TypeError) as error:  # the results of a forward pass; locks and open files
        raise InputError(
            f"model: expected a module that copy.deepcopy copies, got: {error} Keep no results of a forward pass, "
            "locks or open files as attributes of the module or in its hooks."
        ) from error
    for parameter in copied.parameters():
        parameter.grad = None
    for part in () if sparse else copied.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
    return copied


def twin(model: nn.Module) -> nn.Module:
    """Returns a copy of a module that shares the values of its weights and buffers, and nothing else.

    Flags, hooks, gradients and attributes of the copy are its own.

    Raises:
        InputError: as `module_copy`.
    """
    with torch.inference_mode(False), _WithResults():
        parameters = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in initialised(model).parameters()}
        return module_copy(model, parameters | {id(buffer): buffer for buffer in model.buffers()}, sparse=True)


@final
class _WithResults(TorchFunctionMode):
    """Lets ``copy.deepcopy`` take the results of a forward pass as they are, without their graph."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach()
        return func(*args, **(kwargs or {}))


@final
class Moved(TorchFunctionMode):
    """Lets ``copy.deepcopy`` put the copies of tensors on a device; with ``None`` they are the tensors themselves.

    The parameters of modules are none of these tensors: what `module_copy` has made of a module, the memo of the copy
    has to hold.
    """

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is Tensor.__deepcopy__:
            return args[0] if self._device is None else args[0].to(self._device)
        return func(*args, **(kwargs or {}))


def initialised(model: nn.Module) -> nn.Module:
    """Returns a module whose parameters and buffers all have a shape and numbers.

    Raises:
        InputError: if a lazy layer has not seen any rows yet, or a tensor is on torch's device "meta".
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"model: expected parameters that have a shape, got {name!r} of a lazy layer that has not seen any "
                "rows yet. Call the model once on a few rows, model(X[:2]), before you pass it."
            )
        if tensor.is_meta:
            raise InputError(
                f"model: expected parameters with numbers, got {name!r} on torch's device 'meta', which keeps none. "
                "Load them: model.to_empty(device='cpu'), then model.load_state_dict(...)."
            )
    return model


def _recomputed(model: nn.Module) -> dict[int, Any]:
    """By its id, what stands in the copy for a weight that torch's own hooks compute anew before each forward pass.

    These are the hooks of ``torch.nn.utils.prune``, ``weight_norm`` and ``spectral_norm``. The weight of the last pass
    is an attribute of the layer, and its graph is what keeps it from being copied.
    """
    found = {}
    for part in model.modules():
        for hook in part._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):
                name = getattr(hook, "_tensor_name", None) or getattr(hook, "name", None)
                value = vars(part).get(name) if isinstance(name, str) else None
                if isinstance(value, Tensor):
                    found[id(value)] = value.detach().clone()
    return found


@final
class _Rebinding:
    """Gives the functions in a copied module the parts of the copy in the place of the parts of the module.

    Args:
        model: the module.
        copied: its copy.
        memo: what ``copy.deepcopy`` has copied: by the id of an object its copy.
    """

    def __init__(self, model: nn.Module, copied: nn.Module, memo: dict[int, Any]) -> None:
        self._copied, self._memo = copied, memo
        named = (*model.named_parameters(), *model.named_buffers())
        shared = {id(t) for t in (*copied.parameters(), *copied.buffers()) if not t.requires_grad}  # as a class may ask
        self._weights = {id(tensor): name for name, tensor in named if id(tensor) not in shared}
        self._originals = self._weights.keys() | {id(part) for part in model.modules()}
        self._copies: dict[int, Any] = {}
        self._made: dict[int, Any] = {}  # by the id of a function, or of one of its cells, what replaces it

    def run(self) -> None:
        """Replaces the functions, and checks that nothing else leads from the copy to the weights of the module.

        Raises:
            InputError: if something does.
        """
        while new := self._new_copies():  # copying what a function holds makes more of them
            for value in new:
                self._replace_in(value)
        path = _path(self._copied, self._weights, (), names=True)
        if path is not None:
            first = next(value for value in path if id(value) not in self._copies and not isinstance(value, dict))
            raise InputError(
                "model: expected a module that reaches its weights as self.…, got one in which "
                f"{getattr(first, '__qualname__', type(first).__name__)!r} has {self._weights[id(path[-1])]!r} from "
                "elsewhere, so that a copy of the module would go on using these very weights. Take them from self in "
                "forward, and not from a global variable, a weak reference or a cache."
            )

    def _new_copies(self) -> list[Any]:
        found = {id(value): value for key, value in self._memo.items() if key != id(self._memo)}
        new = [value for key, value in found.items() if key not in self._copies]
        self._copies |= found
        return new

    def _replace_in(self, value: object) -> None:
        """Replaces the functions that an object of the copy holds."""
        if isinstance(value, list):
            value[:] = map(self._replaced, value)
        elif isinstance(value, functools.partial):
            function, *args = map(self._replaced, (value.func, *value.args))
            keywords = {name: self._replaced(each) for name, each in value.keywords.items()}
            value.__setstate__((function, tuple(args), keywords, vars(value)))  # type: ignore[attr-defined]
        elif isinstance(value, dict) or not isinstance(value, Tensor):
            items = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            for name, each in list(items.items()):
                if (made := self._replaced(each)) is not each:
                    items[name] = made

    def _replaced(self, value: Any) -> Any:
        """What stands in the copy for a function, a method or a tuple of them; anything else unchanged."""
        functions = isinstance(value, types.FunctionType | types.MethodType)
        if not (functions or type(value) is tuple) or _path(value, self._originals, self._copies) is None:
            return value
        if isinstance(value, types.MethodType):  # what it is bound to has been copied already
            return types.MethodType(self._replaced(value.__func__), value.__self__)
        if isinstance(value, tuple):
            return tuple(map(self._replaced, value))
        if id(value) not in self._made:
            written = getattr(value, "_torchdynamo_orig_callable", None)  # of a compiled function
            self._made[id(value)] = self._rebuilt(value) if written is None else self._inside(written)
        return self._made[id(value)]

    def _rebuilt(self, function: types.FunctionType) -> types.FunctionType:
        """The function with the same code, whose cells, defaults and attributes hold parts of the copy."""
        cells = function.__closure__ or ()
        fresh = tuple(self._made.setdefault(id(cell), types.CellType()) for cell in cells)
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, fresh)
        self._made[id(function)] = made  # at once, since it may hold itself
        for cell, other in zip(cells, fresh, strict=True):
            if _contents(cell) and not _contents(other):
                other.cell_contents = self._inside(cell.cell_contents)
        made.__defaults__, made.__kwdefaults__ = map(self._inside, (function.__defaults__, function.__kwdefaults__))
        made.__dict__.update({name: self._inside(each) for name, each in vars(function).items()})
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        return made

    def _inside(self, value: object) -> Any:
        """What a function of the copy holds: a copy of what leads to the module, else the same object."""
        if _path(value, self._originals, self._copies) is None:
            return value
        return self._replaced(copy.deepcopy(value, self._memo))


def _path(start: object, ends: Container[int], closed: Container[int], *, names: bool = False) -> list[Any] | None:
    """The objects that lead from one to another whose id is among the ends, each held by the one before it."""
    before: dict[int, Any] = {id(start): None}
    waiting = deque([start])
    while waiting:
        value = waiting.popleft()
        if id(value) in ends:
            path = [value]
            while (holder := before[id(path[-1])]) is not None:
                path.append(holder)
            return path[::-1]
        for held in _held(value, names=names):
            if id(held) not in before and id(held) not in closed:
                before[id(held)] = value
                waiting.append(held)
    return None


def _held(value: object, *, names: bool) -> Iterable[Any]:
    """The objects that an object holds, as far as a call may use them.

    Args:
        value: the object.
        names: whether the global variables that a function names count, and those that a module's ``forward`` names.
    """
    if isinstance(value, _OPAQUE):
        return ()
    if isinstance(value, weakref.ref):
        return (value(),)
    if not isinstance(value, types.FunctionType):
        forward = type(value).forward if names and isinstance(value, nn.Module) else None
        return (*gc.get_referents(value), forward)
    written = getattr(value, "_torchdynamo_orig_callable", None)
    if written is not None:
        return (written,)
    inside = [content for cell in value.__closure__ or () for content in _contents(cell)]
    given = [value.__defaults__, value.__kwdefaults__, vars(value)]
    return (*inside, *given, *(_named(value.__code__, value.__globals__) if names else ()))


# What holds nothing that a call of the module could reach, or the whole of the interpreter.
_OPAQUE = (type, types.ModuleType, types.CodeType, types.FrameType, logging.Logger, Tensor, str)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """What a cell of a function holds; nothing where it has not been filled yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _named(code: types.CodeType, variables: Mapping[str, Any]) -> Iterable[Any]:
    """The global variables that code and the functions in it read: modules, tensors, and functions beside them."""
    # `co_names` has the names of attributes, too: a network called net would be taken for the net of self.net.
    for name in {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
        value = variables.get(name)
        if isinstance(value, nn.Module | Tensor) or getattr(value, "__globals__", None) is variables:
            yield value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named(constant, variables)
