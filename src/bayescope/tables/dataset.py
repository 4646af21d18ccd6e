"""Tables on disk, larger than memory: read in blocks of rows by pyarrow."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
import pandas as pd

from bayescope import checks
from bayescope.errors import InputError, OptionError
from bayescope.tables.arrow import arrow_module, column_of, in_words, kind_of, refusal
from bayescope.tables.columns import Column, Kind
from bayescope.tables.sources import dataset_of, name_of, parts_of, reading

BLOCK_ROWS = 65_536

T = TypeVar("T")
Numbers: TypeAlias = int | np.ndarray


@final
@dataclass(frozen=True, eq=False)
class RowChoice:
    """Some rows of a table, which count from 0 among themselves.

    Attributes:
        name: which rows these are, for a fingerprint.
        count: how many of them are among the first n rows of the table.
        place: where each of them stands in the table.
    """

    name: str
    count: Callable[[int], int]
    place: Callable[[Numbers], Numbers]

    def among(self, columns: list[Column], start: int) -> list[Column]:
        """The chosen of some rows of the table, of which the first stands at ``start``."""
        rows = len(columns[0].values)
        first, last = self.count(start), self.count(start + rows)
        if last - first == rows:
            return columns
        kept = np.asarray(self.place(np.arange(first, last))) - start
        return [replace(column, values=column.values[kept]) for column in columns]

    def then(self, second: RowChoice) -> RowChoice:
        """Of these rows those of another choice, to which these are the table."""
        return RowChoice(
            f"{self.name}, {second.name}",
            lambda rows: second.count(self.count(rows)),
            lambda row: self.place(second.place(row)),
        )


ALL_ROWS = RowChoice("all", lambda rows: rows, lambda row: row)


def every_row(k: int) -> RowChoice:
    """The rows k − 1, 2k − 1 and so on."""
    return RowChoice(f"every {k}", lambda rows: rows // k, lambda row: k * row + k - 1)


def other_rows(k: int) -> RowChoice:
    """All but the rows k − 1, 2k − 1 and so on: ⌊row/(k − 1)⌋ of these stand before a row that stays."""
    return RowChoice(f"but every {k}", lambda rows: rows - rows // k, lambda row: row + row // (k - 1))


def without(gone: np.ndarray) -> RowChoice:
    """All rows but some, given by their places, ascending and different.

    gone_k − k of the rows that stay are before the k-th that is gone.
    """
    before = gone - np.arange(len(gone))
    return RowChoice(
        f"without {hashlib.sha256(gone.tobytes()).hexdigest()}",
        lambda rows: rows - int(np.searchsorted(gone, rows)),
        lambda row: row + np.searchsorted(before, row, side="right"),
    )


def open_table(source: object, *, columns: Sequence[str] | None = None, block_rows: int = BLOCK_ROWS) -> TableDataset:
    """Opens a table on disk, of any size, to be read in blocks of rows.

    Parquet (.parquet, .pq), Arrow's own files (.arrow, .ipc, .feather) and text (.csv, .tsv) are known by their suffix;
    a directory is read with those below it, in the order of their paths, and its folders such as year=2026 are a
    column. No row is read yet, but of text, which is looked through for the types of its columns; these, and which
    cells are missing, are those that pandas.read_csv finds. Estimators take the table in place of X, with the name of
    the target in place of y.

    Args:
        source: the path of a file or of a directory, a glob, a list of these, or a ``pyarrow.dataset.Dataset``.
        columns: those to read; all by default.
        block_rows: rows of a block. Memory stays at a few blocks, however many rows there are.

    Raises:
        InputError: if there is no such file or no row, a file cannot be read, or the files have other columns than
            the first.
        OptionError: if one of ``columns`` is not there.
        InputTypeError: if the source is something else.
        MissingDependencyError: if pyarrow is not installed.

    Examples:
        >>> import tempfile, pandas as pd
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": ["a", "b", "b"]}).to_parquet(f"{folder}/part-0.parquet")
        ...     table = open_table(folder)
        >>> table.names, table.rows
        (('x', 'y'), 3)
    """
    return TableDataset(dataset_of(source), columns=columns, block_rows=block_rows, name=name_of(source))


def opened(X: object) -> TableDataset | None:
    """X as a table on disk where it is one, or a dataset of pyarrow's; else ``None``."""
    if isinstance(X, TableDataset):
        return X
    datasets = sys.modules.get("pyarrow.dataset")  # what was not imported, X cannot be of
    return TableDataset(X) if datasets is not None and isinstance(X, datasets.Dataset) else None


