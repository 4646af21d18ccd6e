"""The table that a model is fitted to: its features by kind, its target, its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from bayescope.cli.dates import Dates, dated, learnt_dates
from bayescope.cli.findings import Finding, feature_problem
from bayescope.cli.header import find, hint, of_column, split_names
from bayescope.cli.opening import open_source
from bayescope.cli.problems import ColumnProblem, collected, refuse
from bayescope.cli.source import Block, Source, all_blocks, place_of
from bayescope.cli.target import ORDERED, Target, check_domain, check_trials
from bayescope.cli.text_format import TextFormat
from bayescope.errors import InputError
from bayescope.tables.columns import Kind
from bayescope_command.app import TrainingOptions

# Least rows of each class, and of a regression: one to learn from and one to hold out.
LEAST = 2


@final
@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for, by their names.

    Attributes:
        target: the column to predict.
        drop: columns to leave out.
        categorical: columns of numbers that are labels.
        weight: the column with each row's weight, if there is one.
        added: "offset" or "exposure" and its column, which predictions need too.
        trials: the column with the trials of which the target is the successes, if there is one.
    """

    target: str
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    weight: str | None = None
    added: tuple[str, str] | None = None
    trials: str | None = None

    @classmethod
    def of(
        cls,
        options: TrainingOptions,
        target: str,
        weight: str | None = None,
        added: tuple[str, str] | None = None,
        trials: str | None = None,
    ) -> Roles:
        """The roles that the options of a command name, and others."""
        return cls(target, options.drop or (), options.categorical or (), weight, added, trials)

    def within(self, source: Source) -> Roles:
        """The roles with names that are columns.

        Raises:
            InputError: if a name is not a column, or a column has two roles that exclude each other.
        """
        header, name, problems = source.header, source.name, list[str]()
        if self.target not in header:
            problems.append(f"{name}: expected a target column {self.target!r}, but {hint(self.target, header)}")
        drop, categorical = split_names(self.drop, header), split_names(self.categorical, header)
        asked = [("--drop", each) for each in drop] + [("--categorical", each) for each in categorical]
        others = [("--weight", self.weight), ("--trials", self.trials)]
        others += [] if self.added is None else [(f"--{self.added[0]}", self.added[1])]
        for option, column in asked + [(option, each) for option, each in others if each is not None]:
            with collected(problems):
                find(option, name, column, header)
        with collected(problems):
            _refuse_overlap(self, drop, categorical)
        refuse(problems)
        return replace(self, drop=drop, categorical=categorical)

    def features(self, source: Source) -> list[str]:
        """The columns left to predict from, an offset or an exposure last.

        Raises:
            InputError: if there are none.
        """
        others = [] if self.added is None else [self.added[1]]
        used = {self.target, self.weight, self.trials, *self.drop, *others}
        names = [name for name in source.header if name not in used]
        if not names:
            raise InputError(
                f"{source.name}: expected features beside the target, got none. Add columns, or drop fewer."
            )
        return [*names, *others]


