"""Which rows of a table on disk are read: all, every so-manieth, or the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np

from bayescope.tables.columns import Column


class Choice(Protocol):
    """Rows of a table, which count from 0 among themselves."""

    def count(self, rows: int) -> int:
        """How many there are among so many."""

    def place(self, row: int) -> int:
        """Where one of them stands in the table."""

    def among(self, columns: list[Column], start: int) -> list[Column]:
        """Those of some rows of the table, of which the first stands at ``start``."""


@final
@dataclass(frozen=True)
class AllRows:
    """All of them."""

    def count(self, rows: int) -> int:
        """As many."""
        return rows

    def place(self, row: int) -> int:
        """The same."""
        return row

    def among(self, columns: list[Column], start: int) -> list[Column]:
        """The same."""
        return columns


@final
@dataclass(frozen=True)
class EveryRow:
    """The rows k − 1, 2k − 1 and so on.

    Attributes:
        stride: k.
    """

    stride: int

    def count(self, rows: int) -> int:
        """⌊rows/k⌋."""
        return rows // self.stride

    def place(self, row: int) -> int:
        """k row + k − 1."""
        return self.stride * row + self.stride - 1

    def among(self, columns: list[Column], start: int) -> list[Column]:
        """Those of some rows."""
        first = -(start + 1) % self.stride
        return [replace(column, values=column.values[first :: self.stride]) for column in columns]


@final
@dataclass(frozen=True)
class OtherRows:
    """All but the rows k − 1, 2k − 1 and so on.

    Attributes:
        stride: k.
    """

    stride: int

    def count(self, rows: int) -> int:
        """rows − ⌊rows/k⌋."""
        return rows - rows // self.stride

    def place(self, row: int) -> int:
        """row + ⌊row/(k − 1)⌋."""
        return row + row // (self.stride - 1)

    def among(self, columns: Sequence[Column], start: int) -> list[Column]:
        """Those of some rows."""
        rows = np.arange(start, start + len(columns[0].values))
        kept = rows % self.stride != self.stride - 1
        return [replace(column, values=column.values[kept]) for column in columns]
