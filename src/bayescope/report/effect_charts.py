"""Charts of what moves the predictions: effects with bands, maps of pairs, partial dependence, and tables of bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bayescope.additive.effects import Effect, Surface
from bayescope.additive.explanation import Importance
from bayescope.plots.additive import columns, density_bars, missing_place, most_frequent, stairs
from bayescope.plots.numbers import MISSING, alike, around, cell, count, fixed, percent, plain, signed, tidy
from bayescope.plots.style import shorten
from bayescope.report.blocks import BarTable, Figure, Table
from bayescope.report.figures import Trace, axis, band, bars, dots, layout, line, rounded, table, track, words
from bayescope.report.reasons import MOST_WEIGHTS, Coefficients, Curve, Dependence

FOOT = 0.17
# Letters of a label, labels that are drawn, and steps that have a tick each.
LABEL, MOST_LABELS, MOST_TICKS = 22, 12, 8
# Of the range of all effects: the least range of one that has a scale of its own.
LEAST_SHARE = 0.1
# A smaller share of the data would be rounded to 0 %.
LEAST_PERCENT = 0.005
# Outputs stand next to each other at a label, at this distance.
ASIDE = 0.14
# Cells that hold next to none of the data are pale.
PALE = 0.35
MOST_TERMS = 30


def effect(curve: Effect, place: int, common: tuple[float, float]) -> Figure:
    """A feature's effect with its band, and where the data lie: a curve, steps, or a point for each label.

    Args:
        curve: the effect.
        place: of the figure on the page.
        common: the range of the effects of all features, to which the page's switch sets this one's scale.
    """
    mean = columns(curve.mean)
    names = [str(name) for name in curve.outputs] or [""] * mean.shape[1]
    drawn = (_labelled if curve.categorical else _along)(curve, names)
    rows: list[tuple[str, ...]] = []
    ordered = most_frequent(curve, len(curve.grid))
    thin = 1 if curve.categorical or curve.steps else 3
    for k, name in enumerate(names):
        ends = [columns(part)[::thin, k] for part in (ordered.mean, ordered.low, ordered.high)]
        rows += _rows(ordered.grid[::thin], ends, name)
        if curve.missing is not None:
            gone = [np.atleast_1d(part)[[k]] for part in (curve.missing.mean, curve.missing.low, curve.missing.high)]
            rows += _rows([None], gone, name)
    band_name = f"{100 * curve.level:g} % band"
    head = (curve.feature, *(["output"] if len(names) > 1 else []), "effect", band_name)
    what = f"Effect of {curve.feature} on {curve.unit}"
    alt = f"{what}: from {plain(float(mean.min()))} to {plain(float(mean.max()))}, with {band_name}s."
    left_out = max(0, len(curve.grid) - MOST_LABELS) if curve.categorical else 0
    caption = f"The {MOST_LABELS} labels of most rows; {count(left_out, 'more label')} below, in the numbers."
    stage = scaled(drawn.layout, "xaxis" if curve.categorical else "yaxis", _own(curve, common), common)
    return Figure(
        f"effect-{place}", curve.feature, caption if left_out else "", alt, drawn.traces, stage,
        table(what, head, rows), drawn.height, key_of(names),
    )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class _Drawn:
    """The traces, layout and height of a figure."""

    traces: tuple[Trace, ...]
    layout: Trace
    height: int


def _own(curve: Effect, common: tuple[float, float]) -> tuple[float, float]:
    """The range of one effect; not so narrow that next to nothing fills the panel."""
    gone = curve.missing
    low, high = span_of([curve.low, *([gone.low] if gone else [])], [curve.high, *([gone.high] if gone else [])])
    least = LEAST_SHARE * (common[1] - common[0])
    room = max(0.0, 0.5 * (least - (high - low)))
    return low - room, high + room


def scaled(layout: Trace, name: str, own: tuple[float, float], common: tuple[float, float]) -> Trace:
    """A layout whose axis has its own range, beside the common one for the page's switch."""
    axis_of = {**layout[name], "range": rounded(own)}
    return {**layout, name: axis_of, "meta": {"axis": name, "own": rounded(own), "common": rounded(common)}}


