"""The page that every picture of the gallery is drawn on: one width, one header, one way to label a curve."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text

from bayescope.plots.style import DPI, INK, MUTED

WIDTH = 8.0  # inches: 1200 pixels
MARGIN = 0.3

_TITLE_LETTERS = 70
_SUBTITLE_LETTERS = 112


def page(height: float, title: str, subtitle: str) -> tuple[Figure, float]:
    """An empty page with its header: the finding in bold, below it how to read the picture.

    Args:
        height: inches.
        title: the finding, one sentence.
        subtitle: what is shown and how it was computed.

    Returns:
        The figure, and how many inches from the top the header ends.
    """
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    heading, below = textwrap.wrap(title, _TITLE_LETTERS), textwrap.wrap(subtitle, _SUBTITLE_LETTERS)
    y = 0.2
    left = MARGIN / WIDTH
    figure.text(left, 1 - y / height, "\n".join(heading), fontsize=13, weight="bold", color=INK, va="top")
    y += 0.235 * len(heading) + 0.06
    figure.text(left, 1 - y / height, "\n".join(below), fontsize=9, color=MUTED, va="top", linespacing=1.35)
    return figure, y + 0.17 * len(below)


def grid(
    figure: Figure,
    rows: int,
    columns: int,
    *,
    top: float,
    bottom: float = 0.55,
    left: float = 0.65,
    right: float = MARGIN,
    gap: tuple[float, float] = (0.5, 0.45),
    widths: Sequence[float] | None = None,
    heights: Sequence[float] | None = None,
) -> GridSpec:
    """A grid of panels with margins and gaps in inches.

    Args:
        figure: the page.
        rows: of panels.
        columns: of panels.
        top: inches between the page's upper edge and the panels.
        bottom: inches below them.
        left: inches on their left.
        right: inches on their right.
        gap: inches between columns and between rows.
        widths: of the columns, relative to each other.
        heights: of the rows, relative to each other.
    """
    width, height = figure.get_size_inches()
    panel_width = (width - left - right - gap[0] * (columns - 1)) / columns
    panel_height = (height - top - bottom - gap[1] * (rows - 1)) / rows
    return figure.add_gridspec(
        rows,
        columns,
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=gap[0] / panel_width,
        hspace=gap[1] / panel_height,
        width_ratios=widths,
        height_ratios=heights,
    )


def label(axes: Axes, x: float, y: float, text: str, colour: str = INK, **style: Any) -> Text:
    """Text at a point of the data with a white halo, so that it reads over curves."""
    return axes.text(x, y, text, color=colour, path_effects=_halo(), **({"fontsize": 9, "zorder": 10} | style))


def corner(axes: Axes, text: str, colour: str = INK, *, x: float = 0.03, y: float = 0.96, **style: Any) -> Text:
    """Text in a corner of the panel, x and y in fractions of it."""
    align = {"ha": "left" if x < 0.5 else "right", "va": "top" if y > 0.5 else "bottom"}
    place: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 9, "zorder": 10, "linespacing": 1.35}
    return axes.text(x, y, text, color=colour, path_effects=_halo(), **(place | align | style))


def heading(axes: Axes, text: str, colour: str = INK) -> None:
    """A panel's title: left aligned, above the panel."""
    axes.set_title(text, loc="left", fontsize=10, color=colour, weight="bold", pad=6)


def no_scale(axes: Axes) -> None:
    """Takes away the vertical scale, for densities whose height does not matter."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def bare(axes: Axes) -> None:
    """Takes away a panel's ticks, for maps whose units do not matter."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def number(value: float, digits: int = 3) -> str:
    """A number with a typographic minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def _halo() -> list[patheffects.AbstractPathEffect]:
    return [patheffects.withStroke(linewidth=2.5, foreground="white")]
