"""The effect of two features of an additive model as a map, beside the map of its standard deviation."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from bayescope.additive.effects import Surface
from bayescope.errors import InputError
from bayescope.plots import style
from bayescope.plots.effects import LONGEST_UNIT, expect

CONTOURS = 7
# The largest dot, for the cell with the most data, in points².
DOT = 14.0


def effect_surface(shown: Surface, *, output: int = 0, unit: str | None = None) -> Figure:
    """The mean with contour lines, and the standard deviation beside it.

    Args:
        shown: the surface.
        output: which one, where there are several.
        unit: what the effect is measured in, by default what the surface tells.

    Raises:
        InputError: if there is no such output, or a grid is empty.
        InputTypeError: if it is no surface.
    """
    expect("effect_surface", shown, Surface, "Pass model.surface(a, b)")
    mean, sd = (part if part.ndim == 3 else part[..., None] for part in (shown.mean, shown.sd))
    if mean.size == 0 or not 0 <= output < mean.shape[2]:
        raise InputError(f"output: expected one of a surface of shape {mean.shape}, got {output}.")
    mean, sd = mean[..., output], sd[..., output]
    largest, widest = float(np.abs(mean).max()) or 1.0, float(sd.max()) or 1.0
    ends = style.CLASS_COLOURS[0], "#ffffff", style.CLASS_COLOURS[1]
    signed = LinearSegmentedColormap.from_list("effect", ends)
    doubt = LinearSegmentedColormap.from_list("sd", ["#ffffff", style.COLOURS["mean_field"], "#5a3300"])
    what = "with their own effects" if shown.whole else "beyond their own effects"
    first, second = (style.shorten(name) for name in shown.features)
    with style.house():
        figure, axes = style.panels(
            2,
            width=3.5,
            height=2.9,
            title=f"{first} and {second}" + (f": {shown.outputs[output]}" if shown.outputs else ""),
            subtitle=f"What both do together, {what}. Dots: where the data are, larger where there are more.",
        )
        for panel, values, name, colours, limits in (
            (axes[0], mean, "mean", signed, (-largest, largest)),
            (axes[1], sd, "standard deviation", doubt, (0.0, widest)),
        ):
            _map(figure, panel, shown, values, colours, limits, shown.unit if unit is None else unit)
            panel.set_title(name)
            panel.set(xlabel=first, ylabel=second)
    return figure


def _map(
    figure: Figure, panel: Axes, shown: Surface, values: np.ndarray, colours: LinearSegmentedColormap,
    limits: tuple[float, float], unit: str,
) -> None:  # fmt: skip
    x, y = _places(shown.grid_a), _places(shown.grid_b)
    low, high = limits
    image = panel.pcolormesh(x, y, values.T, cmap=colours, vmin=low, vmax=high, shading="nearest", rasterized=True)
    numbers = all(grid.dtype != object and len(grid) > 1 for grid in (shown.grid_a, shown.grid_b))
    if numbers and float(np.ptp(values)) > 0:
        lines = panel.contour(x, y, values.T, levels=CONTOURS, colors=style.INK, linewidths=0.8)
        panel.clabel(lines, fontsize=7.5)
    at = np.argwhere(shown.density > 0)
    sizes = DOT * shown.density[shown.density > 0] / (shown.density.max() or 1.0)
    panel.scatter(x[at[:, 0]], y[at[:, 1]], s=sizes, color=style.INK, alpha=0.35, lw=0)
    if shown.grid_a.dtype == object:
        panel.set_xticks(x, [style.shorten(str(label), 12) for label in shown.grid_a])
    if shown.grid_b.dtype == object:
        panel.set_yticks(y, [style.shorten(str(label), 12) for label in shown.grid_b])
    figure.colorbar(image, ax=panel, label=style.shorten(unit, LONGEST_UNIT), shrink=0.9, aspect=24)


def _places(grid: np.ndarray) -> np.ndarray:
    return np.arange(len(grid), dtype=np.float64) if grid.dtype == object else grid
