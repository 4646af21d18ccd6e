"""Marks that pictures share: text with a halo, bands, densities, maps of probabilities and the rows on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text

from bayescope.plots.style import FAINT, INK, MUTED, class_colour, class_marker, probability_scale

LEVELS = (0.1, 0.5, 0.9)
HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]

# (low, high) of the first and of the second coordinate.
Span = tuple[tuple[float, float], tuple[float, float]]


def label(axes: Axes, x: float, y: float, text: str, colour: str = INK, **look: Any) -> Text:
    """Text at a point of the data with a white halo, so that it reads over curves."""
    return axes.text(x, y, text, color=colour, path_effects=HALO, **({"fontsize": 9, "zorder": 10} | look))


def corner(axes: Axes, text: str, colour: str = INK, *, x: float = 0.03, y: float = 0.96, **look: Any) -> Text:
    """Text in a corner of the panel, x and y in fractions of it."""
    align = {"ha": "left" if x < 0.5 else "right", "va": "top" if y > 0.5 else "bottom"}
    place: dict[str, Any] = {"transform": axes.transAxes, "linespacing": 1.35}
    return label(axes, x, y, text, colour, **(place | align | look))


def no_scale(axes: Axes) -> None:
    """Takes away the vertical scale, for densities whose height does not matter."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def bare(axes: Axes, frame: float = 0.0) -> None:
    """Takes away a panel's ticks, for maps whose units do not matter, and its frame or all but a thin line of it."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(frame > 0)
    axes.spines[:].set_linewidth(frame)


def plain_ticks(axes: Axes, coordinate: str, ticks: Sequence[float], names: Sequence[str] = ()) -> None:
    """Ticks of a logarithmic axis at round numbers, written as such, without smaller ticks between them."""
    axis = {"x": axes.xaxis, "y": axes.yaxis}[coordinate]
    axis.set_ticks(list(ticks), list(names) or [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def band(
    axes: Axes,
    x: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    colour: str,
    *,
    alpha: float = 0.18,
    mean: np.ndarray | None = None,
) -> None:
    """The area between two curves, and the curve of the mean in it if one is given."""
    axes.fill_between(x, low, high, color=colour, alpha=alpha, lw=0)
    if mean is not None:
        axes.plot(x, mean, color=colour, lw=1.8)


def density(
    axes: Axes, x: np.ndarray, height: np.ndarray, colour: str = MUTED, *, bottom: float = 0.0, width: float = 1.0
) -> None:
    """A curve over a grey area, as every picture shows the density that is approximated."""
    axes.fill_between(x, height, bottom, color=FAINT, lw=0)
    axes.plot(x, height, color=colour, lw=width)


def plane_density(axes: Axes, x: np.ndarray, y: np.ndarray, p: np.ndarray) -> None:
    """Grey contours of a density, p of shape (len(y), len(x))."""
    axes.contourf(x, y, p, levels=np.linspace(0.002, p.max(), 9), cmap="Greys", vmax=1.8 * p.max())
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def lattice(span: Span, size: int) -> np.ndarray:
    """Points on a grid over a part of the plane, row by row from the bottom, shape (size², 2)."""
    x1, x2 = np.meshgrid(*(np.linspace(*ends, size) for ends in span))
    return np.column_stack([x1.ravel(), x2.ravel()])


def field(axes: Axes, span: Span, values: np.ndarray, colours: Colormap, highest: float = 1.0) -> None:
    """Values from 0 to the highest at the points of a lattice, shape (size, size), as colours."""
    x1, x2 = (np.linspace(*ends, size) for ends, size in zip(span, values.shape[::-1], strict=True))
    axes.contourf(x1, x2, values, levels=np.linspace(0, highest, 21 if highest == 1 else 26), cmap=colours)
    axes.set(xlim=span[0], ylim=span[1])


def probability_map(axes: Axes, span: Span, p: np.ndarray) -> None:
    """p(class 1) at the points of a lattice as colours, with contours: ½ solid, 0.1 and 0.9 dashed."""
    field(axes, span, p, probability_scale())
    x1, x2 = (np.linspace(*ends, p.shape[0]) for ends in span)
    axes.contour(x1, x2, p, LEVELS, colors=INK, linewidths=(0.8, 1.5, 0.8), linestyles=("--", "-", "--"))


def rows(axes: Axes, X: np.ndarray, y: np.ndarray, size: float = 12) -> None:
    """Rows of two features in their classes' colours and markers."""
    for k in np.unique(y):
        x1, x2 = X[y == k].T
        axes.scatter(
            x1, x2, s=size, color=class_colour(k), marker=class_marker(k), edgecolor="white", linewidth=0.5, zorder=4
        )


def colour_scale(
    figure: Figure, place: tuple[float, float, float, float], colours: Colormap, name: str, ticks: Sequence[float]
) -> None:
    """A colour scale from 0 to the last tick at a place in fractions of the page, upright if it is taller than wide."""
    width, height = figure.get_size_inches()
    direction = "vertical" if place[3] * height > place[2] * width else "horizontal"
    scale = ScalarMappable(Normalize(0, ticks[-1]), colours)
    bar = figure.colorbar(scale, cax=figure.add_axes(place), ticks=list(ticks), orientation=direction)
    bar.outline.set_visible(False)
    bar.set_label(name, color=MUTED)
