"""Pictures of predictions: each row's answer with its interval, along a feature or in the order of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from bayescope import checks
from bayescope.errors import InputError, InputTypeError
from bayescope.plots import style
from bayescope.predictive import Predictive, refuse_dense

if TYPE_CHECKING:
    from bayescope.notebook import Canvas

# Rows that are drawn by default; of three classes and more rows × classes, each of which has an interval that takes
# some milliseconds.
ROWS, ROWS_OF_CLASSES, FEWEST = 200, 400, 20
BLUE = style.COLOURS["laplace"]
LIGHT, DARK = 0.22, 0.5
# Of more classes colours repeat, and none has an entry in the legend.
LEGEND = len(style.CLASS_COLOURS)
RUG = -0.06  # where classes that were seen are marked, below the probabilities of all classes

Ends = tuple[np.ndarray, np.ndarray]


class Series(NamedTuple):
    """Numbers with their intervals along an axis.

    Attributes:
        mean: shape (R,).
        bands: intervals with their opacities, the widest first.
        colours: one for all rows, or one each.
    """

    mean: np.ndarray
    bands: Sequence[tuple[Ends, float]]
    colours: str | Sequence[str]


class Marks(NamedTuple):
    """What happened: marks at places along the axis."""

    at: np.ndarray
    height: np.ndarray
    colours: str | Sequence[str]
    marker: str = "o"


class Panel(NamedTuple):
    """What one panel shows, under a name; "" for none."""

    name: str
    series: Sequence[Series]
    marks: Marks | None


class Drawing(NamedTuple):
    """The panels, what explains them, and how their axes are called; ``order`` is that of rows that are sorted."""

    panels: Sequence[Panel]
    key: Sequence[Artist]
    subtitle: str
    unit: str
    order: str


@final
@dataclass(frozen=True)
class Rows:
    """Rows in the order of the axis.

    Attributes:
        predictive: of these rows, in arrays.
        at: where they stand, shape (R,).
        along: whether that is a feature, and not their rank.
        level: the probability of the intervals.
        y: what happened: shape (R, K), or the codes of classes, shape (R,); ``None`` where nobody said.
    """

    predictive: Predictive
    at: np.ndarray
    along: bool
    level: float | None
    y: np.ndarray | None

    def ends(self, of: Literal["outcome", "mean"]) -> Ends | None:
        """The interval of each column, (low, high) of shape (R, K)."""
        if self.level is None:
            return None
        low, high = self.predictive.interval(self.level, of=of)
        return np.asarray(low), np.asarray(high)

    @property
    def percent(self) -> str:
        """The intervals in words; nothing where there are none."""
        return "" if self.level is None else f" with {100 * self.level:g} % intervals"


def predictions(
    predictive: Predictive,
    y: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,
    level: float | None = 0.95,
    curve: bool | None = None,
    most: int | None = None,
    ax: Canvas | None = None,
) -> Canvas:
    """The answers for rows with their intervals; see `Predictive.plot`.

    Args:
        predictive: for N rows.
        y: what happened.
        x: where the rows stand along the axis; by default they are sorted by what is predicted.
        level: the probability of the intervals; ``None`` for none.
        curve: whether predictions are joined, which needs x.
        most: how many rows are drawn.
        ax: the axes to draw into, one for each panel; a new figure if not given.

    Raises:
        InputError: if outcomes, x or axes do not fit, or outputs are dense.
        InputTypeError: if it is no predictive, or x is not of numbers.
    """
    if not isinstance(predictive, Predictive):
        kind = type(predictive).__name__
        raise InputTypeError(f"predictions: expected Predictive, got {kind}. Pass q.predict(x).")
    refuse_dense(predictive, "Index its rows and draw its arrays, such as p.mean.")
    p = predictive if predictive.arrays else replace(predictive, arrays=True)
    if len(p) == 0:
        raise InputError("predictions: expected at least one row, got none.")
    along = None if x is None else _along(x, len(p))
    joined = _joined(curve, along)
    usual = len(p) if joined else _usual(p)
    rows = _sorted(p, _outcomes(p, y), along, level, usual if most is None else checks.count("most", most))
    drawing = _DRAWINGS[_kind(p)](rows)
    some = f" {len(rows.at):,} of {len(p):,} rows." if len(rows.at) < len(p) else ""
    alone = len(drawing.panels) == 1
    with style.house():
        figure, axes = style.panels(
            len(drawing.panels),
            width=6.2 if alone else 3.4,
            height=3.2 if alone else 2.6,
            key=drawing.key,
            title="Predictions",
            subtitle=drawing.subtitle + some,
            ax=ax,
        )
        for panel, content in zip(axes, drawing.panels, strict=True):
            _draw(panel, content, rows.at, joined)
        where = drawing.order if along is None else str(getattr(x, "name", None) or "x")
        style.axis_labels(figure, axes, x=where, y=drawing.unit, given=ax is not None)
    return style.drawn(figure, ax)


# The rows -------------------------------------------------------------------------------------------------------------
def _kind(p: Predictive) -> str:
    """What a panel shows: an output of numbers, the probability of a label, or those of all classes."""
    if not p.likelihood.discrete:
        return "numbers"
    return "labels" if p.likelihood.domain.kind == "binary" else "classes"


def _usual(p: Predictive) -> int:
    classes = p.mean.shape[1]
    return ROWS if _kind(p) != "classes" else max(FEWEST, ROWS_OF_CLASSES // classes)


def _along(x: ArrayLike, count: int) -> np.ndarray:
    try:
        values = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError("x: expected numbers, got others. Pass a column of numbers, or leave x= out.") from None
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != (count,):
        raise InputError(f"x: expected {count} numbers, one for each row, got shape {values.shape}. Pass one feature.")
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise InputError(f"x: expected finite numbers, got {values[row]} in row {row}. Leave these rows out: p[rows].")
    return values


def _joined(curve: bool | None, along: np.ndarray | None) -> bool:
    if curve is None:
        return along is not None and len(np.unique(along)) == len(along) > 1
    if checks.flag("curve", curve) and along is None:
        raise InputError("curve: expected None or False without x=, got True. Pass x=, the feature along the axis.")
    return curve


def _outcomes(p: Predictive, y: ArrayLike | None) -> np.ndarray | None:
    """Numbers or labels of shape (N, K), or codes of classes of shape (N,)."""
    if y is None:
        return None
    try:
        values = np.asarray(p.codes(y))
    except InputError:
        raise
    except ValueError:  # of NumPy
        raise InputError("y: expected one outcome for each prediction, got rows of different lengths.") from None
    one_label = _kind(p) == "classes" or (_kind(p) == "labels" and p.latent.mean.shape[1] == 1)
    if not one_label and values.ndim == 1:
        values = values[:, None]
    expected = (len(p),) if one_label else (len(p), p.mean.shape[1])
    if values.shape != expected:
        raise InputError(f"y: expected shape {expected}, got {values.shape}. Pass one outcome for each prediction.")
    if p.top is None:  # else the latent outputs are those of some classes
        p.likelihood.targets(values, p.latent.mean.shape[1])
    return values.astype(np.int64 if p.likelihood.discrete else np.float64)


def _sorted(p: Predictive, y: np.ndarray | None, along: np.ndarray | None, level: float | None, most: int) -> Rows:
    """The rows along the axis, evenly chosen where there are more than the most."""
    mean = np.asarray(p.mean)
    if along is not None:
        order = np.argsort(along, kind="stable")
    elif _kind(p) == "classes":  # each class by itself
        order = np.lexsort((mean.max(1), mean.argmax(1) if p.top is None else np.asarray(p.classes)[:, 0]))
    else:
        order = np.argsort(mean[:, -1 if _kind(p) == "labels" and mean.shape[1] == 2 else 0], kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
    at = np.arange(len(chosen), dtype=np.float64) if along is None else along[chosen]
    return Rows(p[chosen], at, along is not None, level, None if y is None else y[chosen])


# What panels show -----------------------------------------------------------------------------------------------------
def _of_numbers(rows: Rows) -> Drawing:
    p = rows.predictive
    mean, outcome, centre = np.asarray(p.mean), rows.ends("outcome"), rows.ends("mean")
    count = mean.shape[1]
    names = [str(name) for name in p.names] or [f"y{k}" for k in range(count)]
    panels = []
    for k, name in enumerate(names if count > 1 else [""]):
        bands = [(_column(ends, k), look) for ends, look in ((outcome, LIGHT), (centre, DARK)) if ends is not None]
        marks = None if rows.y is None else Marks(rows.at, rows.y[:, k], style.INK)
        panels.append(Panel(name, [Series(mean[:, k], bands, BLUE)], marks))
    key: list[Artist] = [Line2D([], [], color=BLUE, label="mean")]
    if rows.level is not None:
        key += [Patch(color=BLUE, alpha=DARK, lw=0, label="of the mean"), _light("of the outcome")]
    key += [] if rows.y is None else [_dot(style.INK, "what happened")]
    unit = names[0] if count == 1 and p.names else "y"
    order = "rows, sorted by their mean" if count == 1 else f"rows, sorted by the mean of {names[0]}"
    return Drawing(panels, key, f"Mean{rows.percent}.", style.shorten(unit), order)


def _of_labels(rows: Rows) -> Drawing:
    """Two classes, of which the second is drawn, or several labels a row."""
    p = rows.predictive
    several = p.latent.mean.shape[1] > 1
    probs, ends = np.asarray(p.probs), rows.ends("mean")
    columns = range(probs.shape[1]) if several else [1]
    names = [str(name) for name in p.names] or [str(k) for k in range(probs.shape[1])]
    panels = []
    for k in columns:
        y = None if rows.y is None else rows.y[:, k] if several else rows.y
        marks = None if y is None else Marks(rows.at, y.astype(float), [style.class_colour(code) for code in y])
        bands = [] if ends is None else [(_column(ends, k), 0.5 * (LIGHT + DARK))]
        panels.append(Panel(names[k] if several else "", [Series(probs[:, k], bands, BLUE)], marks))
    seen = ("no", "yes") if several else names
    key = [] if rows.y is None else [_dot(style.class_colour(k), f"was {name}") for k, name in enumerate(seen)]
    unit = "probability" if several else f"p({style.shorten(names[1])})"
    sorts = f"the probability of {names[0]}" if several else "their probability"
    return Drawing(panels, key, f"Probability{rows.percent}.", unit, f"rows, sorted by {sorts}")


def _of_classes(rows: Rows) -> Drawing:
    """Three classes and more: all of them along a feature, else the most probable one of each row."""
    p = rows.predictive
    if rows.along and p.top is None:
        return _all_classes(rows)
    probs, ends = np.asarray(p.probs), rows.ends("mean")
    best = probs.argmax(1)
    predicted, place = np.take_along_axis(np.asarray(p.classes), best[:, None], 1)[:, 0], np.arange(len(best))
    colours = [style.class_colour(k) for k in predicted]
    bands = [] if ends is None else [((ends[0][place, best], ends[1][place, best]), DARK)]
    wrong = None if rows.y is None else rows.y != predicted
    marks = None if wrong is None else Marks(rows.at[wrong], probs[place, best][wrong], style.INK, "x")
    key = _classes_key(p, np.unique(predicted))
    if wrong is not None:
        key.append(Line2D([], [], color=style.INK, marker="x", ls="", label="another class happened"))
    says = f"The most probable class of each row: its probability{rows.percent}."
    order = "rows, sorted by class and probability"
    return Drawing([Panel("", [Series(probs[place, best], bands, colours)], marks)], key, says, "probability", order)


def _all_classes(rows: Rows) -> Drawing:
    p = rows.predictive
    probs, ends = np.asarray(p.probs), rows.ends("mean")
    count = probs.shape[1]
    series = [
        Series(probs[:, k], [] if ends is None else [(_column(ends, k), LIGHT)], style.class_colour(k))
        for k in range(count)
    ]
    marks = None
    if rows.y is not None:
        marks = Marks(rows.at, np.full(len(rows.at), RUG), [style.class_colour(k) for k in rows.y])
    says = f"Probabilities of the classes{rows.percent}." + (" Dots: what happened." if marks is not None else "")
    return Drawing([Panel("", series, marks)], _classes_key(p, np.arange(count)), says, "probability", "")


_DRAWINGS = {"numbers": _of_numbers, "labels": _of_labels, "classes": _of_classes}


def _column(ends: Ends, k: int) -> Ends:
    return ends[0][:, k], ends[1][:, k]


def _dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", ls="", ms=4, label=label)


def _light(label: str) -> Patch:
    return Patch(color=BLUE, alpha=LIGHT, lw=0, label=label)


def _classes_key(p: Predictive, classes: np.ndarray) -> list[Artist]:
    if len(classes) > LEGEND:
        return []
    names = [str(p.names[k]) if p.names else str(k) for k in classes.tolist()]
    return [Line2D([], [], color=style.class_colour(k), label=n) for k, n in zip(classes.tolist(), names, strict=True)]


# Drawing --------------------------------------------------------------------------------------------------------------
def _draw(panel: Axes, content: Panel, at: np.ndarray, joined: bool) -> None:
    width = float(np.clip(250 / len(at), 0.8, 5.0))  # of a row's interval, in points
    for series in content.series:
        for (low, high), opacity in series.bands:
            if joined:
                panel.fill_between(at, low, high, color=series.colours, alpha=opacity, lw=0)
            else:
                panel.vlines(at, low, high, colors=series.colours, alpha=opacity, lw=width)
        if joined:
            panel.plot(at, series.mean, color=series.colours)
        else:
            panel.scatter(at, series.mean, s=width * 3, c=series.colours, linewidth=0, zorder=3)
    if content.marks is not None:
        marks = content.marks
        panel.scatter(
            marks.at,
            marks.height,
            s=16 if marks.marker == "x" else 9,
            c=marks.colours,
            marker=marks.marker,
            linewidth=1.1 if marks.marker == "x" else 0,
            alpha=0.9,
            zorder=4,
        )
    if content.name:
        panel.set_title(style.shorten(content.name), parse_math=False)
