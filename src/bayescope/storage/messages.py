"""Values as messages between processes: the JSON and tensors that files have, and no code."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from bayescope.storage.codec import MalformedError, Reader, Writer
from bayescope.storage.tensors import ALIGNMENT, DTYPES, described, header, pieces


def packed(value: Any) -> Tensor:
    """The bytes of a value, shape (n,): the length of its JSON, the JSON, then the tensors, the widest types first.

    Raises:
        UnsupportedError: if a part of the value is nothing that a file could hold.
    """
    writer = Writer()
    root = writer.value(value, "message")
    table = described(writer.tensors)
    text = json.dumps([root, writer.objects, table], separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    content = bytearray(len(text).to_bytes(ALIGNMENT, "little") + text)
    for piece in pieces(table, writer.tensors):
        content += piece
    return torch.frombuffer(content, dtype=torch.uint8)


def unpacked(content: Tensor) -> Any:
    """The value of a message, with its tensors on the CPU.

    Raises:
        MalformedError: if these are no bytes that `packed` returns.
    """
    try:
        stop = ALIGNMENT + int.from_bytes(content[:ALIGNMENT].numpy().tobytes(), "little")
        root, objects, table = json.loads(content[ALIGNMENT:stop].numpy().tobytes())
        stop += len(header(table))
        tensors = {}
        for name, dtype, shape in table:
            start, stop = stop, stop + DTYPES[dtype].itemsize * math.prod(shape)
            part = content[start:stop].clone()
            tensors[name] = (part.bool() if dtype == "BOOL" else part.view(DTYPES[dtype])).reshape(shape)
        reader = Reader(tensors, size=len(content))
        for node in objects:
            reader.add(node)
        return reader.value(root)
    except Exception as error:  # whatever bytes that nobody packed may end in
        raise MalformedError(f"{type(error).__name__}: {error}") from error
