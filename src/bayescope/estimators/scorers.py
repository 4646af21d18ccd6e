"""Scores of whole predictive distributions, for scikit-learn's searches and cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn import model_selection

from bayescope.estimators.pipelines import predict_distribution


def neg_crps(model: Any, X: object, y: Any, sample_weight: object = None) -> float:
    """The negative mean CRPS of the outcomes, in the unit of y: see `Predictive.crps`. The larger the better."""
    return -_mean(predict_distribution(model, X).crps(y), sample_weight)


def neg_log_predictive(model: Any, X: object, y: Any, sample_weight: object = None) -> float:
    """The mean log p(y∣x, data) of the outcomes, in nats: the negative of the negative log predictive density.

    The larger the better.
    """
    return _mean(predict_distribution(model, X).log_prob(y), sample_weight)


def _mean(scores: Any, sample_weight: Any) -> float:
    return float(np.average(np.asarray(scores), weights=sample_weight))


scorers: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"neg_crps": neg_crps, "neg_log_predictive": neg_log_predictive}
)
"""The scorers ``scorer(model, X, y, sample_weight=None)`` by name, for the ``scoring=`` of scikit-learn's functions.

``"neg_crps"`` is −N⁻¹ Σ CRPS, in the unit of y, and ``"neg_log_predictive"`` N⁻¹ Σ log p(y∣x, data), in nats. Both are
better the larger they are.
"""


def add_names() -> None:
    """Adds the scorers to the names that scikit-learn's ``scoring=`` takes, which has no public way to do so.

    Each of its functions has its own list of names, made when scikit-learn was imported. Where a version keeps its
    lists elsewhere, nothing is added: `scorers` has the functions.
    """
    from sklearn.metrics import _scorer

    known = getattr(_scorer, "_SCORERS", None)
    if known is None:
        return
    for name, scorer in scorers.items():
        known.setdefault(name, scorer)
    for member in (*vars(model_selection).values(), *vars(_scorer).values()):
        for attribute in ("_skl_parameter_constraints", "_parameter_constraints"):
            constraints = getattr(member, attribute, None)
            for each in constraints.get("scoring", ()) if isinstance(constraints, dict) else ():
                if isinstance(getattr(each, "options", None), set) and "r2" in each.options:
                    each.options.update(scorers)
