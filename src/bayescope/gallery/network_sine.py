"""A curve with a gap under nine posteriors of one network: how wide each is where there are no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayescope.dropout.mc_dropout import mc_dropout
from bayescope.ensembles.ensemble import ensemble
from bayescope.gallery import canvas, networks
from bayescope.gallery.picture import Picture
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Gaussian
from bayescope.plots.style import COLOURS, INK, LABELS, MUTED
from bayescope.posterior import Posterior
from bayescope.sampling.nuts import nuts
from bayescope.sampling.sgmcmc import sgmcmc
from bayescope.sampling.swag import swag
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

HIDDEN = 16
PRIOR_PRECISION = 1.0
NOISE_SD = 0.4
ROWS = 30
SPAN = 6.0
MEMBERS = 10
# How often those are drawn from that can be drawn from at will.
SAMPLES = {"mean_field": 1000, "variational": 1000, "mc_dropout": 1000, "swag": 1000}
X = np.linspace(-SPAN, SPAN, 57)[:, None]
Y = np.linspace(-12.0, 12.0, 241)

Data = tuple[Tensor, Tensor]
Fit = Callable[[nn.Module, Data, Mapping[str, Any]], Posterior]


class Band(NamedTuple):
    """What a posterior says at M points along the axis.

    Attributes:
        mean: of f, shape (M,).
        sd: of f, shape (M,).
        low: the lower end of the central 95 % of y, shape (M,).
        high: the upper end.
        density: p(y∣x) on a grid of y, shape (G, M).
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    density: np.ndarray


def truth(x: Tensor) -> Tensor:
    """The curve without its noise."""
    return torch.sin(x) + x


def curve(rows: int = ROWS, seed: int = 0) -> Data:
    """The curve with noise on [−4, −1] and [1, 4]."""
    source = torch.Generator().manual_seed(seed)
    away = 1.0 + 3.0 * torch.rand(rows, 1, dtype=networks.DOUBLE, generator=source)
    x = torch.where(torch.arange(rows)[:, None] % 2 == 0, away, -away)
    return x, truth(x) + NOISE_SD * torch.randn(rows, 1, dtype=networks.DOUBLE, generator=source)


