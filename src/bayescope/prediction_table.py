"""A predictive as a table: a row for each row of the inputs, the columns that people ask of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bayescope.errors import InputError
from bayescope.predictive import Predictive, refuse_dense

Columns = dict[str, Any]


def prediction_table(
    predictive: Predictive,
    *,
    classes: Any = None,
    outputs: Sequence[str] | None = None,
    level: float | None = 0.95,
) -> pd.DataFrame:
    """What is predicted, and how far it may be trusted.

    - Classes: ``predicted`` (the most probable one), ``p(<class>)`` for each, ``low`` and ``high`` of the predicted
      class's probability (it lies between them with probability ``level``), ``epistemic_sd`` of it, ``entropy`` and
      ``mutual_information`` in nats.
    - Several labels a row: ``probability``, ``low``, ``high`` and ``epistemic_sd`` of each, as ``<label>: probability``
      and so on, then ``entropy`` and ``mutual_information``, sums over the labels.
    - A regression: ``mean``, ``sd``, ``low`` and ``high`` of the outcome (noise included), ``epistemic_sd`` and
      ``aleatoric_sd``, with sd² = epistemic_sd² + aleatoric_sd²; for several outputs as ``<output>: mean`` and so on.

    Where rows lack values, ``imputed`` counts how many of each row's values a stand-in was put for.

    Args:
        predictive: for N rows.
        classes: K labels, in the order of the classes or labels; 0…K−1 if not given.
        outputs: the names of a regression's D outputs; with one output there is no prefix. y0, y1, … if not given.
        level: the probability of the intervals; ``None`` for a table without ``low`` and ``high``, which for three
            classes and more are most of the work.

    Returns:
        N rows, numbered from 0.

    Raises:
        InputError: if names do not fit, the level is outside (0, 1), or outputs are dense.
    """
    p = predictive if predictive.arrays else replace(predictive, arrays=True)  # itself has its integrals at hand
    refuse_dense(p, "Read a dense answer's arrays: its positions are no rows of a table.")
    if not p.likelihood.discrete:
        _refuse_given("classes", classes, "a regression")
        return pd.DataFrame(_regression(p, outputs, level) | _imputed(p))
    _refuse_given("outputs", outputs, "classes")
    several = p.likelihood.elementwise and p.latent.mean.shape[1] > 1
    labels = _names("classes", classes, p.probs.shape[1], range(p.probs.shape[1]))
    columns = _labels(p, labels, level) if several else _classes(p, labels, level)
    information = {"entropy": p.entropy, "mutual_information": p.mutual_information}
    return pd.DataFrame(columns | information | _imputed(p))


def _imputed(p: Predictive) -> Columns:
    return {"imputed": p.imputed} if p.imputed is not None and p.imputed.any() else {}


def _classes(p: Predictive, labels: np.ndarray, level: float | None) -> Columns:
    probs = np.asarray(p.probs)
    best = probs.argmax(axis=1)[:, None]

    def of_best(values: Any) -> np.ndarray:
        return np.take_along_axis(values, best, axis=1)[:, 0]

    columns: Columns = {"predicted": labels[best[:, 0]]}
    columns |= {f"p({label})": probs[:, k] for k, label in enumerate(labels.tolist())}
    if level is not None:
        low, high = p.interval(level, of="mean")
        columns |= {"low": of_best(low), "high": of_best(high)}
    return columns | {"epistemic_sd": of_best(np.sqrt(p.epistemic))}


def _labels(p: Predictive, labels: np.ndarray, level: float | None) -> Columns:
    each = {"probability": p.probs}
    if level is not None:
        each["low"], each["high"] = p.interval(level, of="mean")
    each["epistemic_sd"] = np.sqrt(p.epistemic)
    return _side_by_side(each, [f"{label}: " for label in labels.tolist()])


def _regression(p: Predictive, outputs: Sequence[str] | None, level: float | None) -> Columns:
    each = {"mean": p.mean, "sd": np.sqrt(p.variance)}
    if level is not None:
        each["low"], each["high"] = p.interval(level, of="outcome")
    each |= {"epistemic_sd": np.sqrt(p.epistemic), "aleatoric_sd": np.sqrt(p.aleatoric)}
    count = p.mean.shape[1]
    names = _names("outputs", outputs, count, [f"y{place}" for place in range(count)])
    return _side_by_side(each, [""] if count == 1 else [f"{name}: " for name in names.tolist()])


def _side_by_side(each: dict[str, Any], prefixes: Sequence[str]) -> Columns:
    """The columns of one label or output after those of another."""
    return {prefix + name: values[:, k] for k, prefix in enumerate(prefixes) for name, values in each.items()}


def _names(name: str, given: Any, count: int, default: Sequence[Any]) -> np.ndarray:
    names = np.asarray(default if given is None else given)
    if names.shape != (count,):
        raise InputError(f"{name}: expected {count} names, got shape {names.shape}. Give one for each.")
    if len(set(map(str, names.tolist()))) < count:
        raise InputError(f"{name}: expected names that differ, got {names.tolist()}. Rename those that are alike.")
    return names


def _refuse_given(name: str, given: Any, what: str) -> None:
    if given is not None:
        raise InputError(f"{name}: expected None for {what}, got {given!r}. Leave it out.")