@final
@dataclass(frozen=True, eq=False)
class TrainingTable:
    """A table in memory that an estimator can be fitted to.

    Attributes:
        source: its name.
        roles: of the columns.
        features: numbers as float64, labels as text objects.
        kinds: of the features.
        target: what is predicted.
        places: where the rows stand in the source, counted from 0, shape (N,).
        weights: how often each row counts, shape (N,), or ``None`` for once.
        trials: of which the target is the successes, shape (N,), or ``None``.
        without_target: how many rows were left out since they have no target.
        notes: remarks on how the table was read.
        dates: of columns of dates the format and the parts that became features.
    """

    source: str
    roles: Roles
    features: pd.DataFrame
    kinds: dict[str, Kind]
    target: Target
    places: np.ndarray
    weights: np.ndarray | None = None
    trials: np.ndarray | None = None
    without_target: int = 0
    notes: tuple[str, ...] = ()
    dates: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def outcome(self) -> pd.Series | pd.DataFrame:
        """The target as estimators take it: successes beside their trials where there are some."""
        successes = self.target.series()
        return (
            successes
            if self.trials is None
            else pd.DataFrame({self.target.name: successes, self.roles.trials: self.trials})
        )

    @property
    def data(self) -> tuple[pd.DataFrame, pd.Series | pd.DataFrame, np.ndarray | None]:
        """The features, the target and the weights, as an estimator's fit takes them."""
        return self.features, self.outcome, self.weights

    def judged(self, _model: object) -> tuple[pd.DataFrame, pd.Series | pd.DataFrame]:
        """The features and the target that a model is scored on."""
        return self.features, self.outcome

    def taken(self, rows: np.ndarray) -> TrainingTable:
        """The rows at some positions."""
        target = replace(self.target, values=self.target.values[rows])
        weights, trials = (None if each is None else each[rows] for each in (self.weights, self.trials))
        features, places = self.features.iloc[rows], self.places[rows]
        return replace(self, features=features, target=target, places=places, weights=weights, trials=trials)

    def split(self, share: float, seed: int) -> tuple[TrainingTable, TrainingTable | None, list[str]]:
        """The rows to learn from, those to judge by if the share is above 0, and no remarks.

        Raises:
            InputError: as `held_out_rows` does.
        """
        train, test = held_out_rows(self.target, share, seed)
        return self.taken(train), self.taken(test) if len(test) else None, []

    def digest(self) -> str:
        """A fingerprint of the rows, the same in every order."""
        frame = self.features.assign(**{"": self.target.values})
        return f"{int(pd.util.hash_pandas_object(frame, index=False).to_numpy().sum()):016x}"


@final
@dataclass(eq=False)
class Examined:
    """A table as it was read, with all that is wrong with it.

    Attributes:
        roles: of the columns, by names that there are.
        rows: how many the table has.
        places: where the rows with a target stand in the table.
        columns: of these rows, so far as they can be read.
        kinds: of the columns.
        target: what is predicted, if it can be.
        weights: how often each row counts, if that is said.
        problems: all that keeps the table from being fitted.
    """

    roles: Roles
    rows: int
    places: np.ndarray
    columns: dict[str, np.ndarray]
    kinds: dict[str, Kind]
    target: Target | None = None
    weights: np.ndarray | None = None
    problems: list[Finding] = field(default_factory=list)

    def add(self, source: Source, problems: Sequence[str]) -> None:
        """Adds complaints, which name the table."""
        self.problems += [
            Finding(each.removeprefix(f"{source.name}: "), refused=True) for each in dict.fromkeys(problems)
        ]


def opened_table(path: Path, options: TrainingOptions) -> tuple[Source, Dates]:
    """Opens a table to learn from, with the parts of its dates in their place, and says how these are written.

    Raises:
        InputError: if it cannot be read, or an option names no column of it.
    """
    given = options.missing or []
    source = open_source(path, missing=given, again=True, form=TextFormat.of(options))
    for text in given:
        name, sign, _ = text.rpartition("=")
        if sign and name and of_column(text, source.header) is None:
            find("--missing", source.name, name, source.header)
    dates = learnt_dates(source, options.dates or ())
    return dated(source, dates), dates


def read_training_table(
    source: Source, roles: Roles, *, task: str = "auto", likelihood: str | None = None
) -> TrainingTable:
    """Reads a table, finds out what its columns hold, and checks them.

    Args:
        source: to be read more than once.
        roles: of the columns.
        task: "classification", "regression", or "auto" by what the target holds.
        likelihood: of the numbers of a regression, whose domain they have to be in.

    Raises:
        InputError: if the table cannot be used; its messages, one for each problem, name line or column, what was
            expected and what was got.
    """
    found = examine(source, roles, task=task, likelihood=likelihood)
    refuse([f"{source.name}: {problem.text}" for problem in found.problems])
    assert found.target is not None
    roles, kinds = found.roles, found.kinds
    names = roles.features(source)
    return TrainingTable(
        source=source.name,
        roles=roles,
        features=pd.DataFrame(
            {  # pandas would make text of objects
                name: found.columns[name] if kinds[name] == "numeric" else pd.Series(found.columns[name], dtype=object)
                for name in names
            }
        ),
        kinds={name: kinds[name] for name in names},
        target=found.target,
        places=found.places,
        weights=found.weights,
        trials=None if roles.trials is None else found.columns[roles.trials],
        without_target=found.rows - len(found.places),
        notes=source.notes,
    )


