"""What a table is to the commands: a header, and blocks of rows, read from its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
import pandas as pd

from bayescope.memory import require_memory
from bayescope.tables.columns import Kind

# Rows that are read at a time where nothing else is asked for, fewer of a table that has very many columns.
ROWS, CELLS = 65_536, 2**22
# Bytes of each cell of a table that is read as a whole: its number or label in a block, among all rows, and in a frame.
CELL_BYTES = 24
# What the rows read so far say of all others may be wrong by this factor, as where the first rows are the shortest.
UNEVEN = 2
# They say nothing of the others until so large a share of the file has been read: packed rows may begin all alike.
TELLING = 0.01


class Block(Protocol):
    """Some rows of a table, one after the other.

    Attributes:
        rows: how many.
    """

    @property
    def rows(self) -> int:
        """The number of rows of the block."""

    def read(self, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """The columns named: numbers as float64, NaN where missing; labels as text objects, ``None`` where missing.

        Raises:
            InputError: if a cell is no finite number in a column of numbers; the message names line, column and cell.
        """

    def copied(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns as they stand in the table."""

    def place(self, row: int) -> str:
        """Where a row of the block stands in the table, such as "line 17"."""


class Source(Protocol):
    """A table that can be read from its beginning, once or several times.

    Attributes:
        name: of the table, for messages.
        header: the names of the columns.
        share: how much of the table the present pass has read, from 0 to 1; ``None`` where nothing tells.
        notes: remarks on how the table is read.
    """

    @property
    def name(self) -> str:
        """The name of the table, for messages."""

    @property
    def share(self) -> float | None:
        """How much of the table the present pass has read."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how the table is read."""

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns."""

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """What columns hold: numbers where all cells that are there are some, else labels.

        Raises:
            InputError: if the table cannot be read.
        """

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[Block]:
        """The rows in order, this many at a time; all but the last block have as many.

        Args:
            rows: of a block.
            names: the columns that will be asked for, all by default.

        Raises:
            InputError: if the table cannot be read; the message names the line.
        """


def rows_at_once(columns: int) -> int:
    """How many rows of this many columns are read at a time."""
    return max(1, min(ROWS, CELLS // columns))


def all_blocks(source: Source, names: Sequence[str], rows_of_block: int | None = None) -> Iterator[Block]:
    """The rows of a table that memory is to hold as a whole, in blocks.

    Args:
        source: the table.
        names: the columns that will be asked for.
        rows_of_block: `rows_at_once` of the table's columns by default.

    Raises:
        MemoryBudgetError: as soon as the rows that were read, or what they tell of the rest, are more than memory
            holds.
        InputError: if the table cannot be read.
    """
    rows = 0
    for block in source.blocks(rows_of_block or rows_at_once(len(source.header)), names):
        rows += block.rows
        all_rows = round(rows / source.share) if source.share and source.share > TELLING else rows
        require_memory(
            CELL_BYTES * len(names) * max(rows, all_rows // UNEVEN),
            f"{source.name}, of about {all_rows:,} rows with {len(names):,} columns,",
            "Fit it with --stream, which reads a block of rows at a time, or leave out rows or columns.",
        )
        yield block


def place_of(source: Source, row: int) -> str:
    """Where a row of a table that can be read again stands, such as "line 17"."""
    rows = rows_at_once(len(source.header))
    block = next(islice(source.blocks(rows), row // rows, None))
    return block.place(row % rows)
