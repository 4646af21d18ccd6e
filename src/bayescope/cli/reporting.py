"""`bayescope report`: how far a model's answers can be trusted, as one page."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import join, quote

import numpy as np
import pandas as pd

from bayescope import checks
from bayescope.cli.answer import answer
from bayescope.cli.arrow_source import ArrowSource
from bayescope.cli.fitted_table import FittedTable, read_known_table
from bayescope.cli.model_files import load_model
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.source import Source, all_blocks
from bayescope.cli.text_format import TextFormat
from bayescope.cli.training_table import TrainingTable
from bayescope.cli.writing import check_file
from bayescope.errors import InputError, UnsupportedError, recorded_warnings
from bayescope.report import RowNames, write_report
from bayescope_command.app import ReportOptions

SUFFIXES = (".html", ".htm")
REFERENCES = ("auto", "nuts", "none")
FITTED = (
    "the model was trained on these rows, so its scores are better than they would be for new rows. Give rows that "
    "were not used for training"
)

# What a column of identifiers is called: whole numbers under another name may be amounts that happen to differ.
_IDENTIFIER = re.compile(r"(^|[^a-z])(id|ids|identifier|key|uuid|guid|nr|no|number)$|[a-z]I[Dd]$", re.IGNORECASE)


def report_table(options: ReportOptions) -> None:
    """Writes the report on a model and the rows of a table that has the target.

    Raises:
        InputError: if the model, the table, an option or the page's place cannot be used.
    """
    model, path, out, reference = options.model, options.table, options.out, options.reference
    checks.choice("--reference", reference, REFERENCES)
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out: expected a file name that ends in .html, got {str(out)!r}.")
    check_file(out, model, path)
    estimator, fitted = load_model(model)
    if not fitted.target:
        raise UnsupportedError(
            f"{model}: expected a model that `bayescope fit` saved, got one that Python saved, which does not tell its "
            "target. Report on it in Python: bayescope.report."
        )
    source = open_source(path, missing=fitted.missing, again=True, form=TextFormat.of(options))
    table = read_known_table(source, fitted)
    judged, kept, note, training = _judged_rows(table, fitted, options.held_out)
    if options.training is not None:
        training = _training_rows(options.training, fitted, TextFormat.of(options))
    if training is not None and fitted.weight is not None and training.weights is None:
        training = None  # of weighted rows whose weights the table lacks
    with recorded_warnings(passed_on=False) as warned:
        write_report(
            estimator,
            judged.features,
            judged.outcome,
            out=out,
            title=options.title,
            reference=None if reference == "none" else reference,
            held_out=kept,
            training=None if training is None else training.data,
            random_state=options.seed,
            row_names=row_names(source, fitted, judged.places),
            command=_command(options),
        )
    notes = [*source.notes, *note, *warned]
    if table.without_target:
        notes.append(f"{table.without_target} rows without a target were left out")
    size = out.stat().st_size
    facts = {"report": str(out), "bytes": size, "rows": len(judged), "held_out": kept, "notes": notes}
    lines = [f"note: {each}" for each in notes]
    answer(facts, *lines, f"wrote {out} ({size / 1e6:.1f} MB)", as_json=options.as_json)


def _judged_rows(
    table: TrainingTable, fitted: FittedTable, said: bool
) -> tuple[TrainingTable, bool | None, list[str], TrainingTable | None]:
    """The rows to judge by, whether they were kept from the fit, what to say of that, and those that were fitted."""
    train, test = fitted_parts(table, fitted)
    if train is None:
        return table, True if said else None, [], None
    if test is None:
        return table, False, [FITTED], train
    return test, True, [f"{len(train)} rows were fitted; the {len(test)} others are judged"], train


def fitted_parts(table: TrainingTable, fitted: FittedTable) -> tuple[TrainingTable | None, TrainingTable | None]:
    """The rows of a table that were fitted, and those that were held out from them; nothing if it is another table."""
    if table.digest() == fitted.digest:
        return table, None
    if fitted.test_size > 0:
        train, test, _ = table.split(fitted.test_size, fitted.seed)
        if test is not None and train.digest() == fitted.digest:
            return train, test
    return None, None


def _training_rows(path: Path, fitted: FittedTable, form: TextFormat) -> TrainingTable:
    """The rows that the model was fitted to, of the table that --training names.

    Raises:
        InputError: if they are not in it.
    """
    source = open_source(path, missing=fitted.missing, again=True, form=form)
    train, _ = fitted_parts(read_known_table(source, fitted), fitted)
    if train is None:
        raise InputError(
            f"--training: expected the table that the model was fitted to, {fitted.file!r} with {fitted.rows} rows, "
            f"got {path}, whose rows are others. Name that table, or leave --training out."
        )
    return train


def row_names(source: Source, fitted: FittedTable, places: np.ndarray) -> RowNames:
    """How a reader finds the rows in the file: by a column of identifiers where there is one, else by their number.

    Args:
        source: the table.
        fitted: the columns that the model knows.
        places: of the rows in the table, counted from 0.
    """
    known = {*fitted.kinds, fitted.target, fitted.weight, fitted.trials}
    others = [name for name in source.header if name not in known]
    if others:
        cells = pd.concat([block.copied(others) for block in all_blocks(source, others)], ignore_index=True)
        for name in others:
            if _identifies(name, cells[name].astype(object)):
                return RowNames(cells[name].astype(str).to_numpy(object)[places], name, f"rows are named by {name}")
    files = source.files() if isinstance(source, ArrowSource) else []
    if len(files) > 1:
        ends = np.cumsum([rows for _, rows in files])
        at = np.searchsorted(ends, places, side="right")
        numbers = places - (ends - [rows for _, rows in files])[at] + 1
        values = np.array([f"{number} of {files[file][0]}" for number, file in zip(numbers, at, strict=True)], object)
        return RowNames(values, "row", "rows are counted from 1 in each file, below its header")
    where = "" if str(source.name).endswith((".parquet", ".pq")) else ", below the header"
    return RowNames((places + 1).astype(object), "row", f"rows are counted from 1{where}")


def _identifies(name: str, cells: pd.Series) -> bool:
    """Whether a column tells all rows apart, and holds text or what its name calls identifiers."""
    if cells.isna().any() or (cells == "").any() or cells.duplicated().any():
        return False
    numbers = pd.to_numeric(cells, errors="coerce")
    return bool(numbers.isna().all()) or _IDENTIFIER.search(name) is not None


def _command(options: ReportOptions) -> str:
    """The commands that write the report again, wherever they are pasted."""
    words = ["bayescope", "report", str(options.model), str(options.table), "--out", str(options.out)]
    words += [] if options.title is None else ["--title", options.title]
    words += [] if options.reference == "auto" else ["--reference", options.reference]
    words += ["--held-out"] if options.held_out else []
    words += [] if options.training is None else ["--training", str(options.training)]
    for name in ("sep", "decimal", "encoding", "sheet"):
        words += [] if getattr(options, name) is None else [f"--{name}", str(getattr(options, name))]
    words += ["--seed", str(options.seed)]
    piped = " < TABLE.csv  # the rows came from the standard input" if str(options.table) == STANDARD else ""
    return f"cd {quote(str(Path.cwd()))}\n{join(words)}{piped}"
