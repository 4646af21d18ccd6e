"""Charts of calibration: reliability with its band, separation, coverage, and the truths in their distributions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bayescope.plots.numbers import percent, plain, tidy
from bayescope.plots.style import shorten
from bayescope.report.blocks import Figure
from bayescope.report.figures import axis, band, bars, diagonal, dots, layout, line, percents, rounded, table, words
from bayescope.report.judged import Judged, Predictions
from bayescope.report.statistics import PIT_BINS, ClassCalibration, NumberCalibration

# The upper part of the reliability chart is the curve, the lower the counts.
CURVE, COUNTS = (0.27, 1.0), (0.0, 0.17)
PROBABILITY_BINS = 20
PARTLY = (
    "A count that is the end of an interval is inside in part: if all of it were inside, the interval would be too "
    "probable."
)


def reliability(c: ClassCalibration, classes: int) -> Figure:
    """Accuracy against confidence, with the band of a calibrated model and the rows in each bin."""
    r = c.reliability
    filled = np.flatnonzero(r.count > 0)
    confidence, accuracy, low, high, count = (
        part[filled] for part in (r.confidence, r.accuracy, r.low, r.high, r.count)
    )
    width, middles = float(np.diff(r.edges)[0]), 0.5 * (r.edges[1:] + r.edges[:-1])[filled]
    hover, rows = [], []
    for b, *measured in zip(filled, confidence, accuracy, low, high, count, strict=True):
        said, right, least, most, n = measured
        calibrated = percents(least, most)
        hover.append(f"confidence {percent(said)}\nright {percent(right)} of {n} rows\ncalibrated: {calibrated}")
        rows.append((percents(r.edges[b], r.edges[b + 1]), str(n), percent(said), percent(right), calibrated))
    outside = int(((accuracy < low) | (accuracy > high)).sum())
    start = max(0.0, float(np.floor(10 * min(1 / classes, *accuracy, *low)) / 10))
    sizes = rounded(7 + 11 * np.sqrt(count / count.sum()))
    look = {"size": sizes, "line": {"color": "@card", "width": 1.5}}
    traces = (
        bars(confidence, high - low, "@band", base=rounded(low), width=[0.42 * width] * len(filled)),
        diagonal(start, 1.0),
        dots(confidence, accuracy, "@accent", hover, marker=look, cliponaxis=False),
        bars(middles, count, "@bar", [f"{n} rows" for n in count], yaxis="y2", width=[0.9 * width] * len(filled)),
    )
    x_axis = axis(
        "confidence in the predicted class",
        range=[1 / classes - 0.02, 1.015],
        anchor="y2",
        tickformat=".0%",
        dtick=0.1 if classes == 2 else 0.2,
    )
    y_axis = axis("share that is right", range=[start - 0.06, 1.03], domain=list(CURVE), tickformat=".0%")
    counts = axis("rows", domain=list(COUNTS), nticks=3, rangemode="tozero")
    return Figure(
        "reliability",
        "Is it right as often as it says?",
        "Points on the dotted line are perfectly calibrated. Below it the model is too sure of itself, above it too "
        "unsure. The bars behind the points are where 95 % of a calibrated model's points would fall; the foot counts "
        f"rows. {len(filled)} of {len(r.count)} bins of confidence hold rows.",
        f"Reliability diagram over {len(filled)} bins of confidence: {outside} of them lie outside the band of a "
        "calibrated model.",
        traces,
        layout(x_axis, y_axis, yaxis2=counts, barmode="overlay"),
        table("Reliability by bin", ("confidence", "rows", "mean confidence", "right", "calibrated, 95 %"), rows),
        400,
    )


def separation(judged: Judged, predicted: Predictions) -> Figure:
    """Where its probabilities lie: of class 1 by truth for two classes, else the confidence of right and wrong rows."""
    if two := len(judged.classes) == 2:
        x, groups = predicted.mean[:, 1], [judged.y == 0, judged.y == 1]
        names = [f"{shorten(judged.target)} = {shorten(name)}" for name in judged.classes]
        what, tints = f"probability of {judged.classes[1]}", ("@class0", "@class1")
        aim, start = "one class at each end", -0.01
    else:
        right = predicted.mean.argmax(1) == judged.y
        x, groups, names = predicted.mean.max(1), [right, ~right], ["right", "wrong"]
        what, tints = "confidence in the predicted class", ("@accent", "@bad")
        aim, start = "right rows near 100 % and wrong rows further left", 1 / len(judged.classes) - 0.05
    edges = np.linspace(0.0, 1.0, PROBABILITY_BINS + 1)
    spans = [percents(a, b) for a, b in pairwise(edges)]
    counts = [np.histogram(x[group], edges)[0] for group in groups]
    traces = []
    for name, count, tint in zip(names, counts, tints, strict=True):
        hover = [f"{name}: {n} rows\n{span}" for n, span in zip(count, spans, strict=True)]
        look = {"opacity": 0.75}
        traces.append(bars(0.5 * (edges[1:] + edges[:-1]), count, tint, hover, marker=look, name=words(name)))
    rows = [(span, *map(str, each)) for span, *each in zip(spans, *counts, strict=True)]
    return Figure(
        "separation",
        "How far does it tell the classes apart?",
        f"Rows by their predicted probability, coloured by their truth. A good model has {aim}.",
        f"Stacked histogram of the {what} for {len(judged)} rows, by {'true class' if two else 'right and wrong'}.",
        tuple(traces),
        layout(axis(what, range=[start, 1.01], tickformat=".0%", dtick=0.2), axis("rows", nticks=5), barmode="stack"),
        table("Rows by probability", ("probability", *names), rows),
        400,
        tuple((name, tint, "square") for name, tint in zip(names, tints, strict=True)),
    )


def coverage(c: NumberCalibration) -> Figure:
    """The share of truths in central intervals against the intervals' probabilities."""
    partly = " " + PARTLY if c.partly else ""
    hover, rows = [], []
    for level, share, low, high in zip(c.levels, c.coverage, c.low, c.high, strict=True):
        calibrated = percents(low, high)
        hover.append(f"{percent(level, 0)} intervals\nhold {percent(share)} of the truths\ncalibrated: {calibrated}")
        rows.append((percent(level, 0), percent(share), calibrated))
    points = dots(c.levels, c.coverage, "@accent", hover, line={"color": "@accent", "width": 2}, cliponaxis=False)
    outside = int(((c.coverage < c.low) | (c.coverage > c.high)).sum())
    look = {"range": [-0.02, 1.02], "tickformat": ".0%", "dtick": 0.2}
    return Figure(
        "coverage",
        "Do its intervals hold what they promise?",
        "Share of truths inside central intervals. Below the dotted line intervals are too narrow, above it too wide; "
        f"the band is where {'at least ' * c.partly}95 % of such shares fall if the intervals are right.{partly}",
        f"Coverage of central intervals at {len(c.levels)} levels; {outside} lie outside the band of a right model.",
        (band(c.levels, c.low, c.high, "@band"), diagonal(0, 1), points | {"mode": "lines+markers"}),
        layout(axis("probability of the interval", **look), axis("share of truths inside", **look)),
        table("Coverage by level", ("interval", "truths inside", "right model, 95 %"), rows),
        360,
    )


