"""The two directions of KL: q inside one mode of p, or q over all of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayescope import density
from bayescope.gallery import canvas
from bayescope.gallery.bound import ellipse
from bayescope.gallery.exact import curve
from bayescope.gallery.fits import moment_match
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, FAINT, MUTED
from bayescope.posterior import GaussianPosterior, MixturePosterior, Record
from bayescope.precision import DensePrecision

SEEKING = COLOURS["variational"]
COVERING = COLOURS["ep"]


def mixture(weights: list[float], means: list[list[float]], covariances: list[list[list[float]]]) -> MixturePosterior:
    """A density with several modes whose moments are known."""
    parts = [
        GaussianPosterior(
            torch.tensor(m, dtype=torch.float64), DensePrecision(torch.tensor(c).inverse()), Record("given")
        )
        for m, c in zip(means, covariances, strict=True)
    ]
    return MixturePosterior(torch.tensor(weights, dtype=torch.float64).log(), parts, Record("given"))


LINE = mixture([0.65, 0.35], [[-2.0], [2.2]], [[[0.8]], [[0.5]]])
PLANE = mixture([0.55, 0.45], [[-2.1, -1.5], [2.1, 1.6]], [[[0.9, -0.5], [-0.5, 0.7]], [[0.6, 0.35], [0.35, 0.8]]])


@final
@dataclass(frozen=True)
class Directions:
    """The optimum of each direction of KL for a density p.

    Attributes:
        p: the density.
        starts: where the two searches of min KL(q‖p) begin.
    """

    p: MixturePosterior
    starts: tuple[list[float], list[float]]

    def log_p(self, x: Tensor) -> Tensor:
        """log p, differentiable, at points of shape (..., dim)."""
        covariances = torch.stack([part.covariance for part in self.p.components])
        means = torch.stack([part.mean for part in self.p.components])
        parts = MultivariateNormal(means, covariances, validate_args=False)
        return torch.logsumexp(self.p.log_weights + parts.log_prob(x[..., None, :]), -1)

    @cached_property
    def seeking(self) -> list[GaussianPosterior]:
        """The local optima of KL(q‖p) that the two starts lead to."""
        return [
            density.variational(self.log_p, len(start), start=torch.tensor(start, dtype=torch.float64), generator=0)
            for start in self.starts
        ]

    @cached_property
    def covering(self) -> GaussianPosterior:
        """The optimum of KL(p‖q): the Gaussian with the mean and covariance of p."""
        return moment_match(self.p)

    def divergences(self, q: GaussianPosterior) -> tuple[float, float]:
        """KL(q‖p) and KL(p‖q), integrated numerically."""
        return float(density.kl(q, self.p)), float(density.kl(self.p, q))


ONE = Directions(LINE, ([-2.0], [2.0]))
TWO = Directions(PLANE, ([-2.1, -1.5], [2.1, 1.6]))


def draw_directions() -> Figure:
    """One dimension above, two below: the two optima of KL(q‖p) and the one of KL(p‖q)."""
    figure, top = canvas.page(
        6.2,
        "min KL(q‖p) finds one mode, min KL(p‖q) covers both",
        "Gaussians q for a density p with two modes (grey). KL(q‖p), the divergence that VI minimises, "
        "punishes q where p is small and has an optimum at each mode; KL(p‖q) punishes q for missing any of p: "
        "its optimum has p's moments.",
    )
    rows = canvas.grid(figure, 2, 1, top=top + 0.3, gap=(0, 0.75), left=0.35, heights=(1, 1.3), bottom=0.25)
    _line(figure.add_subplot(rows[0]))
    panels = rows[1].subgridspec(1, 3, wspace=0.08)
    shown = [
        ("min KL(q‖p), from the left", TWO.seeking[0], SEEKING),
        ("min KL(q‖p), from the right", TWO.seeking[1], SEEKING),
        ("min KL(p‖q)", TWO.covering, COVERING),
    ]
    for column, (title, q, shade) in enumerate(shown):
        axes = figure.add_subplot(panels[0, column])
        canvas.heading(axes, title, shade)
        _plane(axes, q, shade)
    return figure


def _line(axes: Axes) -> None:
    x = np.linspace(-6.5, 6.5, 800)
    axes.fill_between(x, np.exp(curve(LINE.log_prob, x)), color=FAINT, lw=0)
    axes.plot(x, np.exp(curve(LINE.log_prob, x)), color=MUTED, lw=1)
    shown = [(ONE.seeking[0], SEEKING), (ONE.seeking[1], SEEKING), (ONE.covering, COVERING)]
    for q, shade in shown:
        axes.plot(x, np.exp(curve(q.log_prob, x)), color=shade, lw=2)
    places = ((-3.0, 0.33, "right"), (3.0, 0.36, "left"), (-3.75, 0.11, "right"))
    titles = ("min KL(q‖p), from the left", "min KL(q‖p), from the right", "min KL(p‖q)")
    for (q, shade), title, (at, height, side) in zip(shown, titles, places, strict=True):
        canvas.label(axes, at, height, f"{title}\n{_numbers(ONE, q)}", shade, ha=side)
    axes.set(xlim=(x[0], x[-1]), ylim=(0, None))
    canvas.no_scale(axes)


def _plane(axes: Axes, q: GaussianPosterior, shade: str) -> None:
    x, y = np.linspace(-6.2, 6.2, 161), np.linspace(-6.2, 5.4, 161)
    points = torch.cartesian_prod(torch.from_numpy(x), torch.from_numpy(y))
    p = PLANE.log_prob(points).exp().reshape(len(x), len(y)).numpy().T
    axes.contourf(x, y, p, levels=np.linspace(0.002, p.max(), 9), cmap="Greys", vmax=1.8 * p.max())
    for mass in (0.5, 0.95):
        axes.plot(*ellipse(q, mass), color=shade, lw=2 if mass < 0.9 else 1.2)
    canvas.corner(axes, _numbers(TWO, q), shade, x=0.97, y=0.03, ha="right")
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    canvas.bare(axes)


def _numbers(of: Directions, q: GaussianPosterior) -> str:
    to_p, from_p = of.divergences(q)
    return f"KL(q‖p) = {to_p:.2f}\nKL(p‖q) = {from_p:.2f}"


DIRECTIONS = Picture(
    "kl-directions",
    "The two directions of KL",
    "Minimising KL(q‖p) makes q avoid places where p is small, so that it settles in one mode and forgets the other; "
    "minimising KL(p‖q) makes q cover all of p, also the gap between its modes.",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 10.3; Murphy (2023), Advanced Topics, chapter 5",
    draw_directions,
)
