"""Mean and uncertainty of a network's linearised Laplace posterior on a bent and a round class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.gallery.surfaces import LEVELS, between, points
from bayescope.plots.style import CLASS_COLOURS, COLOURS, INK, MUTED
from bayescope.posterior import GaussianPosterior

SPAN = ((-5.0, 5.0), (-4.5, 4.5))
PRIOR_PRECISION = 0.3
HIDDEN = (16, 16)
DEEP = LinearSegmentedColormap.from_list("variance", ["#ffffff", "#c7b9dc", "#6a4c93", "#2d1457"])


class Maps(NamedTuple):
    """What the posterior says on a grid over the plane, each of shape (size, size).

    Attributes:
        point: p(red) at the mode.
        mean: p(red), averaged over f.
        epistemic: the variance of p(red).
        aleatoric: the mean of p(red) p(blue).
    """

    point: np.ndarray
    mean: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray


def fit(rows: networks.Rows) -> GaussianPosterior:
    """Laplace with the full GGN at the mode of a network with two hidden layers."""
    start = networks.mlp(2, *HIDDEN, 1, activation=nn.Softplus)
    return networks.posterior(start, rows.train, "bernoulli", PRIOR_PRECISION)


def plane(size: int) -> Tensor:
    """Points on a grid over the part of the plane that is shown, row by row, shape (size², 2)."""
    x1, x2 = torch.meshgrid(*(torch.linspace(*span, size, dtype=networks.DOUBLE) for span in SPAN), indexing="xy")
    return torch.stack([x1.flatten(), x2.flatten()], 1)


def maps(q: GaussianPosterior, size: int = 80) -> Maps:
    """Both predictives on a grid."""
    at = plane(size)
    predictive = q.predict(at)
    point = networks.at_mode(q).predict(at)
    each = (point.mean[:, 1], predictive.mean[:, 1], predictive.epistemic[:, 1], predictive.aleatoric[:, 1])
    return Maps(*(np.asarray(values).reshape(size, size) for values in each))


def draw_banana() -> Figure:
    """p(red) at the mode and averaged above, its two kinds of variance below."""
    rows = networks.banana()
    q = fit(rows)
    found = maps(q)
    point, averaged = (networks.test_loss(each, rows) for each in (networks.at_mode(q), q))
    figure, top = canvas.page(
        7.9,
        "Away from the data the posterior is unsure, and says of which kind",
        f"Linearised Laplace, full GGN of a 2-{HIDDEN[0]}-{HIDDEN[1]}-1 softplus network ({len(q.mean)} weights, "
        f"prior precision {PRIOR_PRECISION}) on {len(rows.x)} rows. A label's variance, p(1 − p), is the sum of both "
        f"kinds. NLL of {len(rows.test_x):,} test rows: {canvas.number(point)} at the mode, {canvas.number(averaged)} "
        "averaged.",
    )
    cells = canvas.grid(figure, 2, 2, top=top + 0.45, gap=(0.2, 0.45), left=0.3, right=1.15, bottom=0.3)
    axes = [figure.add_subplot(cells[row, column]) for row in (0, 1) for column in (0, 1)]
    for panel, p, title, colour in (
        (axes[0], found.point, "p(red) at the mode", COLOURS["map"]),
        (axes[1], found.mean, "p(red) averaged over the posterior", COLOURS["laplace"]),
    ):
        canvas.heading(panel, title, colour)
        probability(panel, p, rows)
    for panel, variance, title in (
        (axes[2], found.aleatoric, "Aleatoric: the classes overlap"),
        (axes[3], found.epistemic, "Epistemic: no data were here"),
    ):
        canvas.heading(panel, title)
        _variance(panel, variance, rows)
    colour_scale(
        figure,
        _beside(axes[1]),
        ScalarMappable(Normalize(0, 1), between(*CLASS_COLOURS[:2])),
        "p(red)",
        [0, 0.1, 0.5, 0.9, 1],
    )
    colour_scale(
        figure, _beside(axes[3]), ScalarMappable(Normalize(0, 0.25), DEEP), "variance of the label", [0, 0.1, 0.2, 0.25]
    )
    return figure


def probability(axes: Axes, p: np.ndarray, rows: networks.Rows) -> None:
    """p(red) over the part of the plane that is shown, its contours at ½, 0.1 and 0.9, and the rows."""
    x1, x2 = (np.linspace(*span, p.shape[0]) for span in SPAN)
    axes.contourf(x1, x2, p, levels=LEVELS, cmap=between(*CLASS_COLOURS[:2]))
    look = {"colors": INK, "linewidths": (0.8, 1.5, 0.8), "linestyles": ("--", "-", "--")}
    axes.contour(x1, x2, p, levels=(0.1, 0.5, 0.9), **look)  # type: ignore[arg-type]
    _data(axes, rows)


def _variance(axes: Axes, variance: np.ndarray, rows: networks.Rows) -> None:
    x1, x2 = (np.linspace(*span, variance.shape[0]) for span in SPAN)
    axes.contourf(x1, x2, variance, levels=np.linspace(0, 0.25, 26), cmap=DEEP)
    _data(axes, rows)


def _data(axes: Axes, rows: networks.Rows) -> None:
    points(axes, rows.x.numpy(), rows.y.numpy(), size=9)
    axes.set(xlim=SPAN[0], ylim=SPAN[1])
    canvas.bare(axes)


def _beside(axes: Axes) -> tuple[float, float, float, float]:
    """A place for a colour scale on the right of a panel, in fractions of the page."""
    box = axes.get_position()
    return box.x1 + 0.02, box.y0 + 0.1 * box.height, 0.014, 0.8 * box.height


def colour_scale(
    figure: Figure, place: tuple[float, float, float, float], scale: ScalarMappable, name: str, ticks: list[float]
) -> None:
    """A colour scale at a place in fractions of the page, upright where it is taller than wide."""
    width, height = figure.get_size_inches()
    upright = place[3] * height > place[2] * width
    axes = figure.add_axes(place)
    bar = figure.colorbar(scale, cax=axes, ticks=ticks, orientation="vertical" if upright else "horizontal")
    bar.outline.set_visible(False)
    bar.set_label(name, color=MUTED)


BANANA = Picture(
    "network-banana",
    "A network's mean and uncertainty on a bent class",
    "The mode of a network is sure wherever it extrapolates; its linearised Laplace posterior returns towards ½ with "
    "the distance from the data, and tells the noise between overlapping classes from the ignorance beyond them.",
    "Ritter, Botev & Barber (2018), A scalable Laplace approximation for neural networks; Immer, Korzepa & Bauer "
    "(2021), Improving predictions of Bayesian neural nets via local linearization",
    draw_banana,
)
