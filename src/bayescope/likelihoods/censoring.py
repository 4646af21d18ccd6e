"""Numbers that are known to lie in an interval, or that would not have been seen outside one."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayescope import checks
from bayescope.errors import InputError
from bayescope.likelihoods.targets import LabelError

_SIDES = ("right", "left")
_ENDS = ("lower", "upper", "entry", "exit")
# Columns of a number that lies in an interval.
INTERVAL = len(_ENDS)


def Censored(  # it makes y as a class would
    time: ArrayLike,
    event: ArrayLike,
    *,
    side: Literal["right", "left"] | ArrayLike = "right",
    entry: ArrayLike | None = None,
    exit: ArrayLike | None = None,  # the field's word
) -> np.ndarray:
    """Return y for times of which some are censored or truncated, for likelihoods such as `bs.Weibull`.

    A censored row is worth P(Y > time), or P(Y ≤ time) for the left side. What is seen only between entry and exit is
    divided by P(entry < Y ≤ exit) (Klein & Moeschberger 2003, section 3.5).

    Args:
        time: when the event was, or when the watch ended, shape (N,).
        event: 1 for rows whose event was seen, 0 for censored ones, shape (N,).
        side: where the event of a censored row is: "right" of its time (later), "left" of it, or one for each row.
        entry: left truncation (delayed entry): rows are only seen if their time is later than that, shape (N,).
        exit: right truncation: rows are only seen if their time is at most that, shape (N,).

    Returns:
        Float64 of shape (N, 4), with the columns (lower, upper, entry, exit): lower = upper where the event was seen,
        and infinities where there is no bound. Rows of known intervals may be written so by hand. Four columns
        without an infinity are such rows if entry ≤ lower ≤ upper ≤ exit in all and two of these are equal in one, else
        four outcomes.

    Raises:
        InputError: if shapes differ, an event is neither 0 nor 1, or an entry is not before its time; it names the row.
        OptionError: if a side is unknown.
    """
    times, events = _column("time", time), _column("event", event)
    ends = [("event", events)]
    ends += [(name, _column(name, end)) for name, end in (("entry", entry), ("exit", exit)) if end is not None]
    for name, values in ends:
        if len(values) != len(times):
            raise InputError(f"{name}: expected one for each of {len(times)} times, got {len(values)}.")
    wrong = (events != 0) & (events != 1)
    _refuse(wrong, "event: expected 1 (seen) or 0 (censored)", events, "Recode the column of events.")
    sides = np.asarray(side)
    for each in np.unique(sides).tolist():
        checks.choice("side", each, _SIDES)
    left = torch.from_numpy(np.broadcast_to(sides == "left", (len(times),)).copy()) & (events == 0)
    right = ~left & (events == 0)
    bounds = dict(ends)
    begin = bounds.get("entry", torch.full_like(times, -math.inf))
    end = bounds.get("exit", torch.full_like(times, math.inf))
    remedy = "Leave out rows that were never at risk, or mend the column."
    _refuse(begin >= times, "entry: expected it before the time", begin, remedy)
    _refuse(end < times, "exit: expected it at or after the time", end, remedy)
    # A censored row is known to lie between its time and its truncation
    lower = torch.where(left, begin, times)
    upper = torch.where(right, end, times)
    return torch.stack([lower, upper, begin, end], 1).numpy()


def read_intervals(y: ArrayLike, positive: bool) -> Tensor:
    """Canonical targets of numbers that may be censored: float64 (N, 1) of exact ones, or (N, 4).

    Args:
        y: exact numbers (N,) or (N, 1), times with events (N, 2), or what `Censored` returns, (N, 4).
        positive: whether numbers have to be above 0.

    Raises:
        InputError: if the shape does not fit, or a row is not allowed; it names the row and the column.
    """
    values = torch.as_tensor(np.asarray(y) if not isinstance(y, Tensor) else y.detach()).to(torch.float64)
    if values.ndim == 2 and values.shape[1] == 2:
        values = torch.from_numpy(Censored(values[:, 0], values[:, 1])).to(values.device)
    if values.ndim != 2 or values.shape[1] != 4:
        raise InputError(
            "y: expected shape (N,) for 1 output, (N, 2) for times and events, or bs.Censored(time, event), got "
            f"{tuple(values.shape)}."
        )
    lower, upper, entry, exit_ = values.unbind(1)
    seen = lower == upper
    finite = torch.isfinite(lower) | torch.isfinite(upper)
    advice = "bs.Censored(time, event) makes such rows."
    _check(values, torch.isnan(values) | ~finite[:, None], "finite numbers", advice)
    ordered = (lower <= upper) & (entry <= lower) & (upper <= exit_) & (~seen | (entry < lower))
    _check(values, ~ordered[:, None].expand(-1, 4), "entry ≤ lower ≤ upper ≤ exit, and entry < an exact number", advice)
    if positive:
        bad = torch.stack([seen & (lower <= 0), upper <= 0], 1)
        _check(values, bad, "numbers above 0", "Leave such rows out, or use a likelihood of all numbers.")
    return values


def are_intervals(columns: np.ndarray) -> bool:
    """Whether four columns are what `Censored` returns, and not four outcomes of each row."""
    if columns.dtype.kind not in "fiu":
        return False
    lower, upper, entry, end = columns.T
    equal = (lower == upper) | (lower == entry) | (upper == end)
    ordered = (entry <= lower) & (lower <= upper) & (upper <= end)
    return bool(np.isinf(columns).any() or (equal.any() and ordered.all()))


def refuse_no_event(intervals: Tensor) -> None:
    """Refuses times of which none is known from both sides: their likelihood has no maximum.

    Raises:
        InputError: if all are censored on the same side.
    """
    if not bool(intervals[:, 1].isfinite().any()) or not bool((intervals[:, 0] > intervals[:, 2]).any()):
        raise InputError(
            "y: expected at least one event, got times that are censored in all rows. Watch for longer: without an "
            "event the times could be of any length."
        )


def points(y: Tensor) -> Tensor:
    """One finite number for each number of all canonical targets, shape (N, D)."""
    return middle(y) if y.shape[-1] == INTERVAL and are_intervals(y.detach().cpu().numpy()) else y


def middle(y: Tensor) -> Tensor:
    """One finite number for each interval, shape (N, 1): the middle, or the end that is known."""
    lower, upper = y[:, :1], y[:, 1:2]
    known = torch.where(torch.isfinite(lower), lower, upper)
    return torch.where(torch.isfinite(lower) & torch.isfinite(upper), 0.5 * lower + 0.5 * upper, known)


def _column(name: str, values: ArrayLike) -> Tensor:
    found = checks.float64(name, values)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise InputError(f"{name}: expected shape (N,), got {tuple(found.shape)}.")
    return found.cpu()


def _refuse(wrong: Tensor, expected: str, values: Tensor, remedy: str) -> None:
    if wrong.any():
        row = int(torch.nonzero(wrong)[0])
        raise InputError(f"{expected}, got {values[row].item():g} in row {row}. {remedy}")


def _check(values: Tensor, wrong: Tensor, expected: str, advice: str) -> None:
    if wrong.any():
        row, column = torch.nonzero(wrong)[0].tolist()
        if wrong.shape[1] == 4 and wrong[row].all():
            got, place = str([float(f"{each:g}") for each in values[row].tolist()]), ""
        else:
            end = "time" if wrong.shape[1] == 2 and values[row, 0] == values[row, 1] else _ENDS[column]
            got, place = f"{values[row, column].item():g}", f"row {row}, column {end!r}"
        raise LabelError(expected, got, row, advice, place)
