"""Points of the benchmark of first answers: linear regression in any unit and from any origin."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

import bayescope as bs
from bayescope.errors import BayescopeError
from bench.first_answer_points import Point

SECTION = "Linear and logistic models: units, origins and wide tables"
# Address space of the process that fits 40,000 columns: code that asks for more fails, and takes no machine with it.
ADDRESS_SPACE = 8 * 2**30


def far_target(quick: bool) -> dict[str, float]:
    """R² on new rows of y = 10,000 + 3,000 (0.8 x + 0.6 noise)."""
    rng = np.random.default_rng(0)
    rows = 100 if quick else 1000
    x = rng.standard_normal((2 * rows, 1))
    y = 10_000 + 3_000 * (0.8 * x[:, 0] + 0.6 * rng.standard_normal(2 * rows))
    plain, scaled = (bs.BayesianLinearRegression(**options) for options in ({}, {"standardize": True}))
    return {
        "R² of the default": plain.fit(x[:rows], y[:rows]).score(x[rows:], y[rows:]),
        "R² with standardize=True": scaled.fit(x[:rows], y[:rows]).score(x[rows:], y[rows:]),
    }


def diabetes(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """R² on the second half of diabetes, its y multiplied by 100."""
    X, y = load_diabetes(return_X_y=True)
    return {"R²": bs.BayesianLinearRegression().fit(X[:221], 100 * y[:221]).score(X[221:], 100 * y[221:])}


def command(quick: bool) -> dict[str, float]:
    """The error of `bayescope fit --model linear` on its own rows, as a share of that of the mean."""
    rng = np.random.default_rng(0)
    rows = 100 if quick else 500
    x = rng.standard_normal(rows)
    y = 100_000 + 58_000 * (0.8 * x + 0.6 * rng.standard_normal(rows))
    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "t.csv", Path(folder) / "m.bayes"
        pd.DataFrame({"x": x, "y": y}).to_csv(table, index=False)
        run = [sys.executable, "-m", "bayescope_command", "fit", str(table), "--target", "y", "--model", "linear"]
        subprocess.run([*run, "--out", str(model)], check=True, capture_output=True)
        found = bs.load(model).predict(pd.DataFrame({"x": x}))
    return {"error / error of the mean": float(np.sqrt(np.mean((found - y) ** 2)) / y.std())}


def equivariance(quick: bool) -> dict[str, float]:
    """The largest change of an answer when y and the columns of X get other units and origins."""
    regression = classification = 0.0
    for seed in range(2 if quick else 10):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((80, 4)) * 10.0 ** rng.uniform(-2, 2, 4)
        y = (X / X.std(0)) @ rng.standard_normal(4) + rng.standard_normal(80)
        unit, origin = 10.0 ** rng.uniform(-4, 4, 4), rng.normal(0, 100, 4) * X.std(0)
        other = (X + origin) * unit
        plain = bs.BayesianLinearRegression().fit(X, y).predict(X)
        moved = bs.BayesianLinearRegression().fit(other, 10_000 + 3_000 * y).predict(other)
        regression = max(regression, float(np.abs((moved - 10_000) / 3_000 - plain).max() / y.std()))
        plain = bs.BayesianLogisticRegression().fit(X, y > 0).predict_proba(X)
        moved = bs.BayesianLogisticRegression().fit(other, y > 0).predict_proba(other)
        classification = max(classification, float(np.abs(moved - plain).max()))
    return {"change of a mean / sd of y": regression, "change of a probability": classification}


def wide(model: Callable[[], Any], quick: bool) -> dict[str, float]:
    """CPU seconds of a fit to 100 rows of 8,000 columns, and of its predictions of 50 rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 800 if quick else 8000))
    y = X[:, :20].sum(1)
    target = y > 0 if hasattr(model(), "class_weight") else y
    start = time.process_time()
    model().fit(X[:100], target[:100]).predict(X[100:])
    return {"CPU seconds": time.process_time() - start}


def very_wide(quick: bool) -> dict[str, float]:
    """Whether 300 rows of 40,000 columns are fitted, or refused by the library's own error, within 8 GiB."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4_000 if quick else 40_000))
    bs.BayesianLinearRegression().fit(X, X[:, 0])
    return {"answered": 1.0}


def odd_inputs(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """How many unusual inputs get an answer, or an error of the library."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(-9, 9, (60, 3)).astype(float), rng.standard_normal(60)
    classes = (y > 0).astype(">i8")
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y)
    names = pd.DataFrame({"id": [f"record {k}" for k in range(2000)]})
    linear, logistic = bs.BayesianLinearRegression, bs.BayesianLogisticRegression
    cases: list[Callable[[], Any]] = [
        lambda: linear(standardize=False, fit_intercept=False).fit(X[:, ::-1], y).coef_,
        lambda: logistic().fit(X, classes).coef_,
        lambda: linear().fit(frame, "y").coef_,
        lambda: linear().fit(X, np.full(60, 3.0)).predict(X),
        lambda: _refused(lambda: logistic(class_weight={7: 2.0}).fit(X, classes.astype(int))),
        lambda: _refused(lambda: linear(categorical=0).fit(X, y)),
        lambda: _refused(lambda: linear().fit(names, rng.standard_normal(2000))),
    ]
    return {"of 7": float(sum(_well(case) for case in cases))}


def _refused(call: Callable[[], Any]) -> float:
    try:
        call()
    except BayescopeError:
        return 1.0
    return float("nan")


def _well(call: Callable[[], Any]) -> bool:
    try:
        return bool(np.isfinite(call()).all())
    except (BayescopeError, AttributeError, TypeError, ValueError):
        return False


POINTS: tuple[Point, ...] = (
    Point(
        SECTION, "linear_far_target", "y = 10,000 + 3,000 (0.8 x + 0.6 noise); the truth has R² = 0.64.", far_target,
        {"R² of the default": "≥ 0.6", "R² with standardize=True": "≥ 0.6"},
    ),
    Point(
        SECTION, "linear_diabetes", "Diabetes, y multiplied by 100.", diabetes, {"R²": "≥ 0.45"},
    ),
    Point(
        SECTION, "linear_command", "`bayescope fit --model linear` on y around 100,000 with sd 58,000.", command,
        {"error / error of the mean": "≤ 0.7"},
    ),
    Point(
        SECTION, "linear_equivariance", "Ten tables, each also with other units and origins of y and of each column.",
        equivariance, {"change of a mean / sd of y": "≤ 1e-8", "change of a probability": "≤ 1e-8"},
    ),
    Point(
        SECTION, "linear_wide_regression", "100 rows of 8,000 columns, `BayesianLinearRegression()`.",
        lambda quick: wide(bs.BayesianLinearRegression, quick), {"CPU seconds": "≤ 2"},
    ),
    Point(
        SECTION, "linear_wide_classification", "100 rows of 8,000 columns, `BayesianLogisticRegression()`.",
        lambda quick: wide(bs.BayesianLogisticRegression, quick), {"CPU seconds": "≤ 2"},
    ),
    Point(
        SECTION, "linear_very_wide", "300 rows of 40,000 columns in a process of 8 GiB.", very_wide,
        {"answered": "≥ 1"},
    ),
    Point(
        SECTION, "linear_odd_inputs",
        "Negative strides, big-endian classes, a target named in memory, a constant y; and with a clear error a class "
        "that is not there, `categorical=0` and labels that name rows.",
        odd_inputs, {"of 7": "≥ 7"},
    ),
)  # fmt: skip
