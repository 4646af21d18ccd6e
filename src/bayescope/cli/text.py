"""Delimited text in blocks of whole records: each has as many cells as the header, and messages name its line."""

from __future__ import annotations

import csv
import io
import re
import warnings
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import IO, Any, NoReturn, cast, final

import numpy as np
import pandas as pd

from bayescope.cli.header import check_header, listed, spellings_of_missing
from bayescope.cli.source import all_blocks
from bayescope.cli.text_format import COMMA, UTF_8
from bayescope.errors import InputError
from bayescope.memory import require_memory
from bayescope.tables.columns import Kind

# A whole number as it reads after a detour through floating point.
DETOUR = re.compile(r"(-?\d+)\.0+")
# No line of a table has this many characters, and no block of rows this many blank lines: both would fill the memory.
LONGEST_LINE, MOST_BLANK = 2**26, 10**6
# Bytes for each character of a block: its line, all lines as one text, and pandas' copy of four bytes a character.
CHARACTER_BYTES = 8
# Characters of a cell: the csv module refuses those above 131,072 unless its limit is raised, and pandas reads all.
csv.field_size_limit(2**31 - 1)
# The kinds of NumPy's types that hold numbers. They are asked for first, since a table may have very many columns.
NUMBERS = "iuf"


@final
@dataclass(frozen=True)
class Spelling:
    """How the cells of a table are written.

    Attributes:
        separator: between cells.
        missing: what stands for a missing value beside pandas' usual spellings, as value or column=value.
        decimal: the decimal mark.
        encoding: of the text.
        rows: of a spreadsheet, the last line of each row.
    """

    separator: str
    missing: tuple[str, ...] = ()
    decimal: str = "."
    encoding: str = UTF_8
    rows: tuple[int, ...] = ()

    @property
    def skips_spaces(self) -> bool:
        """Whether spaces before a cell are left out."""
        return self.separator != " "

    def records(self, lines: Iterable[str]) -> Iterator[tuple[list[str], int, int]]:
        """Yields the records of lines with the numbers of their first and last lines, from 1, without empty lines."""
        reader = csv.reader(lines, delimiter=self.separator, skipinitialspace=self.skips_spaces)
        end = 0
        for record in reader:
            begin, end = end + 1, reader.line_num
            if record:
                yield record, begin, end

    def pointed(self, cell: str) -> str:
        """A number with a decimal point; beside decimal commas, a cell with a point is not a number."""
        return cell if self.decimal == "." else cell.replace(".", "_").replace(self.decimal, ".")


@final
class TextSource:
    """A table of delimited text.

    Args:
        name: for messages.
        separator: between cells.
        begin: opens the bytes from their beginning.
        missing: what stands for a missing value beside pandas' usual spellings.
        once: whether the bytes can be read only once, as those of a pipe.
        decimal: the decimal mark.
        encoding: of the text.
        notes: remarks on how the table is read.
        size: of the file that the bytes are in; ``None`` for a pipe.
        rows: of a spreadsheet, the last line of each row.
        longest_line: the characters that no line may have.

    Attributes:
        name: for messages.
        header: the names of the columns.
        share: how much of the table the present pass has read; ``None`` for a pipe.
        notes: remarks on how the table is read.

    Raises:
        InputError: if the bytes are not text, or the header cannot be used.
    """

    def __init__(
        self,
        name: str,
        separator: str,
        begin: Callable[[], IO[bytes]],
        missing: Sequence[str],
        *,
        once: bool,
        decimal: str = ".",
        encoding: str = UTF_8,
        notes: tuple[str, ...] = (),
        size: int | None = None,
        rows: Sequence[int] = (),
        longest_line: int = LONGEST_LINE,
    ) -> None:
        self.name, self.share, self._size = name, None if size is None else 0.0, size
        self._spelling, self._begin = Spelling(separator, tuple(missing), decimal, encoding, tuple(rows)), begin
        self._longest_line, self.notes = longest_line, notes
        first = self._records()
        try:
            self.header = tuple(first.header)
            check_header(name, self.header, separator)
        except BaseException:
            first.close()
            raise
        self._left = [first] if once else []
        if not once:
            first.close()

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """Columns whose cells are all numbers or missing are numeric, all others hold labels."""
        numeric = list(names)
        for block in all_blocks(self, names):
            numeric = cast(TextBlock, block).numeric(numeric)
        found = set(numeric)
        return {name: "numeric" if name in found else "categorical" for name in names}

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[TextBlock]:
        """The rows in order; all but the last block have as many as asked for."""
        with closing(self._left.pop() if self._left else self._records()) as records:
            while (block := records.take(rows)) is not None:
                if self._size is not None:
                    self.share = min(1.0, records.position() / max(1, self._size))
                yield block

    def _records(self) -> Records:
        return Records(self.name, self._spelling, self._begin(), self._longest_line)


