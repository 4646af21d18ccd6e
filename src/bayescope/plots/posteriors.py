"""Pictures of posteriors: predictions, calibration, marginals, decision surfaces and training curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy import stats
from scipy.special import logsumexp

from bayescope import metrics
from bayescope.errors import InputError
from bayescope.metrics import Reliability
from bayescope.plots import marks, style
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior, Posterior

if TYPE_CHECKING:
    from bayescope.notebook import Canvas


# Predictions compared with a reference --------------------------------------------------------------------------------
def agreement(
    log_probs: Mapping[str, np.ndarray], *, reference: str, classes: Sequence[str], ax: Canvas | None = None
) -> Canvas:
    """One panel a posterior: the log odds that it gives each row against those that the reference gives.

    Log odds, log p/(1 − p), show what a probability axis hides: whether a row at 0.99 should have been at 0.9.

    Args:
        log_probs: by posterior, log class probabilities of the same N rows, shape (N, K); the reference among them.
        reference: the posterior on the x axes.
        classes: names of the K classes.
        ax: the axes to draw into, one for each panel; a new figure if not given.
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
            ax=ax,
        )
        ends = [truth.min(), truth.max()]
        for panel, name in zip(axes, others, strict=True):
            panel.plot(ends, ends, color=style.MUTED, linewidth=0.8)
            panel.scatter(truth, odds[name], s=9, color=style.colour(name), alpha=0.6, linewidth=0)
            panel.locator_params(nbins=6)
            style.titled(panel, name)
        style.one_scale(axes, "x")
        style.one_scale(axes, "y")
        labels = {"x": f"{what}, {style.label(reference)}", "y": f"{what}, the panel's posterior"}
        style.axis_labels(figure, axes, **labels, given=ax is not None)
    return style.drawn(figure, ax)


def log_odds(log_probs: np.ndarray) -> np.ndarray:
    """log p_k − log Σ_{j≠k} p_j: of the second class where there are two, else of every class."""
    if log_probs.shape[1] == 2:
        return log_probs[:, 1] - log_probs[:, 0]
    others = [logsumexp(np.delete(log_probs, k, axis=1), axis=1) for k in range(log_probs.shape[1])]
    return (log_probs - np.column_stack(others)).ravel()


# Of numbers: beyond these shares of the points a panel's limits do not follow.
OUTLYING = 0.01


def moment_agreement(
    moments: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    reference: str,
    target: str,
    ax: Canvas | None = None,
) -> Canvas:
    """One panel a posterior: how far its predictive mean and sd of each row are from the reference's.

    Args:
        moments: by posterior, means and sds of the predictives of the same N rows; the reference among them.
        reference: the posterior that the others are compared with.
        target: the name of what is predicted.
        ax: the axes to draw into, one for each panel; a new figure if not given.
    """
    others = [name for name in moments if name != reference]
    centre, width = moments[reference]
    points = {name: ((moments[name][0] - centre) / width, moments[name][1] / width) for name in others}
    against = style.label(reference)
    with style.house():
        figure, axes = style.panels(
            len(others),
            width=2.5,
            height=2.4,
            title=f"Predictions of {target} compared with {against}",
            subtitle="One point a test row. At the cross both have one mean and one sd; above it intervals are wider "
            f"than those of {against}, below it narrower.",
            sharex=True,
            sharey=True,
            ax=ax,
        )
        for panel, name in zip(axes, others, strict=True):
            panel.axhline(1.0, color=style.MUTED, linewidth=0.8, zorder=1)
            panel.axvline(0.0, color=style.MUTED, linewidth=0.8, zorder=1)
            panel.scatter(*points[name], s=9, color=style.colour(name), alpha=0.6, linewidth=0)
            style.titled(panel, name)
        shifts, ratios = (np.concatenate(values) for values in zip(*points.values(), strict=True))
        furthest = max(0.05, 1.1 * float(np.quantile(np.abs(shifts), 1.0 - OUTLYING)))
        largest = max(0.05, 1.1 * float(np.quantile(np.abs(np.log(ratios)), 1.0 - OUTLYING)))
        for panel in axes:
            panel.set_xlim(-furthest, furthest)
            panel.set_yscale("log")
            panel.set_ylim(math.exp(-largest), math.exp(largest))
            panel.locator_params(axis="x", nbins=5)
            ticks = _ratios(math.exp(largest))
            marks.plain_ticks(panel, "y", ticks, [f"{tick:.3g}" for tick in ticks])
        labels = {"x": f"difference of means, in sds by {against}", "y": "ratio of sds"}
        style.axis_labels(figure, axes, **labels, given=ax is not None)
    return style.drawn(figure, ax)


def _ratios(largest: float) -> list[float]:
    """Ticks around 1 of a logarithmic axis from 1/largest to largest."""
    steps = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
    step = max((each for each in steps if each <= largest), default=largest)
    return [1.0 / step, 1.0, step]


