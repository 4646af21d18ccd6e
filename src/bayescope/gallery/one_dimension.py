"""Laplace's approximation in one dimension: its steps, its fits, its evidence, and how fast its error falls."""

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
from scipy.special import betaln
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope.gallery.exact import Grid, LogDensityFunction, curve, grid, laplace
from bayescope.gallery.page import Canvas, Picture, number
from bayescope.plots import marks
from bayescope.plots.style import COLOURS, FAINT, INK, MUTED
from bayescope.posterior import GaussianPosterior

BLUE = COLOURS["laplace"]


@final
@dataclass(frozen=True)
class OneDimension:
    """An unnormalised density on the line, and where Laplace's approximation of it starts.

    Attributes:
        title: its name.
        log_f: log f at points of shape (..., 1).
        span: where it is integrated; all its mass lies within.
        view: where it is drawn.
        start: of the search for the mode.
        transform: the coordinates that suit it, or ``None``.
        note: what the coordinates are called, or what the density is of.
    """

    title: str
    log_f: LogDensityFunction
    span: tuple[float, float]
    view: tuple[float, float]
    start: float
    transform: str | None = None
    note: str = ""

    @cached_property
    def exact(self) -> Grid:
        """The density on a fine grid over its span."""
        return grid(self.log_f, self.span, size=400_001)

    def laplace(self, transform: str | None = None) -> GaussianPosterior:
        """The approximation in the given coordinates."""
        return laplace(self.log_f, [self.start], transform)

    def ratio(self, q: GaussianPosterior) -> float:
        """The normaliser Z by Laplace's approximation over the true Z."""
        return math.exp(float(q.log_evidence()) - self.exact.log_normaliser)

    def inside(self, x: np.ndarray) -> np.ndarray:
        """The points of x that lie within the span."""
        return x[(x > self.span[0]) & (x < self.span[1])]


# Four densities and their fits ---------------------------------------------------------------------------------------
def _gamma(x: Tensor) -> Tensor:
    return (1.5 * x.log() - x)[..., 0]


def _beta(x: Tensor) -> Tensor:
    return (x.log() + 4.0 * torch.log1p(-x))[..., 0]


def _student(x: Tensor) -> Tensor:
    return (-2.0 * torch.log1p(x.square() / 3.0))[..., 0]


def _skewed(x: Tensor) -> Tensor:
    return (-0.5 * x.square() + logsigmoid(20.0 * x + 4.0))[..., 0]


CASES = (
    OneDimension("Gamma(2.5, 1)", _gamma, (1e-9, 60.0), (-0.7, 8.0), 1.0, "positive", "log x"),
    OneDimension("Beta(2, 5)", _beta, (1e-9, 1 - 1e-9), (-0.2, 0.85), 0.3, "unit_interval", "logit x"),
    OneDimension("Student-t, 3 degrees", _student, (-4000.0, 4000.0), (-5.5, 5.5), 0.2),
    OneDimension("e^(−x²/2) σ(20x + 4)", _skewed, (-12.0, 12.0), (-1.9, 3.6), 0.5),
)


def draw_fits() -> Figure:
    """p and log p of each density, with Laplace's q in the given and in better coordinates."""
    page = Canvas(
        5.1,
        "Laplace sees a mode and its curvature, no skewness and no tails",
        "Four densities p (grey), normalised by quadrature, and Laplace's q: a parabola in log p, a Gaussian in p. "
        "Fitted in coordinates where p is more symmetric (dashed), it comes closer: the coordinates are a choice.",
    )
    panels = page.panels(2, len(CASES), [case.title for case in CASES], gap=(0.28, 0.25), left=0.55, right=0.2)
    for case, above, below in zip(CASES, panels, panels[len(CASES) :], strict=False):
        fits = [(case.laplace(), "-")] + ([(case.laplace(case.transform), "--")] if case.transform else [])
        _draw_fits(above, case, fits, logarithm=False)
        _draw_fits(below, case, fits, logarithm=True)
        names = ["Laplace's Z", f"in {case.note}"]
        errors = [f"{100 * (case.ratio(q) - 1):+.1f} %".replace("-", "−") for q, _ in fits]
        above.set_ylim(0, above.get_ylim()[1] * 1.42)
        text = "\n".join(f"{name}: {error}" for name, error in zip(names, errors, strict=False))
        marks.corner(above, text, BLUE, x=0.97, fontsize=8.5)
        above.tick_params(labelbottom=False)
        below.set_xlabel("x")
    panels[0].set_ylabel("p and q")
    panels[len(CASES)].set_ylabel("log p and log q")
    return page.figure


