"""Hyperparameters learnt from the evidence while a network trains, on a curve and on two classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from torch import nn

from bayescope.gallery import canvas, networks
from bayescope.gallery.network_banana import plane, probability
from bayescope.gallery.picture import Picture
from bayescope.laplace.online import fit_evidence
from bayescope.likelihoods import Bernoulli, Gaussian, Likelihood
from bayescope.plots.style import COLOURS, INK, MUTED
from bayescope.posterior import GaussianPosterior

EPOCHS = 15
BLUE, ORANGE = COLOURS["laplace"], COLOURS["mean_field"]


@final
@dataclass(frozen=True)
class Learning:
    """A network that learns its hyperparameters: one prior precision a layer, and the noise where there is one.

    Attributes:
        rows: to learn from and to judge on.
        start: the network before training.
        likelihood: with the noise variance that the climb begins at.
    """

    rows: networks.Rows
    start: nn.Module
    likelihood: Likelihood

    @cached_property
    def learnt(self) -> GaussianPosterior:
        """The posterior at the highest evidence; every epoch trains and then climbs."""
        return fit_evidence(
            self.start, self.rows.train, likelihood=self.likelihood, structure="full", optimizer="lbfgs",
            epochs=EPOCHS, burn_in=1, every=1, steps=10, progress=False,
        )  # fmt: skip

    @cached_property
    def fixed(self) -> GaussianPosterior:
        """The posterior under the hyperparameters that the climb begins at."""
        return networks.posterior(self.start, self.rows.train, self.likelihood, 1.0)


def curve() -> Learning:
    """A curve with a gap, one hidden layer; the noise variance begins at 1."""
    return Learning(networks.gap(), networks.mlp(1, 20, 1, seed=1), Gaussian(1.0))


def classes() -> Learning:
    """The bent and the round class, one hidden layer."""
    return Learning(networks.banana(), networks.mlp(2, 16, 1), Bernoulli())


def draw_online(shown: tuple[Learning, Learning] | None = None) -> Figure:
    """A row a problem: what is predicted, the log evidence and the hyperparameters over the epochs.

    Without an argument the curve and the classes are learnt.
    """
    regression, classification = (curve(), classes()) if shown is None else shown
    losses = [
        (networks.test_loss(q.fixed, q.rows), networks.test_loss(q.learnt, q.rows))
        for q in (regression, classification)
    ]
    (curve_fixed, curve_learnt), (classes_fixed, classes_learnt) = losses
    figure, top = canvas.page(
        6.4,
        "The training data alone tell the priors' widths and the noise",
        "The log evidence (full GGN) is climbed after each epoch in the logarithms of one prior precision a layer and "
        "of the noise variance; the weights of its highest value (dotted line) are kept. NLL per test row with 1 for "
        f"every hyperparameter, then learnt: {canvas.number(curve_fixed)}, {canvas.number(curve_learnt)} above; "
        f"{canvas.number(classes_fixed)}, {canvas.number(classes_learnt)} below.",
    )
    cells = canvas.grid(figure, 2, 3, top=top + 0.45, gap=(0.65, 0.75), left=0.55, right=0.75)
    above = _row(figure, cells, 0, regression)
    _curves(above, regression)
    below = _row(figure, cells, 1, classification)
    _classes(below, classification)
    return figure


def _row(figure: Figure, cells: GridSpec, row: int, learning: Learning) -> Axes:
    """The two traces of a problem; the panel of its predictions is left to the caller."""
    trace = learning.learnt.trace
    epochs, evidence = np.array(trace["judged"]), np.array(trace["log_evidence"])
    best = epochs[evidence.argmax()]
    left, middle, right = (figure.add_subplot(cells[row, column]) for column in range(3))
    canvas.heading(middle, "Log evidence")
    middle.plot(epochs, evidence, "-o", color=BLUE, ms=3.5)
    highest = float(evidence.max())
    canvas.label(
        middle, float(best) + 0.3, highest - 0.35 * np.ptp(evidence), canvas.number(highest, 1), BLUE, weight="bold"
    )
    canvas.heading(right, "Hyperparameters")
    precisions = np.array(trace["prior_precision"])
    named = {"layer 1": (precisions[:, 0], INK), "layer 2": (precisions[:, 1], MUTED)}
    if "noise_variance" in trace:
        named["noise"] = (np.array(trace["noise_variance"]), ORANGE)
    for name, (values, colour) in named.items():
        right.semilogy(epochs, values, "-o", color=colour, ms=3, lw=1.4)
        canvas.label(right, EPOCHS + 0.7, float(values[-1]), name, colour, va="center")
    for axes in (middle, right):
        axes.axvline(best, color=MUTED, lw=0.8, ls=":", zorder=0)
        axes.set(xlabel="epoch", xlim=(0, EPOCHS + 0.5), xticks=[0, 5, 10, 15])
    return left


def _curves(axes: Axes, learning: Learning) -> None:
    canvas.heading(axes, "A curve with a gap")
    x = torch.linspace(-2.6, 2.6, 200, dtype=networks.DOUBLE)[:, None]
    predictive = learning.learnt.predict(x)
    low, high = predictive.interval(0.95)
    axes.fill_between(x[:, 0], low[:, 0], high[:, 0], color=BLUE, alpha=0.18, lw=0)
    axes.plot(x, predictive.mean, color=BLUE, lw=1.8)
    axes.plot(x, learning.fixed.predict(x).mean, color=MUTED, lw=1, ls=(0, (4, 2)))
    axes.plot(learning.rows.x, learning.rows.y, "o", color=INK, ms=2.2)
    canvas.corner(axes, "blue: learnt, 95 % of y\ndashed: all 1", MUTED, fontsize=8.5, x=0.03)
    axes.set(xlim=(-2.6, 2.6), ylim=(-2.6, 4.2), xlabel="x", xticks=[-2, 0, 2], yticks=[-2, 0, 2])


def _classes(axes: Axes, learning: Learning) -> None:
    canvas.heading(axes, "A bent and a round class")
    size = 80
    p = np.asarray(learning.learnt.predict(plane(size)).mean[:, 1]).reshape(size, size)
    probability(axes, p, learning.rows)
    axes.set_xlabel("p(red), learnt", fontsize=9.5)


ONLINE = Picture(
    "network-online-evidence",
    "Evidence while a network trains",
    "Training that alternates with ascent on the evidence finds the noise and a prior precision for each layer from "
    "the training data alone, and keeps the weights at which the evidence was highest.",
    "Immer, Bauer, Fortuin, Rätsch & Khan (2021), Scalable marginal likelihood estimation for model selection in deep "
    "learning",
    draw_online,
)
