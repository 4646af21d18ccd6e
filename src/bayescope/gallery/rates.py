"""How fast Laplace's error falls with the number of observations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import betaln
from torch import Tensor

from bayescope.gallery import canvas
from bayescope.gallery.fits import laplace
from bayescope.gallery.picture import Picture
from bayescope.plots.style import COLOURS, MUTED

SUCCESSES = 0.3
COORDINATES = {"in θ": None, "in logit θ": "unit_interval"}
COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Rates(NamedTuple):
    """Errors of Laplace's approximation of a Beta posterior against N, in one choice of coordinates."""

    counts: np.ndarray
    log_evidence: np.ndarray
    mean: np.ndarray

    def slope(self, errors: np.ndarray) -> float:
        """The exponent of N, by least squares on the larger half of the counts."""
        half = len(self.counts) // 2
        return float(np.polyfit(np.log(self.counts[half:]), np.log(errors[half:]), 1)[0])


def rates(transform: str | None, counts: tuple[int, ...] = COUNTS) -> Rates:
    """Laplace for θ, with a uniform prior and 30 % successes in N trials, against the exact Beta posterior."""
    errors = []
    for trials in counts:
        successes = round(SUCCESSES * trials)
        failures = trials - successes

        def log_joint(theta: Tensor, s: int = successes, f: int = failures) -> Tensor:
            return (s * theta.log() + f * torch.log1p(-theta))[..., 0]

        q = laplace(log_joint, [0.4], transform)
        exact_mean = (1 + successes) / (2 + trials)
        evidence_error = float(q.log_evidence()) - betaln(1 + successes, 1 + failures)
        errors.append((abs(evidence_error), abs(float(q.mean[0]) - exact_mean)))
    return Rates(np.array(counts), *np.array(errors).T)


def draw_rates() -> Figure:
    """The error of log Z and of the mean over N on logarithmic scales, with guides of slope −1."""
    figure, top = canvas.page(
        4.4,
        "Ten times the data, a tenth of the error",
        "Laplace for a success probability θ (uniform prior, 30 % of N trials succeed) against the exact Beta "
        "posterior, with the slopes fitted to the larger half. The coordinates change the factor, not the rate.",
    )
    cells = canvas.grid(figure, 1, 2, top=top + 0.45, gap=(0.75, 0), left=0.75)
    found = {name: rates(transform) for name, transform in COORDINATES.items()}
    for column, (title, of) in enumerate((("Error of log Z", "log_evidence"), ("Error of E[θ]", "mean"))):
        axes = figure.add_subplot(cells[0, column])
        canvas.heading(axes, title)
        _guides(axes)
        for (name, result), dashes in zip(found.items(), ("-", "--"), strict=True):
            _line(axes, result, getattr(result, of), name, dashes)
        axes.set(xlabel="observations N", xlim=(8, 8e5), ylim=(1e-6, 0.2), xticks=10.0 ** np.arange(1, 5))
        axes.minorticks_off()
    return figure


def _line(axes: Axes, result: Rates, errors: np.ndarray, name: str, dashes: str) -> None:
    """One curve, named at its end."""
    blue = COLOURS["laplace"]
    axes.loglog(result.counts, errors, dashes, color=blue, marker="o", ms=3.5, lw=1.6)
    text = f"{name}: {canvas.number(result.slope(errors), 2)}"
    canvas.label(axes, 1.4 * result.counts[-1], errors[-1], text, blue, va="center")


def _guides(axes: Axes) -> None:
    counts = np.array([COUNTS[0], COUNTS[-1]])
    for factor in (0.03, 3.0):
        axes.loglog(counts, factor / counts, color=MUTED, lw=0.8, zorder=0)
        canvas.label(axes, 1.4 * counts[-1], factor / counts[-1], "slope −1", MUTED, va="center")


RATES = Picture(
    "laplace-error-against-n",
    "Laplace's error against N",
    "The error of Laplace's log evidence and of its mean falls as 1/N, so that it vanishes as data come in, "
    "and a change of coordinates changes the factor only.",
    "Tierney & Kadane (1986), Accurate approximations for posterior moments and marginal densities",
    draw_rates,
)
