"""Linear models in fixed features: posteriors of one classifier, the borders that it may draw, and its evidence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast, final

import numpy as np
from contourpy import contour_generator
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

from bayescope.errors import BayescopeWarning
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, RadialBasis
from bayescope.estimators.linear_posteriors import SAMPLERS
from bayescope.gallery.page import Canvas, Picture
from bayescope.plots import marks
from bayescope.plots.style import COLOURS, INK, LABELS, MUTED, probability_scale
from bayescope.posterior import GaussianPosterior

BLUE, BAYES = COLOURS["laplace"], COLOURS["variational"]
FLAT: dict[str, Any] = {"standardize": False, "intercept_prior_precision": 1e-4}


# Surfaces of four posteriors -----------------------------------------------------------------------------------------
POSTERIORS = ("map", "laplace", "variational", "nuts")


class Scene(NamedTuple):
    """A table of two features, the model for it, and the part of the plane that is shown.

    Attributes:
        title: what the rows look like and which features the model has.
        X: shape (N, 2).
        y: labels 0/1.
        features: of the estimator.
        prior_precision: of the weights.
        span: (low, high) of the first and of the second coordinate.
    """

    title: str
    X: np.ndarray
    y: np.ndarray
    features: RadialBasis | None
    prior_precision: float
    span: marks.Span

    def draw(self, axes: Axes, p: np.ndarray) -> None:
        """p(y = 1) over the plane, shape (size, size), with the rows."""
        marks.probability_map(axes, self.span, p)
        marks.rows(axes, self.X, self.y)
        marks.bare(axes)


def moons() -> Scene:
    """Two interleaved half circles, with radial basis functions as features."""
    X, y = make_moons(80, noise=0.15, random_state=2)
    return Scene("Two moons, 30 bumps", X, y, RadialBasis(centres=30, width=0.6), 0.1, ((-2.4, 3.4), (-2.2, 2.8)))


def blobs() -> Scene:
    """Two overlapping Gaussians with the features unchanged."""
    source = np.random.default_rng(5)
    X = source.standard_normal((20, 2)) + np.repeat([[-0.8, -0.5], [0.8, 0.5]], 10, axis=0)
    return Scene("Overlapping blobs, linear", X, np.repeat([0, 1], 10), None, 0.1, ((-9, 9), (-8, 8)))


def surfaces(
    scene: Scene, *, size: int = 72, draws: int = 800, posteriors: Sequence[str] = POSTERIORS
) -> dict[str, np.ndarray]:
    """p(y = 1) by each posterior on a size × size grid; NUTS runs two chains of the given number of draws."""
    found = {}
    for name in posteriors:
        chains = {"draws": draws, "tune": 500, "chains": 2} if name in SAMPLERS else {}
        model: BayesianLogisticRegression = BayesianLogisticRegression(
            features=scene.features, prior_precision=scene.prior_precision, random_state=0
        ).set_params(posterior=name, **FLAT, **chains)
        with warnings.catch_warnings():  # of Laplace, whose distance from NUTS is what the picture shows
            warnings.simplefilter("ignore", BayescopeWarning)
            model.fit(scene.X, scene.y)
        found[name] = model.predict_proba(marks.lattice(scene.span, size))[:, 1].reshape(size, size)
    return found


def distance(p: np.ndarray, reference: np.ndarray) -> float:
    """The mean total variation ½ Σ_c |p_c − r_c| of two predictives over a grid: for two classes, |p − r|."""
    return float(np.abs(p - reference).mean())


def probability_colours(figure: Figure) -> None:
    """The colour scale of p(red) on the right of the page."""
    marks.colour_scale(figure, (0.895, 0.2, 0.014, 0.5), probability_scale(), "p(red)", [0, *marks.LEVELS, 1])


def draw_surfaces(scenes: Sequence[tuple[Scene, dict[str, np.ndarray]]] | None = None) -> Figure:
    """Two rows of scenes, four columns of posteriors, one colour scale; without an argument they are computed."""
    scenes = [(scene, surfaces(scene)) for scene in (moons(), blobs())] if scenes is None else scenes
    page = Canvas(
        5.2,
        "Away from the data MAP stays sure; averages over the weights do not",
        "Probability of the red class by four posteriors of the same logistic model. Lines: ½ (solid), 0.1 and "
        "0.9 (dashed). TV: mean total-variation distance to NUTS over the panel.",
    )
    headings = [(LABELS[name], COLOURS[name]) for name in POSTERIORS]
    panels = page.panels(2, 4, headings, below=0.5, gap=(0.12, 0.2), left=0.45, right=0.95, bottom=0.3)
    maps = [(scene, found, name) for scene, found in scenes for name in POSTERIORS]
    for axes, (scene, found, name) in zip(panels, maps, strict=True):
        scene.draw(axes, found[name])
        if name == POSTERIORS[0]:
            axes.set_ylabel(scene.title, color=MUTED, fontsize=9)
        if name != "nuts":
            marks.corner(axes, f"TV {distance(found[name], found['nuts']):.3f}", x=0.97, y=0.97, fontsize=8.5)
    probability_colours(page.figure)
    return page.figure


# Borders of one classifier -------------------------------------------------------------------------------------------
SPAN = ((-2.0, 3.0), (-1.6, 2.1))


@final
@dataclass(frozen=True)
class Borders:
    """Logistic regression on two moons with radial basis functions on a lattice, and where it draws its border.

    Attributes:
        across: basis functions along each coordinate.
        size: points of the grid along each coordinate.
        samples: functions drawn from the posterior.
    """

    across: int = 8
    size: int = 100
    samples: int = 100

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Two moons that a curved border separates."""
        X, y = make_moons(50, noise=0.08, random_state=1)
        return X, y

    def bumps(self, X: np.ndarray) -> np.ndarray:
        """Gaussian bumps of width 0.7 on the lattice, shape (N, across²)."""
        centres = marks.lattice(SPAN, self.across)
        return np.exp(-0.5 * ((X[:, None] - centres) ** 2).sum(-1) / 0.7**2)

    @cached_property
    def models(self) -> dict[str, BayesianLogisticRegression]:
        """The point estimate, and the Gaussian with full covariance that is closest to the posterior."""
        X, y = self.data
        template = BayesianLogisticRegression(prior_precision=0.01).set_params(**FLAT).get_params()
        return {
            name: BayesianLogisticRegression(**template | {"posterior": name}).fit(self.bumps(X), y)
            for name in ("map", "variational")
        }

    @property
    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """The two coordinates of the grid."""
        first, second = (np.linspace(*ends, self.size) for ends in SPAN)
        return first, second

    @cached_property
    def surfaces(self) -> dict[str, np.ndarray]:
        """p(red) by each model, shape (size, size)."""
        basis = self.bumps(marks.lattice(SPAN, self.size))
        return {
            name: model.predict_proba(basis)[:, 1].reshape(self.size, self.size) for name, model in self.models.items()
        }

    @cached_property
    def separating(self) -> np.ndarray:
        """The sampled functions that classify every row correctly, shape (S, size, size)."""
        X, y = self.data
        f = self.functions(self.bumps(np.concatenate([X, marks.lattice(SPAN, self.size)])), self.samples)
        right = ((f[:, : len(y)] > 0) == y).all(1)
        return f[right, len(y) :].reshape(-1, self.size, self.size)

    def border(self, name: str) -> np.ndarray:
        """The longest stretch of the line p(red) = ½ under a model, shape (M, 2)."""
        lines = cast(list[np.ndarray], contour_generator(*self.grid, self.surfaces[name]).lines(0.5))
        return max(lines, key=len)

    @cached_property
    def uncertain(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The border under the posterior, its arc length, and how far the border may move across itself.

        Returns:
            Points (M, 2), their arc lengths (M,), and sd(f)/∣∇E[f]∣ at them, the sd of the displacement to first
            order, shape (M,).
        """
        path = self.border("variational")
        length = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
        step = 1e-4
        moved = [self.latent(path + step * np.array(way))[0] for way in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        slope = np.hypot(moved[0] - moved[1], moved[2] - moved[3]) / (2 * step)
        return path, length, self.latent(path)[1] / slope

    def latent(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of f under the posterior, each of shape (N,)."""
        predictive = self.models["variational"].predict_distribution(self.bumps(X))
        return np.asarray(predictive.latent_mean)[:, 0], np.sqrt(np.asarray(predictive.latent_cov)[:, 0, 0])

    def functions(self, basis: np.ndarray, count: int) -> np.ndarray:
        """f of posterior samples at rows of basis functions, joint over the rows, shape (count, N)."""
        posterior = cast(GaussianPosterior, self.models["variational"].posterior_)
        return posterior.sample_functions(basis, count, generator=1)[..., 0].numpy()


def draw_borders(borders: Borders | None = None) -> Figure:
    """MAP's border and the sampled ones over their surfaces; below, how far the border may move along its length."""
    borders = borders or Borders()
    page = Canvas(
        6.3,
        "MAP draws one border; the posterior knows where others could run",
        f"Logistic regression on two moons with {borders.across**2} radial basis functions. Right: VI with "
        f"full covariance; of {borders.samples} functions sampled from it {len(borders.separating)} separate "
        "the rows, and their borders are drawn over p(red).",
    )
    headings = [("MAP", COLOURS["map"]), ("Bayes", BAYES)]
    panels = page.panels(1, 2, headings, gap=(0.25, 0), left=0.4, bottom=2.3)
    for axes, name in zip(panels, borders.models, strict=True):
        marks.field(axes, SPAN, borders.surfaces[name], probability_scale())
        axes.plot(*borders.border(name).T, color=INK, lw=1.8, zorder=5)
        marks.rows(axes, *borders.data)
        marks.bare(axes)
    for f in borders.separating:
        panels[1].contour(*borders.grid, f, levels=[0], colors=BAYES, linewidths=0.6, alpha=0.5)
    path, length, sd = borders.uncertain
    for whole in range(1, int(length[-1]) + 1):  # by these marks the panel below is read
        x, y = path[np.searchsorted(length, whole)]
        panels[1].plot(x, y, "o", ms=11, color="white", markeredgecolor=INK, zorder=6)
        panels[1].text(x, y, str(whole), ha="center", va="center_baseline", fontsize=7.5, zorder=7)
    [along] = page.panels(
        1, 1, ["How far the Bayesian border may move: ±2 sd(f)/∣∇f∣ across it"], below=3.72, left=0.75
    )
    marks.band(along, length, -2 * sd, 2 * sd, BAYES, alpha=0.25)
    along.axhline(0, color=INK, lw=1.8)
    along.set(xlim=(0, length[-1]), ylim=(-1, 1), ylabel="distance in the plane")
    along.set_xlabel("arc length along the border (marked above)")
    tightest = int(sd.argmin())
    text = f"between the moons ±{2 * sd[tightest]:.2f}"
    marks.label(along, length[tightest], 0.3, text, BAYES, ha="center")
    for end, side in ((0.05, "left"), (length[-1] - 0.05, "right")):
        marks.label(along, end, 0.1, "beyond the data", BAYES, ha=side)
    return page.figure


# The evidence over the number of basis functions ---------------------------------------------------------------------
NOISE_SD = 0.25
ROWS = 40
SIZES = tuple(range(2, 31))


def truth(x: np.ndarray) -> np.ndarray:
    """The curve without its noise."""
    return np.sin(2.2 * np.pi * x) + 0.5 * x


def curve_rows(seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x and y of 40 rows at random places with noise, and x and y of 400 evenly spaced test rows."""
    source = np.random.default_rng(seed)
    x = source.uniform(-1, 1, ROWS)
    test_x = np.linspace(-1, 1, 400)
    noise = NOISE_SD * source.standard_normal(ROWS + len(test_x))
    return x, truth(x) + noise[:ROWS], test_x, truth(test_x) + noise[ROWS:]


def bumps(x: np.ndarray, size: int) -> np.ndarray:
    """Evenly spaced Gaussian bumps on [−1, 1], as wide as they are apart, shape (N, size)."""
    centres, step = np.linspace(-1, 1, size, retstep=True)
    return np.exp(-0.5 * ((x[:, None] - centres) / step) ** 2)


def fit_bumps(size: int) -> BayesianLinearRegression:
    """The exact posterior: weights N(0, 1), the noise known."""
    x, y, _, _ = curve_rows()
    return BayesianLinearRegression(prior_precision=1.0, noise_variance=NOISE_SD**2, **FLAT).fit(bumps(x, size), y)


def evidence_and_loss(sizes: Sequence[int] = SIZES) -> tuple[np.ndarray, np.ndarray]:
    """The log evidence and the NLL per test row for each number of basis functions."""
    _, _, x, y = curve_rows()
    models = {size: fit_bumps(size) for size in sizes}
    losses = [-m.predict_distribution(bumps(x, size)).log_prob(y).mean() for size, m in models.items()]
    return np.array([model.log_evidence_ for model in models.values()]), np.array(losses)


def draw_evidence() -> Figure:
    """Three fits above; the log evidence and the test loss over the number of basis functions below."""
    log_evidence, loss = evidence_and_loss()
    best = SIZES[int(log_evidence.argmax())]
    page = Canvas(
        6.2,
        f"The evidence picks {best} basis functions, and test data agree",
        f"Bayesian linear regression on {ROWS} rows with K Gaussian bumps and fixed N(0, 1) weights. Too few cannot "
        "follow the curve; too many could follow any curve, which costs evidence: no test data are needed to see it.",
    )
    sizes = (5, best, SIZES[-1])
    above = page.panels(1, 3, [f"K = {size}" for size in sizes], bottom=3.0, gap=(0.25, 0), left=0.7)
    for axes, size in zip(above, sizes, strict=True):
        _draw_fit(axes, size)
        axes.tick_params(labelleft=size == sizes[0])
    text = "dashed: the truth\nblue: E[f], 95 % of f"
    marks.label(above[0], -0.02, 1.75, text, MUTED, ha="center", va="center")
    headings = ["Log evidence, from the 40 rows alone", "NLL of 400 test rows"]
    left, right = page.panels(1, 2, headings, below=3.0, gap=(0.8, 0), left=0.7)
    left.set_ylabel("nats, sum over the rows")
    right.set_ylabel("nats per test row")
    _draw_by_size(left, log_evidence, int(log_evidence.argmax()), -30)
    _draw_by_size(right, loss, int(loss.argmin()), 14)
    left.set_ylim(log_evidence.max() - 45, log_evidence.max() + 5)
    right.set_ylim(loss.min() - 0.05, loss.min() + 0.6)
    return page.figure


def _draw_fit(axes: Axes, size: int) -> None:
    x = np.linspace(-1, 1, 300)
    predictive = fit_bumps(size).predict_distribution(bumps(x, size))
    parts = (*predictive.interval(0.95, of="mean"), predictive.mean)
    low, high, mean = (np.asarray(part)[:, 0] for part in parts)
    marks.band(axes, x, low, high, BLUE, mean=mean)
    axes.plot(x, truth(x), color=MUTED, lw=1, ls=(0, (4, 2)))
    axes.plot(*curve_rows()[:2], "o", color=INK, ms=2.6)
    axes.set(xlim=(-1, 1), ylim=(-2.3, 2.3), xticks=[-1, 0, 1], yticks=[-2, 0, 2])


def _draw_by_size(axes: Axes, values: np.ndarray, best: int, offset: float) -> None:
    axes.plot(SIZES, values, "-o", color=BLUE, ms=3.5, lw=1.4)
    axes.axvline(SIZES[best], color=MUTED, lw=0.8, ls=":")
    at = (SIZES[best], values[best])
    axes.plot(*at, "o", color=BLUE, ms=8)
    look: dict[str, Any] = {"textcoords": "offset points", "color": BLUE, "weight": "bold", "fontsize": 9}
    axes.annotate(f"K = {SIZES[best]}", at, (8, offset), **look)
    axes.set(xlabel="number of basis functions K", xlim=(1, 31))


SURFACES = Picture(
    "predictive-surfaces",
    "MAP, Laplace, VI and NUTS surfaces",
    "A point estimate is sure of itself wherever it extrapolates; Laplace, VI and NUTS average over the weights and "
    "move towards ½ away from the data, and Laplace and VI come close to NUTS.",
    "MacKay (1992), The evidence framework applied to classification networks; Bishop (2006), section 4.5",
    draw_surfaces,
)
BORDERS = Picture(
    "many-borders",
    "Many separating borders",
    "With many basis functions many borders separate the same data; MAP shows one of them and is as sure of it "
    "far from the data as among them, while the posterior's borders part where there are no data.",
    "Bishop (2006), Pattern Recognition and Machine Learning, section 4.5; Murphy (2022), Probabilistic "
    "Machine Learning, section 10.5",
    draw_borders,
)
EVIDENCE = Picture(
    "evidence-over-basis-functions",
    "The evidence over the number of basis functions",
    "The evidence rewards a model for explaining the data and charges it for all the data it could have "
    "explained instead, so that it is highest for about as many basis functions as predict new data best.",
    "Bishop (2006), Pattern Recognition and Machine Learning, figure 3.14; MacKay (1992), Bayesian interpolation",
    draw_evidence,
)
