"""Preprocessing learnt in one pass over the blocks of a table, whatever its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from sklearn.preprocessing import StandardScaler

from bayescope import checks
from bayescope.errors import UnsupportedError
from bayescope.storage import stored
from bayescope.tables.column_sums import LabelsSeen, NumbersSeen, Sample, Sampler
from bayescope.tables.columns import Column, Kind, values_of_kind
from bayescope.tables.encoding import CategoricalEncoding, refuse_far
from bayescope.tables.preprocessing import (
    ENCODINGS,
    UNITS,
    EncodingName,
    NormalScores,
    Preprocessing,
    ScalingName,
    encoder_of,
    imputer_of,
)
from bayescope.tables.scaling import Quantiles, Standard


@stored(
    "table_seen",
    parts={
        **dict.fromkeys(("_kinds", "_numbers", "_labels"), dict),
        "_scaling": str | None, "_encoding": str, "_sampler": Sampler | None, "_elsewhere": list,
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
        if scaling is not None:
            checks.choice("scaling", scaling, [name for name in UNITS if name is not None])
        if checks.choice("encoding", encoding, ENCODINGS) == "target":
            raise UnsupportedError(
                "encoding: expected 'one_hot' or 'ordinal' for a table read in blocks, got 'target', which cuts "
                "the rows at random and needs them in memory. Use one of the two, or fit a DataFrame."
            )
        self._kinds, self._scaling, self._encoding = dict(kinds), scaling, encoding
        self._numbers = {name: NumbersSeen(name) for name, kind in kinds.items() if kind == "numeric"}
        self._labels = {name: LabelsSeen(name) for name, kind in kinds.items() if kind == "categorical"}
        self._sampler = Sampler(len(self._numbers)) if scaling == "quantile" and self._numbers else None
        self._elsewhere: list[Sample] = []

    def add(self, columns: Sequence[Column], weights: np.ndarray, rows: np.ndarray) -> None:
        """A block.

        Args:
            columns: in order.
            weights: how often each row counts, above 0, shape (n,).
            rows: their numbers in the table, shape (n,).
        """
        numeric = []
        for column, (name, kind) in zip(columns, self._kinds.items(), strict=True):
            if kind == "numeric":
                numeric.append(values_of_kind(column, kind))
                self._numbers[name].add(numeric[-1], weights)
            else:
                values = values_of_kind(column, kind)
                self._labels[name].add(Column(name, kind, values, column.categories, column.inferred), weights)
        if self._sampler is not None:
            self._sampler.add(np.column_stack([*numeric, weights]), rows)

    def joined(self, other: TableSeen) -> TableSeen:
        """This, with what another pass has seen of other rows of the same table."""
        for name, seen in other._numbers.items():
            self._numbers[name] = self._numbers[name].joined(seen)
        for name, labels in other._labels.items():
            self._labels[name] = self._labels[name].joined(labels)
        if other._sampler is not None:
            self._elsewhere.append(other._sampler.sample())
        return self

    def preprocessing(self) -> Preprocessing:
        """What has been learnt.

        Raises:
            InputError: if numbers to be scaled are so large that their squares are no floats.
        """
        labels = tuple(seen.encoding() for seen in self._labels.values())
        seen = list(self._numbers.values())
        imputer = None
        if seen:
            with np.errstate(over="ignore", invalid="ignore"):  # of numbers whose squares are no floats there is a mean
                means = np.array([each.standard.mean for each in seen])
            imputer = imputer_of(means, np.array([each.missing > 0 for each in seen]))
        encoder = encoder_of(self._encoding, labels) if labels else None
        scaler: StandardScaler | NormalScores | None = None
        if self._scaling is not None and (seen or (labels and self._encoding != "one_hot")):
            scaler = self._scaler(labels)
        return Preprocessing.of(self._kinds, imputer, scaler, labels, encoder, self._scaling, self._encoding)

    def _scaler(self, labels: Sequence[CategoricalEncoding]) -> StandardScaler | NormalScores:
        """Of the columns of numbers and, where labels are codes, of these."""
        seen = list(self._numbers.values())
        refuse_far([each.name for each in seen], np.array([each.farthest for each in seen]))
        codes = [] if self._encoding == "one_hot" else [_codes(each) for each in labels]
        if self._scaling == "standard":
            return _standard([*(each.standard for each in seen), *(Standard.fit(*each) for each in codes)])
        sample = None if self._sampler is None else self._sampler.sample().joined(self._elsewhere)
        scores = [each.quantiles(sample.column(place)) for place, each in enumerate(seen)] if sample else []
        return NormalScores((*scores, *(Quantiles.fit(*each) for each in codes)))


def _codes(labels: CategoricalEncoding) -> tuple[np.ndarray, np.ndarray]:
    """The positions of a column's labels, and how often each is there."""
    counts = np.append(labels.counts, labels.missing).astype(np.float64)
    codes = np.flatnonzero(counts)
    return codes.astype(np.float64), counts[codes]


def _standard(scales: Sequence[Standard]) -> StandardScaler:
    """scikit-learn's scaler from means and scales."""
    scaler = StandardScaler().fit(np.zeros((1, len(scales))))
    scaler.mean_ = np.array([each.mean for each in scales])
    scaler.scale_ = np.array([each.scale for each in scales])
    scaler.var_ = np.square(scaler.scale_)
    return scaler
