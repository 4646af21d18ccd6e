"""log p(D) = ELBO + KL: one number split in two by every approximation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import logsigmoid

from bayescope import density
from bayescope.gallery import canvas
from bayescope.gallery.exact import Grid, grid
from bayescope.gallery.fits import laplace, moment_match
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, FAINT, INK, LABELS
from bayescope.posterior import GaussianPosterior
from bayescope.priors import Prior
from bayescope.quadrature import gauss_hermite

INPUTS = (0.1, 0.9, 1.8, 2.7)
OUTCOMES = (0, 0, 1, 1)
PRIOR = Prior(1 / 16)
NAMES = LABELS | {"ep": "min KL(p‖q)"}


@final
@dataclass(frozen=True)
class Bound:
    """Logistic regression on four rows, separable: slope and intercept, each N(0, 4²)."""

    def log_joint(self, theta: Tensor) -> Tensor:
        """log p(D, θ) at points of shape (..., 2)."""
        x = torch.tensor(INPUTS, dtype=torch.float64)
        signs = 2 * torch.tensor(OUTCOMES, dtype=torch.float64) - 1
        activation = theta[..., :1] * x + theta[..., 1:]
        return logsigmoid(signs * activation).sum(-1) + PRIOR.log_prob(theta)

    @cached_property
    def exact(self) -> Grid:
        """The posterior on a grid that reaches beyond six standard deviations of every approximation."""
        return grid(self.log_joint, (-24, 40), (-32, 32), size=641)

    @cached_property
    def fits(self) -> dict[str, GaussianPosterior]:
        """The Gaussians, from the loosest bound to the tightest."""
        return {
            "mean_field": density.variational(self.log_joint, 2, family="mean_field", generator=0),
            "laplace": laplace(self.log_joint, [0.0, 0.0]),
            "ep": moment_match(self.exact),
            "variational": density.variational(self.log_joint, 2, family="full", generator=0),
        }

    def elbo(self, q: GaussianPosterior) -> float:
        """E_q[log p(D, θ)] + the entropy of q, by a product of Gauss–Hermite rules."""
        nodes, log_weights = gauss_hermite(96)
        z = torch.cartesian_prod(nodes, nodes)
        weights = torch.cartesian_prod(log_weights, log_weights).sum(-1).exp()
        theta = q.location + q.precision.sqrt_solve(z.mT).mT
        return float(weights @ (self.log_joint(theta) - q.log_prob(theta)))

    def kl(self, q: GaussianPosterior) -> float:
        """The divergence KL(q‖posterior), summed over the grid."""
        return self.exact.kl_from(q.log_prob(self.exact.points))


def draw_bound() -> Figure:
    """The posterior with every q as an ellipse, and beside it their bounds and divergences as bars."""
    model = Bound()
    log_evidence = model.exact.log_normaliser
    figure, top = canvas.page(
        4.6,
        "log p(D) = ELBO + KL(q‖p): what the bound lacks is the divergence",
        "Logistic regression on four rows, slope and intercept N(0, 4²): log p(D) = "
        f"{canvas.number(log_evidence)} by quadrature. Every q splits this number; to raise its ELBO is to "
        "lower its KL.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.45, gap=(0.35, 0), left=0.6, widths=(1, 1.65), right=0.3)
    _ellipses(figure.add_subplot(cells[0]), model)
    _bars(figure.add_subplot(cells[1]), model, log_evidence)
    return figure


def _ellipses(axes: Axes, model: Bound) -> None:
    canvas.heading(axes, "Posterior, 90 % ellipses of q")
    x = np.linspace(-4, 11, 241)
    y = np.linspace(-12, 4, 241)
    points = torch.cartesian_prod(torch.from_numpy(x), torch.from_numpy(y))
    p = (model.log_joint(points) - model.exact.log_normaliser).exp().reshape(len(x), len(y)).numpy().T
    axes.contourf(x, y, p, levels=np.linspace(0.002, p.max(), 9), cmap="Greys", vmax=1.8 * p.max())
    for name, q in model.fits.items():
        axes.plot(*ellipse(q), color=COLOURS[name], lw=1.6)
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), xlabel="slope", ylabel="intercept")


def ellipse(q: GaussianPosterior, mass: float = 0.9) -> np.ndarray:
    """The contour of a two-dimensional Gaussian that holds the given mass, shape (2, 200)."""
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    radius = (-2 * np.log1p(-mass)) ** 0.5
    circle = radius * torch.stack([angle.cos(), angle.sin()])
    return (q.location[:, None] + q.precision.sqrt_solve(circle)).numpy()


def _bars(axes: Axes, model: Bound, log_evidence: float) -> None:
    canvas.heading(axes, "One number, split by every q")
    left = log_evidence - 1.0
    for row, (name, q) in enumerate(reversed(model.fits.items())):
        elbo, kl = model.elbo(q), model.kl(q)
        shade = COLOURS[name]
        axes.barh(row, elbo - left, left=left, color=FAINT, height=0.5)
        axes.barh(row, kl, left=elbo, color=shade, height=0.5)
        axes.text(left + 0.22, row, f"ELBO {canvas.number(elbo)}", va="center")
        axes.text(left, row + 0.3, NAMES[name], color=shade, va="bottom", weight="bold", fontsize=9, zorder=4)
        axes.text(log_evidence + 0.02, row, f"KL {kl:.3f}", va="center", color=shade, weight="bold")
    # A log has no natural zero for the bars to start from: their left ends fade.
    fade = np.linspace(1, 0, 64)[None]
    veil = np.ones((1, 64, 4))
    veil[..., 3] = fade
    axes.imshow(veil, extent=(left, left + 0.2, -0.4, 3.26), aspect="auto", zorder=3)
    axes.axvline(log_evidence, ymax=0.93, color=INK, lw=1.2)
    axes.text(log_evidence, 3.82, "log p(D)", ha="center", va="bottom")
    axes.set(ylim=(-0.45, 4.1), xlim=(left, log_evidence + 0.27), xlabel="nats")
    canvas.no_scale(axes)


BOUND = Picture(
    "elbo-and-kl",
    "log p(D) = ELBO + KL",
    "Every approximation q splits the log evidence into its bound and its divergence from the posterior, so "
    "that the q with the highest bound in a family is the one closest to the posterior in KL(q‖p).",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 9.11",
    draw_bound,
)
