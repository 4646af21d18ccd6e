"""`bayescope compare`: from a file to a table on the screen and files in a folder."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bayescope.cli.answer import answer, stdout
from bayescope.cli.comparable import check_comparable
from bayescope.cli.opening import open_source
from bayescope.cli.show import show
from bayescope.cli.training_table import Roles, read_training_table
from bayescope.cli.writing import check_files
from bayescope.comparison import Comparison, compare
from bayescope.comparison.comparison import FILES
from bayescope.errors import BayescopeWarning, InputError, MissingDependencyError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.files import only_writer
from bayescope.report import write_comparison

REPORT = "report.html"


@final
@dataclass(frozen=True)
class CompareSettings:
    """The options of the command, as typed."""

    roles: Roles
    missing: Sequence[str]
    posteriors: str | None
    test_size: float
    seed: int
    link: str
    prior_precision: str
    features: str | None
    as_json: bool


def compare_table(path: Path, out: Path | None, settings: CompareSettings) -> None:
    """Compares the posteriors on a table, prints the result, and writes it where a folder is named.

    Args:
        path: the table, or "-".
        out: the folder, or ``None`` to print only.
        settings: all else.

    Raises:
        InputError: if the table, an option or the folder cannot be used; before any fit, and before anything is
            written.
    """
    if out is None:
        _compare(path, out, settings)
        return
    check_files(out, (*FILES, REPORT), path)
    with only_writer("--out", out / REPORT):
        _compare(path, out, settings)


def _compare(path: Path, out: Path | None, settings: CompareSettings) -> None:
    template = BayesianLogisticRegression().set_params(
        link=settings.link,
        prior_precision=_prior_precision(settings.prior_precision),
        features=settings.features,
    )
    names = None if settings.posteriors is None else [name.strip() for name in settings.posteriors.split(",")]
    source = open_source(path, missing=settings.missing, again=True)
    table = read_training_table(source, settings.roles, task="classification")
    check_comparable(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayescopeWarning)  # they stand in the footnotes
        comparison = compare(
            template,
            table.features,
            table.target.series(),
            posteriors=names,
            test_size=settings.test_size,
            random_state=settings.seed,
            progress=True,
        )
    if not settings.as_json:
        show(comparison, stdout())
    files, notes = ([], ["Pictures and files: add --out DIR."]) if out is None else _save(comparison, out)
    if table.without_target:
        notes.append(f"{table.without_target} rows without a target were left out.")
    facts = _facts(comparison, files, notes)
    answer(facts, *notes, *(f"wrote {file}" for file in files), as_json=settings.as_json)


def _save(comparison: Comparison, out: Path) -> tuple[list[Path], list[str]]:
    """Writes the files, and the report where what it needs is installed."""
    files = comparison.save(out)
    try:
        return [*files, write_comparison(comparison, out / REPORT)], []
    except MissingDependencyError as error:
        return files, [f"No {REPORT}: {error}"]


def _facts(comparison: Comparison, files: Sequence[Path], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "title": comparison.title,
        "reference": comparison.reference,
        "posteriors": comparison.table.reset_index().to_dict(orient="records"),
        "footnotes": list(comparison.footnotes),
        "files": [str(file) for file in files],
        "notes": list(notes),
    }


def _prior_precision(text: str) -> float | str:
    if text == "evidence":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f'--prior-precision: expected a positive number or "evidence", got {text!r}.') from None
