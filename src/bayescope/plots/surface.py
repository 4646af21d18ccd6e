"""Decision surfaces: the predictive probability over two features, with the data on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayescope.plots import style

GRID = 120
LEVELS = (0.1, 0.5, 0.9)
# Beyond the data, by this share of their range: there the posteriors differ.
BEYOND = 0.35

Predictor = Callable[[np.ndarray], np.ndarray]


def decision_surfaces(
    predictors: Mapping[str, Predictor],
    X: np.ndarray,
    y: np.ndarray,
    *,
    names: Sequence[str],
    classes: Sequence[str],
) -> Figure:
    """One panel a posterior: p(class∣x) on one colour scale, the contours at 0.1, 0.5 and 0.9, and the data.

    With more than two classes the colour is the classes' colours mixed by their probabilities, and the contours are
    the border between the most probable classes and 0.9 of each class.

    Args:
        predictors: by posterior, from inputs (M, 2) to class probabilities (M, K).
        X: the data drawn, shape (N, 2), in the predictors' units.
        y: their classes, 0…K−1.
        names: of the two features.
        classes: names of the K classes.
    """
    x1, x2 = np.meshgrid(_axis(X[:, 0]), _axis(X[:, 1]))
    at = np.column_stack([x1.ravel(), x2.ravel()])
    two = len(classes) == 2
    draw = _two_classes if two else _many_classes
    what = f"p({classes[-1]})"
    lines = f"{what} at 0.5 (solid), 0.1 and 0.9 (dashed)" if two else "the border (solid), a class at 0.9 (dashed)"
    with style.house():
        figure, axes = style.panels(
            len(predictors),
            width=2.75,
            height=2.7,
            key=_key(classes),
            title="Decision surfaces",
            subtitle=f"Predictive probability with the training rows. Contours: {lines}.",
            sharex=True,
            sharey=True,
        )
        for panel, (name, predict) in zip(axes, predictors.items(), strict=True):
            probs = predict(at).reshape(*x1.shape, len(classes))
            draw(panel, x1, x2, probs)
            _data(panel, X, y)
            panel.set_title(style.label(name))
            panel.spines[:].set_visible(False)
        figure.supxlabel(names[0], fontsize=9.5)
        figure.supylabel(names[1], fontsize=9.5)
        if two:
            scale = ScalarMappable(Normalize(0, 1), style.probability_scale())
            figure.colorbar(scale, ax=axes, label=what, ticks=[0, *LEVELS, 1], shrink=0.8, aspect=28)
    return figure


def _two_classes(panel: Axes, x1: np.ndarray, x2: np.ndarray, probs: np.ndarray) -> None:
    p = probs[..., 1]
    panel.contourf(x1, x2, p, levels=np.linspace(0, 1, 21), cmap=style.probability_scale())
    look = {"colors": style.INK, "linewidths": (0.9, 1.6, 0.9), "linestyles": ("--", "-", "--")}
    panel.contour(x1, x2, p, levels=LEVELS, **look)  # type: ignore[arg-type]


def _many_classes(panel: Axes, x1: np.ndarray, x2: np.ndarray, probs: np.ndarray) -> None:
    pale = 0.55 * np.array([to_rgb(_class_colour(k)) for k in range(probs.shape[-1])]) + 0.45
    extent = (x1.min(), x1.max(), x2.min(), x2.max())
    panel.imshow(probs @ pale, extent=extent, origin="lower", aspect="auto", interpolation="bilinear")
    for k in range(probs.shape[-1]):
        ahead = probs[..., k] - np.delete(probs, k, axis=-1).max(-1)
        panel.contour(x1, x2, ahead, levels=(0.0,), colors=style.INK, linewidths=1.6)
        panel.contour(x1, x2, probs[..., k], levels=LEVELS[2:], colors=style.INK, linewidths=0.9, linestyles="--")


def _data(panel: Axes, X: np.ndarray, y: np.ndarray) -> None:
    size = float(np.clip(2500 / len(X), 4, 18))
    for k in np.unique(y):
        rows = X[y == k]
        look = {"color": _class_colour(k), "edgecolor": "white", "linewidth": 0.5}
        panel.scatter(rows[:, 0], rows[:, 1], s=size, marker=_marker(k), **look)  # type: ignore[arg-type]


def _key(classes: Sequence[str]) -> list[Line2D]:
    look = {"ls": "", "markeredgecolor": "white", "markersize": 7}
    return [
        Line2D([], [], marker=_marker(k), color=_class_colour(k), label=name, **look)  # type: ignore[arg-type]
        for k, name in enumerate(classes)
    ]


def _class_colour(k: int) -> str:
    return style.CLASS_COLOURS[k % len(style.CLASS_COLOURS)]


def _marker(k: int) -> str:
    return style.CLASS_MARKERS[k % len(style.CLASS_MARKERS)]


def _axis(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    return np.linspace(low - BEYOND * (high - low), high + BEYOND * (high - low), GRID)
