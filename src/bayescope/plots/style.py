"""The house style: one colour and one name per posterior in every picture, and one way to lay panels out."""

from __future__ import annotations

import math
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from bayescope.errors import InputError

if TYPE_CHECKING:
    from bayescope.notebook import Canvas, Place

DPI = 150
SCREEN_DPI = 96  # pixels of a page that stand for an inch
MARGIN = 0.12  # inches
LEAST_WIDTH = 5.0  # inches
LETTERS_PER_INCH = 15.5  # of a subtitle
INK = "#222222"
MUTED = "#6b6b6b"
FAINT = "#d9d9d9"

# Okabe & Ito (2008): colour-blind readers can distinguish these too.
COLOURS = {
    "nuts": INK,
    "map": "#7f7f7f",
    "map_temperature": "#009E73",
    "laplace": "#0072B2",
    "variational": "#D55E00",
    "mean_field": "#E69F00",
    "ep": "#CC79A7",
    "metropolis": "#56B4E9",
    "mc_dropout": "#117733",
    "ensemble": "#AA4499",
    "swag": "#33BBEE",
    "sgmcmc": "#8C510A",
    "last_layer": "#88CCEE",
    "function_space": "#332288",
    "exact": "#6A3D9A",
    "constant": "#B0A58F",
    "ridge": "#999933",
    "poisson": "#44AA99",
    "logistic": "#B5651D",
}
LABELS = {
    "nuts": "NUTS",
    "map": "MAP",
    "map_temperature": "MAP + temperature",
    "laplace": "Laplace",
    "variational": "VI",
    "mean_field": "Mean-field VI",
    "ep": "EP",
    "metropolis": "Metropolis",
    "mc_dropout": "MC dropout",
    "ensemble": "Ensemble",
    "swag": "SWAG",
    "sgmcmc": "SG-MCMC",
    "last_layer": "Last layer",
    "function_space": "Function space",
    "exact": "Exact",
    "constant": "Constant",
    "ridge": "Ridge",
    "poisson": "Poisson regression",
    "logistic": "Logistic regression",
}
DASHES = {
    "map_temperature": (0, (2, 1.2)),
    "mean_field": (0, (5, 1.5)),
    "ep": (0, (1, 1)),
    "metropolis": (0, (4, 1, 1, 1)),
}
# Colours of classes in decision surfaces: the first two are the two ends of the surface of two classes.
CLASS_COLOURS = ("#2166AC", "#B2182B", "#1B7837", "#E08214", "#762A83", "#01665E", "#8C510A", "#C51B7D")
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_RC: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def colour(name: str) -> str:
    """The colour of a posterior; unknown names share a neutral blue-grey."""
    return COLOURS.get(name, "#4C6A92")


def dash(name: str) -> str | tuple[int, tuple[float, ...]]:
    """The line pattern of a posterior, so that lines on top of each other stay visible."""
    return DASHES.get(name, "-")


def class_colour(k: int) -> str:
    """The colour of the k-th class; the colours repeat after eight."""
    return CLASS_COLOURS[k % len(CLASS_COLOURS)]


def class_marker(k: int) -> str:
    """The marker of the k-th class; the markers repeat after eight."""
    return CLASS_MARKERS[k % len(CLASS_MARKERS)]


def label(name: str) -> str:
    """What a posterior is called in pictures and tables."""
    return LABELS.get(name, name.replace("_", " "))


def probability_scale() -> LinearSegmentedColormap:
    """Colours of p(class 1): tints of the two classes' colours at 0 and 1, so that data stand out, and white at ½."""
    low, high = (tuple(0.38 + 0.62 * channel for channel in to_rgb(end)) for end in CLASS_COLOURS[:2])
    return LinearSegmentedColormap.from_list("probability", [low, (1.0, 1.0, 1.0), high])


@final
class Picture(Figure):
    """A matplotlib figure that a notebook shows whatever the backend is: pyplot knows nothing of it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the PNG and the size at which letters have their nominal size on a screen."""
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=DPI)
        width, height = (round(SCREEN_DPI * side) for side in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}


_TURNS = threading.RLock()


@contextmanager
def house(*, mathematics: bool = False) -> Iterator[None]:
    """Within the block matplotlib draws in the house style; its settings are put back at the end.

    They belong to the process: threads that draw in the house style take turns.

    Args:
        mathematics: whether text between dollar signs is typeset. The names of columns and classes are shown as they
            are: "$" is a currency there, and what follows it no TeX.
    """
    settings: Any = {**_RC, "text.parse_math": mathematics}
    with _TURNS, mpl.rc_context(settings):
        yield


