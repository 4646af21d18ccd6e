"""Weighted rows in canonical form: each combination of inputs, targets and offset once, in an order of its own.

A model that is fitted to that knows nothing of the order in which the rows came, and a row of weight 2 is the same as
two rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from bayescope import checks
from bayescope.errors import InputError
from bayescope.tables import Column


@final
@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Rows that all differ.

    Attributes:
        columns: of the table, N rows each.
        targets: shape (N, K).
        offset: shape (N, C), or ``None``.
        weights: how often each row counts, shape (N,).
    """

    columns: list[Column]
    targets: np.ndarray
    offset: np.ndarray | None
    weights: np.ndarray

    @classmethod
    def of(
        cls, columns: Sequence[Column], targets: np.ndarray, offset: np.ndarray | None, weights: np.ndarray
    ) -> DistinctRows:
        """Merges equal rows, whose weights add up; rows of weight 0 are left out.

        Args:
            columns: of the table, N rows each.
            targets: shape (N, K).
            offset: shape (N, C), or ``None``.
            weights: not negative, not all 0, shape (N,).
        """
        extra = () if offset is None else tuple(offset.T)
        keys = np.stack([*map(_numbers, columns), *targets.T, *extra])
        # The weights come last: in one order among equal rows, they have one sum.
        order = np.lexsort((weights, *keys[::-1]))
        order = order[weights[order] > 0]
        keys = keys[:, order]
        differ = (keys[:, 1:] != keys[:, :-1]) & ~(np.isnan(keys[:, 1:]) & np.isnan(keys[:, :-1]))
        starts = np.flatnonzero(np.concatenate([[True], differ.any(0)]))
        rows = order[starts]
        return cls(
            [replace(column, values=column.values[rows]) for column in columns],
            targets[rows],
            None if offset is None else offset[rows],
            np.add.reduceat(weights[order], starts),
        )

    def arrays(self) -> list[np.ndarray]:
        """What tells these rows from others, as numbers."""
        extra = [] if self.offset is None else [self.offset]
        return [*map(_numbers, self.columns), self.targets, *extra, self.weights]


def row_offset(offset: Any, rows: int, outputs: int) -> np.ndarray | None:
    """The offset of each row and output, shape (N, C), or ``None``.

    Raises:
        InputError: if its shape does not fit or a number is not finite.
    """
    if offset is None:
        return None
    numbers = checks.float64("offset", offset).numpy()
    columns = numbers[:, None] if numbers.ndim == 1 and outputs == 1 else numbers
    if columns.shape != (rows, outputs):
        expected = f"({rows},)" if outputs == 1 else f"({rows}, {outputs}), a column an output"
        raise InputError(f"offset: expected shape {expected}, got {numbers.shape}.")
    return columns


def _numbers(column: Column) -> np.ndarray:
    """The column's numbers, or the rank of each of its labels; NaN where missing."""
    if column.kind == "numeric":
        return column.values
    values = column.values.tolist()
    labels = sorted(set(values) - {None}, key=lambda label: (isinstance(label, str), label))
    ranks: dict[object, float] = {label: float(rank) for rank, label in enumerate(labels)}
    return np.array([ranks.get(value, np.nan) for value in values])