@final
class Records:
    """The records of a stream, taken block by block.

    Args:
        name: of the table, for messages.
        spelling: of the cells.
        stream: the bytes.
        longest_line: the characters that no line may have.

    Attributes:
        header: the first record.

    Raises:
        InputError: if there is no header.
    """

    def __init__(self, name: str, spelling: Spelling, stream: IO[bytes], longest_line: int) -> None:
        self._name, self._spelling = name, spelling
        self._stream, self._longest_line = stream, longest_line
        # Bytes that the encoding does not know are kept, marked, so that a message can name their line.
        self._text = io.TextIOWrapper(stream, encoding=spelling.encoding, errors="surrogateescape")
        self._bounded = self._bounded_lines()
        self._line = 0
        self._characters = 0  # of the block that is being read
        self.header: list[str] = []
        try:
            self.header = self._first()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._text.close()

    def position(self) -> int:
        """How many bytes of the file have been read, packed ones where it is packed."""
        return int(getattr(self._stream, "fileobj", self._stream).tell())

    def take(self, rows: int) -> TextBlock | None:
        """The next records, as many as asked for or as are left; ``None`` at the end."""
        first = self._line + 1
        lines, records = self._cut(rows)
        if not records:
            return None
        return TextBlock(self._name, tuple(self.header), self._spelling, lines, first, records)

    def _first(self) -> list[str]:
        lines, _ = self._cut(1)
        first = next(self._spelling.records(lines), None)
        if first is None:
            raise InputError(f"{self._name}: expected a header and rows, got an empty file. Give a table with data.")
        return [first[0][0].removeprefix("\ufeff"), *first[0][1:]]

    def _cut(self, rows: int) -> tuple[list[str], int]:
        """The lines of the next records, and how many records these are."""
        lines: list[str] = []
        records, quoted, self._characters = 0, False, 0
        while records < rows and not quoted:
            more = self._lines(rows - records)
            if not more:
                break
            lines += more
            quoted = any('"' in line for line in more)
            records += sum(line != "\n" for line in more)
            if len(lines) - records > MOST_BLANK:
                raise InputError(
                    f"{self._name}: from line {self._line + 1}: expected rows, got more than {MOST_BLANK:,} blank "
                    "lines. Leave them out."
                )
        if quoted:
            lines, records = self._whole(lines, rows)
        self._check_characters(lines)
        if self.header and not quoted:
            self._check_widths(lines)
            lines = [_with_its_cell(line) for line in lines] if len(self.header) == 1 else lines
        self._line += len(lines)
        return lines, records

    def _lines(self, count: int) -> list[str]:
        try:
            return list(islice(self._bounded, count))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._name}: below line {self._line}: expected text in {self._spelling.encoding}, got: "
                f"{error.reason}. Name another --encoding."
            ) from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"{self._name}: expected a file that can be read to its end, got: {error}. Repair or unpack the file."
            ) from None

    def _bounded_lines(self) -> Iterator[str]:
        """The lines; a line or a block of lines that memory does not hold is refused."""
        longest = checked = self._longest_line
        for line in iter(partial(self._text.readline, longest), ""):
            self._characters += len(line)
            if len(line) == longest:
                raise InputError(
                    f"{self._name}: expected a table of text, got a line of more than {longest:,} characters. "
                    "Save the table as comma-separated text, a row a line."
                )
            if self._characters > checked:
                checked = 2 * self._characters
                require_memory(
                    CHARACTER_BYTES * checked,
                    f"{self._name}, a block of rows with more than {self._characters:,} characters,",
                    "Read fewer rows at a time, or leave out long texts.",
                )
            yield line

    def _whole(self, lines: list[str], rows: int) -> tuple[list[str], int]:
        """The lines of whole records where cells are quoted: a quoted cell may hold line breaks."""
        taken: list[str] = []

        def read() -> Iterator[str]:
            for line in chain(lines, self._bounded):
                taken.append(line)
                yield line

        records = 0
        try:
            for record, begin, end in self._spelling.records(read()):
                records += 1
                if self.header and len(record) != len(self.header):
                    self._refuse_width(begin, len(record), end=end)
                if begin == end and len(self.header) == 1:
                    taken[end - 1] = _with_its_cell(taken[end - 1])
                if records >= rows and end >= len(lines):
                    break
        except csv.Error as error:
            raise InputError(
                f"{self._name}: line {self._line + 1} or below: expected a quoted cell to end, got: {error}. "
                "Close the quotation mark."
            ) from None
        return taken, records

    def _check_widths(self, lines: Sequence[str]) -> None:
        expected = len(self.header) - 1
        counts = [line.count(self._spelling.separator) for line in lines]
        wrong = [place for place, found in enumerate(counts) if found != expected and lines[place] != "\n"]
        if wrong:
            self._refuse_width(wrong[0] + 1, counts[wrong[0]] + 1, others=[self._line + 1 + each for each in wrong[1:]])

    def _refuse_width(self, place: int, found: int, *, end: int | None = None, others: Sequence[int] = ()) -> NoReturn:
        where = (
            f"{self._name}: line {self._line + place}: expected {len(self.header)} cells, as in the header, got {found}"
        )
        if end is not None and end > place:
            raise InputError(
                f"{where} up to line {self._line + end}. Close the quotation mark of a cell, or correct the line."
            )
        more = (
            f"; other numbers of cells are also in {'lines' if len(others) > 1 else 'line'} {listed(others)}"
            if others
            else ""
        )
        raise InputError(
            f"{where}{more}. Correct the line; put quotation marks around a cell that holds the separator."
        )

    def _check_characters(self, lines: Sequence[str]) -> None:
        text = "".join(lines)
        if "\0" in text:
            line = self._line + 1 + text.count("\n", 0, text.index("\0"))
            raise InputError(
                f"{self._name}: line {line}: expected text, got binary data. Save the table as comma-separated text "
                "in UTF-8."
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                line, byte = self._line + 1 + text.count("\n", 0, error.start), ord(text[error.start]) - 0xDC00
                named = "UTF-8" if self._spelling.encoding == UTF_8 else self._spelling.encoding
                raise InputError(
                    f"{self._name}: line {line}: expected text in {named}, got the byte {byte:#x}. Name "
                    "its --encoding, such as latin-1, or save the table as UTF-8 text."
                ) from None


@final
@dataclass(frozen=True, eq=False)
class TextBlock:
    """Records of one table as text.

    Attributes:
        source: the table's name, for messages.
        header: the names of the columns.
        spelling: of the cells.
        lines: of the records, blank ones among them.
        first: the number of the first line.
        rows: how many records.
    """

    source: str
    header: tuple[str, ...]
    spelling: Spelling
    lines: Sequence[str]
    first: int
    rows: int

    def read(self, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """The columns named, as numbers or as labels.

        Raises:
            InputError: if a cell in a column of numbers is not a finite number.
        """
        # Numbers are parsed as pandas finds them: asked for them, it would also make 1 of a column of True.
        text = {name: str for name, kind in kinds.items() if kind == "categorical"}
        frame = self._parsed(list(kinds), dtype=text)
        # All columns that pandas reads as numbers at once: one by one, very many would take most of the time.
        types = {str(name): found.kind for name, found in frame.dtypes.items()}
        parsed = [name for name, found in types.items() if found in NUMBERS and kinds[name] == "numeric"]
        numbers = (frame if len(parsed) == len(types) else frame[parsed]).to_numpy(np.float64)
        known = dict(zip(parsed, numbers.T, strict=True)) if np.isfinite(numbers[~np.isnan(numbers)]).all() else {}
        read = {"categorical": self._labels, "numeric": self._numbers}
        return {name: known[name] if name in known else read[kind](frame[name]) for name, kind in kinds.items()}

    def copied(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns as text, cell by cell as they stand."""
        return self._parsed(list(names), dtype=str, keep_default_na=False, na_values=[])

    def numeric(self, names: Sequence[str]) -> list[str]:
        """Those of the columns whose cells are all numbers or missing."""
        frame = self._parsed(list(names))
        types = dict(frame.dtypes)
        return [name for name in names if types[name].kind in NUMBERS or not self._no_number(frame[name]).any()]

    def place(self, row: int) -> str:
        """The line that a record ends in, or its row of a spreadsheet."""
        _, _, end = next(islice(self.spelling.records(self.lines), row, None))
        line, rows = self.first - 1 + end, self.spelling.rows
        return f"row {bisect_left(rows, line) + 1}" if rows else f"line {line}"

    def _parsed(self, names: Sequence[str], **options: Any) -> pd.DataFrame:
        if not names:
            return pd.DataFrame(index=range(self.rows))
        given = {"na_values": self._spelled_missing(names), **options}
        # The blank line keeps pandas from taking a byte order mark in the first cell for that of a file.
        text = io.StringIO("".join(["\n", *self.lines]))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    text, sep=self.spelling.separator, header=None, names=list(self.header), usecols=list(names),
                    index_col=False, skipinitialspace=self.spelling.skips_spaces, decimal=self.spelling.decimal,
                    low_memory=False, **given,
                )  # fmt: skip
        except pd.errors.ParserError as error:
            reason = " ".join(str(error).split())
            if "EOF inside string" in reason:
                raise InputError(
                    f"{self.source}: line {self.first} or below: expected a quoted cell to end, got the end of the "
                    "table. Close the quotation mark."
                ) from None
            raise InputError(
                f"{self.source}: from line {self.first}: expected a table that can be read, got: {reason}. Fix it."
            ) from None
        return frame

    def _spelled_missing(self, names: Sequence[str]) -> list[str] | dict[str, list[str]]:
        """What stands for a missing value, as pandas takes it: in every column, or for each what does in it."""
        everywhere, single = spellings_of_missing(self.spelling.missing, self.header)
        return {name: everywhere + single.get(name, []) for name in names} if single else everywhere

    def _numbers(self, column: pd.Series) -> np.ndarray:
        """The cells of a column as float64, if they are finite numbers or missing."""
        name, strange = str(column.name), self._no_number(column)
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{self.source}: {self.place(row)}, column {name!r}: expected a number, got "
                f"{listed(self.copied([name])[name].iloc[[row]])}. Correct the cell, or leave it empty "
                "where there is no value."
            )
        numbers = self._floats(column)
        infinite = np.isinf(numbers)
        if infinite.any():
            row = int(np.argmax(infinite))
            raise InputError(
                f"{self.source}: {self.place(row)}, column {name!r}: expected a finite number, got {numbers[row]}. "
                "Where it stands for a missing value, leave the cell empty or name it in --missing."
            )
        return numbers

    def _labels(self, column: pd.Series) -> np.ndarray:
        """Cells as labels, numbers among them with a decimal point, whatever the mark of the table."""
        if self.spelling.decimal == ".":
            return labels(column)
        return labels(column.map(lambda cell: cell.replace(",", ".") if COMMA.fullmatch(cell) else cell, "ignore"))

    def _no_number(self, column: pd.Series) -> np.ndarray:
        """Whether a cell is there and is not a number; truth values are not numbers."""
        if column.dtype.kind in NUMBERS:
            return np.zeros(len(column), dtype=bool)
        present = column.notna().to_numpy()
        if pd.api.types.infer_dtype(column, skipna=True) == "boolean":
            return present
        return present & np.isnan(self._floats(column, errors="coerce"))

    def _floats(self, column: pd.Series, **options: Any) -> np.ndarray:
        """`pd.to_numeric` as float64, which fails where pandas has read whole numbers beyond the largest float."""
        if column.dtype.kind in NUMBERS:
            return column.to_numpy(dtype=np.float64)
        cells = column
        if self.spelling.decimal != ".":
            cells = column.map(lambda cell: self.spelling.pointed(cell) if isinstance(cell, str) else cell)
        try:
            return np.asarray(pd.to_numeric(cells, **options), dtype=np.float64)
        except OverflowError:
            return np.array([float(str(cell)) for cell in cells])  # infinite, as such numbers with a point are


def labels(column: pd.Series) -> np.ndarray:
    """Cells as labels: text, ``None`` where missing; 3.0 reads 3, since gaps make whole numbers floating ones."""
    codes, found = pd.factorize(column)
    kept = np.empty(len(found) + 1, dtype=object)
    for place, label in enumerate(found):
        text = str(label)
        detour = DETOUR.fullmatch(text)
        kept[place] = detour.group(1) if detour else text
    return kept[codes]  # the code of what is missing is −1: the last place, which holds None


def _with_its_cell(line: str) -> str:
    """Quote the blank cell that is a whole line: Python's csv reads a row there, which pandas would skip."""
    if line == "\n" or line.strip(" \t\n"):
        return line
    cell = line.rstrip("\n").lstrip(" ")
    return f'"{cell}"\n'
