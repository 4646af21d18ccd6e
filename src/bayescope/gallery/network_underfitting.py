"""Why weights drawn from a network's Laplace posterior underfit, and its tangent does not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.likelihoods import Gaussian
from bayescope.models import LinearizedModel, Model
from bayescope.plots.style import COLOURS, INK, MUTED
from bayescope.posterior import GaussianPosterior

HIDDEN = 50
PRIOR_PRECISION = 1.0
PRIOR_PRECISIONS = (0.3, 1.0, 10.0, 30.0, 100.0)
DRAWS = 200
SHOWN = 25
BLUE, BROWN = COLOURS["laplace"], "#A6611A"


class Losses(NamedTuple):
    """NLL per test row of three predictives, in nats."""

    point: float
    linearized: float
    sampled: float


def fit(rows: networks.Rows, prior_precision: float = PRIOR_PRECISION, hidden: int = HIDDEN) -> GaussianPosterior:
    """Laplace with the full GGN at the mode of a network with one hidden layer."""
    likelihood = Gaussian(networks.NOISE_SD**2)
    return networks.posterior(networks.mlp(1, hidden, 1), rows.train, likelihood, prior_precision)


def losses(q: GaussianPosterior, rows: networks.Rows, draws: int = DRAWS) -> Losses:
    """The test rows' loss at the mode, with f Gaussian by its tangent, and averaged over drawn weights."""
    sampled = networks.test_loss(q, rows, method="sampled", samples=draws, generator=0)
    return Losses(networks.test_loss(networks.at_mode(q), rows), networks.test_loss(q, rows), sampled)


