"""Charts of what moves the predictions: effects with bands, maps of pairs, partial dependence, and tables of bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayescope.additive.effects import Effect, Surface
from bayescope.additive.explanation import Importance
from bayescope.plots.additive import columns, density_bars, missing_place, places
from bayescope.plots.numbers import MISSING, alike, around, cell, fixed, plain, signed, tidy
from bayescope.plots.style import shorten
from bayescope.report.blocks import BarTable, Figure, TrackBar
from bayescope.report.figures import Trace, axis, band, bars, dots, layout, line, rounded, table, words
from bayescope.report.reasons import MOST_WEIGHTS, Coefficients, Curve, Dependence

FOOT = 0.17
LONG_LABELS = 22
LABEL = 14
# Outputs stand next to each other at a label, at this distance.
ASIDE = 0.14
# Cells that hold next to none of the data are pale.
PALE = 0.35
MOST_TERMS = 30


def effect(curve: Effect, place: int, span: tuple[float, float]) -> Figure:
    """A feature's effect over its grid with the band, and at the foot where the data lie.

    Args:
        curve: the effect.
        place: of the figure on the page.
        span: of the effect axis, one for all features, so that they may be compared.
    """
    mean, low, high = (columns(part) for part in (curve.mean, curve.low, curve.high))
    count = mean.shape[1]
    names = [str(name) for name in curve.outputs] or [""] * count
    traces: list[Trace] = []
    rows: list[tuple[str, ...]] = []
    thin = 1 if curve.categorical else 3
    for k, name in enumerate(names):
        ends = mean[:, k], low[:, k], high[:, k]
        aside = ASIDE * (k - 0.5 * (count - 1))
        traces += _drawn(places(curve), curve.grid, ends, name, _colour(k, count), curve.categorical, aside)
        rows += _rows(curve.grid[::thin], [end[::thin] for end in ends], name if count > 1 else "")
    if curve.missing is not None:
        parts = [np.atleast_1d(part) for part in (curve.missing.mean, curve.missing.low, curve.missing.high)]
        for k, name in enumerate(names):
            gone = [part[[k]] for part in parts]
            [trace] = _drawn(np.array([missing_place(curve)]), [None], gone, name, _colour(k, count), True, 0.0)
            traces.append(trace | {"marker": {**trace["marker"], "symbol": "diamond"}})
            rows += _rows([None], gone, name if count > 1 else "")
    at, shares, width = density_bars(curve)
    hover = [f"{fixed(100 * share, 1)} % of the data" for share in shares]
    traces.append(bars(at, shares, "@bar", hover, width=rounded(width), yaxis="y2"))
    band_name = f"{100 * curve.level:g} % band"
    hidden: Trace = {"showticklabels": False, "showline": False, "showgrid": False}
    stage = layout(
        {**_ticks(curve.grid, curve.categorical, missing_place(curve) if curve.missing else None), "anchor": "y2"},
        axis(domain=[FOOT, 1.0], range=list(span), nticks=5, zeroline=True, zerolinecolor="@line"),
        yaxis2=axis(domain=[0.0, FOOT - 0.05], rangemode="tozero", **hidden),
    )
    head = (curve.feature, *(["output"] if count > 1 else []), "effect", band_name)
    what = f"Effect of {curve.feature} on {curve.unit}"
    alt = f"{what}: from {plain(float(mean.min()))} to {plain(float(mean.max()))}, with {band_name}s."
    return Figure(f"effect-{place}", curve.feature, "", alt, tuple(traces), stage, table(what, head, rows), 240)


def surface(surface: Surface, place: int) -> Figure:
    """The joint effect of a pair beyond the effects of its two features, as a map; cells without data are pale."""
    mean, low, high = (part[..., 0] if part.ndim == 3 else part for part in (surface.mean, surface.low, surface.high))
    first, second = surface.features
    (a, width), (b, height) = _cells(surface.grid_a), _cells(surface.grid_b)
    largest = float(np.abs(mean).max()) or 1.0
    pairs = [(cell(va), cell(vb)) for va in surface.grid_a for vb in surface.grid_b]
    values = [(signed(m), alike(*ends)) for m, *ends in zip(mean.ravel(), low.ravel(), high.ravel(), strict=True)]
    hover = [
        f"{first} {va}, {second} {vb}\n{value} ({ends})" for (va, vb), (value, ends) in zip(pairs, values, strict=True)
    ]
    steps = [3 if grid.dtype.kind == "f" else 1 for grid in (surface.grid_a, surface.grid_b)]
    coarse = np.arange(mean.size).reshape(mean.shape)[:: steps[0], :: steps[1]].ravel()
    cells = bars(
        np.repeat(a, len(b)),
        np.tile(height, len(a)),
        rounded(mean),
        hover,
        marker={"opacity": rounded(np.where(surface.density.ravel() > 0, 1.0, PALE))},
        base=rounded(np.tile(b - 0.5 * height, len(a))),
        width=rounded(np.repeat(width, len(b))),
        meta={"tones": ["@low", "@middle", "@high"], "largest": largest},
    )
    small = {"size": 10, "color": "@muted"}
    colours = {
        "color": [0],
        "colorscale": [[0, "@low"], [0.5, "@middle"], [1, "@high"]],
        "cmin": -largest,
        "cmax": largest,
        "showscale": True,
        "colorbar": {"thickness": 9, "outlinewidth": 0, "len": 0.9, "nticks": 5, "tickfont": small, "xpad": 4},
    }
    scale = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": colours, "hoverinfo": "skip"}
    of_output = f" Drawn is the part of {surface.outputs[0]}." if surface.outputs else ""
    return Figure(
        f"surface-{place}",
        f"{first} × {second}",
        f"What both say beyond their separate effects, in {surface.unit}; pale where there are no data.{of_output}",
        f"Map of the joint effect of {first} and {second}, between {plain(float(mean.min()))} and "
        f"{plain(float(mean.max()))}.",
        (cells, scale),
        layout(_map_axis(first, surface.grid_a), _map_axis(second, surface.grid_b), barmode="overlay", bargap=0),
        table(
            "Joint effect on a coarse grid",
            (first, second, "effect", "95 % interval"),
            [(*pairs[k], *values[k]) for k in coarse],
        ),
        300,
    )


def curve(feature_curve: Curve, place: int, dependence: Dependence, span: tuple[float, float], unit: str) -> Figure:
    """Partial dependence on a feature with the band of a typical row."""
    outputs = [1] if len(dependence.outputs) == 2 else range(feature_curve.mean.shape[1])
    several = len(outputs) > 1
    at = (
        np.arange(len(feature_curve.grid))
        if feature_curve.categorical
        else np.asarray(feature_curve.grid, dtype=np.float64)
    )
    traces: list[Trace] = []
    rows: list[tuple[str, ...]] = []
    for order, output in enumerate(outputs):
        ends = [part[:, output] for part in (feature_curve.mean, feature_curve.low, feature_curve.high)]
        name = str(dependence.outputs[output]) if several else ""
        aside = ASIDE * (order - 0.5 * (len(outputs) - 1))
        traces += _drawn(
            at, feature_curve.grid, ends, name, _colour(order, len(outputs)), feature_curve.categorical, aside
        )
        rows += _rows(feature_curve.grid, ends, name, sign=False)
    alt = f"Partial dependence of {unit} on {feature_curve.feature}."
    head = (feature_curve.feature, *(["class"] if several else []), unit, "95 % band")
    stage = layout(_ticks(feature_curve.grid, feature_curve.categorical), axis(range=list(span), nticks=5))
    return Figure(f"curve-{place}", feature_curve.feature, "", alt, tuple(traces), stage, table(alt, head, rows), 230)


def span_of(lows: Sequence[np.ndarray], highs: Sequence[np.ndarray]) -> tuple[float, float]:
    """An axis range that all of them fit in, with a little room."""
    low, high = min(float(np.min(part)) for part in lows), max(float(np.max(part)) for part in highs)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def importance(ranking: Importance, silent: Sequence[str] = ()) -> BarTable:
    """Terms by how much they move the predictions; of several outputs the one that each term moves most.

    Args:
        ranking: of all terms.
        silent: those that have no line.
    """
    mean, low, high, point = (
        part if part.ndim == 1 else part[np.arange(len(part)), ranking.mean.argmax(1)]
        for part in (ranking.mean, ranking.low, ranking.high, ranking.at_mean)
    )
    order = [place for place in ranking.order if ranking.names[place] not in silent][:MOST_TERMS]
    most = float(high[order].max()) or 1.0
    lines = [
        _track(
            ranking.names[k].replace(" & ", " × "),
            around(mean[k], low[k], high[k], most),
            (mean[k], low[k], high[k]),
            (0.0, most),
            mark=point[k],
        )
        for k in order
    ]
    more = len(ranking.names) - len(order) - len(silent)
    caption = (
        f"Mean absolute contribution over the training rows, in {ranking.unit}, with 95 % intervals. The tick is that "
        "of the mean effect: close to 0 where a bar is no more than uncertainty."
    )
    caption += f" {more} more contribute less." if more else ""
    return BarTable(caption, ("term", "", "importance"), tuple(lines))


def coefficients(linear: Coefficients) -> tuple[BarTable, ...]:
    """One table for each output: weights times the inputs' standard deviations, so that bars can be compared."""
    order = linear.order[:MOST_WEIGHTS]
    mean, low, high = (part[:, :-1] * linear.scales for part in linear.weights)
    least, most = min(0.0, float(low[:, order].min())), max(0.0, float(high[:, order].max()))
    more = f" {len(linear.names) - len(order)} more move it less." if len(linear.names) > len(order) else ""
    tables = []
    for output, intercept in enumerate(linear.weights[0][:, -1]):
        lines = []
        for k in order:
            value = mean[output, k], low[output, k], high[output, k]
            text, tint = around(*value, max(-least, most), sign=True), "high" if value[0] > 0 else "low"
            lines.append(_track(linear.names[k], text, value, (least, most), tint=tint))
        of = f" for {linear.outputs[output]}" if linear.outputs else ""
        caption = (
            f"Change of {linear.unit}{of} for one standard deviation more of each input, with 95 % intervals. "
            f"Intercept {plain(intercept)}.{more}"
        )
        tables.append(BarTable(caption, ("input", "", "per standard deviation"), tuple(lines)))
    return tuple(tables)


