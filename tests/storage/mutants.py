"""Altered files: what disks, networks and attackers do to them, drawn from a seed."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from bayescope.storage.container import FORMAT, header

Mutation = Callable[[bytes, random.Random], bytes]


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The manifest, with the table of the tensors, and the tensors of a file that is whole."""
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    manifest = json.loads(entries.pop("__metadata__")["bayescope"])
    table = [[name, entry["dtype"], entry["shape"]] for name, entry in entries.items()]
    return {**manifest, "tensors": table}, data[start:]


def framed(manifest: Any, tensors: bytes, *, text: str | None = None) -> bytes:
    """A file whose checksums all agree, whatever is in it."""
    table: Any = []
    if isinstance(manifest, dict):
        manifest = {**manifest, "sha256": hashlib.sha256(tensors).hexdigest()}
        table = manifest.pop("tensors", [])
    text = json.dumps(manifest) if text is None else text
    try:
        return header(text, table) + tensors
    except (KeyError, TypeError, ValueError, OverflowError):  # no tensors that can be
        digest = hashlib.sha256(json.dumps([text, table]).encode()).hexdigest()
        entries = {"__metadata__": {"bayescope": text, "sha256": digest}}
        for place, entry in enumerate(table if isinstance(table, list) else []):
            name, dtype, shape = entry if isinstance(entry, list) and len(entry) == 3 else (place, entry, None)
            entries[str(name)] = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(tensors)]}
        content = json.dumps(entries, separators=(",", ":")).encode()
        return len(content).to_bytes(8, "little") + content + tensors


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


# Headers ---------------------------------------------------------------------------------------------------------


def headed(data: bytes, source: random.Random) -> bytes:
    """The same header written by another program: other spaces, orders, names, lengths, offsets, a second entry."""
    start = 8 + int.from_bytes(data[:8], "little")
    entries, tensors = json.loads(data[8:start]), data[start:]
    change = source.choice(["spaces", "order", "renamed", "length", "offsets", "metadata", "more", "bomb", "zip"])
    names = ["../../evil", "a\x00b", "__metadata__", "x" * 60000]
    if change == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("manifest.json", data)
        return buffer.getvalue()
    if change == "order":
        entries = dict(source.sample(list(entries.items()), len(entries)))
    if change == "renamed":
        entries = {source.choice(names) if name != "__metadata__" else name: each for name, each in entries.items()}
    if change == "offsets":
        for each in entries.values():
            if "data_offsets" in each:
                each["data_offsets"] = source.choice([[0, 8], [-8, 0], [0, 2**63], [8, 0], ["0", "8"], []])
    if change == "metadata":
        entries["__metadata__"][source.choice(["format", "sha256", "bayescope"])] = source.choice(["pt", "", 3, None])
    if change == "more":
        entries[source.choice(names)] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    content = b"[" * 2_000_000 if change == "bomb" else json.dumps(entries).encode()
    if change != "spaces":
        content = json.dumps(json.loads(content), separators=(",", ":")).encode() if change != "bomb" else content
        content += b" " * (-len(content) % 8)
    length = source.choice([0, 1, 8, 2**31, 2**63, 2**64 - 1]) if change == "length" else len(content)
    return length.to_bytes(8, "little") + content + tensors


def misled(data: bytes, source: random.Random) -> bytes:
    """A number of the header that says something else: a length, an offset, a size."""
    start = 8 + int.from_bytes(data[:8], "little")
    numbers = [match.span() for match in re.finditer(rb"\d+", data[:start])]
    first, last = source.choice([(0, 8), *numbers])
    value = source.choice([0, 1, 8, 9, 45, 0x7FFF, 2**31, 2**62, source.randrange(65536)])
    other = value.to_bytes(8, "little") if first == 0 else str(value).encode()
    return data[:first] + other + data[last:]


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
            {"size": [2**61, 2**61]}, {"slice": [None, None, 0]}, {"os.system": {}}, {"gaussian": {}},
            {"record": {"method": 3}}, {"StandardScaler": {"transform": 1}},
            {"Pipeline": {"steps": [], "memory": "/tmp"}}, {"subprocess.Popen": {"args": "true"}},
            {"Linear": {"": [{"dict": [["in_features", 10**12], ["out_features", 10**12]]}, True, []]}},
            {"LSTM": {"": [{"dict": [["input_size", 1], ["hidden_size", 1], ["num_layers", 9**9]]}, True, []]}},
            {"array": {"dtype": "U1000000", "shape": [1], "values": [""]}}, {"scalar": ["float64", "x"]},
            {"array": {"dtype": "object", "shape": [10**12], "values": []}}, {"scalar": ["int8", 10**6]},
            {"array": {"dtype": "float64", "values": None}}, {"tensor": ["nothing", None]}, {"tensor": [None, None]},
            {"spline": {"t": 1, "c": 2, "k": 3, "extrapolate": 4, "axis": 5}}, {"unknown": 1},
            {"a": 1, "b": 2}, nested(30), nested(300), [None] * 50_000,
        ]
    )  # fmt: skip


def edited(data: bytes, source: random.Random) -> bytes:
    """One to three values of the manifest replaced, removed, doubled or exchanged, and all checksums put right."""
    manifest, tensors = parts(data)
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
    return framed(None, tensors, text=text)


def scribbled(data: bytes, source: random.Random) -> bytes:
    """Tensors of other numbers, NaN among them, or of another length, with checksums that agree."""
    manifest, tensors = parts(data)
    changed = bytearray(tensors)
    change = source.choice(["noise", "nan", "size"])
    if change == "size":
        changed = changed[: source.randrange(len(changed))]
    else:
        for _ in range(source.choice([1, 10, 100])):
            place = source.randrange(0, len(tensors) - 8)
            place -= place % 8
            changed[place : place + 8] = struct.pack("<d", float("nan")) if change == "nan" else source.randbytes(8)
    return framed(manifest, bytes(changed))


def retold(data: bytes, source: random.Random) -> bytes:
    """A table that tells of other tensors than there are, with checksums that agree."""
    manifest, tensors = parts(data)
    table = manifest["tensors"]
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
    return framed(manifest, tensors)


MUTATIONS: dict[str, Mutation] = {
    each.__name__: each
    for each in (
        flipped, truncated, deleted, inserted, doubled, blanked, swapped, extended, noise, headed, misled, edited,
        misspelt, scribbled, retold,
    )
}  # fmt: skip
# How often each is drawn: what has right checksums gets further.
FREQUENCIES = {**dict.fromkeys(MUTATIONS, 1), "edited": 10, "retold": 2, "misspelt": 2, "headed": 2, "misled": 2}
# What leaves the checksums right: a file may then hold other values, and be whole.
WELL_FRAMED = ("edited", "misspelt", "scribbled", "retold")


def mutant(data: bytes, source: random.Random) -> tuple[str, bytes]:
    """One altered file, and what has been done to it."""
    [name] = source.choices(list(FREQUENCIES), list(FREQUENCIES.values()))
    return name, MUTATIONS[name](data, source)


assert FORMAT == 1, "mutants are of the first format"
