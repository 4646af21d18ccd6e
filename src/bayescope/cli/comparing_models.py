"""`bayescope compare MODEL MODEL TABLE`: saved models, judged on the same rows of one table, on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from shlex import join, quote
from typing import Any, final

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bayescope.cli.answer import answer, verbatim
from bayescope.cli.fitted_table import FittedTable, notes_on_unseen, read_known_table
from bayescope.cli.header import listed
from bayescope.cli.model_files import load_model
from bayescope.cli.opening import STANDARD, open_source
from bayescope.cli.reporting import SUFFIXES, fitted_parts, row_names
from bayescope.cli.source import Source
from bayescope.cli.text_format import TextFormat
from bayescope.cli.training_table import TrainingTable
from bayescope.cli.writing import check_file, check_files
from bayescope.errors import InputError, recorded_warnings
from bayescope.files import only_writer, staged
from bayescope.report.facts import fitted as facts_of
from bayescope.report.judged import LEAST_ROWS, MOST_ROWS, MOST_TRIALS, Judged
from bayescope.report.models_page import models_page, provenance
from bayescope.report.paired import (
    MOST_MODELS,
    JudgedModel,
    PairedScore,
    Seen,
    headline,
    judged_model,
    nll_left_out,
    said,
)
from bayescope.report.report import write_page
from bayescope_command.app import CompareOptions

# Of a folder; parameters that do not tell models apart; and the options that hold for saved models.
PAGE, SCORES = "report.html", "comparison.csv"
HOUSEKEEPING = ("categorical", "checkpoint", "progress", "random_state")
THEIRS = ("models", "table", "target", "out", "seed", "as_json")


@final
@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model's file, and the table as it reads it.

    Attributes:
        path: of the file.
        name: which tells it from the others.
        estimator: fitted.
        fitted: what the file says of the table that was fitted.
        table: the rows with a target of the table that judges.
    """

    path: Path
    name: str
    estimator: Any
    fitted: FittedTable
    table: TrainingTable

    def rows(self) -> tuple[np.ndarray, Seen]:
        """Where the rows that can judge it stand in the table, and whether it was trained on them."""
        train, test = fitted_parts(self.table, self.fitted)
        if test is not None:
            return test.places, "held out"
        return self.table.places, "unknown" if train is None else "fitted"

    def facts(self) -> tuple[tuple[str, str], ...]:
        """What a reader wants to know of it."""
        model, table = facts_of(self.estimator), self.fitted
        chosen = [
            f"{name}={value}" for name, value, changed in model.parameters if changed and name not in HOUSEKEEPING
        ]
        trained = f"{table.rows} rows of {table.file}" if table.rows else "unknown"
        return (
            ("file", str(self.path)),
            ("model", model.model),
            ("posterior", model.posterior),
            ("features", str(len(table.kinds))),
            ("trained on", trained),
            ("chosen options", ", ".join(chosen) or "all defaults"),
        )


def compare_models(options: CompareOptions) -> None:
    """Judges saved models on the same rows, prints who is better and whether the rows tell, and writes the page.

    Raises:
        InputError: if the models cannot be compared, or the table, an option or the page's place cannot be used.
    """
    _refuse_options_of_fits(options)
    paths, out = options.models or [], options.out
    if not 2 <= len(paths) <= MOST_MODELS:
        raise InputError(
            f"MODEL: expected 2 to {MOST_MODELS} models, and a table after them, got {len(paths)} before "
            f"{options.table}. `bayescope report` judges one model."
        )
    with ExitStack() as stack:
        page_file = _checked_place(out, [*paths, options.table])
        if page_file is not None:
            stack.enter_context(only_writer("--out", page_file))
        opened = _opener(options.table, TextFormat.of(options))
        saved = _loaded(paths, options, opened)
        places, seen, notes = _common_rows(saved, options)
        with recorded_warnings(passed_on=False) as warned:
            judged, models = _judged(saved, places, seen)
            first = saved[0].fitted
            judged = replace(judged, row_names=row_names(opened(tuple(first.missing)), first, places))
            page, scores = models_page(
                models,
                judged,
                notes=[*notes, *_notes_on_scores(models, saved), *warned],
                command=_command(options),
                random_state=options.seed,
            )
        notes = [*notes, *_notes_on_scores(models, saved), *warned]
        files: list[Path] = []
        if out is not None and page_file is not None:
            files.append(write_page(page, page_file))
            files += _written_scores(out, scores, models) if page_file.parent == out else []
    _answer(judged, models, scores, files, notes, options)


