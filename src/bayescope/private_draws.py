"""Random numbers for code that names no generator: from generators of our own, and never from torch's global ones.

The global generators belong to the whole process: while one thread has them forked, another one sees numbers twice.
User code runs at two places, where a network is called and where data are read. A mode stands around it there, except
where the code shows that it cannot draw.
"""

from __future__ import annotations

import builtins
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Self, TypeVar, final
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset, default_collate

from bayescope.errors import BayescopeError

_Item = TypeVar("_Item")
# Functions that draw. Of attention and recurrent layers only those with dropout do.
DRAWING = frozenset({
    torch.bernoulli, torch.binomial, torch.multinomial, torch.normal, torch.poisson, torch.rand, torch.rand_like,
    torch.randint, torch.randint_like, torch.randn, torch.randn_like, torch.randperm, Tensor.bernoulli,
    Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_, Tensor.geometric_, Tensor.log_normal_, Tensor.multinomial,
    Tensor.normal_, Tensor.random_, Tensor.uniform_, F.gumbel_softmax, F.fractional_max_pool2d,
    F.fractional_max_pool3d, F.multi_head_attention_forward, F.scaled_dot_product_attention, torch.lstm, torch.gru,
    torch.rnn_tanh, torch.rnn_relu, torch.native_dropout, F.rrelu, torch.rrelu, torch.rrelu_, F.dropout, F.dropout1d,
    F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout, torch.dropout_,
    torch.feature_dropout, torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_,
    torch.feature_alpha_dropout, torch.feature_alpha_dropout_, torch._standard_gamma, torch._sample_dirichlet,
    F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices, nn.init.uniform_, nn.init.normal_,
    nn.init.kaiming_uniform_,
})  # fmt: skip
# Names of torch's functions that draw inside, or change a global generator.
_SEEDING = frozenset(("svd_lowrank", "pca_lowrank", "lobpcg", "seed", "manual_seed", "set_rng_state"))
# By the name of an operation's overload, the name of the one that takes a generator, where it has another name.
_OVERLOADS = {
    "default": "generator",
    "low": "low_generator",
    "Tensor": "Tensor_generator",
    "low_dtype": "low_generator_dtype",
}


class RecomputedError(BayescopeError):
    """Random numbers were asked for inside of torch.utils.checkpoint.

    The checkpoint runs a part of the network again in the backward pass, maybe in another thread, and restores torch's
    global random states for it. Numbers from other generators would be different ones then.
    """


def in_checkpoint() -> bool:
    """Whether the caller is run by torch.utils.checkpoint, in a network that we call or in its backward pass."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (name := frame.f_globals.get("__name__")) != "bayescope.network.inputs":
        if name == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


@final
class RandomSource:
    """A generator for each device, all begun at one seed: the source of the random numbers of a fit or a query.

    Two things draw from torch's global generators and from no others: fused kernels on a GPU, and the backward pass of
    torch.utils.checkpoint. For them the state of a global generator is exchanged for one that is kept here, while the
    block of `inside` lasts.

    Args:
        seed: of all generators.
        gpus: whose global generators take part.
        globally: whether the CPU's global generator does.
        fit: whether a backward pass may follow, so that numbers that it would draw again are refused.
    """

    def __init__(self, seed: int, gpus: Sequence[int] = (), *, globally: bool = False, fit: bool = False) -> None:
        self.seed, self.fit = seed, fit
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: dict[torch.Generator, Tensor] = {}
        for index in gpus:
            self._exchange_for(torch.device("cuda", index), torch.cuda.default_generators[index])
        if globally:
            self._exchange_for(torch.device("cpu"), torch.default_generator)

    @property
    def globally(self) -> bool:
        """Whether numbers on the CPU come from torch's global generator."""
        return torch.default_generator in self._kept

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of a device."""
        found = self._generators.get(device)
        if found is None:
            found = self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return found

    @contextmanager
    def inside(self) -> Iterator[Self]:
        """Random numbers of this library, of the networks that it calls and of data come from here inside."""
        token = _present.set(self)
        self._exchange(self._kept)
        try:
            yield self
        finally:
            self._exchange(self._kept)
            _present.reset(token)

    def hand_over(self) -> None:
        """Has the numbers on the CPU come from torch's global generator until the block of `inside` ends."""
        if not self.globally:
            self._exchange_for(torch.device("cpu"), torch.default_generator)
            self._exchange([torch.default_generator])

    def states(self) -> dict[str, Tensor]:
        """The states of the generators, the CPU's first."""
        self.generator(torch.device("cpu"))
        return {str(device): self._generators[device].get_state() for device in sorted(self._generators, key=str)}

    def restore(self, states: Mapping[str, Tensor]) -> None:
        """Sets the generators to given states."""
        for device, state in states.items():
            self.generator(torch.device(device)).set_state(state)

    def _exchange_for(self, device: torch.device, other: torch.Generator) -> None:
        self._kept[other] = self.generator(device).get_state()
        self._generators[device] = other

    def _exchange(self, generators: Iterable[torch.Generator]) -> None:
        for generator in generators:
            state = generator.get_state()
            generator.set_state(self._kept[generator])
            self._kept[generator] = state


