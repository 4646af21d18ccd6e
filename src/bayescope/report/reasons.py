"""What moves the predictions, and why single rows are predicted as they are, in the terms that the model has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import cast, final

import numpy as np
import torch
from torch import Tensor

from bayescope.additive.effects import Effect, Surface
from bayescope.additive.explanation import Importance
from bayescope.comparison.resampling import TAILS
from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.estimators.base import TableEstimator
from bayescope.models import LinearModel
from bayescope.posterior import DrawsPosterior
from bayescope.predictive import Predictive
from bayescope.report.judged import Judged
from bayescope.report.statistics import NORMAL_95
from bayescope.tables import Column

MOST_EFFECTS, MOST_SURFACES, MOST_WEIGHTS, MOST_DEPENDENCES = 24, 6, 40, 12
EFFECT_POINTS, SURFACE_POINTS = 60, 18
# Terms whose importance has its upper end below this share of the largest one are switched off for every purpose.
SILENT = 0.005
# Partial dependence: points of a feature, labels of one, and the rows that it is averaged over.
POINTS, MOST_LABELS, AVERAGED = 15, 12, 60
LEVEL = 0.95

# A mean and the ends of its interval.
Interval = tuple[np.ndarray, np.ndarray, np.ndarray]
LinearEstimator = BayesianLogisticRegression | BayesianLinearRegression


@final
@dataclass(frozen=True, eq=False)
class Effects:
    """The effects of an additive model.

    Attributes:
        importance: of all terms.
        effects: of the most important features, in their order.
        surfaces: of the most important pairs.
        silent: the names of terms that move the predictions by next to nothing, and have no picture.
        others: the names of the other terms that have no picture.
    """

    importance: Importance
    effects: tuple[Effect, ...]
    surfaces: tuple[Surface, ...]
    silent: tuple[str, ...]
    others: tuple[str, ...]


@final
@dataclass(frozen=True, eq=False)
class Coefficients:
    """The weights of a linear model of D inputs and C outputs.

    Attributes:
        names: of the inputs.
        weights: mean, low and high in f's unit per unit of the input, the intercept last, each of shape (C, D + 1).
        scales: the inputs' standard deviations over the judged rows, shape (D,).
        outputs: the names of the classes, where there are several outputs.
        order: of the inputs, those that move f most first.
        unit: of f.
    """

    names: tuple[str, ...]
    weights: Interval
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
        others: the names of the features that have no curve.
    """

    curves: tuple[Curve, ...]
    outputs: tuple[str, ...]
    rows: int
    others: tuple[str, ...]


Influence = Effects | Coefficients | Dependence


@singledispatch
def influence(estimator: TableEstimator, judged: Judged, random_state: int) -> Influence:
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
    others = tuple(curves[place].feature for place in order[MOST_DEPENDENCES:])
    return Dependence(kept, judged.classes, len(some), others)


@influence.register
def _(estimator: AdditiveEstimator, judged: Judged, random_state: int) -> Influence:  # noqa: ARG001
    importance, terms = estimator.importance(), estimator.additive_.model.terms
    most = importance.high.reshape(len(terms), -1).max(axis=1)
    loud = [place for place in importance.order if most[place] > SILENT * most.max()]
    singles = [terms[place].features[0] for place in loud if len(terms[place].features) == 1]
    pairs = [terms[place].features for place in loud if len(terms[place].features) == 2]

    def points(feature: int, count: int) -> int | None:
        return None if judged.columns[feature].kind == "categorical" else count

    effects = tuple(estimator.effects(k, grid=points(k, EFFECT_POINTS)) for k in singles[:MOST_EFFECTS])
    surfaces = tuple(
        estimator.surface(a, b, grid=(points(a, SURFACE_POINTS), points(b, SURFACE_POINTS)))
        for a, b in pairs[:MOST_SURFACES]
    )
    silent = tuple(terms[place].name for place in importance.order if place not in loud)
    drawn = {(feature,) for feature in singles[:MOST_EFFECTS]} | set(pairs[:MOST_SURFACES])
    others = tuple(terms[place].name for place in loud if terms[place].features not in drawn)
    return Effects(importance, effects, surfaces, silent, others)


@influence.register(BayesianLogisticRegression)
@influence.register(BayesianLinearRegression)
def _(estimator: LinearEstimator, judged: Judged, random_state: int) -> Influence:  # noqa: ARG001
    inputs, weights = estimator.transform_inputs(judged.X), weights_of(estimator)
    outputs, unit = _outputs_and_unit(estimator, judged)
    if outputs:
        unit = "log odds against the mean of the classes"
    scales = inputs.std(axis=0)
    order = np.argsort(-np.abs(weights[0][:, :-1] * scales).max(axis=0), kind="stable")
    return Coefficients(_input_names(estimator, inputs.shape[1]), weights, scales, outputs, order, unit)


