"""Effects of an additive model: a curve or dots a feature with bands, and how much of the data lies where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayescope.additive.effects import Effect
from bayescope.errors import InputError, InputTypeError
from bayescope.plots import style
from bayescope.plots.numbers import MISSING

# The density of the data takes this share of a panel's height.
STRIP = 0.13
# A missing value stands so far beyond the numbers, as a share of their range.
BEYOND = 0.12
# Outputs stand beside each other at a label, so far apart.
ASIDE = 0.16
# Of the data's density over a range of numbers.
BARS = 25
# Labels that take more letters than this in a panel are turned.
LETTERS = 26
LONGEST_LABEL = 12
# Beside a panel there is room for so many.
LONGEST_UNIT = 24
# Where effects come from.
HOW = "Pass [model.effects(name) for name in names]"


def effect(shown: Effect, *, outputs: Sequence[str] = (), unit: str | None = None) -> Figure:
    """The effect of one feature; see `effects`."""
    return effects([shown], outputs=outputs, unit=unit)


def effects(shown: Sequence[Effect], *, outputs: Sequence[str] = (), unit: str | None = None) -> Figure:
    """One panel a feature, on one scale: mean and band, and below them the density of the data.

    Args:
        shown: in the order of the panels, such as that of the features' importance.
        outputs: names of the outputs where there are several; by default those that the effects tell.
        unit: what the effects are measured in, by default what they tell.

    Raises:
        InputError: if there is nothing to show, or not one name for each output.
        InputTypeError: if it is no sequence of effects.
    """
    if not isinstance(shown, Sequence):
        raise InputTypeError(f"effects: expected a list of effects, got {type(shown).__name__}. {HOW}.")
    for one in shown:
        expect("effects", one, Effect, HOW)
    if not shown:
        raise InputError("effects: expected at least one effect, got none.")
    names = output_names(columns(shown[0].mean).shape[1], outputs, shown[0].outputs)
    key: list[Line2D | Patch] = [
        Line2D([], [], color=colour(place, len(names)), label=name) for place, name in enumerate(names) if name
    ]
    key.append(Patch(color=style.FAINT, label="density of the data"))
    with style.house():
        figure, axes = style.panels(
            len(shown),
            width=2.6,
            height=2.2,
            key=key,
            title="Effects" if len(shown) > 1 else "Effect",
            subtitle=f"Mean under the posterior and {100 * shown[0].level:g} % band; 0 is the mean over the data.",
            sharey=True,
        )
        for panel, one in zip(axes, shown, strict=True):
            draw_effect(panel, one)
            panel.set_title(style.shorten(one.feature))
        make_room(axes[0])
        for panel, one in zip(axes, shown, strict=True):
            draw_density(panel, one)
        figure.supylabel(style.shorten(shown[0].unit if unit is None else unit, LONGEST_UNIT), fontsize=9.5)
    return figure


def draw_effect(panel: Axes, shown: Effect, *, tint: str | None = None) -> None:
    """An effect in a panel: mean and band.

    Args:
        panel: where.
        shown: the effect.
        tint: its colour where there is one output.
    """
    panel.axhline(0, color=style.FAINT, lw=0.9, zorder=0)
    mean, low, high = (columns(part) for part in (shown.mean, shown.low, shown.high))
    count = mean.shape[1]
    for output in range(count):
        shade = tint if tint and count == 1 else colour(output, count)
        aside = ASIDE * (output - 0.5 * (count - 1)) * step(shown)
        if shown.categorical:
            _dots(panel, places(shown) + aside, mean[:, output], low[:, output], high[:, output], shade, "o")
        else:
            panel.fill_between(shown.grid, low[:, output], high[:, output], color=shade, alpha=0.25, lw=0)
            panel.plot(shown.grid, mean[:, output], color=shade)
        if shown.missing is not None:
            at = np.array([missing_place(shown) + aside])
            gone, least, most = (
                np.atleast_1d(part)[[output]] for part in (shown.missing.mean, shown.missing.low, shown.missing.high)
            )
            _dots(panel, at, gone, least, most, shade, "D")
    _ticks(panel, shown)


def make_room(panel: Axes) -> None:
    """Lowers the lower end of a panel's scale, so that the density of the data lies under no curve."""
    low, high = panel.get_ylim()
    panel.set_ylim(low - STRIP / (1 - STRIP) * (high - low), high)


