"""The drawing layer of the report: axes, bands, lines, dots and bars as Plotly's JSON, drawn in the reader's browser.

Colours are names of the style sheet ("@accent" is `--accent`), so that one figure serves light, dark and print.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bayescope.plots.numbers import percent
from bayescope.report.blocks import Cell, Table, TrackBar

Trace = dict[str, Any]
DIGITS = 5
NO_LINE = {"width": 0}
# Many points that may lie on each other.
MANY = {"size": 6, "opacity": 0.7, "line": NO_LINE}


def words(text: str) -> str:
    """Text for Plotly, which reads a few tags: text of the caller's table shows as it is, and a line is a line."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def rounded(values: ArrayLike) -> list[Any]:
    """Numbers with five significant digits, enough for the eye; ``None`` for what is not finite; counts unchanged."""
    array = np.asarray(values).ravel()
    if array.dtype.kind in "iu":
        return array.tolist()
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in array.astype(np.float64)]


def percents(low: float, high: float) -> str:
    """A range of shares."""
    return f"{percent(low, 0)} to {percent(high, 0)}"


def axis(title: str = "", **options: Any) -> Trace:
    """An axis in the house style."""
    heading = {"title": {"text": words(title), "standoff": 8, "font": {"size": 12, "color": "@muted"}}} if title else {}
    return {
        **heading,
        "gridcolor": "@grid",
        "linecolor": "@line",
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": "@muted"},
        "automargin": True,
        "fixedrange": True,
        **options,
    }


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **options: Any) -> Trace:
    """A chart without title, legend or frame."""
    return {
        "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
        "xaxis": dict(x),
        "yaxis": dict(y),
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        "bargap": 0.08,
        **options,
    }


def band(x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> Trace:
    """A shaded area between two curves."""
    at = rounded(x)
    ends = [*rounded(high), *reversed(rounded(low))]
    return _scatter([*at, *reversed(at)], ends, (), "lines", fill="toself", fillcolor=colour, line=NO_LINE)


def line(x: ArrayLike, y: ArrayLike, colour: str, hover: Sequence[str] = (), **look: Any) -> Trace:
    """A curve; each point has its text under the pointer if texts are given."""
    return _scatter(rounded(x), rounded(y), hover, "lines", line={"color": colour, "width": 2, **look})


def dots(
    x: ArrayLike, y: ArrayLike, colour: str, hover: Sequence[str], *, marker: Trace | None = None, **options: Any
) -> Trace:
    """Points whose text appears under the pointer."""
    look = {"color": colour, "size": 8, **(marker or {})}
    return _scatter(rounded(x), rounded(y), hover, "markers", marker=look, **options)


def line_with_dots(x: ArrayLike, y: ArrayLike, colour: str, hover: Sequence[str], **marker: Any) -> Trace:
    """Points on a curve; each has its text under the pointer."""
    look = {"line": {"color": colour, "width": 1.6}, "mode": "lines+markers"}
    return dots(x, y, colour, hover, marker=marker) | look


def bars(
    x: ArrayLike,
    y: ArrayLike,
    colour: str | list[float],
    hover: Sequence[str] = (),
    *,
    marker: Trace | None = None,
    **options: Any,
) -> Trace:
    """Upright bars with their middles at x."""
    look = {"color": colour, "line": NO_LINE, **(marker or {})}
    return {"type": "bar", "x": rounded(x), "y": rounded(y), "marker": look, **_hover(hover), **options}


def diagonal(low: float, high: float) -> Trace:
    """Where both axes say the same."""
    return line([low, high], [low, high], "@muted", width=1, dash="dot")


def track(
    name: str,
    text: tuple[str, str],
    value: tuple[float, float, float],
    span: tuple[float, float],
    *,
    tint: str = "accent",
    mark: float | None = None,
) -> TrackBar:
    """A value with the ends of its interval as a bar of a table; places are in percent of the span.

    Args:
        name: of the line.
        text: the value and its interval.
        value: with both ends of its interval.
        span: the least and the largest number that has a place.
        tint: of the bar.
        mark: a number that has a tick.
    """

    def place(at: float) -> float:
        return round(100.0 * (float(at) - span[0]) / ((span[1] - span[0]) or 1.0), 2)

    zero, length, low, high = (place(at) for at in (0.0, *value))
    left, right = sorted((zero, length))
    whisker = None if high <= low else (low, round(high - low, 2))
    at_mark = None if mark is None else place(mark)
    return TrackBar(name, *text, left, round(right - left, 2), whisker, zero, tint, at_mark)


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """The numbers behind a chart; the first column names the rows."""
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(caption, tuple(head), cells, frozenset(range(1, len(head))))


def _scatter(x: list[Any], y: list[Any], hover: Sequence[str], mode: str, **options: Any) -> Trace:
    return {"type": "scatter", "x": x, "y": y, "mode": mode, **_hover(hover), **options}


def _hover(texts: Sequence[str]) -> Trace:
    return {"hovertext": [words(text) for text in texts], "hoverinfo": "text"} if texts else {"hoverinfo": "skip"}
