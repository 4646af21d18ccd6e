"""Charts of effects: a curve or dots a feature with its band, maps of pairs, partial dependence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayescope.additive.effects import Effect, Surface
from bayescope.report.facts.influence import Curve, Dependence
from bayescope.report.page.blocks import Figure, Table
from bayescope.report.page.figures import Trace, axis, band, dots, layout, line, rounded, table, words
from bayescope.report.page.numbers import MISSING, alike, cell, fixed, plain, short, tidy

FOOT = 0.17
BEYOND = 0.13
LONG_LABELS = 22
LABEL = 14
# Cells that hold next to none of the data are pale.
PALE = 0.35
BARS = 30


def effect(shown: Effect, place: int, span: tuple[float, float]) -> Figure:
    """A feature's effect over its grid with the band, and at the foot how the data lie.

    Args:
        shown: the effect.
        place: of the figure on the page.
        span: of the effect axis, one for all features, so that they may be compared.
    """
    mean, low, high = (_columns(part) for part in (shown.mean, shown.low, shown.high))
    at = _places(shown.grid, shown.categorical)
    traces: list[Trace] = []
    count = mean.shape[1]
    for output in range(count):
        colour = _colour(output, count)
        hover = _hover(shown.grid, mean[:, output], low[:, output], high[:, output], _name(shown.outputs, output))
        ends = (low[:, output], high[:, output])
        aside = 0.14 * (output - 0.5 * (count - 1))
        traces += _drawn(at, mean[:, output], ends, colour, hover, dotted=shown.categorical, aside=aside)
    ticks, gone = _ticks(shown.grid, shown.categorical, shown.missing is not None, at)
    if shown.missing is not None:
        traces += _missing(shown, gone, count)
    traces.append(_density(shown, at, gone))
    told = (
        f"Effect of {shown.feature} on {shown.unit}: from {plain(float(mean.min()))} to {plain(float(mean.max()))}, "
        f"with {100 * shown.level:g} % bands."
    )
    return Figure(
        f"effect-{place}", shown.feature, "", told, tuple(traces), _stage(ticks, span), _effect_table(shown), 240
    )


def surface(shown: Surface, place: int) -> Figure:
    """What a pair says beyond its two features, as a map; cells without data are pale."""
    mean, low, high = (part[..., 0] if part.ndim == 3 else part for part in (shown.mean, shown.low, shown.high))
    names = shown.features
    a, b = _cells(shown.grid_a), _cells(shown.grid_b)
    x, width = np.repeat(a[0], len(b[0])), np.repeat(a[1], len(b[0]))
    base, height = np.tile(b[0] - 0.5 * b[1], len(a[0])), np.tile(b[1], len(a[0]))
    largest = float(np.abs(mean).max()) or 1.0
    grid = [(va, vb) for va in shown.grid_a for vb in shown.grid_b]
    told = zip(grid, mean.ravel(), low.ravel(), high.ravel(), strict=True)
    hover = [
        words(f"{names[0]} {cell(va)}, {names[1]} {cell(vb)}\n{_signed(m)} ({alike(lo, hi)})")
        for (va, vb), m, lo, hi in told
    ]
    cells = {
        "type": "bar",
        "x": rounded(x),
        "y": rounded(height),
        "base": rounded(base),
        "width": rounded(width),
        "marker": {
            "color": rounded(mean),
            "opacity": rounded(np.where(shown.density.ravel() > 0, 1.0, PALE)),
            "line": {"width": 0},
        },
        "meta": {"tones": ["@low", "@middle", "@high"], "largest": largest},
        "hovertext": hover,
        "hoverinfo": "text",
    }
    scale = {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "marker": {
            "color": [0],
            "colorscale": [[0, "@low"], [0.5, "@middle"], [1, "@high"]],
            "cmin": -largest,
            "cmax": largest,
            "showscale": True,
            "colorbar": {"thickness": 9, "outlinewidth": 0, "len": 0.9, "nticks": 5, "tickfont": _SMALL, "xpad": 4},
        },
        "hoverinfo": "skip",
    }
    rows = [(cell(va), cell(vb), _signed(m), alike(lo, hi)) for (va, vb), m, lo, hi in _coarse(shown, mean, low, high)]
    of_output = f" Drawn is the part of {shown.outputs[0]}." if shown.outputs else ""
    return Figure(
        f"surface-{place}",
        f"{names[0]} × {names[1]}",
        f"What both say beyond their own effects, in {shown.unit}; pale where there are no data.{of_output}",
        f"Map of the joint effect of {names[0]} and {names[1]}, between {plain(float(mean.min()))} and "
        f"{plain(float(mean.max()))}.",
        (cells, scale),
        layout(_map_axis(names[0], shown.grid_a, a), _map_axis(names[1], shown.grid_b, b), barmode="overlay", bargap=0),
        table("Joint effect on a coarse grid", (*names, "effect", "95 % interval"), rows),
        300,
    )


def curve(shown: Curve, place: int, told: Dependence, span: tuple[float, float], unit: str) -> Figure:
    """Partial dependence on a feature with the band of a typical row."""
    at = _places(shown.grid, shown.categorical)
    traces: list[Trace] = []
    outputs = [1] if len(told.outputs) == 2 else range(shown.mean.shape[1])
    rows = []
    for order, output in enumerate(outputs):
        mean, low, high = shown.mean[:, output], shown.low[:, output], shown.high[:, output]
        name = _name(told.outputs, output) if len(outputs) > 1 else ""
        hover = _hover(shown.grid, mean, low, high, name)
        aside = 0.14 * (order - 0.5 * (len(outputs) - 1))
        colour = _colour(order, len(outputs))
        traces += _drawn(at, mean, (low, high), colour, hover, dotted=shown.categorical, aside=aside)
        rows += [
            (cell(value), *([name] if name else []), plain(m), alike(lo, hi))
            for value, m, lo, hi in zip(shown.grid, mean, low, high, strict=True)
        ]
    ticks, _ = _ticks(shown.grid, shown.categorical, False, at)
    head = (shown.feature, *(["class"] if len(outputs) > 1 else []), unit, "95 % band")
    alt = f"Partial dependence of {unit} on {shown.feature}."
    stage = layout(ticks, axis(range=list(span), nticks=5))
    return Figure(f"curve-{place}", shown.feature, "", alt, tuple(traces), stage, table(alt, head, rows), 230)


def span_of(lows: Sequence[np.ndarray], highs: Sequence[np.ndarray]) -> tuple[float, float]:
    """An axis range that all of them fit in, with a little room."""
    low, high = min(float(np.min(part)) for part in lows), max(float(np.max(part)) for part in highs)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


_SMALL = {"size": 10, "color": "@muted"}


def _drawn(
    at: np.ndarray, mean: np.ndarray, ends: tuple[np.ndarray, np.ndarray], colour: str, hover: Sequence[str], *,
    dotted: bool, aside: float,
) -> list[Trace]:  # fmt: skip
    low, high = ends
    if not dotted:
        x = rounded(at)
        return [band(x, rounded(low), rounded(high), f"{colour}-band"), line(x, rounded(mean), colour, hover)]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": rounded(high - mean),
        "arrayminus": rounded(mean - low),
        "color": colour,
        "thickness": 1.6,
        "width": 0,
    }
    return [dots(rounded(at + aside), rounded(mean), colour, hover, error_y=bars)]


def _stage(ticks: Trace, span: tuple[float, float]) -> Trace:
    """Effect above, the data's density at the foot."""
    return layout(
        {**ticks, "anchor": "y2"},
        axis(domain=[FOOT, 1.0], range=list(span), nticks=5, zeroline=True, zerolinecolor="@line"),
        yaxis2=axis(
            domain=[0.0, FOOT - 0.05], showticklabels=False, showline=False, showgrid=False, rangemode="tozero"
        ),
    )


