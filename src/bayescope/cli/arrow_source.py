"""Parquet files, and directories and globs of any files, as blocks of rows whose columns have types of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.cli.findings import flag
from bayescope.cli.header import check_header, spellings_of_missing
from bayescope.cli.problems import ColumnProblem
from bayescope.cli.text import labels
from bayescope.cli.text_format import AS_IT_IS, HEAD, UTF_8, TextFormat
from bayescope.errors import InputError
from bayescope.tables.arrow import arrow_module, column_of, kind_of
from bayescope.tables.columns import Column, Kind
from bayescope.tables.dataset import TableDataset
from bayescope.tables.sources import TextReading, dataset_of, files_of, format_of, reading, wild
from bayescope.tables.suspicion import is_number

# A Parquet file of this many bytes and more, or whose columns take this many as numbers, is fitted a block of rows at a
# time: columns that repeat themselves take next to nothing in the file.
LARGE_BYTES, LARGE_NUMBERS = 500_000_000, 2_000_000_000


@final
class ArrowSource:
    """A table in files that pyarrow reads.

    Args:
        path: a file, a directory or a glob.
        missing: what stands for a missing value, as value or column=value.
        form: what options say of files of text; all else is recognised from the first file.

    Attributes:
        name: for messages.
        header: the names of the columns.
        share: how much of the table the present pass has read.
        notes: remarks on how files of text are read.

    Raises:
        InputError: if there are no such files, they cannot be read as one table, or an option of the format is given
            for files that are not text.
        MissingDependencyError: if pyarrow is not installed.
    """

    def __init__(self, path: Path, missing: Sequence[str] = (), form: TextFormat = AS_IT_IS) -> None:
        self.name, self.share = str(path), 0.0
        files = list(files_of(path))
        self._text = format_of(files) == "csv"
        text, self.notes = _reading_of(self.name, files[0], missing, form) if self._text else (TextReading(), ())
        if not self._text:
            form.refuse_for(self.name, "whose columns have types")
        # As in text: true and false are labels like others.
        self._dataset = dataset_of(self.name, truths=False, text=text)
        self._table = TableDataset(self._dataset, name=self.name, truths=False)
        self.header = self._table.names
        check_header(self.name, self.header, text.separator)
        self._missing = spellings_of_missing(missing, self.header)

    def table(self, names: Sequence[str]) -> TableDataset:
        """Some of the columns, for a fit that reads them in blocks.

        Raises:
            InputError: if a value stands for a missing one where pyarrow does not take it so.
        """
        everywhere, single = self._missing
        # pyarrow compares what is written, and not numbers: -9.0 would stay where -9 is named.
        ignored = [text for text in everywhere if not self._text or is_number(text)]
        ignored += [f"{name}={text}" for name in single for text in single[name]]
        if ignored:
            raise InputError(
                f"--missing: expected none for {self.name}, which is read in blocks, got {ignored[0]!r}. Add "
                "--no-stream."
            )
        self.kinds(names)
        return TableDataset(self._dataset, columns=names, name=self.name, truths=False)

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """By the types of the columns: numbers are numeric, text and truth values are labels."""
        return {name: _kind(self.name, name, self._table.type_of(name)) for name in names}

    def files(self) -> list[tuple[str, int]]:
        """Each file, by its path below the folder that holds all of them, and how many rows it has, in order."""
        fragments = list(self._dataset.get_fragments())
        with reading(self.name):
            rows = [fragment.count_rows() for fragment in fragments]
        paths = [fragment.path for fragment in fragments]
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        return [(os.path.relpath(path, folder), count) for path, count in zip(paths, rows, strict=True)]

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[ArrowBlock]:
        """The rows in order; all but the last block have as many as asked for."""
        start = 0
        # The batches of a file may end with its row groups.
        for batch in _recut(self._table.batches(list(self.header if names is None else names), rows), rows):
            self.share = (start + batch.num_rows) / self._table.rows
            yield ArrowBlock(self.name, batch, start, *self._missing)
            start += batch.num_rows


@final
@dataclass(frozen=True, eq=False)
class ArrowBlock:
    """Rows of an `ArrowSource`.

    Attributes:
        source: the table's name, for messages.
        batch: the rows.
        start: how many rows come before them.
        missing: what stands for a missing value in every column.
        single: what does so in single ones.
    """

    source: str
    batch: Any
    start: int
    missing: Sequence[str]
    single: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    def read(self, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """The columns named, as numbers or as labels.

        Raises:
            InputError: if a cell is no finite number in a column of numbers, or text is no UTF-8.
        """
        with reading(self.source):
            return {
                name: self._numbers(name) if kind == "numeric" else self._labels(name) for name, kind in kinds.items()
            }

    def copied(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns of the types that they have in the file.

        Raises:
            InputError: if text is no UTF-8.
        """
        some = self.batch.select(list(names))
        with reading(self.source):
            some.validate(full=True)
            return some.to_pandas(types_mapper=pd.ArrowDtype)

    def place(self, row: int) -> str:
        """The row, counted from 1."""
        return f"row {self.start + row + 1}"

    def _labels(self, name: str) -> np.ndarray:
        array = self.batch.column(name)
        if arrow_module().types.is_temporal(array.type):  # as text would have them
            cells = labels(pd.Series(array.cast(arrow_module().string()).to_pylist(), dtype=object))
        else:
            cells = labels(pd.Series(self._column(name, labels=True).values, dtype=object))
        if spelled := self._spelled_missing(name):
            cells[[cell in spelled for cell in cells]] = None
        return cells

    def _numbers(self, name: str) -> np.ndarray:
        if kind_of(self.batch.schema.field(name).type) == "numeric":
            values = self._column(name, labels=False).values
            stand_ins = [float(text) for text in self._spelled_missing(name) if is_number(text)]
            return np.where(np.isin(values, stand_ins), np.nan, values) if stand_ins else values
        cells = self._labels(name)
        parsed = np.asarray(pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce"), dtype=np.float64)
        strange = np.isnan(parsed) & (cells != None)  # noqa: E711
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{self.source}: {self.place(row)}, column {name!r}: expected a number, got {cells[row]!r}. Correct "
                "the cell, or leave it empty where there is no value."
            )
        return parsed

    def _spelled_missing(self, name: str) -> set[str]:
        return {*self.missing, *self.single.get(name, ())}

    def _column(self, name: str, *, labels: bool) -> Column:
        array = self.batch.column(name)
        _kind(self.source, name, array.type)
        return column_of(self.source, name, array, typed=array.type, labels=labels, start=self.start + 1)


