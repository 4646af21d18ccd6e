"""The rows that a report is about, with their truths, and what the model predicts for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast, final

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from bayescope import checks
from bayescope.comparison.answers import pit_ends
from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators.base import TableEstimator
from bayescope.estimators.exposure import Added
from bayescope.estimators.labels import column_names, numbers_for
from bayescope.likelihoods import Binomial
from bayescope.likelihoods.proportions import TRIALS
from bayescope.predictive import Predictive, by_trials
from bayescope.tables import Column, read_table

# Scores of more rows would say the same with one digit more.
MOST_ROWS = 20_000
# Of rows with trials: each number of trials has integrals of its own.
MOST_TRIALS = 2_000
LEAST_ROWS = 2
# Rows that are predicted at a time.
BLOCK = 2000
WIDE = 0.95


@final
@dataclass(frozen=True, eq=False)
class RowNames:
    """How a reader finds rows in the caller's table.

    Attributes:
        values: of N rows, such as "65", objects of shape (N,).
        noun: what they are: "row", or the name of a column or of an index.
        explained: how they are to be read, such as "rows are counted from 1, below the header".
    """

    values: np.ndarray
    noun: str
    explained: str

    @classmethod
    def of(cls, X: object) -> RowNames:
        """Of a table of any kind: by the index of a pandas frame, else by position."""
        if not isinstance(X, pd.DataFrame):
            shape = np.shape(cast(Any, X)) if not hasattr(X, "shape") else X.shape
            return cls(np.arange(shape[0]).astype(object), "row", "rows are numbered by position, from 0")
        index = X.index
        if isinstance(index, pd.MultiIndex):
            values = np.array([" ".join(map(str, key)) for key in index], dtype=object)
        else:
            values = index.astype(str).to_numpy(dtype=object)
        noun = " ".join(str(name) for name in index.names if name is not None)
        return cls(values, noun or "row", "rows are named by the table's index")

    def taken(self, places: np.ndarray) -> RowNames:
        """The names of some rows."""
        return replace(self, values=self.values[places])

    def of_row(self, row: int) -> str:
        """What one row is called, such as "row 65"."""
        return f"{self.noun} {self.values[row]}"


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """N rows of a table with their truths.

    Attributes:
        X: the N rows, in the caller's own kind of table.
        y: the codes 0…K−1 of the classes, or the numbers of a regression, such as successes, shape (N,).
        row_names: how a reader finds the rows in the caller's table.
        columns: the N rows as named columns.
        every: the columns of all rows that were given.
        every_y: the truths of all of them.
        classes: the names of the K classes; empty for a regression.
        target: what y is called.
        trials: of which y are the successes, shape (N,), or ``None``.
    """

    X: object
    y: np.ndarray
    row_names: RowNames
    columns: tuple[Column, ...]
    every: tuple[Column, ...]
    every_y: np.ndarray
    classes: tuple[str, ...]
    target: str
    trials: np.ndarray | None = None

    @classmethod
    def of(
        cls, estimator: TableEstimator, X: object, y: object, random_state: int, most: int = MOST_ROWS,
        row_names: RowNames | None = None,
    ) -> Judged:  # fmt: skip
        """Checks a table and its truths against the estimator that is to be judged on them.

        Args:
            estimator: fitted.
            X: the table.
            y: a label of the estimator's classes, or a number, for each row; of a binomial outcome the successes and
                the trials.
            random_state: the seed of the random part that is judged if there are too many rows.
            most: rows that are judged.
            row_names: how a reader finds the rows; by default as X calls them.

        Raises:
            InputError: if there is not one truth for each row, one is missing, or it is of no known class.
            UnsupportedError: if a row has several truths.
        """
        known = RowNames.of(X) if row_names is None else row_names
        names = getattr(estimator, "feature_names_in_", None)
        categorical = getattr(estimator, "categorical", None)
        X, features = _parted(estimator, X)
        every = tuple(read_table(features, categorical=categorical, names=None if names is None else list(names)))
        rows = len(every[0].values)
        if rows < LEAST_ROWS:
            raise InputError(f"X: expected at least {LEAST_ROWS} rows to judge, got {rows}.")
        name, trials = getattr(y, "name", None), None  # of a pandas Series
        if np.shape(cast(Any, y))[1:] == (TRIALS,) and _of_trials(estimator):
            name = column_names(y, TRIALS)[0]
            y, trials = numbers_for(Binomial(), y, y, rows).T
            most = min(most, MOST_TRIALS)
        values, classes = _classes(estimator, y) if is_classifier(estimator) else (_numbers(y), ())
        if len(values) != rows:
            raise InputError(f"y: expected one value for each of the {rows} rows of X, got {len(values)}.")
        index = np.arange(rows)
        if rows > most:
            index = np.sort(np.random.default_rng(random_state).choice(rows, most, replace=False))
        judged = X if len(index) == rows else take(X, index)
        columns = tuple(replace(column, values=column.values[index]) for column in every)
        target, trials = "y" if name is None else str(name), None if trials is None else trials[index]
        return cls(judged, values[index], known.taken(index), columns, every, values, classes, target, trials)

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, places: np.ndarray) -> object:
        """Some of the rows, by their places among the N, as a table of the caller's kind."""
        return take(self.X, places)

    def swapped(self, places: np.ndarray, column: int, donors: np.ndarray) -> object:
        """Some of the rows with one column's values taken from other rows, so that each is one that was seen.

        Args:
            places: of the rows, shape (M,).
            column: the position of the column.
            donors: the places of the rows that give its values, shape (M,).
        """
        table, giving = take(self.X, places), take(self.X, donors)
        frame, other = (nw.from_native(part, eager_only=True, pass_through=True) for part in (table, giving))
        if isinstance(frame, nw.DataFrame) and isinstance(other, nw.DataFrame):
            name = frame.columns[column]
            return frame.with_columns(
                nw.new_series(name, other[name].to_list(), other[name].dtype, backend=frame.implementation)
            ).to_native()
        array = np.array(table, copy=True)
        array[:, column] = np.asarray(giving)[:, column]
        return array


