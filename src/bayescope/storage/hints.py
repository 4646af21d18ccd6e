"""Whether a value is what an annotation says: its outer type, and the type of its entries where that is given."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

# Of longer lists and mappings only this many entries are looked at, the first ones.
MOST = 1000

_EXACTLY = (tuple, list, dict)
_NUMBERS: dict[Any, tuple[type, ...]] = {
    float: (float, int, np.number),
    int: (int, np.integer),
    bool: (bool, np.bool_),
}


def fits(value: object, hint: object) -> bool:
    """Whether a value is what an annotation says. Of a protocol, a value's class has to have its methods."""
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    return _is(value, hint) if origin is None else _holds(value, origin, get_args(hint))


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type that tells nothing of what is in it."""
    if hint is None:
        return value is None
    if getattr(hint, "_is_protocol", False):
        return _answers(value, hint)
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and (hint is bool or not isinstance(value, bool))
    if hint in _EXACTLY:
        return type(value) is hint
    return callable(value) if hint is Callable else isinstance(value, hint)


def _holds(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits(each, inner[0]) for each in value[:MOST])
        return len(value) == len(inner) and all(fits(each, one) for each, one in zip(value, inner, strict=True))
    if origin in (list, Sequence):
        return type(value) in (list, tuple) and all(fits(each, inner[0]) for each in value[:MOST])
    if origin in (dict, Mapping):
        some = list(value.items())[:MOST] if type(value) is dict else []
        return type(value) is dict and all(fits(key, inner[0]) and fits(each, inner[1]) for key, each in some)
    if origin is Callable:
        return callable(value)
    if origin is type:
        return isinstance(value, type)
    return isinstance(value, origin) if isinstance(origin, type) else True


def _answers(value: object, protocol: type) -> bool:
    """Whether the class of a value has the methods of a protocol, by name; no property is computed for it."""
    kinds = [kind for kind in protocol.__mro__ if getattr(kind, "_is_protocol", False) and kind is not typing.Protocol]
    names = {name for kind in kinds for name in vars(kind) if not name.startswith("_") or name == "__call__"}
    has = set(dir(type(value))) | set(getattr(type(value), "__dataclass_fields__", ()))
    return names <= has