def examine(source: Source, roles: Roles, *, task: str = "auto", likelihood: str | None = None) -> Examined:
    """Reads a table, and finds all that keeps it from being fitted.

    Args:
        source: to be read more than once.
        roles: of the columns.
        task: as for `read_training_table`.
        likelihood: as for `read_training_table`.

    Raises:
        InputError: if the table cannot be read at all, or a role names no column.
    """
    roles = roles.within(source)
    names = roles.features(source)
    columns, kinds, problems, untyped = _read(source, roles, names)
    rows = max(map(len, columns.values()), default=0)
    known = ~pd.isna(columns[roles.target]) if roles.target in columns else np.ones(rows, dtype=bool)
    if rows and not known.any():
        problems.append(
            f"{source.name}: column {roles.target!r}: expected a target in some rows, got none in {rows} rows. Name "
            "another --target."
        )
        known = np.ones(rows, dtype=bool)
        del columns[roles.target]
    places = np.flatnonzero(known)
    columns = {name: values[places] for name, values in columns.items()}
    found = Examined(roles, rows, places, columns, kinds)
    if roles.weight in columns:
        with collected(problems):
            found.weights = _weights(source, str(roles.weight), columns[str(roles.weight)], places)
    with collected(problems):
        found.target = _target(source, found, task, likelihood)
    found.add(source, problems)
    found.problems += untyped
    for name in [name for name in names if name in columns]:
        problem = feature_problem(source, name, columns[name], kinds[name], places, named=name in roles.categorical)
        found.problems += [] if problem is None else [replace(problem, about=name)]
    return found


def _target(source: Source, found: Examined, task: str, likelihood: str | None) -> Target | None:
    """The target with its trials, checked, so far as they were read."""
    roles, columns, places = found.roles, found.columns, found.places
    trials = None if roles.trials is None else columns.get(roles.trials)
    if trials is not None:
        check_trials(source.name, str(roles.trials), trials, lambda row: place_of(source, int(places[row])))
    if roles.target not in columns:
        return None
    target = Target.of(source, roles.target, columns[roles.target], found.kinds[roles.target], places, task)
    if likelihood is not None and (target.task == "regression" or likelihood in ORDERED):
        check_domain(source, target.name, target.values, places, likelihood, trials)
    return target


