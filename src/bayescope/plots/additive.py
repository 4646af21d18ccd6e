"""Pictures of additive models: effects and their maps, the reasons of one prediction, and importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayescope import checks
from bayescope.additive.contributions import width_of
from bayescope.additive.effects import Effect, Surface
from bayescope.additive.explanation import Explanation, Importance
from bayescope.errors import InputError, InputTypeError
from bayescope.plots import style
from bayescope.plots.numbers import MISSING, cell

if TYPE_CHECKING:
    from bayescope.notebook import Canvas

# Effects of single features -------------------------------------------------------------------------------------------
# The density of the data takes this share of a panel's height.
STRIP = 0.13
# A missing value stands so far beyond the numbers, as a share of their range.
BEYOND = 0.12
# Outputs stand beside each other at a label, so far apart.
ASIDE = 0.16
# Of the data's density over a range of numbers.
BARS = 25
# So few steps have a tick each.
FEW = 6
# Labels that take more letters than this in a panel are turned.
LETTERS = 26
LONGEST_LABEL = 12
# Labels in a panel: those of most data.
MOST_LABELS = 12
# As many have room beside a panel.
LONGEST_UNIT = 24
# Where effects come from.
HOW = "Pass [model.effects(name) for name in names]"


def effect(curve: Effect, *, outputs: Sequence[str] = (), unit: str | None = None, ax: Canvas | None = None) -> Canvas:
    """Draw the effect of one feature: its mean and band, and below them the density of the data.

    Args:
        curve: from `effects` of an additive model.
        outputs: names of the outputs if there are several; by default the names in the effect.
        unit: what the effect is measured in; by default the unit in the effect.
        ax: the axes to draw into; a new figure by default.

    Raises:
        InputError: if there is not one name for each output.
        InputTypeError: if it is not an effect.
    """
    return effects([curve], outputs=outputs, unit=unit, ax=ax)


def effects(
    curves: Sequence[Effect],
    *,
    outputs: Sequence[str] = (),
    unit: str | None = None,
    one_scale: bool = True,
    ax: Canvas | None = None,
) -> Canvas:
    """One panel a feature: mean and band, and below them the density of the data.

    Of more than 12 labels the 12 of most rows are drawn, and the panel says how many there are.

    Args:
        curves: in the order of the panels, such as that of the features' importance.
        outputs: names of the outputs where there are several; by default those that the effects tell.
        unit: what the effects are measured in, by default what they tell.
        one_scale: whether all panels have one scale, so that effects may be compared, or each its own.
        ax: the axes to draw into, one for each panel; a new figure if not given.

    Raises:
        InputError: if there is nothing to show, or not one name for each output.
        InputTypeError: if it is no sequence of effects.
    """
    if not isinstance(curves, Sequence):
        raise InputTypeError(f"effects: expected a list of effects, got {type(curves).__name__}. {HOW}.")
    for one in curves:
        expect("effects", one, Effect, HOW)
    if not curves:
        raise InputError("effects: expected at least one effect, got none.")
    names = output_names(columns(curves[0].mean).shape[1], outputs, curves[0].outputs)
    key: list[Line2D | Patch] = [
        Line2D([], [], color=colour(place, len(names)), label=name) for place, name in enumerate(names) if name
    ]
    key.append(Patch(color=style.FAINT, label="density of the data"))
    with style.house():
        zero = "; 0 is the mean over the data" if curves[0].centred else ", all other effects being 0"
        figure, axes = style.panels(
            len(curves),
            width=2.6,
            height=2.2,
            key=key,
            title="Effects" if len(curves) > 1 else "Effect",
            subtitle=f"Mean under the posterior and {100 * curves[0].level:g} % band{zero}.",
            sharey=checks.flag("one_scale", one_scale),
            ax=ax,
        )
        parts = [most_frequent(one, MOST_LABELS) for one in curves]
        for panel, one, whole in zip(axes, parts, curves, strict=True):
            draw_effect(panel, one)
            of = f" ({len(one.grid)} of {len(whole.grid)})" if len(one.grid) < len(whole.grid) else ""
            panel.set_title(style.shorten(one.feature) + of, parse_math=False)
        if one_scale:
            style.one_scale(axes, "y")
        for panel in axes[:1] if one_scale else axes:
            make_room(panel)
        if one_scale:
            style.one_scale(axes, "y")
        for panel, one in zip(axes, parts, strict=True):
            draw_density(panel, one)
        name = style.shorten(curves[0].unit if unit is None else unit, LONGEST_UNIT)
        style.axis_labels(figure, axes, y=name, given=ax is not None)
    return style.drawn(figure, ax)


def most_frequent(curve: Effect, most: int) -> Effect:
    """An effect of labels with those of most data first, and at most so many; of numbers as it is."""
    if not curve.categorical:
        return curve
    order = np.argsort(-curve.density, kind="stable")[:most]
    grid, mean, sd, low, high, density = (
        np.asarray(part)[order] for part in (curve.grid, curve.mean, curve.sd, curve.low, curve.high, curve.density)
    )
    return replace(curve, grid=grid, mean=mean, sd=sd, low=low, high=high, density=density)


def draw_effect(panel: Axes, curve: Effect, *, tint: str | None = None) -> None:
    """An effect in a panel: mean and band.

    Args:
        panel: where.
        curve: the effect.
        tint: its colour where there is one output.
    """
    panel.axhline(0, color=style.FAINT, lw=0.9, zorder=0)
    mean, low, high = (columns(part) for part in (curve.mean, curve.low, curve.high))
    count = mean.shape[1]
    for output in range(count):
        shade = tint if tint and count == 1 else colour(output, count)
        aside = ASIDE * (output - 0.5 * (count - 1)) * step(curve)
        if curve.categorical:
            _dots(panel, places(curve) + aside, mean[:, output], low[:, output], high[:, output], shade, "o")
        else:
            at, which = stairs(curve.grid) if curve.steps else (curve.grid, np.arange(len(curve.grid)))
            panel.fill_between(at, low[which, output], high[which, output], color=shade, alpha=0.25, lw=0)
            panel.plot(at, mean[which, output], color=shade)
        if curve.missing is not None:
            at = np.array([missing_place(curve) + aside])
            gone, least, most = (
                np.atleast_1d(part)[[output]] for part in (curve.missing.mean, curve.missing.low, curve.missing.high)
            )
            _dots(panel, at, gone, least, most, shade, "D")
    _ticks(panel, curve)


def make_room(panel: Axes) -> None:
    """Lowers the lower end of a panel's scale, so that the density of the data lies under no curve."""
    low, high = panel.get_ylim()
    panel.set_ylim(low - STRIP / (1 - STRIP) * (high - low), high)


