"""Columns of numbers and labels as one table of numbers, by scikit-learn's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.storage import stored
from bayescope.tables.columns import Column, Kind, in_order_of, values_of_kind
from bayescope.tables.encoding import LARGEST, CategoricalEncoding, refuse_far
from bayescope.tables.scaling import Quantiles
from bayescope.tables.target_means import TargetMeans, out_of_fold

ScalingName = Literal["standard", "quantile"]
EncodingName = Literal["one_hot", "ordinal", "target"]

# What scikit-learn's encoder makes of a label that was not seen; the mean position takes its place.
UNSEEN_CODE = -1
# So many outputs have all their covariances kept, in 8 MiB; more have variances alone.
MOST_SPREAD = 1024
# So many rows tell the spread to a few thousandths.
SPREAD_ROWS = 100_000
# So many columns are named in a summary.
NAMED = 8

UNITS = {
    None: "as given",
    "standard": "centred and divided by their standard deviations",
    "quantile": "as normal scores",
}
ENCODINGS = {
    "one_hot": "a column of 0 and 1 for each label",
    "ordinal": "the position of the label among its column's",
    "target": "the mean of y among the rows with the label, shrunk towards that of all",
}


@stored("normal_scores")
@final
@dataclass(frozen=True, eq=False)
class NormalScores:
    """Each column of a table as its normal scores.

    Attributes:
        columns: the scores of each.
    """

    columns: tuple[Quantiles, ...]

    @classmethod
    def fit(cls, table: np.ndarray, weights: np.ndarray | None) -> NormalScores:
        """From the numbers that are there, NaN left out, and how often each row counts."""
        columns = zip(table.T, ~np.isnan(table.T), strict=True)
        return cls(tuple(Quantiles.fit(x[there], None if weights is None else weights[there]) for x, there in columns))

    def transform(self, table: np.ndarray) -> np.ndarray:
        """The scores, shape (N, D)."""
        return np.column_stack([scores.forward(x) for scores, x in zip(self.columns, table.T, strict=True)])


# A table as it was read: columns, or numbers without gaps.
Table: TypeAlias = Sequence[Column] | np.ndarray
Encoder: TypeAlias = OneHotEncoder | OrdinalEncoder | TargetMeans


@stored("preprocessing")
@final
@dataclass(frozen=True, eq=False)
class Preprocessing:
    """What was learnt from a table to make numbers of it and of others like it.

    A number stays one column, scaled where asked for; where numbers were missing in the table that was fitted, the mean
    takes their place and a second column says 1. Labels become columns of 0 and 1 ("one_hot"; truth values are one
    column), their position ("ordinal") or the mean of the target among the rows that have them ("target", see
    `TargetMeans`). A missing label is a label of its own if the column that was fitted had missing labels.

    Other missing labels, labels that were never seen, and missing numbers have stand-ins: zeros ("one_hot"), the mean
    position ("ordinal"), the mean of all targets ("target"), the mean of the numbers. `read` says which values they
    stand for, and `spread` how far the training rows are from them.

    Attributes:
        columns: the names of the columns read, in order.
        kinds: "numeric" or "categorical", of each.
        imputer: of the numeric columns; ``None`` where there are none.
        scaler: of the numbers, and of the codes of labels other than 0 and 1; ``None`` where they stay as they are.
        labels: the labels of each categorical column.
        encoder: of the levels of all label columns; ``None`` where there are none.
        scaling: "standard", "quantile" or ``None``.
        encoding: "one_hot", "ordinal" or "target".
        names: of the D outputs, in order of the columns: "age", "age missing", "colour=red", …
        order: the outputs' places among numbers, codes, indicators and labels, as they are computed, shape (D,).
        spread: the mean of (x − s)(x − s)ᵀ over the training rows that have a value, x being the outputs and s their
            stand-ins, shape (D, D), or its diagonal, shape (D,), for more than `MOST_SPREAD` outputs. In a column whose
            values were missing in n rows, a share s of all, it is multiplied by 1 − s + 1/n: the noise that was learnt
            holds the share s of it, and the indicator's weight is the mean of n deviations. ``None`` in files of
            bayescope 1.
    """

    columns: tuple[str, ...]
    kinds: tuple[Kind, ...]
    imputer: SimpleImputer | None
    scaler: StandardScaler | NormalScores | None
    labels: tuple[CategoricalEncoding, ...]
    encoder: Encoder | None
    scaling: ScalingName | None
    encoding: EncodingName
    names: tuple[str, ...]
    order: np.ndarray
    spread: np.ndarray | None = None

    @classmethod
    def fit(
        cls,
        table: Table,
        targets: np.ndarray | None,
        *,
        scaling: ScalingName | None,
        encoding: EncodingName,
        weights: np.ndarray | None = None,
        random_state: int = 0,
    ) -> tuple[Preprocessing, np.ndarray]:
        """Learns means, scales and codes, and gives them back with the table as numbers.

        The numbers are those that the result makes of the same table, but for "target": there each row's code is
        learnt from the other four fifths of the rows, cut at random, so that its own target is no part of it.

        Args:
            table: N ≥ 1 rows: columns, or finite float64 numbers, shape (N, D), whose columns are called x0, x1, …
            targets: what "target" takes the mean of: class codes 0…K−1 as integers, shape (N,), or numbers, shape (N,)
                or (N, M). The other encodings do not look at it.
            scaling: "standard", less the mean and divided by the standard deviation; "quantile", normal scores (those
                of the additive models: linear beyond the seen range); ``None`` leaves numbers as they are. Columns of
                0 and 1 are never scaled.
            encoding: of labels: "one_hot", "ordinal" or "target".
            weights: how often each row counts, shape (N,), in all means, scales and scores; once by default: 2 is the
                same as the row twice, but for the cut of the rows for "target". Rows of weight 0 are not learnt from.
            random_state: of the five parts of "target".

        Returns:
            The preprocessing and the numbers, float64, shape (N, D): finite numbers that stay as they are, in their
            own memory.

        Raises:
            InputError: if there are no rows, or numbers to be scaled are so large that their squares are no floats.
            OptionError: if the scaling or the encoding is unknown.
            UnsupportedError: if "target" has no targets.
        """
        if scaling is not None:
            checks.choice("scaling", scaling, [name for name in UNITS if name is not None])
        checks.choice("encoding", encoding, ENCODINGS)
        refuse_empty(table)
        if weights is not None and not weights.all():
            some = weights > 0
            learnt, _ = cls.fit(
                taken(table, some),
                None if targets is None else targets[some],
                scaling=scaling,
                encoding=encoding,
                weights=weights[some],
                random_state=random_state,
            )
            return learnt, learnt(table)
        names, kinds = _named(table)
        numbers, columns = _parted(table)
        labels = tuple(CategoricalEncoding.fit(column, weights) for column in columns)
        levels = _levels(labels, columns, len(numbers))
        encoder, codes = _encoded(encoding, labels, levels, targets, weights, random_state)
        imputer = _imputer(numbers, weights) if numbers.shape[1] else None
        numeric = [name for name, kind in zip(names, kinds, strict=True) if kind == "numeric"]
        scaler = _scaler(numeric, scaling, numbers if encoding == "one_hot" else np.hstack([numbers, codes]), weights)
        learnt = cls.of(
            dict(zip(names, kinds, strict=True)), imputer, scaler, labels, encoder, scaling, encoding,
            codes=codes.shape[1] // max(1, len(labels)),
        )  # fmt: skip
        outputs = learnt._joined(numbers, codes)
        total = len(outputs) if weights is None else float(weights.sum())
        return learnt.with_spread(outputs, weights, total), outputs

    @classmethod
    def of(
        cls,
        kinds: Mapping[str, Kind],
        imputer: SimpleImputer | None,
        scaler: StandardScaler | NormalScores | None,
        labels: tuple[CategoricalEncoding, ...],
        encoder: Encoder | None,
        scaling: ScalingName | None,
        encoding: EncodingName,
        *,
        codes: int = 1,
    ) -> Preprocessing:
        """The same from its learnt parts; ``codes`` says how many numbers a label becomes, but for "one_hot"."""
        places, outputs = _outputs(tuple(kinds), tuple(kinds.values()), labels, encoding, imputer, codes)
        order = np.argsort(places, kind="stable")
        ordered = tuple(outputs[place] for place in order)
        return cls(
            tuple(kinds), tuple(kinds.values()), imputer, scaler, labels, encoder, scaling, encoding, ordered, order
        )

    def __call__(self, table: Table) -> np.ndarray:
        """A table of the same columns, found by their names, as numbers: float64, finite, shape (N, D).

        Args:
            table: N ≥ 0 rows: columns, or finite float64 numbers, shape (N, D), in the order of the columns.

        Raises:
            InputError: if a column is missing, is not known or holds a number too far out.
            InputTypeError: if there are numbers where labels were, or labels where numbers were.
        """
        return self.read(table)[0]

    def read(self, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
        """The numbers of a table, as a call gives them, and which values of its columns have a stand-in.

        Returns:
            The numbers, shape (N, D), and a mask of the values, shape (N, K) for K columns; ``None`` if no value has.
        """
        if not isinstance(table, np.ndarray) or self.labels:
            table = self._known(table)
        numbers, columns = _parted(table)
        if not len(numbers):  # which scikit-learn's parts refuse
            return np.empty((0, len(self.names))), None
        levels = _levels(self.labels, columns, len(numbers))
        unknown = _unknown(self.labels, levels)
        gaps = np.isnan(numbers) if _has_gaps(numbers) else np.zeros((1, numbers.shape[1]), dtype=bool)
        lacking = np.empty((len(numbers), len(self.columns)), dtype=bool)
        numeric = np.array([kind == "numeric" for kind in self.kinds], dtype=bool)
        lacking[:, numeric], lacking[:, ~numeric] = gaps, unknown
        return self._encoded(numbers, levels, unknown), (lacking if lacking.any() else None)

    @property
    def owners(self) -> np.ndarray:
        """The place of the column that each output is made of, shape (D,)."""
        codes = len(self.encoder.means[0].T) if isinstance(self.encoder, TargetMeans) else 1
        places, _ = _outputs(self.columns, self.kinds, self.labels, self.encoding, self.imputer, codes)
        return np.sort(places)

    @property
    def scales(self) -> np.ndarray:
        """What one unit of each output is in its column's own unit, shape (D,): NaN for normal scores."""
        scales = np.ones(len(self.names))
        if isinstance(self.scaler, StandardScaler):
            scales[: len(self.scaler.scale_)] = self.scaler.scale_
        elif self.scaler is not None:
            scales[: len(self.scaler.columns)] = np.nan
        return scales[self.order]

    def with_spread(self, outputs: np.ndarray, weights: np.ndarray | None, total: float) -> Preprocessing:
        """The same with `spread`, from the outputs of training rows, or of some of them evenly among all.

        Args:
            outputs: of the rows, shape (n, D), n ≥ 1.
            weights: how often each counts, shape (n,); once by default.
            total: how often all rows together count, those that are not given included.
        """
        every = -(-len(outputs) // SPREAD_ROWS)
        some, each = outputs[::every], np.ones(len(outputs)) if weights is None else weights
        each = each[::every] / each[::every].sum()
        unseen = np.array([[len(labels.categories) + 1 for labels in self.labels]], dtype=np.int64)
        blank = np.full((1, sum(kind == "numeric" for kind in self.kinds)), np.nan)
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the largest float
            apart = some - self._encoded(blank, unseen, unseen > 0)
        owners = self.owners
        for column in np.flatnonzero(np.bincount(owners) > 1):
            if self.kinds[column] == "numeric":
                number, marked = np.flatnonzero(owners == column)
                absent = some[:, marked] == 1.0
                share = float(each @ absent)
                apart[absent, number] = apart[:, marked] = 0.0
                if share < 1.0:  # sums over all rows become means over those with a value
                    apart[:, number] *= np.sqrt((1.0 - share + 1.0 / max(1.0, share * total)) / (1.0 - share))
        with np.errstate(over="ignore", invalid="ignore"):
            if apart.shape[1] <= MOST_SPREAD:
                spread = (each[:, None] * apart).T @ apart
            else:  # of very many outputs no further copy is made
                spread = np.einsum("n,nd,nd->d", each, apart, apart)
        return replace(self, spread=spread)

    def _encoded(self, numbers: np.ndarray, levels: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """The outputs of numbers with gaps and of the levels of labels, some of which have a stand-in."""
        codes = np.empty(levels.shape) if self.encoder is None else self.encoder.transform(levels)
        if self.encoding == "ordinal" and unknown.any():
            codes = np.where(unknown, [_mean_position(each) for each in self.labels], codes)
        return self._joined(numbers, codes)

    def _known(self, table: Table) -> list[Column]:
        """The columns that were fitted, of the kinds that they had then."""
        if isinstance(table, np.ndarray):
            table = [Column(name, "numeric", x) for name, x in zip(self.columns, table.T, strict=True)]
        known = zip(in_order_of(self.columns, table), self.kinds, strict=True)
        return [Column(column.name, kind, values_of_kind(column, kind)) for column, kind in known]

    def origin(self) -> np.ndarray:
        """The outputs of a row whose numbers and codes are all 0, shape (D,): scaling moves them from 0."""
        levels = np.zeros((1, len(self.labels)), dtype=np.int64)
        codes = np.zeros_like(levels if self.encoder is None else self.encoder.transform(levels), dtype=np.float64)
        return self._joined(np.zeros((1, self.kinds.count("numeric"))), codes)[0]

    def notes(self) -> dict[str, str]:
        """What the numbers are, for a summary: a prior has their units."""
        kinds, names = dict(zip(self.columns, self.kinds, strict=True)), set(self.names)
        labels = [name for name, kind in kinds.items() if kind == "categorical"]
        missing = [name for name, kind in kinds.items() if kind == "numeric" and f"{name} missing" in names]
        notes = {} if len(labels) == len(kinds) else {"inputs": UNITS[self.scaling]}
        if labels:
            unit = "" if self.encoding == "one_hot" or self.scaling is None else f", {UNITS[self.scaling]}"
            notes["labels"] = f"{_listed(labels)}: {ENCODINGS[self.encoding]}{unit}"
        if missing:
            notes["missing numbers"] = f"{_listed(missing)}: the mean, and a column that is 1 there"
        return notes

    def _joined(self, numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """The outputs in their order, from numbers with gaps and the codes of labels."""
        flags = np.empty((len(numbers), 0))
        if self.imputer is not None and (self.imputer.indicator_.features_.size or _has_gaps(numbers)):
            filled = self.imputer.transform(numbers)
            numbers, flags = np.split(filled, [numbers.shape[1]], axis=1)
        if self.encoding == "one_hot":
            flags = np.hstack([flags, codes])
        else:
            numbers = np.hstack([numbers, codes])
        if self.scaler is not None:
            numbers = self._scaled(self.scaler, numbers)
        if not flags.shape[1] and (np.diff(self.order) == 1).all():
            return numbers
        return np.ascontiguousarray(np.hstack([numbers, flags])[:, self.order])

    def _scaled(self, scaler: StandardScaler | NormalScores, numbers: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            scaled: np.ndarray = scaler.transform(numbers)
        if scaled.size and not max(-scaled.min(), scaled.max()) <= LARGEST:
            row, at = map(int, np.argwhere(~(np.abs(scaled) <= LARGEST))[0])
            numeric = [name for name, kind in zip(self.columns, self.kinds, strict=True) if kind == "numeric"]
            raise InputError(
                f"column {numeric[at]!r}: expected numbers near those that were fitted, got {numbers[row, at]:.6g} in "
                f"row {row}, too far out to compute with. Check its unit, or put NaN where it stands for a missing "
                "value."
            )
        return scaled


def refuse_empty(table: Table) -> None:
    """Refuses a table without rows.

    Raises:
        InputError: if it has none.
    """
    rows, width = table.shape if isinstance(table, np.ndarray) else (len(table[0].values), len(table))
    if rows == 0:
        raise InputError(f"X: Found array with 0 sample(s) (shape=(0, {width})) while a minimum of 1 is required.")


def taken(table: Table, rows: np.ndarray) -> Table:
    """Some rows of a table, by a mask or by their positions."""
    if isinstance(table, np.ndarray):
        return table[rows]
    return [replace(column, values=column.values[rows]) for column in table]


def _named(table: Table) -> tuple[tuple[str, ...], tuple[Kind, ...]]:
    """Names and kinds of the columns."""
    if isinstance(table, np.ndarray):
        return tuple(f"x{j}" for j in range(table.shape[1])), ("numeric",) * table.shape[1]
    return tuple(column.name for column in table), tuple(column.kind for column in table)


def _parted(table: Table) -> tuple[np.ndarray, list[Column]]:
    """The numbers, shape (N, D), and the columns of labels; columns of numbers are copied."""
    if isinstance(table, np.ndarray):
        return table, []
    numeric = [column.values for column in table if column.kind == "numeric"]
    numbers = np.empty((len(table[0].values), len(numeric)))
    for j, each in enumerate(numeric):
        numbers[:, j] = each
    return numbers, [column for column in table if column.kind == "categorical"]


def _levels(labels: Sequence[CategoricalEncoding], columns: Sequence[Column], rows: int) -> np.ndarray:
    """Labels by their positions, then that of a missing and that of an unseen one, shape (N, D)."""
    levels = np.empty((rows, len(labels)), dtype=np.int64)
    for j, (encoding, column) in enumerate(zip(labels, columns, strict=True)):
        levels[:, j] = encoding.encode(column.values)[1]
    return levels


def _unknown(labels: Sequence[CategoricalEncoding], levels: np.ndarray) -> np.ndarray:
    """Which labels are unseen, or missing in a column without missing labels when it was fitted, shape (N, D)."""
    sizes = np.array([len(each.categories) for each in labels], dtype=np.int64)
    never = np.array([each.missing == 0 for each in labels], dtype=bool)
    return (levels > sizes) | ((levels == sizes) & never)


def _mean_position(labels: CategoricalEncoding) -> float:
    """The mean of the codes "ordinal" over the rows that were fitted."""
    counts = np.append(labels.counts, labels.missing).astype(np.float64)
    return float(np.arange(len(counts)) @ counts / counts.sum())


def _has_gaps(numbers: np.ndarray) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # the sum of large numbers without gaps may be no number either
        return bool(np.isnan(numbers.sum())) and bool(np.isnan(numbers).any())


def _imputer(numbers: np.ndarray, weights: np.ndarray | None) -> SimpleImputer:
    """Puts the weighted mean where a number is missing; an indicator for the columns where one is."""
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the largest float: they have no use for a mean
        means = numbers.mean(0) if weights is None else weights @ numbers / weights.sum()
    gaps = np.zeros(len(means), dtype=bool)
    for j in np.flatnonzero(~np.isfinite(means)):
        column = numbers[:, j]
        there = ~np.isnan(column)
        means[j] = _mean(column[there], None if weights is None else weights[there])
        gaps[j] = not there.all()
    return imputer_of(means, gaps)


def imputer_of(means: np.ndarray, gaps: np.ndarray) -> SimpleImputer:
    """From the means of the columns, shape (D,), and which of them have gaps.

    scikit-learn's imputer knows no weights. It learns the same from two rows: the means, and again the means but for
    the columns with gaps. A column without a number has the mean 0.
    """
    return SimpleImputer(add_indicator=True).fit(np.stack([means, np.where(gaps, np.nan, means)]))


def _mean(x: np.ndarray, weights: np.ndarray | None) -> float:
    """Of finite numbers, as large as they may be; 0 of none."""
    size = np.abs(x).max(initial=0.0)
    return float(np.average(x / size, weights=weights) * size) if size else 0.0


def _scaler(
    names: Sequence[str], scaling: ScalingName | None, numbers: np.ndarray, weights: np.ndarray | None
) -> StandardScaler | NormalScores | None:
    """From the numbers that are there; a column without any stays as it is."""
    if scaling is None or numbers.shape[1] == 0:
        return None
    farthest = np.fmax(np.fmax.reduce(numbers, 0), -np.fmin.reduce(numbers, 0))
    refuse_far(names, farthest)
    if scaling == "quantile":
        return NormalScores.fit(numbers, weights)
    empty = np.isnan(farthest)
    return StandardScaler().fit(np.where(empty, 0.0, numbers) if empty.any() else numbers, None, weights)


def _encoded(
    encoding: EncodingName,
    labels: Sequence[CategoricalEncoding],
    levels: np.ndarray,
    targets: np.ndarray | None,
    weights: np.ndarray | None,
    random_state: int,
) -> tuple[Encoder | None, np.ndarray]:
    """The encoder of levels, and the codes of those that it was learnt from."""
    if not labels:
        return None, np.empty(levels.shape)
    if encoding == "target":
        if targets is None:
            raise UnsupportedError("encoding: expected y for 'target', got none. Use 'one_hot' or 'ordinal'.")
        sizes = [len(each.categories) + 2 for each in labels]
        return out_of_fold(sizes, levels, targets, weights, random_state)
    encoder = encoder_of(encoding, labels)
    return encoder, encoder.transform(levels)


def encoder_of(encoding: EncodingName, labels: Sequence[CategoricalEncoding]) -> OneHotEncoder | OrdinalEncoder:
    """The encoder "one_hot" or "ordinal" of the levels of one column of labels or more."""
    sizes = [len(each.categories) for each in labels]
    if encoding == "ordinal":  # a missing label comes after all others
        known = [np.arange(size + 1) for size in sizes]
        encoder = OrdinalEncoder(categories=known, handle_unknown="use_encoded_value", unknown_value=UNSEEN_CODE)
    else:
        # Of False and True, which are all there is, one column tells both.
        known = [np.arange(int(_is_truth(each)), len(each.categories) + (each.missing > 0)) for each in labels]
        encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
    # What there is to learn is told already: a row of levels that are known fits it.
    return encoder.fit(np.array([[each[0] if len(each) else 0 for each in known]]))


def _is_truth(labels: CategoricalEncoding) -> bool:
    """Whether the labels are False and True: 0 and 1 are equal to those, and are labels like others."""
    return len(labels.categories) == 2 and all(isinstance(label, bool) for label in labels.categories)


def _outputs(
    names: Sequence[str],
    kinds: Sequence[Kind],
    labels: Sequence[CategoricalEncoding],
    encoding: EncodingName,
    imputer: SimpleImputer | None,
    codes: int,
) -> tuple[list[int], list[str]]:
    """The column that each output is of, and its name, as they are computed: numbers, codes, then 0 and 1."""
    numeric = [j for j, kind in enumerate(kinds) if kind == "numeric"]
    categorical = [j for j, kind in enumerate(kinds) if kind == "categorical"]
    outputs = [(j, names[j]) for j in numeric]
    if encoding != "one_hot":
        several = [f", mean {k}" for k in range(codes)] if codes > 1 else [""]
        outputs += [(j, names[j] + which) for j in categorical for which in several]
    if imputer is not None:
        outputs += [(numeric[k], f"{names[numeric[k]]} missing") for k in imputer.indicator_.features_]
    if encoding == "one_hot":
        for j, each in zip(categorical, labels, strict=True):
            outputs += [(j, f"{each.name}={label}") for label in each.categories[int(_is_truth(each)) :]]
            outputs += [(j, f"{each.name} missing")] * (each.missing > 0)
    return [j for j, _ in outputs], [name for _, name in outputs]


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