def held_out_rows(target: Target, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws the rows that are held out; of classes in proportion.

    Args:
        target: of all rows.
        share: how many of them, from 0 to below 1.
        seed: of the draw: the same rows at every call.

    Returns:
        The positions of the rows to learn from and of those to judge by, ascending.

    Raises:
        InputError: if the share is none, or too few rows are left on either side.
    """
    rows = len(target.values)
    every = np.arange(rows)
    if not 0 <= share < 1:
        raise InputError(f"--test-size: expected a number from 0 to below 1, got {share:g}. 0 holds nothing out.")
    if share == 0:
        return every, every[:0]
    labels = target.values if target.task == "classification" else None
    if labels is not None:
        classes, counts = np.unique(labels, return_counts=True)
        _check_sides(rows, share, len(classes))
        if counts.min() < LEAST:
            raise InputError(
                f"--test-size: expected at least {LEAST} rows of each class, one to learn from and one to judge by, "
                f"got {counts.min()} of {classes[counts.argmin()]}. Hold nothing out with --test-size 0, or merge "
                "classes."
            )
    else:
        _check_sides(rows, share, LEAST)
    train, test = train_test_split(every, test_size=share, stratify=labels, random_state=seed)
    return np.sort(train), np.sort(test)


def _check_sides(rows: int, share: float, least: int) -> None:
    tested = int(np.ceil(share * rows))
    if min(tested, rows - tested) < least:
        raise InputError(
            f"--test-size: expected at least {least} rows on either side, got {tested} of {rows} to judge by. Change "
            "the share, or hold nothing out with --test-size 0."
        )


def _read(
    source: Source, roles: Roles, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, Kind], list[str], list[Finding]]:
    """The columns that have a role, in full, their kinds, what keeps others from being read, and those of no kind."""
    numbers = [name for name in (roles.weight, roles.trials) if name is not None]
    wanted = [*names, roles.target, *numbers]
    inferred, untyped = _kinds(source, [name for name in wanted if name not in roles.categorical], set(names))
    known = [name for name in wanted if name in inferred or name in roles.categorical]
    kinds: dict[str, Kind] = {name: inferred.get(name, "categorical") for name in known}
    kinds.update(dict.fromkeys([*numbers, *(roles.added or ())[1:]], "numeric"))
    columns, problems = readable_columns(source, kinds)
    return columns, kinds, problems, untyped


def _kinds(source: Source, names: Sequence[str], features: Collection[str]) -> tuple[dict[str, Kind], list[Finding]]:
    """The kinds of columns, and those of a type that is neither, with the option that helps a feature."""
    try:
        return source.kinds(names), []
    except ColumnProblem:
        found: dict[str, Kind] = {}
        problems = []
        for name in names:
            try:
                found |= source.kinds([name])
            except ColumnProblem as problem:
                text, helps = str(problem).removeprefix(f"{source.name}: "), name in features
                option, values = (problem.option, (name,)) if helps else ("", ())
                problems.append(Finding(text, option, values, refused=True, suggested=helps, about=name))
        return found, problems


def read_columns(source: Source, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
    """All rows of some columns: numbers as float64, labels as objects.

    Raises:
        InputError: if there are no rows, or the table cannot be read; of each column the first cell that cannot.
    """
    columns, problems = readable_columns(source, kinds)
    refuse(problems)
    return columns


def readable_columns(source: Source, kinds: Mapping[str, Kind]) -> tuple[dict[str, np.ndarray], list[str]]:
    """All rows of the columns that can be read, and for each other column the first cell that cannot.

    Raises:
        InputError: if there are no rows, or the table as a whole cannot be read.
    """
    parts, left, problems = [], dict(kinds), list[str]()
    for block in all_blocks(source, list(kinds)):
        part, strange = readable(block, left)
        left = {name: kind for name, kind in left.items() if name not in strange}
        problems += strange.values()
        parts.append(part)
    if not parts:
        raise InputError(f"{source.name}: expected rows below the header, got none. Give a table with data.")
    return {name: np.concatenate([part[name] for part in parts]) for name in left}, problems


def read_block(block: Block, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
    """The columns of a block.

    Raises:
        InputError: of each column that cannot be read the first cell.
    """
    columns, problems = readable(block, kinds)
    refuse([*problems.values()])
    return columns


def readable(block: Block, kinds: Mapping[str, Kind]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The columns of a block that can be read, and what keeps each other one from it."""
    try:
        return block.read(kinds), {}
    except InputError:
        columns: dict[str, np.ndarray] = {}
        strange: dict[str, str] = {}
        for name, kind in kinds.items():
            try:
                columns |= block.read({name: kind})
            except InputError as error:
                strange[name] = str(error)
        if not strange:
            raise
        return columns, strange


def _refuse_overlap(given: Roles, drop: Sequence[str], categorical: Sequence[str]) -> None:
    roles = [("--target", [given.target])]
    roles += [(f"--{role}", [name]) for role in ("weight", "trials") if (name := getattr(given, role)) is not None]
    roles += [] if given.added is None else [(f"--{given.added[0]}", [given.added[1]])]
    roles.append(("--drop", list(drop)))
    for place, (option, names) in enumerate(roles):
        for other, others in [*roles[place + 1 :], *([("--categorical", categorical)] if option != "--target" else [])]:
            both = [name for name in names if name in others]
            if both:
                raise InputError(
                    f"{other}: expected a column with no other role, got {both[0]!r}, which {option} names too. "
                    "Name it once."
                )


def _weights(source: Source, name: str, weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    for strange, got in ((np.isnan(weights), "no value"), (weights < 0, "a negative one")):
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{source.name}: {place_of(source, places[row])}, column {name!r}: expected a weight of at least 0, "
                f"got {got}. Correct the cell, or drop the row."
            )
    if not (weights > 0).any():
        raise InputError(
            f"{source.name}: column {name!r}: expected some weights above 0, got none. Correct the column."
        )
    return weights