def _reading_of(
    name: str, first: Path, missing: Sequence[str], form: TextFormat
) -> tuple[TextReading, tuple[str, ...]]:
    """How files of text are read, by options and by the beginning of the first one, and a remark on what is unusual."""
    form.refuse_for(name, "which is text", "sep", "decimal", "encoding")
    with first.open("rb") as stream:
        head = stream.read(HEAD)
    known, notes = form.recognised(name, head, "\t" if first.suffix.lower() == ".tsv" else ",", whole=len(head) < HEAD)
    encoding = "utf8" if known.encoding == UTF_8 else str(known.encoding)
    return TextReading(known.sep, str(known.decimal), encoding, tuple(missing)), notes


def several(path: Path) -> bool:
    """Whether a path stands for files, and not for one."""
    return path.is_dir() or (wild(path) and not path.exists())


def large(path: Path, least_bytes: int = LARGE_BYTES, least_numbers: int = LARGE_NUMBERS) -> bool:
    """Whether a path is a Parquet file of this many bytes, or bytes of numbers, that it is fitted a block at a time."""
    if path.suffix.lower() not in (".parquet", ".pq") or not path.is_file():
        return False
    try:
        with reading(str(path)):
            footer = arrow_module("pyarrow.parquet").read_metadata(path)
    except InputError:
        return False  # what reads it says what is wrong
    return path.stat().st_size >= least_bytes or 8 * footer.num_rows * footer.num_columns >= least_numbers


def _recut(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """The rows of record batches in batches of exactly this many, but for the last one."""
    arrow = arrow_module()
    left: list[Any] = []
    waiting = 0
    for batch in batches:
        left.append(batch)
        waiting += batch.num_rows
        while waiting >= rows:
            table = arrow.Table.from_batches(left)
            yield _as_batch(table.slice(0, rows))
            left, waiting = table.slice(rows).to_batches(), waiting - rows
    if waiting:
        yield _as_batch(arrow.Table.from_batches(left))


def _kind(source: str, name: str, found: Any) -> Kind:
    """What a column holds by its type: numbers are numeric, text and truth values are labels.

    Raises:
        ColumnProblem: if it is neither.
    """
    types = arrow_module().types
    if types.is_temporal(found.value_type if types.is_dictionary(found) else found):
        raise ColumnProblem(
            f"{source}: column {name!r}: expected numbers or labels, got dates or times ({found}). Turn it into "
            f"its parts: {flag('--dates', name)}; or leave it out: {flag('--drop', name)}.",
            "--dates",
        )
    kind = kind_of(found)
    if kind is not None:
        return kind
    raise ColumnProblem(
        f"{source}: column {name!r}: expected numbers or labels, got {found}. Leave it out: {flag('--drop', name)}.",
        "--drop",
    )


def _as_batch(table: Any) -> Any:
    return table.combine_chunks().to_batches()[0]
