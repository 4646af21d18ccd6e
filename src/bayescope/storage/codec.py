"""Values as a tree of JSON and named tensors, and back: exact, without code, what is shared stored once.

A node is what JSON has itself (``null``, a truth value, a whole number, a finite float, text, a list), or an object
with one entry: the name of a `StoredForm`, and the parts of the value, which are nodes again. Values that may be shared
stand in a table, each after all that it refers to, so that reading runs down the table once and a file cannot refer in
circles. A name is one of the library's or refused; no file names what is imported.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType, NoneType
from typing import Any, NoReturn, final

import numpy as np
import torch
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.storage.container import NAMES

# Nodes inside of nodes, within one entry of the table: lists of tuples of dicts.
DEEPEST = 40
# NumPy's arrays have no more.
MOST_AXES = 64
# Of the state of NumPy's Mersenne Twister.
WORDS = 624
# What objects are made of may take this many bytes, and this many for each byte of the file. An object that others
# share counts wherever they use it, because each of them may copy it: so a small file cannot make many large objects.
FREE_BYTES, BYTES_A_BYTE = 2**23, 32
# What a plain value or a list counts, an object or layer, and a random state, which takes as long to make as these.
NODE_BYTES, OBJECT_BYTES, STATE_BYTES = 4, 512, 2**16

Node = Any


class MalformedError(ValueError):
    """A node that bayescope does not write: the file was altered."""


@final
@dataclass(frozen=True, eq=False)
class StoredForm:
    """How values of a type are stored.

    Attributes:
        name: in files.
        type: of the values.
        parts: of a value at a path: a list or a mapping of values that can be stored themselves, or text.
        made: the value again, of parts that were read; raises a ``ValueError`` for parts that no value has.
        shared: whether a value keeps its identity, and stands in the table.
        subclasses: whether values of subclasses are stored too.
        instead: the form of a value that this one cannot hold, or ``None`` if it can.
    """

    name: str
    type: type
    parts: Callable[[Any, str], Any]
    made: Callable[[Any, Reader], Any]
    shared: bool = True
    subclasses: bool = False
    instead: Callable[[Any], StoredForm | None] = lambda _: None


FORMS: dict[str, StoredForm] = {}
# Modules that import, with all that they stand on, every class that files may hold.
EVERY_FORM = ("bayescope.estimators", "bayescope.conformal")
_BY_TYPE: dict[type, StoredForm] = {}
_PLAIN = (NoneType, bool, int, str)
_MAPPINGS = (dict, OrderedDict, MappingProxyType)
# Nodes that the writer and the reader know themselves.
_REFERENCE, _TENSOR, _MAPPING = "ref", "tensor", "dict"
# What stands where it is used, and never in the table.
_TREES = {_REFERENCE, _MAPPING}


def add_form(form: StoredForm) -> None:
    """Adds a form to those that files may hold.

    Raises:
        ValueError: if the name is taken.
    """
    before = FORMS.get(form.name)
    if before is not None and before.type.__qualname__ != form.type.__qualname__:
        raise ValueError(f"the name {form.name!r} is taken by {before.type.__qualname__}")
    FORMS[form.name] = _BY_TYPE[form.type] = form
    if not form.shared:
        _TREES.add(form.name)


@cache
def every_form() -> Mapping[str, StoredForm]:
    """The forms of the whole library, whose modules add them: a program that only loads has imported none of these."""
    for module in EVERY_FORM:
        import_module(module)
    return FORMS


def form_of(value: object) -> StoredForm | None:
    """How a value is stored, or ``None`` if it cannot be."""
    for kind in type(value).__mro__:
        form = _BY_TYPE.get(kind)
        if form is not None and (form.subclasses or kind is type(value)):
            return form.instead(value) or form
    return None


def name_of(value: object) -> str:
    """What files call the class of a value."""
    form = form_of(value)
    return type(value).__name__ if form is None else form.name


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
    _known: dict[int, int | None] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def value(self, value: Any, path: str) -> Node:
        """The node of a value.

        Args:
            value: to store.
            path: to it, for messages and the names of tensors.

        Raises:
            UnsupportedError: if it cannot be stored.
        """
        if type(value) in _PLAIN or (type(value) is float and math.isfinite(value)):
            return value
        if type(value) in _MAPPINGS:
            keys = [self.value(key, f"{path}.keys") for key in value]
            nodes = [self.value(each, f"{path}[{key!r}]") for key, each in value.items()]
            return {_MAPPING: [list(pair) for pair in zip(keys, nodes, strict=True)]}
        if type(value) is list:
            return [self.value(each, f"{path}[{place}]") for place, each in enumerate(value)]
        form = None if type(value) is Tensor else form_of(value)
        if form is not None and not form.shared:
            return self._node(form, value, path)
        if id(value) not in self._known:
            self._known[id(value)] = None
            self._alive.append(value)  # so that no other object gets its id
            self.objects.append(self._tensor(value, path) if form is None else self._node(form, value, path))
            self._known[id(value)] = len(self.objects) - 1
        place = self._known[id(value)]
        if place is None:
            raise UnsupportedError(
                f"{path}: expected values that do not hold themselves, got a {_named(value)} in one."
            )
        return {_REFERENCE: place}

    def _node(self, form: StoredForm, value: object, path: str) -> Node:
        parts = form.parts(value, path)
        if isinstance(parts, dict):
            places = {name: path if name == "values" else f"{path}.{name}" for name in parts}
            return {form.name: {name: self.value(part, places[name]) for name, part in parts.items()}}
        return {form.name: self.value(parts, path)}

    def _tensor(self, value: object, path: str) -> Node:
        if type(value) is not Tensor or value.layout != torch.strided or value.dtype not in NAMES or value.is_meta:
            refuse(value, path)
        tensor, order = flattened(value.detach().cpu())
        name, count = path, 1
        while name in self.tensors:
            count += 1
            name = f"{path} {count}"
        self.tensors[name] = tensor
        return {_TENSOR: [name, order]}


@final
@dataclass(eq=False)
class Reader:
    """Makes values of nodes.

    Attributes:
        tensors: those of the file, by name.
        model: the caller's module, for networks whose code is not in the file.
        size: bytes of the file, which bound what is made of it.
        objects: what has been made of the table so far.
    """

    tensors: Mapping[str, Tensor]
    model: torch.nn.Module | None = None
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
            [(name, content)] = node.items()
            return self._made(name, content)
        finally:
            self._depth -= 1

    def _made(self, name: str, content: Node) -> Any:
        if name == _REFERENCE:
            return self._object(content)
        if name == _TENSOR:
            return self._tensor(*of(content, list))
        if name == _MAPPING:
            return _mapping([self.value(pair) for pair in of(content, list)])
        form = FORMS.get(name) or every_form().get(name)
        if form is None:
            raise MalformedError(f"the class {name[:40]!r} is not known; a newer bayescope may have it")
        if form.shared:
            self.meet(OBJECT_BYTES)
        if isinstance(content, dict) and form.shared:
            return form.made({key: self.value(part) for key, part in content.items()}, self)
        return form.made(self.value(content), self)

    def add(self, node: Node) -> None:
        """Makes an entry of the table. Trees stand where they are used: shared, they would grow without end.

        Raises:
            MalformedError: if it is none that a `Writer` writes.
        """
        if not isinstance(node, dict) or not node.keys().isdisjoint(_TREES):
            raise MalformedError("the table has what is not shared")
        self.objects.append(self.value(node))
        self._met_by.append(self._met)
        self._taken, self._met = self._taken + self._met, 0

    def _object(self, place: object) -> Any:
        if type(place) is not int or not 0 <= place < len(self.objects):
            raise MalformedError("a reference leads nowhere")
        self.meet(self._met_by[place])
        return self.objects[place]

    def _tensor(self, name: object, order: object) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            raise MalformedError("a tensor is missing")
        tensor = self.tensors[name]
        # What is made of a tensor without entries may have its other dimensions.
        self.meet(tensor.element_size() * math.prod(max(1, size) for size in tensor.shape))
        return in_order(tensor, order)

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


def refuse(value: object, path: str) -> NoReturn:
    """Raises the error for a value that a file cannot hold."""
    raise UnsupportedError(
        f"save: expected values that a file can hold without code, got a {_named(value)} at {path}. Files hold "
        "numbers, text, arrays, tensors, bayescope's own objects, networks, and the transformers of scikit-learn that "
        "docs/how_to/save_and_load.md lists."
    )


def of(content: object, kind: type) -> Any:
    """The parts of a value, if they are of that type.

    Raises:
        MalformedError: if they are not.
    """
    if type(content) is not kind:
        raise MalformedError(f"expected a {kind.__name__}, got a {type(content).__name__}")
    return content


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


def in_order(tensor: Tensor, order: object) -> Tensor:
    """The tensor whose dimensions were put into that order."""
    if order is None:
        return tensor
    if not isinstance(order, list) or sorted(order) != list(range(tensor.ndim)):
        raise MalformedError("the dimensions of a tensor are in no order")
    return tensor.permute([order.index(axis) for axis in range(tensor.ndim)])


def _named(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} ({value.__qualname__})" if hasattr(value, "__qualname__") else name


def _mapping(pairs: list[Any]) -> dict[Any, Any]:
    if not all(_is_key(key) for key, _ in pairs):
        raise MalformedError("a key is malformed")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedError("a key stands twice")
    return found


def _is_key(value: object) -> bool:
    """Whether a value is plain: the hash of an object asks all that is in it."""
    if type(value) is tuple:
        return all(map(_is_key, value))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


# Python's and torch's plain values -------------------------------------------------------------------------------

# Types that stand for themselves, as an option `dtype=float` does.
_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_TYPES: dict[str, type] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, object)},
    **{f"numpy.{name}": np.dtype(name).type for name in _NUMBERS},
}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TORCH_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}


def _size(sizes: Any, _reader: Reader) -> torch.Size:
    if not all(type(size) is int and 0 <= size < 2**62 for size in of(sizes, list)):
        raise MalformedError("a shape is malformed")
    return torch.Size(sizes)


def _slice(ends: Any, _reader: Reader) -> slice:
    if len(of(ends, list)) != 3 or not all(each is None or type(each) is int for each in ends):
        raise MalformedError("a slice is malformed")
    return slice(*ends)


def _type_name(kind: type, path: str) -> str:
    names = [name for name, known in _TYPES.items() if kind is known]
    return names[0] if names else refuse(kind, path)


def _torch_name(dtype: torch.dtype, path: str) -> str:
    return str(dtype).removeprefix("torch.") if dtype in NAMES else refuse(dtype, path)


add_form(
    StoredForm("tuple", tuple, lambda value, _: list(value), lambda parts, _: tuple(of(parts, list)), shared=False)
)
add_form(StoredForm("float", float, lambda value, _: repr(value), lambda name, _: _FLOATS[name], shared=False))
add_form(StoredForm("size", torch.Size, lambda value, _: list(value), _size, shared=False))
add_form(StoredForm("slice", slice, lambda value, _: [value.start, value.stop, value.step], _slice, shared=False))
add_form(StoredForm("type", type, _type_name, lambda name, _: _TYPES[name], shared=False, subclasses=True))
add_form(StoredForm("torch_dtype", torch.dtype, _torch_name, lambda name, _: _TORCH_DTYPES[name], shared=False))


# NumPy's arrays, scalars, types and random states ----------------------------------------------------------------

# What a scalar of each kind is in Python.
_SCALARS = {"b": bool, "i": int, "u": int, "f": float, "U": str, "M": int, "m": int}


def _dtype_name(value: Any, path: str) -> str:
    """What files call the type of an array's entries, for one, an array or a scalar."""
    dtype = value if isinstance(value, np.dtype) else value.dtype
    if dtype.kind == "O":
        return "object"
    if dtype.kind == "U":
        return f"U{dtype.itemsize // 4}"
    if dtype.kind in "Mm":
        return dtype.newbyteorder("=").str[1:]
    return dtype.name if dtype.name in _NUMBERS else refuse(value, path)


