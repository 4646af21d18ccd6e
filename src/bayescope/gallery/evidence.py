"""The evidence over the number of basis functions, with the test loss beside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope.estimators import BayesianLinearRegression
from bayescope.gallery import canvas
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, INK, MUTED

NOISE_SD = 0.25
ROWS = 40
SIZES = tuple(range(2, 31))
BLUE = COLOURS["laplace"]


class Data(NamedTuple):
    """A curve seen with noise: a few rows to learn from, many to judge on."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def truth(x: np.ndarray) -> np.ndarray:
    """The curve without its noise."""
    return np.sin(2.2 * np.pi * x) + 0.5 * x


def data(seed: int = 1) -> Data:
    """Rows at random places, test rows evenly spaced."""
    source = np.random.default_rng(seed)
    x = source.uniform(-1, 1, ROWS)
    test_x = np.linspace(-1, 1, 400)
    noise = NOISE_SD * source.standard_normal(ROWS + len(test_x))
    return Data(x, truth(x) + noise[:ROWS], test_x, truth(test_x) + noise[ROWS:])


def bumps(x: np.ndarray, size: int) -> np.ndarray:
    """Evenly spaced Gaussian bumps on [−1, 1], as wide as they are apart, shape (N, size)."""
    centres, step = np.linspace(-1, 1, size, retstep=True)
    return np.exp(-0.5 * ((x[:, None] - centres) / step) ** 2)


class Curves(NamedTuple):
    """Log evidence and test loss for each number of basis functions."""

    sizes: np.ndarray
    log_evidence: np.ndarray
    test_nll: np.ndarray


def fit(rows: Data, size: int) -> BayesianLinearRegression:
    """The exact posterior: weights N(0, 1), the noise known."""
    model = BayesianLinearRegression(
        prior_precision=1.0, noise_variance=NOISE_SD**2, standardize=False, intercept_prior_precision=1e-4
    )
    return model.fit(bumps(rows.x, size), rows.y)


def curves(rows: Data, sizes: tuple[int, ...] = SIZES) -> Curves:
    """Both quantities for every size."""
    models = [fit(rows, size) for size in sizes]
    losses = [
        -model.predict_distribution(bumps(rows.test_x, size)).log_prob(rows.test_y).mean()
        for model, size in zip(models, sizes, strict=True)
    ]
    return Curves(np.array(sizes), np.array([model.log_evidence_ for model in models]), np.array(losses))


def draw_evidence() -> Figure:
    """Three fits above; the log evidence and the test loss over the number of basis functions below."""
    rows = data()
    found = curves(rows)
    best = int(found.sizes[found.log_evidence.argmax()])
    figure, top = canvas.page(
        6.2,
        f"The evidence picks {best} basis functions, and test data agree",
        f"Bayesian linear regression on {ROWS} rows with K Gaussian bumps and fixed N(0, 1) weights. Too few cannot "
        "follow the curve; too many could follow any curve, which costs evidence: no test data are needed to see it.",
    )
    cells = canvas.grid(figure, 1, 3, top=top + 0.45, bottom=3.0, gap=(0.25, 0), left=0.7)
    for column, size in enumerate((5, best, SIZES[-1])):
        axes = figure.add_subplot(cells[column])
        canvas.heading(axes, f"K = {size}")
        _fit(axes, rows, size)
        if column:
            axes.tick_params(labelleft=False)
        else:
            canvas.label(axes, -0.02, 1.75, "dashed: the truth\nblue: E[f], 95 % of f", MUTED, ha="center", va="center")
    below = canvas.grid(figure, 1, 2, top=top + 3.0, gap=(0.8, 0), left=0.7)
    left, right = (figure.add_subplot(below[0, column]) for column in (0, 1))
    _curve(left, found.sizes, found.log_evidence, best, "Log evidence, from the 40 rows alone", -30)
    lowest = int(found.sizes[found.test_nll.argmin()])
    _curve(right, found.sizes, found.test_nll, lowest, "NLL per row of 400 test rows", 14)
    left.set_ylim(found.log_evidence.max() - 45, found.log_evidence.max() + 5)
    right.set_ylim(found.test_nll.min() - 0.05, found.test_nll.min() + 0.6)
    return figure


def _fit(axes: Axes, rows: Data, size: int) -> None:
    x = np.linspace(-1, 1, 300)
    predictive = fit(rows, size).predict_distribution(bumps(x, size))
    low, high = (end[:, 0] for end in predictive.interval(0.95, of="mean"))
    axes.fill_between(x, low, high, color=BLUE, alpha=0.18, lw=0)
    axes.plot(x, predictive.mean[:, 0], color=BLUE, lw=1.8)
    axes.plot(x, truth(x), color=MUTED, lw=1, ls=(0, (4, 2)))
    axes.plot(rows.x, rows.y, "o", color=INK, ms=2.6)
    axes.set(xlim=(-1, 1), ylim=(-2.3, 2.3), xticks=[-1, 0, 1], yticks=[-2, 0, 2])


def _curve(axes: Axes, sizes: np.ndarray, values: np.ndarray, best: int, title: str, offset: float) -> None:
    canvas.heading(axes, title)
    axes.plot(sizes, values, "-o", color=BLUE, ms=3.5, lw=1.4)
    at = int(np.flatnonzero(sizes == best)[0])
    axes.axvline(best, color=MUTED, lw=0.8, ls=":")
    axes.plot(best, values[at], "o", color=BLUE, ms=8)
    axes.annotate(
        f"K = {best}",
        (best, values[at]),
        (8, offset),
        textcoords="offset points",
        color=BLUE,
        weight="bold",
        fontsize=9,
    )
    axes.set(xlabel="number of basis functions K", xlim=(1, 31))


EVIDENCE = Picture(
    "evidence-over-basis-functions",
    "The evidence over the number of basis functions",
    "The evidence rewards a model for explaining the data and charges it for all the data it could have "
    "explained instead, so that it is highest for about as many basis functions as predict new data best.",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 3.14; MacKay (1992), Bayesian interpolation",
    draw_evidence,
)
