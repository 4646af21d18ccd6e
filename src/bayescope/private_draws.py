"""Random numbers for code that names no generator: from generators of our own, and never from torch's global ones.

The global generators belong to the whole process: while one thread has them forked, another one sees numbers twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from functools import cache
from typing import Any, Self, TypeVar, final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from bayescope.errors import BayescopeError
from bayescope.recomputation import in_checkpoint

_Item = TypeVar("_Item")
# Functions that draw, but for those of dropout.
RANDOM = frozenset({
    torch.bernoulli, torch.binomial, torch.multinomial, torch.normal, torch.poisson, torch.rand, torch.rand_like,
    torch.randint, torch.randint_like, torch.randn, torch.randn_like, torch.randperm, Tensor.bernoulli,
    Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_, Tensor.geometric_, Tensor.log_normal_, Tensor.multinomial,
    Tensor.normal_, Tensor.random_, Tensor.uniform_, F.gumbel_softmax, F.fractional_max_pool2d,
    F.fractional_max_pool3d, F.multi_head_attention_forward, F.scaled_dot_product_attention, torch.lstm, torch.gru,
    torch.rnn_tanh, torch.rnn_relu, torch.native_dropout, F.rrelu, torch.rrelu, torch.rrelu_,
})  # fmt: skip
_CALLS = RANDOM | {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
    torch.dropout_, torch.feature_dropout, torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_,
    torch.feature_alpha_dropout, torch.feature_alpha_dropout_, torch._standard_gamma, torch._sample_dirichlet,
    F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices, nn.init.uniform_, nn.init.normal_,
    nn.init.kaiming_uniform_,
}  # fmt: skip
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


@final
class RandomSource:
    """A generator for each device, all begun at one seed: the source of the random numbers of a fit.

    Two things draw from torch's global generators and from no others: fused kernels on a GPU, and the backward pass of
    torch.utils.checkpoint. For them the state of a global generator is exchanged for one that is kept here, while the
    block of `inside` lasts.

    Args:
        seed: of all generators.
        gpus: whose global generators take part.
        globally: whether the CPU's global generator does.
    """

    def __init__(self, seed: int, gpus: Sequence[int] = (), *, globally: bool = False) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._kept: dict[torch.Generator, Tensor] = {}
        self._calls: WeakKeyDictionary[nn.Module, _Calls] = WeakKeyDictionary()
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
        """Random numbers of this library, and of the networks that it calls, come from here until the block ends."""
        token, of_networks = _present.set(self), _of_calls.set(self._of_call)
        self._exchange(self._kept)
        try:
            yield self
        finally:
            self._exchange(self._kept)
            _of_calls.reset(of_networks)
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

    def _of_call(self, module: nn.Module) -> AbstractContextManager[Any]:
        if self.globally:
            return global_draws()
        found = self._calls.get(module)
        if found is None or found.changed():
            found = self._calls[module] = _Calls(module)
        return found.draws


@final
class _Calls:
    """How a network is called, until it gets other layers or hooks, such as dropout that a fit inserts."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())
        self._counts = self._count()
        self.draws = _draws_of(module)

    def changed(self) -> bool:
        """Whether a layer or a hook was added, or taken away."""
        return self._count() != self._counts

    def _count(self) -> list[int]:
        return [len(p._modules) + len(p._forward_hooks) + len(p._forward_pre_hooks) for p in self._parts]


def _draws_of(module: nn.Module) -> AbstractContextManager[Any]:
    """What a call of a network is made in, so that what it draws comes from the present source.

    A function mode costs each call to torch about 7 µs. So it is on only while those layers run that may draw.
    """
    drawing, mode = [part for part in module.modules() if _may_draw(part)], PrivateDraws(None)
    if any(part is module or part._forward_hooks or part._forward_pre_hooks for part in drawing):
        return mode  # hooks run outside of a layer's forward pass
    return _DrawingLayers(drawing, mode) if drawing else nullcontext()


