"""Columns as what a model takes: a number, or the index of a level, for each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import pandas as pd

from bayescope import checks
from bayescope.errors import InputError, InputTypeError, OptionError, UnsupportedError
from bayescope.progress import PATIENCE_SECONDS, progress_bar
from bayescope.storage import stored
from bayescope.tables.columns import Column, Kind, in_order_of, values_of_kind
from bayescope.tables.scaling import SCALINGS, Scaling

Transform = Literal["standard", "quantile"]

# A value counts by its number; it has no level.
NO_LEVEL = -1
BINS = 30
# The largest number that a model is given: its square is still far inside float32.
LARGEST = 1e15
# The mean of a label counts this many rows of the overall mean beside its own.
PRIOR_ROWS = 10.0
# Each row is encoded by the targets of the other parts.
FOLDS = 5
# So many labels that never recur tell rows apart, and are no groups of them.
ENOUGH = 30
# Numbers as close as this are one, for a picture.
TINY = 1e-300


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as a model takes it: each value is a number or a level.

    Attributes:
        values: shape (N, D), float64; 0 where there is no number.
        levels: shape (N, D), int64: indices into the feature's ``levels``; −1 where the number counts.
    """

    values: np.ndarray
    levels: np.ndarray


@stored("numeric_encoding")
@final
@dataclass(frozen=True, eq=False)
class NumericEncoding:
    """A column of numbers, scaled, whose missing values are a level of their own.

    Attributes:
        name: of the column.
        transform: "standard" or "quantile".
        scaling: from the column's unit to the model's numbers.
        minimum: the smallest number seen, in the column's unit; NaN where there was none.
        maximum: the largest.
        missing: how many values were missing; like all counts by weight, where the rows had weights.
        edges: of 30 bins of equal width from the minimum to the maximum, shape (31,).
        counts: how many numbers fell into each, shape (30,).
        levels: ("missing",).
    """

    kind: ClassVar[Literal["numeric"]] = "numeric"
    levels: ClassVar[tuple[str, ...]] = ("missing",)

    name: str
    transform: Transform
    scaling: Scaling
    minimum: float
    maximum: float
    missing: float
    edges: np.ndarray
    counts: np.ndarray

    @classmethod
    def fit(
        cls, column: Column, transform: Transform = "standard", weights: np.ndarray | None = None
    ) -> NumericEncoding:
        """Learns the scale of a numeric column.

        Args:
            column: of numbers.
            transform: "standard" or "quantile".
            weights: how often each value counts, shape (N,), also in all that is counted; once by default.

        Raises:
            InputError: if the numbers are so large that their squares are no floats.
        """
        absent = np.isnan(column.values)
        seen = column.values[~absent] if absent.any() else column.values
        low, high = (float(seen.min()), float(seen.max())) if seen.size else (np.nan, np.nan)
        refuse_far([column.name], np.array([max(-low, high)]))
        counted = None if weights is None else weights[~absent]
        edges, counts = binned(seen, low, high, counted)
        scaling = SCALINGS[transform].fit(seen, counted)
        missing = int(absent.sum()) if weights is None else float(weights[absent].sum())
        return cls(column.name, transform, scaling, low, high, missing, edges, counts)

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and levels of a column's values.

        Args:
            values: in the column's unit, NaN where missing, shape (N,).

        Returns:
            The model's numbers, 0 where missing, and the levels: 0 where missing, else −1; both of shape (N,).

        Raises:
            InputError: if a number lies so far out that a model could not compute with it.
        """
        missing = np.isnan(values)
        numbers = self.forward(values)
        numbers[missing] = 0.0
        return numbers, np.where(missing, 0, NO_LEVEL)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The model's numbers of numbers in the column's unit, shape for shape; NaN stays NaN.

        Raises:
            InputError: if one lies so far out that a model could not compute with it.
        """
        with np.errstate(over="ignore"):
            numbers = self.scaling.forward(x)
        far = np.abs(numbers) > LARGEST
        if far.any():
            raise InputError(
                f"column {self.name!r}: expected numbers near those seen, {self.minimum:.6g} to {self.maximum:.6g}, "
                f"got {x[far][0]:.6g}, too far out to compute with. Check its unit, or put NaN where it stands for a "
                "missing value."
            )
        return numbers

    def grid(self, n: int) -> np.ndarray:
        """n numbers in the column's unit, evenly from the smallest to the largest seen; none where none was seen."""
        return np.linspace(self.minimum, self.maximum, n) if self.counts.any() else np.empty(0)

    @property
    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges, shape (31,), and counts, shape (30,), of the numbers seen, in the column's unit."""
        return self.edges, self.counts