def pit(c: NumberCalibration) -> Figure:
    """The truths' places in their predictive distributions, in tenths."""
    rows = [(f"{10 * place} to {10 * place + 10} %", tidy(count)) for place, count in enumerate(c.pit)]
    spread = " A number that has a probability is spread over the tenths that it covers." if c.partly else ""
    expected = c.rows / PIT_BINS
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
    traces = (
        bars(range(PIT_BINS), c.pit, "@bar", [f"{tenth}: {count} rows" for tenth, count in rows]),
        line([-0.5, PIT_BINS - 0.5], [expected, expected], "@muted", width=1, dash="dot"),
    )
    edges = range(0, PIT_BINS + 1, 2)
    x_axis = axis(
        "place of the truth in its predictive distribution",
        range=[-0.55, PIT_BINS - 0.45],
        tickvals=[edge - 0.5 for edge in edges],
        ticktext=[f"{10 * edge}%" for edge in edges],
    )
    return Figure(
        "pit",
        "Where do truths fall in their distributions?",
        "A right model fills every tenth alike, up to chance (the band). High at both ends: intervals too narrow; high "
        f"in the middle: too wide; sloping: predictions too high or too low.{spread}",
        f"Histogram of the truths' places in their predictive distributions; between {plain(float(c.pit.min()))} and "
        f"{tidy(float(c.pit.max()), 3)} rows in each tenth; {tidy(expected, 3)} are expected.",
        traces,
        layout(x_axis, axis("rows", rangemode="tozero"), bargap=0.06, shapes=[strip]),
        table("Truths by tenth of their predictive distribution", ("tenth", "rows"), rows),
        360,
    )
