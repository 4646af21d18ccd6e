"""From a caller's table to the numbers that a linear model sees: encoded and scaled, then mapped to features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator

from bayescope import checks
from bayescope.errors import InputError
from bayescope.estimators.features import feature_names
from bayescope.estimators.frames import FrameReader
from bayescope.memory import require_memory
from bayescope.posterior import InputRows, Missing, Spread
from bayescope.storage import stored
from bayescope.tables.columns import Column, in_order_of
from bayescope.tables.dataset import TableDataset
from bayescope.tables.encoding import CategoricalEncoding, indicators, refuse_far
from bayescope.tables.preprocessing import EncodingName, Preprocessing, Table

# This many rows tell the features' means and scales well enough: no answer depends on where exactly the centre is.
SCALE_ROWS = 10_000
# How far from 0, in standard deviations, the mean of a sample of a centred column may be.
NEAR = 0.05
# One precision for all weights means very different things where the features' scales differ by more than this.
WIDE_SPAN = 10.0
# The inputs are held twice while they are made.
COPIES = 2

Origin: TypeAlias = Literal["as_mapped", "means", "zero"]


@stored("input_map")
@final
@dataclass(frozen=True)
class InputMap:
    """A fitted map from tables to the model's inputs.

    Attributes:
        preprocessing: makes numbers of the columns.
        transformer: a fitted scikit-learn transformer, or ``None``.
        made: the names of all inputs.
        scales: the smallest and largest standard deviation among the model's inputs, constant ones left out.
        centre: what is taken from the model's inputs in the end, shape (D,); ``None`` where they stay unchanged.
        groups: of the columns whose levels have random effects: each level, also "missing" and "unseen", is an input,
            beside those that the other columns make.
        kept: the places among all inputs of those that the model has, in its order; ``None`` where it has all of them
            as they are made. The others' weights are 0.
    """

    preprocessing: Preprocessing
    transformer: Any | None
    made: tuple[str, ...]
    scales: tuple[float, float]
    centre: np.ndarray | None = None
    groups: tuple[CategoricalEncoding, ...] = ()
    kept: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        preprocessing: Preprocessing,
        transformer: Any | None,
        numbers: np.ndarray,
        weights: np.ndarray | None,
        origin: Origin,
        groups: tuple[CategoricalEncoding, ...] = (),
        grouped: Sequence[Column] = (),
    ) -> tuple[InputMap, np.ndarray]:
        """Fits a transformer to the preprocessed numbers of rows, or of some of them, and returns these mapped.

        The mapped numbers do not have their origin yet; the levels of the columns of groups stand beside them.
        """
        if transformer is not None and not numbers.shape[1]:
            raise InputError("features: expected a column beside those in groups=, got none. Leave features= out.")
        mapped = numbers if transformer is None else _dense(transformer.fit(numbers).transform(numbers))
        names = feature_names(transformer, preprocessing.names, mapped.shape[1])
        if transformer is not None:
            _refuse_far(names, mapped)
        stride, features = max(1, mapped.shape[0] // SCALE_ROWS), mapped.shape[1]
        if groups:
            mapped = np.hstack([mapped, indicators(groups, grouped)])
            names = (*names, *(name for each in groups for name in each.level_names))
        some, counts = mapped[::stride], None if weights is None else weights[::stride]
        sds = some.std(axis=0)
        varying = sds[:features][sds[:features] > 0]
        scales = (float(varying.min()), float(varying.max())) if varying.size else (0.0, 0.0)
        centre = None
        if origin == "means":
            centre = _means(some, counts)
            if transformer is None and preprocessing.scaling == "standard" and (np.abs(centre) <= NEAR * sds).all():
                centre = None  # scaling has centred all of them, by the mean of all rows
        elif origin == "zero" and transformer is None and preprocessing.scaling is not None:
            centre = np.append(preprocessing.origin(), np.zeros(mapped.shape[1] - features))
        return cls(preprocessing, transformer, names, scales, centre, groups), mapped

    def __call__(self, table: Table) -> np.ndarray:
        """The model's inputs of a table as it was read, shape (N, D)."""
        return self.mapped(self._numbers(table)[0])

    @property
    def of_features(self) -> int:
        """How many of the model's inputs are made of features; those of groups follow."""
        features = len(self.made) - sum(len(each.levels) for each in self.groups)
        return features if self.kept is None else int((self.kept < features).sum())

    @property
    def names(self) -> tuple[str, ...]:
        """Of the model's inputs."""
        return self.made if self.kept is None else tuple(self.made[place] for place in self.kept)

    @property
    def owners(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The feature that each of all inputs is made of, shape (D,), and the features' names, the groups' last."""
        levels = np.repeat(np.arange(len(self.groups)), [len(each.levels) for each in self.groups])
        if self.transformer is None:
            made, names = self.preprocessing.owners, self.preprocessing.columns
        else:
            names = self.made[: len(self.made) - len(levels)]
            made = np.arange(len(names))
        return np.append(made, len(names) + levels), (*names, *(each.name for each in self.groups))

    def narrowed(self, kept: np.ndarray) -> InputMap:
        """The map to some of all inputs, or to all in another order, by their places."""
        return replace(self, kept=kept, centre=None if self.centre is None else self.centre[kept])

    def _numbers(self, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
        """A table as numbers, the levels of groups last, and which values of its columns have a stand-in."""
        others, grouped = parted(table, [each.name for each in self.groups])
        numbers, lacking = self.preprocessing.read(others)
        if not self.groups:
            return numbers, lacking
        if lacking is not None:
            lacking = np.hstack([lacking, np.zeros((len(lacking), len(self.groups)), dtype=bool)])
        return np.hstack([numbers, indicators(self.groups, grouped)]), lacking

    def read(self, table: Table, *, linear: bool) -> InputRows:
        """The model's inputs of a table as it was read, and what is known of values that rows lack.

        Args:
            table: as it was read.
            linear: whether the model's f is linear in its inputs.

        Raises:
            MemoryBudgetError: if the inputs of this many rows are more than memory holds.
        """
        count = len(table) if isinstance(table, np.ndarray) else len(table[0].values)
        levels = sum(len(each.levels) for each in self.groups)
        require_inputs(count, len(self.preprocessing.names) + levels, {}, "Predict fewer rows at once.")
        numbers, lacking = self._numbers(table)
        values, spread = self.mapped(numbers), self.preprocessing.spread
        if lacking is None or spread is None:
            return InputRows(values)
        rows = np.flatnonzero(lacking.any(1))
        columns = (*self.preprocessing.columns, *(each.name for each in self.groups))
        owners = np.append(self.preprocessing.owners, np.full(levels, len(columns) - 1))  # a level is never lacking
        changes = Spread(owners[: numbers.shape[1]], spread, linear and self.transformer is None)
        return InputRows(values, Missing(rows, lacking[rows], columns, numbers[rows], self.mapped, changes))

    @property
    def units(self) -> np.ndarray:
        """What one unit of each input of the model is in its column's own unit, shape (D,): 1 for mapped features."""
        units = np.ones(len(self.made))
        if self.transformer is None:
            units[: len(self.preprocessing.scales)] = self.preprocessing.scales
        return units if self.kept is None else units[self.kept]

    def mapped(self, numbers: np.ndarray) -> np.ndarray:
        """The model's inputs of numbers that the preprocessing made, shape (N, D)."""
        if self.transformer is not None and not len(numbers):  # which scikit-learn's transformers refuse
            return np.empty((0, len(self.names)))
        if self.transformer is not None:
            made = len(self.preprocessing.names)
            mapped = _dense(self.transformer.transform(numbers[:, :made]))
            numbers = np.hstack([mapped, numbers[:, made:]]) if self.groups else mapped
        return self.centred(numbers if self.kept is None else numbers[:, self.kept])

    def intercept_at_zero(self, weights: np.ndarray, intercepts: np.ndarray) -> np.ndarray:
        """f where inputs are 0 before the centre is taken, shape (C,), for weights (C, D) and intercepts (C,)."""
        return intercepts.copy() if self.centre is None else intercepts - weights @ self.centre

    def centred(self, mapped: np.ndarray, *, fresh: bool = False) -> np.ndarray:
        """The mapped numbers less the centre; in their own memory if that is fresh and so may be written to."""
        return mapped if self.centre is None else np.subtract(mapped, self.centre, out=mapped if fresh else None)

    def notes(self) -> dict[str, str]:
        """What the inputs' units are, for a summary: a prior has units."""
        notes = self.preprocessing.notes()
        if self.transformer is not None:
            # A lattice of centres among the parameters would take longer to print than the model to fit.
            with np.printoptions(threshold=20, edgeitems=2):
                notes["inputs"] = f"{notes.get('inputs', 'labels alone')}, then mapped by {self.transformer}"
        low, high = self.scales
        if low > 0 and high / low > WIDE_SPAN:
            advice = "standardize=True or " if self.preprocessing.scaling is None else ""
            notes["scales"] = (
                f"the inputs' standard deviations span {low:.3g} to {high:.3g}, so that one prior precision for all "
                f"weights holds some back far more than others; consider {advice}one precision for each column"
            )
        return notes


@stored("estimator_table")
@final
@dataclass(frozen=True)
class EstimatorTable:
    """Reads tables for the posterior of an estimator, as the estimator reads them.

    Attributes:
        frames: knows the columns again.
        inputs: makes the model's inputs of them.
        linear: whether the model's f is linear in its inputs.
        estimator: the name of the estimator's class, for messages.
        feature_names: of the columns, where the fitted table had some.
    """

    frames: FrameReader
    inputs: InputMap
    linear: bool
    estimator: str
    feature_names: tuple[str, ...] | None

    @classmethod
    def of(cls, estimator: BaseEstimator, frames: FrameReader, inputs: InputMap, *, linear: bool) -> EstimatorTable:
        """The reader of a fitted estimator."""
        names = getattr(estimator, "feature_names_in_", None)
        return cls(frames, inputs, linear, type(estimator).__name__, None if names is None else tuple(names.tolist()))

    def __call__(self, table: object) -> InputRows:
        """The rows of a table like the one that was fitted.

        Raises:
            ValueError: if the table has more, fewer or other columns, in scikit-learn's words.
            InputError: if it cannot be used; the message names the column.
            InputTypeError: if it is no table, or a column holds what is neither a number nor a label.
        """
        known = type(self.estimator, (BaseEstimator,), {})()  # all that scikit-learn's checks look at
        known.n_features_in_ = len(self.frames.names)
        if self.feature_names is not None:
            known.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return self.inputs.read(self.frames.table(known, table), linear=self.linear)


def parted(table: Table, groups: Sequence[str]) -> tuple[Table, list[Column]]:
    """A table without the columns of groups, which may leave it without any, and these columns."""
    if isinstance(table, np.ndarray) or not groups:
        return table, []
    known = {column.name: column for column in table}
    others = [column for column in table if column.name not in groups]
    grouped = [known[name] for name in groups if name in known]
    if len(grouped) < len(groups):
        in_order_of(groups, grouped)
    return others or np.empty((len(grouped[0].values), 0)), grouped


def require_room(table: Table, encoding: EncodingName, groups: Sequence[str] = ()) -> None:
    """Refuses a table in memory whose inputs memory does not hold, before they are made.

    Raises:
        MemoryBudgetError: if it does not.
    """
    if isinstance(table, np.ndarray):
        require_inputs(len(table), table.shape[1], {})
        return
    labels = {
        each.name: len(pd.unique(each.values))
        for each in table
        if each.kind == "categorical" and (encoding == "one_hot" or each.name in groups)
    }
    require_inputs(len(table[0].values), len(table) + sum(labels.values()), labels)


def require_encoded(
    preprocessing: Preprocessing, table: TableDataset, sampled: int, groups: Sequence[CategoricalEncoding] = ()
) -> None:
    """Refuses a table on disk where the inputs of a block, or of this many rows together, are more than memory holds.

    Raises:
        MemoryBudgetError: if they are.
    """
    one_hot = preprocessing.labels if preprocessing.encoding == "one_hot" else ()
    labels = {each.name: len(each.categories) for each in (*one_hot, *groups)}
    columns = len(preprocessing.names) + sum(len(each.levels) for each in groups)
    require_inputs(min(table.rows, max(table.block_rows, sampled)), columns, labels)


def require_inputs(rows: int, columns: int, labels: Mapping[str, int], advice: str = "") -> None:
    """Refuses this many inputs of this many rows where memory does not hold them, before they are made.

    Args:
        rows: that are there at once.
        columns: of the inputs.
        labels: how many labels each column has that becomes a column of 0 and 1 for each of them.
        advice: what to do; by default about the labels, or the table.

    Raises:
        MemoryBudgetError: if it does not.
    """
    if labels:
        name = max(labels, key=labels.__getitem__)
        advice = advice or (
            f"Column {name!r} alone has {labels[name]:,} labels. Leave it out, put rare labels together, or take "
            "encoding='target', or 'ordinal' for a table on disk."
        )
    of = ", with one for each label," if labels else ""
    require_memory(
        COPIES * 8 * rows * columns,
        f"a table of {columns:,} inputs{of} of {rows:,} rows",
        advice or "Leave out rows or columns, or read the table in blocks: bs.open_table.",
    )


def _refuse_far(names: Sequence[str], mapped: np.ndarray) -> None:
    """Refuses inputs whose squares have no sum, and looks for the largest only where there may be one."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.einsum("nd,nd->", mapped, mapped)
    if not total < checks.FARTHEST**2:
        refuse_far(names, np.fmax(np.fmax.reduce(mapped, 0), -np.fmin.reduce(mapped, 0)))


def _means(mapped: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The columns' means, shape (D,); of a constant column exactly its value, which leaves zeros and no rounding."""
    mean = mapped.mean(axis=0) if weights is None else weights @ mapped / weights.sum()
    low, high = mapped.min(axis=0), mapped.max(axis=0)
    return np.asarray(np.where(low == high, low, mean))


def _dense(table: object) -> np.ndarray:
    dense = table.toarray() if hasattr(table, "toarray") else table
    array = np.asarray(dense, dtype=np.float64)
    if array.ndim != 2:
        raise InputError(f"features: expected a transformer to a table of shape (N, D), got shape {array.shape}.")
    return array
