"""The container: a safetensors file whose metadata hold the manifest, and whose every byte is checked.

    8 bytes               the length of the header
    header                JSON: "__metadata__", with the manifest as text and a SHA-256; types and places of tensors
    tensors               their bytes, the widest types first

Any program that reads safetensors reads the tensors. Reading writes the header again from what it says, and compares
the bytes; the SHA-256 in it is that of the manifest and the table of tensors, and the manifest has that of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn, final

import torch
from torch import Tensor

from bayescope.errors import FileError

FORMAT = 1
# A manifest has labels, names and traces: none of ours is larger.
MOST_HEADER = 256 * 2**20
# Bytes that Python takes for a table and for a list of JSON; how many for each byte of a header, and how many at least.
TABLE_BYTES, LIST_BYTES, BYTES_A_BYTE, FREE_BYTES = 192, 72, 16, 2**20
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
# What the header of every file begins with.
BEGINNING = b'{"__metadata__":{"bayescope":"'
# What stands in the command of a message, which people copy.
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,60}\Z")

# Name, type and shape of a tensor.
Entry = Sequence[Any]


@final
@dataclass(frozen=True)
class Opened:
    """A container whose header is whole.

    Attributes:
        manifest: as it was parsed, of this version of the format.
        table: name, type and shape of each tensor.
        start: where the bytes of the tensors begin.
        size: of the file, in bytes.
    """

    manifest: dict[str, Any]
    table: list[Entry]
    start: int
    size: int


def described(tensors: Mapping[str, Tensor]) -> list[Entry]:
    """Name, type and shape of each, the widest types first: each then begins at a multiple of its entries' size."""
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    return [[name, NAMES[tensors[name].dtype], list(tensors[name].shape)] for name in order]


def header(text: str, table: Sequence[Entry]) -> bytes:
    """What stands before the tensors.

    Args:
        text: of the manifest.
        table: of the tensors.
    """
    digest = hashlib.sha256(text.encode(errors="surrogatepass") + json.dumps(table).encode()).hexdigest()
    entries: dict[str, Any] = {"__metadata__": {"bayescope": text, "sha256": digest}}
    start = 0
    for name, dtype, shape in table:
        stop = start + DTYPES[dtype].itemsize * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    content = json.dumps(entries, separators=(",", ":")).encode()
    content += b" " * (-len(content) % ALIGNMENT)
    return len(content).to_bytes(8, "little") + content