def _track(
    name: str,
    text: tuple[str, str],
    value: tuple[float, float, float],
    track: tuple[float, float],
    *,
    tint: str = "accent",
    mark: float | None = None,
) -> TrackBar:
    """A value with the ends of its interval as a bar; places are in percent of the track."""

    def place(at: float) -> float:
        return round(100.0 * (float(at) - track[0]) / ((track[1] - track[0]) or 1.0), 2)

    zero, length, low, high = (place(at) for at in (0.0, *value))
    left, right = sorted((zero, length))
    whisker = None if high <= low else (low, round(high - low, 2))
    at_mark = None if mark is None else place(mark)
    return TrackBar(name, *text, left, round(right - left, 2), whisker, zero, tint, at_mark)


def _drawn(
    at: np.ndarray,
    grid: Sequence[object] | np.ndarray,
    ends: Sequence[np.ndarray],
    name: str,
    colour: str,
    dotted: bool,
    aside: float,
) -> list[Trace]:
    """The mean and its interval: a curve with a band, or dots with bars at labels."""
    mean, low, high = ends
    hover = [
        f"{cell(value)}  →  {f'{name}: ' if name else ''}{plain(m)} ({alike(lo, hi)})"
        for value, m, lo, hi in zip(grid, mean, low, high, strict=True)
    ]
    if not dotted:
        return [band(at, low, high, f"{colour}-band"), line(at, mean, colour, hover)]
    reach = {"array": rounded(high - mean), "arrayminus": rounded(mean - low)}
    look = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.6, "width": 0}
    return [dots(at + aside, mean, colour, hover, error_y=look | reach)]