def _density(shown: Effect, at: np.ndarray, gone: float) -> Trace:
    x, shares, width = at, shown.density, np.full(len(at), 0.7)
    if not shown.categorical and len(at) > 1:
        shares, edges = np.histogram(at, min(BARS, len(at)), weights=shown.density)
        x, width = 0.5 * (edges[1:] + edges[:-1]), 0.94 * np.diff(edges)
    if shown.missing is not None:
        x, shares = np.append(x, gone), np.append(shares, shown.missing.density)
        width = np.append(width, 0.7 if shown.categorical else 0.5 * (gone - at.max()))
    return {
        "type": "bar",
        "x": rounded(x),
        "y": rounded(shares),
        "width": rounded(width),
        "yaxis": "y2",
        "marker": {"color": "@bar", "line": {"width": 0}},
        "hovertext": [f"{fixed(100 * share, 1)} % of the data" for share in shares],
        "hoverinfo": "text",
    }


def _missing(shown: Effect, gone: float, count: int) -> list[Trace]:
    there = shown.missing
    if there is None:
        return []
    mean, low, high = (np.atleast_1d(part) for part in (there.mean, there.low, there.high))
    traces: list[Trace] = []
    for output in range(count):
        hover = _hover(
            np.array([None], dtype=object), mean[[output]], low[[output]], high[[output]], _name(shown.outputs, output)
        )
        [trace] = _drawn(
            np.array([gone]), mean[[output]], (low[[output]], high[[output]]), _colour(output, count), hover,
            dotted=True, aside=0.0,
        )  # fmt: skip
        traces.append({**trace, "marker": {**trace["marker"], "symbol": "diamond"}})
    return traces


