"""Reliability curves: how often a prediction held with some confidence is right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescope import metrics
from bayescope.metrics import Reliability
from bayescope.plots import style

LARGEST_POINT = 60  # square points
# The strip below accuracy 0 holds the bars that count rows.
STRIP = (-0.27, -0.03)


def reliability_curves(probs: Mapping[str, np.ndarray], y: np.ndarray) -> Figure:
    """One panel a posterior: accuracy against confidence in bins, with the band a calibrated prediction stays in.

    The band is the binomial's central 95 % for the bin's rows and mean confidence; the bars at the bottom count rows.

    Args:
        probs: class probabilities of the same N rows, by posterior, shape (N, K).
        y: the rows' classes, 0…K−1.
    """
    classes = next(iter(probs.values())).shape[1]
    diagrams = {name: metrics.reliability(table, y) for name, table in probs.items()}
    largest = max(int(diagram.count.max()) for diagram in diagrams.values())
    with style.house():
        figure, axes = style.panels(
            len(probs),
            width=2.75,
            height=2.55,
            title="Reliability",
            subtitle=f"{len(y)} test rows in bins of confidence, the probability of the predicted class. Points, "
            "larger for more rows: the share of a bin's rows that are right. Bands: where 95 % of points would fall "
            f"if the probabilities were true. Bars below 0: rows a bin, at most {largest}.",
            sharex=True,
            sharey=True,
        )
        for panel, (name, diagram) in zip(axes, diagrams.items(), strict=True):
            _draw(panel, diagram, style.colour(name), (STRIP[1] - STRIP[0]) / largest)
            style.titled(panel, name, f"ECE {metrics.ece(probs[name], y):.3f}")
        axes[0].set_xlim(1 / classes, 1.015)
        axes[0].set_ylim(STRIP[0], 1.04)
        axes[0].set_yticks([0, 0.25, 0.5, 0.75, 1])
        figure.supxlabel("confidence", fontsize=9.5)
        figure.supylabel("accuracy", fontsize=9.5)
    return figure


def _draw(panel: Axes, diagram: Reliability, colour: str, height: float) -> None:
    filled = diagram.count > 0
    x, width = diagram.confidence[filled], float(np.diff(diagram.edges)[0])
    middle = 0.5 * (diagram.edges[1:] + diagram.edges[:-1])[filled]
    panel.bar(middle, diagram.count[filled] * height, bottom=STRIP[0], width=0.92 * width, color=style.FAINT)
    panel.axhline(0, color=style.FAINT, linewidth=0.8, zorder=0)
    panel.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.8, zorder=1)
    band = {"bottom": diagram.low[filled], "width": 0.34 * width, "color": colour, "alpha": 0.25, "zorder": 2}
    panel.bar(x, (diagram.high - diagram.low)[filled], **band)  # type: ignore[arg-type]
    area = 8 + LARGEST_POINT * np.sqrt(diagram.count[filled] / diagram.count.sum())
    panel.scatter(
        x, diagram.accuracy[filled], s=area, color=colour, edgecolor="white", linewidth=0.7, zorder=3, clip_on=False
    )
