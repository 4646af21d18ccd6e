"""Marginal posteriors of single weights, over the histogram of a reference's draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayescope.plots import style
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior, Posterior

DRAWS = 4000
BINS = 40
# A mean-field marginal can be many times as tall as the reference's: beyond this it leaves the panel through the top.
TALLEST = 3.0


def most_disputed(posteriors: Mapping[str, Posterior], reference: str, most: int = 12) -> list[int]:
    """The weights on which a posterior differs most from the reference, worst first.

    The difference in one weight is ∣μ − μ_ref∣/sd_ref + ∣log(sd/sd_ref)∣, its worst over the posteriors; a point
    counts by its place alone.

    Args:
        posteriors: by name, the reference among them.
        reference: its name.
        most: how many weights to return.
    """
    centre, spread = _moments(posteriors[reference])
    worst = np.zeros_like(centre)
    for posterior in posteriors.values():
        mean, sd = _moments(posterior)
        width = np.abs(np.log(np.where(sd > 0, sd, spread) / spread))
        worst = np.maximum(worst, np.abs(mean - centre) / spread + width)
    return np.argsort(-worst, kind="stable")[:most].tolist()


def marginals(
    posteriors: Mapping[str, Posterior],
    *,
    reference: str,
    names: Sequence[str],
    chosen: Sequence[int],
    units: str = "weight",
) -> Figure:
    """One panel a weight: the reference's draws as a histogram, Gaussians as their exact densities, points as lines.

    Args:
        posteriors: by name, the reference among them.
        reference: the posterior drawn as a histogram.
        names: of all P weights.
        chosen: the weights to draw, by index.
        units: what the x axes measure.
    """
    histogram = _draws(posteriors[reference])
    others = {name: posterior for name, posterior in posteriors.items() if name != reference}
    key: list[Patch | Line2D] = [Patch(color=style.FAINT, label=f"{style.label(reference)} draws")]
    key += [Line2D([], [], color=style.colour(n), ls=style.dash(n), label=style.label(n)) for n in others]
    with style.house():
        figure, axes = style.panels(
            len(chosen),
            width=2.6,
            height=1.95,
            key=key,
            title=f"Marginal posteriors over {style.label(reference)}",
            subtitle=f"Densities of {len(chosen)} of {len(names)} weights, those on which the posteriors differ most "
            f"from {style.label(reference)} first.",
        )
        for panel, index in zip(axes, chosen, strict=True):
            heights, _, _ = panel.hist(
                histogram[:, index], bins=BINS, range=_range(histogram[:, index]), density=True, color=style.FAINT
            )
            for name, posterior in others.items():
                _draw(posterior, panel, index, name)
            panel.set_ylim(0, min(panel.get_ylim()[1], TALLEST * float(np.max(heights))))
            panel.set_yticks([])
            panel.spines["left"].set_visible(False)
            panel.locator_params(axis="x", nbins=5)
            panel.set_title(style.shorten(names[index]))
        figure.supxlabel(units, fontsize=9.5)
    return figure


@singledispatch
def _draw(posterior: Posterior, panel: Axes, index: int, name: str) -> None:
    """Forms without a closed marginal: the outline of their draws' histogram."""
    values = _draws(posterior)[:, index]
    look = {"color": style.colour(name), "histtype": "step", "linewidth": 1.4}
    panel.hist(values, bins=BINS, range=_range(values), density=True, **look)  # type: ignore[arg-type]


@_draw.register
def _(posterior: GaussianPosterior, panel: Axes, index: int, name: str) -> None:
    if posterior.transform is not None:  # not a Gaussian in the user's coordinates
        _draw.dispatch(Posterior)(posterior, panel, index, name)
        return
    mean, sd = (float(moment[index]) for moment in _moments(posterior))
    x = np.linspace(mean - 4 * sd, mean + 4 * sd, 200)
    density = np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    panel.plot(x, density, color=style.colour(name), ls=style.dash(name))


@_draw.register
def _(posterior: PointPosterior, panel: Axes, index: int, name: str) -> None:
    panel.axvline(float(posterior.location[index]), color=style.colour(name), ls=style.dash(name), zorder=1.5)


@singledispatch
def _draws(posterior: Posterior) -> np.ndarray:
    return posterior.sample(DRAWS, generator=0).numpy()


@_draws.register
def _(posterior: DrawsPosterior) -> np.ndarray:
    return posterior.flat.numpy()


def _moments(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    return posterior.mean.numpy(), posterior.covariance.diagonal().sqrt().numpy()


def _range(values: np.ndarray) -> tuple[float, float]:
    """All but the farthest 1 in 1,000 draws: a single stray draw does not squeeze a panel."""
    low, high = np.quantile(values, [0.0005, 0.9995])
    return float(low), float(high)
