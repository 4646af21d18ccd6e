"""Tables on which posteriors can be compared: each column has to tell something, and something of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bayescope.cli.training_table import TrainingTable
from bayescope.errors import InputError

# Sums of fourth powers of such numbers, as in the variance of a squared feature, neither overflow nor underflow.
LARGEST, SMALLEST_SPREAD = 1e75, 1e-75


def check_comparable(table: TrainingTable) -> None:
    """Refuses columns whose weights nothing tells apart, or that cannot be computed with.

    Raises:
        InputError: if a column is constant, its numbers are too large or too close, or two are equal in every row.
    """
    for name, kind in table.kinds.items():
        values = table.features[name].to_numpy()
        where = f"{table.source}: column {name!r}"
        if len(pd.unique(values)) == 1:  # a missing value counts as one: it tells something too
            raise InputError(f"{where}: expected more than one value, got {values[0]} in every row. Drop the column.")
        if kind == "numeric":
            _check_numbers(where, values[~np.isnan(values)])
    seen: dict[object, str] = {}
    for name in table.kinds:
        values = table.features[name].to_numpy()
        key = (values + 0.0).tobytes() if table.kinds[name] == "numeric" else tuple(values)  # −0.0 + 0.0 is +0.0
        twin = seen.setdefault(key, name)
        if twin != name:
            raise InputError(
                f"{table.source}: expected different columns, got {twin!r} and {name!r} equal in every row. Drop one."
            )


def _check_numbers(where: str, numbers: np.ndarray) -> None:
    if np.abs(numbers).max() > LARGEST:
        farthest = numbers[np.abs(numbers).argmax()]
        raise InputError(
            f"{where}: expected numbers of at most {LARGEST:g} in magnitude, whose squares can be summed, got "
            f"{farthest:g}. Replace it, or give the column another unit."
        )
    if len(set(numbers)) > 1 and numbers.std(ddof=1) < SMALLEST_SPREAD:
        raise InputError(
            f"{where}: expected a standard deviation of at least {SMALLEST_SPREAD:g}, whose square can be divided by, "
            f"got {numbers.std(ddof=1):g}. Give the column another unit."
        )
