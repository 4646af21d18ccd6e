"""Charts of calibration: reliability with its band; coverage and where the truths fell in their distributions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bayescope.metrics import Reliability
from bayescope.report.facts.calibration import PIT_BINS, ClassCalibration, NumberCalibration
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.predictions import Predictions
from bayescope.report.page.blocks import Figure, Table
from bayescope.report.page.figures import Trace, axis, diagonal, dots, layout, rounded, table, words
from bayescope.report.page.numbers import percent, plain, short

# The upper part of the reliability chart is the curve, the lower the counts.
CURVE, COUNTS = (0.27, 1.0), (0.0, 0.17)
PROBABILITY_BINS = 20


def reliability(c: ClassCalibration, classes: int) -> Figure:
    """Accuracy against confidence, with the band of a calibrated model and the rows in each bin.

    Args:
        c: what was measured.
        classes: how many.
    """
    r = c.reliability
    filled = np.flatnonzero(r.count > 0)
    least = 1.0 / classes
    start = max(0.0, float(np.floor(10 * min(least, *r.accuracy[filled], *r.low[filled])) / 10))
    x_axis = axis("confidence in the predicted class", range=[least - 0.02, 1.015], anchor="y2")
    x_axis |= {"tickformat": ".0%", "dtick": 0.1 if classes == 2 else 0.2}
    y_axis = axis("share that is right", range=[start - 0.06, 1.03], domain=list(CURVE), tickformat=".0%")
    outside = sum(bool(r.accuracy[b] < r.low[b] or r.accuracy[b] > r.high[b]) for b in filled)
    return Figure(
        "reliability",
        "Is it right as often as it says?",
        "Points on the dotted line are perfectly calibrated. Below it the model is too sure of itself, above it too "
        "modest. The bars behind the points are where 95 % of a calibrated model's points would fall; the foot counts "
        "rows.",
        f"Reliability diagram over {len(filled)} bins of confidence: {outside} of them lie outside the band of a "
        "calibrated model.",
        _bins(r, filled, diagonal(start, 1.0)),
        layout(
            x_axis,
            y_axis,
            yaxis2=axis("rows", domain=list(COUNTS), nticks=3, rangemode="tozero"),
            barmode="overlay",
        ),
        _table_of_bins(r, filled),
        400,
    )


def _bins(r: Reliability, filled: np.ndarray, calibrated: Trace) -> tuple[Trace, ...]:
    """What is drawn: the band of each bin, the line of a calibrated model, the points and the rows below."""
    x, y = rounded(r.confidence[filled]), rounded(r.accuracy[filled])
    width = float(np.diff(r.edges)[0])
    hover = [
        f"confidence {percent(r.confidence[b])}\nright {percent(r.accuracy[b])} of {r.count[b]} rows\n"
        f"calibrated: {percent(r.low[b], 0)} to {percent(r.high[b], 0)}"
        for b in filled
    ]
    bands = {
        "type": "bar",
        "x": x,
        "y": rounded((r.high - r.low)[filled]),
        "base": rounded(r.low[filled]),
        "width": [0.42 * width] * len(filled),
        "marker": {"color": "@band", "line": {"width": 0}},
        "hoverinfo": "skip",
    }
    sizes = 7 + 11 * np.sqrt(r.count[filled] / r.count.sum())
    points = dots(x, y, "@accent", [], marker={"size": rounded(sizes), "line": {"color": "@card", "width": 1.5}})
    points |= {"hovertext": [words(text) for text in hover], "cliponaxis": False}
    counts = {
        "type": "bar",
        "x": rounded(0.5 * (r.edges[1:] + r.edges[:-1])[filled]),
        "y": r.count[filled].tolist(),
        "yaxis": "y2",
        "width": [0.9 * width] * len(filled),
        "marker": {"color": "@bar"},
        "hovertext": [f"{count} rows" for count in r.count[filled]],
        "hoverinfo": "text",
    }
    return bands, calibrated, points, counts


def _table_of_bins(r: Reliability, filled: np.ndarray) -> Table:
    rows = [
        (
            f"{percent(r.edges[b], 0)} to {percent(r.edges[b + 1], 0)}",
            str(r.count[b]),
            percent(r.confidence[b]),
            percent(r.accuracy[b]),
            f"{percent(r.low[b], 0)} to {percent(r.high[b], 0)}",
        )
        for b in filled
    ]
    return table("Reliability by bin", ("confidence", "rows", "mean confidence", "right", "calibrated, 95 %"), rows)


def separation(judged: Judged, told: Predictions) -> Figure:
    """Where its probabilities lie: of class 1 by truth for two classes, else the confidence of right and wrong rows.

    Args:
        judged: rows with classes.
        told: their predictions.
    """
    two = len(judged.classes) == 2
    if two:
        x, groups = told.mean[:, 1], [judged.y == 0, judged.y == 1]
        names = [f"{short(judged.target, 24)} = {short(name, 24)}" for name in judged.classes]
        what, tints = f"probability of {judged.classes[1]}", ("@class0", "@class1")
    else:
        right = told.mean.argmax(1) == judged.y
        x, groups, names = told.mean.max(1), [right, ~right], ["right", "wrong"]
        what, tints = "confidence in the predicted class", ("@accent", "@bad")
    edges = np.linspace(0.0, 1.0, PROBABILITY_BINS + 1)
    counts = [np.histogram(x[group], edges)[0] for group in groups]
    middles, spans = 0.5 * (edges[1:] + edges[:-1]), list(pairwise(edges))
    traces = [
        {
            "type": "bar",
            "name": words(name),
            "x": rounded(middles),
            "y": count.tolist(),
            "marker": {"color": tint, "opacity": 0.75},
            "hovertext": [
                words(f"{name}: {n} rows\n{percent(a, 0)} to {percent(b, 0)}")
                for n, (a, b) in zip(count, spans, strict=True)
            ],
            "hoverinfo": "text",
        }
        for name, count, tint in zip(names, counts, tints, strict=True)
    ]
    rows = [
        (f"{percent(a, 0)} to {percent(b, 0)}", *(str(count[k]) for count in counts)) for k, (a, b) in enumerate(spans)
    ]
    aim = "one class lies at each end" if two else "right rows lie at the right end and wrong ones do not"
    return Figure(
        "separation",
        "How far does it tell the classes apart?",
        f"Rows by what the model says of them, stacked and coloured by what was true. It tells well where {aim}.",
        f"Stacked histogram of the {what} for {len(judged)} rows, by {'true class' if two else 'right and wrong'}.",
        tuple(traces),
        layout(
            axis(
                what,
                range=[-0.01, 1.01] if two else [1 / len(judged.classes) - 0.05, 1.01],
                tickformat=".0%",
                dtick=0.2,
            ),
            axis("rows", nticks=5),
            barmode="stack",
        ),
        table("Rows by probability", ("probability", *names), rows),
        400,
        tuple((name, tint, "square") for name, tint in zip(names, tints, strict=True)),
    )


def coverage(c: NumberCalibration) -> Figure:
    """The share of truths in central intervals against the intervals' probabilities."""
    x, y = rounded(c.levels), rounded(c.coverage)
    hover = [
        f"{percent(level, 0)} intervals\nhold {percent(share)} of the truths\n"
        f"calibrated: {percent(low, 0)} to {percent(high, 0)}"
        for level, share, low, high in zip(c.levels, c.coverage, c.low, c.high, strict=True)
    ]
    bands = {
        "type": "scatter",
        "x": [*x, *x[::-1]],
        "y": [*rounded(c.high), *rounded(c.low)[::-1]],
        "fill": "toself",
        "fillcolor": "@band",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
    }
    points = dots(x, y, "@accent", [], mode="lines+markers", line={"color": "@accent", "width": 2})
    points |= {"hovertext": [words(text) for text in hover], "cliponaxis": False}
    rows = [
        (percent(level, 0), percent(share), f"{percent(low, 0)} to {percent(high, 0)}")
        for level, share, low, high in zip(c.levels, c.coverage, c.low, c.high, strict=True)
    ]
    outside = int(((c.coverage < c.low) | (c.coverage > c.high)).sum())
    look = {"range": [-0.02, 1.02], "tickformat": ".0%", "dtick": 0.2}
    return Figure(
        "coverage",
        "Do its intervals hold what they promise?",
        "Share of truths inside central intervals. Below the dotted line intervals are too narrow, above it too wide; "
        "the band is where 95 % of such shares fall if the intervals are right.",
        f"Coverage of central intervals at {len(c.levels)} levels; {outside} lie outside the band of a right model.",
        (bands, diagonal(0, 1), points),
        layout(axis("probability of the interval", **look), axis("share of truths inside", **look)),
        table("Coverage by level", ("interval", "truths inside", "right model, 95 %"), rows),
        360,
    )


