"""Which rows of a table on disk are read: all, every k-th, the others, or all but some."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np

from bayescope.tables.columns import Column


class Choice(Protocol):
    """Rows of a table, which count from 0 among themselves."""

    def count(self, rows: int) -> int:
        """How many there are among the first so many."""

    def place(self, row: int) -> int:
        """Where one of them stands in the table."""

    def among(self, columns: list[Column], start: int) -> list[Column]:
        """Those of some rows of the table, of which the first stands at ``start``."""


@final
@dataclass(frozen=True)
class AllRows:
    """The choice of all rows of a table."""

    def count(self, rows: int) -> int:
        return rows

    def place(self, row: int) -> int:
        return row

    def among(self, columns: list[Column], start: int) -> list[Column]:
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
        return rows // self.stride

    def place(self, row: int) -> int:
        """k row + k − 1."""
        return self.stride * row + self.stride - 1

    def among(self, columns: list[Column], start: int) -> list[Column]:
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
        return rows - rows // self.stride

    def place(self, row: int) -> int:
        """row + ⌊row/(k − 1)⌋."""
        return row + row // (self.stride - 1)

    def among(self, columns: Sequence[Column], start: int) -> list[Column]:
        rows = np.arange(start, start + len(columns[0].values))
        kept = rows % self.stride != self.stride - 1
        return [replace(column, values=column.values[kept]) for column in columns]


@final
@dataclass(frozen=True, eq=False)
class WithoutRows:
    """All but some.

    Attributes:
        gone: the places of these, ascending, shape (K,).
        digest: of them, for a fingerprint.
    """

    gone: np.ndarray = field(repr=False)
    digest: str

    @classmethod
    def of(cls, rows: np.ndarray) -> WithoutRows:
        """From places in any order."""
        gone = np.unique(np.asarray(rows, dtype=np.int64))
        return cls(gone, hashlib.sha256(gone.tobytes()).hexdigest())

    def count(self, rows: int) -> int:
        """rows − those that are gone before."""
        return rows - int(np.searchsorted(self.gone, rows))

    def place(self, row: int) -> int:
        """row + k, where k rows are gone before it: gone_k − k of those that stay are before the k-th that is gone."""
        return row + int(np.searchsorted(self.gone - np.arange(len(self.gone)), row, side="right"))

    def among(self, columns: list[Column], start: int) -> list[Column]:
        count = len(columns[0].values)
        low, high = np.searchsorted(self.gone, [start, start + count])
        kept = np.delete(np.arange(count), self.gone[low:high] - start)
        return [replace(column, values=column.values[kept]) for column in columns]


@final
@dataclass(frozen=True, eq=False)
class Both:
    """Of the rows of one choice those of another, to which these are the table.

    Attributes:
        first: of the table.
        second: of the first.
    """

    first: Choice
    second: Choice

    def count(self, rows: int) -> int:
        """Of those of the first."""
        return self.second.count(self.first.count(rows))

    def place(self, row: int) -> int:
        """That of its place in the first."""
        return self.first.place(self.second.place(row))

    def among(self, columns: list[Column], start: int) -> list[Column]:
        return self.second.among(self.first.among(columns, start), self.first.count(start))
