"""Why single rows are predicted as they are, in the terms that the model has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, final

import numpy as np

from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression
from bayescope.estimators.additive_reading import AdditiveEstimator
from bayescope.predictive import Predictive
from bayescope.report.facts.judged import Judged
from bayescope.report.facts.weights import NORMAL_95, weights_of

LEVEL = 0.95


@final
@dataclass(frozen=True, eq=False)
class Explanations:
    """Of M rows by T parts, for C outputs of the model.

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
def explanations(estimator: Any, judged: Judged, places: np.ndarray) -> Explanations:
    """Explains some of the judged rows.

    Args:
        estimator: fitted.
        judged: rows of which a few are explained.
        places: which, shape (M,).
    """
    told = estimator.predict_distribution(judged.rows(places))
    mean, low, high = _mean(told)
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
    told = estimator.explain(rows, level=LEVEL)
    parts, low, high = (_deep(part, 3) for part in (told.contributions, told.low, told.high))
    total, total_low, total_high = (_deep(part, 2) for part in (told.total, told.total_low, told.total_high))
    values = np.full((len(places), len(told.names)), None, dtype=object) if told.values is None else told.values
    return Explanations(
        places, told.names, values, parts, low, high, np.atleast_1d(told.intercept), total, total_low, total_high,
        True, told.outputs, told.unit, *_mean(estimator.predict_distribution(rows)),
    )  # fmt: skip


@explanations.register
def _(estimator: BayesianLogisticRegression, judged: Judged, places: np.ndarray) -> Explanations:
    outputs = judged.classes if len(judged.classes) > 2 else ()
    unit = "log odds" if estimator.link == "logit" else "probit"
    return _linear(estimator, judged, places, outputs, unit if outputs else f"{unit} of {judged.classes[1]}")


@explanations.register
def _(estimator: BayesianLinearRegression, judged: Judged, places: np.ndarray) -> Explanations:
    return _linear(estimator, judged, places, (), judged.target)


def _linear(estimator: Any, judged: Judged, places: np.ndarray, outputs: tuple[str, ...], unit: str) -> Explanations:
    """w_j (x_j − x̄_j), x̄ over the judged rows: what a weight's interval is multiplied with is a known number."""
    every = estimator.transform_inputs(judged.X)
    inputs, centre = every[places], every.mean(axis=0)
    weights = weights_of(estimator.posterior_, estimator.posterior_.function)
    apart = (inputs - centre)[:, :, None]
    parts, first, second = (apart * part[:, :-1].T for part in weights)
    told = estimator.predict_distribution(judged.rows(places))
    latent, spread = np.asarray(told.latent_mean), np.asarray(told.latent_cov)
    if latent.shape[1] > 1:
        centred = np.eye(latent.shape[1]) - 1.0 / latent.shape[1]
        latent, spread = latent @ centred, centred @ spread @ centred
    half = NORMAL_95 * np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    constant = weights.mean[:, :-1] @ centre + weights.mean[:, -1]
    names = tuple(name.split(": ", 1)[-1] if outputs else name for name in estimator.weight_names_[: inputs.shape[1]])
    own = {column.name: column.values[places] for column in judged.columns}
    values = np.empty(inputs.shape, dtype=object)
    for place, name in enumerate(names):
        values[:, place] = own.get(name, inputs[:, place])
    return Explanations(
        places, names, values, parts, np.minimum(first, second), np.maximum(first, second), constant,
        latent, latent - half, latent + half, True, outputs, unit, *_mean(told),
    )  # fmt: skip


def _mean(told: Predictive) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = told.interval(LEVEL, of="mean")
    return np.asarray(told.mean), np.asarray(low), np.asarray(high)


def _deep(values: np.ndarray, axes: int) -> np.ndarray:
    """With a last axis for the outputs, also where there is one."""
    return values if values.ndim == axes else values[..., None]


def _usual(values: np.ndarray, labels: bool) -> int:
    """The row whose value is the usual one: the label that occurs most, or the number nearest to the median."""
    if labels:
        first: dict[object, int] = {}
        counts: dict[object, int] = {}
        for row, label in enumerate(values):
            first.setdefault(label, row)
            counts[label] = counts.get(label, 0) + 1
        return first[max(counts, key=lambda label: counts[label])]
    there = np.flatnonzero(~np.isnan(values))
    return int(there[np.argmin(np.abs(values[there] - np.median(values[there])))]) if there.size else 0
