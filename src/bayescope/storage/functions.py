"""Functions that a file may name, the library's and two of NumPy's, and functions with some of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from bayescope.storage.codec import MalformedError, Reader, StoredForm, add_form, every_form, refuse

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
# The pair of a `TransformedTargetRegressor` whose y has a predictive.
_UFUNCS: dict[str, np.ufunc] = {"numpy.log": np.log, "numpy.exp": np.exp}


def stored_function(name: str) -> Callable[[F], F]:
    """A decorator, the outermost of a function: what is saved may refer to the function by its name in files.

    Loading calls none of them. They are what `Posterior.condition` goes on with.

    Args:
        name: in files, where it stays when the function moves or is renamed.

    Raises:
        ValueError: if the name is taken.
    """

    def register(function: F) -> F:
        before = _FUNCTIONS.get(name)
        if before is not None and before.__qualname__ != function.__qualname__:
            raise ValueError(f"the name {name!r} is taken by {before.__qualname__}")
        _FUNCTIONS[name] = function
        return function

    return register


def _name(function: FunctionType, path: str) -> str:
    return next((name for name, known in _FUNCTIONS.items() if known is function), None) or refuse(function, path)


def _function(name: Any, _reader: Reader) -> Callable[..., Any]:
    found = _FUNCTIONS.get(name) if name in _FUNCTIONS or every_form() else None
    if found is None:
        raise MalformedError(f"the function {str(name)[:40]!r} is not known; a newer bayescope may have it")
    return found


def _ufunc_name(function: np.ufunc, path: str) -> str:
    return next((name for name, known in _UFUNCS.items() if known is function), None) or refuse(function, path)


def _ufunc(name: Any, _reader: Reader) -> np.ufunc:
    if not isinstance(name, str) or name not in _UFUNCS:
        raise MalformedError(f"the function {str(name)[:40]!r} is not known; a newer bayescope may have it")
    return _UFUNCS[name]


def _parts(value: partial[Any], _path: str) -> dict[str, Any]:
    return {"function": value.func, "arguments": value.args, "keywords": value.keywords}


def _partial(parts: Any, _reader: Reader) -> partial[Any]:
    function, arguments, keywords = parts["function"], parts["arguments"], parts["keywords"]
    known = isinstance(function, FunctionType) and type(arguments) is tuple and type(keywords) is dict
    if not known or not all(isinstance(key, str) for key in keywords):
        raise MalformedError("a function with arguments is malformed")
    return partial(function, *arguments, **keywords)


add_form(StoredForm("function", FunctionType, _name, _function, shared=False))
add_form(StoredForm("ufunc", np.ufunc, _ufunc_name, _ufunc, shared=False))
add_form(StoredForm("partial", partial, _parts, _partial))