def key_of(names: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """What the colours of several outputs mean, also on paper."""
    if len(names) < 2:
        return ()
    return tuple((shorten(name, 24), _colour(k, len(names)), "line") for k, name in enumerate(names))


def _along(curve: Effect, names: Sequence[str]) -> _Drawn:
    """An effect of numbers: curves or steps, and at the foot where the data lie."""
    mean, low, high = (columns(part) for part in (curve.mean, curve.low, curve.high))
    outputs = len(names)
    traces: list[Trace] = []
    at, which = stairs(curve.grid) if curve.steps else (curve.grid, np.arange(len(curve.grid)))
    for k, name in enumerate(names):
        ends = [part[which, k] for part in (mean, low, high)]
        traces += _curve(at, curve.grid[which], ends, name, _colour(k, outputs))
    if curve.missing is not None:
        parts = [np.atleast_1d(part) for part in (curve.missing.mean, curve.missing.low, curve.missing.high)]
        for k, name in enumerate(names):
            beyond = np.array([missing_place(curve)])
            ends = [part[[k]] for part in parts]
            traces.append(_points(beyond, [None], ends, name, _colour(k, outputs), symbol="diamond"))
    places, shares, width = density_bars(curve)
    hover = [f"{fixed(100 * share, 1)} % of the data" for share in shares]
    traces.append(bars(places, shares, "@bar", hover, width=rounded(width), yaxis="y2"))
    hidden: Trace = {"showticklabels": False, "showline": False, "showgrid": False}
    stage = layout(
        {**_ticks(curve.grid, missing_place(curve) if curve.missing else None, steps=curve.steps), "anchor": "y2"},
        axis(domain=[FOOT, 1.0], nticks=5, zeroline=True, zerolinecolor="@line"),
        yaxis2=axis(domain=[0.0, FOOT - 0.05], rangemode="tozero", **hidden),
    )
    return _Drawn(tuple(traces), stage, 240)


def _labelled(curve: Effect, names: Sequence[str]) -> _Drawn:
    """An effect of labels: a point for each, those of most rows first, with its share of the data in its name."""
    ordered = most_frequent(curve, MOST_LABELS)
    labels = [(shorten(cell(label), LABEL), share) for label, share in zip(ordered.grid, ordered.density, strict=True)]
    parts = [columns(part) for part in (ordered.mean, ordered.low, ordered.high)]
    values = list(ordered.grid)
    if curve.missing is not None:
        gone = curve.missing
        parts = [
            np.vstack([p, np.atleast_1d(at)]) for p, at in zip(parts, (gone.mean, gone.low, gone.high), strict=True)
        ]
        labels.append((MISSING, gone.density))
        values.append(None)
    texts = [words(f"{label} {_share(share)}") for label, share in labels]
    traces = _at_labels(values, parts, names)
    return _Drawn(tuple(traces), _label_layout(texts), _label_height(len(texts), len(names)))


def _share(share: float) -> str:
    return percent(share, 0) if share == 0 or share >= LEAST_PERCENT else "< 1 %"


def _at_labels(values: Sequence[object] | np.ndarray, parts: Sequence[np.ndarray], names: Sequence[str]) -> list[Trace]:
    """A point with a bar for each label, one below the other, and for each output beside those of the others."""
    down = np.arange(len(values), dtype=np.float64)
    outputs = len(names)
    return [
        _points(
            down + ASIDE * (k - 0.5 * (outputs - 1)), values, [part[:, k] for part in parts], name,
            _colour(k, outputs), across=True,
        )
        for k, name in enumerate(names)
    ]  # fmt: skip


def _label_layout(texts: Sequence[str]) -> Trace:
    down = [len(texts) - 0.4, -0.6]
    names = axis(tickvals=list(range(len(texts))), ticktext=list(texts), range=down, showgrid=False)
    return layout(axis(nticks=5, zeroline=True, zerolinecolor="@line"), names)


def _label_height(labels: int, outputs: int) -> int:
    return 60 + labels * max(22, 10 * outputs)


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
    of_output = f" The map is for {surface.outputs[0]}." if surface.outputs else ""
    return Figure(
        f"surface-{place}",
        f"{first} × {second}",
        f"The joint effect beyond both separate effects, in {surface.unit}; pale where there are no data.{of_output}",
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


def curve(feature_curve: Curve, place: int, dependence: Dependence, common: tuple[float, float], unit: str) -> Figure:
    """Partial dependence on a feature with the band of a typical row."""
    chosen = [1] if len(dependence.outputs) == 2 else list(range(feature_curve.mean.shape[1]))
    names = [str(dependence.outputs[k]) if len(chosen) > 1 else "" for k in chosen]
    parts = [part[:, chosen] for part in (feature_curve.mean, feature_curve.low, feature_curve.high)]
    grid = feature_curve.grid
    traces: list[Trace] = []
    rows: list[tuple[str, ...]] = []
    for k, name in enumerate(names):
        ends = [part[:, k] for part in parts]
        rows += _rows(grid, ends, name, sign=False)
        if not feature_curve.categorical:
            traces += _curve(grid.astype(np.float64), grid, ends, name, _colour(k, len(names)))
    alt = f"Partial dependence of {unit} on {feature_curve.feature}."
    head = (feature_curve.feature, *(["class"] if len(names) > 1 else []), unit, "95 % band")
    stage, height = layout(_ticks(grid), axis(nticks=5)) if not feature_curve.categorical else {}, 230
    if feature_curve.categorical:
        traces = _at_labels(grid, parts, names)
        texts = [words(shorten(cell(label), LABEL)) for label in grid]
        stage, height = _label_layout(texts), _label_height(len(texts), len(names))
    own = span_of([parts[1]], [parts[2]])
    stage = scaled(stage, "xaxis" if feature_curve.categorical else "yaxis", own, common)
    name = f"curve-{place}"
    return Figure(
        name, feature_curve.feature, "", alt, tuple(traces), stage, table(alt, head, rows), height, key_of(names)
    )


def span_of(lows: Sequence[np.ndarray], highs: Sequence[np.ndarray]) -> tuple[float, float]:
    """An axis range that all of them fit in, with a little room."""
    low, high = min(float(np.min(part)) for part in lows), max(float(np.max(part)) for part in highs)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def importance(ranking: Importance) -> tuple[BarTable, Table | None]:
    """Terms by how much they move the predictions, and those beyond the first 30 as a plain table.

    Of several outputs the one that each term moves most counts.
    """
    mean, low, high, point = (
        part if part.ndim == 1 else part[np.arange(len(part)), ranking.mean.argmax(1)]
        for part in (ranking.mean, ranking.low, ranking.high, ranking.at_mean)
    )
    names = [name.replace(" & ", " × ") for name in ranking.names]
    order, rest = ranking.order[:MOST_TERMS], ranking.order[MOST_TERMS:]
    most = float(high[order].max()) or 1.0
    lines = [
        track(names[k], around(mean[k], low[k], high[k], most), (mean[k], low[k], high[k]), (0.0, most), mark=point[k])
        for k in order
    ]
    caption = (
        f"Mean absolute contribution over the training rows, in {ranking.unit}, with 95 % intervals. The tick is the "
        "contribution of the mean effect: close to 0 if a bar is only uncertainty."
    )
    others = [(names[k], *around(mean[k], low[k], high[k], most)) for k in rest]
    more = table("The other terms", ("term", "importance", "95 % interval"), others) if others else None
    return BarTable(caption, ("term", "", "importance"), tuple(lines)), more


def coefficients(linear: Coefficients) -> tuple[BarTable, ...]:
    """One table for each output: weights times the inputs' standard deviations, so that bars can be compared."""
    order = linear.order[:MOST_WEIGHTS]
    mean, low, high = (part[:, :-1] * linear.scales for part in linear.weights)
    least, most = min(0.0, float(low[:, order].min())), max(0.0, float(high[:, order].max()))
    more = f" {len(linear.names) - len(order)} more inputs change it less." if len(linear.names) > len(order) else ""
    tables = []
    for output, intercept in enumerate(linear.weights[0][:, -1]):
        lines = []
        for k in order:
            value = mean[output, k], low[output, k], high[output, k]
            text, tint = around(*value, max(-least, most), sign=True), "high" if value[0] > 0 else "low"
            lines.append(track(linear.names[k], text, value, (least, most), tint=tint))
        of = f" for {linear.outputs[output]}" if linear.outputs else ""
        caption = (
            f"Change of {linear.unit}{of} for one standard deviation more of each input, with 95 % intervals. "
            f"Intercept {plain(intercept)}.{more}"
        )
        tables.append(BarTable(caption, ("input", "", "per standard deviation"), tuple(lines)))
    return tuple(tables)


def _curve(
    at: np.ndarray, grid: Sequence[object] | np.ndarray, ends: Sequence[np.ndarray], name: str, colour: str
) -> list[Trace]:
    """The mean as a curve on its band."""
    mean, low, high = ends
    return [band(at, low, high, f"{colour}-band"), line(at, mean, colour, _hover(grid, ends, name))]


def _points(
    at: np.ndarray,
    grid: Sequence[object] | np.ndarray,
    ends: Sequence[np.ndarray],
    name: str,
    colour: str,
    *,
    across: bool = False,
    **marker: Any,
) -> Trace:
    """The means as points with bars: upright, or across the chart."""
    mean, low, high = ends
    reach = {"array": rounded(high - mean), "arrayminus": rounded(mean - low)}
    look = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.6, "width": 0, **reach}
    hover = _hover(grid, ends, name)
    if across:
        return dots(mean, at, colour, hover, marker=marker, error_x=look)
    return dots(at, mean, colour, hover, marker=marker, error_y=look)


def _hover(grid: Sequence[object] | np.ndarray, ends: Sequence[np.ndarray], name: str) -> list[str]:
    of = f"{name}: " if name else ""
    return [
        f"{cell(value)}  →  {of}{plain(mean)} ({alike(low, high)})"
        for value, mean, low, high in zip(grid, *ends, strict=True)
    ]


def _rows(
    grid: Sequence[object] | np.ndarray, ends: Sequence[np.ndarray], name: str, *, sign: bool = True
) -> list[tuple[str, ...]]:
    """Lines of the table behind a chart: the value, the output if there are several, the mean and its interval."""
    written = signed if sign else plain
    return [
        (cell(value), *([name] if name else []), written(m), alike(low, high))
        for value, m, low, high in zip(grid, *ends, strict=True)
    ]


def _ticks(grid: np.ndarray, missing: float | None = None, *, steps: bool = False) -> Trace:
    """The x axis of numbers, with a tick for a missing value at its place beyond the others."""
    at = stairs(grid)[0] if steps else grid
    low, high = (float(at.min()), float(at.max())) if len(at) else (0.0, 1.0)
    reach = (high - low) or 1.0
    few = grid.tolist() if steps and len(grid) <= MOST_TICKS else None
    ends = [low - 0.02 * reach, high + 0.02 * reach if missing is None else missing + 0.09 * reach]
    if missing is None:
        return axis(range=ends, **({"nticks": 5} if few is None else {"tickvals": few, "ticktext": [*map(tidy, few)]}))
    numbers = few or [tick for tick in _nice(low, high) if tick < high - 0.06 * reach]
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