def along_draws(q: GaussianPosterior, rows: networks.Rows, steps: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The training loss per row on the way from the mode, θ* + s (θ − θ*), to drawn weights θ.

    Returns:
        For the network's tangent and for the network, shape (draws, steps).
    """
    network, likelihood = networks.parts(q)
    offsets = q.sample(SHOWN, generator=1) - q.mean
    theta = q.mean + steps[None, :, None] * offsets[:, None]

    def loss(function: Model) -> np.ndarray:
        return -likelihood.log_prob(function.forward(rows.x, theta), rows.y).mean(-1).numpy()

    return loss(LinearizedModel(network, q.mean)), loss(network)


def draw_underfitting() -> Figure:
    """Drawn functions of both kinds above; the loss on the way to drawn weights and over prior precisions below."""
    rows = networks.gap()
    q = fit(rows)
    found = losses(q, rows)
    figure, top = canvas.page(
        7.1,
        "Networks drawn from the posterior underfit, their tangents do not",
        f"Laplace with the full GGN of a 1-{HIDDEN}-1 tanh network ({len(q.mean)} weights, N(0, 1) prior, "
        f"{len(rows.x)} rows with noise {networks.NOISE_SD}). NLL per test row: {canvas.number(found.point)} at the "
        f"mode, {canvas.number(found.linearized)} linearised, {canvas.number(found.sampled)} with {DRAWS} drawn "
        "networks.",
    )
    above = canvas.grid(figure, 1, 2, top=top + 0.45, bottom=3.7, gap=(0.5, 0), left=0.7)
    _functions(figure.add_subplot(above[0]), q, rows, "Tangent at the mode, f* + J(θ − θ*)", BLUE, tangent=True)
    _functions(figure.add_subplot(above[1]), q, rows, "The network itself, f(x, θ)", BROWN, tangent=False)
    below = canvas.grid(figure, 1, 2, top=top + 3.3, gap=(0.75, 0), left=0.7)
    _ways(figure.add_subplot(below[0]), q, rows)
    _precisions(figure.add_subplot(below[1]), rows, found)
    return figure


def _functions(
    axes: Axes, q: GaussianPosterior, rows: networks.Rows, title: str, colour: str, *, tangent: bool
) -> None:
    canvas.heading(axes, title, colour)
    x = torch.linspace(-2.4, 2.4, 200, dtype=networks.DOUBLE)[:, None]
    network, _ = networks.parts(q)
    function: Model = LinearizedModel(network, q.mean) if tangent else network
    f = function.forward(x, q.sample(SHOWN, generator=1))
    axes.plot(x, f[..., 0].T, color=colour, lw=0.7, alpha=0.5)
    axes.plot(x, network.forward(x, q.mean), color=INK, lw=1.8)
    axes.plot(rows.x, rows.y, "o", color=INK, ms=2.6)
    axes.set(xlim=(-2.4, 2.4), ylim=(-4.2, 4.2), xlabel="x", yticks=[-4, -2, 0, 2, 4], xticks=[-2, -1, 0, 1, 2])
    canvas.corner(axes, f"black: the mode\n{SHOWN} draws of θ" if tangent else f"the same {SHOWN} draws of θ", MUTED)


def _ways(axes: Axes, q: GaussianPosterior, rows: networks.Rows) -> None:
    """The GGN's flat directions are flat for the tangent alone."""
    canvas.heading(axes, "Training loss on the way to the draws")
    steps = torch.linspace(0, 1, 41, dtype=networks.DOUBLE)
    tangent, network = along_draws(q, rows, steps)
    for values, colour in ((network, BROWN), (tangent, BLUE)):
        axes.plot(steps, values.T, color=colour, lw=0.7, alpha=0.5)
        axes.plot(steps, np.median(values, 0), color=colour, lw=2.2)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set(xlim=(0, 1), xlabel="s, weights θ* + s (θ − θ*)", ylabel="NLL per training row", xticks=[0, 0.5, 1])
    axes.set(ylim=(-1, 10**4.2), yticks=[-1, 0, 1, 10, 100, 1000, 10000])
    axes.set_yticklabels(["−1", "0", "1", "10", "100", "10³", "10⁴"])
    axes.minorticks_off()
    canvas.label(axes, 0.75, -0.05, "tangent (bold: median)", BLUE, ha="center", va="center")
    canvas.label(axes, 0.28, 1000, "network", BROWN, ha="center", va="center")


def _precisions(axes: Axes, rows: networks.Rows, at_one: Losses) -> None:
    canvas.heading(axes, "Test loss over the prior precision")
    each = [at_one if p == PRIOR_PRECISION else losses(fit(rows, p), rows) for p in PRIOR_PRECISIONS]
    found = np.array(each)
    for column, (name, colour) in enumerate((("linearised", BLUE), ("sampled", BROWN)), start=1):
        axes.plot(PRIOR_PRECISIONS, found[:, column], "-o", color=colour, ms=3.5, lw=1.6)
        at = 1
        canvas.label(axes, PRIOR_PRECISIONS[at] * 1.3, found[at, column] + 0.18, name, colour)
    axes.plot(PRIOR_PRECISIONS, found[:, 0], color=INK, lw=1, ls=":")
    canvas.label(axes, PRIOR_PRECISIONS[0], found[0, 0] - 0.45, "dotted: at the mode", MUTED)
    canvas.label(axes, 26, found[-1, 0] + 0.25, "here the mode\nitself underfits", MUTED, ha="center")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set(xlabel="prior precision", ylabel="NLL per test row", xticks=[0.3, 1, 10, 30, 100])
    axes.set_xticklabels(["0.3", "1", "10", "30", "100"])
    axes.set_ylim(-1.1, found.max() + 0.5)


UNDERFITTING = Picture(
    "network-underfitting",
    "Drawn networks against their tangent",
    "The GGN is the curvature of the network's tangent: along directions that leave the tangent's outputs on the data "
    "as they are the posterior is as wide as the prior, and the network itself, drawn there, no longer fits the data.",
    "Immer, Korzepa & Bauer (2021), Improving predictions of Bayesian neural nets via local linearization; "
    "Lawrence (2001), Variational inference in probabilistic models",
    draw_underfitting,
)
