"""The files of a table on disk: each a part of the rows, read as record batches with little ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, final

from bayescope.errors import InputError
from bayescope.tables.arrow import arrow_module, family_of, kind_of
from bayescope.tables.sources import joint_schema, reading, refuse_fewer

# What a column of a Parquet file may hold of its compressed pages at a time.
BUFFER_BYTES = 2**18
# The first and last bytes of a file that its fingerprint has: the end of a Parquet file tells each column's range.
EDGE_BYTES = 2**16


@final
@dataclass(frozen=True, eq=False)
class ParquetPart:
    """A Parquet file. Its pages are decoded as they are needed, also where one row group has all its rows.

    Attributes:
        name: its path.
        rows: by its footer.
        fragment: as pyarrow's dataset has it.
        constants: of the columns that its folders name.
    """

    name: str
    rows: int
    fragment: Any
    constants: Mapping[str, Any]

    def batches(self, names: Sequence[str], low: int, high: int, size: int) -> Iterator[Mapping[str, Any]]:
        """The arrays of the columns named, of the rows from ``low`` to ``high``."""
        arrow = arrow_module()
        groups = self.fragment.row_groups
        bounds = [0, *accumulate(group.num_rows for group in groups)]
        taken = [g for g, below in enumerate(bounds[:-1]) if below < high and bounds[g + 1] > low]
        start = bounds[taken[0]] if taken else 0
        there = [name for name in names if name not in self.constants]
        with self.fragment.open() as stream, self._file(stream) as file:
            # A column is read to count the rows where the folders alone have what is asked for.
            for batch in file.iter_batches(size, [groups[g].id for g in taken], there or file.schema_arrow.names[:1]):
                first, last = max(low - start, 0), min(high - start, batch.num_rows)
                start += batch.num_rows
                if first < last:
                    some = batch.slice(first, last - first)
                    yield {
                        name: arrow.repeat(self.constants[name], len(some))
                        if name in self.constants
                        else some.column(name)
                        for name in names
                    }
        refuse_fewer(self.name, high, start)

    def edges(self) -> bytes:
        """The first and the last bytes."""
        return _edges(self.fragment)

    def _file(self, stream: object) -> Any:
        parquet = arrow_module("pyarrow.parquet")
        return parquet.ParquetFile(
            stream,
            metadata=self.fragment.metadata,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        )


@final
@dataclass(frozen=True, eq=False)
class ScannedPart:
    """A file of another format, or a dataset that answers as a whole.

    Attributes:
        name: for messages.
        rows: how many.
        source: pyarrow's fragment or dataset.
        options: for its scanner.
    """

    name: str
    rows: int
    source: Any
    options: Mapping[str, Any]

    def batches(self, names: Sequence[str], low: int, high: int, size: int) -> Iterator[Mapping[str, Any]]:
        """The arrays of the columns named, of the rows from ``low`` to ``high``."""
        scanner = self.source.scanner(
            columns=list(names), batch_size=size, batch_readahead=1, fragment_readahead=1, **self.options
        )
        start = 0
        for batch in scanner.to_batches():
            first, last = max(low - start, 0), min(high - start, batch.num_rows)
            start += batch.num_rows
            for at in range(first, last, size):
                some = batch.slice(at, min(size, last - at))
                yield {name: some.column(name) for name in names}
            if start >= high:
                return

    def edges(self) -> bytes:
        """The first and the last bytes, of a file."""
        return _edges(self.source) if hasattr(self.source, "open") else b""


# Some rows of a table, in one file.
Part: TypeAlias = ParquetPart | ScannedPart


def parts_of(table: str, dataset: Any, names: Sequence[str], *, chosen: bool) -> tuple[list[Part], Any]:
    """The parts of a dataset, in order, and its schema: the types that columns have in all files together.

    Args:
        table: its name, for messages.
        dataset: pyarrow's.
        names: of the columns.
        chosen: whether these are a choice of the caller's, and others may be there.

    Raises:
        InputError: if a file cannot be read, or has other columns than the first.
    """
    parts: list[Part] = []
    with reading(table):
        fragments = _fragments(dataset)
        schema = joint_schema(dataset.schema, [fragment.physical_schema for fragment in fragments])
    for fragment in fragments:
        path = getattr(fragment, "path", table)
        with reading(path):
            parts.append(_part(path, dataset, fragment, schema, names, chosen=chosen))
    with reading(table):
        return parts or [ScannedPart(table, dataset.count_rows(), dataset, {})], schema


def _part(path: str, dataset: Any, fragment: Any, schema: Any, names: Sequence[str], *, chosen: bool) -> Part:
    """One file of a dataset."""
    arrow, datasets = arrow_module(), arrow_module("pyarrow.dataset")
    constants = datasets.get_partition_keys(fragment.partition_expression)
    wanted = [name for name in names if name not in constants]
    _check_names(path, schema, fragment.physical_schema, wanted, chosen=chosen)
    # Text has no types of its own: what is true and false in one file may be words in another.
    alike = kind_of if isinstance(getattr(fragment, "format", None), datasets.CsvFileFormat) else family_of
    _check_types(path, schema, fragment.physical_schema, wanted, alike)
    rows = fragment.count_rows()
    if not isinstance(fragment, datasets.ParquetFileFragment):
        return ScannedPart(path, rows, fragment, {"schema": schema})
    kinds = {name: dataset.schema.field(name).type for name in constants}
    return ParquetPart(
        path, rows, fragment, {name: arrow.scalar(value, kinds[name]) for name, value in constants.items()}
    )


def _fragments(dataset: Any) -> list[Any]:
    """The files of a dataset; none where a filter stands before them, which has them answer as a whole."""
    try:
        return list(dataset.get_fragments())
    except ValueError:
        return []


def _check_names(path: str, expected: Any, schema: Any, names: Sequence[str], *, chosen: bool) -> None:
    """Refuses a file whose columns are not those of the first."""
    absent = [name for name in names if name not in schema.names]
    extra = [] if chosen else [name for name in schema.names if name not in expected.names]
    if absent or extra:
        problems = [f"no column {name!r}" for name in absent] + [f"the unknown column {name!r}" for name in extra]
        raise InputError(
            f"{path}: expected the columns of the first file, got {', '.join(problems)}. Name those to read: "
            "columns=[…]."
        )


def _check_types(path: str, expected: Any, schema: Any, names: Sequence[str], alike: Callable[[Any], Any]) -> None:
    """Refuses a file with a column that holds something else than in others."""
    types = arrow_module().types
    for name in names:
        others, found = expected.field(name).type, schema.field(name).type
        if not types.is_null(found) and alike(others) != alike(found):
            raise InputError(
                f"{path}: column {name!r}: expected {others}, as in other files, got {found}. Write the files with "
                "one type."
            )


def _edges(fragment: Any) -> bytes:
    with fragment.open() as stream:
        size = stream.size()
        first = bytes(stream.read(min(size, EDGE_BYTES)))
        stream.seek(max(0, size - EDGE_BYTES))
        return f"{size}\0".encode() + first + bytes(stream.read(EDGE_BYTES))
