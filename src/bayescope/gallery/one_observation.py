"""One observation: a logistic posterior whose Laplace approximation is nearly the prior, against both KL optima."""

from __future__ import annotations

import math
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
from bayescope.gallery.exact import Grid, curve, grid
from bayescope.gallery.fits import laplace, moment_match
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, FAINT, INK, MUTED
from bayescope.posterior import GaussianPosterior
from bayescope.quadrature import log_expected_sigmoid

INPUT = 25.0
PRIOR_MEAN = 0.5
NAMES = {
    "laplace": "Laplace",
    "variational": "min KL(q‖p)",
    "ep": "min KL(p‖q)",
}


@final
@dataclass(frozen=True)
class OneObservation:
    """w ~ N(½, 1) and one observation y = 1 at x = 25 with p(y = 1∣x, w) = σ(w x)."""

    def log_joint(self, w: Tensor) -> Tensor:
        """log p(y = 1, w) at points of shape (..., 1)."""
        return (logsigmoid(INPUT * w) - 0.5 * (w - PRIOR_MEAN).square() - 0.5 * math.log(2 * math.pi))[..., 0]

    @cached_property
    def exact(self) -> Grid:
        """The posterior on a fine grid."""
        return grid(self.log_joint, (-9.0, 10.0), size=40_001)

    @cached_property
    def fits(self) -> dict[str, GaussianPosterior]:
        """The three Gaussians. With one factor, EP's fixed point is the moment match, hence min KL(p‖q)."""
        return {
            "laplace": laplace(self.log_joint, [PRIOR_MEAN]),
            "variational": density.variational(self.log_joint, 1, generator=0),
            "ep": moment_match(self.exact),
        }

    def predictive(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """p(y = 1∣x) by each Gaussian, and under "exact" by the posterior itself."""
        inputs = torch.from_numpy(x)
        answers = {"exact": self.exact.expect(torch.sigmoid(self.exact.points * inputs)).numpy()}
        for name, q in self.fits.items():
            log_probability = log_expected_sigmoid(q.mean[0] * inputs, q.covariance[0, 0] * inputs.square())
            answers[name] = log_probability.exp().numpy()
        return answers


def draw_one_observation() -> Figure:
    """The posterior with its three Gaussians on the left, what they predict on the right."""
    model = OneObservation()
    q = model.fits["laplace"]
    figure, top = canvas.page(
        4.7,
        "One observation that the prior's mode explains: Laplace learns nothing",
        f"w ~ N(½, 1), and y = 1 is seen at x = {INPUT:.0f}, where p(y = 1) = σ(wx). That rules out w < 0, 31 "
        "% of the prior's mass; but at the mode the likelihood is flat, and Laplace, "
        f"N({float(q.mean[0]):.3f}, {float(q.covariance[0, 0].sqrt()):.3f}²), is the prior again.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.45, gap=(0.8, 0), left=0.35, widths=(1.15, 1))
    _posteriors(figure.add_subplot(cells[0]), model)
    _predictives(figure.add_subplot(cells[1]), model)
    return figure


def _posteriors(axes: Axes, model: OneObservation) -> None:
    canvas.heading(axes, "The posterior and three Gaussians")
    w = np.linspace(-2.4, 3.4, 1200)
    p = np.exp(curve(model.log_joint, w) - model.exact.log_normaliser)
    axes.fill_between(w, p, color=FAINT, lw=0)
    axes.plot(w, p, color=INK, lw=1.2)
    for name, q in model.fits.items():
        axes.plot(w, np.exp(curve(q.log_prob, w)), color=COLOURS[name], lw=2)
    prior = np.exp(-0.5 * (w - PRIOR_MEAN) ** 2) / math.sqrt(2 * math.pi)
    axes.plot(w, prior, color=INK, lw=1.2, ls=(0, (1, 2)))
    canvas.label(axes, -0.55, 0.27, "Laplace\n(dotted: prior)", COLOURS["laplace"], ha="right")
    canvas.label(axes, 1.45, 0.7, NAMES["variational"], COLOURS["variational"])
    canvas.label(axes, 1.72, 0.45, NAMES["ep"], COLOURS["ep"])
    canvas.label(axes, -0.05, 0.57, "posterior p", ha="right")
    axes.set(xlim=(w[0], w[-1]), ylim=(0, 0.8), xlabel="weight w")
    canvas.no_scale(axes)


def _predictives(axes: Axes, model: OneObservation) -> None:
    canvas.heading(axes, "What they predict")
    x = np.linspace(0, 50, 501)
    seen = int(np.abs(x - INPUT).argmin())
    names = {"exact": "posterior"} | NAMES
    offsets = {"exact": 0.013, "variational": -0.013, "ep": -0.013, "laplace": -0.013}
    for name, values in model.predictive(x).items():
        shade = COLOURS.get(name, INK)
        axes.plot(x, values, color=shade, lw=2)
        above = offsets[name] > 0
        text = f"{names[name]}: {values[seen]:.2f}"
        canvas.label(axes, 50, values[-1] + offsets[name], text, shade, ha="right", va="bottom" if above else "top")
    axes.axvline(INPUT, color=MUTED, lw=0.8, ls=":", zorder=0)
    canvas.label(axes, INPUT + 0.6, 0.515, "y = 1 was seen here", MUTED)
    axes.set(xlim=(0, 50), ylim=(0.5, 1.06), xlabel="input x", ylabel="p(y = 1∣x, D)", yticks=np.arange(0.5, 1.01, 0.1))


ONE_OBSERVATION = Picture(
    "one-observation",
    "One observation: Laplace against both KL optima",
    "Where the mode already explains the observation, Laplace sees a flat likelihood and gives the prior back, "
    "while the Gaussian of least KL(q‖p) leaves the excluded region and that of least KL(p‖q) has the "
    "posterior's mean and variance.",
    "Kuss & Rasmussen (2005), Assessing approximate inference for binary Gaussian process classification",
    draw_one_observation,
)
