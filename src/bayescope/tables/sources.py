"""Where a table on disk lies: files, directories and globs as one dataset of pyarrow's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bayescope.errors import InputError, InputTypeError
from bayescope.tables.arrow import arrow_module

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


def dataset_of(source: Any) -> Any:
    """One dataset of all files that a source names, in the order of their paths.

    Args:
        source: a file, a directory, a glob, a list of these, or a ``pyarrow.dataset.Dataset``.

    Raises:
        InputError: if there is no such file, the files are of several formats or of none that is known, or one cannot
            be read.
        InputTypeError: if it is something else.
        MissingDependencyError: if pyarrow is not installed.
    """
    arrow, datasets = arrow_module(), arrow_module("pyarrow.dataset")
    if isinstance(source, datasets.Dataset):
        return source
    each = list(source) if isinstance(source, list | tuple) else [source]
    if not each or not all(isinstance(one, str | Path) for one in each):
        raise InputTypeError(
            "source: expected a path, a glob, a list of these or a pyarrow.dataset.Dataset, got "
            f"{'an empty list' if source == [] else type(source).__name__}."
        )
    found = [path for one in each for path in _files(Path(one).expanduser())]
    files = list(dict.fromkeys(found))
    form = _format(files)
    base = _base(Path(each[0]).expanduser()) if len(each) == 1 else None
    options: dict[str, Any] = {} if base is None else {"partitioning": "hive", "partition_base_dir": str(base)}
    options |= {"format": _reader(form, files)}
    try:
        dataset = datasets.dataset(list(map(str, files)), **options)
        if form != "csv":
            return dataset
        return datasets.dataset(list(map(str, files)), schema=_with_floats(dataset.schema), **options)
    except (arrow.ArrowException, OSError) as error:
        raise broken(", ".join(map(str, files[:3])), error) from None


def broken(table: str, error: Exception) -> InputError:
    """What to say of a file that pyarrow cannot read."""
    return InputError(
        f"{table}: expected a table that can be read, got: {' '.join(str(error).split())}. Write it anew."
    )


def _files(path: Path) -> Iterator[Path]:
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
    if any(mark in str(path) for mark in WILD):
        base = _fixed(path)
        found = sorted(each for each in base.glob(str(path.relative_to(base))) if each.is_file())
        if not found:
            raise InputError(f"{path}: expected a pattern that some file fits, got none. Mend the path.")
        yield from found
        return
    raise InputError(f"{path}: expected a file, a directory or a glob, got none of that name. Mend the path.")


def _format(files: Sequence[Path]) -> str:
    formats = {FORMATS.get(path.suffix.lower()): path for path in reversed(files)}
    if None in formats:
        raise InputError(f"{formats[None]}: expected a file whose name ends with {_suffixes()}. Name it by its format.")
    if len(formats) > 1:
        named = " and ".join(str(path) for path in sorted(formats.values()))
        raise InputError(f"source: expected files of one format, got {named}. Give a glob of one of them.")
    return str(next(iter(formats)))


def _reader(form: str, files: Sequence[Path]) -> Any:
    """pyarrow's reader of a format: of text it has to know what stands between cells."""
    if form != "csv" or files[0].suffix.lower() != ".tsv":
        return form
    datasets, text = arrow_module("pyarrow.dataset"), arrow_module("pyarrow.csv")
    return datasets.CsvFileFormat(parse_options=text.ParseOptions(delimiter="\t"))


def _with_floats(schema: Any) -> Any:
    """Text tells its types by its first rows alone: what is whole there may have digits further down."""
    arrow = arrow_module()
    return arrow.schema(
        [field.with_type(arrow.float64()) if arrow.types.is_integer(field.type) else field for field in schema]
    )


def _base(path: Path) -> Path | None:
    """Below which folders such as year=2026 are columns; ``None`` for a file."""
    if path.is_dir():
        return path
    return None if path.is_file() else _fixed(path)


def _fixed(path: Path) -> Path:
    """The part of a glob before its first wildcard."""
    fixed = Path(path.anchor)
    for part in path.relative_to(path.anchor).parts:
        if any(mark in part for mark in WILD):
            return fixed
        fixed /= part
    return fixed


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _suffixes() -> str:
    return ", ".join(FORMATS)
