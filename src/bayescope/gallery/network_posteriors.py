"""Many posteriors of one network: on two moons and on a curve with a gap, each with its distance to NUTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from bayescope.dropout.mc_dropout import mc_dropout
from bayescope.ensembles.ensemble import ensemble
from bayescope.gallery import networks
from bayescope.gallery.linear_models import Scene, distance, probability_colours
from bayescope.gallery.page import Canvas, Picture
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Gaussian, Likelihood, LikelihoodName
from bayescope.plots import marks
from bayescope.plots.style import COLOURS, INK, LABELS, MUTED
from bayescope.posterior import Posterior
from bayescope.sampling.nuts import nuts
from bayescope.sampling.sgmcmc import sgmcmc
from bayescope.sampling.swag import swag
from bayescope.training.fit_map import fit_map
from bayescope.variational.variational import variational

MEMBERS = 10
COSINE: dict[str, Any] = {"lr": 0.01, "schedule": "cosine"}
# By the posterior's name, the options of its function; the trees of NUTS need no more than 63 steps here.
Options = Mapping[str, Mapping[str, Any]]


class NetworkProblem(NamedTuple):
    """A network, its data and its prior, and how each posterior of it is computed.

    Attributes:
        widths: of the network's layers, with tanh between them.
        data: inputs and targets.
        likelihood: with its noise, where it has one.
        prior_precision: of all weights.
        options: by the posterior's name; the posteriors are shown in this order.
    """

    widths: tuple[int, ...]
    data: tuple[Tensor, Tensor] | tuple[np.ndarray, np.ndarray]
    likelihood: LikelihoodName | Likelihood
    prior_precision: float
    options: Options

    def network(self, seed: int = 0) -> nn.Sequential:
        """The network with its initial weights."""
        return networks.mlp(*self.widths, seed=seed)

    def fit(self, name: str, **changed: Any) -> Posterior:
        """A posterior by its name; all start from the same initial weights and have the same prior."""
        model, data = self.network(), self.data
        common: dict[str, Any] = {"likelihood": self.likelihood, "prior_precision": self.prior_precision}
        options = {"generator": 0, "progress": False, **common, **self.options[name], **changed}
        match name:
            case "mc_dropout":
                return mc_dropout(model, data, before="hidden", **options)
            case "ensemble":
                return ensemble([self.network(seed) for seed in range(MEMBERS)], data, **options)
            case "sgmcmc":
                return sgmcmc(model, data, **options)
            case "nuts":
                return nuts(model, data, **options)
        mode = fit_map(model, data, optimizer="lbfgs", progress=False, **common)
        match name:
            case "laplace":
                return laplace(mode.model, data, structure="full", **common)
            case "mean_field" | "variational":
                return variational(mode.model, data, **options)
            case "swag":
                return swag(mode.model, data, **options)
        return mode


# Two moons -----------------------------------------------------------------------------------------------------------
DROPOUT = 0.1
DRAWS = 300
SPAN = ((-3.2, 4.2), (-3.0, 3.5))


def moons(rows: int = 80) -> tuple[Scene, NetworkProblem]:
    """Points on two interleaved half circles with noise, and a network for them."""
    X, y = make_moons(rows, noise=0.15, random_state=2)
    options: Options = {
        "map": {},
        "laplace": {},
        "mean_field": {"epochs": 1000, "samples": 2, "initial_sd": "laplace", **COSINE},
        "mc_dropout": {"rate": DROPOUT, "epochs": 2000, **COSINE},
        "ensemble": {"epochs": 1500, **COSINE},
        "swag": {"epochs": 200, "burn_in": 50, "lr": 0.05, "batch_size": 16},
        "nuts": {"draws": DRAWS, "tune": 200, "max_depth": 6},
    }
    return Scene("two moons", X, y, None, 0.2, SPAN), NetworkProblem((2, 20, 1), (X, y), "bernoulli", 0.2, options)


def probabilities(q: Posterior, span: marks.Span = SPAN, size: int = 72) -> np.ndarray:
    """p(red) on a size × size grid over the part of the plane that is shown."""
    return np.asarray(q.predict(marks.lattice(span, size), generator=0).probs)[:, 1].reshape(size, size)


def draw_moons(found: Mapping[str, np.ndarray] | None = None) -> Figure:
    """Seven surfaces, and in the eighth place how far each is from NUTS; without an argument they are computed."""
    scene, problem = moons()
    found = {name: probabilities(problem.fit(name)) for name in problem.options} if found is None else found
    page = Canvas(
        5.4,
        "Where no data are, Laplace and VI come nearest to NUTS; dropout, the ensemble and SWAG stay as sure as MAP",
        f"Probability of the red class by a {'-'.join(map(str, problem.widths))} tanh network (prior precision "
        f"{problem.prior_precision:g}) on {len(scene.X)} rows: an ensemble of {MEMBERS}, dropout of {DROPOUT:.0%}, "
        f"NUTS of 4 × {DRAWS} draws. Lines: ½ (solid), 0.1 and 0.9 (dashed). TV: mean total-variation distance to NUTS "
        "over the panel.",
    )
    headings = [*((LABELS[name], COLOURS[name]) for name in found), ("TV to NUTS", INK)]
    panels = page.panels(2, 4, headings, below=0.5, gap=(0.12, 0.45), left=0.3, right=0.95, bottom=0.3)
    away = {name: distance(p, found["nuts"]) for name, p in found.items() if name != "nuts"}
    for axes, (name, p) in zip(panels, found.items(), strict=False):
        scene.draw(axes, p)
        if name in away:
            marks.corner(axes, f"TV {away[name]:.3f}", x=0.97, y=0.97, fontsize=8.5)
    _draw_ranking(panels[-1], away)
    probability_colours(page.figure)
    return page.figure


def _draw_ranking(axes: Axes, away: Mapping[str, float]) -> None:
    """The distances as bars, the nearest first."""
    longest = max(away.values())
    for place, name in enumerate(sorted(away, key=lambda name: away[name])):
        axes.barh(-place, away[name], height=0.16, color=COLOURS[name])
        axes.text(0, 0.33 - place, LABELS[name], fontsize=8.5, va="center", color=COLOURS[name])
        axes.text(away[name] + 0.03 * longest, -place, f"{away[name]:.3f}", fontsize=8, va="center", color=MUTED)
    axes.set(xlim=(0, 1.3 * longest), ylim=(0.6 - len(away), 0.6))
    marks.bare(axes)


# A curve with a gap --------------------------------------------------------------------------------------------------
NOISE_SD = 0.4
END = 6.0
# How often those are drawn from that can be drawn from at will.
SAMPLES = {"mean_field": 1000, "variational": 1000, "mc_dropout": 1000, "swag": 1000}
X = np.linspace(-END, END, 57)[:, None]
Y = np.linspace(-12.0, 12.0, 241)
NUTS_BAND: dict[str, Any] = {"color": INK, "lw": 0.8, "ls": (0, (3, 2))}
TRUTH: dict[str, Any] = {"color": MUTED, "lw": 0.9, "ls": ":"}


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


def curve(rows: int = 30, seed: int = 0) -> NetworkProblem:
    """The curve with noise on [−4, −1] and [1, 4], and a network that knows the noise."""
    source = torch.Generator().manual_seed(seed)
    away = 1.0 + 3.0 * torch.rand(rows, 1, dtype=networks.DOUBLE, generator=source)
    x = torch.where(torch.arange(rows)[:, None] % 2 == 0, away, -away)
    y = truth(x) + NOISE_SD * torch.randn(rows, 1, dtype=networks.DOUBLE, generator=source)
    options: Options = {
        "map": {},
        "laplace": {},
        "nuts": {"draws": 300, "tune": 250, "max_depth": 6, "target_accept": 0.9},
        "mean_field": {"family": "mean_field", "epochs": 1500, "samples": 4, **COSINE},
        "variational": {"family": "full", "epochs": 1500, "samples": 4, **COSINE},
        "sgmcmc": {"draws": 100, "burn_in": 500, "thin": 20, "chains": 4, "start": "prior"},
        "mc_dropout": {"rate": 0.05, "epochs": 2000, **COSINE},
        "ensemble": {"epochs": 1500, **COSINE},
        "swag": {"epochs": 400, "burn_in": 100, "lr": 0.02, "batch_size": 10},
    }
    return NetworkProblem((1, 16, 1), (x, y), Gaussian(NOISE_SD**2), 1.0, options)


def band(q: Posterior, samples: int | None = None) -> Band:
    """The predictions of a posterior along the axis."""
    predictive = q.predict(X, samples=samples, generator=0)
    density = np.stack([np.exp(predictive.log_prob(np.full_like(X, y))) for y in Y])
    parts = (predictive.mean, predictive.epistemic**0.5, *predictive.interval(0.95))
    mean, sd, low, high = (np.asarray(part)[:, 0] for part in parts)
    return Band(mean, sd, low, high, density)


def band_distance(one: Band, other: Band) -> float:
    """The total variation ½ ∫ ∣p(y∣x) − r(y∣x)∣ dy of two predictives, its mean over the axis."""
    step = float(Y[1] - Y[0])
    return float(0.5 * step * np.abs(one.density - other.density).sum(0).mean())


def draw_sine(found: Mapping[str, Band] | None = None) -> Figure:
    """A panel a posterior; without an argument they are computed."""
    problem = curve()
    if found is None:
        found = {name: band(problem.fit(name), SAMPLES.get(name)) for name in problem.options}
    weights = sum(parameter.numel() for parameter in problem.network().parameters())
    page = Canvas(
        8.3,
        "Away from the data NUTS and SG-MCMC are the widest, Laplace less so",
        f"y = sin x + x with noise {NOISE_SD} on {len(problem.data[0])} rows, fitted by a 1-{problem.widths[1]}-1 tanh "
        f"network ({weights} weights, prior precision {problem.prior_precision:g}, the noise known). TV: "
        "total-variation distance of p(y∣x) to that of NUTS, its mean over the panel.",
    )
    grey: dict[str, Any] = {"color": MUTED, "lw": 0}
    page.key(
        [
            Patch(**grey, alpha=0.6, label="f, mean ± 1.96 sd"),
            Patch(**grey, alpha=0.2, label="y, central 95 %"),
            Line2D([], [], **NUTS_BAND, label="f under NUTS, mean ± 1.96 sd"),
            Line2D([], [], **TRUTH, label="the true curve"),
        ]
    )
    headings = [(LABELS[name], COLOURS[name]) for name in found]
    panels = page.panels(3, 3, headings, gap=(0.25, 0.42), left=0.65)
    x, reference = X[:, 0], found["nuts"]
    for place, (axes, (name, one)) in enumerate(zip(panels, found.items(), strict=True)):
        colour = COLOURS[name]
        marks.band(axes, x, one.low, one.high, colour, alpha=0.15)
        marks.band(axes, x, one.mean - 1.96 * one.sd, one.mean + 1.96 * one.sd, colour, alpha=0.35)
        axes.plot(x, one.mean, color=colour, lw=1.6)
        if one is not reference:
            for end in (-1.96, 1.96):
                axes.plot(x, reference.mean + end * reference.sd, **NUTS_BAND)
            marks.corner(axes, f"TV {band_distance(one, reference):.3f}", fontsize=8.5)
        axes.plot(X, truth(torch.as_tensor(X)), **TRUTH)
        axes.plot(*problem.data, "o", color=INK, ms=2.2)
        axes.set(xlim=(-END, END), ylim=(-6.5, 6.5), xticks=[-4, -1, 1, 4], yticks=[-6, -3, 0, 3, 6])
        axes.tick_params(labelbottom=place // 3 == 2, labelleft=place % 3 == 0)
        axes.set(xlabel="x" if place // 3 == 2 else "", ylabel="y" if place % 3 == 0 else "")
    return page.figure


MOONS = Picture(
    "network-moons",
    "Seven posteriors of one network",
    "MAP is sure wherever it extrapolates, and so are averages over weights that all stand for the same function; "
    "linearised Laplace and mean-field VI open up where no data are, and come nearer to the exact answer by NUTS.",
    "Wilson & Izmailov (2020), Bayesian deep learning and a probabilistic perspective of generalization; Izmailov et "
    "al. (2021), What are Bayesian neural network posteriors really like?",
    draw_moons,
)
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
