"""Saving and loading: a value, its nodes and tensors, and the container around them; and values as messages."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, final

import torch
from torch import Tensor, nn

from bayescope.errors import FileError, InputError, InputTypeError, UnsupportedError, first_line
from bayescope.files import staged
from bayescope.storage.answers import remember
from bayescope.storage.codec import MalformedError, Node, Reader, Writer, name_of
from bayescope.storage.container import Opened, opened, packed, refuse_altered, tensors_of
from bayescope.storage.hints import fits
from bayescope.storage.networks import ModelError, check_model, check_networks
from bayescope.storage.objects import warn_of_other_version

R = TypeVar("R")
PACKAGES = ("torch", "numpy", "scikit-learn")
_version = cache(version)
# Whole numbers that any reader of JSON has.
LARGEST = 2**63
# What nodes that nobody saved may end in while objects are made of them.
_MALFORMED = (
    MalformedError, TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
    AssertionError,
)  # fmt: skip


@final
@dataclass(frozen=True)
class Manifest:
    """What a file says of itself.

    Attributes:
        format_version: of the file format.
        bayescope_version: of the version that saved it.
        kind: what the file holds, such as "gaussian_posterior" or "BayesianLogisticRegression".
        summary: how it was made, a few lines.
        metadata: what the user has put beside it.
        packages: the versions of torch, numpy and scikit-learn that it was saved with.
        tensors: type and shape of each, by name.
        file_size: bytes of the file.
    """

    format_version: int
    bayescope_version: str
    kind: str
    summary: str
    metadata: Mapping[str, Any]
    packages: Mapping[str, str]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    file_size: int


def save(value: object, path: str | Path, *, summary: str = "", metadata: Mapping[str, Any] | None = None) -> Path:
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
        InputTypeError: if the path is not one, or the metadata are of another type.
    """
    place, writer, kind = _place(path), Writer(), name_of(value)
    manifest: dict[str, Any] = {
        "bayescope": _version("bayescope"),
        "kind": kind,
        "summary": summary,
        "metadata": _checked_metadata(metadata),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    try:
        root = writer.value(value, kind)
    except RecursionError:
        raise UnsupportedError(
            f"save: expected a {kind} that does not hold itself, got one that does, or whose parts are nested more "
            f"deeply than {sys.getrecursionlimit()} calls of Python's functions reach. Join containers that hold "
            "nothing but one another, or raise that number by sys.setrecursionlimit."
        ) from None
    manifest |= {"objects": writer.objects, "value": root}
    try:
        content = list(packed(manifest, writer.tensors))
        with suppress(ModelError):  # a network whose code is the caller's
            _value(manifest, Reader(writer.tensors, size=sum(map(len, content))))
    except _MALFORMED as error:  # what would not be read again is not saved
        raise UnsupportedError(
            "save: expected objects that are what their classes say, got one that could not be read again: "
            f"{first_line(error)}."
        ) from error
    with staged(place.parent) as stage, (stage / place.name).open("wb") as file:
        file.writelines(content)
    return place


def load(path: str | Path, *, model: nn.Module | None = None, device: torch.device | str | None = None) -> Any:
    """Reads what `save` wrote, onto the CPU or another device.

    With the same processor and packages, predictions on the CPU are the same to the last bit. The tensors of a
    ``model`` get the values and the memory layout of those in the file.

    A file holds no code, and none is run: networks made of torch's own layers are described in it, and others need the
    module whose weights these are.

    Args:
        path: the file.
        model: a module of the same architecture, for networks of custom classes; of several networks in a file, each
            is a copy of it with its own weights. It stays unchanged.
        device: where the posterior is to answer, such as "cuda"; ``None`` for the CPU, wherever it was saved.

    Returns:
        What was saved.

    Raises:
        FileError: if there is no such file, or it is truncated, altered, or of a version that cannot be read.
        InputError: if the file needs a model and there is none, or another one.
        InputTypeError: if the path is not one.
        UnsupportedError: for a device beside the CPU where the file has an estimator, or a posterior of a table.
    """
    value = load_with_manifest(path, model=model)[0]
    if device is None or torch.device(device) == torch.device("cpu"):
        return value
    if not hasattr(value, "to"):
        raise UnsupportedError(
            f"device: expected the file of a posterior, got that of a {name_of(value)}, which answers on the CPU. "
            "Leave device= out; the posterior of its network can be moved: model.posterior_.to(device)."
        )
    moved = value.to(device)
    remember([moved], Path(path))
    return moved


def load_with_manifest(path: str | Path, *, model: nn.Module | None = None) -> tuple[Any, Manifest]:
    """What `load` and `read_manifest` return, of one and the same file: it is opened once.

    Another process may put another file in its place between two openings.
    """
    place = _place(path)
    check_model(model)

    def read(file: BinaryIO) -> tuple[Any, Manifest]:
        found = opened(file, place)
        reader = Reader(tensors_of(file, found, place), model, found.size)
        manifest = found.manifest
        if not {"objects", "value", "packages"} <= manifest.keys() or not isinstance(manifest["objects"], list):
            refuse_altered(place, "its manifest lacks what every file has")
        warn_of_other_version(manifest["packages"], manifest["objects"])
        value = _value(manifest, reader)
        if name_of(value) != manifest.get("kind"):
            refuse_altered(place, "it does not hold what its manifest says")
        check_networks(reader.objects, model)
        remember(reader.objects, place)
        return value, _described(found, place)

    # Whatever device torch takes by default, and as tensors that may meet autograd again.
    with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
        return _read(place, read)


def read_manifest(path: str | Path) -> Manifest:
    """What a file says of itself; no tensor is read.

    Args:
        path: the file.

    Raises:
        FileError: as for `load`, but for what is altered in the tensors alone.
    """
    place = _place(path)
    return _read(place, lambda file: _described(opened(file, place), place))


def to_message(value: object) -> Tensor:
    """The bytes of a value for another process, shape (n,): those of a file.

    Raises:
        UnsupportedError: if a part of the value is nothing that a file could hold.
    """
    writer = Writer()
    root = writer.value(value, "message")
    manifest = {"bayescope": _version("bayescope"), "objects": writer.objects, "value": root}
    return torch.frombuffer(bytearray(b"".join(packed(manifest, writer.tensors))), dtype=torch.uint8)


def from_message(content: Tensor) -> Any:
    """The value of a message, with its tensors on the CPU.

    Raises:
        MalformedError: if these are no bytes that `to_message` returns.
    """
    try:
        file = io.BytesIO(content.numpy().tobytes())
        found = opened(file, "message")
        return _value(found.manifest, Reader(tensors_of(file, found, "message"), size=found.size))
    except Exception as error:  # whatever bytes that nobody packed may end in
        raise MalformedError(f"{type(error).__name__}: {error}") from error


def _value(manifest: Mapping[str, Any], reader: Reader) -> Any:
    """Makes the objects of a manifest's table, and the value."""
    for node in manifest["objects"]:
        reader.add(node)
    root: Node = manifest["value"]
    return reader.value(root)


def _described(found: Opened, path: Path) -> Manifest:
    parts = found.manifest
    texts = all(isinstance(parts.get(key), str) for key in ("bayescope", "kind", "summary"))
    if not texts or not isinstance(parts.get("metadata"), dict) or not fits(parts.get("packages"), dict[str, str]):
        refuse_altered(path, "its manifest lacks what every file has")
    tensors = {name: (dtype, tuple(shape)) for name, dtype, shape in found.table}
    return Manifest(
        parts["format"], parts["bayescope"], parts["kind"], parts["summary"], parts["metadata"], parts["packages"],
        tensors, found.size,
    )  # fmt: skip


def _place(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path: expected a path as text or a pathlib.Path, got {type(path).__name__}.")
    return Path(path)


def _read(path: Path, read: Callable[[BinaryIO], R]) -> R:
    """What a function reads of a file, whose failures are reported as those of the file."""
    try:
        if path.is_fifo():  # opening it waits for somebody who writes
            raise FileError(f"{path}: expected a file that can be read, got a named pipe. Write it to a file first.")
        with path.open("rb") as file:
            return read(file)
    except (FileError, ModelError):
        raise
    except OSError as error:
        raise FileError(
            f"{path}: expected a file that can be read, got: {error.strerror or error}. Check the path."
        ) from None
    except _MALFORMED as error:
        raise FileError(
            f"{path}: expected a file as bayescope saved it, got an altered one: {first_line(error)}. Save it again."
        ) from error


def _checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as JSON has it.

    Raises:
        InputTypeError: if it is no mapping of texts to texts, finite numbers, truth values, ``None``, and lists and
            mappings of these.
        InputError: if a number is not finite.
    """
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata: expected a mapping, got {type(metadata).__name__}.")
    try:
        plain: dict[str, Any] = _plain("metadata", metadata or {})
        return plain
    except RecursionError:
        raise InputError("metadata: expected values that do not hold themselves, got one that does.") from None


def _plain(path: str, value: object) -> Any:
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise InputError(f"{path}: expected a number of at most 64 bits, got a larger one. Write it as text.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path}: expected a finite number, got {value}. Write it as text.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(f"{path}[{place}]", each) for place, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputTypeError(f"{path}: expected names that are text, got {key!r}. Write str({key!r}).")
        return {key: _plain(f"{path}[{key!r}]", each) for key, each in value.items()}
    raise InputTypeError(
        f"{path}: expected text, a number, a truth value, None, or a list or mapping of these, got "
        f"{type(value).__name__}."
    )
