"""Parquet files: columns of every type, and altered bytes, drawn from a seed."""

from __future__ import annotations

import datetime
import decimal
import io
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.storage.mutants import blanked, deleted, doubled, extended, flipped, inserted, swapped, truncated

ROWS = 60
# What a file may be written with.
WRITTEN: tuple[dict[str, Any], ...] = (
    {"compression": "none", "use_dictionary": False},
    {"compression": "snappy"},
    {"compression": "zstd", "data_page_version": "2.0", "row_group_size": 17},
    {"compression": "gzip", "write_page_checksum": True, "store_schema": False},
)


def table() -> pa.Table:
    """Numbers, labels, gaps and whole numbers of 64 bits."""
    source = np.random.default_rng(0)
    return pa.table({
        "age": source.normal(50, 9, ROWS).round(1),
        "visits": source.integers(0, 9, ROWS),
        "large": source.integers(0, 2**63, ROWS, dtype=np.uint64) * 2 + 1,
        "colour": source.choice(["red", "blue", "grün"], ROWS),
        "kind": pa.array(source.choice(["a", "b"], ROWS)).dictionary_encode(),
        "flag": source.random(ROWS) < 0.5,
        "gap": [None if row % 3 else float(row) for row in range(ROWS)],
        "state": source.choice(["sick", "well"], ROWS),
    })  # fmt: skip


def written(content: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(content, stream, **options)
    return stream.getvalue()


def whole() -> list[bytes]:
    """The same table, written in several ways."""
    return [written(table(), **options) for options in WRITTEN]


def misled(data: bytes, source: random.Random) -> bytes:
    """Bytes of the footer: names, types, offsets, sizes, numbers of rows."""
    changed = bytearray(data)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(source.choice([1, 1, 2, 4])):
        changed[source.randrange(start, len(data) - 8)] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
    return bytes(changed)


MUTATIONS = (flipped, truncated, deleted, inserted, doubled, blanked, swapped, extended)


def mutant(data: bytes, source: random.Random) -> bytes:
    """One altered file."""
    return source.choice(MUTATIONS if source.random() < 0.5 else (misled,))(data, source)


def _of_bytes(content: bytes) -> pa.Array:
    places = pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32))
    return pa.StringArray.from_buffers(ROWS, places, pa.py_buffer(content * ROWS))


# Columns of types of Arrow's, and whether a model can be fitted to each.
COLUMNS: dict[str, tuple[pa.Array, bool]] = {
    "lists": (pa.array([[1, 2]] * ROWS), False),
    "lists of lists": (pa.array([[[1]]] * ROWS), False),
    "structs": (pa.array([{"a": 1, "b": "x"}] * ROWS), False),
    "maps": (pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())), False),
    "times": (pa.array([datetime.time(1, 2)] * ROWS), False),
    "dates": (pa.array([datetime.date(2024, 1, 1)] * ROWS), False),
    "durations": (pa.array([datetime.timedelta(1)] * ROWS), False),
    "bytes": (pa.array([b"\xff\x00"] * ROWS), False),
    "text that is no UTF-8": (_of_bytes(b"\xff"), False),
    "infinite": (pa.array([float("inf"), 1.0] * (ROWS // 2)), False),
    "dictionary": (pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(), True),
    "dictionary of numbers": (pa.array([1, 2] * (ROWS // 2)).dictionary_encode(), True),
    "decimals": (pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.25")] * (ROWS // 2)), True),
    "large text": (pa.array(["a", "b"] * (ROWS // 2), pa.large_string()), True),
    "2⁶⁴ − 1": (pa.array([2**64 - 1, 0, None] * (ROWS // 3), pa.uint64()), True),
    "±2⁶³": (pa.array([2**63 - 1, -(2**63)] * (ROWS // 2)), True),
    "16 bits": (pa.array(np.array([1, 2] * (ROWS // 2), dtype=np.float16)), True),
    "truth": (pa.array([True, False] * (ROWS // 2)), True),
}
