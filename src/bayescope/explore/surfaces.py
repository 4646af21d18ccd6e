"""Answers to questions about points, part by part. The parts that are quick to compute come first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from contourpy import contour_generator
from scipy.stats import norm

from bayescope.errors import BayescopeError
from bayescope.explore.tables import Fitted, Span, Task, fitted, why_not
from bayescope.gallery.linear_models import distance
from bayescope.plots import marks
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior

Part = dict[str, Any]

ACROSS, UP = 44, 33
ALONG = 161
FUNCTIONS = 20
MOST_WEIGHTS = 6
BINS = 40
# Prior precisions at which the evidence is computed: linear models are fitted in milliseconds, others in seconds.
MANY, FEW = np.logspace(-3, 3, 25), np.logspace(-3, 2, 9)
LEVEL = 0.95


def answers(task: Task, *, moving: bool = False, reference: bool = False) -> Iterator[Part]:
    """Yield the parts of an answer, the quick ones first.

    Args:
        task: points, model and posterior.
        moving: whether a point or a slider is being moved; then the evidence and NUTS are left out.
        reference: whether a linear model is compared with NUTS.
    """
    fit = fitted(task)
    yield _surface(task, fit) if task.kind == "classes" else _curve(task, fit)
    yield _functions(task, fit)
    if task.model == "additive":
        yield _effects(task, fit)
    if task.is_linear:
        yield _weights(task, fit)
    if moving:
        return
    yield from _evidence(task)
    if task.is_linear and reference and task.posterior != "nuts" and why_not(task.model, "nuts") is None:
        yield _reference(task, fit)


def grid(view: Span) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two coordinates of the lattice of a surface, and its points, rows first, shape (UP·ACROSS, 2)."""
    x, y = np.linspace(*view[0], ACROSS), np.linspace(*view[1], UP)
    return x, y, np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)


def line(view: Span) -> np.ndarray:
    """The points of a curve, shape (ALONG, 1)."""
    return np.linspace(*view[0], ALONG)[:, None]


def _surface(task: Task, fit: Fitted) -> Part:
    x, y, points = grid(task.view)
    predictive = fit.estimator.predict_distribution(points)
    p = predictive.probs[:, 1].reshape(UP, ACROSS)
    sd = np.sqrt(predictive.epistemic[:, 1]).reshape(UP, ACROSS)
    levels = {str(level): _lines(x, y, p, level) for level in marks.LEVELS}
    return {
        "part": "surface",
        "across": ACROSS,
        "p": _short(p),
        "sd": _short(sd),
        "lines": levels,
        "warnings": fit.warnings,
    }


def _curve(task: Task, fit: Fitted) -> Part:
    x = line(task.view)
    predictive = fit.estimator.predict_distribution(x)
    ends = {"mean": predictive.interval(LEVEL, of="mean"), "outcome": predictive.interval(LEVEL)}
    bands = {name: [_short(end[:, 0]) for end in pair] for name, pair in ends.items()}
    return {
        "part": "curve",
        "x": _short(x),
        "mean": _short(predictive.mean[:, 0]),
        "bands": bands,
        "warnings": fit.warnings,
    }


def _functions(task: Task, fit: Fitted) -> Part:
    """Functions drawn from the posterior: in one dimension their values, in two the contours where they are 0."""
    posterior = fit.estimator.posterior_
    if isinstance(posterior, PointPosterior):
        return {"part": "functions", "why": "no draws: MAP is a single function"}
    if task.model == "additive":
        return {"part": "functions", "why": "no draws: the effects below have bands"}
    if task.kind == "numbers":
        f = posterior.sample_functions(line(task.view), FUNCTIONS, generator=0)[..., 0]
        return {"part": "functions", "f": [_short(each) for each in f]}
    x, y, points = grid(task.view)
    f = posterior.sample_functions(points, FUNCTIONS, generator=0).reshape(FUNCTIONS, UP, ACROSS).numpy()
    return {"part": "functions", "lines": [_lines(x, y, each, 0.0) for each in f]}


