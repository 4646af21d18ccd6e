"""Models out of their files, with what the files say of the tables that they were fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayescope import storage
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.opening import closest
from bayescope.cli.python_saved import table_of
from bayescope.errors import InputError, UnsupportedError


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
    """Refuses what is no file, with the closest name beside it.

    Raises:
        InputError: if it is a folder, or there is none.
    """
    if path.is_dir():
        raise InputError(f"{path}: expected the file of a model, got a folder. Name the file inside it.")
    if not path.exists():
        close = closest(path)
        raise InputError(f"{path}: expected the file of a model, got nothing there.{close}")
