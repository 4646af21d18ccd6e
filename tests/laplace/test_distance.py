"""The word about weights that are no mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bayescope.errors import BayescopeWarning, ConvergenceWarning
from bayescope.gaussian_process.function_space import function_space
from bayescope.laplace.distance import FAR, Distance
from bayescope.laplace.laplace import laplace
from bayescope.laplace.online import fit_evidence
from bayescope.laplace.selection import select
from bayescope.laplace.tuning import tune_prior
from tests.laplace.problems import mlp, normal

CASES = [(0.0, 0.0, 0), (0.9 * FAR, 0.5, 0), (1.1 * FAR, 0.5, 1), (27 * FAR, 30.0, 0), (33 * FAR, 30.0, 1)]


@pytest.mark.parametrize(("squared", "determined", "far"), CASES)
def test_far_is_a_share_of_what_the_data_determine_and_at_least_of_one(squared, determined, far):
    distance = Distance(squared, determined)
    assert distance.is_far == far
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distance.warn("Do this.")
    assert len(caught) == far
    if far:
        assert issubclass(caught[0].category, ConvergenceWarning)
        assert caught[0].filename == __file__
        assert f"{0.5 * squared:.3g} nats. Do this." in str(caught[0].message)


X, Y = normal(12, 2, seed=1), torch.arange(12) % 2
OPTIONS: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 30.0}


def _far() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return laplace(mlp(2), (X, Y), **OPTIONS)


CALLS: dict[str, Callable[[], object]] = {
    "laplace": lambda: laplace(mlp(2), (X, Y), **OPTIONS),
    "of several": lambda: laplace([mlp(2), mlp(2, seed=1)], (X, Y), **OPTIONS),
    "tuned": lambda: laplace(mlp(2), (X, Y), likelihood="categorical", prior_precision="evidence"),
    "samples": lambda: laplace(mlp(2), (X, Y), structure="samples", samples=2, generator=0, **OPTIONS),
    "function space": lambda: function_space(mlp(2), (X, Y), **OPTIONS),
    "function space, tuned": lambda: function_space(
        mlp(2), (X, Y), likelihood="categorical", prior_precision="evidence"
    ),
    "tune_prior": lambda: tune_prior(_far()),
    "tune_prior by validation": lambda: tune_prior(_far(), method="validation", data=(X, 1 - Y)),
    "select": lambda: select([mlp(2)], (X, Y), likelihood="categorical"),
    "select posteriors": lambda: select([_far(), laplace(mlp(2), (X, Y), structure="full", **OPTIONS)]),
    "fit_evidence": lambda: fit_evidence(
        mlp(2), (X, Y), likelihood="categorical", epochs=2, burn_in=1, every=1, lr=1e-9, progress=False, generator=0
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("inside", ["plain", "no_grad"])
def test_a_warning_is_shown_at_the_callers_line(name: str, inside: str) -> None:
    call = CALLS[name] if inside == "plain" else torch.no_grad()(CALLS[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    told = [warning for warning in caught if issubclass(warning.category, BayescopeWarning)]
    assert told
    assert {warning.filename for warning in told} == {__file__}


def test_the_advice_names_an_optimizer_that_comes_to_rest() -> None:
    for name in ("laplace", "tune_prior", "fit_evidence"):
        with pytest.warns(ConvergenceWarning, match="optimizer='lbfgs'"):
            CALLS[name]()
