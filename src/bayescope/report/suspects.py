"""Columns to ask about, in words: those that alone decide the target, that name rows, or are constant."""

from __future__ import annotations

import numpy as np
from scipy import stats

from bayescope import metrics
from bayescope.plots.numbers import cell, fixed
from bayescope.report.judged import Judged
from bayescope.tables import Column
from bayescope.tables.suspicion import hardly_recur

# Fewer rows, or rows of a class, say nothing: a few are separated by chance.
LEAST_ROWS, LEAST_OF_CLASS = 30, 5
# A column alone that ranks two classes as well as this, or orders numbers as well, or shares their values.
RANKED, ORDERED = 0.995, 0.998
# A label that decides the class of its rows recurs this often in the mean.
RECUR = 3


def suspects(judged: Judged) -> tuple[str, ...]:
    """A sentence for each column that looks like a leak, a name of rows or a constant.

    Args:
        judged: all rows that were given are looked at.
    """
    found = [(column, _said(column, judged.every_y, judged)) for column in judged.every]
    return tuple(said for _, said in found if said)


def _said(column: Column, y: np.ndarray, judged: Judged) -> str:
    there = np.array([value is not None and value == value for value in column.values.tolist()])
    values, own, name = column.values[there], y[there], f"\u2018{column.name}\u2019"
    different = set(values.tolist())
    if len(different) <= 1:
        what = f"the one value {cell(next(iter(different)))}" if different else "no value"
        return f"{name} has {what} in all these rows: it says nothing of {judged.target}."
    if len(values) < LEAST_ROWS:
        return ""
    if _names_rows(column, values, len(different)):
        return f"{name} is another in almost every row: does it name rows, and say nothing of new ones?"
    leak = _leak(column, values, own, judged.classes)
    return f"{name} alone {leak}: is it known at prediction time?" if leak else ""


def _names_rows(column: Column, values: np.ndarray, different: int) -> bool:
    """Labels that hardly recur, or whole numbers that are all different and count the rows."""
    if column.kind == "categorical":
        return hardly_recur(different, len(values))
    if different < len(values) or not (values == np.round(values)).all():
        return False
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all() or np.ptp(values) < 1.5 * len(values))


def _leak(column: Column, values: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> str:
    """What a column does alone that no honest one does; empty if it does not."""
    if not classes:
        if column.kind == "categorical" or np.ptp(y) == 0:
            return ""
        along = float(stats.spearmanr(values, y).statistic)
        return f"orders the target (rank correlation {fixed(along, 3)})" if abs(along) >= ORDERED else ""
    counts = np.bincount(y, minlength=len(classes))
    if (np.sort(counts)[-2:] < LEAST_OF_CLASS).any():
        return ""
    if column.kind == "categorical":
        pairs = {(label, code) for label, code in zip(values.tolist(), y.tolist(), strict=True)}
        labels = {label for label, _ in pairs}
        return "separates the classes" if len(pairs) == len(labels) and RECUR * len(labels) <= len(values) else ""
    if len(classes) > 2:
        order = np.argsort(values, kind="stable")
        changes = np.flatnonzero(np.diff(y[order]))
        apart = len(changes) == len(np.unique(y)) - 1 and (np.diff(values[order])[changes] > 0).all()
        return "separates the classes" if apart else ""
    ranked = metrics.ood_auroc(values[y == 0], values[y == 1])
    if max(ranked, 1.0 - ranked) < RANKED:
        return ""
    return "separates the classes" if ranked in (0.0, 1.0) else "almost separates the classes"
