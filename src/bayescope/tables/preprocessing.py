"""Columns of numbers and labels as one table of numbers, learnt from rows in memory or from blocks on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

import numpy as np

from bayescope import checks
from bayescope.errors import InputError, UnsupportedError
from bayescope.storage import stored
from bayescope.tables.column_sums import ColumnMoments, LabelsSeen, Sample, Tally
from bayescope.tables.columns import Column, Kind, in_order_of, values_of_kind
from bayescope.tables.encoding import LARGEST, CategoricalEncoding, TargetMeans, out_of_fold, refuse_far
from bayescope.tables.scaling import Quantiles, Standard

ScalingName = Literal["standard", "quantile"]
EncodingName = Literal["one_hot", "ordinal", "target"]

# Rows that are summed, or scaled, at a time: their numbers stay in a processor's cache.
CACHED_ROWS = 4096
# This many outputs have all their covariances kept, in 8 MiB; more have variances alone.
MOST_SPREAD = 1024
# This many rows tell the spread to a few thousandths.
SPREAD_ROWS = 100_000
# This many columns are named in a summary.
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


# A table as it was read: columns, or numbers without gaps.
Table: TypeAlias = Sequence[Column] | np.ndarray


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
        means: of the numeric columns, shape (K,).
        gaps: which of these had missing numbers, shape (K,).
        labels: the labels of each categorical column.
        target_means: of the labels, for "target".
        scaling: "standard", "quantile" or ``None``.
        encoding: "one_hot", "ordinal" or "target".
        centre: for "standard", of the numbers and then of the codes of labels other than 0 and 1; else empty.
        scale: for "standard", the standard deviations of the same; else empty.
        scores: for "quantile", the normal scores of the same; else empty.
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
    means: np.ndarray
    gaps: np.ndarray
    labels: tuple[CategoricalEncoding, ...]
    target_means: TargetMeans | None
    scaling: ScalingName | None
    encoding: EncodingName
    centre: np.ndarray
    scale: np.ndarray
    scores: tuple[Quantiles, ...]
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
            The preprocessing and the numbers, float64, shape (N, D): finite numbers that stay unchanged, in their
            own memory.

        Raises:
            InputError: if there are no rows, or numbers are so large that their squares are no floats.
            OptionError: if the scaling or the encoding is unknown.
            UnsupportedError: if "target" has no targets.
        """
        _check_options(scaling, encoding)
        refuse_empty(table)
        if encoding == "target" and targets is None:
            raise UnsupportedError("encoding: expected y for 'target', got none. Use 'one_hot' or 'ordinal'.")
        numbers, columns = _parted(table)
        labels = tuple(CategoricalEncoding.fit(column, weights) for column in columns)
        levels = _levels(labels, columns, len(numbers))
        target_means, codes = None, None
        if encoding == "target" and labels and targets is not None:
            sizes = [len(each.categories) + 2 for each in labels]
            target_means, codes = out_of_fold(sizes, levels, targets, weights, random_state)
        each = np.ones(len(numbers)) if weights is None else weights
        moments = ColumnMoments.none(numbers.shape[1])
        for start in range(0, len(numbers), CACHED_ROWS):
            some_rows = slice(start, start + CACHED_ROWS)
            moments = moments.joined(ColumnMoments.of(numbers[some_rows], each[some_rows]))

        def quantiles(place: int) -> Quantiles:
            there = ~np.isnan(numbers[:, place])
            return Quantiles.fit(numbers[there, place], None if weights is None else weights[there])

        learnt = cls.of(
            _kinds(table), moments, quantiles, labels, scaling, encoding, target_means,
            [] if codes is None else [(column, weights) for column in codes.T],
        )  # fmt: skip
        outputs = learnt._joined(numbers, learnt._codes(levels) if codes is None else codes)
        return learnt.with_spread(outputs, weights, float(each.sum())), outputs

    @classmethod
    def of(
        cls,
        kinds: Mapping[str, Kind],
        moments: ColumnMoments,
        quantiles: Callable[[int], Quantiles],
        labels: tuple[CategoricalEncoding, ...],
        scaling: ScalingName | None,
        encoding: EncodingName,
        target_means: TargetMeans | None = None,
        codes: Sequence[tuple[np.ndarray, np.ndarray | None]] = (),
    ) -> Preprocessing:
        """The preprocessing that these statistics of a table make.

        Args:
            kinds: of the columns, by name, in order.
            moments: of the K columns of numbers.
            quantiles: the normal scores of the k-th of these.
            labels: of the categorical columns.
            scaling: of numbers, and of codes other than 0 and 1.
            encoding: of labels.
            target_means: of the labels, for "target".
            codes: those of the labels, and their weights, for "target".

        Raises:
            InputError: if numbers are so large that their squares are no floats.
        """
        names, gaps = tuple(kinds), moments.missing > 0
        places, outputs = _outputs(names, tuple(kinds.values()), labels, encoding, gaps, target_means)
        order = np.argsort(places, kind="stable")
        centre, scale = np.empty(0), np.empty(0)
        scores: tuple[Quantiles, ...] = ()
        refuse_far([name for name in names if kinds[name] == "numeric"], moments.farthest)
        if scaling is not None:
            coded = [_positions(each) for each in labels] if encoding == "ordinal" else codes
            if scaling == "standard":
                of_codes = [Standard.fit(*each) for each in coded]
                centre = np.concatenate([moments.mean, [each.mean for each in of_codes]])
                scale = np.concatenate([moments.scale, [each.scale for each in of_codes]])
            else:
                scores = (*map(quantiles, range(len(gaps))), *(Quantiles.fit(*each) for each in coded))
        ordered = tuple(outputs[place] for place in order)
        return cls(
            names, tuple(kinds.values()), moments.mean, gaps, labels, target_means, scaling, encoding, centre, scale,
            scores, ordered, order,
        )  # fmt: skip

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
        levels = _levels(self.labels, columns, len(numbers))
        unknown = _unknown(self.labels, levels)
        gaps = np.isnan(numbers) if _has_gaps(numbers) else np.zeros((1, numbers.shape[1]), dtype=bool)
        lacking = np.empty((len(numbers), len(self.columns)), dtype=bool)
        numeric = np.array([kind == "numeric" for kind in self.kinds], dtype=bool)
        lacking[:, numeric], lacking[:, ~numeric] = gaps, unknown
        return self._joined(numbers, self._codes(levels)), (lacking if lacking.any() else None)

    @property
    def owners(self) -> np.ndarray:
        """The place of the column that each output is made of, shape (D,)."""
        places, _ = _outputs(self.columns, self.kinds, self.labels, self.encoding, self.gaps, self.target_means)
        return np.sort(np.array(places, dtype=np.int64))

    @property
    def scales(self) -> np.ndarray:
        """What one unit of each output is in its column's own unit, shape (D,): NaN for normal scores."""
        scales = np.ones(len(self.names))
        scales[: len(self.scale)] = self.scale
        scales[: len(self.scores)] = np.nan
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
            apart = some - self._joined(blank, self._codes(unseen))
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

    def _codes(self, levels: np.ndarray) -> np.ndarray:
        """The codes of levels, of which some have a stand-in, column by column."""
        if not self.labels:
            return np.empty(levels.shape)
        if self.target_means is not None:
            return self.target_means.transform(levels)
        if self.encoding == "ordinal":
            return np.where(_unknown(self.labels, levels), [_mean_position(each) for each in self.labels], levels)
        codes = [
            column[:, None] == np.arange(int(_is_truth(each)), len(each.categories) + (each.missing > 0))
            for each, column in zip(self.labels, levels.T, strict=True)
        ]
        return np.hstack(codes).astype(np.float64)

    def _known(self, table: Table) -> list[Column]:
        """The columns that were fitted, of the kinds that they had then."""
        if isinstance(table, np.ndarray):
            table = [Column(name, "numeric", x) for name, x in zip(self.columns, table.T, strict=True)]
        known = zip(in_order_of(self.columns, table), self.kinds, strict=True)
        return [Column(column.name, kind, values_of_kind(column, kind)) for column, kind in known]

    def origin(self) -> np.ndarray:
        """The outputs of a row whose numbers and codes are all 0, shape (D,): scaling moves them from 0."""
        codes = np.zeros_like(self._codes(np.zeros((1, len(self.labels)), dtype=np.int64)))
        return self._joined(np.zeros((1, len(self.means))), codes)[0]

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
        if self.gaps.any() or _has_gaps(numbers):
            absent = np.isnan(numbers)
            numbers, flags = np.where(absent, self.means, numbers), absent[:, self.gaps].astype(np.float64)
        if self.encoding == "one_hot":
            flags = np.hstack([flags, codes])
        else:
            numbers = np.hstack([numbers, codes])
        if self.scaling is not None:
            numbers = self._scaled(numbers)
        if not flags.shape[1] and (np.diff(self.order) == 1).all():
            return numbers
        return np.ascontiguousarray(np.hstack([numbers, flags])[:, self.order])

    def _scaled(self, numbers: np.ndarray) -> np.ndarray:
        scaled, ends = np.empty(numbers.shape), []
        for start in range(0, len(numbers), CACHED_ROWS):
            some, block = numbers[start : start + CACHED_ROWS], scaled[start : start + CACHED_ROWS]
            with np.errstate(over="ignore"):
                if self.scaling == "standard":
                    np.subtract(some, self.centre, out=block)
                    block /= self.scale
                else:
                    for place, scores in enumerate(self.scores):
                        block[:, place] = scores.forward(some[:, place])
            ends += [block.min(initial=0.0), block.max(initial=0.0)]
        if not np.max(np.abs(ends), initial=0.0) <= LARGEST:
            row, at = map(int, np.argwhere(~(np.abs(scaled) <= LARGEST))[0])
            numeric = [name for name, kind in zip(self.columns, self.kinds, strict=True) if kind == "numeric"]
            raise InputError(
                f"column {numeric[at]!r}: expected numbers near those that were fitted, got {numbers[row, at]:.6g} in "
                f"row {row}, too far out to compute with. Check its unit, or put NaN where it stands for a missing "
                "value."
            )
        return scaled


