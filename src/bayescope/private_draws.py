"""Random numbers for code that names no generator: from generators of our own, and never from torch's global ones.

The global generators belong to the whole process: while one thread has them forked, another one sees numbers twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from functools import cache
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


@final
class PrivateOperations(TorchDispatchMode):
    """What draws inside, and is given no generator, draws from generators that begin at a seed, one for each device.

    On the CPU the numbers are those that torch's global generator gives after ``torch.manual_seed(seed)``. On a GPU the
    fused kernels of attention and recurrent layers draw their dropout from the GPU's global generator: they take no
    other.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

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
        if func is torch.ops.aten.native_dropout.default and given["train"] is not False:  # it takes no generator
            return _dropped(given["input"], given["p"], self._generator(device))
        if "generator" not in taken:
            func = getattr(func.overloadpacket, _OVERLOADS.get(func._overloadname, ""), None) or func
            if "generator" not in _arguments(func):
                return func(*args, **kwargs)
        return func(*args, **kwargs | {"generator": self._generator(device)})


@final
class PrivateDraws(TorchFunctionMode):
    """`PrivateOperations` around those functions alone that draw: it costs less, and bars torch's fused attention."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._operations = PrivateOperations(seed)
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_answered.set(False))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _answered.reset(self._tokens.pop())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _CALLS or kwargs.get("generator") is not None or _answered.get():
            return func(*args, **kwargs)
        token = _answered.set(True)  # by the innermost of these modes
        try:
            with self._operations:  # some draw inside of torch's C++ code, where no function mode sees it
                return func(*args, **kwargs)
        finally:
            _answered.reset(token)


_answered: ContextVar[bool] = ContextVar("what a function draws has its generators already", default=False)
_of_calls: ContextVar[AbstractContextManager[Any] | None] = ContextVar("what draws in calls", default=None)


@contextmanager
def global_draws() -> Iterator[None]:
    """Has torch's global generators answer what draws inside: for a training that has forked and seeded them."""
    token = _answered.set(True)
    try:
        yield
    finally:
        _answered.reset(token)


def of_calls() -> AbstractContextManager[Any]:
    """What the random numbers of a network's call come from at present."""
    return _of_calls.get() or nullcontext()


@contextmanager
def in_calls(draws: AbstractContextManager[Any]) -> Iterator[None]:
    """Has the calls of networks inside, and nothing else, draw from there."""
    token = _of_calls.set(draws)
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
