"""Tables on disk: files, directories and globs as one dataset of pyarrow's, whose files are parts of the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, final

from bayescope.errors import BayescopeError, InputError, InputTypeError
from bayescope.tables.arrow import arrow_module, family_of, kind_of

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
    ".csv": "csv",
    ".tsv": "csv",
}
WILD = "*?["
# The cells of text that are missing values: those that pandas.read_csv takes for missing.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
# Of the reason why a file cannot be read.
MOST_LETTERS = 200
TRUE, FALSE = ("True", "TRUE", "true"), ("False", "FALSE", "false")


def wild(path: Path) -> bool:
    """Whether a path has wildcards."""
    return any(mark in str(path) for mark in WILD)


@final
@dataclass(frozen=True)
class TextReading:
    """How files of text are read.

    Attributes:
        separator: between cells; by default a tab in .tsv files and a comma in others.
        decimal: the decimal mark.
        encoding: of the text.
        missing: cells that stand for a missing value beside the usual ones.
    """

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf8"
    missing: tuple[str, ...] = ()


def dataset_of(source: Any, *, truths: bool = True, text: TextReading = TextReading()) -> Any:
    """One dataset of all files that a source names, in the order of their paths.

    Args:
        source: a file, a directory, a glob, a list of these, or a ``pyarrow.dataset.Dataset``.
        truths: whether true and false are truth values in files of text, as pandas has it, and not words.
        text: how files of text are read.

    Raises:
        InputError: if there is no such file, the files are of several formats or of none that is known, or one cannot
            be read.
        InputTypeError: if it is something else.
        MissingDependencyError: if pyarrow is not installed.
    """
    datasets = arrow_module("pyarrow.dataset")
    if isinstance(source, datasets.Dataset):
        return source
    each = list(source) if isinstance(source, list | tuple) else [source]
    if not each or not all(isinstance(one, str | Path) and str(one) for one in each):
        got = repr(source) if isinstance(source, str | list) and not source else type(source).__name__
        raise InputTypeError(
            f"source: expected a path, a glob, a list of these or a pyarrow.dataset.Dataset, got {got}."
        )
    paths = [Path(one).expanduser() for one in each]
    files = list(dict.fromkeys(path for one in paths for path in files_of(one)))
    form = format_of(files)
    base = _base(paths)
    options: dict[str, Any] = {} if base is None else {"partitioning": "hive", "partition_base_dir": base}
    opened = partial(datasets.dataset, list(map(str, files)), format=_reader(form, files, text), **options)
    with reading(", ".join(map(str, files[:3]))):
        return opened() if form != "csv" else _of_text(opened, truths=truths)


def name_of(source: object) -> str:
    """What a source is called in messages."""
    each = source if isinstance(source, list | tuple) else [source]
    return ", ".join(map(str, each)) if all(isinstance(one, str | Path) for one in each) else "table"


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Tells whatever pyarrow raises while it reads a damaged file as an error about that file.

    Raises:
        InputError: with the file's name and the first words of the reason.
    """
    try:
        yield
    except BayescopeError:
        raise
    except (arrow_module().ArrowException, OSError, UnicodeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        words = reason if len(reason) <= MOST_LETTERS else f"{reason[:MOST_LETTERS]}…"
        advice = "Free memory, or write it again" if isinstance(error, MemoryError) else "Write it again"
        raise InputError(f"{table}: expected a table that can be read, got: {words}. {advice}.") from None


def refuse_fewer(table: str, expected: int, found: int) -> None:
    """Refuses a file with fewer rows than its footer says, which pyarrow passes over.

    Raises:
        InputError: with both numbers.
    """
    if found < expected:
        raise InputError(f"{table}: expected {expected} rows, as its end says, got {found}. Write it again.")


def files_of(path: Path) -> Iterator[Path]:
    """The files that one path stands for, sorted; of a directory those whose suffix tells a table."""
    if path.is_file():
        yield path
        return
    if path.is_dir():
        below = (each for each in path.rglob("*") if each.suffix.lower() in FORMATS and each.is_file())
        found = sorted(each for each in below if not _hidden(each.relative_to(path)))
        if not found:
            raise InputError(f"{path}: expected a directory with {_suffixes()} files, got none in it.")
        yield from found
        return
    if wild(path):
        base = _fixed(path)
        found = sorted(each for each in base.glob(str(path.relative_to(base))) if each.is_file())
        if not found:
            raise InputError(f"{path}: expected a pattern that some file fits, got none. Correct the path.")
        yield from found
        return
    raise InputError(f"{path}: expected a file, a directory or a glob, got none of that name. Correct the path.")


def format_of(files: Sequence[Path]) -> str:
    """The format of all files, by their suffixes, as pyarrow calls it.

    Raises:
        InputError: if a suffix is not known, or the formats differ.
    """
    formats = {FORMATS.get(path.suffix.lower()): path for path in reversed(files)}
    if None in formats:
        raise InputError(f"{formats[None]}: expected a file whose name ends with {_suffixes()}. Name it by its format.")
    if len(formats) > 1:
        first, other, *_ = sorted(formats.values())
        raise InputError(f"{first}: expected files of one format, got {other} beside it. Give a glob of one of them.")
    return str(next(iter(formats)))


def _reader(form: str, files: Sequence[Path], text: TextReading) -> Any:
    """pyarrow's reader of a format: for text it has to know what stands between cells, and which are missing."""
    if form != "csv":
        return form
    datasets, csv = arrow_module("pyarrow.dataset"), arrow_module("pyarrow.csv")
    separator = text.separator or ("\t" if files[0].suffix.lower() == ".tsv" else ",")
    return datasets.CsvFileFormat(
        read_options=csv.ReadOptions(encoding=text.encoding),
        parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            null_values=[*MISSING, *text.missing], strings_can_be_null=True, true_values=list(TRUE),
            false_values=list(FALSE), decimal_point=text.decimal,
        ),
    )  # fmt: skip