def _outputs_and_unit(estimator: LinearEstimator, judged: Judged) -> tuple[tuple[str, ...], str]:
    """The classes of a model with several outputs, and the unit of the linear predictor."""
    if isinstance(estimator, BayesianLinearRegression):
        return (), judged.target
    unit = "log odds" if estimator.link == "logit" else "probit"
    if len(judged.classes) > 2:
        return judged.classes, unit
    return (), f"{unit} of {judged.classes[1]}"


def _input_names(estimator: LinearEstimator, inputs: int) -> tuple[str, ...]:
    """The names of the inputs; the weights of several outputs are named after their class, "class: input"."""
    classes: Sequence[object] = getattr(estimator, "classes_", ())
    prefix = f"{classes[0]}: " if len(classes) > 2 else ""
    return tuple(name.removeprefix(prefix) for name in estimator.weight_names_[:inputs])


def weights_of(estimator: LinearEstimator) -> Interval:
    """Means and central 95 % intervals of D inputs and, last, the intercept (0 if there is none), for C outputs.

    A softmax sees only differences, and so the mean over several outputs is subtracted.

    Returns:
        Mean, low and high, each of shape (C, D + 1).
    """
    posterior, model = estimator.posterior_, cast(LinearModel, estimator.posterior_.function)
    if isinstance(posterior, DrawsPosterior):
        draws = _by_input(model, posterior.flat).numpy()
        low, high = np.quantile(draws, TAILS, axis=0)
        return draws.mean(0), low, high
    mean = _by_input(model, posterior.mean).numpy()
    # The map from flat weights is linear: its rows are what it makes of the unit vectors.
    rows = _by_input(model, torch.eye(model.dim, dtype=torch.float64)).flatten(1)
    variance = torch.einsum("pm,pq,qm->m", rows, posterior.covariance, rows)
    half = NORMAL_95 * variance.clamp(min=0.0).sqrt().numpy().reshape(mean.shape)
    return mean, mean - half, mean + half


def _by_input(model: LinearModel, theta: Tensor) -> Tensor:
    """Flat weights (..., P) as (..., C, D + 1), the intercept last, minus their mean over several outputs."""
    weights, bias = model.unflat(theta)
    constant = weights.new_zeros(weights.shape[:-1]) if bias is None else bias
    together = torch.cat([weights, constant[..., None]], -1)
    return together - together.mean(-2, keepdim=True) if model.outputs > 1 else together


def _curve(estimator: TableEstimator, judged: Judged, place: int, some: np.ndarray) -> Curve:
    column = judged.columns[place]
    donors = _donors(column)
    rows, giving = np.tile(some, len(donors)), np.repeat(donors, len(some))
    predictive = estimator.predict_distribution(judged.swapped(rows, place, giving))
    shape = (len(donors), len(some), -1)
    mean, half = (
        np.asarray(part).reshape(shape)
        for part in (predictive.mean, NORMAL_95 * np.sqrt(np.asarray(predictive.epistemic)))
    )
    low, high = mean - half, mean + half
    if judged.classes:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    return Curve(
        column.name, column.values[donors], mean.mean(1), low.mean(1), high.mean(1), column.kind == "categorical"
    )


def _donors(column: Column) -> np.ndarray:
    """Rows whose values make the grid: quantiles of the numbers, or the labels that occur most."""
    if column.kind == "categorical":
        often = Counter(label for label in column.values if label is not None).most_common(MOST_LABELS)
        return np.array([column.values.tolist().index(label) for label, _ in often] or [0])
    there = np.flatnonzero(~np.isnan(column.values))
    if there.size == 0:
        return np.array([0])
    order = there[np.argsort(column.values[there], kind="stable")]
    picked = order[np.linspace(0, len(order) - 1, POINTS).round().astype(int)]
    _, first = np.unique(column.values[picked], return_index=True)
    return np.asarray(picked[first])


# Single rows ----------------------------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, eq=False)
class Explanations:
    """The reasons of M rows in T parts, for C outputs of the model.

    Attributes:
        places: of the rows among the judged ones, shape (M,).
        names: of the parts.
        values: what each part read, shape (M, T), objects: a number, a label, or a tuple of two.
        parts: shape (M, T, C).
        low: the lower ends of their 95 % intervals; equal to ``parts`` where there are none.
        high: the upper ends.
        constant: what stands beside the parts, shape (C,).
        total: parts and constant together, or the prediction itself, shape (M, C).
        total_low: the lower end of its 95 % interval.
        total_high: the upper end.
        sums: whether the parts and the constant sum to the total; else a part is what the prediction would lose if this
            one value were the usual one.
        outputs: their names, where there are several.
        unit: of all parts.
        mean: E[y∣x], for classes their probabilities, shape (M, K).
        mean_low: the lower end of the 95 % interval of E(y∣f), shape (M, K).
        mean_high: the upper end.
    """

    places: np.ndarray
    names: tuple[str, ...]
    values: np.ndarray
    parts: np.ndarray
    low: np.ndarray
    high: np.ndarray
    constant: np.ndarray
    total: np.ndarray
    total_low: np.ndarray
    total_high: np.ndarray
    sums: bool
    outputs: tuple[str, ...]
    unit: str
    mean: np.ndarray
    mean_low: np.ndarray
    mean_high: np.ndarray


