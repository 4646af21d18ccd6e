"""NumPy's arrays, scalars and types: numbers beside the manifest, text and labels in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from bayescope.storage.codec import (
    MalformedError,
    Node,
    Reader,
    Writer,
    exactly,
    flattened,
    in_order,
    node_of,
    of,
    refuse,
    tag,
)

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
# Python's and NumPy's types that stand for themselves, as an option `dtype=float` does.
TYPES: dict[str, type] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, object)},
    **{f"numpy.{name}": np.dtype(name).type for name in NUMBERS},
}

# NumPy's arrays have no more.
MOST_AXES = 64
# What a scalar of each kind is in Python.
_PLAIN = {"b": bool, "i": int, "u": int, "f": float, "U": str, "M": int, "m": int}


@node_of.register(np.str_)
@node_of.register(np.generic)
def _scalar(value: np.generic, writer: Writer, path: str) -> Node:
    name = _name(value.dtype, value, path)
    plain = value.view(np.int64) if value.dtype.kind in "Mm" else value
    return {"scalar": [name, writer.value(plain.item(), path)]}


@tag("scalar")
def _read_scalar(reader: Reader, content: Any) -> Any:
    name, node = of(content, list)
    dtype, plain = _known(name), reader.value(node)
    if type(plain) is not _PLAIN.get(dtype.kind):
        raise MalformedError("a scalar is none")
    return np.array(plain).view(dtype)[()] if dtype.kind in "Mm" else dtype.type(plain)


@node_of.register(np.dtype)
def _dtype(value: np.dtype[Any], _writer: Writer, path: str) -> Node:
    return {"dtype": _name(value, value, path)}


@tag("dtype")
def _read_dtype(reader: Reader, content: Any) -> np.dtype[Any]:
    dtype = _known(content)
    reader.take(dtype.itemsize)
    return dtype


@node_of.register(type)
def _type(value: type, _writer: Writer, path: str) -> Node:
    names = [name for name, kind in TYPES.items() if value is kind]
    return {"type": names[0]} if names else refuse(value, path)


@tag("type")
def _read_type(_reader: Reader, content: Any) -> type:
    if not isinstance(content, str) or content not in TYPES:
        raise MalformedError("a type is not known")
    return TYPES[content]


@node_of.register(np.ndarray)
def _array(value: np.ndarray, writer: Writer, path: str) -> Node:
    exactly(value, np.ndarray, path)
    return writer.shared(value, path, lambda: {"array": _stored(value, writer, path)})


@tag("array", shared=True)
def _read_array(reader: Reader, content: Any) -> np.ndarray:
    name, shape, held, order = of(content, list)
    dtype = _known(name)
    if dtype.kind in "OU":
        return _of_cells(reader, dtype, shape, held)
    array = in_order(reader.tensor(held), order).numpy()
    if dtype.kind in "Mm":
        return of_type(array, "int64").view(dtype)
    return of_type(array, dtype.name)


def of_type(array: np.ndarray, name: str) -> np.ndarray:
    """The array, if it has that type.

    Raises:
        MalformedError: if it has not.
    """
    if array.dtype.name != name:
        raise MalformedError("an array is of another type")
    return array


def _stored(value: np.ndarray, writer: Writer, path: str) -> Node:
    name = _name(value.dtype, value, path)
    if value.dtype.kind in "OU":
        cells = value.ravel().tolist()
        return [name, list(value.shape), [writer.value(cell, f"{path}[{k}]") for k, cell in enumerate(cells)], None]
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    plain = native.view(np.int64) if native.dtype.kind in "Mm" else native
    readable = plain if plain.flags.writeable and all(step >= 0 for step in plain.strides) else plain.copy(order="K")
    tensor, order = flattened(torch.from_numpy(readable))
    return [name, list(value.shape), writer.keep(tensor, path), order]


def _of_cells(reader: Reader, dtype: np.dtype[Any], shape: Any, held: Any) -> np.ndarray:
    cells = [reader.value(cell) for cell in of(held, list)]
    sizes = of(shape, list)
    whole = len(sizes) <= MOST_AXES and all(type(size) is int and size >= 0 for size in sizes)
    if not whole or math.prod(sizes) != len(cells):
        raise MalformedError("an array has another number of cells")
    reader.take(dtype.itemsize * math.prod(max(1, size) for size in sizes))  # each text has room for the longest one
    if dtype.kind == "U":
        longest = dtype.itemsize // 4
        if not all(isinstance(cell, str) and len(cell) <= longest for cell in cells):
            raise MalformedError("an array of text is none")
        return np.array(cells, dtype=dtype).reshape(sizes)
    array = np.empty(len(cells), dtype=object)
    for place, cell in enumerate(cells):
        array[place] = cell
    return array.reshape(sizes)


def _name(dtype: np.dtype[Any], value: Any, path: str) -> str:
    if dtype.kind == "O":
        return "object"
    if dtype.kind == "U":
        return f"U{dtype.itemsize // 4}"
    if dtype.kind in "Mm":
        return dtype.newbyteorder("=").str[1:]
    if dtype.name not in NUMBERS:
        refuse(value, path)
    return dtype.name


def _known(name: Any) -> np.dtype[Any]:
    if isinstance(name, str):
        if name in NUMBERS or name == "object":
            return np.dtype(name)
        if name[:1] == "U" and name[1:].isdecimal() and len(name) < 9:
            return np.dtype(name)
        if name[:3] in ("M8[", "m8[") and len(name) < 12:
            return np.dtype(name)
    raise MalformedError("a type of arrays is not known")
