"""The table that a model is fitted to: its features by kind, its target, its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from bayescope.cli.header import LISTED, find, hint, listed, split_names
from bayescope.cli.source import Source, all_blocks, place_of
from bayescope.cli.target import ORDERED, Target, check_domain, check_trials
from bayescope.errors import InputError
from bayescope.tables.columns import Kind
from bayescope.tables.suspicion import LABELS, SHARE, hardly_recur, is_number, mostly_numbers
from bayescope_command.app import CompareOptions, FitOptions

DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}([T ].*)?|\d{1,2}:\d{2}(:\d{2}.*)?")
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")

# Rows of a class, so that one can be held out and one learnt from; and of the rows of a regression.
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
        cls, options: FitOptions | CompareOptions, weight: str | None = None, added: tuple[str, str] | None = None
    ) -> Roles:
        """The roles that the options of a command name."""
        trials: str | None = getattr(options, "trials", None)
        return cls(options.target or "", options.drop or (), options.categorical or (), weight, added, trials)

    def within(self, source: Source) -> Roles:
        """The roles with names that are columns.

        Raises:
            InputError: if one is none, or has two roles that exclude each other.
        """
        header, name = source.header, source.name
        if self.target not in header:
            raise InputError(f"{name}: expected a target column {self.target!r}, but {hint(self.target, header)}")
        drop, categorical = split_names(self.drop, header), split_names(self.categorical, header)
        for option, names in (("--drop", drop), ("--categorical", categorical)):
            for wanted in names:
                find(option, name, wanted, header)
        for option, column in (("--weight", self.weight), ("--trials", self.trials)):
            if column is not None:
                find(option, name, column, header)
        if self.added is not None:
            find(f"--{self.added[0]}", name, self.added[1], header)
        _refuse_overlap(self, drop, categorical)
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
        """What tells these rows from others, whatever their order."""
        frame = self.features.assign(**{"": self.target.values})
        return f"{int(pd.util.hash_pandas_object(frame, index=False).to_numpy().sum()):016x}"


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
        InputError: if the table cannot be used; the message names line or column, what was expected and what was got.
    """
    roles = roles.within(source)
    names = roles.features(source)
    columns, kinds = _read(source, roles, names)
    known = ~pd.isna(columns[roles.target])
    rows = len(known)
    if not known.any():
        raise InputError(
            f"{source.name}: column {roles.target!r}: expected a target in some rows, got none in {rows} rows. Name "
            "another --target."
        )
    places = np.flatnonzero(known)
    columns = {name: values[places] for name, values in columns.items()}
    weights = None if roles.weight is None else _weights(source, roles.weight, columns[roles.weight], places)
    trials = None if roles.trials is None else columns[roles.trials]
    if trials is not None:
        check_trials(source.name, str(roles.trials), trials, lambda row: place_of(source, int(places[row])))
    target = Target.of(source, roles.target, columns[roles.target], kinds[roles.target], places, task)
    if likelihood is not None and (target.task == "regression" or likelihood in ORDERED):
        check_domain(source, target.name, target.values, places, likelihood, trials)
    for name in names:
        _check_feature(source, name, columns[name], kinds[name], places, named=name in roles.categorical)
    return TrainingTable(
        source=source.name,
        roles=roles,
        features=pd.DataFrame(
            {  # pandas would make text of objects
                name: columns[name] if kinds[name] == "numeric" else pd.Series(columns[name], dtype=object)
                for name in names
            }
        ),
        kinds={name: kinds[name] for name in names},
        target=target,
        places=places,
        weights=weights,
        trials=trials,
        without_target=rows - len(places),
        notes=source.notes,
    )


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


def _read(source: Source, roles: Roles, names: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, Kind]]:
    """All columns that have a role, in full, and their kinds."""
    numbers = [name for name in (roles.weight, roles.trials) if name is not None]
    wanted = [*names, roles.target, *numbers]
    inferred = source.kinds([name for name in wanted if name not in roles.categorical])
    kinds: dict[str, Kind] = {name: inferred.get(name, "categorical") for name in wanted}
    kinds.update(dict.fromkeys([*numbers, *(roles.added or ())[1:]], "numeric"))
    return read_columns(source, kinds), kinds


def read_columns(source: Source, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
    """All rows of some columns: numbers as float64, labels as objects.

    Raises:
        InputError: if there are no rows, or the table cannot be read.
    """
    parts = [block.read(kinds) for block in all_blocks(source, list(kinds))]
    if not parts:
        raise InputError(f"{source.name}: expected rows below the header, got none. Give a table with data.")
    return {name: np.concatenate([part[name] for part in parts]) for name in kinds}


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
                f"got {got}. Mend the cell, or drop the row."
            )
    if not (weights > 0).any():
        raise InputError(f"{source.name}: column {name!r}: expected some weights above 0, got none. Mend the column.")
    return weights


def _check_feature(
    source: Source, name: str, values: np.ndarray, kind: Kind, places: np.ndarray, *, named: bool
) -> None:
    """Refuses columns that are there by mistake; those that the caller named as labels are meant."""
    where, present = f"{source.name}: column {name!r}", values[~pd.isna(values)]
    if len(present) == 0:
        raise InputError(f"{where}: expected values, got none in {len(values)} rows. Leave it out: --drop {name}.")
    if kind == "numeric" or named:
        return
    found = pd.unique(present)
    dates = [label for label in found if DATE.fullmatch(label)]
    if len(dates) >= SHARE * len(found):
        raise InputError(
            f"{where}: expected numbers or labels, got dates such as {dates[0]!r} in "
            f"{_place(source, values, dates[0], places)}. Turn it into numbers, such as days since a date, or leave it "
            f"out: --drop {name}."
        )
    words = [label for label in found if not is_number(label)]
    if words and mostly_numbers(found):
        raise InputError(
            f"{where}: expected numbers, got {words[0]!r} in {_place(source, values, words[0], places)} ({len(words)} "
            f"of {len(found)} different cells are no numbers). Mend it; if it stands for a missing value: --missing "
            f"{words[0]!r}; if all are labels: --categorical {name}."
        )
    commas = [label for label in found if DECIMAL_COMMA.fullmatch(label)]
    if len(found) >= LABELS and len(commas) >= SHARE * len(found):
        raise InputError(
            f"{where}: expected numbers with a decimal point, got {commas[0]!r} in "
            f"{_place(source, values, commas[0], places)}. Write 1.5 in the place of 1,5."
        )
    if hardly_recur(len(found), len(present)):
        raise InputError(
            f"{where}: expected labels that recur, got {len(found)} different ones in {len(present)} rows, such as "
            f"{listed(found[:LISTED])}. Leave it out: --drop {name}; or keep it with --categorical {name}."
        )


def _place(source: Source, values: np.ndarray, label: str, places: np.ndarray) -> str:
    return place_of(source, int(places[int(np.argmax(values == label))]))