def _draw_fits(
    axes: Axes, case: OneDimension, fits: Sequence[tuple[GaussianPosterior, str]], *, logarithm: bool
) -> None:
    x = np.linspace(*case.view, 800)
    x = np.sort(np.concatenate([x, np.geomspace(1e-6, 0.05, 60)]))  # where p of positive variables falls to 0
    inside = case.inside(x)
    p = curve(case.log_f, inside) - case.exact.log_normaliser
    bottom = p.max() - 7.0 if logarithm else 0.0
    height = (lambda values: values) if logarithm else np.exp
    marks.density(axes, inside, height(p), bottom=bottom)
    for q, dashes in fits:
        where = inside if dashes == "--" else x
        axes.plot(where, height(curve(q.log_prob, where)), color=BLUE, lw=1.8, ls=dashes)
    axes.set(xlim=case.view, ylim=(bottom, p.max() + 0.9) if logarithm else (0, None))
    marks.no_scale(axes)


# The approximation in four steps -------------------------------------------------------------------------------------
FOUR = OneDimension("Gamma(4, 1)", lambda x: (3.0 * x.log() - x)[..., 0], (1e-9, 80.0), (-1.5, 11.0), 2.0)


def draw_four_panels() -> Figure:
    """Clockwise: f, log f, the parabola log q̃ through its top, and the Gaussian q̃ that it is the log of."""
    q = FOUR.laplace()
    mode, sd, log_top = float(q.mean), float(q.covariance.sqrt()), float(FOUR.log_f(q.mean))
    x = np.linspace(*FOUR.view, 900)
    inside = x[x > 1e-6]
    log_f, log_q = curve(FOUR.log_f, inside), log_top - 0.5 * ((x - mode) / sd) ** 2
    peak = math.exp(log_top)
    page = Canvas(
        6.0,
        "Laplace: take the log, keep the parabola at the mode, exponentiate",
        f"An unnormalised density f = x³ e⁻ˣ with its mode at x* = {mode:.0f}. The area under f is Z = 6; "
        f"under q̃ it is {math.exp(float(q.log_evidence())):.3f}, the peak f(x*) times sd √(2π). 1/sd² = "
        f"{sd**-2:.3f} is the curvature −(log f)″ at x*.",
    )
    headings = ["1  f", "2  log f", "4  q̃", "3  log q̃"]
    first, second, fourth, third = page.panels(2, 2, headings, gap=(1.15, 0.95), left=0.45, bottom=0.4)
    for axes, colour, width in ((first, INK, 1.8), (fourth, MUTED, 1.0)):
        marks.density(axes, inside, np.exp(log_f), colour, width=width)
        axes.set_ylim(0, 1.15 * peak)
    for axes, colour, width in ((second, INK, 1.8), (third, MUTED, 1.0)):
        axes.plot(inside, log_f, color=colour, lw=width)
        axes.set_ylim(log_top - 5, log_top + 0.8)
    third.plot(x, log_q, color=BLUE, lw=2)
    fourth.fill_between(x, np.exp(log_q), color=BLUE, alpha=0.15, lw=0)
    fourth.plot(x, np.exp(log_q), color=BLUE, lw=2)
    second.plot(mode, log_top, "o", color=INK, ms=4)
    marks.label(second, mode, log_top + 0.25, "mode x*", ha="center")
    marks.label(first, 5.0, 0.72 * peak, "area Z")
    marks.label(third, 7.4, log_top - 1.05, "log f", MUTED)
    marks.label(third, 5.9, log_top - 2.9, "log q̃", BLUE, ha="right")
    marks.label(fourth, 5.6, 0.66 * peak, "f", MUTED)
    marks.label(fourth, 0.55, 0.52 * peak, "q̃", BLUE, ha="right")
    for axes in (first, second, third, fourth):
        axes.set(xlim=FOUR.view)
        marks.no_scale(axes)
        axes.axvline(mode, color=MUTED, lw=0.8, ls=":")
    _arrows(page.figure, first, second, third, fourth)
    return page.figure


