"""Named tensors as the bytes of a safetensors file, and back, without a copy of the whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bayescope.storage.container import Opened, refuse_altered

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# The header is filled up with spaces, so that what follows is aligned.
ALIGNMENT = 8


def described(tensors: Mapping[str, Tensor]) -> list[list[Any]]:
    """Name, type and shape of each, the widest types first: each then begins at a multiple of its entries' size."""
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    return [[name, NAMES[tensors[name].dtype], list(tensors[name].shape)] for name in order]


def header(table: Sequence[Sequence[Any]]) -> bytes:
    """The header of a safetensors file whose tensors stand one after the other in this order."""
    entries, start = {}, 0
    for name, dtype, shape in table:
        stop = start + DTYPES[dtype].itemsize * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def pieces(table: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of the file: its header, then each tensor's, which are contiguous and on the CPU."""
    yield memoryview(header(table))
    for name, _, _ in table:
        yield _bytes(tensors[name])


def read(file: BinaryIO, opened: Opened, path: Path) -> dict[str, Tensor]:
    """Reads all tensors of a container, none before all sizes are known to agree.

    Raises:
        FileError: if they are not those that the manifest tells of.
    """
    table = opened.manifest.get("tensors")
    if not isinstance(table, list) or not all(map(possible, table)):
        refuse_altered(path, "its manifest names tensors that cannot be")
    names = [name for name, _, _ in table]
    if len(set(names)) < len(names):
        refuse_altered(path, "its manifest names a tensor twice")
    head = header(table)
    sizes = [DTYPES[dtype].itemsize * math.prod(shape) for _, dtype, shape in table]
    if len(head) + sum(sizes) != opened.size:
        refuse_altered(path, "its tensors are of another size than its manifest tells")
    file.seek(opened.start)
    if file.read(len(head)) != head:
        refuse_altered(path, "the names, types or shapes of its tensors are not those of its manifest")
    digest, found = hashlib.sha256(head), {}
    for name, dtype, shape in table:
        tensor = torch.empty(shape, dtype=DTYPES[dtype], device="cpu")
        view = _bytes(tensor)
        if len(view) and file.readinto(view) != len(view):  # type: ignore[attr-defined]
            refuse_altered(path, "it became shorter while it was read")
        digest.update(view)
        found[name] = tensor
    if digest.hexdigest() != opened.sha256:
        refuse_altered(path, "the checksum of its tensors is another")
    for tensor in found.values():
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            refuse_altered(path, "a truth value is neither true nor false")
    return found


def _bytes(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def possible(entry: Any) -> bool:
    """Whether an entry of the manifest's table tells of a tensor that can be: its name, type and shape."""
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, dtype, shape = entry
    sizes = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**62 for size in shape)
    return isinstance(name, str) and isinstance(dtype, str) and dtype in DTYPES and sizes and len(shape) <= 64
