"""Links: MacKay's κ against quadrature, and the logistic sigmoid against the scaled normal distribution function."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope.gallery import canvas
from bayescope.gallery.picture import Picture
from bayescope.likelihoods import Bernoulli
from bayescope.plots.style import COLOURS, FAINT, INK, MUTED

LINE_SDS = (1.0, 2.0, 4.0, 10.0)
LEVELS = np.arange(-0.018, 0.019, 0.002)


class KappaError(NamedTuple):
    """σ(κμ) − E[σ(a)] for a ~ N(μ, sd²), with shape (sds, means)."""

    means: np.ndarray
    sds: np.ndarray
    error: np.ndarray


def kappa_error(means: np.ndarray, sds: np.ndarray) -> KappaError:
    """The error of MacKay's integral over a table of latent means and standard deviations."""
    mean, sd = np.meshgrid(means, sds)
    latent_mean = torch.from_numpy(mean.reshape(-1, 1))
    latent_cov = torch.from_numpy(sd.reshape(-1, 1, 1) ** 2)
    approximate, exact = (
        Bernoulli().predictive(latent_mean, latent_cov, integral).mean[:, 1] for integral in ("mackay", "quadrature")
    )
    return KappaError(means, sds, (approximate - exact).reshape(mean.shape).numpy())