def packed(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a container piece by piece: its header, then each tensor, which are contiguous and on the CPU.

    Raises:
        ValueError: if the manifest is too large, or holds text that is not Unicode.
    """
    table = described(tensors)
    contents = [_bytes(tensors[name]) for name, _, _ in table]
    text = json.dumps({"format": FORMAT, **manifest, "sha256": _digest(contents)}, allow_nan=False)
    content = header(text, table)
    _check_memory(content)
    _check_unicode(text, manifest)
    yield content
    yield from contents


def opened(file: BinaryIO, name: object) -> Opened:
    """Reads the manifest and the table of the tensors, and checks all bytes but the tensors'.

    Args:
        file: to read from.
        name: of the file, for messages.

    Raises:
        FileError: if the file is not bayescope's, truncated, altered, or of another version.
    """
    size = file.seek(0, 2)
    file.seek(0)
    first = file.read(8 + len(BEGINNING))
    if len(first) < 8 + len(BEGINNING) and (not first or (len(first) > 8 and BEGINNING.startswith(first[8:]))):
        _refuse_truncated(name, "a file saved by bayescope", f"{size} bytes")
    if first[8:] != BEGINNING:
        raise FileError(f"{name}: expected a file saved by bayescope, got something else. Name a .bayes file.")
    length = int.from_bytes(first[:8], "little")
    if length > MOST_HEADER:
        refuse_altered(name, "its header is longer than any")
    if size < 8 + length:
        _refuse_truncated(name, f"a header of {length:,} bytes", f"{size:,} bytes")
    file.seek(0)
    content = file.read(8 + length)
    text, table = _parsed(content[8:], name)
    try:
        same = header(text, table) == content
    except (TypeError, ValueError):
        same = False
    if not same:
        refuse_altered(name, "the checksum of its manifest is another")
    manifest = _manifest(text, name)
    expected = len(content) + sum(map(_size, table))
    if size < expected:
        _refuse_truncated(name, f"{expected:,} bytes", f"{size:,}")
    if size > expected:
        refuse_altered(name, f"it has {size - expected:,} bytes more than were saved")
    return Opened(manifest, table, len(content), size)


def tensors_of(file: BinaryIO, found: Opened, name: object) -> dict[str, Tensor]:
    """Reads all tensors of a container.

    Raises:
        FileError: if their checksum is another.
    """
    file.seek(found.start)
    digest, tensors = hashlib.sha256(), {}
    for key, dtype, shape in found.table:
        tensor = torch.empty(shape, dtype=DTYPES[dtype], device="cpu")
        view = _bytes(tensor)
        if len(view) and file.readinto(view) != len(view):  # type: ignore[attr-defined]
            refuse_altered(name, "it became shorter while it was read")
        digest.update(view)
        tensors[key] = tensor
    if digest.hexdigest() != found.manifest.get("sha256"):
        refuse_altered(name, "the checksum of its tensors is another")
    if any(bool((each.view(torch.uint8) > 1).any()) for each in tensors.values() if each.dtype == torch.bool):
        refuse_altered(name, "a truth value is neither true nor false")
    return tensors


def refuse_altered(name: object, what: str) -> NoReturn:
    """Raises the error for a file that is not as it was saved."""
    raise FileError(f"{name}: expected a file as bayescope saved it, got an altered one: {what}. Save it again.")


def _refuse_truncated(name: object, expected: str, got: str) -> NoReturn:
    raise FileError(f"{name}: expected {expected}, got a truncated file of {got}. Copy or save it again.")


def _digest(contents: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _parsed(content: bytes, name: object) -> tuple[str, list[Entry]]:
    """The manifest's text and the table of the tensors."""
    entries = _json(content, name)
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("bayescope"), str):
        refuse_altered(name, "it has no manifest")
    if not all(map(_is_possible, entries.values())):
        refuse_altered(name, "its header names tensors that cannot be")
    return metadata["bayescope"], [[key, entry["dtype"], entry["shape"]] for key, entry in entries.items()]


def _manifest(text: str, name: object) -> dict[str, Any]:
    manifest = _json(text.encode(errors="surrogatepass"), name)
    found, by = manifest.get("format"), manifest.get("bayescope")
    if type(found) is not int or not isinstance(by, str) or not _VERSION.match(by) or found < 1:
        refuse_altered(name, "its manifest does not tell its version")
    if found > FORMAT:
        raise FileError(
            f"{name}: expected a file of format {FORMAT} or before, got format {found}, saved by bayescope {by}. "
            f"Upgrade: pip install 'bayescope>={by}'."
        )
    return manifest


def _json(content: bytes, name: object) -> dict[str, Any]:
    try:
        _check_memory(content)
        text = content.decode()
        found = json.loads(text, parse_constant=_no_constant)
        _check_unicode(text, found)
    except (ValueError, RecursionError) as error:
        refuse_altered(name, f"its manifest is not JSON of ours ({type(error).__name__})")
    if not isinstance(found, dict):
        refuse_altered(name, "its manifest is no table")
    return found


def _check_memory(content: bytes) -> None:
    """Refuses, before it is parsed, JSON of little but empty tables, which take 25 bytes of memory for each.

    Raises:
        ValueError: if it has too many, or is too large.
    """
    taken = TABLE_BYTES * content.count(b"{") + LIST_BYTES * content.count(b"[")
    if len(content) > MOST_HEADER + 8 or taken > FREE_BYTES + BYTES_A_BYTE * len(content):
        raise ValueError("a manifest takes more memory than a file of its size does")


def _check_unicode(text: str, value: object) -> None:
    """Refuses half of a surrogate pair, which JSON can write and nothing can print.

    Raises:
        UnicodeEncodeError: if there is one.
    """
    if r"\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_possible(entry: object) -> bool:
    """Whether an entry of the header describes a tensor that can be."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in DTYPES:
        return False
    shape: Any = entry.get("shape")
    sizes = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**62 for size in shape)
    return sizes and len(shape) <= 64


def _size(entry: Entry) -> int:
    _, dtype, shape = entry
    return DTYPES[dtype].itemsize * math.prod(shape)


def _bytes(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)
