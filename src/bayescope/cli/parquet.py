"""Parquet files as blocks of rows, whose columns have types of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.cli.header import check_header
from bayescope.cli.source import Kind
from bayescope.cli.text import labels
from bayescope.errors import InputError
from bayescope.tables.arrow import arrow_module, column_of, kind_of
from bayescope.tables.columns import Column
from bayescope.tables.sources import reading, refuse_fewer


@final
class ParquetSource:
    """A table in a Parquet file.

    Args:
        path: the file.

    Attributes:
        name: for messages.
        header: the names of the columns.
        share: how much of the table the present pass has read.

    Raises:
        InputError: if it is no Parquet file, or its columns cannot be told apart.
        MissingDependencyError: if pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        parquet = arrow_module("pyarrow.parquet")
        self.name, self.share = str(path), 0.0
        with reading(self.name):
            self._file = parquet.ParquetFile(path)
            self._schema = self._file.schema_arrow
            self.header: tuple[str, ...] = tuple(self._schema.names)
        if not self.header:
            raise InputError(f"{self.name}: expected columns, got none. Give a table with data.")
        check_header(self.name, self.header)

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """By the types of the columns: numbers are numeric, text and truth values are labels."""
        return {name: kind_of_type(self.name, name, self._schema.field(name).type) for name in names}

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[ParquetBlock]:
        """The rows in order; all but the last block have as many as asked for."""
        start = 0
        wanted = list(self.header if names is None else names)
        with reading(self.name):
            # The file's own batches may end with its row groups.
            for batch in recut(self._file.iter_batches(batch_size=rows, columns=wanted, use_threads=False), rows):
                self.share = (start + batch.num_rows) / max(1, self._file.metadata.num_rows)
                yield ParquetBlock(self.name, batch, start)
                start += batch.num_rows
            refuse_fewer(self.name, self._file.metadata.num_rows, start)


@final
@dataclass(frozen=True, eq=False)
class ParquetBlock:
    """Rows of a Parquet file.

    Attributes:
        source: the file's name, for messages.
        batch: the rows.
        start: how many rows come before them.
    """

    source: str
    batch: Any
    start: int

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
        return labels(pd.Series(self._column(name, labels=True).values, dtype=object))

    def _numbers(self, name: str) -> np.ndarray:
        if kind_of(self.batch.schema.field(name).type) == "numeric":
            return self._column(name, labels=False).values
        cells = self._labels(name)
        parsed = np.asarray(pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce"), dtype=np.float64)
        self._refuse(name, np.isnan(parsed) & (cells != None), cells, "a number")  # noqa: E711
        return parsed

    def _column(self, name: str, *, labels: bool) -> Column:
        array = self.batch.column(name)
        kind_of_type(self.source, name, array.type)
        return column_of(self.source, name, array, typed=array.type, labels=labels, start=self.start + 1)

    def _refuse(self, name: str, strange: np.ndarray, cells: np.ndarray, expected: str) -> None:
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{self.source}: {self.place(row)}, column {name!r}: expected {expected}, got {cells[row]!r}. Mend the "
                "cell, or leave it empty where there is no value."
            )


def recut(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """The rows of record batches in batches of exactly so many, but for the last one."""
    arrow = arrow_module()
    left: list[Any] = []
    held = 0
    for batch in batches:
        left.append(batch)
        held += batch.num_rows
        while held >= rows:
            table = arrow.Table.from_batches(left)
            yield _as_batch(table.slice(0, rows))
            left, held = table.slice(rows).to_batches(), held - rows
    if held:
        yield _as_batch(arrow.Table.from_batches(left))


def kind_of_type(source: str, name: str, found: Any) -> Kind:
    """What a column holds by its type: numbers are numeric, text and truth values are labels.

    Raises:
        InputError: if it is neither.
    """
    types = arrow_module().types
    if types.is_temporal(found.value_type if types.is_dictionary(found) else found):
        raise InputError(
            f"{source}: column {name!r}: expected numbers or labels, got dates or times ({found}). Turn it into "
            f"numbers, such as days since a date, or leave it out: --drop {name}."
        )
    kind = kind_of(found)
    if kind is not None:
        return "labels" if kind == "categorical" else "numeric"
    raise InputError(
        f"{source}: column {name!r}: expected numbers or labels, got {found}. Leave it out: --drop {name}."
    )


def _as_batch(table: Any) -> Any:
    return table.combine_chunks().to_batches()[0]