def _rows(
    grid: Sequence[object] | np.ndarray, ends: Sequence[np.ndarray], name: str, *, sign: bool = True
) -> list[tuple[str, ...]]:
    """Lines of the table behind a chart: the value, the output if there are several, the mean and its interval."""
    written = signed if sign else plain
    return [
        (cell(value), *([name] if name else []), written(m), alike(low, high))
        for value, m, low, high in zip(grid, *ends, strict=True)
    ]


def _ticks(grid: np.ndarray, labels: bool, missing: float | None = None) -> Trace:
    """The x axis, with a tick for a missing value at its place beyond the others."""
    if labels:
        marks = [*(shorten(str(label), LABEL) for label in grid), *([] if missing is None else [MISSING])]
        turned = -40 if sum(map(len, marks)) > LONG_LABELS else 0
        texts = [words(mark) for mark in marks]
        ends = [-0.6, len(marks) - 0.4]
        return axis(tickvals=list(range(len(marks))), ticktext=texts, tickangle=turned, range=ends, showgrid=False)
    low, high = (float(grid.min()), float(grid.max())) if len(grid) else (0.0, 1.0)
    reach = (high - low) or 1.0
    if missing is None:
        return axis(range=[low - 0.02 * reach, high + 0.02 * reach], nticks=5)
    numbers = [tick for tick in _nice(low, high) if tick < high - 0.06 * reach]
    ends = [low - 0.02 * reach, missing + 0.09 * reach]
    return axis(tickvals=[*numbers, missing], ticktext=[*map(tidy, numbers), MISSING], range=ends)


def _nice(low: float, high: float) -> list[float]:
    """A few round numbers in a range."""
    width = 10.0 ** np.floor(np.log10((high - low) / 3)) if high > low else 1.0
    width *= next(times for times in (1, 2, 5, 10) if (high - low) / (times * width) <= 4)
    ticks = np.arange(np.ceil(low / width) * width, high + 0.5 * width, width)
    return [float(f"{tick:.6g}") for tick in ticks if tick <= high]


def _is_numeric(grid: np.ndarray) -> bool:
    return grid.dtype.kind in "fiu" and len(grid) > 1


def _cells(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles and widths of the cells about the points of a grid."""
    if not _is_numeric(grid):
        return np.arange(len(grid), dtype=np.float64), np.ones(len(grid))
    edges = np.concatenate([grid[:1], 0.5 * (grid[1:] + grid[:-1]), grid[-1:]])
    return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)


def _map_axis(name: str, grid: np.ndarray) -> Trace:
    middles, widths = _cells(grid)
    ends = [float(middles[0] - 0.5 * widths[0]), float(middles[-1] + 0.5 * widths[-1])]
    if _is_numeric(grid):
        return axis(shorten(name, 30), range=ends, nticks=5, showgrid=False)
    names = [words(shorten(cell(value), 10)) for value in grid]
    return axis(shorten(name, 30), range=ends, tickvals=middles.tolist(), ticktext=names, showgrid=False)


def _colour(output: int, count: int) -> str:
    return "@accent" if count == 1 else f"@class{output % 8}"