def _parted(estimator: TableEstimator, X: object) -> tuple[object, object]:
    """The table with the column of its offset or exposure last, and without it."""
    if estimator._added_by is None:
        return X, X
    features, _ = Added(*estimator._added_by).apart(X, estimator._added_by)
    names = [*nw.from_native(features, eager_only=True).columns, estimator._added_by[1]]  # type: ignore[call-overload]
    return nw.from_native(X, eager_only=True)[names].to_native(), features  # type: ignore[call-overload]


def take(X: object, places: np.ndarray) -> object:
    """Rows of a table of any kind, by their positions."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return frame[places].to_native()
    rows = cast(np.ndarray, X)
    return rows[places] if hasattr(X, "shape") else [rows[place] for place in places]


def _classes(estimator: TableEstimator, y: object) -> tuple[np.ndarray, tuple[str, ...]]:
    labels = _flat(y)
    missing = pd.isna(labels)
    if missing.any():
        raise InputError(f"y: expected a label in every row, got none in row {int(np.argmax(missing))}. Leave it out.")
    codes: np.ndarray = pd.Index(estimator.classes_).get_indexer(pd.Index(labels))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        known = ", ".join(map(repr, np.asarray(estimator.classes_).tolist()))
        raise InputError(
            f"y: expected the classes that were fitted, {known}, got {labels.tolist()[row]!r} in row {row}."
        )
    return codes, tuple(map(str, np.asarray(estimator.classes_).tolist()))


def _of_trials(estimator: TableEstimator) -> bool:
    """Whether the outcome is successes and trials."""
    likelihood = estimator.posterior_.likelihood
    return likelihood is not None and likelihood.unweighted.domain.joined == TRIALS


def _numbers(y: object) -> np.ndarray:
    values: np.ndarray = checks.float64("y", _flat(y)).numpy()
    return values


def _flat(y: object) -> np.ndarray:
    array = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UnsupportedError(
            f"y: expected one label or number per row, got shape {array.shape}. A report is about one target: report "
            "each of several by a model of its own."
        )
    return array


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """What the estimator says of N rows.

    Attributes:
        mean: E[y∣x], for classes their probabilities, shape (N, K).
        epistemic: standard deviations of E(y∣f) under the posterior, shape (N, K).
        aleatoric: standard deviations of the noise, √E Var(y∣f), shape (N, K).
        log_prob: log p(y∣x) of the truths, shape (N,).
        pit_ends: P(y' < y) and P(y' ≤ y) of the truths, shape (N, 2); of classes there are none, shape (N, 0).
        interval: the central 95 % of y, shape (N, 2); of classes (N, 0).
        crps: of the truths, shape (N,); of classes 0.
    """

    mean: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray
    log_prob: np.ndarray
    pit_ends: np.ndarray
    interval: np.ndarray
    crps: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations of y, of both parts together, shape (N, K)."""
        return np.hypot(self.epistemic, self.aleatoric)

    def inside(self, y: np.ndarray) -> np.ndarray:
        """Whether each number lies in its 95 % interval, shape (N,)."""
        held: np.ndarray = (self.interval[:, 0] <= y) & (y <= self.interval[:, 1])
        return held


def predictions(estimator: TableEstimator, judged: Judged, block: int = BLOCK) -> Predictions:
    """Predicts all rows, in blocks that bound the memory.

    Args:
        estimator: fitted.
        judged: the rows.
        block: rows at a time.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    order: list[np.ndarray] = []
    for start in range(0, len(judged), block):
        some = np.arange(start, min(start + block, len(judged)))
        predictive = estimator.predict_distribution(take(judged.X, some))
        trials = None if judged.trials is None else judged.trials[some]
        for rows, each in by_trials(predictive, trials):
            order.append(some[rows])
            parts.append(_said(replace(each, names=()), judged.y[some[rows]], classes=bool(judged.classes)))
    places = np.argsort(np.concatenate(order))
    return Predictions(*(np.concatenate(column)[places] for column in zip(*parts, strict=True)))


def _said(predictive: Predictive, y: np.ndarray, *, classes: bool) -> tuple[np.ndarray, ...]:
    """The arrays of `Predictions`, of rows with their truths."""
    ends, interval, crps = (np.empty((len(y), 0)),) * 2 + (np.zeros(len(y)),)
    if not classes:
        ends, crps = pit_ends(predictive, y), np.asarray(predictive.crps(y))
        interval = np.stack([np.asarray(end)[:, 0] for end in predictive.interval(WIDE, of="outcome")], axis=1)
    sds = np.sqrt(np.asarray(predictive.epistemic)), np.sqrt(np.asarray(predictive.aleatoric))
    return np.asarray(predictive.mean), *sds, np.asarray(predictive.log_prob(y)), ends, interval, crps
