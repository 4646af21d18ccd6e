"""A table on disk that a model is fitted to: files of any length, a block of rows in memory at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.cli.arrow_source import ArrowSource
from bayescope.cli.target import ORDERED, Target, check_domain
from bayescope.cli.training_table import Roles
from bayescope.errors import InputError, UnsupportedError
from bayescope.processes import Processes
from bayescope.tables.column_sums import MOST_VALUES, LabelsSeen, Tally
from bayescope.tables.dataset import TableDataset

# This many rows judge a fit well enough: the standard error of an accuracy is then below 0.002.
JUDGES = 100_000


@final
@dataclass(frozen=True, eq=False)
class StreamedTable:
    """A table on disk that an estimator can be fitted to, as `TrainingTable` is one in memory.

    Attributes:
        source: its name.
        table: the rows that have a target.
        roles: of the columns.
        target: what is predicted, by its different values.
        without_target: how many rows were left out since they have no target.
        notes: remarks on how files of text are read.
        dates: none.
    """

    source: str
    table: TableDataset
    roles: Roles
    target: Target
    without_target: int
    notes: tuple[str, ...] = ()
    dates: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.table.rows

    @property
    def data(self) -> tuple[TableDataset, str, str | None]:
        """The table, and the names of the target and of the weights, as an estimator's fit takes them."""
        return self.table, self.roles.target, self.roles.weight

    def judged(self, model: Any) -> tuple[pd.DataFrame, pd.Series]:
        """The features and the target that a model is scored on, read into memory."""
        names = [name for name in self.table.names if name not in (self.roles.target, self.roles.weight)]
        columns = self.table.read([*names, self.roles.target], slice(None), categorical=self.roles.categorical)
        *features, labels = (pd.Series(column.values, name=column.name) for column in columns)
        if self.target.task == "classification":
            labels = pd.Series(labels.to_numpy().astype(model.classes_.dtype), name=self.target.name)
        return pd.concat(features, axis=1), labels

    def split(self, share: float, _seed: int) -> tuple[StreamedTable, StreamedTable | None, list[str]]:
        """The rows to learn from, every k-th row to judge by if the share is above 0, and a remark on these.

        Raises:
            InputError: as `stride` does.
        """
        every = stride(share, len(self))
        if every is None:
            return self, None, []
        train, test = (replace(self, table=part) for part in self.table.split(every))
        return train, test, [f"rows {every}, {2 * every}, {3 * every} and so on were held out"]

    def digest(self) -> str:
        """Nothing: the rows of a table on disk are not compared with others."""
        return ""


def read_streamed_table(
    source: ArrowSource, roles: Roles, task: str, processes: Processes, likelihood: str | None = None
) -> StreamedTable:
    """Reads the target of a table; each process reads its part.

    Raises:
        InputError: if the table or an option cannot be used.
        UnsupportedError: if there are trials.
    """
    if roles.trials is not None:
        raise UnsupportedError(
            f"--trials: expected none for a table that is read in blocks, got {roles.trials!r}. Add --no-stream, or "
            "give one file."
        )
    roles = roles.within(source)
    extra = [roles.target, *([] if roles.weight is None else [roles.weight])]
    table = source.table([*roles.features(source), *extra])
    name = roles.target
    labels, numbers, gaps = LabelsSeen(name), Tally(), [np.empty(0, dtype=np.int64)]
    row = processes.rank * table.rows // processes.count
    for (column,) in table.blocks([name], part=(processes.rank, processes.count)):
        missing, once = pd.isna(column.values), np.ones(len(column.values))
        if column.kind == "categorical":
            labels.add(replace(column, values=column.values[~missing]), once[~missing])
        else:
            numbers.add(column.values, once)
        if likelihood is not None and (column.kind == "numeric" or likelihood in ORDERED):
            there = np.flatnonzero(~missing)
            check_domain(source, name, column.values[there], row + there, likelihood)
        gaps.append(row + np.flatnonzero(missing))
        row += len(missing)
    parts = zip(*processes.gather((labels, numbers, np.concatenate(gaps))), strict=True)
    every_label, every_number, every_gap = parts
    labels, numbers = reduce(LabelsSeen.joined, every_label), reduce(Tally.joined, every_number)
    gone = np.concatenate(every_gap)
    if len(gone) == table.rows:
        raise InputError(
            f"{source.name}: column {name!r}: expected a target in some rows, got none in {table.rows} rows. "
            "Name another --target."
        )
    target = _target(source, labels, numbers, task)
    return StreamedTable(source.name, table.without(gone), roles, target, len(gone), source.notes)


def stride(share: float, rows: int) -> int | None:
    """Every how-manieth row is held out: nearest to the share, and no more than judge a fit; ``None`` for none.

    Raises:
        InputError: if the share is below 0 or above 0.5, or fewer than two rows are held out.
    """
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


def _target(source: ArrowSource, labels: LabelsSeen, numbers: Tally, task: str) -> Target:
    """The target by its different values."""
    name, values = labels.name, numbers.values
    if labels.tally:
        return Target.of(source, name, np.array(list(labels.tally), dtype=object), "categorical", np.zeros(1), task)
    if values is None and task != "classification":
        return Target(name, np.empty(0), "regression", f"{name} has more than {MOST_VALUES:,} different numbers")
    few = np.arange(MOST_VALUES + 1.0) if values is None else values
    return Target.of(source, name, few, "numeric", np.zeros(1), task, None if values is None else numbers.counts)
