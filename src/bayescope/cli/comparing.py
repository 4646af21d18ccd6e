"""`bayescope compare`: from a file to a table on the screen and files in a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bayescope.cli.answer import PIPED_WIDTH, answer, stdout, verbatim
from bayescope.cli.comparing_models import compare_models
from bayescope.cli.models import build, task_of
from bayescope.cli.problems import collected, refuse
from bayescope.cli.suspicious import constants, twins
from bayescope.cli.training_table import Roles, TrainingTable, opened_table, read_training_table
from bayescope.cli.writing import check_files
from bayescope.comparison import FILES, Comparison, compare
from bayescope.comparison.measures import Measure, best_cells, written
from bayescope.errors import BayescopeWarning, InputError, MissingDependencyError
from bayescope.files import only_writer
from bayescope.plots import style
from bayescope.report import write_comparison
from bayescope_command.app import CompareOptions

REPORT = "report.html"
# Sums of fourth powers of such numbers, as in the variance of a squared feature, neither overflow nor underflow.
LARGEST, SMALLEST_SPREAD = 1e75, 1e-75
BEST = "bold green"
# Columns of the upper part where the terminal is narrow: scores and distances, which fit 80 letters.
FIRST_PART = 6


def compare_files(options: CompareOptions) -> None:
    """Compares saved models where there are some, else every posterior of a model that is fitted to the table."""
    if options.models:
        compare_models(options)
    else:
        compare_table(options)


def compare_table(options: CompareOptions, compare: Callable[..., Comparison] = compare) -> None:
    """Compares the posteriors on a table, prints the result, and writes it where a folder is named.

    Args:
        options: of the command.
        compare: makes the comparison.

    Raises:
        InputError: if the table, an option or the folder cannot be used; before any fit, and before anything is
            written.
    """
    out = options.out
    names = None if options.posteriors is None else [name.strip() for name in options.posteriors.split(",")]
    with ExitStack() as stack:
        if out is not None:
            check_files(out, (*FILES, REPORT), options.table)
            stack.enter_context(only_writer("--out", out / REPORT))
        source, _ = opened_table(options.table, options)
        roles = Roles.of(options, str(options.target))
        table = read_training_table(source, roles, task=task_of(options), likelihood=options.likelihood)
        check_comparable(table)
        template = build(options, table.target.task, table.roles.categorical)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayescopeWarning)  # they stand in the footnotes
            comparison = compare(
                template,
                table.features,
                table.target.series(),
                posteriors=names,
                test_size=options.test_size,
                random_state=options.seed,
                progress=True,
            )
        if not options.as_json:
            show(comparison, stdout())
        files, notes = ([], ["Pictures and files: add --out DIR."]) if out is None else _save(comparison, out)
    notes = [*(f"{each}." for each in source.notes), *notes]
    if table.without_target:
        notes.append(f"{table.without_target} rows without a target were left out.")
    facts = {
        "title": comparison.title,
        "reference": comparison.reference,
        "posteriors": comparison.table.reset_index().to_dict(orient="records"),
        "footnotes": list(comparison.footnotes),
        "files": [str(file) for file in files],
        "notes": notes,
    }
    answer(facts, *notes, *(f"wrote {file}" for file in files), as_json=options.as_json)


def _save(comparison: Comparison, out: Path) -> tuple[list[Path], list[str]]:
    """Writes the files, and the report where what it needs is installed."""
    files = comparison.save(out)
    try:
        return [*files, write_comparison(comparison, out / REPORT)], []
    except MissingDependencyError as error:
        return files, [f"No {REPORT}: {error}"]


def check_comparable(table: TrainingTable) -> None:
    """Refuses columns whose weights nothing tells apart, or that cannot be computed with.

    Raises:
        InputError: if a column is constant, its numbers are too large or too close, or two are equal in every row.
    """
    columns = {name: table.features[name].to_numpy() for name in table.kinds}
    problems = [f"{table.source}: {each.text}" for each in [*constants(columns), *twins(columns, table.kinds)]]
    for name, kind in table.kinds.items():
        if kind == "numeric":
            with collected(problems):
                _check_numbers(f"{table.source}: column {name!r}", columns[name][~np.isnan(columns[name])])
    refuse(problems)


def _check_numbers(where: str, numbers: np.ndarray) -> None:
    if np.abs(numbers).max() > LARGEST:
        farthest = numbers[np.abs(numbers).argmax()]
        raise InputError(
            f"{where}: expected numbers of at most {LARGEST:g} in magnitude, whose squares can be summed, got "
            f"{farthest:g}. Replace it, or give the column another unit."
        )
    if len(set(numbers)) > 1 and numbers.std(ddof=1) < SMALLEST_SPREAD:
        raise InputError(
            f"{where}: expected a standard deviation of at least {SMALLEST_SPREAD:g}, whose square can be divided by, "
            f"got {numbers.std(ddof=1):g}. Give the column another unit."
        )


def show(comparison: Comparison, console: Console) -> None:
    """Prints the table, in two parts where the terminal is too narrow for one, and the footnotes.

    Args:
        comparison: to be printed.
        console: to print to.
    """
    console.print(verbatim(comparison.title, "bold"))
    every = comparison.measures
    whole = _table(comparison, every)
    if Measurement.get(console, console.options.update(max_width=PIPED_WIDTH), whole).maximum <= console.width:
        console.print(whole)
    else:
        console.print(_table(comparison, every[:FIRST_PART]), _table(comparison, every[FIRST_PART:]))
    for note in comparison.footnotes:
        console.print(verbatim(note, "dim"), soft_wrap=not console.is_terminal)


def _table(comparison: Comparison, measures: Sequence[Measure]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("posterior", no_wrap=True)
    cells = [[style.label(str(name)) for name in comparison.table.index]]
    for column in measures:
        table.add_column(column.label, justify="right", no_wrap=True)
        best = best_cells(comparison.table, comparison.leads.get(column.name))
        texts = zip(written(comparison.table, column), best, strict=True)
        cells.append([Text(cell, style=BEST if is_best else "") for cell, is_best in texts])  # type: ignore[misc]
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table
