"""What a table is to the commands: a header, and blocks of rows, read from its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, Protocol

import numpy as np
import pandas as pd

Kind = Literal["numeric", "labels"]

# Rows that are read at a time where nothing else is asked for.
ROWS = 65_536


class Block(Protocol):
    """Some rows of a table, one after the other.

    Attributes:
        rows: how many.
    """

    @property
    def rows(self) -> int:
        """How many."""
        ...

    def read(self, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """The columns named: numbers as float64, NaN where missing; labels as text objects, ``None`` where missing.

        Raises:
            InputError: if a cell is no finite number in a column of numbers; the message names line, column and cell.
        """
        ...

    def copied(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns as they stand in the table."""
        ...

    def place(self, row: int) -> str:
        """Where a row of the block stands in the table, such as "line 17"."""
        ...


class Source(Protocol):
    """A table that can be read from its beginning, once or several times.

    Attributes:
        name: of the table, for messages.
        header: the names of the columns.
    """

    @property
    def name(self) -> str:
        """Of the table."""
        ...

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """What columns hold: numbers where all cells that are there are some, else labels.

        Raises:
            InputError: if the table cannot be read.
        """
        ...

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[Block]:
        """The rows in order, so many at a time; all but the last block have as many.

        Args:
            rows: of a block.
            names: the columns that will be asked for, all by default.

        Raises:
            InputError: if the table cannot be read; the message names the line.
        """
        ...


def place_of(source: Source, row: int) -> str:
    """Where a row of a table that can be read again stands, such as "line 17"."""
    block = next(islice(source.blocks(ROWS), row // ROWS, None))
    return block.place(row % ROWS)
