"""Laplace in one dimension: several densities with their fits, and the four steps of the approximation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayescope.gallery import canvas
from bayescope.gallery.exact import Grid, LogDensityFunction, curve, grid
from bayescope.gallery.fits import laplace
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, FAINT, INK, MUTED
from bayescope.posterior import GaussianPosterior

BLUE = COLOURS["laplace"]


@final
@dataclass(frozen=True)
class Case:
    """A one-dimensional density, and where Laplace's approximation of it starts.

    Attributes:
        title: its name.
        log_f: log f at points of shape (..., 1).
        span: where it is integrated; all its mass lies within.
        view: where it is drawn.
        start: of the search for the mode.
        transform: the coordinates that suit it, or ``None``.
        transform_name: what they are called.
    """

    title: str
    log_f: LogDensityFunction
    span: tuple[float, float]
    view: tuple[float, float]
    start: float
    transform: str | None = None
    transform_name: str = ""

    @cached_property
    def exact(self) -> Grid:
        """The density on a fine grid over its span."""
        return grid(self.log_f, self.span, size=400_001)

    def laplace(self, transform: str | None = None) -> GaussianPosterior:
        """The approximation in the given coordinates."""
        return laplace(self.log_f, [self.start], transform)

    def evidence_error(self, q: GaussianPosterior) -> float:
        """Laplace's Z over the true Z, minus 1."""
        return math.expm1(float(q.log_evidence()) - self.exact.log_normaliser)


def _gamma(x: Tensor) -> Tensor:
    return (1.5 * x.log() - x)[..., 0]


def _beta(x: Tensor) -> Tensor:
    return (x.log() + 4.0 * torch.log1p(-x))[..., 0]


def _student(x: Tensor) -> Tensor:
    return (-2.0 * torch.log1p(x.square() / 3.0))[..., 0]


def _skewed(x: Tensor) -> Tensor:
    return (-0.5 * x.square() + torch.nn.functional.logsigmoid(20.0 * x + 4.0))[..., 0]


CASES = (
    Case("Gamma(2.5, 1)", _gamma, (1e-9, 60.0), (-0.7, 8.0), 1.0, "positive", "log x"),
    Case("Beta(2, 5)", _beta, (1e-9, 1 - 1e-9), (-0.2, 0.85), 0.3, "unit_interval", "logit x"),
    Case("Student-t, 3 degrees", _student, (-4000.0, 4000.0), (-5.5, 5.5), 0.2),
    Case("e^(−x²/2) σ(20x + 4)", _skewed, (-12.0, 12.0), (-1.9, 3.6), 0.5),
)


def draw_fits() -> Figure:
    """p and log p of each density, with Laplace's q in its own and in better coordinates."""
    figure, top = canvas.page(
        5.1,
        "Laplace sees a mode and its curvature, no skewness and no tails",
        "Four densities p (grey), normalised by quadrature, and Laplace's q: a parabola in log p, a Gaussian in p. "
        "Fitted in coordinates where p is more symmetric (dashed), it comes closer: the coordinates are a choice.",
    )
    cells = canvas.grid(figure, 2, len(CASES), top=top + 0.45, gap=(0.28, 0.25), left=0.55, right=0.2)
    for column, case in enumerate(CASES):
        fits = [(case.laplace(), "-")] + ([(case.laplace(case.transform), "--")] if case.transform else [])
        above, below = (figure.add_subplot(cells[row, column]) for row in (0, 1))
        canvas.heading(above, case.title)
        _panel(above, case, fits, logarithm=False)
        _panel(below, case, fits, logarithm=True)
        _errors(above, case, [q for q, _ in fits])
        above.tick_params(labelbottom=False)
        below.set_xlabel("x")
        if column == 0:
            above.set_ylabel("p and q")
            below.set_ylabel("log p and log q")
    return figure


def _panel(axes: Axes, case: Case, fits: Sequence[tuple[GaussianPosterior, str]], *, logarithm: bool) -> None:
    x = np.linspace(*case.view, 800)
    x = np.sort(np.concatenate([x, np.geomspace(1e-6, 0.05, 60)]))  # where p of positive variables falls to 0
    inside = x[(x > case.span[0]) & (x < case.span[1])]
    p = curve(case.log_f, inside) - case.exact.log_normaliser
    top = p.max()
    bottom = top - 7.0 if logarithm else 0.0
    height = (lambda values: values) if logarithm else np.exp
    axes.fill_between(inside, height(p), bottom, color=FAINT, lw=0, clip_on=True)
    axes.plot(inside, height(p), color=MUTED, lw=1.0)
    for q, dashes in fits:
        where = inside if dashes == "--" else x
        axes.plot(where, height(curve(q.log_prob, where)), color=BLUE, lw=1.8, ls=dashes)
    axes.set(xlim=case.view, ylim=(bottom, top + 0.9) if logarithm else (0, None))
    canvas.no_scale(axes)


def _errors(axes: Axes, case: Case, fits: Sequence[GaussianPosterior]) -> None:
    names = ["Laplace's Z", f"in {case.transform_name}"]
    lines = [f"{name}: {_percent(case.evidence_error(q))}" for name, q in zip(names, fits, strict=False)]
    axes.set_ylim(0, axes.get_ylim()[1] * 1.42)
    canvas.corner(axes, "\n".join(lines), BLUE, x=0.97, fontsize=8.5)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f} %".replace("-", "−")


