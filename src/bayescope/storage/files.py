"""Saving and loading: a value, its nodes and tensors, and the container around them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from bayescope.errors import FileError, InputTypeError, UnsupportedError, first_line
from bayescope.files import staged
from bayescope.storage import arrays, modules, scikit  # noqa: F401 - they tell the codec of their types
from bayescope.storage.answers import remember
from bayescope.storage.codec import MalformedError, Reader, Writer
from bayescope.storage.container import (
    FORMAT,
    MANIFEST,
    TENSORS,
    Opened,
    measured,
    opened,
    refuse_altered,
    text_of,
    write,
)
from bayescope.storage.hints import fits
from bayescope.storage.manifest import Manifest, checked_metadata
from bayescope.storage.modules import ModelError, Replacements
from bayescope.storage.registry import name_of
from bayescope.storage.tensors import described, pieces, possible, read

PACKAGES = ("torch", "numpy", "scikit-learn")
# What nodes that nobody saved may end in while objects are made of them.
_MALFORMED = (
    MalformedError, TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
    AssertionError,
)  # fmt: skip


def save(value: Any, path: str | Path, *, summary: str = "", metadata: Mapping[str, Any] | None = None) -> Path:
    """Writes a value into one file, which replaces one of that name in a single step.

    Equal values give equal bytes. Nothing is written where something cannot be stored.

    Args:
        value: a posterior, an estimator, or anything else of the house that is `stored`.
        path: the file, by custom with the suffix ".bayes"; folders above it are made if they are missing.
        summary: some lines for those who look at the file.
        metadata: what is to stand beside it, as JSON has it: text, numbers, truth values, ``None``, lists, mappings.

    Returns:
        The path.

    Raises:
        UnsupportedError: if a part cannot be stored without code; the message has the path to it.
        InputError: if the file cannot be written, or a number in the metadata is not finite.
        InputTypeError: if the path is none, or the metadata are of another type.
    """
    place, told = _place(path), checked_metadata(metadata)
    writer = Writer()
    kind = name_of(value)
    try:
        root = writer.value(value, kind)
    except RecursionError:
        raise UnsupportedError(
            f"save: expected a {kind} that does not hold itself, got one that does, or whose parts are nested more "
            f"deeply than {sys.getrecursionlimit()} calls of Python's functions reach. Join containers that hold "
            "nothing but one another, or raise that number by sys.setrecursionlimit."
        ) from None
    table = described(writer.tensors)
    manifest = {
        "bayescope": version("bayescope"),
        "kind": kind,
        "summary": summary,
        "metadata": told,
        "packages": {name: version(name) for name in PACKAGES},
        "tensors": table,
        "objects": writer.objects,
        "value": root,
    }
    content = partial(pieces, table, writer.tensors)
    member = measured(content())
    text = _read_back(writer, manifest, member)
    with staged(place.parent) as stage:
        write(stage / place.name, text, content(), member)
    return place


def load(path: str | Path, *, model: nn.Module | None = None) -> Any:
    """Reads what `save` wrote, onto the CPU: predictions are the same, bit for bit.

    A file holds no code, and none is run: networks made of torch's own layers are described in it, and others need the
    module whose weights these are.

    Args:
        path: the file.
        model: a module of the same architecture, for networks of custom classes; of several networks in a file, each
            is a copy of it with its own weights. It stays as it is.

    Returns:
        What was saved.

    Raises:
        FileError: if there is no such file, or it is truncated, altered, or of a version that cannot be read.
        InputError: if the file needs a model and there is none, or another one.
        InputTypeError: if the path is none.
    """
    return load_with_manifest(path, model=model)[0]


def load_with_manifest(path: str | Path, *, model: nn.Module | None = None) -> tuple[Any, Manifest]:
    """What `load` and `read_manifest` return, of one and the same file: it is opened once.

    Another process may put another file in its place between two openings.
    """
    place = _place(path)
    # Whatever device torch takes by default, and as tensors that may meet autograd again.
    with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
        with _open(place) as file:
            found = _guarded(opened, file, place)
            tensors = _guarded(read, file, found, place)
        reader = Reader(tensors, Replacements(model), found.manifest_size + found.size)
        value = _guarded(_READERS[found.manifest["format"]], found.manifest, reader, place)
    reader.modules.refuse_unused()
    remember(reader.objects, place)
    return value, _guarded(_told, found, place)


def read_manifest(path: str | Path) -> Manifest:
    """What a file says of itself; no tensor is read.

    Args:
        path: the file.

    Raises:
        FileError: as for `load`, but for what is altered in the tensors alone.
    """
    place = _place(path)
    with _open(place) as file:
        found = _guarded(opened, file, place)
    return _guarded(_told, found, place)


def _read_back(writer: Writer, manifest: Mapping[str, Any], member: Mapping[str, Any]) -> bytes:
    """The manifest's text, once its objects have been made again: what would not be read again is not saved.

    Raises:
        UnsupportedError: if an object is not what its class says, or takes more than a file's objects may take.
    """
    try:
        text = text_of(manifest, member)
        reader = Reader(writer.tensors, Replacements(), len(text) + member["size"])
        with suppress(ModelError):  # a network whose code is the caller's
            _objects(reader, manifest["objects"], manifest["value"])
        return text
    except _MALFORMED as error:
        raise UnsupportedError(
            "save: expected objects as their classes tell them, got one that could not be read again: "
            f"{first_line(error)}."
        ) from error


def _objects(reader: Reader, nodes: Sequence[Any], root: Any) -> Any:
    """Makes the objects of a table, and the value."""
    for node in nodes:
        reader.add(node)
    return reader.value(root)


def _told(found: Opened, path: Path) -> Manifest:
    told = found.manifest
    texts = all(isinstance(told.get(key), str) for key in ("bayescope", "kind", "summary"))
    whole = isinstance(told.get("metadata"), dict) and fits(told.get("packages"), dict[str, str])
    if not texts or not whole or not all(map(possible, told["tensors"])):
        refuse_altered(path, "its manifest lacks what every file has")
    return Manifest(
        told["format"], told["bayescope"], told["kind"], told["summary"], told["metadata"], told["packages"],
        {MANIFEST: found.manifest_size, TENSORS: found.size},
        {name: (dtype, tuple(shape)) for name, dtype, shape in told["tensors"]}, found.file_size,
    )  # fmt: skip


def _read_first(manifest: Mapping[str, Any], reader: Reader, path: Path) -> Any:
    """Of the first version of the format: a table of objects, and the value."""
    if not {"objects", "value", "packages"} <= manifest.keys() or not isinstance(manifest["objects"], list):
        refuse_altered(path, "its manifest lacks what every file has")
    scikit.warn_of_other_version(manifest["packages"], manifest["objects"])
    value = _objects(reader, manifest["objects"], manifest["value"])
    if name_of(value) != manifest.get("kind"):
        refuse_altered(path, "it does not hold what its manifest says")
    return value


# One reader for each version of the format that is known.
_READERS: dict[int, Callable[[Mapping[str, Any], Reader, Path], Any]] = {1: _read_first}
assert max(_READERS) == FORMAT


def _place(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path: expected a path as text or a pathlib.Path, got {type(path).__name__}.")
    return Path(path)


def _open(path: Path) -> BinaryIO:
    try:
        if path.is_fifo():  # opening it waits for somebody who writes
            raise FileError(f"{path}: expected a file that can be read, got a named pipe. Write it to a file first.")
        return path.open("rb")
    except OSError as error:
        raise FileError(
            f"{path}: expected a file that can be read, got: {error.strerror or error}. Check the path."
        ) from None


def _guarded(step: Callable[..., Any], *arguments: Any) -> Any:
    """A step of reading, whose failures are told as those of the file, which is the last argument."""
    path = arguments[-1]
    try:
        return step(*arguments)
    except (FileError, ModelError):
        raise
    except OSError as error:
        raise FileError(f"{path}: expected a file that can be read, got: {error.strerror or error}.") from None
    except _MALFORMED as error:
        raise FileError(
            f"{path}: expected a file as bayescope saved it, got an altered one: {first_line(error)}. Save it again."
        ) from error