def panels(
    count: int,
    *,
    width: float,
    height: float,
    title: str,
    subtitle: str,
    key: Sequence[Artist] = (),
    most: int = 4,
    sharex: bool = False,
    sharey: bool = False,
    ax: Place | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure with a header and a grid of equal panels, free of pyplot's global state; or the axes that are given.

    Args:
        count: how many panels.
        width: of one panel, inches.
        height: of one panel, inches.
        title: what the figure shows.
        subtitle: how to read it; wrapped to the figure's width.
        key: the legend's handles, drawn under the subtitle, where they cover no data.
        most: panels in a row.
        sharex: whether all panels have one x axis.
        sharey: whether all panels have one y axis.
        ax: the axes to draw into, one for each panel. Their figure gets no header, and the first of them the legend.

    Returns:
        The figure and its panels, row by row; places beyond the last panel are empty.

    Raises:
        InputError: if there is not one for each panel.
    """
    if ax is not None:
        return _given(ax, count, key)
    rows = math.ceil(count / most)
    columns = math.ceil(count / rows)
    size = max(columns * width, LEAST_WIDTH)
    lines = textwrap.wrap(subtitle, int(LETTERS_PER_INCH * (size - 2 * MARGIN)))
    entries = [0.42 + len(str(handle.get_label())) / LETTERS_PER_INCH * 1.1 for handle in key]
    room = size - 2 * MARGIN
    per_row = len(key) if sum(entries) <= room else max(1, int(room / max(entries)))
    header = 0.50 + 0.17 * len(lines) + (0.06 + 0.23 * math.ceil(len(key) / per_row) if key else 0)
    total = rows * height + header
    figure = Picture(figsize=(size, total))
    FigureCanvasAgg(figure)
    figure.set_layout_engine(
        "constrained", rect=(0, 0, 1, 1 - header / total), w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03
    )
    left = MARGIN / size
    figure.text(left, 1 - 0.16 / total, title, va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.44 / total, "\n".join(lines), va="top", fontsize=9, color=MUTED, linespacing=1.35)
    if key:
        place = (left, 1 - (0.53 + 0.17 * len(lines)) / total)
        look = {"borderpad": 0, "borderaxespad": 0, "columnspacing": 1.6, "handlelength": 1.8, "handletextpad": 0.5}
        figure.legend(handles=list(key), loc="upper left", bbox_to_anchor=place, ncols=per_row, **look)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for spare in axes[count:]:
        spare.remove()
    # A panel with none below it keeps its tick labels, also where the row below is not full.
    for panel in axes[max(count - columns, 0) : count]:
        panel.xaxis.set_tick_params(labelbottom=True)
    return figure, axes[:count]


def _given(ax: Place, count: int, key: Sequence[Artist]) -> tuple[Figure, list[Axes]]:
    """The axes that a caller gave, one for each panel, and their figure."""
    axes = [ax] if isinstance(ax, Axes) else list(np.ravel(np.array(ax, dtype=object)))
    if len(axes) != count or not all(isinstance(each, Axes) for each in axes):
        some = "one matplotlib Axes" if count == 1 else f"{count} matplotlib Axes, one for each panel"
        got = f"{len(axes)}" if all(isinstance(each, Axes) for each in axes) else f"{type(ax).__name__}"
        raise InputError(f"ax: expected {some}, got {got}. Take those of plt.subplots(1, {count}), or leave ax= out.")
    if key:
        axes[0].legend(handles=list(key))
    return cast(Figure, axes[0].figure), axes


def drawn(figure: Figure, ax: Canvas | None) -> Canvas:
    """What a plot returns: the axes that it was given, else its figure."""
    return cast("Canvas", figure) if ax is None else ax


def one_scale(axes: Sequence[Axes], coordinate: Literal["x", "y"]) -> None:
    """Gives all panels the limits that hold what each of them shows, also where they share no axis."""
    ends = np.array([getattr(panel, f"get_{coordinate}lim")() for panel in axes])
    for panel in axes:
        getattr(panel, f"set_{coordinate}lim")(ends.min(), ends.max())


def axis_labels(figure: Figure, axes: Sequence[Axes], *, x: str = "", y: str = "", given: bool = False) -> None:
    """Names the axes once for all panels of a figure, or at each of those that a caller gave."""
    middle = 0.5
    if (engine := figure.get_layout_engine()) is not None:  # the middle of the panels, which lie below the header
        _, low, _, high = engine.get().get("rect", (0.0, 0.0, 1.0, 1.0))
        middle = low + 0.5 * high
    for text, whole, each in (
        (x, figure.supxlabel, [panel.set_xlabel for panel in axes]),
        (y, partial(figure.supylabel, y=middle), [panel.set_ylabel for panel in axes]),
    ):
        for write in each if given else [whole]:
            if text:
                write(text, fontsize=9.5, parse_math=False)


def titled(panel: Axes, name: str, aside: str = "") -> None:
    """A panel's title, the posterior's name in bold on the left, and a muted aside on the right."""
    panel.set_title(label(name))
    panel.set_title(aside, loc="right", fontsize=8.5, fontweight="normal", color=MUTED)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG at the house resolution."""
    figure.savefig(path, dpi=DPI)


def shorten(text: str, most: int = 24) -> str:
    """The beginning and the end of a long text around an ellipsis."""
    if len(text) <= most:
        return text
    head = (2 * most) // 3
    return f"{text[:head]}…{text[head - most + 1 :]}"
