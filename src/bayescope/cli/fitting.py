"""`bayescope fit`: from a table to a model in one file, judged on rows that it has not seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from sklearn.base import clone

from bayescope.cli.answer import answer, noted_warnings
from bayescope.cli.checkpoints import Checkpoints
from bayescope.cli.fit_answer import Outcome, facts_of_fit, lines_of_fit
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.held_out import Split, held_out_rows, judge
from bayescope.cli.models import ModelOptions, build
from bayescope.cli.opening import open_source
from bayescope.cli.training_table import Roles, TrainingTable, read_training_table
from bayescope.cli.writing import check_file


@final
@dataclass(frozen=True)
class FitSettings:
    """The options of the command, as typed.

    Attributes:
        roles: of the columns.
        task: "auto", "classification" or "regression".
        options: of the model.
        missing: further spellings of a missing value.
        test_size: the share of the rows that are held out for scores; 0 for none.
        refit: whether the model that is saved is fitted to all rows, those held out among them.
        resume: whether to go on from the checkpoint of an interrupted fit.
        as_json: whether to answer in JSON.
    """

    roles: Roles
    task: str
    options: ModelOptions
    missing: Sequence[str]
    test_size: float
    refit: bool
    resume: bool
    as_json: bool


def fit_table(path: Path, out: Path, settings: FitSettings) -> None:
    """Fits a model to a table, prints how well it predicts held-out rows, and saves it.

    Args:
        path: the table, or "-".
        out: the model's file.
        settings: all else.

    Raises:
        InputError: if the table, an option or the file cannot be used; before any fit, and before anything is written.
    """
    check_file(out, path)
    source = open_source(path, missing=settings.missing, again=True)
    roles = settings.roles.within(source)
    table = read_training_table(source, roles, task=settings.task)
    estimator = build(settings.options, table.target.task)
    split = held_out_rows(table.target, settings.test_size, settings.options.seed)
    checkpoints = Checkpoints.beside(out, estimator, resume=settings.resume)
    outcome = _fitted(estimator, table, split, checkpoints, settings)
    judged = () if outcome.held_out is None else outcome.held_out.scores
    fitted = FittedTable.of(table, roles, settings.missing, outcome.rows)
    told = replace(
        fitted,
        test_size=settings.test_size,
        seed=settings.options.seed,
        scores=[[s.name, s.value, s.low, s.high] for s in judged if np.isfinite([s.value, s.low, s.high]).all()],
    )
    outcome.estimator.save(out, metadata=told.metadata())
    checkpoints.remove()
    facts = facts_of_fit(table, outcome, out)
    answer(facts, *lines_of_fit(facts), as_json=settings.as_json)


def _fitted(
    estimator: Any, table: TrainingTable, split: Split, checkpoints: Checkpoints, settings: FitSettings
) -> Outcome:
    begun, seed = time.perf_counter(), settings.options.seed
    everything = np.arange(len(table))
    again = settings.refit or not len(split.test)
    remarks = []
    if settings.resume and checkpoints.last is None:
        remarks.append("--resume: fits of this model are short and keep no checkpoint; it was fitted from the start")
    with noted_warnings() as warned:
        held_out, model = None, None
        if len(split.test):
            model = _fit(estimator, table, split.train, checkpoints.first)
            held_out = judge(model, table, split.test, seed)
        if again:
            model = _fit(estimator, table, everything, checkpoints.last)
    seconds = time.perf_counter() - begun
    rows = everything if again else split.train
    return Outcome(model, rows, held_out, seconds, (*remarks, *warned), refitted=again and held_out is not None)


def _fit(estimator: Any, table: TrainingTable, rows: np.ndarray, checkpoint: Path | None) -> Any:
    """A fitted copy, which knows nothing of where this was."""
    fresh = clone(estimator)
    if checkpoint is not None:
        fresh.set_params(checkpoint=str(checkpoint))
    weights = {} if table.weights is None else {"sample_weight": table.weights[rows]}
    fresh.fit(table.features.iloc[rows], table.target.series().iloc[rows], **weights)
    return fresh if checkpoint is None else fresh.set_params(checkpoint=None)
