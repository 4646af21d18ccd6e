"""Predictive surfaces of four posteriors of one model, on two moons and on overlapping blobs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

from bayescope.errors import BayescopeWarning
from bayescope.estimators import BayesianLogisticRegression, RadialBasis
from bayescope.estimators.linear_posteriors import SAMPLERS
from bayescope.gallery import canvas
from bayescope.gallery.picture import Picture
from bayescope.plots.style import CLASS_COLOURS, CLASS_MARKERS, COLOURS, INK, LABELS, MUTED

POSTERIORS = ("map", "laplace", "variational", "nuts")
LEVELS = np.linspace(0, 1, 21)


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
    span: tuple[tuple[float, float], tuple[float, float]]


def moons() -> Scene:
    """Two interleaved half circles, with radial basis functions as features."""
    X, y = make_moons(80, noise=0.15, random_state=2)
    return Scene("Two moons, 30 bumps", X, y, RadialBasis(centres=30, width=0.6), 0.1, ((-2.4, 3.4), (-2.2, 2.8)))


def blobs() -> Scene:
    """Two overlapping Gaussians with the features as they are."""
    source = np.random.default_rng(5)
    X = source.standard_normal((20, 2)) + np.repeat([[-0.8, -0.5], [0.8, 0.5]], 10, axis=0)
    return Scene("Overlapping blobs, linear", X, np.repeat([0, 1], 10), None, 0.1, ((-9, 9), (-8, 8)))


def surfaces(scene: Scene, *, size: int = 72, draws: int = 800) -> dict[str, np.ndarray]:
    """p(y = 1) by each posterior on a size × size grid, NUTS's from two chains of so many draws."""
    at = _grid(scene, size)
    return {name: _fit(scene, name, draws).predict_proba(at)[:, 1].reshape(size, size) for name in POSTERIORS}


def _fit(scene: Scene, posterior: str, draws: int) -> BayesianLogisticRegression:
    model: BayesianLogisticRegression = BayesianLogisticRegression().set_params(
        posterior=posterior,
        features=scene.features,
        prior_precision=scene.prior_precision,
        intercept_prior_precision=1e-4,
        standardize=False,
        random_state=0,
    )
    if posterior in SAMPLERS:
        model.set_params(draws=draws, tune=500, chains=2)
    with warnings.catch_warnings():  # of Laplace, whose distance from NUTS is what the picture shows
        warnings.simplefilter("ignore", BayescopeWarning)
        return model.fit(scene.X, scene.y)


def _grid(scene: Scene, size: int) -> np.ndarray:
    x1, x2 = np.meshgrid(*(np.linspace(*span, size) for span in scene.span))
    return np.column_stack([x1.ravel(), x2.ravel()])


def draw_surfaces(shown: Sequence[tuple[Scene, dict[str, np.ndarray]]] | None = None) -> Figure:
    """Two rows of scenes, four columns of posteriors, one colour scale; without an argument they are computed."""
    shown = [(scene, surfaces(scene)) for scene in (moons(), blobs())] if shown is None else shown
    figure, top = canvas.page(
        5.2,
        "Away from the data MAP stays sure; averages over the weights do not",
        "Probability of the red class by four posteriors of the same logistic model. Lines: ½ (solid), 0.1 and "
        "0.9 (dashed). TV: mean total-variation distance to NUTS over the panel.",
    )
    cells = canvas.grid(figure, 2, 4, top=top + 0.5, gap=(0.12, 0.2), left=0.45, right=0.95, bottom=0.3)
    for row, (scene, found) in enumerate(shown):
        for column, (name, p) in enumerate(found.items()):
            axes = figure.add_subplot(cells[row, column])
            surface(axes, scene, p)
            if row == 0:
                canvas.heading(axes, LABELS[name], COLOURS[name])
            if column == 0:
                axes.set_ylabel(scene.title, color=MUTED, fontsize=9)
            if name != "nuts":
                distance = np.abs(p - found["nuts"]).mean()
                canvas.corner(axes, f"TV {distance:.3f}", x=0.97, y=0.97, fontsize=8.5)
    colour_bar(figure, (0.895, 0.2, 0.014, 0.5))
    return figure


def surface(axes: Axes, scene: Scene, p: np.ndarray) -> None:
    """One panel: the probability as colour, three of its levels as lines, and the data."""
    x1, x2 = (np.linspace(*span, p.shape[0]) for span in scene.span)
    axes.contourf(x1, x2, p, levels=LEVELS, cmap=between(*CLASS_COLOURS[:2]))
    axes.contour(
        x1, x2, p, levels=(0.1, 0.5, 0.9), colors=INK, linewidths=(0.8, 1.5, 0.8), linestyles=("--", "-", "--")
    )
    points(axes, scene.X, scene.y)
    axes.set(xlim=scene.span[0], ylim=scene.span[1])
    canvas.bare(axes)


def points(axes: Axes, X: np.ndarray, y: np.ndarray, size: float = 12) -> None:
    """The rows in their classes' colours and markers."""
    for label in (0, 1):
        rows = X[y == label]
        axes.scatter(
            rows[:, 0],
            rows[:, 1],
            s=size,
            color=CLASS_COLOURS[label],
            marker=CLASS_MARKERS[label],
            edgecolor="white",
            linewidth=0.5,
            zorder=4,
        )


def between(low: str, high: str) -> LinearSegmentedColormap:
    """White at ½, pale tints of the two classes' colours at 0 and 1."""
    ends = [tuple(0.62 * np.array(to_rgb(end)) + 0.38) for end in (low, high)]
    return LinearSegmentedColormap.from_list("classes", [ends[0], (1, 1, 1), ends[1]])


def colour_bar(figure: Figure, place: tuple[float, float, float, float]) -> None:
    """The scale of the surfaces, at a place in fractions of the page."""
    bar = figure.colorbar(ScalarMappable(cmap=between(*CLASS_COLOURS[:2])), cax=figure.add_axes(place))
    bar.set_ticks([0, 0.1, 0.5, 0.9, 1])
    bar.outline.set_visible(False)
    bar.set_label("p(red)", color=MUTED)


SURFACES = Picture(
    "predictive-surfaces",
    "MAP, Laplace, VI and NUTS surfaces",
    "A point estimate is sure of itself wherever it extrapolates; Laplace, VI and NUTS average over the weights and "
    "move towards ½ away from the data, and Laplace and VI come close to NUTS.",
    "MacKay (1992), The evidence framework applied to classification networks; Bishop (2006), section 4.5",
    draw_surfaces,
)
