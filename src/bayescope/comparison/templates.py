"""The template of a comparison: which posteriors it can be fitted with, and one prior for all of them."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone

from bayescope.errors import InputTypeError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.estimators.fitting import POSTERIORS


class Menu(NamedTuple):
    """The posteriors of an estimator.

    Attributes:
        supported: all names that its ``posterior`` option takes.
        default: those that are compared unless names are given, in order, the baseline among them.
    """

    supported: tuple[str, ...]
    default: tuple[str, ...]


@singledispatch
def menu(estimator: Any, classes: int) -> Menu:  # noqa: ARG001
    """The posteriors that a template can be fitted with; another estimator joins by registering its own function.

    Args:
        estimator: the template.
        classes: how many the labels have.

    Raises:
        InputTypeError: if it is none of the estimators that can be compared.
    """
    raise InputTypeError(f"estimator: expected a BayesianLogisticRegression to copy and fit, got {estimator!r}.")


@menu.register
def _(estimator: BayesianLogisticRegression, classes: int) -> Menu:  # noqa: ARG001
    binary = ("ep",) if classes == 2 else ()
    return Menu(tuple(POSTERIORS), ("map", "map_temperature", "laplace", "mean_field", "variational", *binary))


def with_one_prior(template: Any, X: pd.DataFrame, y: np.ndarray) -> tuple[Any, tuple[str, ...]]:
    """The template with the prior precision that Laplace's evidence has, if it is to be learnt, and a footnote on it.

    Learnt once and held for every posterior: else each would answer under a prior of its own, and a difference from
    the reference would be a difference of priors as much as of approximations.

    Args:
        template: with a ``prior_precision`` option.
        X: the training rows.
        y: their classes.
    """
    if not isinstance(template.prior_precision, str):
        return template, ()
    learnt = clone(template).set_params(posterior="laplace").fit(X, y).prior_precision_
    note = f"Prior precision: {learnt:.4g} for every posterior, learnt from the training rows by Laplace's evidence."
    return clone(template).set_params(prior_precision=learnt), (note,)
