"""Decision surfaces: the predictive probability over two features, with the data on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayescope.plots import marks, style

GRID = 120
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
    span, two = (_ends(X[:, 0]), _ends(X[:, 1])), len(classes) == 2
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
            probs = predict(marks.lattice(span, GRID)).reshape(GRID, GRID, len(classes))
            if two:
                marks.probability_map(panel, span, probs[..., 1])
            else:
                _many_classes(panel, span, probs)
            marks.rows(panel, X, y, size=float(np.clip(2500 / len(X), 4, 18)))
            panel.set_title(style.label(name))
            panel.spines[:].set_visible(False)
        figure.supxlabel(names[0], fontsize=9.5)
        figure.supylabel(names[1], fontsize=9.5)
        if two:
            scale = ScalarMappable(Normalize(0, 1), style.probability_scale())
            figure.colorbar(scale, ax=axes, label=what, ticks=[0, *marks.LEVELS, 1], shrink=0.8, aspect=28)
    return figure


def _many_classes(panel: Axes, span: marks.Span, probs: np.ndarray) -> None:
    pale = 0.55 * np.array([to_rgb(style.class_colour(k)) for k in range(probs.shape[-1])]) + 0.45
    panel.imshow(probs @ pale, extent=(*span[0], *span[1]), origin="lower", aspect="auto", interpolation="bilinear")
    x1, x2 = (np.linspace(*ends, GRID) for ends in span)
    for k in range(probs.shape[-1]):
        ahead = probs[..., k] - np.delete(probs, k, axis=-1).max(-1)
        panel.contour(x1, x2, ahead, levels=(0.0,), colors=style.INK, linewidths=1.5)
        panel.contour(x1, x2, probs[..., k], levels=marks.LEVELS[2:], colors=style.INK, linewidths=0.8, linestyles="--")


def _key(classes: Sequence[str]) -> list[Line2D]:
    look: dict[str, Any] = {"ls": "", "markeredgecolor": "white", "markersize": 7}
    return [
        Line2D([], [], marker=style.class_marker(k), color=style.class_colour(k), label=name, **look)
        for k, name in enumerate(classes)
    ]


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return low - BEYOND * (high - low), high + BEYOND * (high - low)
