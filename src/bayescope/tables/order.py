"""An order of columns that follows from what they hold, wherever they stand in a table.

What is drawn for one column after another (first weights), or depends on the order of sums (where a long training
ends), is the same for a table whose columns were moved if columns are taken in this order. It is that of a few moments
of each column: alone, with the targets, and with a number of each row to which all columns contribute alike. Columns
that are the same in another unit come by their smallest and largest number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

# Moments are equal where they are in one cell of this width: sums over rows in another order differ in their last
# digits. It is irrational, so that no moment of whole numbers lies between two cells.
CELL = 1e-6 * math.pi


def content_order(moments: np.ndarray) -> np.ndarray:
    """The places of K columns by their moments, shape (K, M), in ascending order; equal ones stay as they are."""
    # Of moments above 1 the cells are relative: their sums differ in as many digits, however large they are.
    cells = np.round(np.sign(moments) * np.log1p(np.abs(moments)) / CELL)
    order: np.ndarray = np.lexsort((np.arange(len(cells)), *cells.T[::-1]))
    return order


def column_order(columns: Iterable[np.ndarray], others: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The places of columns in that order.

    Args:
        columns: of numbers, NaN where missing, shape (N,) each.
        others: the targets, shape (N, S): numbers, of which infinite ends of intervals count as missing, or one column
            of codes of classes, which are integers. The names of the classes and the order of the S columns do not
            matter.
        weights: how often each row counts, shape (N,).
    """
    if others.dtype.kind == "i":
        others = (others == np.unique(others)).astype(np.float64)
    columns = list(columns)
    numbers = [_standardised(column, weights) for column in columns]
    ends = [[column[there].min(), column[there].max()] if (there := ~np.isnan(column)).any() else [0.0, 0.0]
            for column in columns]  # fmt: skip
    shared = sum((column**2 for column in numbers), np.zeros(len(weights)))
    finite = [_standardised(np.where(np.isfinite(other), other, np.nan), weights) for other in others.T]
    beside = np.column_stack([np.ones(len(weights)), shared, *finite]) * (weights / weights.sum())[:, None]
    moments = np.stack([[column**power @ beside for power in (2, 3, 4, 1)] for column in numbers])
    known, targets = moments[..., :2], np.square(moments[..., 2:]).sum(-1, keepdims=True)
    of_content = np.concatenate([known, targets], -1).reshape(len(numbers), -1)
    return content_order(np.column_stack([of_content, np.array(ends)]))


def _standardised(column: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The numbers in standard deviations from their mean; 0 where missing or constant."""
    there = ~np.isnan(column)
    share = weights * there
    if not there.any():
        return np.zeros(len(column))
    if (low := column[there].min()) == (high := column[there].max()):
        return np.zeros(len(column))
    numbers = np.where(there, column, 0.0)
    largest = max(abs(low), abs(high))  # the square of a number near the largest float is infinite
    numbers = numbers / largest
    centred = np.where(there, numbers - share @ numbers / share.sum(), 0.0)
    variance = share @ centred**2 / share.sum()
    return np.asarray(centred / np.sqrt(variance))
