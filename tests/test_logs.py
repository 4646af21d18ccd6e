"""Laws of the messages: each door says at INFO what it chose and why; by default nothing is heard."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import bayescope as bs

ROWS = np.random.default_rng(0).normal(size=(40, 3))
NUMBERS = ROWS[:, 0] + 0.1 * np.random.default_rng(1).normal(size=40)
LABELS = np.where(NUMBERS > 0, "walrus", "heron")
DATA = (torch.from_numpy(ROWS).float(), torch.from_numpy((NUMBERS > 0).astype(np.int64)))
OPTIONS = {"likelihood": "categorical", "generator": 0}


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def quadratic(x):
    return -0.5 * x @ x


def small(sampler):
    return lambda *given: sampler(quadratic, *given, draws=20, tune=20, chains=2, generator=0)


# What is fitted, and what its messages say.
DOORS = {
    "linear": (lambda: bs.BayesianLinearRegression().fit(ROWS, NUMBERS), "noise variance: .*maximises the evidence"),
    "logistic": (lambda: bs.BayesianLogisticRegression().fit(ROWS, LABELS), "chosen by posterior='auto': "),
    "generalised": (
        lambda: bs.BayesianGeneralizedLinearModel(likelihood="poisson").fit(ROWS, NUMBERS.round() ** 2),
        "prior precision of the weights: .*, which maximises",
    ),
    "mlp": (
        lambda: bs.BayesianMLPClassifier(hidden=(3,), random_state=0).fit(ROWS, LABELS),
        "learnt: prior precision, by ",
    ),
    "additive": (lambda: bs.NeuralAdditiveRegressor(random_state=0).fit(ROWS[:, :1], NUMBERS), "prior precision: "),
    "fit_map": (lambda: bs.fit_map(network(), DATA, likelihood="categorical", generator=0), "training: .*ended by"),
    "laplace": (lambda: bs.laplace(network(), DATA, **OPTIONS), "tuned: auto: .*a log loss of"),
    "variational": (lambda: bs.variational(network(), DATA, epochs=2, **OPTIONS), "training: 2 epochs"),
    "dropout": (lambda: bs.mc_dropout(network(), DATA, rate=0.1, epochs=2, **OPTIONS), "dropout: "),
    "swag": (lambda: bs.swag(network(), DATA, epochs=4, rank=2, **OPTIONS), "rows: 40"),
    "density.laplace": (lambda: bs.density.laplace(quadratic, [0.1, 0.2]), "optimiser: trust-ncg"),
    "density.variational": (lambda: bs.density.variational(quadratic, 2), "nodes: 32 × 32 Gauss–Hermite"),
    "density.nuts": (lambda: small(bs.density.nuts)(2), "chains run at a time, since a gradient takes"),
    "density.metropolis": (lambda: small(bs.density.metropolis)([0.1, 0.2]), "acceptance rate: "),
}


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize(("fit", "expected"), DOORS.values(), ids=DOORS.keys())
def test_each_door_says_what_was_chosen(fit, expected, caplog):
    torch.manual_seed(0)
    caplog.set_level(logging.INFO, "bayescope")
    found = fit()
    assert caplog.records
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert {record.name for record in caplog.records} == {"bayescope"}
    assert any(_says(expected, message) for message in caplog.messages), caplog.messages

    notes = getattr(found, "posterior_", found).record.notes
    maker = type(found).__name__ if hasattr(found, "posterior_") else found.record.method
    said = [f"{maker}: {name}: {note}" for name, note in notes.items()]
    assert [message for message in caplog.messages if "at a time" not in message] == said, "once, by the outermost"


def _says(expected: str, message: str) -> bool:
    return re.search(expected, message) is not None


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")
@pytest.mark.parametrize("fit", [DOORS["logistic"][0], DOORS["additive"][0], DOORS["laplace"][0]])
def test_no_message_has_a_value_of_a_row(fit, caplog):
    torch.manual_seed(0)
    caplog.set_level(logging.INFO, "bayescope")
    fit()
    text = " ".join(caplog.messages)
    assert "walrus" not in text
    assert "heron" not in text
    assert not any(f"{abs(number):.4g}" in text for number in (*ROWS.flatten(), *NUMBERS))


def test_at_warning_nothing_is_said(caplog):
    caplog.set_level(logging.WARNING, "bayescope")
    bs.BayesianLinearRegression().fit(ROWS, NUMBERS)
    assert not caplog.records


def test_updates_speak_too(caplog):
    model = bs.BayesianLinearRegression().fit(ROWS, NUMBERS)
    caplog.set_level(logging.INFO, "bayescope")
    model.partial_fit(ROWS, NUMBERS)
    assert any("BayesianLinearRegression: " in message for message in caplog.messages)


def test_queries_are_silent(caplog):
    model = bs.BayesianLinearRegression().fit(ROWS, NUMBERS)
    caplog.set_level(logging.DEBUG, "bayescope")
    model.predict_distribution(ROWS).summary()
    assert not caplog.records


def test_a_program_that_sets_up_no_logging_hears_nothing():
    code = """
import logging, sys
import bayescope as bs
assert not logging.getLogger().handlers
import numpy as np
X = np.random.default_rng(0).normal(size=(30, 2))
bs.BayesianLinearRegression().fit(X, X[:, 0] + X[:, 1] ** 2)
assert not logging.getLogger().handlers
assert [type(each).__name__ for each in logging.getLogger("bayescope").handlers] == ["NullHandler"]
assert logging.getLogger("bayescope").level == logging.NOTSET
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