# Reliability ----------------------------------------------------------------------------------------------------------
LARGEST_POINT = 60  # square points
# The strip below accuracy 0 holds the bars that count rows.
COUNTS = (-0.27, -0.03)


def reliability_curves(probs: Mapping[str, np.ndarray], y: np.ndarray, *, ax: Canvas | None = None) -> Canvas:
    """One panel a posterior: accuracy against confidence in bins, with the band a calibrated prediction stays in.

    The band is the binomial's central 95 % for the bin's rows and mean confidence; the bars at the bottom count rows.

    Args:
        probs: class probabilities of the same N rows, by posterior, shape (N, K).
        y: the rows' classes, 0…K−1.
        ax: the axes to draw into, one for each panel; a new figure if not given.
    """
    classes = next(iter(probs.values())).shape[1]
    diagrams = {name: metrics.reliability(table, y) for name, table in probs.items()}
    largest = max(int(diagram.count.max()) for diagram in diagrams.values())
    with style.house():
        figure, axes = style.panels(
            len(probs),
            width=2.75,
            height=2.55,
            title="Is it right as often as it says?",
            subtitle=f"{len(y)} test rows in {metrics.BINS} bins of confidence, the probability of the predicted "
            "class. Points: the share of a bin's rows that are right; on the diagonal it is as often right as it says, "
            "below it is overconfident. Light bars: where 95 % of such shares fall if the probabilities are true. "
            f"Grey bars: rows in the bin, at most {largest}.",
            sharex=True,
            sharey=True,
            ax=ax,
        )
        for panel, (name, diagram) in zip(axes, diagrams.items(), strict=True):
            _draw_bins(panel, diagram, style.colour(name), (COUNTS[1] - COUNTS[0]) / largest)
            style.titled(panel, name, f"ECE {metrics.ece(probs[name], y):.3f}")
            panel.set(xlim=(1 / classes, 1.015), ylim=(COUNTS[0], 1.04), yticks=[0, 0.25, 0.5, 0.75, 1])
        style.axis_labels(
            figure, axes, x="confidence in the predicted class", y="share of rows that are right", given=ax is not None
        )
    return style.drawn(figure, ax)


def _draw_bins(panel: Axes, diagram: Reliability, colour: str, height: float) -> None:
    filled = diagram.count > 0
    x, width = diagram.confidence[filled], float(np.diff(diagram.edges)[0])
    middle = 0.5 * (diagram.edges[1:] + diagram.edges[:-1])[filled]
    panel.bar(middle, diagram.count[filled] * height, bottom=COUNTS[0], width=0.92 * width, color=style.FAINT)
    panel.axhline(0, color=style.FAINT, linewidth=0.8, zorder=0)
    panel.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.8, zorder=1)
    band = {"bottom": diagram.low[filled], "width": 0.34 * width, "color": colour, "alpha": 0.25, "zorder": 2}
    panel.bar(x, (diagram.high - diagram.low)[filled], **band)  # type: ignore[arg-type]
    area = 8 + LARGEST_POINT * np.sqrt(diagram.count[filled] / diagram.count.sum())
    panel.scatter(
        x, diagram.accuracy[filled], s=area, color=colour, edgecolor="white", linewidth=0.7, zorder=3, clip_on=False
    )


def calibration_curves(
    shares: Mapping[str, np.ndarray], levels: np.ndarray, rows: int, *, ax: Canvas | None = None
) -> Canvas:
    """One panel a posterior: the share of outcomes below each quantile against the level of the quantile.

    The band is the binomial's central 95 % for the rows and the level.

    Args:
        shares: of the outcomes that are below their quantiles, by posterior, shape (L,).
        levels: of the quantiles, rising, shape (L,).
        rows: how many outcomes there are.
        ax: the axes to draw into, one for each panel; a new figure if not given.
    """
    low, high = (stats.binom.ppf(tail, rows, levels) / rows for tail in (0.025, 0.975))
    with style.house():
        figure, axes = style.panels(
            len(shares),
            width=2.75,
            height=2.55,
            title="Do outcomes fall where it says?",
            subtitle=f"{rows} test rows: the share of outcomes below each quantile of their predictive distribution. "
            "Bands: where 95 % of such shares fall if the distributions are true. A curve that is flatter than the "
            "diagonal in the middle is overconfident, a steeper one underconfident.",
            sharex=True,
            sharey=True,
            ax=ax,
        )
        for panel, (name, found) in zip(axes, shares.items(), strict=True):
            panel.fill_between(levels, low, high, color=style.colour(name), alpha=0.18, linewidth=0)
            panel.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.8, zorder=1)
            panel.plot(levels, found, color=style.colour(name), marker="o", markersize=2.5, linewidth=1.2)
            style.titled(panel, name, f"furthest {np.abs(found - levels).max():.3f}")
            panel.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        labels = {"x": "level of the quantile", "y": "share of outcomes below it"}
        style.axis_labels(figure, axes, **labels, given=ax is not None)
    return style.drawn(figure, ax)