def _dtype(name: object) -> np.dtype[Any]:
    if isinstance(name, str):
        text = name[:1] == "U" and name[1:].isdecimal() and len(name) < 9
        time = name[:3] in ("M8[", "m8[") and len(name) < 12
        if name in _NUMBERS or name == "object" or text or time:
            return np.dtype(name)
    raise MalformedError("a type of arrays is not known")


def _counted_dtype(name: object, reader: Reader) -> np.dtype[Any]:
    dtype = _dtype(name)
    reader.take(dtype.itemsize)
    return dtype


def _scalar_parts(value: np.generic, path: str) -> list[Any]:
    plain = value.view(np.int64) if value.dtype.kind in "Mm" else value
    return [_dtype_name(value, path), plain.item()]


def _scalar(parts: object, _reader: Reader) -> Any:
    name, plain = of(parts, list)
    dtype = _dtype(name)
    if type(plain) is not _SCALARS.get(dtype.kind):
        raise MalformedError("a scalar is malformed")
    return np.array(plain).view(dtype)[()] if dtype.kind in "Mm" else dtype.type(plain)


def _array_parts(value: np.ndarray, path: str) -> dict[str, Any]:
    name = _dtype_name(value, path)
    if value.dtype.kind in "OU":
        return {"dtype": name, "shape": list(value.shape), "values": value.ravel().tolist()}
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    plain = native.view(np.int64) if native.dtype.kind in "Mm" else native
    readable = plain if plain.flags.writeable and all(step >= 0 for step in plain.strides) else plain.copy(order="K")
    return {"dtype": name, "values": torch.from_numpy(readable)}


