"""Where to draw the line between two classes: ROC and precision-recall curves, and what each threshold would cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayescope.comparison.resampling import TAILS
from bayescope.plots.numbers import percent
from bayescope.plots.style import shorten
from bayescope.report.blocks import Block, Decisions, Figure, Figures, aside
from bayescope.report.figures import Trace, axis, band, layout, line, table
from bayescope.report.judged import Judged, Predictions

# Thresholds, by hundredths; points of a curve; draws of a band; classes that have curves and counts.
THRESHOLDS = np.linspace(0.0, 1.0, 101)
GRID = np.linspace(0.0, 1.0, 51)
DRAWS, MOST_CLASSES = 400, 8
# Rows that the bands are drawn from: with more they would be as narrow as the line.
MOST_ROWS = 4000


def decisions(judged: Judged, predicted: Predictions, random_state: int) -> tuple[Block, ...]:
    """The curves, and the counts behind a threshold slider; of many classes each against all others.

    Args:
        judged: rows with classes.
        predicted: their probabilities.
        random_state: of the bands.
    """
    names = judged.classes
    rows = np.bincount(judged.y, minlength=len(names))
    often = np.argsort(-rows, kind="stable")[:MOST_CLASSES]
    chosen = [1] if len(names) == 2 else sorted(k for k in often.tolist() if rows[k])
    if (rows > 0).sum() < 2:
        said = f"All rows here are of the class {names[rows.argmax()]}: curves need rows of two classes."
        return (aside(said), Decisions(_counts(judged, predicted, chosen)))
    generator = np.random.default_rng(random_state)
    curves = [_curves(predicted.mean[:, k], judged.y == k, generator) for k in chosen]
    said = (
        "A row counts as positive if its probability is at least the threshold. The bands are 95 % intervals from "
        f"{DRAWS} draws of the Bayesian bootstrap; each draw adds one row of each class at a random rank."
    )
    said += " Each class is compared with all others." if len(names) > 2 else ""
    if 1 < len(chosen) < len(names):
        left_out = ", ".join(name for k, name in enumerate(names) if k not in chosen)
        said += f" The classes with the fewest rows have no curve: {left_out}."
    of = f"{judged.target} = {names[1]}" if len(names) == 2 else "each class against the others"
    labels = [names[k] for k in chosen] if len(chosen) > 1 else [""]
    figures = (
        _figure("roc", "ROC curve", ("false positive rate", "true positive rate"), of, labels, [c[0] for c in curves]),
        _figure(
            "precision-recall", "Precision and recall", ("recall", "precision"), of, labels, [c[1] for c in curves]
        ),
    )
    return (aside(said), Figures(figures, "half"), Decisions(_counts(judged, predicted, chosen)))


def _figure(
    name: str,
    title: str,
    axes: tuple[str, str],
    of: str,
    labels: list[str],
    curves: list[tuple[np.ndarray, ...]],
) -> Figure:
    """Curves with bands, of one class without a label or of several with theirs."""
    x, y = axes
    traces: list[Trace] = []
    rows: list[tuple[str, ...]] = []
    for place, (label, (middle, low, high)) in enumerate(zip(labels, curves, strict=True)):
        colour = f"@class{place}" if label else "@accent"
        spans = [f"{percent(a, 0)} to {percent(b, 0)}" for a, b in zip(low, high, strict=True)]
        hover = [
            f"{label}\n{x} {percent(at, 0)}\n{y} {percent(m, 0)} ({span})".lstrip()
            for at, m, span in zip(GRID, middle, spans, strict=True)
        ]
        traces += [band(GRID, low, high, f"{colour}-band"), line(GRID, middle, colour, hover)]
        named = [label] if label else []
        rows += [(percent(GRID[at], 0), *named, percent(middle[at]), spans[at]) for at in range(0, len(GRID), 5)]
    several = len(labels) > 1
    ends = {"range": [-0.02, 1.02], "tickformat": ".0%", "nticks": 6}
    alt = f"{title} of {of}, with 95 % bands."
    head = (x, *(["class"] if several else []), y, "95 % band")
    key = tuple((shorten(label, 24), f"@class{place}", "line") for place, label in enumerate(labels)) if several else ()
    stage = layout(axis(x, **ends), axis(y, **ends))
    return Figure(name, title, "", alt, tuple(traces), stage, table(f"{title} of {of}", head, rows), 300, key)


def _counts(judged: Judged, predicted: Predictions, chosen: list[int]) -> dict[str, Any]:
    """For each class and threshold: true and false positives, and how many true ones the probabilities expect."""
    found: dict[str, Any] = {"rows": len(judged), "target": judged.target, "classes": []}
    for k in chosen:
        p, own = predicted.mean[:, k], judged.y == k
        over = [p >= threshold for threshold in THRESHOLDS]
        found["classes"].append(
            {
                "name": judged.classes[k],
                "positives": int(own.sum()),
                "expected": float(p.sum()),
                "true": [int((own & each).sum()) for each in over],
                "false": [int((~own & each).sum()) for each in over],
                "sums": [round(float(p[each].sum()), 4) for each in over],
            }
        )
    return found


def _curves(p: np.ndarray, own: np.ndarray, generator: np.random.Generator) -> list[tuple[np.ndarray, ...]]:
    """(curve, low, high) of the true positive rate over the false one, and of the precision over the recall."""
    points = _at_weights(p, own.astype(np.float64), (~own).astype(np.float64))
    some = generator.permutation(len(p))[:MOST_ROWS]
    drawn = []
    for _ in range(DRAWS):
        # With one more row of each class at any rank, no curve of few rows is certain.
        rank = generator.choice(p[some], 2)
        scores, labels = np.append(p[some], rank), np.append(own[some], [True, False])
        weights = generator.exponential(size=len(scores))
        drawn.append(_at_weights(scores, weights * labels, weights * ~labels))
    ends = np.quantile(np.array(drawn), TAILS, axis=0)
    return [(points[k], np.minimum(ends[0][k], points[k]), np.maximum(ends[1][k], points[k])) for k in range(2)]


def _at_weights(p: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Both curves on the grid, shape (2, n), of rows with weights; equal probabilities are one step."""
    order = np.argsort(-p, kind="stable")
    last = np.append(np.flatnonzero(np.diff(p[order])), len(p) - 1)
    true, false = (np.cumsum(part[order])[last] for part in (positive, negative))
    recall = np.append(0.0, true / (true[-1] or 1.0))
    wrong = np.append(0.0, false / (false[-1] or 1.0))
    precision = true / (true + false)
    # The precision at a recall is that of the first threshold that reaches it.
    place = np.searchsorted(recall[1:], GRID - 1e-12).clip(max=len(precision) - 1)
    return np.stack([_upper(wrong, recall), precision[place]])


def _upper(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A rising polygon on the grid; at an x with several y the largest."""
    place = np.searchsorted(x, GRID + 1e-12, side="right") - 1
    after = np.minimum(place + 1, len(x) - 1)
    width = x[after] - x[place]
    share = np.where(width > 0, (GRID - x[place]) / np.where(width > 0, width, 1.0), 0.0)
    found: np.ndarray = y[place] + np.clip(share, 0.0, 1.0) * (y[after] - y[place])
    return found
