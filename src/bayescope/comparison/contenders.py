"""What stands in a row of a comparison: a posterior of the template's model, or a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedKFold

from bayescope.comparison.templates import variant
from bayescope.posterior import Posterior

FOLDS = 5
# Beyond these the held-out rows say only "as far as you can": they are perfectly separated, or carry no signal.
TEMPERATURES = (0.02, 50.0)


@final
@dataclass(frozen=True)
class Fitted:
    """A contender after its fit.

    Attributes:
        log_probs: from a table (N, D) to log class probabilities (N, K), classes sorted.
        probs: from a table to class probabilities, the quicker way where many rows are asked for.
        posterior: over the weights, or ``None`` for a baseline that has none of its own.
        inputs: from a table to the inputs of the posterior's model.
        weight_names: of the P weights, in the posterior's order.
        note: what the fit found that a reader of the table should know.
    """

    log_probs: Callable[[pd.DataFrame], np.ndarray]
    probs: Callable[[pd.DataFrame], np.ndarray]
    posterior: Posterior | None
    inputs: Callable[[pd.DataFrame], np.ndarray]
    weight_names: tuple[str, ...]
    note: str = ""


Contender = Callable[[Any, pd.DataFrame, np.ndarray, int], Fitted]


def contender(name: str) -> Contender:
    """The function that fits what a name stands for: a baseline of that name, else the posterior of that name.

    Args:
        name: in the table's first column.

    Returns:
        A function of (template, X, y, random_state).
    """
    return BASELINES.get(name, partial(_fit_posterior, name))


def _fit_posterior(name: str, template: Any, X: pd.DataFrame, y: np.ndarray, random_state: int) -> Fitted:
    estimator = variant(template, name, random_state).fit(X, y)
    return Fitted(
        partial(_log_probs, estimator),
        estimator.predict_proba,
        estimator.posterior_,
        estimator.transform_inputs,
        tuple(estimator.weight_names_),
    )


def _log_probs(estimator: Any, X: pd.DataFrame) -> np.ndarray:
    """The classes' log probabilities, exact where a probability rounds to 0 or 1.

    Of more than 32 classes each rare one is integrated separately, and their sum can differ from 1 by the errors of the
    integrals. A log score is proper only for probabilities that sum to 1, so they are divided by their sum.
    """
    return log_softmax(estimator.predict_log_proba(X), axis=1)


def temperature_scaled_map(template: Any, X: pd.DataFrame, y: np.ndarray, random_state: int) -> Fitted:
    """MAP with its logits divided by one temperature: softmax(log p / T), p the class probabilities of MAP.

    T minimises the negative log likelihood of training rows that a fold's fit has not seen (Guo et al. 2017, fitted
    on five folds in place of a validation set). For the logit link log p/T and logits/T have the same softmax.
    """
    fit = partial(_fit_posterior, "map", template, random_state=random_state)
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    folds = StratifiedKFold(min(FOLDS, int(counts.min())), shuffle=True, random_state=random_state)
    held_out = np.empty((len(y), len(counts)))
    for train, test in folds.split(X, y):
        held_out[test] = fit(X.iloc[train], y[train]).log_probs(X.iloc[test])
    temperature = fit_temperature(held_out, codes)
    point = fit(X, y)
    note = f"temperature {temperature:.3f}, fitted on {folds.n_splits} folds of the training rows"
    if temperature in TEMPERATURES:
        note += "; it lies at the end of the range searched, since the held-out rows do not bound it"

    def log_probs(table: pd.DataFrame) -> np.ndarray:
        return log_softmax(point.log_probs(table) / temperature, axis=1)

    return replace(point, log_probs=log_probs, probs=lambda table: np.exp(log_probs(table)), posterior=None, note=note)


def fit_temperature(log_probs: np.ndarray, y: np.ndarray) -> float:
    """The T that minimises −Σ log softmax(log p / T)_y, convex in 1/T, over `TEMPERATURES`.

    Args:
        log_probs: log class probabilities of rows that the model was not fitted to, shape (N, K).
        y: their classes, 0…K−1.
    """
    rows = np.arange(len(y))

    def loss(inverse: float) -> float:
        return -float(log_softmax(inverse * log_probs, axis=1)[rows, y].sum())

    low, high = (1.0 / end for end in reversed(TEMPERATURES))
    # In log(1/T), where the bracket is even; a convex function of 1/T has one minimum there too.
    found = minimize_scalar(lambda s: loss(np.exp(s)), bounds=(np.log(low), np.log(high)), options={"xatol": 1e-8})
    best = min((low, float(np.exp(found.x)), high), key=loss)
    return 1.0 / best


BASELINES: Mapping[str, Contender] = {"map_temperature": temperature_scaled_map}
