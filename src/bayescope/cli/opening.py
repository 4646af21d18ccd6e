"""Where a table comes from: a file of text or Parquet, a pipe, or the standard input."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any, final

from bayescope.cli.arrow_source import ArrowSource, several
from bayescope.cli.header import meant
from bayescope.cli.source import Source
from bayescope.cli.spreadsheet import text_of_sheet
from bayescope.cli.text import TextSource
from bayescope.cli.text_format import AS_IT_IS, HEAD, UTF_8, TextFormat
from bayescope.errors import InputError
from bayescope.memory import readable, require_memory

STANDARD = "-"  # the standard input, or output
# What separates cells of text by the end of its file's name, where nothing in it tells; text may be compressed. Those
# of the first line are written, too.
WRITTEN = {".csv": ",", ".tsv": "\t"}
TEXT = {**WRITTEN, ".tab": "\t", ".txt": ",", ".dat": ",", ".data": ","}
PARQUET, SHEETS = (".parquet", ".pq"), (".xlsx", ".xlsm")
COMPRESSED = ".gz"
ENDINGS = ".csv, .tsv, .csv.gz, .tsv.gz or .parquet"
# Bytes that are read at a time where all of a stream is held in memory; what its bytes take while they become a table.
PIECE, HELD_COPIES = 2**24, 6
BINARY = (b"PAR1", b"\x1f\x8b", b"PK\x03\x04")


def open_source(path: Path, *, missing: Sequence[str] = (), again: bool = False, form: TextFormat = AS_IT_IS) -> Source:
    """Opens a table, and reads its header.

    Args:
        path: a file, a directory or a glob of files, or "-" for the standard input.
        missing: what stands for a missing value beside the usual spellings.
        again: whether it will be read more than once; the standard input is then held in memory.
        form: what options say of its format; all else is recognised.

    Raises:
        InputError: if there is no such file, it is not one of the kinds that are read, its header cannot be used, or an
            option of the format is none of this kind of file.
        MissingDependencyError: if it is Parquet or a spreadsheet, and what reads it is not installed.
    """
    if str(path) == STANDARD:
        return _from_stream("standard input", sys.stdin.buffer, missing, again, form)
    if several(path):
        return ArrowSource(path, missing, form)
    if not path.exists():
        raise InputError(f"{path}: expected a file, got nothing there.{closest(path)}")
    if not path.is_file():  # a pipe: /dev/stdin, or a shell's <(...)
        return _from_stream(str(path), _opened(path, open), missing, again, form)
    ending = _ending(path)
    if ending in PARQUET:
        return ArrowSource(path, missing, form)
    if ending in SHEETS:
        form.refuse_for(str(path), "a spreadsheet", "sheet")
        content, rows, notes = text_of_sheet(path, form.sheet)
        return TextSource(str(path), ",", lambda: io.BytesIO(content), missing, once=False, notes=notes, rows=rows)
    if ending not in TEXT:
        raise InputError(
            f"{path}: expected a file name that ends in .csv, .tsv, .txt or .dat, also .gz, .xlsx or .parquet, got "
            f"{path.suffix!r}. Save it as one."
        )
    begin = partial(_opened, path, gzip.open if path.suffix.lower() == COMPRESSED else open)
    with closing(begin()) as stream:
        try:
            head = stream.read(HEAD)
        except (OSError, EOFError, zlib.error):
            head = b""  # what reads all of it says what is wrong
    return _of_text(str(path), begin, head, missing, form, usual=TEXT[ending], size=path.stat().st_size)


def _of_text(
    name: str, begin: Callable[[], IO[bytes]], head: bytes, missing: Sequence[str], form: TextFormat, *,
    usual: str = ",", once: bool = False, size: int | None = None,
) -> TextSource:  # fmt: skip
    """Text whose format options name, or the first bytes."""
    form.refuse_for(name, "which is text", "sep", "decimal", "encoding")
    known, notes = form.recognised(name, head, usual, whole=len(head) < HEAD)
    return TextSource(
        name, str(known.sep), begin, missing, once=once, decimal=str(known.decimal), encoding=str(known.encoding),
        notes=notes, size=size,
    )  # fmt: skip


def closest(path: Path) -> str:
    """The question whether another file of the folder was meant."""
    return meant(path.name, sorted(file.name for file in path.parent.glob("*"))) if path.parent.is_dir() else ""


def _ending(path: Path) -> str:
    """How the name of a file ends, whether it is compressed or not."""
    packed = path.suffix.lower() == COMPRESSED
    ending = (path.with_suffix("") if packed else path).suffix.lower()
    return f"{ending}{COMPRESSED}" if packed and ending not in TEXT else ending


def separator_of(path: Path) -> str | None:
    """The separator of text that is written, by the name of its file; ``None`` for Parquet.

    Raises:
        InputError: if the name ends in anything else.
    """
    ending = _ending(path)
    if ending in PARQUET:
        return None
    if ending not in WRITTEN:
        raise InputError(f"{path}: expected a file name that ends in {ENDINGS}, got {path.suffix!r}. Save it as one.")
    return WRITTEN[ending]


def _from_stream(name: str, stream: IO[bytes], missing: Sequence[str], again: bool, form: TextFormat) -> Source:
    """A table of text from a pipe."""
    head = stream.read(HEAD)
    known, _ = form.recognised(name, head, ",", whole=len(head) < HEAD)
    if head.startswith(BINARY) or (b"\0" in head and known.encoding == UTF_8):
        stream.close()
        raise InputError(f"{name}: expected text, got a compressed or binary table. Save it as a file and name that.")
    # A buffered reader over the raw bytes, of which the first were read.
    whole = io.BufferedReader(_Rejoined(head, stream))
    if not again:
        return _of_text(name, lambda: whole, head, missing, form, once=True)
    with whole:
        content = _content(name, whole)
    return _of_text(name, lambda: io.BytesIO(content), head, missing, form)


@final
class _Rejoined(io.RawIOBase):
    """The bytes of a stream, the first of which were read.

    Args:
        head: these.
        rest: the stream.
    """

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = io.BytesIO(head), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """How many bytes were put into the buffer; 0 at the end."""
        return self._head.readinto(buffer) or self._rest.readinto(buffer)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._rest.close()
        super().close()


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