def _of_text(opened: Callable[..., Any], *, truths: bool) -> Any:
    """Files of text, whose types pyarrow tells by the first rows of each alone.

    Columns that are whole, true and false or empty there are looked at in all rows: there may be digits, words or
    numbers further down. Numbers that are whole throughout stay so, for labels beyond 2⁵³ not to be rounded.
    """
    arrow = arrow_module()
    wider = {arrow.null(): arrow.int64(), arrow.int64(): arrow.float64(), arrow.bool_(): arrow.string()}
    first = opened()
    schema = joint_schema(first.schema, [fragment.physical_schema for fragment in first.get_fragments()])
    if not truths:
        schema = _widened(schema, {field.name for field in schema if arrow.types.is_boolean(field.type)}, wider)
    doubtful = {field.name for field in schema if field.type in wider}
    while doubtful:
        doubtful -= _readable(opened(schema=schema), sorted(doubtful))
        schema = _widened(schema, doubtful, wider)
        doubtful = {name for name in doubtful if schema.field(name).type in wider}
    return opened(schema=schema)


def _widened(schema: Any, names: set[str], wider: Mapping[Any, Any]) -> Any:
    return arrow_module().schema(
        [field.with_type(wider[field.type]) if field.name in names else field for field in schema]
    )


def _readable(dataset: Any, names: Sequence[str]) -> set[str]:
    """Those of the columns whose cells are all of their type."""
    if not names:
        return set()
    try:
        for _ in dataset.scanner(columns=list(names), batch_readahead=1, fragment_readahead=1).to_batches():
            pass
    except arrow_module().ArrowInvalid:
        half = len(names) // 2
        return _readable(dataset, names[:half]) | _readable(dataset, names[half:]) if half else set()
    return set(names)


def joint_schema(schema: Any, others: Sequence[Any]) -> Any:
    """A schema with the types that the columns have in all files together, so far as they go together."""
    for place, field in enumerate(schema):
        found = [other.field(field.name).type for other in others if field.name in other.names]
        schema = schema.set(place, field.with_type(_joint(field.type, found)))
    return schema


def _joint(first: object, others: Sequence[Any]) -> Any:
    """Floating where some numbers are, text where some labels are; that of the first where nothing else is."""
    arrow = arrow_module()
    types = arrow.types
    found = list(dict.fromkeys(kind for kind in [first, *others] if not types.is_null(kind)))
    if len(found) < 2:
        return found[0] if found else first
    kinds = {kind_of(kind) for kind in found}
    if kinds == {"numeric"}:
        return arrow.int64() if all(map(types.is_signed_integer, found)) else arrow.float64()
    return arrow.string() if kinds == {"categorical"} else found[0]


def _base(paths: Sequence[Path]) -> str | None:
    """Below which folders such as year=2026 are columns; ``None`` for files alone."""
    if all(path.is_file() for path in paths):
        return None
    folders = [str(path if path.is_dir() else path.parent if path.is_file() else _fixed(path)) for path in paths]
    return folders[0] if len(folders) == 1 else os.path.commonpath(folders)


def _fixed(path: Path) -> Path:
    """The part of a glob before its first wildcard."""
    fixed = Path(path.anchor)
    for part in path.relative_to(path.anchor).parts:
        if wild(Path(part)):
            return fixed
        fixed /= part
    return fixed


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _suffixes() -> str:
    return ", ".join(FORMATS)


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
