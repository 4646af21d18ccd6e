"""`bayescope fit` on a directory, a glob or a large file: a block of rows in memory at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.cli.checkpoints import Checkpoints, fitted_copy, named_fit
from bayescope.cli.dataset import DatasetSource
from bayescope.cli.fit_answer import FitResult, finish
from bayescope.cli.fitted_table import FittedTable
from bayescope.cli.held_out import HeldOut, score
from bayescope.cli.model_files import table_of
from bayescope.cli.models import FitSettings, build
from bayescope.cli.target import Target
from bayescope.cli.training_table import Roles, TrainingTable
from bayescope.errors import InputError, recorded_warnings
from bayescope.processes import Processes
from bayescope.tables.column_sums import MOST_VALUES, LabelsSeen, NumbersSeen
from bayescope.tables.dataset import TableDataset

# So many rows judge a fit well enough: the standard error of an accuracy is then below 0.002.
JUDGES = 100_000


def fit_blocks(path: Path, out: Path, settings: FitSettings, processes: Processes) -> None:
    """Fits a model to a table of any size, prints how well it predicts held-out rows, and saves it.

    Args:
        path: a directory, a glob or a file.
        out: the model's file.
        settings: all else.
        processes: that work on it together.

    Raises:
        InputError: if the table, an option or the file cannot be used; before any fit, and before anything is written.
    """
    with processes.agreed():
        source = DatasetSource(path, settings.missing)
        roles = settings.roles.within(source)
        table = _opened(source, roles)
    seen = _Seen.of(table, roles.target, processes)
    with processes.agreed():
        target = seen.target(source, settings.task)
        table = table.without(seen.gaps)
        estimator = build(settings.options, target.task)
        if roles.categorical:
            estimator.set_params(categorical=list(roles.categorical))
        every = _stride(settings.test_size, table.rows)
    with named_fit(out, estimator, settings):
        with processes.agreed():
            checkpoints = Checkpoints.beside(out, estimator, resume=settings.resume)
        outcome = _fitted(estimator, table, target, roles, every, checkpoints, settings, processes)
    if processes.first:
        described = _described(outcome, target, roles, source.name, settings)
        shown = TrainingTable(source.name, pd.DataFrame(), described.kinds, target, without_target=len(seen.gaps))
        finish(outcome, described, shown, out, checkpoints, settings)


def _opened(source: DatasetSource, roles: Roles) -> TableDataset:
    names = roles.features(source.header)
    if not names:
        raise InputError(f"{source.name}: expected features beside the target, got none. Add columns, or drop fewer.")
    extra = [roles.target, *([] if roles.weight is None else [roles.weight])]
    return source.table([*names, *extra])


@final
@dataclass(frozen=True, eq=False)
class _Seen:
    """What a pass over the target's column tells.

    Attributes:
        name: of the column.
        rows: of the table.
        labels: what it holds, where that is labels.
        numbers: what it holds, where that is numbers.
        gaps: the rows that have no target.
    """

    name: str
    rows: int
    labels: LabelsSeen
    numbers: NumbersSeen
    gaps: np.ndarray

    @classmethod
    def of(cls, table: TableDataset, name: str, processes: Processes) -> _Seen:
        """Each process looks at its part."""
        labels, numbers, gaps = LabelsSeen(name), NumbersSeen(name), [np.empty(0, dtype=np.int64)]
        row = processes.rank * table.rows // processes.count
        with processes.agreed():
            for (column,) in table.blocks([name], part=(processes.rank, processes.count)):
                missing, once = pd.isna(column.values), np.ones(len(column.values))
                if column.kind == "categorical":
                    labels.add(replace(column, values=column.values[~missing]), once[~missing])
                else:
                    numbers.add(column.values, once)
                gaps.append(row + np.flatnonzero(missing))
                row += len(missing)
        parts = processes.gather((labels, numbers, np.concatenate(gaps)))
        every, each, gone = zip(*parts, strict=True)
        joined = reduce(LabelsSeen.joined, every), reduce(NumbersSeen.joined, each)
        return cls(name, table.rows, *joined, np.concatenate(gone))

    def target(self, source: DatasetSource, task: str) -> Target:
        """The target by its different values."""
        if len(self.gaps) == self.rows:
            raise InputError(
                f"{source.name}: column {self.name!r}: expected a target in some rows, got none in {self.rows} rows. "
                "Name another --target."
            )
        if self.labels.tally:
            found = np.array(list(self.labels.tally), dtype=object)
            return Target.of(source, self.name, found, "labels", np.zeros(1), task)
        values = self.numbers.values
        if values is None and task != "classification":
            told = f"{self.name} has more than {MOST_VALUES:,} different numbers"
            return Target(self.name, np.empty(0), "regression", told)
        few = np.arange(MOST_VALUES + 1.0) if values is None else values
        return Target.of(source, self.name, few, "numeric", np.zeros(1), task)


def _stride(share: float, rows: int) -> int | None:
    """Every how-manieth row is held out: nearest to the share, and no more than judge a fit; ``None`` for none."""
    if not 0 <= share <= 0.5:
        raise InputError(
            f"--test-size: expected a number from 0 to 0.5 for a table that is read in blocks, got {share:g}. 0 holds "
            "nothing out."
        )
    if share == 0:
        return None
    above = math.ceil(1.0 / share)
    nearest = min((above, above - 1), key=lambda k: abs(1.0 / k - share) if k > 1 else math.inf)
    every = max(nearest, math.ceil(rows / JUDGES))
    if rows < 2 * every:
        raise InputError(
            f"--test-size: expected at least two rows to judge by, got {rows // every} of {rows}. Change the share, or "
            "hold nothing out with --test-size 0."
        )
    return every


def _fitted(
    estimator: Any,
    table: TableDataset,
    target: Target,
    roles: Roles,
    every: int | None,
    checkpoints: Checkpoints,
    settings: FitSettings,
    processes: Processes,
) -> FitResult:
    begun = time.perf_counter()
    again = settings.refit or every is None
    remarks = checkpoints.remarks(settings.options.model, resume=settings.resume)
    rows = table.rows
    with recorded_warnings(passed_on=False) as warned:
        held_out, model = None, None
        if every is not None:
            learnt, judges = table.split(every)
            rows = learnt.rows
            remarks.append(f"rows {every}, {2 * every}, {3 * every} and so on were held out")
            model = _fit(estimator, learnt, roles, checkpoints.first)
            if processes.first:
                held_out = _judged(model, judges, roles, target, settings.options.seed)
        if again:
            rows, model = table.rows, _fit(estimator, table, roles, checkpoints.last)
    seconds = time.perf_counter() - begun
    return FitResult(
        model, np.arange(rows), held_out, seconds, (*remarks, *warned), refitted=again and every is not None
    )


def _fit(estimator: Any, table: TableDataset, roles: Roles, checkpoint: Path | None) -> Any:
    weights = {} if roles.weight is None else {"sample_weight": roles.weight}
    return fitted_copy(estimator, checkpoint, table, roles.target, **weights)


def _judged(model: Any, table: TableDataset, roles: Roles, target: Target, seed: int) -> HeldOut:
    """Scores of a model on the rows of a table, which are read into memory."""
    names = roles.features(table.names)
    columns = table.read([*names, target.name], slice(None), categorical=roles.categorical)
    *features, labels = (pd.Series(column.values, name=column.name) for column in columns)
    if target.task == "classification":
        labels = pd.Series(labels.to_numpy().astype(model.classes_.dtype), name=target.name)
    return score(model, pd.concat(features, axis=1), labels, seed)


def _described(outcome: FitResult, target: Target, roles: Roles, source: str, settings: FitSettings) -> FittedTable:
    """What the model's file says of the table."""
    model = outcome.estimator
    return replace(
        table_of(source, model),
        target=target.name,
        classes=model.classes_.tolist() if target.task == "classification" else [],
        file=Path(source).name,
        rows=len(outcome.rows),
        dropped=list(roles.drop),
        weight=roles.weight,
        seed=settings.options.seed,
    )
