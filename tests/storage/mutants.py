"""Altered files: what disks, networks and attackers do to them, drawn from a seed."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from bayescope.storage.container import FORMAT, MANIFEST, TENSORS, Member, ending
from bayescope.storage.tensors import header

Mutation = Callable[[bytes, random.Random], bytes]


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The manifest and the tensors of a file that is whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return json.loads(file.read(MANIFEST)), file.read(TENSORS)


def framed(manifest: Any, tensors: bytes, *, text: bytes | None = None, told: dict[str, Any] | None = None) -> bytes:
    """A file whose checksums all agree, whatever is in it."""
    if told is None:
        told = {"size": len(tensors), "crc32": zlib.crc32(tensors), "sha256": hashlib.sha256(tensors).hexdigest()}
    if text is None:
        manifest = {**manifest, "members": {TENSORS: told}} if isinstance(manifest, dict) else manifest
        text = json.dumps(manifest).encode()
    first, second = Member(MANIFEST, len(text), zlib.crc32(text)), Member(TENSORS, len(tensors), zlib.crc32(tensors))
    digest = hashlib.sha256(text).hexdigest()
    return first.header() + text + second.header() + tensors + ending(first, second, digest)


# Bytes -----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice([1, 1, 2, 8, 64])):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def truncated(data: bytes, source: random.Random) -> bytes:
    return data[: source.randrange(len(data))]


def span(data: bytes, source: random.Random) -> tuple[int, int]:
    start = source.randrange(len(data))
    return start, min(len(data), start + source.choice([1, 3, 30, 300, 3000]))


def deleted(data: bytes, source: random.Random) -> bytes:
    start, stop = span(data, source)
    return data[:start] + data[stop:]


def inserted(data: bytes, source: random.Random) -> bytes:
    start, stop = span(data, source)
    return data[:start] + source.randbytes(stop - start) + data[start:]


def doubled(data: bytes, source: random.Random) -> bytes:
    start, stop = span(data, source)
    return data[:stop] + data[start:stop] + data[stop:]


def blanked(data: bytes, source: random.Random) -> bytes:
    start, stop = span(data, source)
    return data[:start] + bytes(stop - start) + data[stop:]


def swapped(data: bytes, source: random.Random) -> bytes:
    a, b, c, d = sorted(source.randrange(len(data)) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def extended(data: bytes, source: random.Random) -> bytes:
    more = source.randbytes(source.choice([1, 22, 5000]))
    return data + more if source.random() < 0.5 else more + data


def noise(_data: bytes, source: random.Random) -> bytes:
    return source.choice([b"", b"P", b"PK\x03\x04"]) + source.randbytes(source.choice([0, 5, 500]))


# Zips ------------------------------------------------------------------------------------------------------------


def zipped(data: bytes, source: random.Random) -> bytes:
    """The same members by another program: compressed, renamed, doubled, linked, with more beside them."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(name, file.read(name)) for name in (MANIFEST, TENSORS)]
    names = ["../../evil", "/etc/evil", "C:\\evil", "manifest.json/", "a\x00b", "manifest.json", TENSORS, "x" * 60000]
    change = source.choice(["compressed", "renamed", "doubled", "link", "more", "bomb", "order", "plain", "zip64"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file, warnings.catch_warnings(action="ignore"):  # names may stand twice
        if change == "order":
            members.reverse()
        if change == "bomb":
            members[0] = MANIFEST, b"[" * 2_000_000
        for name, content in members:
            method = zipfile.ZIP_DEFLATED if change in ("compressed", "bomb") else zipfile.ZIP_STORED
            information = zipfile.ZipInfo(source.choice(names) if change == "renamed" else name)
            information.compress_type = method
            if change == "link":
                information.external_attr = 0o120777 << 16
            with file.open(information, "w", force_zip64=change == "zip64") as member:
                member.write(content)
        if change in ("doubled", "more"):
            extra = source.choice([MANIFEST, TENSORS]) if change == "doubled" else source.choice(names)
            file.writestr(zipfile.ZipInfo(extra), b"{}")
    return buffer.getvalue()


def misled(data: bytes, source: random.Random) -> bytes:
    """A field of a header that tells something else: encryption, methods, sizes, offsets, counts."""
    changed = bytearray(data)
    central, end = data.rindex(b"PK\x01\x02"), data.rindex(b"PK\x05\x06")
    second = len(Member(MANIFEST, 0, 0).header()) + struct.unpack("<L", data[18:22])[0]
    base = source.choice([0, second, central, data.index(b"PK\x01\x02"), end])
    place = base + source.randrange(4, 22 if base == end else 46)
    wide = source.choice(["<H", "<L"])
    value = source.choice([0, 1, 8, 9, 45, 0x7FFF, 0xFFFF, source.randrange(65536)])
    value = value if wide == "<H" else source.choice([value, 0xFFFFFFFF, 0x7FFFFFFF])
    struct.pack_into(wide, changed, place, value)
    return bytes(changed)


# Manifests whose checksums agree ---------------------------------------------------------------------------------


def places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All containers in a tree with one of their keys."""
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        found.append((node, key))
        places(node[key], found)
    return found


def nested(levels: int) -> Any:
    node: Any = 1
    for _ in range(levels):
        node = [node]
    return node


def strange(source: random.Random, count: int) -> Any:
    """A value that nobody wrote there."""
    return source.choice(
        [
            None, True, False, 0, 1, -1, 2, 7, 10**9, 2**31, 2**62, 2**63, 2**64, -(2**63), 10**400, 1.5, -0.0, 1e308,
            "", "x", "laplace", "\x00", "../../etc/passwd", "__class__", "os.system", "é\ud800", "x" * 10_000, [], {},
            [[]], [1, 2, 3], {"ref": 0}, {"ref": -1}, {"ref": count}, {"ref": 10**9}, {"ref": count // 2},
            {"ref": True}, {"tuple": []}, {"float": "nan"}, {"float": "inf"}, {"float": "x"},
            {"dict": [[1, 2], [1, 3]]}, {"dict": [[[], 2]]}, {"type": "os.system"}, {"type": "object"}, {"size": [-1]},
            {"size": [2**61, 2**61]},
            {"slice": [None, None, 0]}, {"object": ["os.system", 1, {}, {}]}, {"object": ["gaussian", 1, {}, {}]},
            {"object": ["record", 99, {}, {}]}, {"estimator": ["StandardScaler", {}, {"transform": 1}]},
            {"estimator": ["Pipeline", {"steps": [], "memory": "/tmp"}, {}]},
            {"estimator": ["subprocess.Popen", {"args": "true"}, {}]},
            {"layer": ["Linear", {"dict": [["in_features", 10**12], ["out_features", 10**12]]}, True, {}, {}, []]},
            {"layer": ["LSTM", {"dict": [["input_size", 1], ["hidden_size", 1], ["num_layers", 9**9]]}, 1, {}, {}, []]},
            {"array": ["U1000000", [1], [""], None]}, {"array": ["object", [10**12], [], None]},
            {"array": ["float64", [1], "nothing", None]}, {"scalar": ["float64", "x"]}, {"scalar": ["int8", 10**6]},
            {"tensor": ["nothing", None]}, {"tensor": [None, None]}, {"spline": [1, 2, 3, 4, 5]}, {"unknown": 1},
            {"a": 1, "b": 2}, nested(30), nested(300), [None] * 50_000,
        ]
    )  # fmt: skip


def edited(data: bytes, source: random.Random) -> bytes:
    """One to three values of the manifest replaced, removed, doubled or exchanged, and all checksums put right."""
    manifest, tensors = parts(data)
    del manifest["members"]
    count = len(manifest["objects"])
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        found = places(manifest, [])
        holder, key = source.choice(found)
        change = source.choice(["replace"] * 4 + ["remove", "double", "exchange", "near"])
        if change == "replace":
            holder[key] = strange(source, count)
        elif change == "remove":
            del holder[key]
        elif change == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif change == "near" and type(holder[key]) is int:
            holder[key] += source.choice([-1, 1, 2, 1000])
        else:
            other, place = source.choice(found)
            if place in other if isinstance(other, dict) else place < len(other):
                holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    return framed(manifest, tensors)


def misspelt(data: bytes, source: random.Random) -> bytes:
    """A manifest that is no JSON of ours, with checksums that agree."""
    manifest, tensors = parts(data)
    text = json.dumps(manifest)
    place = source.randrange(len(text))
    text = source.choice(
        [
            text[:place] + "NaN" + text[place:], text.replace("1", "Infinity", 1), "[" * 100_000, "{}", "[]", "null",
            '{"format": 1e999}', text[:place], text + text, "9" * 5000, text.replace('"format": 1', '"format": 2', 1),
            text.replace('"format": 1', '"format": 0', 1), text.replace('"format": 1', '"format": "1"', 1),
            text[:place] + "\x00" + text[place:], '{"format": 1, "bayescope": "1", "members": {}}',
        ]
    )  # fmt: skip
    raw = text.encode() if source.random() < 0.9 else text.encode("utf-16")
    return framed(None, tensors, text=raw)


def scribbled(data: bytes, source: random.Random) -> bytes:
    """Tensors of other numbers, NaN among them, or of another length, with checksums that agree."""
    manifest, tensors = parts(data)
    del manifest["members"]
    changed, start = bytearray(tensors), 8 + int.from_bytes(tensors[:8], "little")
    change = source.choice(["noise", "nan", "header", "size"])
    if change == "header":
        changed[source.randrange(start)] ^= 1 << source.randrange(8)
    elif change == "size":
        changed = changed[: source.randrange(len(changed))]
    else:
        for _ in range(source.choice([1, 10, 100])):
            place = source.randrange(start, len(tensors) - 8)
            place -= (place - start) % 8
            changed[place : place + 8] = struct.pack("<d", float("nan")) if change == "nan" else source.randbytes(8)
    return framed(manifest, bytes(changed))


def retold(data: bytes, source: random.Random) -> bytes:
    """A table that tells of other tensors than there are, with checksums that agree."""
    manifest, tensors = parts(data)
    table = manifest["tensors"]
    del manifest["members"]
    entry = source.choice(table)
    shapes = [[], [0], [-1], [1, *entry[2]], entry[2][::-1], [2**62], [1.0], "x", None, [True], [2**40], [2**31, 2**31]]
    others = {
        0: ["", "../x", "__metadata__", None, 3, table[0][0], "x" * 1000],
        1: ["F32", "I64", "U64", "BOOL", "F64", "C64", "", 3, None, "F8_E4M3"],
        2: [*shapes, [0, 2**61], [10**30], [1] * 1000],
    }
    change = source.choice([0, 1, 2, "order", "twice"])
    if isinstance(change, int):
        entry[change] = source.choice(others[change])
    elif change == "twice":
        table.append(entry)
    else:
        source.shuffle(table)
    return framed(manifest, _with_header(table, tensors) if source.random() < 0.5 else tensors)


def _with_header(table: list[Any], tensors: bytes) -> bytes:
    """The tensors under the header that the table implies, where it implies one."""
    try:
        return header(table) + tensors[8 + int.from_bytes(tensors[:8], "little") :]
    except (KeyError, TypeError, ValueError, OverflowError):
        return tensors


MUTATIONS: dict[str, Mutation] = {
    each.__name__: each
    for each in (
        flipped, truncated, deleted, inserted, doubled, blanked, swapped, extended, noise, zipped, misled, edited,
        misspelt, scribbled, retold,
    )
}  # fmt: skip
# How often each is drawn: what has right checksums gets further.
FREQUENCIES = {**dict.fromkeys(MUTATIONS, 1), "edited": 10, "retold": 2, "misspelt": 2, "zipped": 2, "misled": 2}
# What leaves the checksums right: a file may then hold other values, and be whole.
WELL_FRAMED = ("edited", "misspelt", "scribbled", "retold")


def mutant(data: bytes, source: random.Random) -> tuple[str, bytes]:
    """One altered file, and what has been done to it."""
    [name] = source.choices(list(FREQUENCIES), list(FREQUENCIES.values()))
    return name, MUTATIONS[name](data, source)


assert FORMAT == 1, "mutants are of the first format"
