"""Public docstrings say something: ruff sees that they are there, this that they are worth reading."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import bayescope


class Documented(NamedTuple):
    """One public thing: dotted name, kind, docstring, and the parameters that the docstring has to explain."""

    name: str
    kind: str
    doc: str
    parameters: list[str]


def words(text: str) -> set[str]:
    """The words of a text in lower case, with names such as `log_evidence` split at the underscores."""
    return set(re.findall(r"[^\W_]+", text.lower()))


# Words that tell the reader nothing which the name and its kind had not told.
EMPTY = words(
    """a an and the of for to in is are this that its it with from by as or be given self none todo
    object objects instance class method function module attribute property value values helper
    arg args argument arguments parameter parameters result results constructor
    initialise initialises initialize initializes construct constructs create creates get gets return returns
    set sets compute computes calculate calculates do does perform performs"""
)
LEAST_TOLD = {"function": 8, "class": 8, "module": 4, "method": 2}


def complaints(thing: Documented) -> Iterator[str]:
    """What a reader of the docstring would miss."""
    told = words(thing.doc) - words(thing.name) - EMPTY
    if len(told) < LEAST_TOLD[thing.kind]:
        yield f"{thing.name}: the docstring says little more than the name: {thing.doc!r}"
    for parameter in thing.parameters:
        if not re.search(rf"(?<!\w){parameter}(?!\w)", thing.doc):
            yield f"{thing.name}: the docstring does not say what {parameter!r} means"


def parameters_of(thing: Callable[..., Any]) -> list[str]:
    """The names that a caller may pass; a protocol's signature is `(*args, **kwargs)`, which names none."""
    return [name for name in inspect.signature(thing).parameters if name not in ("args", "kwargs")]


def members_of(name: str, cls: type) -> Iterator[Documented]:
    """The public methods and properties that the class itself defines."""
    for member, value in vars(cls).items():
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
            yield Documented(f"{name}.{member}", "method", inspect.getdoc(getattr(cls, member)) or "", [])


def public(module: ModuleType) -> Iterator[Documented]:
    """What a module offers in `__all__`, and what its classes and modules offer in turn."""
    for name in module.__all__:
        thing, full = getattr(module, name), f"{module.__name__}.{name}"
        doc = thing.__doc__ or ""
        if inspect.ismodule(thing):
            yield Documented(full, "module", doc, [])
            yield from public(thing)
        elif inspect.isclass(thing):
            yield Documented(full, "class", doc, [] if issubclass(thing, Exception) else parameters_of(thing))
            yield from members_of(full, thing)
        elif callable(thing):
            yield Documented(full, "function", doc, parameters_of(thing))


@pytest.mark.parametrize("thing", list(public(bayescope)), ids=lambda thing: thing.name)
def test_a_public_docstring_tells(thing: Documented) -> None:
    assert list(complaints(thing)) == []


@pytest.mark.parametrize(
    "thing",
    [
        Documented("bayescope.Prior", "class", "Initialise the Prior class.", []),
        Documented("bayescope.Posterior.log_evidence", "method", "Returns the log evidence.", []),
        Documented("bayescope.Posterior.fit", "method", "This method performs the fit.", []),
        Documented("bayescope.Posterior.mean", "method", "", []),
        Documented(
            "bayescope.density.kl", "function", "KL(p‖q) = E_p[log p(θ) − log q(θ)] of two Gaussians, nats.", ["n"]
        ),
    ],
    ids=lambda thing: thing.name,
)
def test_filler_is_found(thing: Documented) -> None:
    assert list(complaints(thing)) != []