@singledispatch
def explanations(estimator: TableEstimator, judged: Judged, places: np.ndarray) -> Explanations:
    """Explains some of the judged rows.

    Args:
        estimator: fitted.
        judged: rows of which a few are explained.
        places: which, shape (M,).
    """
    predictive = estimator.predict_distribution(judged.rows(places))
    mean, low, high = _mean(predictive)
    columns, rows = judged.columns, len(places)
    parts = np.empty((rows, len(columns), mean.shape[1]))
    values = np.empty((rows, len(columns)), dtype=object)
    for place, column in enumerate(columns):
        usual = np.full(rows, _usual(column.values, column.kind == "categorical"))
        without = estimator.predict_distribution(judged.swapped(places, place, usual))
        parts[:, place] = mean - np.asarray(without.mean)
        values[:, place] = column.values[places]
    return Explanations(
        places, tuple(column.name for column in columns), values, parts, parts, parts, np.zeros(mean.shape[1]), mean,
        low, high, False, judged.classes, "probability" if judged.classes else judged.target, mean, low, high,
    )  # fmt: skip


@explanations.register
def _(estimator: AdditiveEstimator, judged: Judged, places: np.ndarray) -> Explanations:
    rows = judged.rows(places)
    reasons = estimator.explain(rows, level=LEVEL)
    parts, low, high = (_deep(part, 3) for part in (reasons.contributions, reasons.low, reasons.high))
    total, total_low, total_high = (_deep(part, 2) for part in (reasons.total, reasons.total_low, reasons.total_high))
    values = (
        np.full((len(places), len(reasons.names)), None, dtype=object) if reasons.values is None else reasons.values
    )
    return Explanations(
        places, reasons.names, values, parts, low, high, np.atleast_1d(reasons.intercept), total, total_low, total_high,
        True, reasons.outputs, reasons.unit, *_mean(estimator.predict_distribution(rows)),
    )  # fmt: skip


@explanations.register(BayesianLogisticRegression)
@explanations.register(BayesianLinearRegression)
def _(estimator: LinearEstimator, judged: Judged, places: np.ndarray) -> Explanations:
    """w_j (x_j − x̄_j), x̄ over the judged rows: what a weight's interval is multiplied with is a known number."""
    outputs, unit = _outputs_and_unit(estimator, judged)
    every = estimator.transform_inputs(judged.X)
    inputs, centre = every[places], every.mean(axis=0)
    weights = weights_of(estimator)
    parts, first, second = ((inputs - centre)[:, :, None] * part[:, :-1].T for part in weights)
    predictive = estimator.predict_distribution(judged.rows(places))
    latent, spread = np.asarray(predictive.latent_mean), np.asarray(predictive.latent_cov)
    if latent.shape[1] > 1:
        centred = np.eye(latent.shape[1]) - 1.0 / latent.shape[1]
        latent, spread = latent @ centred, centred @ spread @ centred
    half = NORMAL_95 * np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    constant = weights[0][:, :-1] @ centre + weights[0][:, -1]
    names = _input_names(estimator, inputs.shape[1])
    given = {column.name: column.values[places] for column in judged.columns}
    values = np.empty(inputs.shape, dtype=object)
    for place, name in enumerate(names):
        values[:, place] = given.get(name, inputs[:, place])
    return Explanations(
        places, names, values, parts, np.minimum(first, second), np.maximum(first, second), constant,
        latent, latent - half, latent + half, True, outputs, unit, *_mean(predictive),
    )  # fmt: skip


def _mean(predictive: Predictive) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = predictive.interval(LEVEL, of="mean")
    return np.asarray(predictive.mean), np.asarray(low), np.asarray(high)


def _deep(values: np.ndarray, axes: int) -> np.ndarray:
    """With a last axis for the outputs, also where there is one."""
    return values if values.ndim == axes else values[..., None]


def _usual(values: np.ndarray, labels: bool) -> int:
    """The row whose value is the usual one: the label that occurs most, or the number nearest to the median."""
    if labels:
        [(label, _)] = Counter(values.tolist()).most_common(1)
        return values.tolist().index(label)
    there = np.flatnonzero(~np.isnan(values))
    return int(there[np.argmin(np.abs(values[there] - np.median(values[there])))]) if there.size else 0