@final
class _DrawingLayers:
    """Has some layers of a network run under a mode, until the block ends.

    Args:
        layers: of a fit's copy, which nobody else calls meanwhile.
        mode: theirs.
    """

    def __init__(self, layers: Sequence[nn.Module], mode: PrivateDraws) -> None:
        self._mode = mode
        self._forwards = [(layer.__dict__, self._under(layer.forward)) for layer in layers]

    def __enter__(self) -> None:
        self._mode.begin()
        for attributes, forward in self._forwards:
            attributes["forward"] = forward

    def __exit__(self, *error: object) -> None:
        if self._mode.end():
            for attributes, _ in self._forwards:
                del attributes["forward"]

    def _under(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._mode:
                return forward(*args, **kwargs)

        return run


def _may_draw(part: nn.Module) -> bool:
    """Whether a module may draw in training; its children are asked by themselves."""
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    if not type(part).__module__.startswith("torch.nn.") or hooks:
        return True
    return bool(getattr(part, "dropout", 0.0)) or isinstance(
        part, nn.modules.dropout._DropoutNd | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d
    )


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


def drawn_privately(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items of a caller's data, whose shuffling and augmentation draw from the present source."""
    if (present := _present.get()) is None or present.globally:
        yield from items
        return
    nothing, mode = object(), PrivateDraws(None)
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
    """Whether a loader of tensors draws for its first batch alone."""
    data = items.dataset if type(items) is DataLoader else None
    while type(data) is Subset:
        data = data.dataset
    return (
        type(items) is DataLoader
        and type(data) is TensorDataset
        and items.collate_fn is default_collate
        and all(type(each).__module__ == "torch.utils.data.sampler" for each in (items.sampler, items.batch_sampler))
    )


@final
class PrivateOperations(TorchDispatchMode):
    """What draws inside, and is given no generator, draws from generators that begin at a seed, one for each device.

    On the CPU the numbers are those that torch's global generator gives after ``torch.manual_seed(seed)``. On a GPU the
    fused kernels of attention and recurrent layers draw their dropout from the GPU's global generator: they take no
    other.

    Args:
        source: the generators; ``None`` for those of the present fit.
    """

    def __init__(self, source: RandomSource | None) -> None:
        super().__init__()
        self._source = source

    @property
    def source(self) -> RandomSource:
        """The generators that numbers come from at present."""
        source = self._source or _present.get()
        assert source is not None
        return source

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = _arguments(func)
        if not taken:
            return func(*args, **kwargs)
        given = dict(zip(taken, args, strict=False)) | kwargs
        if given.get("generator") is not None:
            return func(*args, **kwargs)
        tensors = (value.device for value in tree_leaves(args) if isinstance(value, Tensor))
        device = torch.device(kwargs.get("device") or next(tensors, "cpu"))
        if device.type == "meta":  # without values there are no numbers to draw
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default and given["train"] is not False:  # it takes no generator
            return _dropped(given["input"], given["p"], self.source.generator(device))
        if "generator" not in taken:
            func = getattr(func.overloadpacket, _OVERLOADS.get(func._overloadname, ""), None) or func
            if "generator" not in _arguments(func):
                return func(*args, **kwargs)
        return func(*args, **kwargs | {"generator": self.source.generator(device)})


@final
class PrivateDraws(TorchFunctionMode):
    """`PrivateOperations` around those functions alone that draw: it costs less, and bars torch's fused attention.

    Args:
        seed: of generators that no one else has; ``None`` for those of the present fit, which may differentiate what it
            calls.
    """

    def __init__(self, seed: int | None = 0) -> None:
        super().__init__()
        self._source = None if seed is None else RandomSource(seed)
        self._operations = PrivateOperations(self._source)
        self._left: list[Callable[[], None]] = []
        self._graphs: list[bool] = []
        self._process = os.getpid()

    def __enter__(self) -> Self:
        self.begin()
        answered = _answered.set(False)
        present: Token[RandomSource | None] | None = _present.set(self._source) if self._source is not None else None

        def leave() -> None:
            self.end()
            if present is not None:
                _present.reset(present)
            _answered.reset(answered)

        self._left.append(leave)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._left.pop()()

    def begin(self) -> None:
        """Notes whether what is called from here on may be differentiated; a part of it may switch gradients off."""
        self._graphs.append(self._source is None and (torch.is_grad_enabled() or any(self._graphs)))

    def end(self) -> bool:
        """Forgets the last note, and says whether it was the first one."""
        self._graphs.pop()
        return not self._graphs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _CALLS or kwargs.get("generator") is not None or _answered.get():
            return func(*args, **kwargs)
        if not _draws(func, args, kwargs) or os.getpid() != self._process:  # a loader's workers have their own seeds
            return func(*args, **kwargs)
        if self._graphs[-1] and not self._operations.source.globally and in_checkpoint():
            raise RecomputedError("expected random numbers outside of torch.utils.checkpoint, got some inside.")
        if func is F.dropout and torch._C._len_torch_function_stack() == 0 and args and args[0].device.type == "cpu":
            return self._dropout(*args, **kwargs)
        token = _answered.set(True)  # by the innermost of these modes
        try:
            with self._operations:  # some draw inside of torch's C++ code, where no function mode sees it
                return func(*args, **kwargs)
        finally:
            _answered.reset(token)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """`F.dropout` in training, without the dispatch mode that costs more than it."""
        mask = torch.empty_like(input).bernoulli_(1.0 - p, generator=self._operations.source.generator(input.device))
        if p < 1:
            mask.div_(1.0 - p)
        return input.mul_(mask) if inplace else input * mask


_answered: ContextVar[bool] = ContextVar("what a function draws has its generators already", default=False)
_present: ContextVar[RandomSource | None] = ContextVar("the source of random numbers", default=None)
_of_calls: ContextVar[Callable[[nn.Module], AbstractContextManager[Any]] | None] = ContextVar(
    "what draws in calls", default=None
)
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


@contextmanager
def global_draws() -> Iterator[None]:
    """Has torch's global generator answer what draws inside, for a fit that has exchanged its state."""
    token = _answered.set(True)
    try:
        yield
    finally:
        _answered.reset(token)


def of_calls(module: nn.Module) -> AbstractContextManager[Any]:
    """What the random numbers of a network's call come from at present."""
    chosen = _of_calls.get()
    return nullcontext() if chosen is None else chosen(module)


@contextmanager
def in_calls(draws: AbstractContextManager[Any]) -> Iterator[None]:
    """Has the calls of networks inside, and nothing else, draw from there."""
    token = _of_calls.set(lambda _: draws)
    try:
        yield
    finally:
        _of_calls.reset(token)


@cache
def _arguments(func: Any) -> tuple[str, ...]:
    """What an operation takes that may draw; nothing for any other operation."""
    taken = tuple(argument.name for argument in func._schema.arguments)
    return taken if torch.Tag.nondeterministic_seeded in func.tags or "generator" in taken else ()


def _dropped(x: Tensor, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Dropout in training, and its mask."""
    mask = torch.empty_like(x).bernoulli_(1.0 - rate, generator=generator)
    return x * mask * (0.0 if rate == 1 else 1.0 / (1.0 - rate)), mask.bool()