@stored("categorical_encoding")
@final
@dataclass(frozen=True, eq=False)
class CategoricalEncoding:
    """A column of labels, each a level; so are a missing value and a label that was not seen.

    Labels compare by value: 1, 1.0 and ``True`` are one label, "1" is another.

    Attributes:
        name: of the column.
        categories: the labels: as the table declares them, else sorted, else in order of appearance.
        counts: how often each was seen, shape (C,).
        missing: how many values were missing.
        levels: the categories, then "missing" and "unseen", which a model has whether they were seen or not.
    """

    kind: ClassVar[Literal["categorical"]] = "categorical"

    name: str
    categories: tuple[object, ...]
    counts: np.ndarray
    missing: float

    @classmethod
    def fit(cls, column: Column, weights: np.ndarray | None = None) -> CategoricalEncoding:
        """Learns the categories of a column of labels.

        Args:
            column: of labels.
            weights: how often each value counts, shape (N,); once by default.
        """
        return cls.of(column.name, tally_of(column.values, weights), column.categories)

    @classmethod
    def of(
        cls, name: str, tally: Mapping[object, float], declared: tuple[object, ...] | None = None
    ) -> CategoricalEncoding:
        """From how often each label was seen.

        Args:
            name: of the column.
            tally: the labels, ``None`` where missing.
            declared: the labels in their order, where the table has one.
        """
        labels = {label: count for label, count in tally.items() if label is not None}
        categories = _sorted(labels) if declared is None else declared
        return cls(name, categories, np.array([labels.get(label, 0) for label in categories]), tally.get(None, 0))

    @property
    def levels(self) -> tuple[object, ...]:
        """What the level indices stand for, shape (C + 2,)."""
        return (*self.categories, "missing", "unseen")

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels with the column's name: "site=a", …, "site missing", "site unseen"."""
        labels = (f"{self.name}={label}" for label in self.categories)
        return (*labels, f"{self.name} missing", f"{self.name} unseen")

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers, all 0, and levels of a column's labels.

        Args:
            values: labels as objects, ``None`` where missing, shape (N,).

        Returns:
            Zeros and level indices, both of shape (N,).

        Raises:
            InputTypeError: if there is a number where the labels are text, or text where none is.
        """
        unseen = len(self.categories) + 1
        index = {label: level for level, label in enumerate(self.categories)} | {None: unseen - 1}
        levels = np.fromiter((index.get(label, unseen) for label in values.tolist()), dtype=np.int64, count=len(values))
        self._refuse_other_type(values[levels == unseen])
        return np.zeros(len(values)), levels

    def _refuse_other_type(self, unseen: np.ndarray) -> None:
        """Labels of another type would all be unseen, which is hardly what was meant."""
        texts = {isinstance(label, str) for label in self.categories}
        stranger = next((label for label in unseen if texts == {not isinstance(label, str)}), None)
        if stranger is not None:
            raise InputTypeError(
                f"column {self.name!r}: expected labels such as {self.categories[0]!r}, got {stranger!r} "
                f"({type(stranger).__name__}). Give it the type that it had when it was fitted."
            )


def indicators(encodings: Sequence[CategoricalEncoding], columns: Sequence[Column]) -> np.ndarray:
    """A column of 0 and 1 for each level of columns of labels, also for "missing" and "unseen", shape (N, L)."""
    coded = [
        each.encode(values_of_kind(column, "categorical"))[1][:, None] == np.arange(len(each.levels))
        for each, column in zip(encodings, columns, strict=True)
    ]
    return np.hstack(coded).astype(np.float64)


def refuse_groups(encoding: CategoricalEncoding, rows: int) -> None:
    """Refuses the levels of a column of a table of so many rows where no random effects of them can be learnt.

    Raises:
        InputError: if there is one level, or each row has another one.
    """
    levels = int((encoding.counts > 0).sum()) + (encoding.missing > 0)
    if levels < 2:
        raise InputError(
            f"groups: expected a column of at least two different labels, got {levels} in column {encoding.name!r}. "
            "Leave it out of groups=."
        )
    if levels >= ENOUGH and levels >= rows:
        raise InputError(
            f"groups: expected labels that recur, got {levels:,} different ones in the {rows:,} rows of column "
            f"{encoding.name!r}. Leave it out of groups=: numbers that measure something are features."
        )


Feature = NumericEncoding | CategoricalEncoding


@stored("table_encoding")
@final
@dataclass(frozen=True, eq=False)
class TableEncoding:
    """What was learnt from a table to encode others like it.

    Attributes:
        features: one for each column, in order.
    """

    features: tuple[Feature, ...]

    @classmethod
    def fit(
        cls,
        columns: Sequence[Column],
        *,
        numeric_transform: Transform | Mapping[str, Transform] = "standard",
        weights: np.ndarray | None = None,
        progress: bool = True,
    ) -> TableEncoding:
        """Learns scales and categories.

        Args:
            columns: of a table of at least one row.
            numeric_transform: "standard", less the mean and divided by the standard deviation; "quantile",
                their normal scores; or one of these for each column named, "standard" for the others.
            weights: how often each row counts, shape (N,); once by default.
            progress: whether to draw a bar if it takes long.

        Raises:
            InputError: if there are no rows, or a column's numbers are too large to standardise.
            OptionError: if a transform or a named column is unknown.
            UnsupportedError: if a transform is asked for labels.
        """
        rows = len(columns[0].values)
        if rows == 0:
            raise InputError(
                f"X: Found array with 0 sample(s) (shape=(0, {len(columns)})) while a minimum of 1 is required."
            )
        transforms = transforms_of({column.name: column.kind for column in columns}, numeric_transform)
        features: list[Feature] = []
        with progress_bar("encoding", visible=progress, patience=PATIENCE_SECONDS) as report:
            for column in columns:
                report(len(features), len(columns), column.name)
                features.append(
                    NumericEncoding.fit(column, transforms[column.name], weights)
                    if column.kind == "numeric"
                    else CategoricalEncoding.fit(column, weights)
                )
        return cls(tuple(features))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, in order."""
        return tuple(feature.name for feature in self.features)

    def encode(self, columns: Sequence[Column]) -> Encoded:
        """Encodes a table of the same columns, found by their names.

        Raises:
            InputError: if a column is missing, is not known or holds a number too far out.
            InputTypeError: if there are numbers where labels were, or labels where numbers were.
        """
        known = in_order_of(self.names, columns)
        rows = len(columns[0].values)
        # Column by column in memory, as they are written.
        values, levels = np.empty((len(self.features), rows)), np.empty((len(self.features), rows), dtype=np.int64)
        for j, (feature, column) in enumerate(zip(self.features, known, strict=True)):
            values[j], levels[j] = feature.encode(values_of_kind(column, feature.kind))
        return Encoded(values.T, levels.T)