_present: ContextVar[RandomSource | None] = ContextVar("the source of random numbers", default=None)
_differentiated: ContextVar[bool] = ContextVar("a backward pass may follow the present call", default=False)


def present_source() -> RandomSource | None:
    """The source of random numbers of the present fit or query; ``None`` outside of them."""
    return _present.get()


def generator_on(device: torch.device) -> torch.Generator | None:
    """The generator that this library draws from on a device; ``None``, torch's global one, outside of fits."""
    present = _present.get()
    return None if present is None else present.generator(device)


def standard_normal(shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers on the device and in the dtype of a tensor."""
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator_on(like.device))


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
    source = _present.get()
    if source is None or source.globally:
        yield
        return
    calls = _CALLS.get(module)
    if calls is None or calls.state != calls.state_now():
        calls = _CALLS[module] = _Calls(module)
    token = _differentiated.set(source.fit and (torch.is_grad_enabled() or _differentiated.get()))
    try:
        with calls.privately():
            yield
    finally:
        _differentiated.reset(token)


def drawn_privately(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items of a caller's data, whose shuffling and augmentation draw from the present source."""
    source = _present.get()
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
    own = all(type(each).__module__ == "torch.utils.data.sampler" for each in samplers)
    return own and not hasattr(data, "__getitems__") and not _Code([data]).may_draw("__getitem__", data)


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
        code = _Code(parts)
        drawing = [part for part in parts if _may_draw(part, code)]
        hooked = (part is module or part._forward_hooks or part._forward_pre_hooks for part in drawing)
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
        swapped = [(own, forward) for own, forward in attributes if "forward" not in own]
        for own, forward in swapped:
            own["forward"] = forward
        try:
            yield
        finally:
            for own, _ in swapped:
                del own["forward"]


_CALLS: WeakKeyDictionary[nn.Module, _Calls] = WeakKeyDictionary()


def _drawing_privately(layer: ReferenceType[nn.Module]) -> Callable[..., Any]:
    """The forward pass of a layer, in which it draws from the present source."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        part: Any = layer()
        if type(part) is nn.Dropout and part.p and len(args) == 1 and _plain(args[0]):
            return _dropped(_source(), args[0], part.p, inplace=part.inplace)
        with PrivateDraws():
            return type(part).forward(part, *args, **kwargs)

    return forward


def _may_draw(part: nn.Module, code: _Code) -> bool:
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
class _Code:
    """Whether methods may draw, by the names in their code: all that is not known to be harmless may.

    Args:
        owners: the objects whose attributes the code may name.
    """

    def __init__(self, owners: Sequence[Any]) -> None:
        self._owners, self._known = owners, {id(owner) for owner in owners}
        self._seen: set[CodeType] = set()

    def may_draw(self, name: str, owner: Any) -> bool:
        """Whether a method of one of the owners may."""
        return not all(map(self._harmless, _found(owner, name)[:1]))

    def _harmless(self, value: Any) -> bool:
        if isinstance(value, FunctionType):
            return value.__code__ in self._seen or self._harmless_function(value)
        if isinstance(value, property):
            return self._harmless(value.fget)
        if isinstance(value, staticmethod | classmethod):
            return self._harmless(value.__func__)
        if isinstance(value, tuple | list):
            return all(map(self._harmless, value))
        if isinstance(value, type):
            return value in _TYPES or issubclass(value, BaseException | Tensor)
        if isinstance(value, BuiltinFunctionType):
            return value.__name__ in harmless_names()
        if isinstance(value, ModuleType):
            return value in _MODULES
        return value is None or isinstance(value, _VALUES) or id(value) in self._known

    def _harmless_function(self, function: FunctionType) -> bool:
        if (function.__module__ or "").startswith("torch.") and function.__name__ in harmless_names():
            return True
        self._seen.add(function.__code__)
        given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return all(map(self._harmless, [*given, *cells])) and all(
            self._harmless_name(name, function.__globals__) for name in _names(function.__code__)
        )

    def _harmless_name(self, name: str, variables: Mapping[str, Any]) -> bool:
        meant = [value for owner in self._owners for value in _found(owner, name)]
        meant += [each[name] for each in (variables, vars(builtins)) if name in each][:1]
        return all(map(self._harmless, meant)) and (bool(meant) or name in harmless_names())


def _found(owner: Any, name: str) -> list[Any]:
    """What an object, and each class that it is of, has under a name."""
    held = getattr(owner, "__dict__", {})
    registered = (held.get(each, {}) for each in ("_modules", "_parameters", "_buffers"))
    classes = (vars(each) for each in type(owner).__mro__ if each is not nn.Module)
    return [each[name] for each in (held, *registered, *classes) if name in each]


def _names(code: CodeType) -> list[str]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return [*code.co_names, *inner]


_TYPES = frozenset(
    (bool, int, float, str, tuple, list, dict, set, range, enumerate, zip, slice, reversed, super, object)
)
_VALUES = (bool, int, float, complex, str, Tensor, torch.dtype, torch.device)
_MODULES = (torch, torch.nn, F, torch.linalg, torch.special, torch.fft, math)


@cache
def harmless_names() -> frozenset[str]:
    """The names of functions and attributes that do not draw, whichever of these has them."""
    of_torch = {
        name for owner in (*_MODULES, Tensor) for name in dir(owner)
        if not name.startswith("_") and not isinstance(getattr(owner, name, None), ModuleType | type)
    }  # fmt: skip
    of_python = {"isinstance", "len", "min", "max", "sum", "abs", "any", "all", "sorted", "round", "hasattr", "print"}
    of_python |= {"append", "extend", "items", "keys", "values"}
    drawing = {function.__name__ for function in DRAWING} | _SEEDING
    return frozenset(of_torch | of_python | {"nn", "functional"}) - drawing


@final
class PrivateOperations(TorchDispatchMode):
    """What draws inside, and is given no generator, draws from the present source.

    On the CPU the numbers are those that torch's global generator gives after ``torch.manual_seed(seed)``. On a GPU the
    fused kernels of attention and recurrent layers draw their dropout from the GPU's global generator: they take no
    other.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken, source = _arguments(func), _present.get()
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
def _arguments(func: Any) -> tuple[str, ...]:
    """What an operation takes that may draw; nothing for any other operation."""
    taken = tuple(argument.name for argument in func._schema.arguments)
    return taken if torch.Tag.nondeterministic_seeded in func.tags or "generator" in taken else ()


@final
class PrivateDraws(TorchFunctionMode):
    """`PrivateOperations` around those functions alone that draw: it costs less, and bars torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in DRAWING or kwargs.get("generator") is not None or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        if _present.get() is None or os.getpid() != self._process:  # a loader's workers have their own seeds
            return func(*args, **kwargs)
        source = _source()
        if func is F.dropout and args and _plain(args[0]):
            return _dropped(source, *args, **kwargs)
        with PrivateOperations():  # some draw inside of torch's C++ code, where no function mode sees it
            return func(*args, **kwargs)


def _source() -> RandomSource:
    """The present source, for numbers that are drawn once."""
    source = _present.get()
    assert source is not None
    if _differentiated.get() and in_checkpoint():
        raise RecomputedError("expected random numbers outside of torch.utils.checkpoint, got some inside.")
    return source


def _plain(x: Tensor) -> bool:
    """Whether no mode but ours sees a call, and a generator of ours may draw it."""
    return torch._C._len_torch_function_stack() == 0 and x.device.type == "cpu"


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


# The places of a dropout rate among a function's positional arguments.
_RATES = {F.dropout: 1, F.multi_head_attention_forward: 10, F.scaled_dot_product_attention: 4}


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a function that may draw does."""
    if func not in _RATES:
        return True
    place = _RATES[func]
    named = kwargs.get("p" if func is F.dropout else "dropout_p", 0.5 if func is F.dropout else 0.0)
    rate = args[place] if len(args) > place else named
    training = kwargs.get("training", args[2] if func is F.dropout and len(args) > 2 else True)
    return bool(rate) and bool(training)
