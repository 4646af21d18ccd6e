"""`bayescope info`: what a model's file says of itself; no tensor is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from bayescope import storage
from bayescope.cli.answer import answer, shown_as_is
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.header import listed
from bayescope.cli.loading import check_model_file


def describe(path: Path, *, as_json: bool) -> None:
    """Prints a file's manifest.

    Args:
        path: the model's file.
        as_json: whether to answer in JSON.

    Raises:
        FileError: if there is no such file, or it is none that bayescope saved.
    """
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
    answer(facts, *_lines(facts, FittedTable.read(str(path), manifest.metadata)), as_json=as_json)


def _lines(facts: dict[str, Any], table: FittedTable | None) -> list[RenderableType]:
    lines: list[RenderableType] = [
        shown_as_is(f"{facts['model']}: {facts['kind']}", "bold"),
        f"  {facts['bytes'] / 1e3:.0f} kB, saved by bayescope {facts['bayescope_version']}, file format "
        f"{facts['format_version']}; " + ", ".join(f"{name} {version}" for name, version in facts["packages"].items()),
    ]
    if table is not None:
        lines += [
            f"  {table.task} of {table.target}, fitted to {table.rows} rows of {table.file}",
            _columns(table),
        ]
        if table.scores:
            told = ", ".join(f"{name} {value:.4g} ({low:.4g} to {high:.4g})" for name, value, low, high in table.scores)
            lines.append(f"  on held-out rows, with 95 % intervals: {told}")
    lines += [f"  {line}" for line in facts["summary"].splitlines()]
    return lines


def _columns(table: FittedTable) -> Table:
    """The columns that a table to predict has to have."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, kind in table.kinds.items():
        labels = table.labels.get(name)
        told = "numbers" if kind == "numeric" else f"labels: {listed(labels or [])}"
        shown.add_row(shown_as_is(f"  {name}"), shown_as_is(told))
    return shown