def _array(parts: Any, reader: Reader) -> np.ndarray:
    dtype = _dtype(parts["dtype"])
    if dtype.kind in "OU":
        return _of_cells(reader, dtype, of(parts["shape"], list), of(parts["values"], list))
    array: np.ndarray = of(parts["values"], Tensor).numpy()
    if array.dtype.name != ("int64" if dtype.kind in "Mm" else dtype.name):
        raise MalformedError("an array is of another type")
    return array.view(dtype)


def _of_cells(reader: Reader, dtype: np.dtype[Any], sizes: list[Any], cells: list[Any]) -> np.ndarray:
    whole = len(sizes) <= MOST_AXES and all(type(size) is int and size >= 0 for size in sizes)
    if not whole or math.prod(sizes) != len(cells):
        raise MalformedError("an array has another number of cells")
    reader.take(dtype.itemsize * math.prod(max(1, size) for size in sizes))  # each text has room for the longest one
    if dtype.kind == "U":
        longest = dtype.itemsize // 4
        if not all(isinstance(cell, str) and len(cell) <= longest for cell in cells):
            raise MalformedError("an array of text is malformed")
        return np.array(cells, dtype=dtype).reshape(sizes)
    array = np.empty(len(cells), dtype=object)
    for place, cell in enumerate(cells):
        array[place] = cell
    return array.reshape(sizes)