FOUR = Case("Gamma(4, 1)", lambda x: (3.0 * x.log() - x)[..., 0], (1e-9, 80.0), (-1.5, 11.0), 2.0)


def draw_four_panels() -> Figure:
    """Clockwise: f, log f, the parabola log q̃ through its top, and the Gaussian q̃ that it is the log of."""
    q = FOUR.laplace()
    mode, sd = float(q.mean), float(q.covariance.sqrt())
    x = np.linspace(*FOUR.view, 900)
    inside = x[x > 1e-6]
    log_f = curve(FOUR.log_f, inside)
    log_top = float(FOUR.log_f(q.mean))
    log_q = log_top - 0.5 * ((x - mode) / sd) ** 2
    figure, top = canvas.page(
        6.0,
        "Laplace: take the log, keep the parabola at the mode, exponentiate",
        f"An unnormalised density f = x³ e⁻ˣ with its mode at x* = {mode:.0f}. The area under f is Z = 6; "
        f"under q̃ it is {math.exp(float(q.log_evidence())):.3f}, the peak f(x*) times sd √(2π). 1/sd² = "
        f"{sd**-2:.3f} is the curvature −(log f)″ at x*.",
    )
    cells = canvas.grid(figure, 2, 2, top=top + 0.45, gap=(1.15, 0.95), left=0.45, bottom=0.4)
    (first, second), (fourth, third) = ([figure.add_subplot(cells[r, c]) for c in (0, 1)] for r in (0, 1))
    for axes, text in ((first, "1  f"), (second, "2  log f"), (third, "3  log q̃"), (fourth, "4  q̃")):
        canvas.heading(axes, text)
        axes.set(xlim=FOUR.view)
        canvas.no_scale(axes)
        axes.axvline(mode, color=MUTED, lw=0.8, ls=":")
    peak = math.exp(log_top)
    for axes, alone in ((first, True), (fourth, False)):
        axes.fill_between(inside, np.exp(log_f), color=FAINT, lw=0)
        axes.plot(inside, np.exp(log_f), color=INK if alone else MUTED, lw=1.8 if alone else 1.0)
        axes.set_ylim(0, 1.15 * peak)
    for axes, alone in ((second, True), (third, False)):
        axes.plot(inside, log_f, color=INK if alone else MUTED, lw=1.8 if alone else 1.0)
        axes.set_ylim(log_top - 5, log_top + 0.8)
    third.plot(x, log_q, color=BLUE, lw=2)
    fourth.fill_between(x, np.exp(log_q), color=BLUE, alpha=0.15, lw=0)
    fourth.plot(x, np.exp(log_q), color=BLUE, lw=2)
    second.plot(mode, log_top, "o", color=INK, ms=4)
    canvas.label(second, mode, log_top + 0.25, "mode x*", ha="center")
    canvas.label(first, 5.0, 0.72 * peak, "area Z")
    canvas.label(third, 7.4, log_top - 1.05, "log f", MUTED)
    canvas.label(third, 5.9, log_top - 2.9, "log q̃", BLUE, ha="right")
    canvas.label(fourth, 5.6, 0.66 * peak, "f", MUTED)
    canvas.label(fourth, 0.55, 0.52 * peak, "q̃", BLUE, ha="right")
    _arrows(figure, first, second, third, fourth)
    return figure


def _arrows(figure: Figure, first: Axes, second: Axes, third: Axes, fourth: Axes) -> None:
    """The steps from panel to panel, each named on its arrow."""
    box = [axes.get_position() for axes in (first, second, third, fourth)]
    middle = box[1].x0 + 0.5 * box[1].width
    steps = (
        (
            (box[0].x1 + 0.02, box[0].y0 + 0.5 * box[0].height),
            (box[1].x0 - 0.02, box[1].y0 + 0.5 * box[1].height),
            "log",
        ),
        ((middle, box[1].y0 - 0.055), (middle, box[2].y1 + 0.01), "parabola of the same\ntop and curvature"),
        (
            (box[2].x0 - 0.02, box[2].y0 + 0.5 * box[2].height),
            (box[3].x1 + 0.02, box[3].y0 + 0.5 * box[3].height),
            "exp",
        ),
    )
    for start, end, text in steps:
        arrow = {"arrowstyle": "-|>", "color": MUTED, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        first.annotate("", end, start, xycoords="figure fraction", textcoords="figure fraction", arrowprops=arrow)
        across = start[0] != end[0]
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        figure.text(
            x if across else x + 0.012,
            y + (0.012 if across else 0),
            text,
            color=MUTED,
            fontsize=9,
            ha="center" if across else "left",
            va="bottom" if across else "center",
        )


FITS = Picture(
    "laplace-in-one-dimension",
    "Laplace fits of one-dimensional densities, f and log f",
    "Laplace's approximation matches a density's mode and curvature and nothing else, so that it is off for "
    "skewed and heavy-tailed densities, less so in coordinates where the density is more symmetric.",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 4.14",
    draw_fits,
)
STEPS = Picture(
    "laplace-in-four-panels",
    "f, log f, log q̃, q̃",
    "Laplace's approximation takes the log of a density, keeps the parabola that touches it at its mode, and "
    "exponentiates that to a Gaussian, whose area is known.",
    "MacKay (2003), Information Theory, Inference, and Learning Algorithms, chapter 27",
    draw_four_panels,
)