def _arrows(figure: Figure, first: Axes, second: Axes, third: Axes, fourth: Axes) -> None:
    """The steps from panel to panel, each named on its arrow."""
    f, log_f, log_q, q = (axes.get_position() for axes in (first, second, third, fourth))
    above, below, middle = (f.y0 + f.y1) / 2, (q.y0 + q.y1) / 2, (log_f.x0 + log_f.x1) / 2
    look = {"arrowstyle": "-|>", "color": MUTED, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
    for start, end, text in (
        ((f.x1 + 0.02, above), (log_f.x0 - 0.02, above), "log"),
        ((middle, log_f.y0 - 0.055), (middle, log_q.y1 + 0.01), "parabola of the same\ntop and curvature"),
        ((log_q.x0 - 0.02, below), (q.x1 + 0.02, below), "exp"),
    ):
        first.annotate("", end, start, xycoords="figure fraction", textcoords="figure fraction", arrowprops=look)
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        if start[0] == end[0]:
            figure.text(x + 0.012, y, text, color=MUTED, fontsize=9, va="center")
        else:
            figure.text(x, y + 0.012, text, color=MUTED, fontsize=9, ha="center")


# The evidence of three models ----------------------------------------------------------------------------------------
def _normal(theta: Tensor) -> Tensor:
    """Log N(θ; 0, 10²)."""
    return -0.5 * (theta / 10.0).square() - math.log(10.0 * math.sqrt(2 * math.pi))


def _cauchy_noise(theta: Tensor) -> Tensor:
    """One measurement y = 1 with Cauchy noise of unit scale, θ ~ N(0, 10²)."""
    return (-torch.log1p((1 - theta).square()) - math.log(math.pi) + _normal(theta))[..., 0]


def _counts(theta: Tensor) -> Tensor:
    """Counts 4, 2, 3 ~ Poisson(θ), θ ~ Exponential(mean 5)."""
    log_factorials = math.lgamma(5) + math.lgamma(3) + math.lgamma(4)
    return (9 * theta.log() - 3.2 * theta - math.log(5) - log_factorials)[..., 0]


def _threshold(theta: Tensor) -> Tensor:
    """A stimulus is seen at strength 1 and not at −1: P(seen at s) = σ(5 (s − θ)), θ ~ N(0, 10²)."""
    return (logsigmoid(5 * (1 - theta)) + logsigmoid(5 * (theta + 1)) + _normal(theta))[..., 0]


MODELS = (
    OneDimension("Too small", _cauchy_noise, (-90, 90), (-8, 10), 0.9, note="θ with Cauchy noise,\nmeasured once: 1"),
    OneDimension("About right", _counts, (1e-9, 40), (-0.8, 8.0), 2.0, note="a Poisson rate θ,\ncounts 4, 2, 3"),
    OneDimension(
        "Too large", _threshold, (-90, 90), (-4.2, 4.2), 0.2, note="the threshold θ of a sense:\nseen at 1, not at −1"
    ),
)


def draw_integrals() -> Figure:
    """The joint p(D, θ) of each model with Laplace's Gaussian, and the two areas as bars."""
    page = Canvas(
        4.6,
        "Laplace's p(D) leaves out heavy tails and overfills flat tops",
        "The evidence p(D) = ∫ p(D, θ) dθ is the grey area. Laplace's is the area under the Gaussian (blue) "
        "with the same height and curvature at the mode.",
    )
    headings = [model.title for model in MODELS]
    panels = page.panels(2, 3, headings, gap=(0.35, 0.6), left=0.4, heights=(3.4, 1), bottom=0.3)
    for model, joint, areas in zip(MODELS, panels, panels[3:], strict=False):
        q = model.laplace()
        _draw_joint(joint, model, q)
        _draw_areas(areas, math.exp(model.exact.log_normaliser), math.exp(float(q.log_evidence())))
    return page.figure


def _draw_joint(axes: Axes, model: OneDimension, q: GaussianPosterior) -> None:
    theta = np.linspace(*model.view, 900)
    inside = model.inside(theta)
    joint = np.exp(curve(model.log_f, inside))
    gaussian = np.exp(float(q.log_evidence()) + curve(q.log_prob, theta))
    marks.density(axes, inside, joint)
    axes.fill_between(theta, gaussian, color=BLUE, alpha=0.12, lw=0)
    axes.plot(theta, gaussian, color=BLUE, lw=1.8)
    marks.corner(axes, model.note, MUTED, x=0.0, y=0.98, fontsize=8.5)
    axes.set(xlim=model.view, ylim=(0, 1.5 * joint.max()))
    axes.set_xlabel("θ", labelpad=1)
    marks.no_scale(axes)


def _draw_areas(axes: Axes, evidence: float, by_laplace: float) -> None:
    ratio = by_laplace / evidence
    axes.barh([1, 0], [1, ratio], color=[FAINT, BLUE], height=0.72)
    axes.text(1.08, 1, f"true {evidence:.3g}", va="center", color=INK)
    axes.text(max(ratio, 1) + 0.08, 0, f"Laplace {by_laplace:.3g}, × {ratio:.2f}", va="center", color=BLUE)
    axes.axvline(1, color=MUTED, lw=0.8, ls=":")
    axes.set(xlim=(0, 5.4), ylim=(-0.5, 1.5))
    axes.axis("off")


# The error over the number of observations ---------------------------------------------------------------------------
SUCCESSES = 0.3
COORDINATES = {"in θ": None, "in logit θ": "unit_interval"}
COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


def errors(transform: str | None, counts: Sequence[int] = COUNTS) -> tuple[np.ndarray, np.ndarray]:
    """The errors of the log evidence and of the mean for θ, with a uniform prior and 30 % successes in N trials.

    The exact posterior is a Beta distribution.
    """
    found = []
    for trials in counts:
        successes = round(SUCCESSES * trials)
        failures = trials - successes

        def log_joint(theta: Tensor, s: int = successes, f: int = failures) -> Tensor:
            return (s * theta.log() + f * torch.log1p(-theta))[..., 0]

        q = laplace(log_joint, [0.4], transform)
        exact_mean, log_evidence = (1 + successes) / (2 + trials), betaln(1 + successes, 1 + failures)
        found.append((abs(float(q.log_evidence()) - log_evidence), abs(float(q.mean[0]) - exact_mean)))
    of_evidence, of_mean = np.array(found).T
    return of_evidence, of_mean


def slope(counts: Sequence[int], errors: np.ndarray) -> float:
    """The exponent of N, by least squares on the larger half of the counts."""
    half = len(counts) // 2
    return float(np.polyfit(np.log(counts[half:]), np.log(errors[half:]), 1)[0])


def draw_rates() -> Figure:
    """The error of log Z and of the mean over N on logarithmic scales, with guides of slope −1."""
    page = Canvas(
        4.4,
        "Ten times the data, a tenth of the error",
        "Laplace for a success probability θ (uniform prior, 30 % of N trials succeed) against the exact Beta "
        "posterior, with the slopes fitted to the larger half. The coordinates change the factor, not the rate.",
    )
    panels = page.panels(1, 2, ["Error of log Z, in nats", "Error of E[θ]"], gap=(0.75, 0), left=0.75)
    ends = np.array([COUNTS[0], COUNTS[-1]])
    for axes in panels:
        for factor in (0.03, 3.0):
            axes.loglog(ends, factor / ends, color=MUTED, lw=0.8, zorder=0)
            marks.label(axes, 1.4 * ends[-1], factor / ends[-1], "slope −1", MUTED, va="center")
        axes.set(xlabel="observations N", xlim=(8, 8e5), ylim=(1e-6, 0.2), xticks=10.0 ** np.arange(1, 5))
        axes.minorticks_off()
    for (name, transform), dashes in zip(COORDINATES.items(), ("-", "--"), strict=True):
        for axes, error in zip(panels, errors(transform), strict=True):
            axes.loglog(COUNTS, error, dashes, color=BLUE, marker="o", ms=3.5, lw=1.6)
            text = f"{name}: {number(slope(COUNTS, error), 2)}"
            marks.label(axes, 1.4 * COUNTS[-1], error[-1], text, BLUE, va="center")
    return page.figure


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
EVIDENCE_AREAS = Picture(
    "evidence-by-laplace",
    "p(D) by Laplace: too small, about right, too large",
    "Laplace's evidence is the area of a Gaussian with the joint's height and curvature at its mode: it leaves out "
    "heavy tails, fills in where a flat top falls off steeply, and is nearly exact for a density that is "
    "nearly Gaussian.",
    "MacKay (2003), Information Theory, Inference, and Learning Algorithms, chapter 27",
    draw_integrals,
)
RATES = Picture(
    "laplace-error-against-n",
    "Laplace's error against N",
    "The error of Laplace's log evidence and of its mean falls as 1/N, so that it vanishes as data come in, "
    "and a change of coordinates changes the factor only.",
    "Tierney & Kadane (1986), Accurate approximations for posterior moments and marginal densities",
    draw_rates,
)