def _ticks(grid: np.ndarray, labels: bool, missing: bool, at: np.ndarray) -> tuple[Trace, float]:
    """The x axis, and the place of a missing value beyond it."""
    if labels:
        names = [short(str(label), LABEL) for label in grid]
        gone = float(len(grid))
        marks = [*names, MISSING] if missing else names
        turned = sum(map(len, marks)) > LONG_LABELS
        look: Trace = {"tickvals": list(range(len(marks))), "ticktext": [words(mark) for mark in marks]}
        return axis(**look, tickangle=-40 if turned else 0, range=[-0.6, len(marks) - 0.4], showgrid=False), gone
    low, high = (float(at.min()), float(at.max())) if len(at) else (0.0, 1.0)
    reach = (high - low) or 1.0
    gone = high + BEYOND * reach
    if not missing:
        return axis(range=[low - 0.02 * reach, high + 0.02 * reach], nticks=5), gone
    numbers = [tick for tick in _nice(low, high) if tick < high - 0.06 * reach]
    texts = [*map(tidy, numbers), MISSING]
    return axis(tickvals=[*numbers, gone], ticktext=texts, range=[low - 0.02 * reach, gone + 0.09 * reach]), gone


def _nice(low: float, high: float) -> list[float]:
    """A few round numbers in a range."""
    step = 10.0 ** np.floor(np.log10((high - low) / 3)) if high > low else 1.0
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (times * step) <= 4)
    return [
        float(f"{tick:.6g}") for tick in np.arange(np.ceil(low / step) * step, high + 0.5 * step, step) if tick <= high
    ]


def _cells(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles and widths of the cells about the points of a grid."""
    if grid.dtype.kind not in "fiu" or len(grid) == 1:
        return np.arange(len(grid), dtype=np.float64), np.ones(len(grid))
    edges = np.concatenate([grid[:1], 0.5 * (grid[1:] + grid[:-1]), grid[-1:]])
    return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)


def _map_axis(name: str, grid: np.ndarray, cells: tuple[np.ndarray, np.ndarray]) -> Trace:
    middles, widths = cells
    ends = [float(middles[0] - 0.5 * widths[0]), float(middles[-1] + 0.5 * widths[-1])]
    if grid.dtype.kind in "fiu" and len(grid) > 1:
        return axis(short(name, 30), range=ends, nticks=5, showgrid=False)
    names = [words(short(cell(value), 10)) for value in grid]
    return axis(short(name, 30), range=ends, tickvals=middles.tolist(), ticktext=names, showgrid=False)


def _coarse(
    shown: Surface, mean: np.ndarray, low: np.ndarray, high: np.ndarray
) -> list[tuple[tuple[object, object], float, float, float]]:
    """Every third point of the map, or all labels."""
    a, b = (range(0, len(grid), 3 if grid.dtype.kind == "f" else 1) for grid in (shown.grid_a, shown.grid_b))
    return [((shown.grid_a[i], shown.grid_b[j]), mean[i, j], low[i, j], high[i, j]) for i in a for j in b]


def _effect_table(shown: Effect) -> Table:
    mean, low, high = (_columns(part) for part in (shown.mean, shown.low, shown.high))
    several = mean.shape[1] > 1
    step = 1 if shown.categorical else 3
    rows = [
        (
            cell(shown.grid[n]),
            *([_name(shown.outputs, c)] if several else []),
            _signed(mean[n, c]),
            alike(low[n, c], high[n, c]),
        )
        for n in range(0, len(shown.grid), step)
        for c in range(mean.shape[1])
    ]
    if shown.missing is not None:
        gone = [np.atleast_1d(part) for part in (shown.missing.mean, shown.missing.low, shown.missing.high)]
        rows += [
            (
                MISSING,
                *([_name(shown.outputs, c)] if several else []),
                _signed(gone[0][c]),
                alike(gone[1][c], gone[2][c]),
            )
            for c in range(mean.shape[1])
        ]
    head = (shown.feature, *(["output"] if several else []), "effect", f"{100 * shown.level:g} % band")
    return table(f"Effect of {shown.feature} on {shown.unit}", head, rows)


def _hover(grid: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, name: str) -> list[str]:
    first = f"{name}: " if name else ""
    return [
        f"{cell(value)}  →  {first}{plain(m)} ({alike(lo, hi)})"
        for value, m, lo, hi in zip(grid, mean, low, high, strict=True)
    ]


def _places(grid: np.ndarray, labels: bool) -> np.ndarray:
    return np.arange(len(grid), dtype=np.float64) if labels else np.asarray(grid, dtype=np.float64)


def _columns(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values[:, None]


def _colour(output: int, count: int) -> str:
    return "@accent" if count == 1 else f"@class{output % 8}"


def _name(outputs: Sequence[str], output: int) -> str:
    return str(outputs[output]) if outputs else ""


def _signed(value: float) -> str:
    return f"+{plain(value)}" if value > 0 else plain(value)
