"""The targets of a table on disk: what a pass over them tells, and each block's in canonical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, final

import numpy as np
import pandas as pd

from bayescope import checks
from bayescope.errors import InputError
from bayescope.estimators.table_rows import Block, TableRows
from bayescope.estimators.weights import class_factors, class_notes
from bayescope.likelihoods import Bernoulli, Categorical, Likelihood
from bayescope.tables import Column
from bayescope.tables.column_sums import LabelsSeen, NumbersSeen


class TableTargets(Protocol):
    """What is to be predicted."""

    def weights(self, block: Block) -> np.ndarray:
        """How often each row counts, shape (n,)."""

    def values(self, block: Block) -> np.ndarray:
        """The targets in canonical form, shape (n, ...)."""


@final
@dataclass(frozen=True, eq=False)
class TableLabels:
    """Classes.

    Attributes:
        classes: sorted.
        factors: how much more a row counts by its class, shape (K,).
        likelihood: p(y∣f).
        outputs: how many outputs f has.
        notes: lines for a summary.
    """

    classes: np.ndarray
    factors: np.ndarray
    likelihood: Likelihood
    outputs: int
    notes: Mapping[str, str]

    @classmethod
    def of(cls, source: TableRows, class_weight: Any) -> TableLabels:
        """Reads the targets alone, once.

        Raises:
            InputError: if there is one class alone, or one is missing in a row.
        """
        seen = LabelsSeen(source.target)
        with source.processes.agreed():
            for block in source.blocks(features=False):
                seen.add(Column(source.target, "categorical", block.target), block.weights)
        seen = reduce(LabelsSeen.joined, source.processes.gather(seen))
        encoding = seen.encoding()
        if not seen.tally:
            raise source.nobody()
        if len(encoding.categories) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {encoding.categories[0]}.")
        classes = _array(encoding.categories)
        two, count = len(classes) == 2, len(classes)
        factors = class_factors(class_weight, classes.tolist(), np.arange(count), encoding.counts)
        notes = {} if class_weight is None else class_notes(class_weight, classes.tolist(), factors)
        return cls(classes, factors, Bernoulli() if two else Categorical(), 1 if two else count, notes)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several."""
        return () if self.outputs == 1 else tuple(map(str, self.classes.tolist()))

    @property
    def unit(self) -> str:
        """What f is measured in, as effects tell it."""
        return f"logit of {self.classes.tolist()[1]!r}" if self.outputs == 1 else "logit, classes centred"

    def codes(self, block: Block) -> np.ndarray:
        """The class of each row, int64 of shape (n,)."""
        places = {label: code for code, label in enumerate(self.classes.tolist())}
        found, labels = pd.factorize(block.target)
        return np.array([places[label] for label in labels.tolist()], dtype=np.int64)[found]

    def weights(self, block: Block) -> np.ndarray:
        """The rows' times the classes'."""
        return block.weights if (self.factors == 1.0).all() else block.weights * self.factors[self.codes(block)]

    def values(self, block: Block) -> np.ndarray:
        """Classes, or 0 and 1."""
        targets: np.ndarray = self.likelihood.targets(self.codes(block), self.outputs).numpy()
        return targets


@final
@dataclass(frozen=True, eq=False)
class TableNumbers:
    """The numbers of a regression, less the offset: standardised they are the targets.

    Attributes:
        shift: the mean.
        scale: the standard deviation; 1 where all are one number.
        rows: how many rows count.
        varies: whether they are not all one number, but for rounding.
    """

    shift: float
    scale: float
    rows: int
    varies: bool

    @classmethod
    def of(cls, source: TableRows) -> TableNumbers:
        """Reads the targets alone, once.

        Raises:
            InputError: if one is missing, or no row counts.
        """
        seen = NumbersSeen(source.target)
        with source.processes.agreed():
            for block in source.blocks(features=False):
                seen.add(_around(block), block.weights)
        seen = reduce(NumbersSeen.joined, source.processes.gather(seen))
        if not seen.size:
            raise source.nobody()
        if seen.farthest > checks.FARTHEST:
            raise InputError(
                f"column {source.target!r}: expected numbers whose squares are floats, got one of {seen.farthest:.3g} "
                "in size. Divide the column by a constant."
            )
        return cls(seen.standard.mean, seen.standard.scale, seen.size, seen.varies)

    def weights(self, block: Block) -> np.ndarray:
        return block.weights

    def values(self, block: Block) -> np.ndarray:
        """In standard deviations from the mean, shape (n, 1); an offset is not taken off."""
        return ((block.target - self.shift) / self.scale)[:, None]


def _array(labels: Sequence[object]) -> np.ndarray:
    """Numbers as such, where that keeps each as it is; others as objects."""
    text = any(isinstance(label, str) for label in labels)
    numbers = np.array(labels, dtype=object if text else None)
    return numbers if numbers.tolist() == list(labels) else np.array(labels, dtype=object)


def _around(block: Block) -> np.ndarray:
    return block.target if block.offset is None else block.target - block.offset