def _answer(
    judged: Judged,
    models: Sequence[JudgedModel],
    scores: Sequence[PairedScore],
    files: Sequence[Path],
    notes: Sequence[str],
    options: CompareOptions,
) -> None:
    """Prints who is better, the scores and their differences."""
    names = [model.name for model in models]
    facts = {
        "target": judged.target,
        "rows": len(judged),
        "headline": headline(scores[0], names, len(judged)),
        "models": [{"name": model.name, "seen": model.seen} | dict(model.facts) for model in models],
        "scores": _frame(scores, names).to_dict(orient="records"),
        "files": [str(file) for file in files],
        "notes": list(notes),
    }
    lines = [*(f"note: {note}" for note in notes), *(f"wrote {file}" for file in files)]
    if options.out is None:
        lines.append("A page with all of it: add --out page.html.")
    answer(
        facts,
        verbatim(f"{facts['headline']}.", "bold"),
        provenance(models)[1],
        _table(scores, names),
        *(said(score, names) for score in scores),
        *lines,
        as_json=options.as_json,
    )


def _refuse_options_of_fits(options: CompareOptions) -> None:
    for field in fields(options):
        if field.name not in THEIRS and getattr(options, field.name) != field.default:
            name = {"given": "set"}.get(field.name, field.name).replace("_", "-")
            raise InputError(
                f"--{name}: expected no such option with saved models, which are not fitted again, got one. Leave it "
                "out, or give a table alone to fit every posterior."
            )


def _checked_place(out: Path | None, inputs: Sequence[Path]) -> Path | None:
    """The page's file: the one that is named, or one in the folder."""
    if out is None:
        return None
    if out.suffix.lower() in SUFFIXES:
        check_file(out, *inputs)
        return out
    check_files(out, (PAGE, SCORES), *inputs)
    return out / PAGE


