"""What moves the predictions: effects of an additive model, weights of a linear one, else partial dependence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, final

import numpy as np

from bayescope.additive.effects import Effect, Surface
from bayescope.additive.importance import Importance
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.weights import Weights, weights_of
from bayescope.tables import Column

MOST_EFFECTS, MOST_SURFACES, MOST_WEIGHTS, MOST_DEPENDENCES = 24, 6, 40, 12
EFFECT_POINTS, SURFACE_POINTS = 60, 18
# Terms whose importance has its upper end below this share of the largest one are switched off for every purpose.
SILENT = 0.005
# Partial dependence: points of a feature, labels of one, and the rows that it is averaged over.
POINTS, MOST_LABELS, AVERAGED = 15, 12, 60


@final
@dataclass(frozen=True, eq=False)
class Effects:
    """Of an additive model.

    Attributes:
        importance: of all terms.
        effects: of the most important features, in their order.
        surfaces: of the most important pairs.
        silent: the names of terms that move the predictions by next to nothing, and have no picture.
        others: how many other terms have no picture.
    """

    importance: Importance
    effects: tuple[Effect, ...]
    surfaces: tuple[Surface, ...]
    silent: tuple[str, ...]
    others: int


@final
@dataclass(frozen=True, eq=False)
class Coefficients:
    """Of a linear model: D inputs, C outputs.

    Attributes:
        names: of the inputs.
        weights: in f's unit per unit of the input, and the intercept.
        scales: the inputs' standard deviations over the judged rows, shape (D,).
        outputs: the names of the classes, where there are several outputs.
        order: of the inputs, those that move f most first.
        unit: of f.
    """

    names: tuple[str, ...]
    weights: Weights
    scales: np.ndarray
    outputs: tuple[str, ...]
    order: np.ndarray
    unit: str


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """The mean prediction of some rows as one feature takes the values of a grid.

    Attributes:
        feature: its name.
        grid: values that were seen, numbers or labels, shape (n,).
        mean: over the rows, shape (n, K).
        low: the mean of the rows' lower ends, by the epistemic part, shape (n, K).
        high: of their upper ends.
        categorical: whether the grid has labels.
    """

    feature: str
    grid: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    categorical: bool


@final
@dataclass(frozen=True, eq=False)
class Dependence:
    """Partial dependence (Friedman 2001) on single features.

    Attributes:
        curves: of the features that move the mean prediction most, in that order.
        outputs: the names of the classes; none for a regression.
        rows: how many were averaged over.
        others: how many features have no curve.
    """

    curves: tuple[Curve, ...]
    outputs: tuple[str, ...]
    rows: int
    others: int


Influence = Effects | Coefficients | Dependence


@singledispatch
def influence(estimator: Any, judged: Judged, random_state: int) -> Influence:
    """What moves the predictions, in the terms that the model has.

    Args:
        estimator: fitted.
        judged: rows to average over, where the model itself has no effects.
        random_state: of the choice of rows.
    """
    some = np.random.default_rng(random_state).permutation(len(judged))[:AVERAGED]
    curves = [_curve(estimator, judged, place, some) for place in range(len(judged.columns))]
    order = np.argsort([-float(np.ptp(curve.mean, axis=0).max()) for curve in curves], kind="stable")
    kept = tuple(curves[place] for place in order[:MOST_DEPENDENCES])
    return Dependence(kept, judged.classes, len(some), len(curves) - len(kept))


@influence.register
def _(estimator: AdditiveEstimator, judged: Judged, random_state: int) -> Influence:  # noqa: ARG001
    importance, terms = estimator.importance(), estimator.additive_.model.terms
    most = importance.high.reshape(len(terms), -1).max(axis=1)
    loud = [place for place in importance.order if most[place] > SILENT * most.max()]
    singles = [terms[place].features[0] for place in loud if len(terms[place].features) == 1]
    pairs = [terms[place].features for place in loud if len(terms[place].features) == 2]
    effects = tuple(_effect(estimator, judged, feature) for feature in singles[:MOST_EFFECTS])
    size = (SURFACE_POINTS, SURFACE_POINTS)
    surfaces = tuple(_surface(estimator, judged, pair, size) for pair in pairs[:MOST_SURFACES])
    silent = tuple(terms[place].name for place in importance.order if place not in loud)
    return Effects(importance, effects, surfaces, silent, len(loud) - len(effects) - len(surfaces))


@influence.register
def _(estimator: BayesianLogisticRegression, judged: Judged, random_state: int) -> Influence:  # noqa: ARG001
    outputs = judged.classes if len(judged.classes) > 2 else ()
    unit = "log odds" if estimator.link == "logit" else "probit"
    unit = "log odds against the mean of the classes" if outputs else f"{unit} of {judged.classes[1]}"
    return _coefficients(estimator, judged, outputs, unit)


@influence.register
def _(estimator: BayesianLinearRegression, judged: Judged, random_state: int) -> Influence:  # noqa: ARG001
    return _coefficients(estimator, judged, (), judged.target)


def _coefficients(estimator: Any, judged: Judged, outputs: tuple[str, ...], unit: str) -> Coefficients:
    inputs = estimator.transform_inputs(judged.X)
    weights = weights_of(estimator.posterior_, estimator.posterior_.function)
    scales = inputs.std(axis=0)
    moved = np.abs(weights.mean[:, :-1] * scales).max(axis=0)
    names = tuple(estimator.weight_names_[: inputs.shape[1]]) if not outputs else _names(estimator, inputs.shape[1])
    return Coefficients(names, weights, scales, outputs, np.argsort(-moved, kind="stable"), unit)


def _names(estimator: Any, inputs: int) -> tuple[str, ...]:
    """Of the inputs: the weights of several outputs are named after their class, "class: input"."""
    prefix = f"{estimator.classes_[0]}: "
    return tuple(name.removeprefix(prefix) for name in estimator.weight_names_[:inputs])


def _effect(estimator: AdditiveEstimator, judged: Judged, feature: int) -> Effect:
    labels = judged.columns[feature].kind == "categorical"
    return estimator.effects(feature, grid=None if labels else EFFECT_POINTS)


def _surface(estimator: AdditiveEstimator, judged: Judged, pair: tuple[int, ...], size: tuple[int, int]) -> Surface:
    grid = tuple(
        None if judged.columns[feature].kind == "categorical" else points
        for feature, points in zip(pair, size, strict=True)
    )
    a, b = pair
    return estimator.surface(a, b, grid=(grid[0], grid[1]))


def _curve(estimator: Any, judged: Judged, place: int, some: np.ndarray) -> Curve:
    column = judged.columns[place]
    donors = _donors(column)
    rows, giving = np.tile(some, len(donors)), np.repeat(donors, len(some))
    told = estimator.predict_distribution(judged.swapped(rows, place, giving))
    shape = (len(donors), len(some), -1)
    mean, half = (np.asarray(part).reshape(shape) for part in (told.mean, 1.96 * np.sqrt(np.asarray(told.epistemic))))
    low, high = mean - half, mean + half
    if judged.classes:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    return Curve(
        column.name, column.values[donors], mean.mean(1), low.mean(1), high.mean(1), column.kind == "categorical"
    )


def _donors(column: Column) -> np.ndarray:
    """Rows whose values make the grid: quantiles of the numbers, or the labels that occur most."""
    if column.kind == "categorical":
        labels: dict[object, list[int]] = {}
        for row, label in enumerate(column.values):
            if label is not None:
                labels.setdefault(label, []).append(row)
        often = sorted(labels.values(), key=len, reverse=True)[:MOST_LABELS]
        return np.array([rows[0] for rows in often] or [0])
    there = np.flatnonzero(~np.isnan(column.values))
    if there.size == 0:
        return np.array([0])
    order = there[np.argsort(column.values[there], kind="stable")]
    picked = order[np.linspace(0, len(order) - 1, POINTS).round().astype(int)]
    _, first = np.unique(column.values[picked], return_index=True)
    return np.asarray(picked[first])
