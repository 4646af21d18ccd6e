"""The template of a comparison: which posteriors it can be fitted with, and one prior for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone

from bayescope.errors import InputTypeError, UnsupportedError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.estimators.linear_posteriors import OBJECTIVES, POSTERIORS, SAMPLERS


class Menu(NamedTuple):
    """The posteriors of an estimator.

    Attributes:
        supported: all names that its ``posterior`` option takes.
        refused: those among them that do not go with the number of classes, each with what to tell its caller.
        default: those that are compared unless names are given, in order, the baseline among them.
    """

    supported: tuple[str, ...]
    refused: Mapping[str, str]
    default: tuple[str, ...]


@singledispatch
def menu(estimator: Any, classes: int) -> Menu:  # noqa: ARG001
    """The posteriors that a template can be fitted with; another estimator joins by registering its own function.

    Args:
        estimator: the template.
        classes: how many the labels have.

    Raises:
        InputTypeError: if it is none of the estimators that can be compared.
        UnsupportedError: if no posterior of it goes with the number of classes.
    """
    raise InputTypeError(f"estimator: expected a BayesianLogisticRegression to copy and fit, got {estimator!r}.")


@menu.register
def _(estimator: BayesianLogisticRegression, classes: int) -> Menu:
    every = ("map", "map_temperature", "laplace", "mean_field", "variational")
    if classes == 2:
        return Menu(tuple(POSTERIORS), {}, (*every, "ep"))
    if estimator.link == "probit":
        raise UnsupportedError(f"link='probit': expected two classes, got {classes}. For more use link='logit'.")
    return Menu(tuple(POSTERIORS), {"ep": f"posterior='ep': expected two classes, got {classes}. Leave it out."}, every)


def variant(template: Any, posterior: str, random_state: int) -> Any:
    """A copy of the template with a posterior and a seed; the samplers' options stay with the samplers alone.

    Args:
        template: whose other options hold.
        posterior: the name of the copy's.
        random_state: the copy's.
    """
    no_chains = {} if posterior in SAMPLERS else {"draws": None, "tune": None, "chains": None}
    return clone(template).set_params(posterior=posterior, random_state=random_state, **no_chains)


def with_one_prior(template: Any, X: pd.DataFrame, y: np.ndarray, random_state: int) -> tuple[Any, tuple[str, ...]]:
    """The template with the prior precision that posterior="auto" learns, if it is to be learnt, and a footnote on it.

    Learnt once and held for every posterior: else each would answer under a prior of its own, and a difference from
    the reference would be a difference of priors as much as of approximations.

    Args:
        template: with a ``prior_precision`` option.
        X: the training rows.
        y: their classes.
        random_state: of the contenders' fits, so that the prior is learnt on the features that they have.
    """
    if not isinstance(template.prior_precision, str):
        return template, ()
    fitted = variant(template, "auto", random_state).fit(X, y)
    learnt = fitted.prior_precision_
    objective = OBJECTIVES[fitted.posterior_.record.method]
    note = f"Prior precision: {learnt:.4g} for every posterior, learnt from the training rows by {objective}."
    return clone(template).set_params(prior_precision=learnt), (note,)