def draw_density(panel: Axes, shown: Effect) -> None:
    """Bars at the foot of a panel: the share of the data at each label, in each part of the range, and missing."""
    at, shares, width = density_bars(shown)
    if shares.max(initial=0.0) > 0:
        heights = 0.85 * STRIP * shares / shares.max()
        panel.bar(at, heights, width, color=style.FAINT, transform=panel.get_xaxis_transform(), zorder=0.5)


def colour(output: int, count: int) -> str:
    """The colour of an output: that of a class, or the Laplace posterior's if there is only one output."""
    return style.COLOURS["laplace"] if count == 1 else style.class_colour(output)


def output_names(count: int, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of the outputs: those given, or those known, or numbers; one alone needs none.

    Raises:
        InputError: if there is not one for each.
    """
    names = [str(name) for name in (given if len(given) else known)]
    if names and len(names) != count:
        raise InputError(f"outputs: expected {count} names, got {len(names)}.")
    return names or ([""] if count == 1 else [f"output {place}" for place in range(count)])


def expect(name: str, given: object, kind: type, how: str) -> None:
    """Refuses what is not of the kind that a picture shows, and says ``how`` to make it.

    Raises:
        InputTypeError: if it is another.
    """
    if not isinstance(given, kind):
        raise InputTypeError(f"{name}: expected {kind.__name__}, got {type(given).__name__}. {how}.")


def columns(values: np.ndarray) -> np.ndarray:
    """With a last axis for the outputs, also where there is one."""
    return values if values.ndim == 2 else values[:, None]


def places(shown: Effect) -> np.ndarray:
    """The positions of the grid on the x axis: its numbers, or 0, 1, … for labels."""
    return np.arange(len(shown.grid), dtype=np.float64) if shown.categorical else shown.grid


def _range(shown: Effect) -> tuple[float, float]:
    at = places(shown)
    return (float(at.min()), float(at.max())) if len(at) else (0.0, 0.0)


def step(shown: Effect) -> float:
    """The distance between labels, or that of the missing value from the numbers."""
    low, high = _range(shown)
    return 1.0 if shown.categorical else BEYOND * (high - low) or 1.0


def missing_place(shown: Effect) -> float:
    """The position of the missing value on the x axis, beyond the grid."""
    return _range(shown)[1] + step(shown)


def density_bars(shown: Effect) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Middles, shares and widths of bars for the density of the data, the missing values last.

    There is one bar for each label, or as many as the range of the numbers has room for.
    """
    low, high = _range(shown)
    at, shares, width = places(shown), shown.density, np.full(len(shown.grid), 0.6)
    if not shown.categorical and high > low:
        shares, edges = np.histogram(shown.grid, min(BARS, len(shown.grid)), weights=shown.density)
        at, width = 0.5 * (edges[1:] + edges[:-1]), 0.92 * np.diff(edges)
    if shown.missing is None:
        return at, shares, width
    ends = missing_place(shown), shown.missing.density, 0.6 * step(shown)
    at, shares, width = (np.append(part, end) for part, end in zip((at, shares, width), ends, strict=True))
    return at, shares, width


def _dots(
    panel: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, tint: str, marker: str
) -> None:
    panel.vlines(x, low, high, color=tint, lw=2.2, alpha=0.45)
    panel.plot(x, mean, marker, color=tint, ms=4.5, mew=0)


def _ticks(panel: Axes, shown: Effect) -> None:
    """Labels at their places; numbers as matplotlib places them, and beside them that of the missing value."""
    gone = [(missing_place(shown), MISSING)] if shown.missing is not None else []
    if not shown.categorical:
        panel.locator_params(axis="x", nbins=4)
        if gone:
            low, high = _range(shown)
            kept = [tick for tick in panel.get_xticks() if low <= tick <= high - 0.5 * step(shown)]
            panel.set_xticks([*kept, gone[0][0]], [*[f"{tick:g}" for tick in kept], MISSING])
        return
    labels = [style.shorten(str(label), LONGEST_LABEL) for label in shown.grid]
    marks = [*zip(places(shown), labels, strict=True), *gone]
    turned = sum(len(label) for _, label in marks) > LETTERS
    panel.set_xticks([at for at, _ in marks], [label for _, label in marks], rotation=90 if turned else 0)
    panel.set_xlim(-0.6, len(marks) - 0.4)
