"""The other posteriors of the same model, against NUTS, where that takes seconds and not hours."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, final

import numpy as np
import pandas as pd
from sklearn.base import clone

from bayescope import checks
from bayescope.comparison import Comparison, compare
from bayescope.errors import BayescopeError, BayescopeWarning, MissingDependencyError, OptionError, UnsupportedError
from bayescope.estimators import BayesianLogisticRegression
from bayescope.report.facts.judged import Judged

REFERENCES = ("auto", "nuts")
# NUTS reads the table some 10⁵ times: so many numbers in it and the comparison stays under a minute on one core.
MOST_NUMBERS = 100_000
# Draws of the sampler: half its default, which knows a standard deviation to about 3 %.
DRAWS = 500


@final
@dataclass(frozen=True, eq=False)
class Reference:
    """A comparison, or why there is none.

    Attributes:
        comparison: of every posterior with NUTS, on a split of the judged rows; ``None`` where there is none.
        reason: why not, or what the comparison was made of.
    """

    comparison: Comparison | None
    reason: str


def reference_choice(reference: str | None) -> str | None:
    """Checks ``reference=``.

    Raises:
        OptionError: if it is none of "auto", "nuts" and ``None``.
    """
    if reference is not None and reference not in REFERENCES:
        raise OptionError.unknown("reference", reference, [*REFERENCES, "None"])
    return reference


def compared(estimator: Any, judged: Judged, reference: str | None, random_state: int) -> Reference:
    """Compares the posteriors of the estimator's model if that was asked for, or, with "auto", if it is cheap.

    Args:
        estimator: fitted; its options are the template.
        judged: the rows.
        reference: "auto", "nuts" or ``None``.
        random_state: of the split and the fits.

    Raises:
        UnsupportedError: if "nuts" was asked for and the model is none that it samples.
        MissingDependencyError: if "nuts" was asked for and the packages are not installed.
    """
    if reference is None:
        return Reference(None, "No comparison with NUTS was asked for (reference=None).")
    obstacle = _obstacle(estimator, judged)
    if obstacle and (reference == "auto" or not obstacle.cost):
        if reference == "nuts":
            raise UnsupportedError(f"reference='nuts': {obstacle.why} Use reference='auto'.")
        return Reference(None, obstacle.why)
    try:
        for package in ("nutpie", "arviz"):
            checks.optional_package(package, extra="nuts")
    except MissingDependencyError:
        if reference == "nuts":
            raise
        return Reference(None, "NUTS is not installed here: pip install 'bayescope[nuts]' brings it.")
    return _run(estimator, judged, reference, random_state)


def _run(estimator: Any, judged: Judged, reference: str, random_state: int) -> Reference:
    options = estimator.get_params(deep=False)
    draws = {name: DRAWS for name in ("draws", "tune") if options[name] is None}
    template = clone(estimator).set_params(posterior="nuts", **draws)
    labels = pd.Series([judged.classes[code] for code in judged.y], name=judged.target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayescopeWarning)  # they stand in the footnotes
            comparison = compare(template, judged.X, labels, random_state=random_state)
    except BayescopeError as error:
        if reference == "nuts":
            raise
        return Reference(None, f"The comparison with NUTS ended in an error: {error}")
    told = (
        "Every posterior was fitted anew to three quarters of these rows and judged on the rest: its scores are not "
        "those of the model above."
    )
    return Reference(comparison, told)


@final
@dataclass(frozen=True)
class _Obstacle:
    """Why not, and whether cost is the reason."""

    why: str
    cost: bool = False


@singledispatch
def _obstacle(estimator: Any, judged: Judged) -> _Obstacle | None:  # noqa: ARG001
    return _Obstacle(
        f"A {type(estimator).__name__} is not compared with NUTS: the comparison is for logistic and probit models, "
        "whose weights NUTS samples in seconds."
    )


@_obstacle.register
def _(estimator: BayesianLogisticRegression, judged: Judged) -> _Obstacle | None:
    if any(column.kind == "categorical" or np.isnan(column.values).any() for column in judged.columns):
        return _Obstacle("The comparison with NUTS takes tables of numbers; this one has labels, or values missing.")
    numbers = len(judged) * sum(estimator.posterior_.sizes)
    if numbers > MOST_NUMBERS:
        return _Obstacle(
            f"{len(judged)} rows and {sum(estimator.posterior_.sizes)} weights are more than NUTS reads in about a "
            f"minute (rows × weights: {numbers}, at most {MOST_NUMBERS}); reference='nuts' asks for it all the same.",
            cost=True,
        )
    return None
