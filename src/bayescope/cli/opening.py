"""Where a table comes from: a file of text or Parquet, a pipe, or the standard input."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from bayescope.cli.arrow_source import ArrowSource, several
from bayescope.cli.header import meant
from bayescope.cli.source import Source
from bayescope.cli.text import TextSource
from bayescope.errors import InputError
from bayescope.memory import readable, require_memory

STANDARD = "-"  # the standard input, or output
# How delimited text and Parquet end; text may be compressed.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
COMPRESSED = ".gz"
ENDINGS = ".csv, .tsv, .csv.gz, .tsv.gz or .parquet"
# Bytes of a stream that tell what is in it, and that are read at a time where all of it is held in memory; what its
# bytes take while they become a table.
HEAD, PIECE, HELD_COPIES = 4096, 2**24, 6


def open_source(path: Path, *, missing: Sequence[str] = (), again: bool = False) -> Source:
    """Opens a table, and reads its header.

    Args:
        path: a file, a directory or a glob of files, or "-" for the standard input.
        missing: what stands for a missing value beside the usual spellings.
        again: whether it will be read more than once; the standard input is then held in memory.

    Raises:
        InputError: if there is no such file, it is not one of the kinds that are read, or its header cannot be used.
        MissingDependencyError: if it is Parquet, and pyarrow is not installed.
    """
    if str(path) == STANDARD:
        return _from_stream("standard input", sys.stdin.buffer, missing, again)
    if several(path):
        return ArrowSource(path, missing)
    separator = _separator_of_file(path)
    if not path.is_file():  # a pipe: /dev/stdin, or a shell's <(...)
        return _from_stream(str(path), _opened(path, open), missing, again)
    if separator is None:
        return ArrowSource(path)
    opened = gzip.open if path.suffix.lower() == COMPRESSED else open
    begin, size = partial(_opened, path, opened), path.stat().st_size
    return TextSource(str(path), separator, begin, missing, once=False, size=size)


def _separator_of_file(path: Path) -> str | None:
    """The separator that the name of a file that is there asks for; ``None`` for Parquet.

    Raises:
        InputError: if there is no such file, or its name has another ending.
    """
    if not path.exists():
        raise InputError(f"{path}: expected a file, got nothing there.{closest(path)}")
    return separator_of(path) if path.is_file() else ","


def closest(path: Path) -> str:
    """The question whether another file of the folder was meant."""
    return meant(path.name, sorted(file.name for file in path.parent.glob("*"))) if path.parent.is_dir() else ""


def separator_of(path: Path) -> str | None:
    """The separator of text by the name of its file; ``None`` for Parquet.

    Raises:
        InputError: if the name ends in anything else.
    """
    ending = (path.with_suffix("") if path.suffix.lower() == COMPRESSED else path).suffix.lower()
    if ending in PARQUET and path.suffix.lower() != COMPRESSED:
        return None
    if ending not in SEPARATORS:
        raise InputError(f"{path}: expected a file name that ends in {ENDINGS}, got {path.suffix!r}. Save it as one.")
    return SEPARATORS[ending]


def _from_stream(name: str, stream: IO[bytes], missing: Sequence[str], again: bool) -> Source:
    """A table of text from a pipe: with tabs where the first line has some and no comma."""
    buffered = io.BufferedReader(stream, HEAD)  # type: ignore[type-var]
    head = buffered.peek(HEAD)
    if head.startswith((b"PAR1", b"\x1f\x8b")) or b"\0" in head:
        buffered.close()
        raise InputError(f"{name}: expected text, got a compressed or binary table. Save it as a file and name that.")
    first = head.partition(b"\n")[0]
    separator = "\t" if b"\t" in first and b"," not in first else ","
    if not again:
        return TextSource(name, separator, lambda: buffered, missing, once=True)
    with buffered:
        content = _content(name, buffered)
    return TextSource(name, separator, lambda: io.BytesIO(content), missing, once=False)


def _content(name: str, stream: IO[bytes]) -> bytes:
    """All bytes of a pipe, which may not end."""
    content = io.BytesIO()
    while piece := stream.read(PIECE):
        content.write(piece)
        require_memory(
            HELD_COPIES * content.tell(),
            f"{name}, of which more than {readable(content.tell())} have come,",
            "Save it as a file, which is read in blocks, or send fewer rows.",
        )
    return content.getvalue()


def _opened(path: Path, opened: Callable[[Path, str], Any]) -> IO[bytes]:
    try:
        stream: IO[bytes] = opened(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: expected a file that can be read, got: {error.strerror}.") from None
    return stream
