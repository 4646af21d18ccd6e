"""The evidence p(D) of three models by Laplace: too small, about right and too large."""

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

from bayescope.gallery import canvas
from bayescope.gallery.exact import LogDensityFunction, curve, grid
from bayescope.gallery.fits import laplace
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, FAINT, INK, MUTED
from bayescope.posterior import GaussianPosterior

BLUE = COLOURS["laplace"]


@final
@dataclass(frozen=True)
class Model:
    """A model with one parameter and its data.

    Attributes:
        verdict: what Laplace's p(D) turns out to be.
        story: the model and the data, in two short lines.
        log_joint: log p(D, θ) at points of shape (..., 1).
        span: where it is integrated.
        view: where it is drawn.
        start: of the search for the mode.
    """

    verdict: str
    story: str
    log_joint: LogDensityFunction
    span: tuple[float, float]
    view: tuple[float, float]
    start: float

    @cached_property
    def evidence(self) -> float:
        """The evidence p(D), by quadrature."""
        return math.exp(grid(self.log_joint, self.span, size=400_001).log_normaliser)

    @cached_property
    def laplace(self) -> GaussianPosterior:
        """Laplace's approximation in θ itself."""
        return laplace(self.log_joint, [self.start])

    @property
    def laplace_evidence(self) -> float:
        """The evidence p(D) by Laplace's approximation."""
        return math.exp(float(self.laplace.log_evidence()))


def _normal(theta: Tensor, sd: float) -> Tensor:
    return -0.5 * (theta / sd).square() - math.log(sd * math.sqrt(2 * math.pi))


def _cauchy_noise(theta: Tensor) -> Tensor:
    """One measurement y = 1 with Cauchy noise of unit scale, θ ~ N(0, 10²)."""
    return (-torch.log1p((1 - theta).square()) - math.log(math.pi) + _normal(theta, 10.0))[..., 0]


def _counts(theta: Tensor) -> Tensor:
    """Counts 4, 2, 3 ~ Poisson(θ), θ ~ Exponential(mean 5)."""
    log_factorials = math.lgamma(5) + math.lgamma(3) + math.lgamma(4)
    return (9 * theta.log() - 3.2 * theta - math.log(5) - log_factorials)[..., 0]


def _threshold(theta: Tensor) -> Tensor:
    """A stimulus is seen at strength 1 and not at −1: P(seen at s) = σ(5 (s − θ)), θ ~ N(0, 10²)."""
    return (logsigmoid(5 * (1 - theta)) + logsigmoid(5 * (theta + 1)) + _normal(theta, 10.0))[..., 0]


MODELS = (
    Model("Too small", "θ with Cauchy noise,\nmeasured once: 1", _cauchy_noise, (-90, 90), (-8, 10), 0.9),
    Model("About right", "a Poisson rate θ,\ncounts 4, 2, 3", _counts, (1e-9, 40), (-0.8, 8.0), 2.0),
    Model("Too large", "the threshold θ of a sense:\nseen at 1, not at −1", _threshold, (-90, 90), (-4.2, 4.2), 0.2),
)


def draw_integrals() -> Figure:
    """The joint p(D, θ) of each model with Laplace's Gaussian, and the two areas as bars."""
    figure, top = canvas.page(
        4.6,
        "Laplace's p(D) leaves out heavy tails and overfills flat tops",
        "The evidence p(D) = ∫ p(D, θ) dθ is the grey area. Laplace's is the area under the Gaussian (blue) "
        "with the same height and curvature at the mode.",
    )
    cells = canvas.grid(figure, 2, 3, top=top + 0.45, gap=(0.35, 0.6), left=0.4, heights=(3.4, 1), bottom=0.3)
    for column, model in enumerate(MODELS):
        _joint(figure.add_subplot(cells[0, column]), model)
        _areas(figure.add_subplot(cells[1, column]), model)
    return figure


def _joint(axes: Axes, model: Model) -> None:
    canvas.heading(axes, model.verdict)
    theta = np.linspace(*model.view, 900)
    inside = theta[(theta > model.span[0]) & (theta < model.span[1])]
    joint = np.exp(curve(model.log_joint, inside))
    gaussian = model.laplace_evidence * np.exp(curve(model.laplace.log_prob, theta))
    axes.fill_between(inside, joint, color=FAINT, lw=0)
    axes.plot(inside, joint, color=MUTED, lw=1)
    axes.fill_between(theta, gaussian, color=BLUE, alpha=0.12, lw=0)
    axes.plot(theta, gaussian, color=BLUE, lw=1.8)
    canvas.corner(axes, model.story, MUTED, x=0.0, y=0.98, fontsize=8.5)
    axes.set(xlim=model.view, ylim=(0, 1.5 * joint.max()), xlabel="θ")
    canvas.no_scale(axes)
    axes.xaxis.labelpad = 1


def _areas(axes: Axes, model: Model) -> None:
    ratio = model.laplace_evidence / model.evidence
    axes.barh([1, 0], [1, ratio], color=[FAINT, BLUE], height=0.72)
    axes.text(1.08, 1, f"true {model.evidence:.3g}", va="center", color=INK)
    text = f"Laplace {model.laplace_evidence:.3g}, × {ratio:.2f}"
    axes.text(max(ratio, 1) + 0.08, 0, text, va="center", color=BLUE)
    axes.axvline(1, color=MUTED, lw=0.8, ls=":")
    axes.set(xlim=(0, 5.4), ylim=(-0.5, 1.5))
    axes.axis("off")


EVIDENCE_AREAS = Picture(
    "evidence-by-laplace",
    "p(D) by Laplace: too small, about right, too large",
    "Laplace's evidence is the area of a Gaussian with the joint's height and curvature at its mode: it leaves out "
    "heavy tails, fills in where a flat top falls off steeply, and is nearly exact for a density that is "
    "nearly Gaussian.",
    "MacKay (2003), Information Theory, Inference, and Learning Algorithms, chapter 27",
    draw_integrals,
)