def _state_parts(value: np.random.RandomState, path: str) -> dict[str, Any]:
    state = value.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        refuse(value, path)
    inner = state["state"]
    plain = {"pos": int(inner["pos"]), "has_gauss": int(state["has_gauss"]), "gauss": float(state["gauss"])}
    return {"key": inner["key"], **plain}


def _state(parts: Any, reader: Reader) -> np.random.RandomState:
    key, position, gauss = parts["key"], parts["pos"], parts["gauss"]
    # NumPy reads the key at the position without a look at its length.
    whole = isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (WORDS,)
    if not whole or type(position) is not int or not 0 <= position <= WORDS or type(gauss) is not float:
        raise MalformedError("a random state is malformed")
    reader.take(STATE_BYTES)
    made = np.random.RandomState()
    state = {"key": key, "pos": position}
    made.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": parts["has_gauss"], "gauss": gauss})
    return made


add_form(StoredForm("scalar", np.generic, _scalar_parts, _scalar, shared=False, subclasses=True))
add_form(StoredForm("dtype", np.dtype, _dtype_name, _counted_dtype, shared=False, subclasses=True))
add_form(StoredForm("array", np.ndarray, _array_parts, _array))
add_form(StoredForm("random_state", np.random.RandomState, _state_parts, _state))
