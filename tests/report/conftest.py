"""Small fitted models and what a report computes of them, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from bayescope import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    NeuralAdditiveClassifier,
    NeuralAdditiveRegressor,
)
from bayescope.report import facts, judged

# What a browser would run, or a template would read, if any of it were taken as more than text.
HOSTILE = "</script><script>window.broken = 1</script>{{ 7 * 7 }} & %{x}"
HOSTILE_LABEL = '"><img src=x onerror="window.broken = 1"><b>bold</b>'


class Case(NamedTuple):
    """A fitted estimator, rows that it was not fitted to, and (X, y) that it was fitted to."""

    estimator: Any
    X: Any
    y: Any
    fitted: Any = None

    def judged(self) -> judged.Judged:
        return judged.Judged.of(self.estimator, self.X, self.y, 0)


def mixed(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A table with numbers, a column of hostile name, labels, missing values; and a signal in them."""
    generator = np.random.default_rng(seed)
    age = generator.uniform(20, 80, rows)
    dose = generator.normal(size=rows)
    kind = generator.choice(["plain", HOSTILE_LABEL, "rare"], rows, p=[0.6, 0.35, 0.05])
    signal = 0.06 * (age - 50) + 1.2 * dose * (age > 50) + 1.5 * (kind == "plain") - 0.8
    age[generator.random(rows) < 0.08] = np.nan
    frame = pd.DataFrame({"age": age, HOSTILE: dose, "kind": kind, "noise": generator.normal(size=rows)})
    return frame, signal


def additive_options() -> dict[str, Any]:
    return {"hidden": 8, "pair_hidden": 8, "epochs": 12, "interactions": [("age", HOSTILE)], "random_state": 0}


@pytest.fixture(scope="session")
def additive_classes() -> Case:
    X, signal = mixed(260, 0)
    y = pd.Series(np.where(signal + np.random.default_rng(1).logistic(size=260) > 0, "ill", "well"), name="outcome")
    model = NeuralAdditiveClassifier(**additive_options()).fit(X[:140], y[:140])
    return Case(model, X[140:], y[140:], (X[:140], y[:140]))


@pytest.fixture(scope="session")
def additive_numbers() -> Case:
    X, signal = mixed(260, 2)
    y = pd.Series(10.0 * signal + np.random.default_rng(3).normal(size=260), name="cost")
    return Case(
        NeuralAdditiveRegressor(**additive_options()).fit(X[:140], y[:140]), X[140:], y[140:], (X[:140], y[:140])
    )


@pytest.fixture(scope="session")
def logistic() -> Case:
    X, y = _blobs(2)
    return Case(BayesianLogisticRegression(standardize=True).fit(X[::2], y[::2]), X[1::2], y[1::2], (X[::2], y[::2]))


@pytest.fixture(scope="session")
def three_classes() -> Case:
    X, y = _blobs(3)
    return Case(BayesianLogisticRegression(standardize=True).fit(X[::2], y[::2]), X[1::2], y[1::2], (X[::2], y[::2]))


@pytest.fixture(scope="session")
def linear() -> Case:
    generator = np.random.default_rng(5)
    X = generator.normal(size=(160, 3))
    y = X @ np.array([2.0, -1.0, 0.0]) + 0.5 * generator.normal(size=160) + 30.0
    return Case(BayesianLinearRegression().fit(X[::2], y[::2]), X[1::2], y[1::2])


@pytest.fixture(scope="session")
def facts_of() -> Callable[..., facts.Facts]:
    """Facts of a case, each computed once."""
    known: dict[int, facts.Facts] = {}

    def gather(case: Case, *, held_out: bool | None = True) -> facts.Facts:
        key = hash((id(case.estimator), held_out))
        if key not in known:
            known[key] = facts.gathered(
                case.estimator, case.judged(), reference=None, random_state=0, held_out=held_out
            )
        return known[key]

    return gather


def _blobs(classes: int) -> tuple[pd.DataFrame, pd.Series]:
    generator = np.random.default_rng(4)
    y = generator.integers(classes, size=200)
    X = generator.normal(size=(200, 3))
    X[:, 0] += 1.5 * y
    X[:, 1] -= 0.8 * (y == 1)
    return pd.DataFrame(X, columns=["width", "height", "noise"]), pd.Series(np.array(["a", "b", "c"])[y], name="kind")