# Models and rows ------------------------------------------------------------------------------------------------------
def _loaded(
    paths: Sequence[Path], options: CompareOptions, opened: Callable[[tuple[str, ...]], Source]
) -> list[SavedModel]:
    """The models, each with the table as it reads it."""
    loaded = [load_model(path) for path in paths]
    tables = _of_one_target(paths, loaded, options.target)
    return [
        SavedModel(path, name, estimator, table, read_known_table(opened(tuple(table.missing)), table))
        for path, name, (estimator, _), table in zip(paths, _names(paths), loaded, tables, strict=True)
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """The names of the files, or their paths where these are alike."""
    names = [path.stem for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise InputError(f"MODEL: expected different files, got {listed(names)}. Name each one once.")
    return names


def _of_one_target(
    paths: Sequence[Path], loaded: Sequence[tuple[Any, FittedTable]], given: str | None
) -> list[FittedTable]:
    """What the files say of their tables, all with the one target; Python's files do not tell theirs.

    Raises:
        InputError: if there are several targets, tasks or sets of classes.
    """
    targets = {path: table.target for path, (_, table) in zip(paths, loaded, strict=True) if table.target}
    wanted = given or next(iter(targets.values()), "")
    for path, target in targets.items():
        if target != wanted:
            raise InputError(
                f"{path}: expected a model of {wanted!r}, as {'--target' if given else next(iter(targets))} says, got "
                f"one of {target!r}. Compare models of one target."
            )
    if not wanted:
        raise InputError(
            "--target: expected the target's name, since models that Python saved do not tell it, got none. Name it."
        )
    known: list[list[Any]] = [
        table.classes or getattr(estimator, "classes_", np.empty(0)).tolist() for estimator, table in loaded
    ]
    tables = [replace(table, target=wanted, classes=classes) for (_, table), classes in zip(loaded, known, strict=True)]
    first = tables[0]
    for path, table in zip(paths, tables, strict=True):
        if table.task != first.task:
            raise InputError(
                f"{path}: expected a {first.task}, as {paths[0]} is, got a {table.task}. Classes and numbers have no "
                "score in common."
            )
        if set(map(str, table.classes)) != set(map(str, first.classes)):
            raise InputError(
                f"{path}: expected the classes of {paths[0]}, {listed(first.classes)}, got {listed(table.classes)}. "
                "Fit both to the same classes."
            )
    return tables


def _opener(path: Path, form: TextFormat) -> Callable[[tuple[str, ...]], Source]:
    """Opens the table, once for each list of what stands for a missing value."""
    lists: set[tuple[str, ...]] = set()

    @cache
    def opened(missing: tuple[str, ...]) -> Source:
        lists.add(missing)
        if str(path) == STANDARD and len(lists) > 1:
            raise InputError(
                "TABLE: expected a file, since the models were fitted with different --missing, got the standard "
                "input, which is read once. Save the table."
            )
        return open_source(path, missing=missing, again=True, form=form)

    return opened


def _common_rows(saved: Sequence[SavedModel], options: CompareOptions) -> tuple[np.ndarray, list[Seen], list[str]]:
    """Where the rows stand in the table that judge all models, whether each was trained on them, and remarks.

    Rows that were held out from one model judge all of them.
    """
    found = [model.rows() for model in saved]
    seen = [each for _, each in found]
    places = found[0][0]
    for other, _ in found[1:]:
        places = np.intersect1d(places, other)
    every = np.union1d(saved[0].table.places, places)
    if len(places) < LEAST_ROWS:
        raise InputError(
            f"{options.table}: expected at least {LEAST_ROWS} rows that no model was trained on, got {len(places)}: "
            "what one was not trained on, another was. Give other rows, or fit all with one --seed and --test-size."
        )
    notes = []
    if saved[0].table.without_target:
        notes.append(f"{saved[0].table.without_target} rows without a target were left out")
    if "held out" in seen:
        notes.append(
            f"{len(every) - len(places)} rows that a model was trained on are left out; the {len(places)} others judge"
        )
    most = MOST_ROWS if all(model.table.trials is None for model in saved) else MOST_TRIALS
    if len(places) > most:
        notes.append(f"{most} of {len(places)} rows, drawn at random, are judged")
        places = np.sort(np.random.default_rng(options.seed).choice(places, most, replace=False))
    return places, seen, notes


def _judged(saved: Sequence[SavedModel], places: np.ndarray, seen: Sequence[Seen]) -> tuple[Judged, list[JudgedModel]]:
    """The rows as the first model reads them, and what each model says of them."""
    rows: list[Judged] = []
    models = []
    for model, known in zip(saved, seen, strict=True):
        part = model.table.taken(np.searchsorted(model.table.places, places))
        rows.append(Judged.of(model.estimator, part.features, part.outcome, 0, most=len(places)))
        models.append(judged_model(model.name, model.estimator, rows[-1], rows[0].classes, model.facts(), known))
    return rows[0], models


def _notes_on_scores(models: Sequence[JudgedModel], saved: Sequence[SavedModel]) -> list[str]:
    """Why the NLL is missing, and what labels a model never saw."""
    left_out = nll_left_out(models)
    notes = [left_out] if left_out else []
    for model in saved:
        unseen = model.fitted.unseen(model.table.features)
        notes += [f"{model.name}: {note}" for note in notes_on_unseen(unseen)]
    return notes


# Answers --------------------------------------------------------------------------------------------------------------
def _command(options: CompareOptions) -> str:
    words = ["bayescope", "compare", *map(str, options.models or []), str(options.table)]
    words += [] if options.target is None else ["--target", options.target]
    words += ["--out", str(options.out or "page.html"), "--seed", str(options.seed)]
    return f"cd {quote(str(Path.cwd()))}\n{join(words)}"


def _table(scores: Sequence[PairedScore], names: Sequence[str]) -> Table:
    """A row a score, a column a model; bold where one is better than all others."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("score, 95 % interval", no_wrap=True)
    for name in names:
        table.add_column(verbatim(name), justify="right", no_wrap=True)
    for score in scores:
        cells = [
            verbatim("{} ({})".format(*score.value(place)), "bold green" if score.won and place == score.best else "")
            for place in range(len(names))
        ]
        table.add_row(score.label, *cells)
    return table


def _frame(scores: Sequence[PairedScore], names: Sequence[str]) -> pd.DataFrame:
    """A row a score and model."""
    rows: list[Mapping[str, object]] = []
    for score in scores:
        for place, name in enumerate(names):
            own = score.scores[place]
            value, low, high = score.differences[place].tolist()
            rows.append(
                {
                    "score": score.name, "model": name, "value": own.value, "low": own.low, "high": own.high,
                    "difference_to_best": value, "difference_low": low, "difference_high": high,
                    "best": place == score.best, "better_than_all": score.won and place == score.best,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _written_scores(folder: Path, scores: Sequence[PairedScore], models: Sequence[JudgedModel]) -> list[Path]:
    with staged(folder) as stage:
        _frame(scores, [model.name for model in models]).to_csv(stage / SCORES, index=False)
    return [folder / SCORES]