def transforms_of(kinds: Mapping[str, Kind], transform: Transform | Mapping[str, Transform]) -> Mapping[str, Transform]:
    """The transform of each column, by its name.

    Raises:
        OptionError: if a transform or a named column is unknown.
        UnsupportedError: if a transform is asked for labels.
    """
    if not isinstance(transform, Mapping):
        checks.choice("numeric_transform", transform, SCALINGS)
        return dict.fromkeys(kinds, transform)
    for name, choice in transform.items():
        if name not in kinds:
            raise OptionError.unknown("numeric_transform", name, kinds)
        if kinds[name] == "categorical":
            raise UnsupportedError(
                f"numeric_transform: expected columns of numbers, got {name!r}, which holds labels. Leave it out."
            )
        checks.choice(f"numeric_transform[{name!r}]", choice, SCALINGS)
    return {name: transform.get(name, "standard") for name in kinds}


def tally_of(labels: np.ndarray, weights: np.ndarray | None = None) -> dict[object, float]:
    """How often each label is there, in order of appearance; ``None`` is a missing one."""
    codes, found = pd.factorize(labels)
    missing = codes < 0
    counts = np.bincount(np.where(missing, len(found), codes), weights, len(found) + 1).tolist()
    return dict(zip([*found.tolist(), *[None] * bool(missing.any())], counts, strict=False))


