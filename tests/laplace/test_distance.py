"""The word about weights that are no mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bayescope import function_space, laplace
from bayescope.errors import BayescopeWarning, ConvergenceWarning
from bayescope.laplace import Distance, fit_evidence, select, tune_prior
from tests.laplace.problems import flat, mlp, normal, set_flat

# The share of the determined parameters that λ² exceeds far from a mode.
FAR = 0.1
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


X = normal(12, 2, seed=1)
OPTIONS: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 1e-3}


def confident(*, seed: int = 0) -> nn.Module:
    """A network whose weights are far from a mode under any prior, and much surer of the labels than the evidence."""
    module = mlp(2, seed=seed)
    set_flat(module, 4.0 * flat(module))
    return module


Y = confident()(X).argmax(1)


def _far() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return laplace(confident(), (X, Y), **OPTIONS)


CALLS: dict[str, Callable[[], object]] = {
    "laplace": lambda: laplace(confident(), (X, Y), **OPTIONS),
    "of several": lambda: laplace([confident(), confident(seed=1)], (X, Y), **OPTIONS),
    "tuned": lambda: laplace(confident(), (X, Y), likelihood="categorical", prior_precision="evidence"),
    "samples": lambda: laplace(confident(), (X, Y), structure="samples", samples=2, generator=0, **OPTIONS),
    "function space": lambda: function_space(confident(), (X, Y), **OPTIONS),
    "function space, tuned": lambda: function_space(
        confident(), (X, Y), likelihood="categorical", prior_precision="evidence"
    ),
    "tune_prior": lambda: tune_prior(_far()),
    "tune_prior by validation": lambda: tune_prior(_far(), method="validation", data=(X, Y)),
    "select": lambda: select([confident()], (X, Y), likelihood="categorical"),
    "select posteriors": lambda: select([_far(), laplace(confident(), (X, Y), structure="full", **OPTIONS)]),
    "fit_evidence": lambda: fit_evidence(
        confident(),
        (X, Y),
        likelihood="categorical",
        epochs=2,
        burn_in=1,
        every=1,
        lr=1e-9,
        progress=False,
        generator=0,
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
