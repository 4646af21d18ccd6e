"""Which code cannot draw, by the names in it."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]
_DROPOUT = {"input": None, "p": 0.5, "training": True, "inplace": False}
_ALPHA = {**_DROPOUT, "training": False}
_DROP = {"input": None, "p": None, "train": None}
# The functions of dropout: their arguments in order, with their defaults.
DROPOUT: Mapping[Function, Mapping[str, Any]] = {
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), _DROPOUT),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), _ALPHA),
    **dict.fromkeys((torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout), _DROP),
    **dict.fromkeys((torch.dropout_, torch.feature_dropout_), _DROP),
    **dict.fromkeys((torch.alpha_dropout_, torch.feature_alpha_dropout_), _DROP),
}
# By function of dropout or attention, its arguments in order with their defaults.
SIGNATURES: Mapping[Function, Mapping[str, Any]] = {
    **DROPOUT,
    F.multi_head_attention_forward: {
        name: each.default for name, each in signature(F.multi_head_attention_forward).parameters.items()
    },
    F.scaled_dot_product_attention: {
        **dict.fromkeys(("query", "key", "value", "attn_mask")),
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": None,
        "enable_gqa": False,
    },
}


def by_name(names: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: given.get(name, default) for name, default in names.items()}


# Functions that draw. Of attention and recurrent layers only those with dropout do.
DRAWING = frozenset({
    torch.bernoulli, torch.binomial, torch.multinomial, torch.normal, torch.poisson, torch.rand, torch.rand_like,
    torch.randint, torch.randint_like, torch.randn, torch.randn_like, torch.randperm, Tensor.bernoulli,
    Tensor.bernoulli_, Tensor.cauchy_, Tensor.exponential_, Tensor.geometric_, Tensor.log_normal_, Tensor.multinomial,
    Tensor.normal_, Tensor.random_, Tensor.uniform_, F.gumbel_softmax, F.fractional_max_pool2d,
    F.fractional_max_pool3d, F.multi_head_attention_forward, F.scaled_dot_product_attention, torch.lstm, torch.gru,
    torch.rnn_tanh, torch.rnn_relu, torch.native_dropout, F.rrelu, torch.rrelu, torch.rrelu_, torch._standard_gamma,
    torch._sample_dirichlet, F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices,
    nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, *DROPOUT,
})  # fmt: skip
# Names of torch's functions that draw inside, or change a global generator.
_SEEDING = frozenset(("svd_lowrank", "pca_lowrank", "lobpcg", "seed", "manual_seed", "set_rng_state"))


@final
class CalledCode:
    """Whether methods may draw, by the names in their code: all that is not known to be harmless may.

    Args:
        owners: the objects whose attributes the code may name.
    """

    def __init__(self, owners: Sequence[Any]) -> None:
        self._owners, self._known = owners, {id(owner) for owner in owners}
        self._seen: set[CodeType] = set()

    def may_draw(self, name: str, owner: object) -> bool:
        """Whether a method of one of the owners may."""
        return not all(map(self._harmless, _found(owner, name)[:1]))

    def _harmless(self, value: object) -> bool:
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