def _mode(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    return fit_map(model, data, optimizer="lbfgs", **common)


def _laplace(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    return laplace(_mode(model, data, common).model, data, structure="full", **common)


def _variational(family: str) -> Fit:
    def fit(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
        start = _mode(model, data, common).model
        return variational(
            start, data, family=family, epochs=1500, lr=0.01, samples=4, schedule="cosine", generator=0, **common,
        )  # fmt: skip

    return fit


def _mc_dropout(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    return mc_dropout(
        model, data, rate=0.05, before="hidden", epochs=2000, lr=0.01, schedule="cosine", generator=0, **common
    )


def _ensemble(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    members = [model, *(networks.mlp(1, HIDDEN, 1, seed=seed) for seed in range(1, MEMBERS))]
    return ensemble(members, data, epochs=1500, lr=0.01, schedule="cosine", generator=0, **common)


def _swag(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    start = _mode(model, data, common).model
    return swag(start, data, epochs=400, burn_in=100, lr=0.02, batch_size=10, generator=0, **common)


def _sgmcmc(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    return sgmcmc(model, data, draws=100, burn_in=500, thin=20, chains=4, start="prior", generator=0, **common)


def _nuts(model: nn.Module, data: Data, common: Mapping[str, Any]) -> Posterior:
    # Trees of 63 steps are enough for this network.
    return nuts(model, data, draws=300, tune=250, max_depth=6, target_accept=0.9, generator=0, **common)


FITS: dict[str, Fit] = {
    "map": _mode,
    "laplace": _laplace,
    "nuts": _nuts,
    "mean_field": _variational("mean_field"),
    "variational": _variational("full"),
    "sgmcmc": _sgmcmc,
    "mc_dropout": _mc_dropout,
    "ensemble": _ensemble,
    "swag": _swag,
}


def fit(name: str, data: Data) -> Posterior:
    """A posterior of the network by its name, all of them under the same prior and the noise that the data have."""
    common = {"likelihood": Gaussian(NOISE_SD**2), "prior_precision": PRIOR_PRECISION}
    quiet = {} if name == "laplace" else {"progress": False}
    return FITS[name](networks.mlp(1, HIDDEN, 1), data, common | quiet)


def band(q: Posterior, samples: int | None = None) -> Band:
    """The predictions of a posterior along the axis."""
    predictive = q.predict(X, samples=samples, generator=0)
    mean, variance, (low, high) = predictive.mean, predictive.epistemic, predictive.interval(0.95)
    density = np.stack([np.exp(predictive.log_prob(np.full_like(X, y))) for y in Y])
    mean, sd, low, high = (np.asarray(each)[:, 0] for each in (mean, variance**0.5, low, high))
    return Band(mean, sd, low, high, density)


def distance(one: Band, other: Band) -> float:
    """The total variation ½ ∫ ∣p(y∣x) − r(y∣x)∣ dy of two predictives, its mean over the axis."""
    step = float(Y[1] - Y[0])
    return float(0.5 * step * np.abs(one.density - other.density).sum(0).mean())


def draw_sine(found: Mapping[str, Band] | None = None) -> Figure:
    """A panel a posterior; without an argument they are computed."""
    data = curve()
    found = {name: band(fit(name, data), SAMPLES.get(name)) for name in FITS} if found is None else found
    weights = sum(parameter.numel() for parameter in networks.mlp(1, HIDDEN, 1).parameters())
    figure, top = canvas.page(
        7.9,
        "Away from the data only sampling is as wide as the posterior",
        f"y = sin x + x with noise {NOISE_SD} on {ROWS} rows, seen by a 1-{HIDDEN}-1 tanh network ({weights} weights, "
        f"prior precision {PRIOR_PRECISION:g}, the noise known). Dark: f, mean ± 1.96 sd. Light: central 95 % of y. "
        "Dashed: the ends of the dark band of NUTS. Dotted: the curve. TV: total-variation distance of p(y∣x) to that "
        "of NUTS, its mean over the panel.",
    )
    cells = canvas.grid(figure, 3, 3, top=top + 0.45, gap=(0.25, 0.42), left=0.5, bottom=0.45)
    for place, (name, shown) in enumerate(found.items()):
        axes = figure.add_subplot(cells[place // 3, place % 3])
        _panel(axes, name, shown, found["nuts"], data)
        axes.tick_params(labelbottom=place // 3 == 2, labelleft=place % 3 == 0)
    return figure


def _panel(axes: Axes, name: str, shown: Band, reference: Band, data: Data) -> None:
    x, colour = X[:, 0], COLOURS[name]
    canvas.heading(axes, LABELS[name], colour)
    axes.fill_between(x, shown.low, shown.high, color=colour, alpha=0.15, lw=0)
    axes.fill_between(x, shown.mean - 1.96 * shown.sd, shown.mean + 1.96 * shown.sd, color=colour, alpha=0.35, lw=0)
    axes.plot(x, shown.mean, color=colour, lw=1.6)
    if shown is not reference:
        for end in (-1.96, 1.96):
            axes.plot(x, reference.mean + end * reference.sd, color=INK, lw=0.8, ls=(0, (3, 2)))
        canvas.corner(axes, f"TV {distance(shown, reference):.3f}", fontsize=8.5)
    axes.plot(X, truth(torch.as_tensor(X)), color=MUTED, lw=0.9, ls=":")
    axes.plot(*data, "o", color=INK, ms=2.2)
    axes.set(xlim=(-SPAN, SPAN), ylim=(-6.5, 6.5), xticks=[-4, -1, 1, 4], yticks=[-6, -3, 0, 3, 6])


SINE = Picture(
    "network-sine",
    "A curve with a gap under nine posteriors",
    "Where there are no data NUTS and SG-MCMC are wide and Laplace less so; a Gaussian over the weights fitted to the "
    "network itself is nearly as wide on the data as off them, and dropout, ensembles and SWAG draw networks that were "
    "all trained to the same end.",
    "Blundell, Cornebise, Kavukcuoglu & Wierstra (2015), Weight uncertainty in neural networks; Gal & Ghahramani "
    "(2016), Dropout as a Bayesian approximation",
    draw_sine,
)