@stored(
    "table_seen",
    parts={
        **dict.fromkeys(("_kinds", "_labels"), dict), "moments": ColumnMoments, "tallies": list,
        "_scaling": str | None, "_encoding": str, "_sample": Sample,
    },
)  # fmt: skip
@final
class TableSeen:
    """The columns of a table, added a block at a time, and the preprocessing that they tell.

    Means, scales, labels and their counts are those of all rows, to rounding. Normal scores ("quantile") are those of
    all rows for a column of at most 1,024 different numbers, else of a uniform sample of 262,144 rows.

    Args:
        kinds: of the columns, by name, in order.
        scaling: "standard", "quantile" or ``None``.
        encoding: "one_hot" or "ordinal".

    Attributes:
        moments: of the columns of numbers.
        tallies: for "quantile", their different numbers.

    Raises:
        OptionError: if the scaling or the encoding is unknown.
        UnsupportedError: for "target", whose codes need all rows in memory.
    """

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        *,
        scaling: ScalingName | None,
        encoding: EncodingName,
    ) -> None:
        _check_options(scaling, encoding)
        if encoding == "target":
            raise UnsupportedError(
                "encoding: expected 'one_hot' or 'ordinal' for a table read in blocks, got 'target', which cuts "
                "the rows at random and needs them in memory. Use one of the two, or fit a DataFrame."
            )
        self._kinds, self._scaling, self._encoding = dict(kinds), scaling, encoding
        numeric = sum(kind == "numeric" for kind in kinds.values())
        self.moments = ColumnMoments.none(numeric)
        self._labels = {name: LabelsSeen(name) for name, kind in kinds.items() if kind == "categorical"}
        self.tallies = [Tally() for _ in range(numeric if scaling == "quantile" else 0)]
        self._sample = Sample(numeric + 1)

    def add(self, columns: Sequence[Column], weights: np.ndarray, rows: np.ndarray) -> None:
        """A block.

        Args:
            columns: in order.
            weights: how often each row counts, above 0, shape (n,).
            rows: their numbers in the table, shape (n,).
        """
        typed = zip(columns, self._kinds.items(), strict=True)
        numbers, labels = _parted(
            [replace(each, name=name, kind=kind, values=values_of_kind(each, kind)) for each, (name, kind) in typed]
        )
        self.moments = self.moments.joined(ColumnMoments.of(numbers, weights))
        for column in labels:
            self._labels[column.name].add(column, weights)
        for tally, column in zip(self.tallies, numbers.T, strict=False):
            tally.add(column, weights)
        if self.tallies:
            self._sample.add(np.column_stack([numbers, weights]), rows)

    def joined(self, other: TableSeen) -> TableSeen:
        """This, with what another pass has seen of other rows of the same table."""
        self.moments = self.moments.joined(other.moments)
        for name, labels in other._labels.items():
            self._labels[name] = self._labels[name].joined(labels)
        for tally, another in zip(self.tallies, other.tallies, strict=True):
            tally.joined(another)
        self._sample.joined(other._sample)
        return self

    def preprocessing(self) -> Preprocessing:
        """What has been learnt.

        Raises:
            InputError: if numbers to be scaled are so large that their squares are no floats.
        """
        known = self.known()
        return Preprocessing.of(
            self._kinds, self.moments, lambda place: Quantiles.fit(*known[place]), tuple(self.labels().values()),
            self._scaling, self._encoding,
        )  # fmt: skip

    def labels(self) -> dict[str, CategoricalEncoding]:
        """The labels of the categorical columns, by name."""
        return {name: seen.encoding() for name, seen in self._labels.items()}

    def known(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For "quantile", the numbers of each numeric column and their weights, as `Tally.known` has them."""
        sample = self._sample.numbers()
        return [tally.known(sample[:, [at, -1]], self.moments, at) for at, tally in enumerate(self.tallies)]


def _check_options(scaling: ScalingName | None, encoding: EncodingName) -> None:
    if scaling is not None:
        checks.choice("scaling", scaling, [name for name in UNITS if name is not None])
    checks.choice("encoding", encoding, ENCODINGS)


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


def _kinds(table: Table) -> dict[str, Kind]:
    """The kinds of the columns, by name."""
    if isinstance(table, np.ndarray):
        return {f"x{j}": "numeric" for j in range(table.shape[1])}
    return {column.name: column.kind for column in table}


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
    codes, counts = _positions(labels)
    return float(codes @ counts / counts.sum())


def _has_gaps(numbers: np.ndarray) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # the sum of large numbers without gaps may be no number either
        return bool(np.isnan(numbers.sum())) and bool(np.isnan(numbers).any())


def _positions(labels: CategoricalEncoding) -> tuple[np.ndarray, np.ndarray]:
    """The positions of a column's labels, and how often each is there."""
    counts = np.append(labels.counts, labels.missing).astype(np.float64)
    codes = np.flatnonzero(counts)
    return codes.astype(np.float64), counts[codes]


def _is_truth(labels: CategoricalEncoding) -> bool:
    """Whether the labels are False and True: 0 and 1 are equal to those, and are labels like others."""
    return len(labels.categories) == 2 and all(isinstance(label, bool) for label in labels.categories)


def _outputs(
    names: Sequence[str],
    kinds: Sequence[Kind],
    labels: Sequence[CategoricalEncoding],
    encoding: EncodingName,
    gaps: np.ndarray,
    target_means: TargetMeans | None,
) -> tuple[list[int], list[str]]:
    """The column that each output is of, and its name, as they are computed: numbers, codes, then 0 and 1."""
    numeric = [j for j, kind in enumerate(kinds) if kind == "numeric"]
    categorical = [j for j, kind in enumerate(kinds) if kind == "categorical"]
    outputs = [(j, names[j]) for j in numeric]
    if encoding != "one_hot":
        codes = 1 if target_means is None else target_means.means[0].shape[1]
        several = [f", mean {k}" for k in range(codes)] if codes > 1 else [""]
        outputs += [(j, names[j] + which) for j in categorical for which in several]
    outputs += [(numeric[k], f"{names[numeric[k]]} missing") for k in np.flatnonzero(gaps)]
    if encoding == "one_hot":
        for j, each in zip(categorical, labels, strict=True):
            outputs += [(j, f"{each.name}={label}") for label in each.categories[int(_is_truth(each)) :]]
            outputs += [(j, f"{each.name} missing")] * (each.missing > 0)
    return [j for j, _ in outputs], [name for _, name in outputs]


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
