"""Predictions with the digits that are known: more of them would say nothing, and twice the file."""

from __future__ import annotations

import numpy as np
import pandas as pd

# A number keeps the decimal places in which its standard error has this many significant digits: what is dropped is
# less than a thousandth of that error.
OF_ERROR = 4
# Every number keeps so many significant digits of its own, whatever its error: 0.000012 does not become 0.
LEAST = 4
# Of a number without a standard error, such as a probability of a posterior that is one point.
WITHOUT_ERROR = 6
ERROR = "epistemic_sd"
# These are known as well as the mean is, and probabilities too.
LIKE_MEAN = ("mean", "low", "high", "probability", "p")
# Powers of ten up to this one are exact in floating point, and so are quotients by them: 0.1 reads 0.1 again.
EXACT = 22
WHOLE = 2.0**53


def rounded(rows: pd.DataFrame, probabilities: bool) -> pd.DataFrame:
    """Predictions rounded to what is known of them.

    A mean, a probability and the ends of an interval keep the decimal places in which their standard error
    ``epistemic_sd`` has `OF_ERROR` significant digits; all other numbers keep `LEAST` significant digits. A probability
    keeps as many digits of its distance to 1, too, so that none becomes 0 or 1.

    Args:
        rows: columns of `Predictive.to_frame`; others than floating ones stay as they are.
        probabilities: whether means are probabilities.
    """
    columns = {}
    for name in rows.columns:
        values = rows[name].to_numpy()
        if name == "predicted" or values.dtype.kind != "f":
            continue
        of_class = name.startswith("p(")
        prefix, colon, part = ("", "", "p") if of_class else name.rpartition(": ")
        error = f"{prefix}{colon}{ERROR}"
        if part in LIKE_MEAN:
            known = rows[error].to_numpy() if error in rows else np.zeros(len(rows))
            columns[name] = _rounded(values, _places(values, known, probabilities))
        else:
            columns[name] = _rounded(values, LEAST - 1 - _magnitude(values))
    return rows.assign(**columns)


def _places(values: np.ndarray, error: np.ndarray, probabilities: bool) -> np.ndarray:
    """How many decimal places each value keeps; below 0 the digits before the point that become zeros."""
    least = np.where(error > 0, LEAST, WITHOUT_ERROR)
    own = np.abs(values)
    if probabilities:
        own = np.minimum(own, np.abs(1.0 - values), where=(values != 1.0), out=own.copy())
    places = least - 1 - _magnitude(own)
    return np.where(error > 0, np.maximum(places, OF_ERROR - 1 - _magnitude(error)), places)


def _magnitude(values: np.ndarray) -> np.ndarray:
    """The power of ten of the first significant digit; of 0 and of what is not finite, 0."""
    size = np.abs(values)
    usable = np.isfinite(size) & (size > 0)
    return np.floor(np.log10(size, where=usable, out=np.zeros_like(size))).astype(np.int64)


def _rounded(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values to so many decimal places each, as the floating-point number nearest to that decimal one."""
    found = values.copy()
    exact = np.isfinite(values) & (np.abs(places) <= EXACT)
    up, down = 10.0 ** np.clip(places, 0, EXACT), 10.0 ** np.clip(-places, 0, EXACT)
    with np.errstate(over="ignore"):
        whole = np.round(values / down * up)
    exact &= np.abs(whole) < WHOLE
    found[exact] = whole[exact] * down[exact] / up[exact]
    for row in np.flatnonzero(np.isfinite(values) & (places > EXACT)):
        found[row] = float(f"{values[row]:.{places[row]}f}")
    return found
