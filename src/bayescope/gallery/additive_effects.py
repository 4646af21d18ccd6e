"""Four effects, one of them nothing: the plain additive model bends to the noise, learnt precisions switch it off."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from bayescope.additive.effects import Effect, effect
from bayescope.gallery import additive, canvas
from bayescope.gallery.picture import Picture
from bayescope.plots.effects import draw_effect
from bayescope.plots.style import COLOURS, INK

ROWS = 1000
SEED = 0
# The effects before they are centred; the noise has variance 1.
TRUTHS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "x1": ("$8(x-1/2)^2$", lambda x: 8 * (x - 0.5) ** 2),
    "x2": ("$0.1e^{4-8x}$", lambda x: 0.1 * np.exp(4 - 8 * x)),
    "x3": ("$5e^{-2(2x-1)^2}$", lambda x: 5 * np.exp(-2 * (2 * x - 1) ** 2)),
    "x4": ("nothing", np.zeros_like),
}
MODELS = {"map": "Plain (MAP)", "laplace": "Laplace, learnt"}
Shown = Mapping[str, Mapping[str, Effect]]


def problem() -> tuple[pd.DataFrame, np.ndarray]:
    """Four independent features, even on (0, 1), and y."""
    source = np.random.default_rng(SEED)
    frame = pd.DataFrame(source.random((ROWS, len(TRUTHS))), columns=list(TRUTHS))
    f = sum(function(frame[name].to_numpy()) for name, (_, function) in TRUTHS.items())
    return frame, f + source.normal(size=ROWS)


def found() -> dict[str, dict[str, Effect]]:
    """The effects by model and feature."""
    table = additive.Table.of(*problem())
    fits = {name: additive.regression(table, plain=name == "map") for name in MODELS}
    return {name: {feature: effect(fit, feature) for feature in TRUTHS} for name, fit in fits.items()}


def truth(feature: str, at: np.ndarray) -> np.ndarray:
    """The true effect, centred over the data."""
    function = TRUTHS[feature][1]
    return function(at) - function(problem()[0][feature].to_numpy()).mean()


def draw_effects(shown: Shown | None = None) -> Figure:
    """A row a model, a column a feature; without an argument the models are fitted."""
    shown = found() if shown is None else shown
    last = list(TRUTHS)[-1]
    width = max(float(np.abs(end).max()) for end in (shown["laplace"][last].low, shown["laplace"][last].high))
    wrong = float(np.abs(shown["map"][last].mean).max())
    figure, top = canvas.page(
        4.9,
        "A feature that does nothing is switched off by its own precision",
        f"y = Σ f(x) + noise of variance 1 on {ROWS:,} rows, four nets of 97 weights. Above: the mode under one "
        f"precision ({additive.WEAK:g}) for all weights. Below: a precision for each layer, learnt by the evidence, "
        f"and 95 % bands. Dotted: the truth. Of x4 the plain model says up to {wrong:.2f}; below, its band covers 0 "
        f"within ±{width:.4f}.",
    )
    cells = canvas.grid(figure, 2, len(TRUTHS), top=top + 0.5, gap=(0.3, 0.3), left=0.75, bottom=0.4)
    for row, name in enumerate(MODELS):
        for column, feature in enumerate(TRUTHS):
            axes = figure.add_subplot(cells[row, column])
            _panel(axes, name, shown[name][feature])
            axes.tick_params(labelbottom=row == len(MODELS) - 1, labelleft=column == 0)
            if row == 0:
                canvas.heading(axes, f"{feature}: {TRUTHS[feature][0]}")
        _side(figure, cells, row, name)
    return figure


def _panel(axes: Axes, name: str, shown: Effect) -> None:
    axes.plot(shown.grid, truth(shown.feature, shown.grid), color=INK, lw=1.2, ls=":", zorder=3)
    draw_effect(axes, shown, tint=COLOURS[name])
    axes.set(ylim=(-3.4, 5.0), xlim=(0, 1))
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def _side(figure: Figure, cells: GridSpec, row: int, name: str) -> None:
    """The model's name beside its row."""
    place = cells[row, 0].get_position(figure)
    figure.text(
        0.02, 0.5 * (place.y0 + place.y1), MODELS[name], rotation=90, va="center", fontsize=9.5, color=COLOURS[name],
        weight="bold",
    )  # fmt: skip


EFFECTS = Picture(
    "additive-effects",
    "A feature that does nothing, switched off",
    "Under one precision for all weights every net of an additive model bends to the noise a little, while precisions "
    "learnt by the evidence switch off the net of a feature that does nothing, with a band of next to no width at 0.",
    "Bouchiat, Immer, Yèche, Rätsch & Fortuin (2024), Improving neural additive models with Bayesian principles",
    draw_effects,
)
