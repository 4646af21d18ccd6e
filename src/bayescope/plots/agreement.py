"""Predictions compared with a reference, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.special import logsumexp

from bayescope.plots import style


def agreement(log_probs: Mapping[str, np.ndarray], *, reference: str, classes: Sequence[str]) -> Figure:
    """One panel a posterior: the log odds that it gives each row against those that the reference gives.

    Log odds, log p/(1 − p), show what a probability axis hides: whether a row at 0.99 should have been at 0.9.

    Args:
        log_probs: by posterior, log class probabilities of the same N rows, shape (N, K); the reference among them.
        reference: the posterior on the x axes.
        classes: names of the K classes.
    """
    odds = {name: log_odds(values) for name, values in log_probs.items()}
    others = [name for name in odds if name != reference]
    truth = odds[reference]
    what = f"log odds of {classes[1]}" if len(classes) == 2 else "log odds of each class"
    points = "One point a test row" if len(classes) == 2 else "One point for each class of a test row"
    with style.house():
        figure, axes = style.panels(
            len(others),
            width=2.5,
            height=2.4,
            title=f"Predictions compared with {style.label(reference)}",
            subtitle=f"{points}: {what}. Steeper than the diagonal is overconfident, flatter is underconfident.",
            sharex=True,
            sharey=True,
        )
        ends = [truth.min(), truth.max()]
        for panel, name in zip(axes, others, strict=True):
            panel.plot(ends, ends, color=style.MUTED, linewidth=0.8)
            panel.scatter(truth, odds[name], s=9, color=style.colour(name), alpha=0.6, linewidth=0)
            panel.locator_params(nbins=6)
            style.titled(panel, name)
        figure.supxlabel(f"{what}, {style.label(reference)}", fontsize=9.5)
        figure.supylabel(f"{what}, the panel's posterior", fontsize=9.5)
    return figure


def log_odds(log_probs: np.ndarray) -> np.ndarray:
    """log p_k − log Σ_{j≠k} p_j: of the second class where there are two, else of every class."""
    if log_probs.shape[1] == 2:
        return log_probs[:, 1] - log_probs[:, 0]
    others = [logsumexp(np.delete(log_probs, k, axis=1), axis=1) for k in range(log_probs.shape[1])]
    return (log_probs - np.column_stack(others)).ravel()