# Marginals of weights -------------------------------------------------------------------------------------------------
DRAWS = 4000
BINS = 40
# A mean-field marginal can be many times as tall as the reference's: beyond this it leaves the panel through the top.
TALLEST = 3.0


def most_disputed(posteriors: Mapping[str, Posterior], reference: str, most: int = 12) -> list[int]:
    """The weights on which a posterior differs most from the reference, worst first.

    The difference in one weight is ∣μ − μ_ref∣/sd_ref + ∣log(sd/sd_ref)∣, its worst over the posteriors; a point
    counts by its place alone.

    Args:
        posteriors: by name, the reference among them.
        reference: its name.
        most: how many weights to return.
    """
    centre, spread = _moments(posteriors[reference])
    worst = np.zeros_like(centre)
    for posterior in posteriors.values():
        mean, sd = _moments(posterior)
        width = np.abs(np.log(np.where(sd > 0, sd, spread) / spread))
        worst = np.maximum(worst, np.abs(mean - centre) / spread + width)
    return np.argsort(-worst, kind="stable")[:most].tolist()


def marginals(
    posteriors: Mapping[str, Posterior],
    *,
    reference: str,
    names: Sequence[str],
    chosen: Sequence[int],
    units: str = "weight",
    ax: Canvas | None = None,
) -> Canvas:
    """One panel a weight: the reference's draws as a histogram, Gaussians as their exact densities, points as lines.

    Args:
        posteriors: by name, the reference among them.
        reference: the posterior drawn as a histogram.
        names: of all P weights.
        chosen: the weights to draw, by index.
        units: what the x axes measure.
        ax: the axes to draw into, one for each panel; a new figure if not given.
    """
    histogram = _draws(posteriors[reference])
    others = {name: posterior for name, posterior in posteriors.items() if name != reference}
    key: list[Patch | Line2D] = [Patch(color=style.FAINT, label=f"{style.label(reference)} draws")]
    key += [Line2D([], [], color=style.colour(n), ls=style.dash(n), label=style.label(n)) for n in others]
    with style.house():
        figure, axes = style.panels(
            len(chosen),
            width=2.6,
            height=1.95,
            key=key,
            title=f"Marginal posteriors over {style.label(reference)}",
            subtitle=f"Densities of {len(chosen)} of {len(names)} weights, those on which the posteriors differ most "
            f"from {style.label(reference)} first.",
            ax=ax,
        )
        for panel, index in zip(axes, chosen, strict=True):
            heights, _, _ = panel.hist(
                histogram[:, index], bins=BINS, range=_range(histogram[:, index]), density=True, color=style.FAINT
            )
            for name, posterior in others.items():
                _draw_marginal(posterior, panel, index, name)
            panel.set_ylim(0, min(panel.get_ylim()[1], TALLEST * float(np.max(heights))))
            panel.set_yticks([])
            panel.spines["left"].set_visible(False)
            panel.locator_params(axis="x", nbins=5)
            panel.set_title(style.shorten(names[index]), parse_math=False)
        style.axis_labels(figure, axes, x=units, given=ax is not None)
    return style.drawn(figure, ax)


@singledispatch
def _draw_marginal(posterior: Posterior, panel: Axes, index: int, name: str) -> None:
    """Forms without a closed marginal: the outline of their draws' histogram."""
    values = _draws(posterior)[:, index]
    look = {"color": style.colour(name), "histtype": "step", "linewidth": 1.4}
    panel.hist(values, bins=BINS, range=_range(values), density=True, **look)  # type: ignore[arg-type]


@_draw_marginal.register
def _(posterior: GaussianPosterior, panel: Axes, index: int, name: str) -> None:
    if posterior.transform is not None:  # not a Gaussian in the user's coordinates
        _draw_marginal.dispatch(Posterior)(posterior, panel, index, name)
        return
    mean, sd = (float(moment[index]) for moment in _moments(posterior))
    x = np.linspace(mean - 4 * sd, mean + 4 * sd, 200)
    density = np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    panel.plot(x, density, color=style.colour(name), ls=style.dash(name))


@_draw_marginal.register
def _(posterior: PointPosterior, panel: Axes, index: int, name: str) -> None:
    panel.axvline(float(posterior.location[index]), color=style.colour(name), ls=style.dash(name), zorder=1.5)


@singledispatch
def _draws(posterior: Posterior) -> np.ndarray:
    return posterior.sample(DRAWS, generator=0).numpy()


