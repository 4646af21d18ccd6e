"""The classes that a file may hold: a closed list of names, to which each class of the house adds itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar, cast, final, get_type_hints

from sklearn.base import BaseEstimator

from bayescope.errors import BayescopeError
from bayescope.storage.answers import guard_answers
from bayescope.storage.codec import OBJECT_BYTES, MalformedError, Node, Reader, Writer, node_of, of, tag
from bayescope.storage.hints import fits
from bayescope.storage.scikit import Estimator, estimator_name, stored_estimator

C = TypeVar("C", bound=type)
# The method, where a class has it, that raises where the parts of an object from a file do not go together.
CHECK = "_check_stored"

Migration = Callable[[dict[str, Any]], dict[str, Any]]


@final
@dataclass(frozen=True, eq=False)
class Kind:
    """How the objects of a class are stored.

    Attributes:
        name: in files, for ever.
        type: the class.
        parts: what an object is made of, with annotations; ``None`` for those of a dataclass's fields.
        without: fields that files leave out, and that come back as their defaults.
        told: the field that lists, on an object that was read, which of ``without`` it had when it was saved.
        kept: cached properties that are computed and stored too.
        version: of the parts' names and meanings.
        migrations: from a version to the next, for files of older ones.
    """

    name: str
    type: type
    parts: Mapping[str, Any] | None
    without: tuple[str, ...]
    told: str | None
    kept: tuple[str, ...]
    version: int
    migrations: Mapping[int, Migration]

    @cached_property
    def hints(self) -> dict[str, Any]:
        """What each stored part is to be, by its name."""
        if self.parts is not None:
            return dict(self.parts)
        known = get_type_hints(self.type)
        if is_dataclass(self.type):
            names = [each.name for each in fields(self.type) if each.init]
        else:  # a named tuple
            names = list(cast(Any, self.type)._fields)
        return {name: known[name] for name in names if name not in self.without}

    @cached_property
    def defaults(self) -> frozenset[str]:
        """The fields with a default: a file that is older than such a field does not have it."""
        if not is_dataclass(self.type):
            return frozenset()
        return frozenset(
            each.name
            for each in fields(self.type)
            if each.default is not MISSING or each.default_factory is not MISSING
        )

    @cached_property
    def cached(self) -> dict[str, Any]:
        """What each kept property is to be."""
        return {name: get_type_hints(vars(self.type)[name].func)["return"] for name in self.kept}

    def values_of(self, value: Any) -> dict[str, Any]:
        """The parts of an object."""
        values = {name: getattr(value, name) for name in self.hints}
        if self.told is not None:
            lost = (name for name in self.without if getattr(value, name) is not None)
            values[self.told] = tuple(dict.fromkeys((*values[self.told], *lost)))
        return values

    def kept_of(self, value: Any) -> dict[str, Any]:
        """What is kept of an object's cached properties: those that are defined."""
        found = {}
        for name in self.kept:
            try:
                found[name] = getattr(value, name)
            except BayescopeError:  # a factor of a matrix that has none
                continue
        return found

    def made_of(self, values: dict[str, Any], kept: dict[str, Any]) -> Any:
        """The object with these parts.

        Raises:
            MalformedError: if they are not those that the class has.
        """
        self._check(values, self.hints, self.hints.keys() - (self.defaults if self.parts is None else set()))
        self._check(kept, self.cached, set())
        made: Any = object.__new__(self.type) if self.parts is not None else self.type(**values)
        if self.parts is not None:
            vars(made).update(values)
        if kept:
            vars(made).update(kept)
        if hasattr(self.type, CHECK):
            getattr(made, CHECK)()
        return made

    def _check(self, values: Mapping[str, Any], hints: Mapping[str, Any], needed: set[str]) -> None:
        if not needed <= values.keys() <= hints.keys():
            raise MalformedError(f"a {self.name} has other parts")
        for name, value in values.items():
            if not fits(value, hints[name]):
                raise MalformedError(f"the {name} of a {self.name} is none")


_BY_NAME: dict[str, Kind] = {}
_BY_TYPE: dict[type, Kind] = {}


def stored(
    name: str,
    *,
    parts: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    told: str | None = None,
    kept: tuple[str, ...] = (),
    version: int = 1,
    migrations: Mapping[int, Migration] | None = None,
) -> Callable[[C], C]:
    """A class decorator: objects of the class may be saved, as a dataclass or named tuple by their fields.

    An estimator, as scikit-learn has them, is saved by its parameters and all that it has learnt but ``without``.

    A dataclass or named tuple is read back by its own constructor, so that what that checks is checked; an object of a
    class whose ``parts`` are named gets these as its attributes. A method ``_check_stored`` of the class then raises
    where the parts do not go together.

    Args:
        name: in files, where it stays when the class moves or is renamed.
        parts: of a class that is no dataclass, the attributes that make up an object, with their types.
        without: fields that files leave out, and that come back as their defaults.
        told: a field, a tuple of names, that says after reading which of ``without`` the object had when it was saved.
        kept: cached properties that are stored beside the fields, computed if they are not yet: an object that was
            read answers with the same bits, and at once.
        version: of the parts' names and meanings; raise it when they change.
        migrations: from each older version, the parts as the next one has them.
    """

    def register(kind: C) -> C:
        guard_answers(kind)
        if issubclass(kind, BaseEstimator):
            stored_estimator(Estimator(name, kind, without))
            return kind
        if name in _BY_NAME and _BY_NAME[name].type.__qualname__ != kind.__qualname__:
            raise ValueError(f"the name {name!r} is taken by {_BY_NAME[name].type.__qualname__}")
        made = Kind(name, kind, parts, without, told, kept, version, migrations or {})
        _BY_NAME[name] = _BY_TYPE[kind] = made
        node_of.register(kind)(_write)
        return kind

    return register


def name_of(value: Any) -> str:
    """What files call an object's class."""
    return (
        _BY_TYPE[type(value)].name if type(value) in _BY_TYPE else estimator_name(type(value)) or type(value).__name__
    )


def known(name: Any) -> Kind:
    """How objects of the class of this name are stored.

    Raises:
        MalformedError: if there is no such class.
    """
    if not isinstance(name, str) or name not in _BY_NAME:
        raise MalformedError(f"the class {str(name)[:40]!r} is not known; a newer bayescope may have it")
    return _BY_NAME[name]


def _write(value: Any, writer: Writer, path: str) -> Node:
    kind = _BY_TYPE.get(type(value))
    if kind is None:  # a subclass of a class that is stored
        return node_of.dispatch(object)(value, writer, path)

    def make() -> Node:
        values = {name: writer.value(each, f"{path}.{name}") for name, each in kind.values_of(value).items()}
        kept = {name: writer.value(each, f"{path}.{name}") for name, each in kind.kept_of(value).items()}
        return {"object": [kind.name, kind.version, values, kept]}

    return writer.shared(value, path, make)


@tag("object", shared=True)
def _read(reader: Reader, content: Any) -> Any:
    name, version, values, kept = of(content, list)
    kind = known(name)
    reader.meet(OBJECT_BYTES)
    if type(version) is not int or not 1 <= version <= kind.version:
        raise MalformedError(f"a {kind.name} is of another version; a newer bayescope may know it")
    made = {part: reader.value(node) for part, node in of(values, dict).items()}
    for before in range(version, kind.version):
        made = kind.migrations[before](made)
    return kind.made_of(made, {part: reader.value(node) for part, node in of(kept, dict).items()})
