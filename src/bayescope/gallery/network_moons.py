"""Seven posteriors of one network on two moons, each with its distance to NUTS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from torch import nn

from bayescope.dropout.mc_dropout import mc_dropout
from bayescope.ensembles.ensemble import ensemble
from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.gallery.surfaces import Scene, colour_bar, surface
from bayescope.laplace.laplace import laplace
from bayescope.plots.style import COLOURS, INK, LABELS, MUTED
from bayescope.posterior import Posterior
from bayescope.sampling.nuts import nuts
from bayescope.sampling.swag import swag
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

HIDDEN = (20,)
PRIOR_PRECISION = 0.2
MEMBERS = 10
DROPOUT = 0.1
SPAN = ((-3.2, 4.2), (-3.0, 3.5))
# Draws of each of four chains, and of those that are dropped before; trees of 63 steps are enough for this network.
DRAWS, TUNE, DEPTH = 300, 200, 6

Fit = Callable[[nn.Module, tuple[np.ndarray, np.ndarray], Mapping[str, Any]], Posterior]


def moons(rows: int = 80) -> Scene:
    """Points on two interleaved half circles, with noise."""
    X, y = make_moons(rows, noise=0.15, random_state=2)
    return Scene("two moons", X, y, None, PRIOR_PRECISION, SPAN)


def network(seed: int = 0) -> nn.Sequential:
    """One hidden layer of tanh units and one output."""
    return networks.mlp(2, *HIDDEN, 1, seed=seed)


def _mode(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    return fit_map(model, data, optimizer="lbfgs", progress=False, **common)


def _laplace(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    return laplace(_mode(model, data, common).model, data, structure="full", **common)


def _mean_field(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    start = _mode(model, data, common).model
    return variational(
        start, data, epochs=1000, lr=0.01, samples=2, schedule="cosine", initial_sd="laplace", generator=0,
        progress=False, **common,
    )  # fmt: skip


def _mc_dropout(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    return mc_dropout(
        model, data, rate=DROPOUT, before="hidden", epochs=2000, lr=0.01, schedule="cosine", generator=0,
        progress=False, **common,
    )  # fmt: skip


def _ensemble(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    members = [model, *(network(seed) for seed in range(1, MEMBERS))]
    return ensemble(members, data, epochs=1500, lr=0.01, schedule="cosine", generator=0, progress=False, **common)


def _swag(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    start = _mode(model, data, common).model
    return swag(start, data, epochs=200, burn_in=50, lr=0.05, batch_size=16, generator=0, progress=False, **common)


def _nuts(model: nn.Module, data: Any, common: Mapping[str, Any]) -> Posterior:
    return nuts(model, data, draws=DRAWS, tune=TUNE, max_depth=DEPTH, generator=0, progress=False, **common)


FITS: dict[str, Fit] = {
    "map": _mode,
    "laplace": _laplace,
    "mean_field": _mean_field,
    "mc_dropout": _mc_dropout,
    "ensemble": _ensemble,
    "swag": _swag,
    "nuts": _nuts,
}


def fit(name: str, scene: Scene) -> Posterior:
    """A posterior of the network by its name, all of them from the same initial weights and under the same prior."""
    common = {"likelihood": "bernoulli", "prior_precision": scene.prior_precision}
    return FITS[name](network(), (scene.X, scene.y), common)


def probabilities(q: Posterior, scene: Scene, size: int = 72) -> np.ndarray:
    """p(red) on a size × size grid over the part of the plane that is shown."""
    x1, x2 = np.meshgrid(*(np.linspace(*span, size) for span in scene.span))
    at = np.column_stack([x1.ravel(), x2.ravel()])
    return np.asarray(q.predict(at, generator=0).probs)[:, 1].reshape(size, size)


def distance(p: np.ndarray, reference: np.ndarray) -> float:
    """The mean total variation ½ Σ_c |p_c − r_c| of two predictives over a grid: for two classes, |p − r|."""
    return float(np.abs(p - reference).mean())


def draw_moons(found: Mapping[str, np.ndarray] | None = None) -> Figure:
    """Seven surfaces, and in the eighth place how far each is from NUTS; without an argument they are computed."""
    scene = moons()
    found = {name: probabilities(fit(name, scene), scene) for name in FITS} if found is None else found
    widths = "-".join(map(str, (2, *HIDDEN, 1)))
    figure, top = canvas.page(
        5.4,
        "Where no data are, Laplace and VI come nearest to NUTS; dropout, the ensemble and SWAG stay as sure as MAP",
        f"Probability of the red class by a {widths} tanh network (prior precision {PRIOR_PRECISION:g}) on "
        f"{len(scene.X)} rows: an ensemble of {MEMBERS}, dropout of {DROPOUT:.0%}, NUTS of 4 × {DRAWS} draws. Lines: ½ "
        "(solid), 0.1 and 0.9 (dashed). TV: mean total-variation distance to NUTS over the panel.",
    )
    cells = canvas.grid(figure, 2, 4, top=top + 0.5, gap=(0.12, 0.45), left=0.3, right=0.95, bottom=0.3)
    away = {name: distance(p, found["nuts"]) for name, p in found.items() if name != "nuts"}
    for place, (name, p) in enumerate(found.items()):
        axes = figure.add_subplot(cells[place // 4, place % 4])
        surface(axes, scene, p)
        canvas.heading(axes, LABELS[name], COLOURS[name])
        if name in away:
            canvas.corner(axes, f"TV {away[name]:.3f}", x=0.97, y=0.97, fontsize=8.5)
    _ranking(figure.add_subplot(cells[1, 3]), away)
    colour_bar(figure, (0.895, 0.2, 0.014, 0.5))
    return figure


def _ranking(axes: Axes, away: Mapping[str, float]) -> None:
    """The distances as bars, the nearest first."""
    canvas.heading(axes, "TV to NUTS", INK)
    names = sorted(away, key=lambda name: away[name])
    longest = max(away.values())
    for place, name in enumerate(names):
        axes.barh(-place, away[name], height=0.16, color=COLOURS[name])
        axes.text(0, 0.33 - place, LABELS[name], fontsize=8.5, va="center", color=COLOURS[name])
        axes.text(away[name] + 0.03 * longest, -place, f"{away[name]:.3f}", fontsize=8, va="center", color=MUTED)
    axes.set(xlim=(0, 1.3 * longest), ylim=(0.6 - len(names), 0.6))
    canvas.bare(axes)


MOONS = Picture(
    "network-moons",
    "Seven posteriors of one network",
    "MAP is sure wherever it extrapolates, and so are averages over weights that all stand for the same function; "
    "linearised Laplace and mean-field VI open up where no data are, and come nearer to the exact answer by NUTS.",
    "Wilson & Izmailov (2020), Bayesian deep learning and a probabilistic perspective of generalization; Izmailov et "
    "al. (2021), What are Bayesian neural network posteriors really like?",
    draw_moons,
)