def draw_kappa() -> Figure:
    """A map of the error over (μ, sd) beside the error along μ at four sds."""
    table = kappa_error(np.linspace(0, 20, 101), np.linspace(0.1, 12, 80))
    figure, top = canvas.page(
        4.4,
        "MacKay's σ(κμ) is never off by more than 0.018",
        "The class probability with the latent a ~ N(μ, sd²) averaged out: the closed form σ(κμ), κ = 1/√(1 + "
        "π sd²/8), minus E[σ(a)] by quadrature. For −μ the error changes its sign.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.45, widths=(1, 1), gap=(1.0, 0))
    _kappa_map(figure.add_subplot(cells[0]), table)
    _kappa_lines(figure.add_subplot(cells[1]), kappa_error(np.linspace(0, 20, 201), np.array(LINE_SDS)))
    return figure


def _kappa_map(axes: Axes, table: KappaError) -> None:
    canvas.heading(axes, "Over μ and sd: blue is too cautious")
    axes.contourf(table.means, table.sds, table.error, LEVELS, cmap="RdBu_r", vmin=-0.02, vmax=0.02)
    negative = [-0.016, -0.012, -0.008, -0.004]
    lines = axes.contour(
        table.means, table.sds, table.error, negative, colors="white", linewidths=0.6, linestyles="solid"
    )
    places = [(16.5, 8.2), (15.5, 6.4), (14.5, 4.9), (13.5, 3.55)]
    texts = axes.clabel(lines, fmt=lambda level: f"{level:.3f}".replace("-", "−"), fontsize=8, manual=places)
    for text, tone in zip(texts, ("white", "white", INK, INK), strict=True):
        text.set_color(tone)
    axes.contour(table.means, table.sds, table.error, [0], colors=INK, linewidths=1.4)
    canvas.label(axes, 1.3, 6.2, "too confident", rotation=90, ha="center", va="center")
    axes.set(xlabel="latent mean μ", ylabel="latent sd", ylim=(0, 12), xticks=range(0, 21, 5))


def _kappa_lines(axes: Axes, lines: KappaError) -> None:
    canvas.heading(axes, "Along μ")
    axes.axhline(0, color=MUTED, lw=0.8)
    places = ((1.5, -0.0042), (2.5, -0.0093), (4.9, -0.0139), (13.2, -0.0168))
    for shade, sd, error, place in zip((0.4, 0.6, 0.8, 1.0), lines.sds, lines.error, places, strict=True):
        axes.plot(lines.means, error, color=COLOURS["laplace"], alpha=shade, lw=1.8)
        canvas.label(axes, *place, f"sd {sd:g}", COLOURS["laplace"], ha="center")
    canvas.corner(axes, "too confident ↑", MUTED, x=0.98, y=0.97)
    canvas.corner(axes, "too cautious ↓", MUTED, x=0.03, y=0.03)
    axes.set(xlabel="latent mean μ", ylabel="σ(κμ) − E[σ(a)]", xlim=(0, 20), ylim=(-0.0195, 0.0055))
    axes.set_xticks(range(0, 21, 5))


class SigmoidGap(NamedTuple):
    """σ(a) and Φ(λa) with λ² = π/8, which gives both the slope ¼ at 0."""

    a: np.ndarray
    logistic: np.ndarray
    probit: np.ndarray


def sigmoid_gap(a: np.ndarray) -> SigmoidGap:
    """Both curves over the activations ``a``."""
    activation = torch.from_numpy(a)
    probit = torch.special.ndtr(math.sqrt(math.pi / 8) * activation)
    return SigmoidGap(a, torch.sigmoid(activation).numpy(), probit.numpy())


def draw_sigmoid() -> Figure:
    """The two curves above, their difference below."""
    gap = sigmoid_gap(np.linspace(-8, 8, 801))
    difference = gap.logistic - gap.probit
    worst = int(difference.argmax())
    figure, top = canvas.page(
        5.0,
        f"σ(a) and Φ(λa) differ by {difference[worst]:.3f} at most",
        "The logistic sigmoid and the scaled normal distribution function: with λ² = π/8 both have the slope ¼ "
        "at 0. The Gaussian integral of Φ is known in closed form, and so σ's is nearly: this is where "
        "MacKay's κ is from.",
    )
    cells = canvas.grid(figure, 2, 1, top=top + 0.2, heights=(2, 1), gap=(0, 0.3), left=0.75)
    above = figure.add_subplot(cells[0])
    above.plot(gap.a, gap.logistic, color=COLOURS["laplace"], lw=2.5)
    above.plot(gap.a, gap.probit, color=COLOURS["variational"], lw=1.8, ls=(0, (4, 2)))
    above.plot(gap.a, 0.5 + gap.a / 4, color=MUTED, lw=0.8, zorder=0)
    canvas.label(above, 1.1, 0.66, "σ(a) = 1/(1 + e⁻ᵃ)", COLOURS["laplace"], fontsize=10)
    canvas.label(above, -1.4, 0.33, "Φ(λa)", COLOURS["variational"], fontsize=10, ha="right")
    canvas.label(above, 2.15, 1.045, "slope ¼", MUTED, ha="left", va="center")
    above.set(ylim=(-0.03, 1.08), xlim=(-8, 8), ylabel="probability", yticks=[0, 0.5, 1])
    above.tick_params(labelbottom=False)
    below = figure.add_subplot(cells[1])
    below.axhline(0, color=MUTED, lw=0.8)
    below.plot(gap.a, difference, color=INK, lw=1.8)
    below.fill_between(gap.a, difference, color=FAINT, lw=0)
    below.set(xlim=(-8, 8), ylim=(-0.026, 0.026), xlabel="activation a", ylabel="σ(a) − Φ(λa)", yticks=[-0.02, 0, 0.02])
    below.plot(gap.a[[worst, -1 - worst]], difference[[worst, -1 - worst]], "o", color=INK, ms=4)
    place = f"{difference[worst]:+.4f} at a = {gap.a[worst]:.2f}".replace("-", "−")
    canvas.label(below, gap.a[worst] + 0.15, difference[worst] + 0.0035, place)
    return figure


KAPPA = Picture(
    "kappa-against-quadrature",
    "MacKay's κ against quadrature",
    "The closed form σ(κμ) is a good class probability: its error against quadrature is largest for wide latents, "
    "where it tends to the gap between σ(a) and Φ(λa), and it errs on the cautious side there.",
    "MacKay (1992), The evidence framework applied to classification networks",
    draw_kappa,
)
SIGMOID = Picture(
    "sigmoid-against-probit",
    "σ(a) against Φ(λa), λ² = π/8",
    "The logistic sigmoid and the normal distribution function scaled to the same slope at 0 hardly differ, except "
    "in their tails, which are e⁻ᵃ against exp(−λ²a²/2).",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 4.9",
    draw_sigmoid,
)