def draw_density(panel: Axes, curve: Effect) -> None:
    """Bars at the foot of a panel: the share of the data at each label, in each part of the range, and missing."""
    at, shares, width = density_bars(curve)
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


def places(curve: Effect) -> np.ndarray:
    """The positions of the grid on the x axis: its numbers, or 0, 1, … for labels."""
    return np.arange(len(curve.grid), dtype=np.float64) if curve.categorical else curve.grid


def stairs(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The corners of steps about the numbers of a grid: where they are, and which number each belongs to, (2n,)."""
    if len(grid) < 2:
        return np.concatenate([grid - 0.5, grid + 0.5]), np.zeros(2 * len(grid), dtype=int)
    middles = 0.5 * (grid[1:] + grid[:-1])
    edges = np.concatenate([[1.5 * grid[0] - 0.5 * grid[1]], middles, [1.5 * grid[-1] - 0.5 * grid[-2]]])
    return np.repeat(edges, 2)[1:-1], np.repeat(np.arange(len(grid)), 2)


def _range(curve: Effect) -> tuple[float, float]:
    at = stairs(curve.grid)[0] if curve.steps else places(curve)
    return (float(at.min()), float(at.max())) if len(at) else (0.0, 0.0)


def step(curve: Effect) -> float:
    """The distance between labels, or that of the missing value from the numbers."""
    low, high = _range(curve)
    return 1.0 if curve.categorical else BEYOND * (high - low) or 1.0


def missing_place(curve: Effect) -> float:
    """The position of the missing value on the x axis, beyond the grid."""
    return _range(curve)[1] + step(curve)


def density_bars(curve: Effect) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Middles, shares and widths of bars for the density of the data, the missing values last.

    There is one bar for each label, or as many as the range of the numbers has room for.
    """
    low, high = _range(curve)
    at, shares, width = places(curve), curve.density, np.full(len(curve.grid), 0.6)
    if curve.steps:
        width = 0.6 * np.full(len(at), np.diff(at).min(initial=high - low))
    elif not curve.categorical and high > low:
        shares, edges = np.histogram(curve.grid, min(BARS, len(curve.grid)), weights=curve.density)
        at, width = 0.5 * (edges[1:] + edges[:-1]), 0.92 * np.diff(edges)
    if curve.missing is None:
        return at, shares, width
    ends = missing_place(curve), curve.missing.density, 0.6 * step(curve)
    at, shares, width = (np.append(part, end) for part, end in zip((at, shares, width), ends, strict=True))
    return at, shares, width


def _dots(
    panel: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, tint: str, marker: str
) -> None:
    panel.vlines(x, low, high, color=tint, lw=2.2, alpha=0.45)
    panel.plot(x, mean, marker, color=tint, ms=4.5, mew=0)


def _ticks(panel: Axes, curve: Effect) -> None:
    """Labels at their places; numbers as matplotlib places them, and beside them that of the missing value."""
    gone = [(missing_place(curve), MISSING)] if curve.missing is not None else []
    if not curve.categorical:
        panel.locator_params(axis="x", nbins=4)
        if curve.steps and len(curve.grid) <= FEW:
            panel.set_xticks(curve.grid)
        if gone:
            low, high = _range(curve)
            kept = [tick for tick in panel.get_xticks() if low <= tick <= high - 0.5 * step(curve)]
            panel.set_xticks([*kept, gone[0][0]], [*[f"{tick:g}" for tick in kept], MISSING])
        return
    labels = [style.shorten(str(label), LONGEST_LABEL) for label in curve.grid]
    marks = [*zip(places(curve), labels, strict=True), *gone]
    turned = sum(len(label) for _, label in marks) > LETTERS
    panel.set_xticks(
        [at for at, _ in marks], [label for _, label in marks], rotation=90 if turned else 0, parse_math=False
    )
    panel.set_xlim(-0.6, len(marks) - 0.4)


# Effects of pairs -----------------------------------------------------------------------------------------------------
CONTOURS = 7
# The largest dot, for the cell with the most data, in points².
DOT = 14.0


def effect_surface(surface: Surface, *, output: int = 0, unit: str | None = None, ax: Canvas | None = None) -> Canvas:
    """The mean with contour lines, and the standard deviation beside it.

    Args:
        surface: the surface.
        output: which one, where there are several.
        unit: what the effect is measured in, by default what the surface tells.
        ax: the two axes to draw into; a new figure if not given.

    Raises:
        InputError: if there is no such output, or a grid is empty.
        InputTypeError: if it is no surface.
    """
    expect("effect_surface", surface, Surface, "Pass model.surface(a, b)")
    mean, sd = (part if part.ndim == 3 else part[..., None] for part in (surface.mean, surface.sd))
    if mean.size == 0 or not 0 <= output < mean.shape[2]:
        raise InputError(f"output: expected one of a surface of shape {mean.shape}, got {output}.")
    mean, sd = mean[..., output], sd[..., output]
    largest, widest = float(np.abs(mean).max()) or 1.0, float(sd.max()) or 1.0
    ends = style.CLASS_COLOURS[0], "#ffffff", style.CLASS_COLOURS[1]
    signed = LinearSegmentedColormap.from_list("effect", ends)
    doubt = LinearSegmentedColormap.from_list("sd", ["#ffffff", style.COLOURS["mean_field"], "#5a3300"])
    what = "with their separate effects" if surface.whole else "beyond their separate effects"
    first, second = (style.shorten(name) for name in surface.features)
    with style.house():
        figure, axes = style.panels(
            2,
            width=3.5,
            height=2.9,
            title=f"{first} and {second}" + (f": {surface.outputs[output]}" if surface.outputs else ""),
            subtitle=f"What both do together, {what}. Dots: where the data are, larger where there are more.",
            ax=ax,
        )
        for panel, values, name, colours, limits in (
            (axes[0], mean, "mean", signed, (-largest, largest)),
            (axes[1], sd, "standard deviation", doubt, (0.0, widest)),
        ):
            _map(figure, panel, surface, values, colours, limits, surface.unit if unit is None else unit)
            panel.set_title(name)
            panel.set_xlabel(first, parse_math=False)
            panel.set_ylabel(second, parse_math=False)
    return style.drawn(figure, ax)


def _map(
    figure: Figure, panel: Axes, surface: Surface, values: np.ndarray, colours: LinearSegmentedColormap,
    limits: tuple[float, float], unit: str,
) -> None:  # fmt: skip
    x, y = _places(surface.grid_a), _places(surface.grid_b)
    low, high = limits
    image = panel.pcolormesh(x, y, values.T, cmap=colours, vmin=low, vmax=high, shading="nearest", rasterized=True)
    numbers = all(grid.dtype != object and len(grid) > 1 for grid in (surface.grid_a, surface.grid_b))
    if numbers and float(np.ptp(values)) > 0:
        lines = panel.contour(x, y, values.T, levels=CONTOURS, colors=style.INK, linewidths=0.8)
        panel.clabel(lines, fontsize=7.5)
    at = np.argwhere(surface.density > 0)
    sizes = DOT * surface.density[surface.density > 0] / (surface.density.max() or 1.0)
    panel.scatter(x[at[:, 0]], y[at[:, 1]], s=sizes, color=style.INK, alpha=0.35, lw=0)
    if surface.grid_a.dtype == object:
        panel.set_xticks(x, [style.shorten(str(label), 12) for label in surface.grid_a], parse_math=False)
    if surface.grid_b.dtype == object:
        panel.set_yticks(y, [style.shorten(str(label), 12) for label in surface.grid_b], parse_math=False)
    figure.colorbar(image, ax=panel, label=style.shorten(unit, LONGEST_UNIT), shrink=0.9, aspect=24)


def _places(grid: np.ndarray) -> np.ndarray:
    return np.arange(len(grid), dtype=np.float64) if grid.dtype == object else grid


# Reasons and importance -----------------------------------------------------------------------------------------------
MOST = 12
LINE = 0.26  # inches a bar
LOWER, HIGHER = style.CLASS_COLOURS[:2]


@final
@dataclass(frozen=True)
class TermBar:
    """One line of an explanation: its name, its length, the ends of its interval where it has one, and its colour."""

    name: str
    value: float
    interval: tuple[float, float] | None
    tint: str


def explanation(
    reasons: Explanation,
    row: int = 0,
    *,
    output: int = 0,
    most: int = MOST,
    unit: str | None = None,
    ax: Canvas | None = None,
) -> Canvas:
    """One prediction: the terms that contribute most, the others together, the constants and the total.

    Args:
        reasons: of one row or more.
        row: which.
        output: which, where there are several.
        most: how many terms have a separate bar.
        unit: what contributions are measured in, by default what the explanation tells.
        ax: the axes to draw into; a new figure if not given.

    Raises:
        InputError: if there is no such row or output.
        InputTypeError: if it is no explanation.
    """
    expect("explanation", reasons, Explanation, "Pass model.explain(X)")
    _inside("row", row, len(reasons))
    _inside("output", output, 1 if reasons.total.ndim == 1 else reasons.total.shape[1])
    lines = bars(reasons, row, output=output, most=most)
    level = f"{100 * reasons.level:g} %"
    with style.house():
        figure, [panel] = style.panels(
            1,
            width=6.2,
            height=0.75 + LINE * len(lines),
            title="One prediction and its reasons" + (f": {reasons.outputs[output]}" if reasons.outputs else ""),
            subtitle=f"Contributions with {level} intervals; with the intercept, the mean over the data, they sum to "
            "the total.",
            ax=ax,
        )
        draw_bars(panel, lines)
        panel.set_xlabel(reasons.unit if unit is None else unit, parse_math=False)
    return style.drawn(figure, ax)


def importance(
    ranking: Importance,
    *,
    outputs: Sequence[str] = (),
    most: int = MOST,
    unit: str | None = None,
    ax: Canvas | None = None,
) -> Canvas:
    """The most important terms: the mean absolute contribution over the data, with its interval.

    Args:
        ranking: what.
        outputs: names of the outputs where there are several; by default those that the importance tells.
        most: how many terms.
        unit: what contributions are measured in, by default what the importance tells.
        ax: the axes to draw into; a new figure if not given.

    Raises:
        InputError: if there is not one name for each output.
        InputTypeError: if it is no importance.
    """
    expect("importance", ranking, Importance, "Pass model.importance()")
    mean, low, high, point = (columns(part) for part in (ranking.mean, ranking.low, ranking.high, ranking.at_mean))
    count, order = mean.shape[1], ranking.order[: checks.count("most", most)]
    names = output_names(count, outputs, ranking.outputs)
    key = [Line2D([], [], color=colour(place, count), lw=5, label=name) for place, name in enumerate(names) if name]
    key.append(Line2D([], [], color=style.INK, marker="|", ls="", ms=8, label="of the mean effect"))
    with style.house():
        figure, [panel] = style.panels(
            1,
            width=6.2,
            height=0.75 + LINE * len(order) * max(1.0, 0.5 * count),
            key=key,
            title="Importance",
            subtitle="Mean absolute contribution over the data: its mean under the posterior, with the "
            f"{100 * ranking.level:g} % interval.",
            ax=ax,
        )
        for output in range(count):
            height = 0.72 / count
            y = np.arange(len(order)) + height * (output - 0.5 * (count - 1))
            tint = colour(output, count)
            panel.barh(y, mean[order, output], height, color=tint, alpha=0.35)
            panel.hlines(y, low[order, output], high[order, output], color=tint, lw=1.6)
            panel.plot(point[order, output], y, "|", color=style.INK, ms=60 * height / count**0.5 / 6)
        _named(panel, [style.shorten(ranking.names[place], 30) for place in order])
        panel.set_xlim(left=0)
        panel.set_xlabel(f"mean absolute contribution: {ranking.unit if unit is None else unit}", parse_math=False)
    return style.drawn(figure, ax)


def bars(
    reasons: Explanation, row: int, *, output: int = 0, most: int = MOST, order: np.ndarray | None = None
) -> list[TermBar]:
    """The lines of one prediction: terms, the rest of them together, the constants, the total.

    Args:
        reasons: of one row or more.
        row: which.
        output: which.
        most: how many terms have a separate line.
        order: of the terms, by default the largest contributions first.
    """
    sides = (reasons.contributions, reasons.low, reasons.high)
    parts, low, high = (part[row, :, None] if part.ndim == 2 else part[row] for part in sides)
    parts, low, high = parts[:, output], low[:, output], high[:, output]
    order = np.argsort(-np.abs(parts), kind="stable") if order is None else order
    kept, rest = order[: checks.count("most", most)], order[most:]
    lines = [
        TermBar(
            _with_value(reasons, row, term), parts[term], (low[term], high[term]), HIGHER if parts[term] > 0 else LOWER
        )
        for term in kept
    ]
    if len(rest):
        lines.append(TermBar(f"{len(rest)} others together", float(parts[rest].sum()), None, style.MUTED))
    constant, sd, offset = (
        np.ravel(part)[output] for part in (reasons.intercept, reasons.intercept_sd, reasons.offset[row])
    )
    half = width_of(reasons.level) * sd
    lines.append(TermBar("intercept", constant, (constant - half, constant + half), style.MUTED))
    if reasons.offset.any():
        lines.append(TermBar("offset", offset, None, style.MUTED))
    total, ends = np.ravel(reasons.total[row])[output], (reasons.total_low[row], reasons.total_high[row])
    return [*lines, TermBar("total", total, (np.ravel(ends[0])[output], np.ravel(ends[1])[output]), style.INK)]


def draw_bars(panel: Axes, lines: Sequence[TermBar]) -> None:
    """Lines from top to bottom, the last below a rule."""
    for place, line in enumerate(lines):
        panel.barh(place, line.value, 0.66, color=line.tint, alpha=0.55, lw=0)
        if line.interval is not None and line.interval[1] > line.interval[0]:
            panel.hlines(place, *line.interval, color=style.INK, lw=1.2)
    panel.axvline(0, color=style.MUTED, lw=0.8)
    panel.axhline(len(lines) - 1.5, color=style.FAINT, lw=0.8)
    _named(panel, [line.name for line in lines])


def _named(panel: Axes, names: Sequence[str]) -> None:
    panel.set_yticks(range(len(names)), names, parse_math=False)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_visible(False)


def _with_value(reasons: Explanation, row: int, term: int) -> str:
    """The term's name with the value of its features."""
    name = style.shorten(reasons.names[term], 30)
    return name if reasons.values is None else f"{name} = {cell(reasons.values[row, term], 12)}"


def _inside(name: str, place: int, count: int) -> None:
    if not 0 <= checks.count(name, place, least=0) < count:
        raise InputError(f"{name}: expected one of 0 to {count - 1}, got {place}.")
