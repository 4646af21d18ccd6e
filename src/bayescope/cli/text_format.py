"""The separator, decimal mark and encoding of a table of text, named by options or recognised."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, final

from bayescope.errors import InputError

if TYPE_CHECKING:
    from bayescope_command.app import TableOptions

# Bytes and records from which the format is recognised.
HEAD, RECORDS = 2**18, 200
# What may separate cells, and what an option may call it. A space separates where nothing else does: cells hold many.
SEPARATORS = (",", "\t", ";", "|", " ")
WORDS = {"tab": "\t", "\\t": "\t", "space": " "}
# This share of the records has as many cells as the header if the separator is right; the others are slips.
ALIKE = 0.9
UTF_8, WINDOWS = "utf-8-sig", "cp1252"
MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
         (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
# Numbers with a decimal comma, those that may as well be whole numbers with separated thousands, and with a point.
COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
POINT = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")


@final
@dataclass(frozen=True)
class TextFormat:
    """What options say of a table's file; ``None`` where its first bytes decide.

    Attributes:
        sep: what separates cells.
        decimal: the decimal mark, a point or a comma.
        encoding: a name that Python knows.
        sheet: of a spreadsheet: its name, or its number from 1.
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @classmethod
    def of(cls, options: TableOptions) -> TextFormat:
        """The format that the options of a command name.

        Raises:
            InputError: if one of them cannot be used.
        """
        sep = None if options.sep is None else WORDS.get(options.sep, options.sep)
        if sep is not None and (len(sep) != 1 or sep in '"\r\n' or sep.isalnum()):
            raise InputError(
                f"--sep: expected one character, such as ';', or the word tab or space, got {options.sep!r}."
            )
        if options.decimal not in (None, ".", ","):
            raise InputError(f"--decimal: expected a point or a comma, got {options.decimal!r}.")
        encoding = options.encoding
        if encoding is not None:
            try:
                "".encode(encoding)
            except LookupError:
                raise InputError(
                    "--encoding: expected the name of an encoding, such as utf-8, latin-1, cp1252 or utf-16, got "
                    f"{encoding!r}."
                ) from None
            encoding = UTF_8 if codecs.lookup(encoding).name == "utf-8" else encoding
        return cls(sep, options.decimal, encoding, options.sheet)

    def refuse_for(self, name: str, what: str, *taken: str) -> None:
        """Refuses options that a kind of file has no use for.

        Args:
            name: of the table.
            what: the kind of file.
            taken: the attributes that it has a use for.

        Raises:
            InputError: if one of the others is given.
        """
        for field in fields(self):
            if field.name not in taken and (value := getattr(self, field.name)) is not None:
                raise InputError(f"--{field.name}: expected none for {name}, {what}, got {value!r}. Leave it out.")

    def recognised(self, name: str, head: bytes, usual: str, *, whole: bool) -> tuple[TextFormat, tuple[str, ...]]:
        """The format with its gaps filled from the first bytes, and a remark on what is unusual.

        Args:
            name: of the table, for the remark.
            head: the first bytes.
            usual: the separator where nothing tells.
            whole: whether these are all bytes.
        """
        encoding = self.encoding or _encoding(head)
        text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head)
        sep = self.sep or _separator(text, usual, whole=whole)
        decimal = self.decimal or _decimal(text, sep, whole=whole)
        remarks = [
            *([f"separated by {spelled(sep)}"] if self.sep is None and sep != usual else []),
            *(["with decimal commas"] if self.decimal is None and decimal == "," else []),
            *([f"in {encoding}"] if self.encoding is None and encoding != UTF_8 else []),
        ]
        note = f"{name} was taken for text {', '.join(remarks)}; --sep, --decimal and --encoding decide otherwise"
        return replace(self, sep=sep, decimal=decimal, encoding=encoding), (note,) if remarks else ()


# A format of which no option says anything.
AS_IT_IS = TextFormat()


def spelled(sep: str) -> str:
    """A separator in words that --sep takes, quoted for a shell."""
    names = {mark: word for word, mark in reversed(WORDS.items())}
    return names.get(sep, f"'{sep}'")


def _encoding(head: bytes) -> str:
    """The encoding by the byte order mark, else UTF-8, else Windows-1252 where nothing else in the bytes is UTF-8."""
    for mark, name in MARKS:
        if head.startswith(mark):
            return name
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        binary, accents = b"\0" in head, not head.decode("utf-8", "ignore").isascii()
        if not binary and not accents:
            try:
                head.decode(WINDOWS)
            except UnicodeDecodeError:
                return UTF_8
            return WINDOWS
    return UTF_8


def _separator(text: str, usual: str, *, whole: bool) -> str:
    """The mark that cuts most cells from the header and as many from nearly all records, else from the header."""
    found: dict[str, int] = {}
    of_header: dict[str, int] = {}
    for mark in SEPARATORS:
        widths = [len(record) for record in _records(text, mark, whole=whole)]
        alike = sum(width == widths[0] for width in widths) if widths else 0
        if widths and widths[0] > 1 and (mark != " " or not found):
            of_header |= {mark: widths[0]} if mark != " " else {}
            found |= {mark: widths[0]} if alike >= ALIKE * len(widths) else {}
    if not found and usual not in of_header:
        found = of_header
    return max(found, key=lambda mark: (found[mark], mark == usual), default=usual)


def _decimal(text: str, sep: str, *, whole: bool) -> str:
    """A comma where some cells are numbers with one, and none are with a point; never beside commas between cells."""
    if sep == ",":
        return "."
    cells = [cell.strip() for record in islice(_records(text, sep, whole=whole), 1, None) for cell in record]
    commas = any(COMMA.fullmatch(cell) and not THOUSANDS.fullmatch(cell) for cell in cells)
    return "," if commas and not any(map(POINT.fullmatch, cells)) else "."


def _records(text: str, sep: str, *, whole: bool) -> Iterator[list[str]]:
    """The first records; the last one of a text that goes on is left out, as it is cut, unless it is the only one."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep, skipinitialspace=sep != " ")
    try:
        records = [record for record in islice(reader, RECORDS) if record]
    except csv.Error:
        return
    cut = not whole and len(records) < RECORDS and len(records) > 1
    yield from records[:-1] if cut else records