@final
class TableDataset:
    """A table on disk, read in blocks of rows.

    Args:
        dataset: a ``pyarrow.dataset.Dataset``.
        columns: those to read; all by default.
        block_rows: rows of a block.
        name: for messages.
        truths: whether truth values are such, and not the words "True" and "False".

    Attributes:
        name: for messages.
        names: of the columns.
        kinds: what each holds, by its type: "numeric" or "categorical"; ``None`` for what is neither.
        rows: how many.
        block_rows: rows of a block.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        columns: Sequence[str] | None = None,
        block_rows: int = BLOCK_ROWS,
        name: str = "table",
        truths: bool = True,
    ) -> None:
        self.name, self._truths = name, truths
        self.block_rows = checks.count("block_rows", block_rows)
        with reading(name):
            self.names: tuple[str, ...] = _names(name, dataset.schema, columns)
        self._parts, schema = parts_of(name, dataset, self.names, chosen=columns is not None)
        self._fields = {name: schema.field(name) for name in self.names}
        self.kinds: dict[str, Kind | None] = {name: kind_of(field.type) for name, field in self._fields.items()}
        self._choice = ALL_ROWS
        self._bounds = [0, *accumulate(part.rows for part in self._parts)]
        self.rows = self._bounds[-1]
        if self.rows <= 0:
            raise InputError(f"{name}: expected rows, got none in {len(self._parts)} files. Give a table with data.")

    def __repr__(self) -> str:
        return f"TableDataset({self.name!r}, {self.rows} rows, {len(self.names)} columns)"

    def fingerprint(self) -> str:
        """A digest of columns, rows and both ends of each file: cheap, and another one for most other data."""
        digest = hashlib.sha256(self._choice.name.encode())
        for field in self._fields.values():
            digest.update(f"{field.name}\0{field.type}\0".encode())
        for part in self._parts:
            digest.update(f"{part.rows}\0".encode() + part.edges())
        return digest.hexdigest()

    def blocks(
        self, names: Sequence[str] | None = None, *, part: tuple[int, int] = (0, 1), categorical: Sequence[str] = ()
    ) -> Iterator[list[Column]]:
        """The rows in order, a block at a time; the next is decoded while one is worked on.

        Args:
            names: of the columns to read, in their order; all by default.
            part: (k, n): the k-th of n parts of the rows, each in one piece; their sizes differ by one at most.
            categorical: columns whose numbers are labels.

        Returns:
            Blocks of `block_rows` rows, the last of fewer. The columns are as `read_table` has them, but that their
            types alone tell their kinds.

        Raises:
            OptionError: if a column is not there.
            InputTypeError: if a column holds neither numbers nor labels.
            InputError: if a file cannot be read, or a number is infinite.
        """
        k, n = part
        if not 0 <= k < n:
            raise InputError(f"part: expected (k, n) with 0 ≤ k < n, got {part}.")
        wanted = self._wanted(names)
        return _ahead(self._blocks(wanted, k * self.rows // n, (k + 1) * self.rows // n, frozenset(categorical)))

    def read(self, names: Sequence[str] | None, rows: slice, *, categorical: Sequence[str] = ()) -> list[Column]:
        """A range of rows, as columns in memory; only the row groups that hold them are read.

        Args:
            names: of the columns, in their order; ``None`` for all.
            rows: with step 1.
            categorical: columns whose numbers are labels.

        Raises:
            OptionError, InputTypeError, InputError: as `blocks` does.
        """
        wanted = self._wanted(names)
        low, high, step = rows.indices(self.rows)
        if step != 1 or low >= high:
            raise InputError(f"rows: expected a slice of one row or more with step 1, got {rows}.")
        blocks = list(self._blocks(wanted, low, high, frozenset(categorical)))
        return [_joined(pieces) for pieces in zip(*blocks, strict=True)]

    def frame(self, rows: slice, names: Sequence[str] | None = None) -> pd.DataFrame:
        """A range of rows as a DataFrame, for what takes tables in memory; arguments as for `read`."""
        columns = self.read(names, rows)
        return pd.DataFrame({column.name: pd.Series(column.values, dtype=column.values.dtype) for column in columns})

    def split(self, every: int) -> tuple[TableDataset, TableDataset]:
        """The table without each ``every``-th row, and a table of these, such as rows to judge a fit by.

        Args:
            every: at least 2; the second table has the rows ``every − 1``, ``2 every − 1``, … counted from 0.

        Raises:
            InputError: if a part is left without rows.
        """
        apart = checks.count("every", every, least=2)
        if self.rows < apart:
            raise InputError(f"every: expected a table of at least {apart} rows, got {self!r}.")
        return self._of(other_rows(apart)), self._of(every_row(apart))

    def without(self, rows: np.ndarray) -> TableDataset:
        """The table without some rows, such as those that have no target.

        Args:
            rows: their numbers, counted from 0, each of which takes eight bytes of memory.

        Raises:
            InputError: if a row is not there, or none is left.
        """
        gone = np.unique(np.asarray(rows, dtype=np.int64))
        if not len(gone):
            return self
        if len(gone) == self.rows or (gone < 0).any() or (gone >= self.rows).any():
            raise InputError(f"rows: expected numbers from 0 to {self.rows - 1}, and not all of them, got {len(gone)}.")
        return self._of(without(gone))

    def batches(self, names: Sequence[str], size: int) -> Iterator[Any]:
        """The rows in order as record batches of pyarrow's, of at most ``size`` rows and of one schema.

        Raises:
            InputError: if a file cannot be read.
        """
        arrow = arrow_module()
        schema = arrow.schema([self._fields[name] for name in names])
        for part, start in zip(self._parts, self._bounds, strict=False):
            first = start
            with reading(part.name):
                for batch in part.batches(names, 0, part.rows, size):
                    arrays = [batch[field.name].cast(field.type) for field in schema]
                    whole = arrow.RecordBatch.from_arrays(arrays, schema=schema)
                    kept = self._choice.among([Column("row", "numeric", np.arange(whole.num_rows))], first)[0].values
                    first += whole.num_rows
                    if len(kept) == whole.num_rows:
                        yield whole
                    elif len(kept):
                        yield whole.take(kept)

    def type_of(self, name: str) -> Any:
        """The type of a column, one of pyarrow's."""
        return self._fields[name].type

    def _of(self, choice: RowChoice) -> TableDataset:
        some = copy(self)
        some._choice, some.rows = self._choice.then(choice), choice.count(self.rows)
        return some

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        """The names of columns, all of which can be read."""
        wanted = list(self.names if names is None else names)
        for name in wanted:
            if name not in self._fields:
                raise OptionError.unknown("column", name, self.names)
        strange = [self._fields[name] for name in wanted if self.kinds[name] is None]
        if strange:
            raise refusal(self.name, strange)
        return wanted

    def _blocks(
        self, names: list[str], low: int, high: int, categorical: frozenset[str]
    ) -> Generator[list[Column], None, None]:
        """The rows from ``low`` to ``high``, cut into blocks whatever the files and their row groups are."""
        left: list[list[Column]] = []
        waiting = 0
        with closing(self._pieces(names, low, high, categorical)) as pieces:
            for piece in pieces:
                left.append(piece)
                waiting += len(piece[0].values)
                while waiting >= self.block_rows:
                    columns = [_joined(parts) for parts in zip(*left, strict=True)]
                    yield [replace(column, values=column.values[: self.block_rows]) for column in columns]
                    left = [[replace(column, values=column.values[self.block_rows :]) for column in columns]]
                    waiting -= self.block_rows
            if waiting:
                yield [_joined(parts) for parts in zip(*left, strict=True)]

    def _pieces(
        self, names: list[str], low: int, high: int, categorical: frozenset[str]
    ) -> Generator[list[Column], None, None]:
        """The same as they come from the files."""
        arrow = arrow_module()
        low, high = int(self._choice.place(low)), int(self._choice.place(high - 1)) + 1
        for part, start, end in zip(self._parts, self._bounds, self._bounds[1:], strict=False):
            first, last = max(low, start) - start, min(high, end) - start
            if first >= last:
                continue
            with reading(part.name):
                for batch in part.batches(names, first, last, self.block_rows):
                    arrays = batch if self._truths else {name: in_words(array) for name, array in batch.items()}
                    columns = [
                        column_of(
                            part.name, name, array, typed=self.type_of(name), labels=name in categorical, start=first
                        )
                        for name, array in arrays.items()
                    ]
                    count = len(columns[0].values)
                    yield self._choice.among(columns, start + first)
                    first += count
            arrow.default_memory_pool().release_unused()


def _names(table: str, schema: Any, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that are to be read."""
    twice = [name for name, times in Counter(schema.names).items() if times > 1]
    if twice:
        raise InputError(f"{table}: expected a name of its own for each column, got {twice[0]!r} twice. Rename one.")
    if columns is None:
        return tuple(schema.names)
    if isinstance(columns, str):
        raise InputError(f"columns: expected a list of columns, got {columns!r}. Write [{columns!r}].")
    known = set(schema.names)
    for name in columns:
        if name not in known:
            raise OptionError.unknown("columns", name, schema.names)
    return tuple(dict.fromkeys(columns))


def _joined(pieces: Sequence[Column]) -> Column:
    """Pieces of one column as one."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    declared = list(dict.fromkeys(label for piece in pieces for label in piece.categories or ()))
    categories = tuple(declared) if any(piece.categories is not None for piece in pieces) else None
    return replace(first, values=np.concatenate([piece.values for piece in pieces]), categories=categories)


def _ahead(blocks: Generator[T, None, None]) -> Iterator[T]:
    """The same blocks, each asked for while the one before it is worked on."""
    with closing(blocks), ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block
