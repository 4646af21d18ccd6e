"""What is to be predicted, as a pass over the rows finds it: classes and their codes, or the unit of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import final

import numpy as np
import pandas as pd
from torch import Tensor

from bayescope.errors import InputError, UnsupportedError
from bayescope.estimators.base import ClassWeight
from bayescope.estimators.labels import factorized
from bayescope.estimators.table_rows import RowBlock, TableRows
from bayescope.estimators.weights import class_factors, class_notes
from bayescope.likelihoods import Bernoulli, Categorical, Likelihood
from bayescope.tables import Column
from bayescope.tables.column_sums import LabelsSeen


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a table.

    Attributes:
        classes: sorted; of several labels a row, their names.
        multilabel: whether a row has several labels.
        likelihood: p(y∣f).
        outputs: how many outputs f has.
        notes: lines for a summary.
    """

    classes: np.ndarray
    multilabel: bool
    likelihood: Likelihood
    outputs: int
    notes: Mapping[str, str]

    @classmethod
    def of(cls, rows: TableRows, class_weight: ClassWeight, names: Sequence[object] = ()) -> tuple[Labels, TableRows]:
        """The labels, and the rows with codes 0…K−1 for their targets and weights times their class's.

        Args:
            rows: with labels for targets.
            class_weight: as the estimators take it.
            names: of several labels a row.

        Raises:
            InputError: if there is one class alone: of several labels a row, in any of them.
            UnsupportedError: if there are class weights for rows with several labels.
        """
        if rows.held is not None and rows.held.target.ndim == 2:
            return cls._several(rows.held.target, class_weight, names), rows
        if rows.held is None:
            classes, counts = _counted(rows)
        else:
            classes, codes = factorized(rows.held.target)
            counts = np.bincount(codes, rows.held.weights)
        if len(classes) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {classes[0]}.")
        known = classes.tolist()
        factors = class_factors(class_weight, known, np.arange(len(known)), counts)
        places = {label: code for code, label in enumerate(known)}

        def coded(block: RowBlock) -> RowBlock:
            if rows.held is not None:
                found = codes
            else:
                order, labels = pd.factorize(block.target)
                found = np.array([places[label] for label in labels.tolist()], dtype=np.int64)[order]
            weights = block.weights if class_weight is None else block.weights * factors[found]
            return replace(block, target=found, weights=weights)

        two = len(known) == 2
        notes = class_notes(class_weight, known, factors)
        labels = cls(classes, False, Bernoulli() if two else Categorical(), 1 if two else len(known), notes)
        return labels, rows.changed(coded, weighted=class_weight is not None)

    @classmethod
    def _several(cls, codes: np.ndarray, class_weight: ClassWeight, names: Sequence[object]) -> Labels:
        if class_weight is not None:
            raise UnsupportedError(
                "class_weight: expected None for several labels a row, which have no one class, got "
                f"{class_weight!r}. Use sample_weight."
            )
        count = codes.shape[1]
        classes = np.asarray(names if len(names) else np.arange(count))
        _refuse_constant(codes, classes)
        return cls(classes, True, Bernoulli(), count, {})

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the outputs of f, where there are several: the classes."""
        return () if self.outputs == 1 and not self.multilabel else tuple(map(str, self.classes.tolist()))

    @property
    def unit(self) -> str:
        """What f is measured in, as effects are reported."""
        if self.multilabel:
            return "logit"
        return f"logit of {self.classes.tolist()[1]!r}" if self.outputs == 1 else "logit, classes centred"

    def values(self, codes: np.ndarray) -> Tensor:
        """Codes in the canonical form of the likelihood."""
        return self.likelihood.targets(codes, self.outputs)


def _counted(rows: TableRows) -> tuple[np.ndarray, np.ndarray]:
    """The classes of a table on disk, sorted, and how often each is there, by weight."""
    seen = LabelsSeen(rows.roles[0])
    for block in rows.blocks(features=False):
        seen.add(Column(seen.name, "categorical", block.target), block.weights)
    seen = reduce(LabelsSeen.joined, rows.processes.gather(seen))
    if not seen.tally:
        raise rows.nobody()
    encoding = seen.encoding()
    return _array(encoding.categories), encoding.counts


def _refuse_constant(codes: np.ndarray, names: np.ndarray) -> None:
    """Refuses a label that all rows have, or none: nothing tells it from the other."""
    constant = (codes == codes[0]).all(axis=0)
    if constant.any():
        place = int(np.argmax(constant))
        raise InputError(
            f"y: expected both 0 and 1 in each column of labels, got {codes[0, place]:g} in all rows of column "
            f"{names.tolist()[place]!r}. Leave the column out: no row tells 0 from 1."
        )


def _array(labels: Sequence[object]) -> np.ndarray:
    """Numbers as such, where that keeps each as it is; others as objects."""
    text = any(isinstance(label, str) for label in labels)
    numbers = np.array(labels, dtype=object if text else None)
    return numbers if numbers.tolist() == list(labels) else np.array(labels, dtype=object)
