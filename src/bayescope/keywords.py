"""Keywords that several functions share: listed in each signature, and filled in with their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, cast, get_type_hints

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = TypeVar("_Options")


def takes(keywords: type, *options: type, **defaults: Any) -> Callable[[_Function], _Function]:
    """Fill in the keywords of a function that declares ``**options: Unpack[keywords]``.

    The decorated function gets every keyword, given or not. Its signature lists each with its default, which is what
    help, editors and checkpoints read.

    Args:
        keywords: the ``TypedDict`` that says which keywords there are.
        options: dataclasses whose fields have the defaults.
        defaults: the defaults that this function has in their place.
    """
    known = {field.name: field.default for each in options for field in fields(each)} | defaults
    kinds, order = get_type_hints(keywords), list(known)
    more = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=known[name], annotation=kinds[name])
        for name in sorted(kinds, key=order.index)
    }

    def filled(function: _Function) -> _Function:
        signature = inspect.signature(function)
        named = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}

        @wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in named and name not in more:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*arguments, **{name: each.default for name, each in more.items()} | given)

        call.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*named.values(), *more.values()]
        )
        return cast(_Function, call)

    return filled


def picked(options: type[_Options], given: Mapping[str, object]) -> _Options:
    """Return the dataclass of those keywords that are its fields."""
    names = {field.name for field in fields(cast(Any, options))}
    return options(**{name: value for name, value in given.items() if name in names})