def _effects(task: Task, fit: Fitted) -> Part:
    effects = []
    for feature in range(task.rows[0].shape[1]):
        effect = fit.estimator.effects(feature, grid=np.linspace(*task.view[feature], ALONG), level=LEVEL)
        curves = {name: _short(np.asarray(getattr(effect, name)).ravel()) for name in ("grid", "mean", "low", "high")}
        effects.append({"name": f"x{feature + 1}", **curves})
    return {"part": "effects", "effects": effects}


def _weights(task: Task, fit: Fitted) -> Part:
    """The marginal posteriors of the weights whose mean under Laplace is largest in size."""
    laplace = fitted(replace(task, posterior="laplace")).estimator
    chosen = _largest(laplace)
    names = list(fit.estimator.weight_names_)
    rows = []
    for weight in chosen:
        row: Part = {"name": names[weight], "laplace": _marginal(laplace.posterior_, weight)}
        if task.posterior != "laplace":
            row["posterior"] = _marginal(fit.estimator.posterior_, weight)
        rows.append(row)
    return {"part": "weights", "weights": rows, "of": len(names)}


def _largest(estimator: Any) -> np.ndarray:
    """The positions of the weights of largest mean, in increasing order."""
    mean = np.abs(np.asarray(estimator.posterior_.mean))
    return np.sort(np.argsort(-mean, kind="stable")[:MOST_WEIGHTS])


def _marginal(posterior: Any, weight: int) -> Part:
    """The density of one weight: a curve, a histogram, or a point."""
    if isinstance(posterior, DrawsPosterior):
        heights, edges = np.histogram(np.asarray(posterior.draws)[..., weight].ravel(), bins=BINS, density=True)
        return {"edges": _short(edges), "heights": _short(heights)}
    mean = float(posterior.mean[weight])
    if not isinstance(posterior, GaussianPosterior):
        return {"at": mean}
    sd = float(posterior.sd[weight])
    x = np.linspace(mean - 4 * sd, mean + 4 * sd, 65)
    return {"x": _short(x), "y": _short(norm.pdf(x, mean, sd))}


def _evidence(task: Task) -> Iterator[Part]:
    """Laplace's log evidence against the prior precision. For models that are slow to fit, a part after each fit."""
    known: list[list[float]] = []
    precisions = MANY if task.is_linear else FEW
    for done, precision in enumerate(precisions):
        yield {"part": "progress", "done": done, "steps": len(precisions), "name": "computing the evidence"}
        each = replace(task, posterior="laplace", prior_precision=float(f"{precision:.6g}"))
        try:
            known.append([each.prior_precision, float(fitted(each).estimator.log_evidence_)])
        except BayescopeError:
            continue  # at this precision there is no Laplace approximation
        if not task.is_linear:
            yield {"part": "evidence", "log_evidence": known, "of": len(precisions)}
    if task.is_linear:
        yield {"part": "evidence", "log_evidence": known, "of": len(precisions)}


def _reference(task: Task, fit: Fitted) -> Part:
    """The marginal posteriors by NUTS, and the distance of this posterior's predictions from those of NUTS."""
    try:
        nuts = fitted(replace(task, posterior="nuts")).estimator
    except BayescopeError as error:
        return {"part": "reference", "why": str(error)}
    laplace = fitted(replace(task, posterior="laplace")).estimator
    part: Part = {"part": "reference", "weights": [_marginal(nuts.posterior_, each) for each in _largest(laplace)]}
    if task.kind == "classes":
        points = grid(task.view)[2]
        p, r = (each.predict_distribution(points).probs[:, 1] for each in (fit.estimator, nuts))
        part["distance"] = distance(p, r)
    return part


def _lines(x: np.ndarray, y: np.ndarray, z: np.ndarray, level: float) -> list[list[list[float]]]:
    """The contour of a surface: for each line the two coordinates of its points."""
    lines = contour_generator(x, y, z).lines(level)
    return [[_short(coordinate) for coordinate in each.T] for each in lines]  # type: ignore[union-attr]


def _short(values: np.ndarray) -> list[float]:
    """Numbers rounded for a picture, to five digits of the largest."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    largest = float(np.abs(flat).max(initial=0.0))
    return flat.round(4 - math.floor(math.log10(largest)) if largest > 0 else 0).tolist()
