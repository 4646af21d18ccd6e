"""Files of models: loaded with what they say of the table that was fitted, and described by `bayescope info`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from sklearn.base import is_classifier

from bayescope import storage
from bayescope.cli.answer import answer, verbatim
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.header import listed
from bayescope.cli.opening import closest
from bayescope.errors import InputError, UnsupportedError
from bayescope.tables.columns import Kind
from bayescope_command.app import InfoOptions


def load_model(path: Path) -> tuple[Any, FittedTable]:
    """A fitted estimator, and its table.

    Args:
        path: the model's file.

    Raises:
        FileError: if there is no such file, or it is none that bayescope saved.
        UnsupportedError: if it holds no estimator.
        InputError: if nothing tells the names of its columns.
    """
    check_model_file(path)
    model, manifest = storage.load_with_manifest(path)
    if not hasattr(model, "predict_distribution"):
        raise UnsupportedError(
            f"{path}: expected a model of a table, got {type(model).__name__}, which reads tensors. Use it in Python: "
            "bayescope.load(path)."
        )
    table = FittedTable.read(str(path), manifest.metadata)
    if table is None:
        with storage.answering(model):
            table = table_of(str(path), model)
    return model, table


def check_model_file(path: Path) -> None:
    """Refuses a path that is not a file, and names the closest file.

    Raises:
        InputError: if it is a folder, or does not exist.
    """
    if path.is_dir():
        raise InputError(f"{path}: expected the file of a model, got a folder. Name the file inside it.")
    if not path.exists():
        close = closest(path)
        raise InputError(f"{path}: expected the file of a model, got nothing there.{close}")


def table_of(path: str, model: object) -> FittedTable:
    """What tables a model can predict, by what it learnt of its columns.

    Args:
        path: the model's file, for messages.
        model: a fitted estimator.

    Raises:
        InputError: if it was fitted to columns without names.
    """
    if not hasattr(model, "feature_names_in_"):
        raise InputError(
            f"{path}: expected a model that was fitted to named columns, got one of columns without names. Fit it to a "
            "DataFrame, or with `bayescope fit`."
        )
    names = [*map(str, model.feature_names_in_), *(getattr(model, "_added_by", None) or ())[1:]]
    categories = {encoding.name: encoding.categories for encoding in _label_encodings(model)}
    kinds: dict[str, Kind] = {name: "categorical" if name in categories else "numeric" for name in names}
    values = {name: {str(label): label for label in labels} for name, labels in categories.items()}
    return FittedTable(
        kinds=kinds,
        labels={name: list(written) for name, written in values.items()},
        target="",
        task="classification" if is_classifier(model) else "regression",
        values={
            name: written for name, written in values.items() if any(not isinstance(v, str) for v in written.values())
        },
    )


def _label_encodings(model: Any) -> Iterable[Any]:
    """What the model knows of its columns of labels: additive models encode them themselves, others preprocess."""
    if hasattr(model, "additive_"):
        return [feature for feature in model.additive_.encoding.features if feature.kind == "categorical"]
    preprocessing = model.preprocessing_ if hasattr(model, "preprocessing_") else model._inputs.preprocessing
    labels: Iterable[Any] = preprocessing.labels
    return labels


def describe(options: InfoOptions) -> None:
    """Prints a file's manifest.

    Raises:
        InputError: if it is no file of a model.
    """
    path = options.model
    check_model_file(path)
    manifest = storage.read_manifest(path)
    facts: dict[str, Any] = {
        "model": str(path),
        "bytes": manifest.file_size,
        "kind": manifest.kind,
        "format_version": manifest.format_version,
        "bayescope_version": manifest.bayescope_version,
        "packages": dict(manifest.packages),
        "summary": manifest.summary,
        "metadata": dict(manifest.metadata),
        "tensors": {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in manifest.tensors.items()},
    }
    answer(facts, *_lines(facts, FittedTable.read(str(path), manifest.metadata)), as_json=options.as_json)


def _lines(facts: dict[str, Any], table: FittedTable | None) -> list[RenderableType]:
    lines: list[RenderableType] = [
        verbatim(f"{facts['model']}: {facts['kind']}", "bold"),
        f"  {facts['bytes'] / 1e3:.0f} kB, saved by bayescope {facts['bayescope_version']}, file format "
        f"{facts['format_version']}; " + ", ".join(f"{name} {version}" for name, version in facts["packages"].items()),
    ]
    if table is not None:
        lines += [
            f"  {table.task} of {table.target}, fitted to {table.rows} rows of {table.file}",
            _columns(table),
        ]
        if table.scores:
            scores = ", ".join(
                f"{name} {value:.4g} ({low:.4g} to {high:.4g})" for name, value, low, high in table.scores
            )
            lines.append(f"  on held-out rows, with 95 % intervals: {scores}")
    lines += [f"  {line}" for line in facts["summary"].splitlines()]
    return lines


def _columns(table: FittedTable) -> Table:
    """The columns that a table to predict has to have."""
    columns = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    parts = {f"{name} {part}" for name, (_, *parts) in table.dates.items() for part in parts}
    for name, (form, *_) in table.dates.items():
        columns.add_row(verbatim(f"  {name}"), verbatim(f"dates as {form}"))
    for name, kind in [(name, kind) for name, kind in table.kinds.items() if name not in parts]:
        labels = table.labels.get(name)
        holds = "numbers" if kind == "numeric" else f"labels: {listed(labels or [])}"
        columns.add_row(verbatim(f"  {name}"), verbatim(holds))
    return columns
