"""Many separating borders: MAP draws one, the posterior many, and they part where there are no data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast, final

import numpy as np
from contourpy import contour_generator
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

from bayescope.estimators import BayesianLogisticRegression
from bayescope.gallery import canvas
from bayescope.gallery.picture import Picture
from bayescope.gallery.surfaces import LEVELS, between, points
from bayescope.plots.style import CLASS_COLOURS, COLOURS, INK
from bayescope.posterior import GaussianPosterior

BAYES = COLOURS["variational"]
SPAN = ((-2.0, 3.0), (-1.6, 2.1))
WIDTH = 0.7
PRIOR_PRECISION = 0.01


class Border(NamedTuple):
    """Where p(red) = ½ under the posterior, and how far the posterior lets that border move.

    Attributes:
        path: points on the border, shape (M, 2).
        length: arc length up to each of them, shape (M,).
        sd: of the border's displacement across itself, sd(f)/∣∇E[f]∣ to first order, shape (M,).
    """

    path: np.ndarray
    length: np.ndarray
    sd: np.ndarray


@final
@dataclass(frozen=True)
class Borders:
    """Logistic regression on two moons with radial basis functions on a lattice.

    Attributes:
        across: basis functions along each coordinate.
        size: points of the grid along each coordinate.
        samples: functions drawn from the posterior.
    """

    across: int = 8
    size: int = 100
    samples: int = 100

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Two moons that a curved border separates."""
        X, y = make_moons(50, noise=0.08, random_state=1)
        return X, y

    def bumps(self, X: np.ndarray) -> np.ndarray:
        """Gaussian bumps on the lattice, shape (N, across²)."""
        c1, c2 = np.meshgrid(*(np.linspace(*span, self.across) for span in SPAN))
        squares = (X[:, :1] - c1.ravel()) ** 2 + (X[:, 1:] - c2.ravel()) ** 2
        return np.exp(-0.5 * squares / WIDTH**2)

    @cached_property
    def models(self) -> dict[str, BayesianLogisticRegression]:
        """The point estimate, and the Gaussian with full covariance that is closest to the posterior."""
        X, y = self.data
        return {
            name: BayesianLogisticRegression(
                posterior=name, prior_precision=PRIOR_PRECISION, standardize=False, intercept_prior_precision=1e-4
            ).fit(self.bumps(X), y)
            for name in ("map", "variational")
        }

    @property
    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """The two coordinates of the grid."""
        first, second = (np.linspace(*span, self.size) for span in SPAN)
        return first, second

    @cached_property
    def surfaces(self) -> dict[str, np.ndarray]:
        """p(red) by each model, shape (size, size)."""
        return {
            name: model.predict_proba(self._basis_on_grid)[:, 1].reshape(self.size, self.size)
            for name, model in self.models.items()
        }

    @cached_property
    def separating(self) -> np.ndarray:
        """Those of the sampled functions that classify every row rightly, shape (S, size, size)."""
        X, y = self.data
        both = np.concatenate([self.bumps(X), self._basis_on_grid])
        f = self.functions(both, self.samples)
        right = ((f[:, : len(y)] > 0) == y).all(1)
        return f[right, len(y) :].reshape(-1, self.size, self.size)

    def border(self, name: str) -> np.ndarray:
        """The longest stretch of a model's border, shape (M, 2)."""
        lines = cast(list[np.ndarray], contour_generator(*self.grid, self.surfaces[name]).lines(0.5))
        return max(lines, key=len)

    @cached_property
    def uncertain(self) -> Border:
        """The Bayesian border with the uncertainty of its place."""
        path = self.border("variational")
        length = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
        step = 1e-4
        moved = [self.latent(path + step * np.array(way))[0] for way in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        slope = np.hypot(moved[0] - moved[1], moved[2] - moved[3]) / (2 * step)
        return Border(path, length, self.latent(path)[1] / slope)

    def latent(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of f under the posterior, each of shape (N,)."""
        predictive = self.models["variational"].predict_distribution(self.bumps(X))
        return np.asarray(predictive.latent_mean)[:, 0], np.sqrt(np.asarray(predictive.latent_cov)[:, 0, 0])

    def functions(self, basis: np.ndarray, count: int) -> np.ndarray:
        """f of posterior samples at rows of basis functions, joint over the rows, shape (count, N)."""
        posterior = cast(GaussianPosterior, self.models["variational"].posterior_)
        return posterior.sample_functions(basis, count, generator=1)[..., 0].numpy()

    @cached_property
    def _basis_on_grid(self) -> np.ndarray:
        x1, x2 = np.meshgrid(*self.grid)
        return self.bumps(np.column_stack([x1.ravel(), x2.ravel()]))


def draw_borders(borders: Borders | None = None) -> Figure:
    """MAP's border and the sampled ones over their surfaces; below, how far the border may move along its length."""
    borders = borders or Borders()
    figure, top = canvas.page(
        6.3,
        "MAP draws one border; the posterior knows where others could run",
        f"Logistic regression on two moons with {borders.across**2} radial basis functions. Right: VI with "
        f"full covariance; of {borders.samples} functions sampled from it {len(borders.separating)} separate "
        "the rows, and their borders are drawn over p(red).",
    )
    above = canvas.grid(figure, 1, 2, top=top + 0.45, gap=(0.25, 0), left=0.4, bottom=2.3)
    below = canvas.grid(figure, 1, 1, top=4.55, left=0.75)
    left, right = (figure.add_subplot(above[0, column]) for column in (0, 1))
    canvas.heading(left, "MAP", COLOURS["map"])
    canvas.heading(right, "Bayes", BAYES)
    _surface(left, borders, "map")
    _surface(right, borders, "variational")
    for f in borders.separating:
        right.contour(*borders.grid, f, levels=[0], colors=BAYES, linewidths=0.6, alpha=0.5)
    _marks(right, borders.uncertain)
    _along(figure.add_subplot(below[0]), borders.uncertain)
    return figure


def _surface(axes: Axes, borders: Borders, name: str) -> None:
    axes.contourf(*borders.grid, borders.surfaces[name], levels=LEVELS, cmap=between(*CLASS_COLOURS[:2]))
    axes.plot(*borders.border(name).T, color=INK, lw=1.8, zorder=5)
    points(axes, *borders.data)
    axes.set(xlim=SPAN[0], ylim=SPAN[1])
    canvas.bare(axes)


def _marks(axes: Axes, border: Border) -> None:
    """Whole arc lengths along the border, by which the panel below is read."""
    for length in range(1, int(border.length[-1]) + 1):
        at = border.path[np.searchsorted(border.length, length)]
        axes.plot(*at, "o", ms=11, color="white", markeredgecolor=INK, zorder=6)
        axes.text(at[0], at[1], str(length), ha="center", va="center_baseline", fontsize=7.5, zorder=7)


def _along(axes: Axes, border: Border) -> None:
    canvas.heading(axes, "How far the Bayesian border may move: ±2 sd(f)/∣∇f∣ across it")
    axes.fill_between(border.length, -2 * border.sd, 2 * border.sd, color=BAYES, alpha=0.25, lw=0)
    axes.axhline(0, color=INK, lw=1.8)
    axes.set(xlim=(0, border.length[-1]), ylim=(-1, 1), xlabel="arc length along the border (marked above)")
    axes.set_ylabel("distance")
    tightest = int(border.sd.argmin())
    text = f"between the moons ±{2 * border.sd[tightest]:.2f}"
    canvas.label(axes, border.length[tightest], 0.3, text, BAYES, ha="center")
    for end, side in ((0.05, "left"), (border.length[-1] - 0.05, "right")):
        canvas.label(axes, end, 0.1, "beyond the data", BAYES, ha=side)


BORDERS = Picture(
    "many-borders",
    "Many separating borders",
    "With many basis functions many borders separate the same data; MAP shows one of them and is as sure of it "
    "far from the data as among them, while the posterior's borders part where there are no data.",
    "Bishop (2006), Pattern Recognition and Machine Learning, section 4.5; Murphy (2022), Probabilistic "
    "Machine Learning, section 10.5",
    draw_borders,
)
