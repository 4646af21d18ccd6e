"""The container: a zip of two stored members whose every byte follows from the manifest.

    manifest.json         what the file holds, as text; the sizes and the SHA-256 of what follows
    tensors.safetensors   all numbers
    end of the zip        with a comment that has the SHA-256 of the manifest

Nothing is compressed, so that a file takes no more memory than its size. Reading never asks the zip's directory where
anything lies: the headers that the manifest implies are written again in memory, and the file's have to be the same
bytes. Other names, more members, links, flags, sizes that disagree: each is a file that bayescope did not write.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, final

from bayescope.errors import FileError

FORMAT = 1
MANIFEST, TENSORS = "manifest.json", "tensors.safetensors"
# A manifest has labels, names and traces: one beyond this is none of ours.
MOST_MANIFEST = 256 * 2**20
# Bytes that Python takes for a table and for a list of JSON; so many for each byte of a manifest, and so many beside.
TABLE_BYTES, LIST_BYTES, BYTES_A_BYTE, FREE_BYTES = 192, 72, 16, 2**20
# Sizes and offsets from this on are written into the fields that zip64 adds; the usual fields then hold this number.
MOST = WIDE = 0xFFFFFFFF

_LOCAL, _CENTRAL, _END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4H2LH")
_WIDE_END, _LOCATOR = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_SIGNATURE = b"PK\x03\x04"
# What stands in the command of a message, which people copy.
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,60}\Z")
_DATE = 0x21  # 1980-01-01, the first that a zip knows
_PLAIN_FILE = 0o100644 << 16


@final
@dataclass(frozen=True)
class Member:
    """A member of the zip.

    Attributes:
        name: of the member.
        size: in bytes.
        crc: the checksum that zips have.
    """

    name: str
    size: int
    crc: int

    @property
    def wide(self) -> bool:
        """Whether its size takes the fields of zip64."""
        return self.size >= MOST

    @property
    def version(self) -> int:
        """Of the zip format that it takes to read it."""
        return 45 if self.wide else 20

    def header(self) -> bytes:
        """What stands before its bytes."""
        size, name = (WIDE if self.wide else self.size), self.name.encode()
        extra = struct.pack("<2H2Q", 1, 16, self.size, self.size) if self.wide else b""
        fields = (_SIGNATURE, self.version, 0, 0, 0, _DATE, self.crc, size, size, len(name), len(extra))
        return _LOCAL.pack(*fields) + name + extra

    def entry(self, offset: int) -> bytes:
        """Its entry in the directory, for the place where its header stands."""
        size, name = (WIDE if self.wide else self.size), self.name.encode()
        extra = struct.pack("<2H2Q", 1, 16, self.size, self.size) if self.wide else b""
        fields = (
            b"PK\x01\x02", 3 << 8 | self.version, self.version, 0, 0, 0, _DATE, self.crc, size, size,
            len(name), len(extra), 0, 0, 0, _PLAIN_FILE, offset,
        )  # fmt: skip
        return _CENTRAL.pack(*fields) + name + extra


def ending(first: Member, second: Member, digest: str) -> bytes:
    """The directory of two members that stand one after the other, and the end with the manifest's SHA-256."""
    place = len(first.header()) + first.size
    start = place + len(second.header()) + second.size
    directory = first.entry(0) + second.entry(place)
    comment = f"bayescope file {FORMAT} sha256 {digest}".encode()
    wide, after = b"", start + len(directory)
    if start >= MOST:
        wide = _WIDE_END.pack(b"PK\x06\x06", 44, 3 << 8 | 45, 45, 0, 0, 2, 2, len(directory), start)
        wide += _LOCATOR.pack(b"PK\x06\x07", 0, after, 1)
    end = _END.pack(b"PK\x05\x06", 0, 0, 2, 2, len(directory), WIDE if wide else start, len(comment))
    return directory + wide + end + comment