def pit(c: NumberCalibration) -> Figure:
    """The truths' places in their predictive distributions, in tenths."""
    tenths = [f"{10 * place} to {10 * place + 10} %" for place in range(PIT_BINS)]
    flat = c.rows / PIT_BINS
    edges = [-0.5, PIT_BINS - 0.5]
    strip = {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": c.pit_low,
        "y1": c.pit_high,
        "fillcolor": "@band",
        "line": {"width": 0},
        "layer": "below",
    }
    bars = {
        "type": "bar",
        "x": list(range(PIT_BINS)),
        "y": c.pit.tolist(),
        "marker": {"color": "@bar"},
        "hovertext": [f"{tenth}: {count} rows" for tenth, count in zip(tenths, c.pit, strict=True)],
        "hoverinfo": "text",
    }
    middle = {
        "type": "scatter",
        "x": edges,
        "y": [flat, flat],
        "mode": "lines",
        "line": {"color": "@muted", "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }
    ticks = [edge - 0.5 for edge in range(0, PIT_BINS + 1, 2)]
    x_axis = axis("place of the truth in its predictive distribution", tickvals=ticks, range=[-0.55, PIT_BINS - 0.45])
    x_axis |= {"ticktext": [f"{10 * edge}%" for edge in range(0, PIT_BINS + 1, 2)]}
    rows = [(tenth, str(count)) for tenth, count in zip(tenths, c.pit, strict=True)]
    return Figure(
        "pit",
        "Where do truths fall in their distributions?",
        "A right model fills every tenth alike, up to chance (the band). High at both ends: intervals too narrow; high "
        "in the middle: too wide; sloping: predictions too high or too low.",
        f"Histogram of the truths' places in their predictive distributions; between {plain(float(c.pit.min()))} and "
        f"{plain(float(c.pit.max()))} rows in each tenth, where {plain(flat)} are expected.",
        (bars, middle),
        layout(x_axis, axis("rows", rangemode="tozero"), bargap=0.06, shapes=[strip]),
        table("Truths by tenth of their predictive distribution", ("tenth", "rows"), rows),
        360,
    )
