"""Values as a tree of JSON with named tensors beside it, and back: exact, without code, what is shared stored once.

A node is what JSON has itself (``null``, a truth value, a whole number, a finite float, text, a list), or an object
with one entry, a tag and what belongs to it. Objects that may be shared stand in a table, each after all that it refers
to, so that reading runs down the table once and a file cannot refer in circles. A tag is known or refused; nothing is
imported.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from types import MappingProxyType, NoneType
from typing import Any, NoReturn, final

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.storage.tensors import NAMES

# Nodes inside of nodes, beside the table: lists of tuples of dicts.
DEEPEST = 40
# Of the state of NumPy's Mersenne Twister.
WORDS = 624
# What objects are made of may take this many bytes, and so many for each byte of the file. An object that others share
# counts wherever they use it, because each of them may copy it: so a small file cannot make many large objects.
FREE_BYTES, BYTES_A_BYTE = 2**23, 32
# What a plain value or a list counts, an object or layer, and a random state, which takes as long to make as these.
NODE_BYTES, OBJECT_BYTES, STATE_BYTES = 4, 512, 2**16

Node = Any


class MalformedError(ValueError):
    """A node that bayescope does not write: the file was altered. `load` tells it as an error about the file."""


@final
@dataclass(eq=False)
class Writer:
    """Collects nodes and tensors.

    Attributes:
        objects: the table.
        tensors: by the path to where each was met first.
    """

    objects: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _known: dict[tuple[int, str], int | None] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def value(self, value: Any, path: str) -> Node:
        """The node of a value.

        Args:
            value: to store.
            path: to it, for messages and the names of tensors.

        Raises:
            UnsupportedError: if it cannot be stored.
        """
        return node_of(value, self, path)

    def shared(self, value: Any, path: str, make: Callable[[], Node], role: str = "") -> Node:
        """The reference to an object, which is put into the table when it is met first in a role."""
        key = id(value), role
        if key not in self._known:
            self._known[key] = None
            self._alive.append(value)  # so that no other object gets its id
            self.objects.append(make())
            self._known[key] = len(self.objects) - 1
        place = self._known[key]
        if place is None:
            raise UnsupportedError(
                f"{path}: expected values that do not hold themselves, got a {_named(value)} in one."
            )
        return {"ref": place}

    def keep(self, tensor: Tensor, path: str) -> str:
        """Puts a contiguous tensor on the CPU beside the nodes, and returns its name."""
        name, count = path, 1
        while name in self.tensors:
            count += 1
            name = f"{path} {count}"
        self.tensors[name] = tensor
        return name


@final
@dataclass(eq=False)
class Reader:
    """Makes values of nodes.

    Attributes:
        tensors: those of the file, by name.
        modules: the caller's, for networks whose code is not in the file.
        size: bytes of the file, which bound what is made of it.
        objects: what has been made of the table so far.
    """

    tensors: Mapping[str, Tensor]
    modules: Any = None
    size: int = 0
    objects: list[Any] = field(default_factory=list)
    _depth: int = 0
    _met: int = 0  # bytes of all that the object in the making refers to
    _met_by: list[int] = field(default_factory=list)  # the same for each object of the table
    _taken: int = 0  # bytes for all objects so far

    def value(self, node: Node) -> Any:
        """The value of a node.

        Raises:
            MalformedError: if it is none that a `Writer` writes.
        """
        self._met += NODE_BYTES
        if node is None or isinstance(node, bool | int | float | str):
            return node
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise MalformedError("nodes inside of nodes without end")
            if isinstance(node, list):
                return [self.value(each) for each in node]
            [(tag, content)] = node.items()
            if tag not in _READERS:
                raise MalformedError(f"the tag {tag[:40]!r} is not known")
            return _READERS[tag](self, content)
        finally:
            self._depth -= 1

    def add(self, node: Node) -> None:
        """Makes an entry of the table. Trees stand where they are used: shared, they would grow without end.

        Raises:
            MalformedError: if it is none that a `Writer` writes.
        """
        if not isinstance(node, dict) or not node.keys() <= _SHARED:
            raise MalformedError("the table has what is not shared")
        self.objects.append(self.value(node))
        self._met_by.append(self._met)
        self._taken, self._met = self._taken + self._met, 0

    def object(self, place: Any) -> Any:
        """An object of the table by its place."""
        if type(place) is not int or not 0 <= place < len(self.objects):
            raise MalformedError("a reference leads nowhere")
        self.meet(self._met_by[place])
        return self.objects[place]

    def tensor(self, name: Any) -> Tensor:
        """A tensor by its name."""
        if not isinstance(name, str) or name not in self.tensors:
            raise MalformedError("a tensor is missing")
        tensor = self.tensors[name]
        # What is made of a tensor without entries may have its other dimensions.
        self.meet(tensor.element_size() * math.prod(max(1, size) for size in tensor.shape))
        return tensor

    def meet(self, count: int) -> None:
        """Counts bytes that the object in the making refers to, before anything is made of them."""
        self._met += count
        self.take(0)

    def take(self, count: int) -> None:
        """Counts bytes that are not in the file and are about to be taken, once for all who use them.

        Raises:
            MalformedError: if all together are more than a file of this size may take.
        """
        self._taken += count
        if self._taken + self._met > FREE_BYTES + BYTES_A_BYTE * self.size:
            raise MalformedError("it takes more memory than a file of its size does")


def tag(name: str, *, shared: bool = False) -> Callable[[Callable[[Reader, Any], Any]], Callable[[Reader, Any], Any]]:
    """Registers how nodes with a tag are read, and whether they are those of objects, which stand in the table."""

    def register(read: Callable[[Reader, Any], Any]) -> Callable[[Reader, Any], Any]:
        if name in _READERS:
            raise ValueError(f"the tag {name!r} is taken")
        _READERS[name] = read
        if shared:
            _SHARED.add(name)
        return read

    return register


_READERS: dict[str, Callable[[Reader, Any], Any]] = {}
_SHARED: set[str] = set()


@singledispatch
def node_of(value: Any, _writer: Writer, path: str) -> Node:
    """The node of a value, by its type.

    Raises:
        UnsupportedError: if values of its type cannot be stored.
    """
    refuse(value, path)


def refuse(value: Any, path: str) -> NoReturn:
    """Raises the error for a value that a file cannot hold."""
    raise UnsupportedError(
        f"save: expected values that a file can hold without code, got a {_named(value)} at {path}. Files hold "
        "numbers, text, arrays, tensors, bayescope's own objects, networks, and the transformers of scikit-learn that "
        "docs/files.md lists."
    )


def exactly(value: Any, kind: type, path: str) -> None:
    """Checks that a value is of a type itself: what a subclass adds would be lost.

    Raises:
        UnsupportedError: if it is not.
    """
    if type(value) is not kind:
        refuse(value, path)


def _named(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} ({value.__qualname__})" if hasattr(value, "__qualname__") else name


@node_of.register(NoneType)
@node_of.register(bool)
def _constant(value: Any, _writer: Writer, _path: str) -> Node:
    return value


@node_of.register(int)
@node_of.register(str)
def _plain(value: Any, _writer: Writer, path: str) -> Node:
    exactly(value, int if isinstance(value, int) else str, path)
    return value


@node_of.register(float)
def _float(value: float, _writer: Writer, path: str) -> Node:
    exactly(value, float, path)
    return value if math.isfinite(value) else {"float": str(value)}


@tag("float")
def _read_float(_reader: Reader, content: Any) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise MalformedError("a float is none")
    return float(content)


@node_of.register(list)
def _list(value: list[Any], writer: Writer, path: str) -> Node:
    exactly(value, list, path)
    return [writer.value(each, f"{path}[{place}]") for place, each in enumerate(value)]


@node_of.register(tuple)
def _tuple(value: tuple[Any, ...], writer: Writer, path: str) -> Node:
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    exactly(value, tuple, path)
    return {"tuple": [writer.value(each, f"{path}[{place}]") for place, each in enumerate(value)]}


@tag("tuple")
def _read_tuple(reader: Reader, content: Any) -> tuple[Any, ...]:
    return tuple(reader.value(each) for each in of(content, list))


@tag("size")
def _read_size(_reader: Reader, content: Any) -> torch.Size:
    sizes = of(content, list)
    if not all(type(size) is int and 0 <= size < 2**62 for size in sizes):
        raise MalformedError("a shape is none")
    return torch.Size(sizes)


@node_of.register(Mapping)
def _mapping(value: Mapping[Any, Any], writer: Writer, path: str) -> Node:
    if type(value) not in (dict, OrderedDict, MappingProxyType):
        refuse(value, path)
    pairs = ((writer.value(key, f"{path}.keys"), writer.value(each, f"{path}[{key!r}]")) for key, each in value.items())
    return {"dict": list(map(list, pairs))}


@tag("dict")
def _read_dict(reader: Reader, content: Any) -> dict[Any, Any]:
    pairs = [(reader.value(key), reader.value(each)) for key, each in of(content, list)]
    if not all(_is_key(key) for key, _ in pairs):
        raise MalformedError("a key is none")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedError("a key stands twice")
    return found


def _is_key(value: Any) -> bool:
    """Whether a value is plain: the hash of an object asks all that is in it."""
    if type(value) is tuple:
        return all(map(_is_key, value))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


@node_of.register(slice)
def _slice(value: slice, writer: Writer, path: str) -> Node:
    return {"slice": [writer.value(each, path) for each in (value.start, value.stop, value.step)]}


@tag("slice")
def _read_slice(reader: Reader, content: Any) -> slice:
    start, stop, step = (reader.value(each) for each in of(content, list))
    if not all(each is None or type(each) is int for each in (start, stop, step)):
        raise MalformedError("a slice is none")
    return slice(start, stop, step)


@node_of.register(torch.dtype)
def _torch_dtype(value: torch.dtype, _writer: Writer, path: str) -> Node:
    if value not in NAMES:
        refuse(value, path)
    return {"torch_dtype": str(value).removeprefix("torch.")}


@tag("torch_dtype")
def _read_torch_dtype(_reader: Reader, content: Any) -> torch.dtype:
    for dtype in NAMES:
        if content == str(dtype).removeprefix("torch."):
            return dtype
    raise MalformedError("a type of tensors is not known")


@node_of.register(Tensor)
def _tensor(value: Tensor, writer: Writer, path: str) -> Node:
    exactly(value, Tensor, path)
    return writer.shared(value, path, lambda: {"tensor": stored_tensor(value, writer, path)})


@tag("tensor", shared=True)
def _read_tensor(reader: Reader, content: Any) -> Tensor:
    name, order = of(content, list)
    return in_order(reader.tensor(name), order)


def stored_tensor(value: Tensor, writer: Writer, path: str) -> list[Any]:
    """The name and the order of dimensions under which a tensor is kept."""
    if value.layout != torch.strided or value.dtype not in NAMES or value.is_meta:
        refuse(value, path)
    tensor, order = flattened(value.detach().cpu())
    return [writer.keep(tensor, path), order]


def flattened(tensor: Tensor) -> tuple[Tensor, list[int] | None]:
    """A contiguous tensor, and in which order its dimensions are in memory where that is not the usual one.

    Products of matrices round in one way or another depending on how they lie: answers are to be the same bits.
    """
    steps = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda axis: (-steps[axis], axis))
    laid = tensor.permute(order)
    if order == list(range(tensor.ndim)) or not laid.is_contiguous():
        return tensor.contiguous(), None
    return laid, order


def in_order(tensor: Tensor, order: Any) -> Tensor:
    """The tensor whose dimensions were put into that order."""
    if order is None:
        return tensor
    if not isinstance(order, list) or sorted(order) != list(range(tensor.ndim)):
        raise MalformedError("the dimensions of a tensor are in no order")
    return tensor.permute([order.index(axis) for axis in range(tensor.ndim)])


@tag("ref")
def _read_ref(reader: Reader, content: Any) -> Any:
    return reader.object(content)


def of(content: Any, kind: type) -> Any:
    """What a tag has, if it is of that type.

    Raises:
        MalformedError: if it is not.
    """
    if type(content) is not kind:
        raise MalformedError(f"expected a {kind.__name__}, got a {type(content).__name__}")
    return content


@node_of.register(np.random.RandomState)
def _random_state(value: np.random.RandomState, writer: Writer, path: str) -> Node:
    state = value.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        refuse(value, path)
    plain = {"key": state["state"]["key"], "pos": int(state["state"]["pos"])}
    plain |= {"has_gauss": int(state["has_gauss"]), "gauss": float(state["gauss"])}
    return writer.shared(value, path, lambda: {"random_state": writer.value(plain, path)})


@tag("random_state", shared=True)
def _read_random_state(reader: Reader, content: Any) -> np.random.RandomState:
    found = reader.value(content)
    key, position, gauss = found["key"], found["pos"], found["gauss"]
    # NumPy reads the key at the position without a look at its length.
    whole = isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (WORDS,)
    if not whole or type(position) is not int or not 0 <= position <= WORDS or type(gauss) is not float:
        raise MalformedError("a random state is none")
    reader.take(STATE_BYTES)
    made = np.random.RandomState()
    state = {"key": key, "pos": position}
    made.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": found["has_gauss"], "gauss": gauss})
    return made