def text_of(manifest: Mapping[str, Any], member: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest that can be read again.

    Args:
        manifest: all but what is said of the tensors' bytes, which is added.
        member: "size", "crc32" and "sha256" of those, as `measured` has them.

    Raises:
        ValueError: if it is too large, or holds text that is no Unicode.
    """
    text = json.dumps({"format": FORMAT, **manifest, "members": {TENSORS: dict(member)}}, allow_nan=False).encode()
    _check_text(text)
    _check_unicode(text, manifest)
    return text


def write(path: Path, text: bytes, tensors: Iterable[memoryview], member: Mapping[str, Any]) -> None:
    """Writes a container of a manifest's text and of tensors, whose bytes come piece by piece."""
    first = Member(MANIFEST, len(text), zlib.crc32(text))
    second = Member(TENSORS, member["size"], member["crc32"])
    with path.open("wb") as file:
        file.write(first.header() + text + second.header())
        for piece in tensors:
            file.write(piece)
        file.write(ending(first, second, hashlib.sha256(text).hexdigest()))


def measured(pieces: Iterable[memoryview]) -> dict[str, Any]:
    """The size and the checksums of bytes that come in pieces."""
    size, crc, digest = 0, 0, hashlib.sha256()
    for piece in pieces:
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        digest.update(piece)
    return {"size": size, "crc32": crc, "sha256": digest.hexdigest()}


@final
@dataclass(frozen=True)
class Opened:
    """A container whose frame is whole.

    Attributes:
        manifest: as it was parsed, of this version of the format.
        manifest_size: in bytes.
        start: where the bytes of the tensors begin.
        size: how many they are.
        sha256: of them.
        file_size: in bytes.
    """

    manifest: dict[str, Any]
    manifest_size: int
    start: int
    size: int
    sha256: str
    file_size: int


def opened(file: BinaryIO, path: Path) -> Opened:
    """Reads the manifest, and checks every byte of the file that is neither in it nor in the tensors.

    Raises:
        FileError: if the file is none of bayescope's, truncated, altered, or of another version.
    """
    whole = file.seek(0, 2)
    file.seek(0)
    text, first = _manifest_bytes(file, path)
    manifest = _parsed(text, path)
    _check_version(manifest, path)
    size, crc, digest = _described(manifest, path)
    second = Member(TENSORS, size, crc)
    middle, end = second.header(), ending(first, second, hashlib.sha256(text).hexdigest())
    start = len(first.header()) + first.size + len(middle)
    expected = start + size + len(end)
    if whole < expected:
        refuse_truncated(path, f"{expected:,} bytes", f"{whole:,}")
    if whole > expected:
        refuse_altered(path, f"it has {whole - expected:,} bytes more than were saved")
    if file.read(len(middle)) != middle:
        refuse_altered(path, "the header of its tensors is another")
    file.seek(start + size)
    if file.read() != end:
        refuse_altered(path, "its end does not belong to its manifest")
    return Opened(manifest, len(text), start, size, digest, whole)


def refuse_altered(path: Path, what: str) -> NoReturn:
    """Raises the error for a file that is not as it was saved."""
    raise FileError(f"{path}: expected a file as bayescope saved it, got an altered one: {what}. Save it again.")


def refuse_truncated(path: Path, expected: str, got: str) -> NoReturn:
    """Raises the error for a file that ends too early."""
    raise FileError(f"{path}: expected {expected}, got a truncated file of {got}. Copy or save it again.")


def _manifest_bytes(file: BinaryIO, path: Path) -> tuple[bytes, Member]:
    head = file.read(_LOCAL.size + len(MANIFEST))
    if not head.startswith(_SIGNATURE[: len(head)]):
        raise FileError(f"{path}: expected a file saved by bayescope, got something else. Name a .bayes file.")
    if len(head) < _LOCAL.size + len(MANIFEST):
        refuse_truncated(path, "a file saved by bayescope", f"{len(head)} bytes")
    if head[_LOCAL.size :] != MANIFEST.encode():
        raise FileError(
            f"{path}: expected a file saved by bayescope, got another zip, or an altered one: its first member is "
            f"not {MANIFEST!r}. Name a .bayes file."
        )
    crc, size = _LOCAL.unpack(head[: _LOCAL.size])[6:8]
    member = Member(MANIFEST, size, crc)
    if size > MOST_MANIFEST or head != member.header():
        refuse_altered(path, "its first header is another")
    text = file.read(size)
    if len(text) < size:
        refuse_truncated(path, f"a manifest of {size:,} bytes", f"{len(head) + len(text):,} bytes")
    if zlib.crc32(text) != crc:
        refuse_altered(path, "the checksum of its manifest is another")
    return text, member


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        _check_text(text)
        manifest = json.loads(text.decode(), parse_constant=_no_constant)
        _check_unicode(text, manifest)
    except (ValueError, RecursionError) as error:
        refuse_altered(path, f"its manifest is no JSON of ours ({type(error).__name__})")
    if not isinstance(manifest, dict):
        refuse_altered(path, "its manifest is no table")
    return manifest


def _check_text(text: bytes) -> None:
    """Refuses, before it is parsed, a manifest of little but empty tables, which take 25 bytes of memory for each.

    Raises:
        ValueError: if it has so many, or is too large.
    """
    taken = TABLE_BYTES * text.count(b"{") + LIST_BYTES * text.count(b"[")
    if len(text) > MOST_MANIFEST or taken > FREE_BYTES + BYTES_A_BYTE * len(text):
        raise ValueError("a manifest takes more memory than a file of its size does")


def _check_unicode(text: bytes, manifest: Any) -> None:
    """Refuses half of a surrogate pair, which JSON can tell of and nothing can print.

    Raises:
        UnicodeEncodeError: if there is one.
    """
    if rb"\ud" in text.lower():
        json.dumps(manifest, ensure_ascii=False).encode()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_version(manifest: Mapping[str, Any], path: Path) -> None:
    found, by = manifest.get("format"), manifest.get("bayescope")
    if type(found) is not int or not isinstance(by, str) or not _VERSION.match(by) or found < 1:
        refuse_altered(path, "its manifest does not tell its version")
    if found > FORMAT:
        raise FileError(
            f"{path}: expected a file of format {FORMAT} or before, got format {found}, saved by bayescope {by}. "
            f"Upgrade: pip install 'bayescope>={by}'."
        )


def _described(manifest: Mapping[str, Any], path: Path) -> tuple[int, int, str]:
    """What the manifest says of the tensors' bytes: size, CRC-32, SHA-256."""
    members = manifest.get("members")
    told = members.get(TENSORS) if isinstance(members, dict) and len(members) == 1 else None
    if not isinstance(told, dict) or told.keys() != {"size", "crc32", "sha256"}:
        refuse_altered(path, "its manifest does not tell of its tensors")
    size, crc, digest = told["size"], told["crc32"], told["sha256"]
    whole = type(size) is int and 0 <= size < 2**62 and type(crc) is int and 0 <= crc < 2**32
    if not whole or not isinstance(digest, str):
        refuse_altered(path, "its manifest tells of tensors that cannot be")
    return size, crc, digest