@_draws.register
def _(posterior: DrawsPosterior) -> np.ndarray:
    return posterior.flat.numpy()


def _moments(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    return posterior.mean.numpy(), posterior.covariance.diagonal().sqrt().numpy()


def _range(values: np.ndarray) -> tuple[float, float]:
    """All but the farthest 1 in 1,000 draws: a single stray draw does not squeeze a panel."""
    low, high = np.quantile(values, [0.0005, 0.9995])
    return float(low), float(high)


# Decision surfaces ----------------------------------------------------------------------------------------------------
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
    ax: Canvas | None = None,
) -> Canvas:
    """One panel a posterior: p(class∣x) on one colour scale, the contours at 0.1, 0.5 and 0.9, and the data.

    With more than two classes the colour is the classes' colours mixed by their probabilities, and the contours are
    the border between the most probable classes and 0.9 of each class.

    Args:
        predictors: by posterior, from inputs (M, 2) to class probabilities (M, K).
        X: the data drawn, shape (N, 2), in the predictors' units.
        y: their classes, 0…K−1.
        names: of the two features.
        classes: names of the K classes.
        ax: the axes to draw into, one for each panel; a new figure if not given.
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
            ax=ax,
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
        style.axis_labels(figure, axes, x=names[0], y=names[1], given=ax is not None)
        if two:
            scale = ScalarMappable(Normalize(0, 1), style.probability_scale())
            figure.colorbar(scale, ax=axes, label=what, ticks=[0, *marks.LEVELS, 1], shrink=0.8, aspect=28)
    return style.drawn(figure, ax)


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


# Training curves ------------------------------------------------------------------------------------------------------
# The quantities of a trace that have a panel, in this order, and how they are headed.
QUANTITIES = {
    "nll": "−log p(y∣f)",
    "validation_nll": "−log p(y∣f), validation",
    "penalty": "penalty",
    "kl": "KL(q∥p)",
    "elbo": "ELBO",
}
# The share of the epochs, from the first, that a panel's limits do not follow: there a curve may leave the panel.
FALL = 0.1


def training_curves(
    traces: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    log_evidence: float | None = None,
    ax: Canvas | None = None,
) -> Canvas:
    """One panel a quantity, one line a training; sums over all rows, in nats.

    Args:
        traces: by the name of a posterior its `Posterior.trace`, lists with a number per epoch. Drawn is what they have
            of "nll", "validation_nll", "penalty" (½ (θ−m)ᵀP₀(θ−m)), "kl" and "elbo".
        log_evidence: log p(y), where it is known: no ELBO lies above that line.
        ax: the axes to draw into, one for each panel; a new figure if not given.

    Raises:
        InputError: if no trace has one of these quantities.
    """
    chosen = [name for name in QUANTITIES if any(len(trace.get(name, ())) for trace in traces.values())]
    if not chosen:
        known = ", ".join(sorted({name for trace in traces.values() for name in trace})) or "nothing"
        raise InputError(f"traces: expected one with any of {', '.join(QUANTITIES)}, got {known}. Train first.")
    key = [Line2D([], [], color=style.colour(name), ls=style.dash(name), label=style.label(name)) for name in traces]
    if log_evidence is not None:
        key.append(Line2D([], [], color=style.MUTED, lw=1, ls=":", label="log evidence"))
    with style.house():
        figure, axes = style.panels(
            len(chosen),
            width=2.9,
            height=2.5,
            key=key,
            title="Training",
            subtitle="Sums over all rows, in nats; each row as the epoch meets it.",
            ax=ax,
        )
        for panel, quantity in zip(axes, chosen, strict=True):
            curves = {name: np.asarray(trace[quantity]) for name, trace in traces.items() if trace.get(quantity)}
            _draw_curves(panel, curves)
            panel.set_title(QUANTITIES[quantity])
            if quantity == "elbo" and log_evidence is not None:
                low, high = panel.get_ylim()
                panel.axhline(log_evidence, color=style.MUTED, lw=1, ls=":", zorder=1)
                panel.set_ylim(low, max(high, log_evidence + 0.05 * (log_evidence - low)))
        style.axis_labels(figure, axes, x="epoch", given=ax is not None)
    return style.drawn(figure, ax)


def _draw_curves(panel: Axes, curves: Mapping[str, np.ndarray]) -> None:
    for name, values in curves.items():
        look = {"color": style.colour(name), "ls": style.dash(name), "lw": 1.4}
        panel.plot(np.arange(1, len(values) + 1), values, **look)  # type: ignore[arg-type]
    settled = np.concatenate([values[int(FALL * len(values)) :] for values in curves.values()])
    low, high = float(settled.min()), float(settled.max())
    margin = 0.05 * (high - low) or 0.5
    panel.set_ylim(low - margin, high + margin)
    panel.locator_params(axis="x", nbins=5, integer=True)