def _sorted(labels: Mapping[object, float]) -> tuple[object, ...]:
    try:
        return tuple(sorted(labels))  # type: ignore[type-var]
    except TypeError:  # text beside numbers
        return tuple(labels)


def refuse_far(names: Sequence[str], farthest: np.ndarray) -> None:
    """Refuses columns of numbers, by the largest in size of each, whose squares have no sum.

    Raises:
        InputError: if there is one.
    """
    far = farthest > checks.FARTHEST
    if far.any():
        at = int(np.argmax(far))
        raise InputError(
            f"column {names[at]!r}: expected numbers whose squares are floats, got one of {farthest[at]:.3g} in size. "
            "Divide the column by a constant, or put NaN where a number stands for a missing value."
        )


def binned(seen: np.ndarray, low: float, high: float, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Edges of 30 bins from the smallest to the largest number, and how often a number is in each."""
    if seen.size == 0:
        return np.full(BINS + 1, np.nan), np.zeros(BINS, dtype=np.int64)
    if not high - low > TINY:  # a bar has a width, also where one number fills the column
        half = 0.5 * max(1.0, abs(low))
        low, high = low - half, high + half
    bins = np.minimum((seen - low) * (BINS / (high - low)), BINS - 1).astype(np.int64)
    return np.linspace(low, high, BINS + 1), np.bincount(bins, weights, minlength=BINS)


@stored("target_means")
@final
@dataclass(frozen=True, eq=False)
class TargetMeans:
    """Levels as the mean of the targets among the rows that have them, (Σ w y + m ȳ)/(Σ w + m) with m = 10.

    It is shrunk towards that of all, ȳ, as if m more rows had that: Micci-Barreca (2001), "A preprocessing scheme for
    high-cardinality categorical attributes", eqs. 3–4. scikit-learn's encoder does the same but knows no weights.

    Attributes:
        means: for each column of levels, those of its K levels and of M targets, shape (K, M).
    """

    means: tuple[np.ndarray, ...]

    @classmethod
    def fit(
        cls, sizes: Sequence[int], levels: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> TargetMeans:
        """Learns the means.

        Args:
            sizes: how many levels each column may have; those that do not occur have the mean of all.
            levels: shape (N, D), N ≥ 1.
            targets: shape (N, M).
            weights: how often each row counts, shape (N,).
        """
        each = np.ones(len(levels)) if weights is None else weights
        overall = each @ targets / each.sum()
        means = []
        for size, column in zip(sizes, levels.T, strict=True):
            counts = np.bincount(column, each, minlength=size)
            sums = np.stack([np.bincount(column, each * y, minlength=size) for y in targets.T], axis=1)
            means.append((sums + PRIOR_ROWS * overall) / (counts + PRIOR_ROWS)[:, None])
        return cls(tuple(means))

    def transform(self, levels: np.ndarray) -> np.ndarray:
        """The means of the levels of D columns, column by column, shape (N, D M)."""
        return np.hstack([means[column] for means, column in zip(self.means, levels.T, strict=True)])


def out_of_fold(
    sizes: Sequence[int], levels: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, random_state: int
) -> tuple[TargetMeans, np.ndarray]:
    """The means over all rows, and for each row those over the parts that it is not in.

    Args:
        sizes: how many levels each column may have.
        levels: shape (N, D).
        targets: class codes as integers or numbers, shape (N,), or numbers, shape (N, M).
        weights: how often each row counts, shape (N,).
        random_state: of the five parts.
    """
    columns = _target_columns(targets)
    encoder = TargetMeans.fit(sizes, levels, columns, weights)
    codes = encoder.transform(levels)
    parts = np.random.default_rng(random_state).permutation(len(levels)) % FOLDS
    for part in range(min(FOLDS, len(levels)) if len(levels) > 1 else 0):
        inside, rest = parts == part, parts != part
        others = TargetMeans.fit(sizes, levels[rest], columns[rest], None if weights is None else weights[rest])
        codes[inside] = others.transform(levels[inside])
    return encoder, codes


def _target_columns(targets: np.ndarray) -> np.ndarray:
    """What means are taken of, shape (N, M): numbers as they are, the second of two classes, each of more."""
    if targets.ndim == 2:
        return targets.astype(np.float64)
    if targets.dtype.kind in "iu" and targets.max() > 1:
        return np.eye(int(targets.max()) + 1)[targets]
    return targets.astype(np.float64)[:, None]
