"""What all figures share: the frame around a chart, and text that Plotly shows as it is written.

A figure is Plotly's JSON, made here and drawn in the reader's browser. Colours are names of the style sheet's
("@accent" is `--accent`), so that one figure serves light, dark and print.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayescope.report.page.blocks import Cell, Table

Trace = dict[str, Any]
DIGITS = 5


def words(text: str) -> str:
    """Text for Plotly, which reads a few tags: none of the caller's are meant as such, and a line is a line."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def rounded(values: Any) -> list[Any]:
    """Numbers with five significant digits, enough for the eye; ``None`` where there is none."""
    array = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in array.ravel()]


def axis(title: str = "", **options: Any) -> dict[str, Any]:
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


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **options: Any) -> dict[str, Any]:
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


def band(x: Sequence[Any], low: Sequence[Any], high: Sequence[Any], colour: str) -> Trace:
    """A shaded area between two curves."""
    return {
        "type": "scatter",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0, "color": colour},
        "mode": "lines",
        "hoverinfo": "skip",
    }


def line(x: Sequence[Any], y: Sequence[Any], colour: str, hover: Sequence[str], **options: Any) -> Trace:
    """A curve that tells each point."""
    return {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "mode": "lines",
        "line": {"color": colour, "width": 2, **options},
        "hovertext": [words(text) for text in hover],
        "hoverinfo": "text",
    }


def dots(x: Sequence[Any], y: Sequence[Any], colour: Any, hover: Sequence[str], **options: Any) -> Trace:
    """Points whose text appears under the pointer."""
    return {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "mode": "markers",
        "marker": {"color": colour, "size": 8, **options.pop("marker", {})},
        "hovertext": [words(text) for text in hover],
        "hoverinfo": "text",
        **options,
    }


def diagonal(low: float, high: float) -> Trace:
    """Where both axes say the same."""
    return {
        "type": "scatter",
        "x": [low, high],
        "y": [low, high],
        "mode": "lines",
        "line": {"color": "@muted", "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> Table:
    """The numbers behind a chart."""
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(caption, tuple(head), cells, frozenset(numeric or range(1, len(head))))
