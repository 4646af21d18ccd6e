"""Bars with intervals: what each term contributes to one prediction, and how much it moves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayescope import checks
from bayescope.additive.effects import width_of
from bayescope.additive.explanation import Explanation
from bayescope.additive.importance import Importance
from bayescope.errors import InputError
from bayescope.plots import style
from bayescope.plots.effects import colour, columns, expect, output_names
from bayescope.plots.numbers import cell

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
    shown: Explanation, row: int = 0, *, output: int = 0, most: int = MOST, unit: str | None = None
) -> Figure:
    """One prediction: the terms that contribute most, the others together, the constants and the total.

    Args:
        shown: of one row or more.
        row: which.
        output: which, where there are several.
        most: how many terms have a bar of their own.
        unit: what contributions are measured in, by default what the explanation tells.

    Raises:
        InputError: if there is no such row or output.
        InputTypeError: if it is no explanation.
    """
    expect("explanation", shown, Explanation, "Pass model.explain(X)")
    _inside("row", row, len(shown))
    _inside("output", output, 1 if shown.total.ndim == 1 else shown.total.shape[1])
    lines = bars(shown, row, output=output, most=most)
    level = f"{100 * shown.level:g} %"
    with style.house():
        figure, [panel] = style.panels(
            1,
            width=6.2,
            height=0.75 + LINE * len(lines),
            title="One prediction and its reasons" + (f": {shown.outputs[output]}" if shown.outputs else ""),
            subtitle=f"Contributions with {level} intervals; with the intercept, the mean over the data, they sum to "
            "the total.",
        )
        draw_bars(panel, lines)
        panel.set_xlabel(shown.unit if unit is None else unit)
    return figure


def importance(shown: Importance, *, outputs: Sequence[str] = (), most: int = MOST, unit: str | None = None) -> Figure:
    """The most important terms: the mean absolute contribution over the data, with its interval.

    Args:
        shown: what.
        outputs: names of the outputs where there are several; by default those that the importance tells.
        most: how many terms.
        unit: what contributions are measured in, by default what the importance tells.

    Raises:
        InputError: if there is not one name for each output.
        InputTypeError: if it is no importance.
    """
    expect("importance", shown, Importance, "Pass model.importance()")
    mean, low, high, point = (columns(part) for part in (shown.mean, shown.low, shown.high, shown.at_mean))
    count, order = mean.shape[1], shown.order[: checks.count("most", most)]
    names = output_names(count, outputs, shown.outputs)
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
            f"{100 * shown.level:g} % interval.",
        )
        for output in range(count):
            height = 0.72 / count
            y = np.arange(len(order)) + height * (output - 0.5 * (count - 1))
            tint = colour(output, count)
            panel.barh(y, mean[order, output], height, color=tint, alpha=0.35)
            panel.hlines(y, low[order, output], high[order, output], color=tint, lw=1.6)
            panel.plot(point[order, output], y, "|", color=style.INK, ms=60 * height / count**0.5 / 6)
        _named(panel, [style.shorten(shown.names[place], 30) for place in order])
        panel.set_xlim(left=0)
        panel.set_xlabel(f"mean absolute contribution: {shown.unit if unit is None else unit}")
    return figure


def bars(
    shown: Explanation, row: int, *, output: int = 0, most: int = MOST, order: np.ndarray | None = None
) -> list[TermBar]:
    """The lines of one prediction: terms, the rest of them together, the constants, the total.

    Args:
        shown: of one row or more.
        row: which.
        output: which.
        most: how many terms have a line of their own.
        order: of the terms, by default the largest contributions first.
    """
    sides = (shown.contributions, shown.low, shown.high)
    parts, low, high = (part[row, :, None] if part.ndim == 2 else part[row] for part in sides)
    parts, low, high = parts[:, output], low[:, output], high[:, output]
    order = np.argsort(-np.abs(parts), kind="stable") if order is None else order
    kept, rest = order[: checks.count("most", most)], order[most:]
    lines = [
        TermBar(
            _with_value(shown, row, term), parts[term], (low[term], high[term]), HIGHER if parts[term] > 0 else LOWER
        )
        for term in kept
    ]
    if len(rest):
        lines.append(TermBar(f"{len(rest)} others together", float(parts[rest].sum()), None, style.MUTED))
    constant, sd, offset = (np.ravel(part)[output] for part in (shown.intercept, shown.intercept_sd, shown.offset[row]))
    half = width_of(shown.level) * sd
    lines.append(TermBar("intercept", constant, (constant - half, constant + half), style.MUTED))
    if shown.offset.any():
        lines.append(TermBar("offset", offset, None, style.MUTED))
    total, ends = np.ravel(shown.total[row])[output], (shown.total_low[row], shown.total_high[row])
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
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_visible(False)


def _with_value(shown: Explanation, row: int, term: int) -> str:
    """The term's name with the value of its features."""
    name = style.shorten(shown.names[term], 30)
    return name if shown.values is None else f"{name} = {cell(shown.values[row, term], 12)}"


def _inside(name: str, place: int, count: int) -> None:
    if not 0 <= checks.count(name, place, least=0) < count:
        raise InputError(f"{name}: expected one of 0 to {count - 1}, got {place}.")
