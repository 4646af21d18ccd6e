"""Points of the benchmark of first answers: gaps, unseen labels and raw tables at prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes

import bayescope as bs
from bench.first_answer_points import Point

SECTION = "Tables at prediction"


def sd_of_a_gap(model: Any, X: np.ndarray) -> dict[str, float]:
    """The sd of y where the first column is missing, and its share of the integral over the training rows' values."""
    row = np.array([np.nan, *np.full(X.shape[1] - 1, 0.5)])
    every = np.repeat(row[None], len(X), 0)
    every[:, 0] = X[:, 0]
    mean, sd = model.predict(every, return_std=True)
    expected = float(np.sqrt((sd**2).mean() + mean.var()))
    found = float(model.predict(row[None], return_std=True)[1][0])
    return {"sd": found, "share of the integral's sd": found / expected}


def line(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Three independent columns, the first of which moves y most, and little noise."""
    source = np.random.default_rng(0)
    X = source.standard_normal((rows, 3))
    return X, X @ [2.0, 1.0, 0.5] + 0.03 * source.standard_normal(rows)


def linear_gap(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """Of linear regression."""
    X, y = line(300)
    return sd_of_a_gap(bs.BayesianLinearRegression().fit(X, y), X)


def network_gap(quick: bool) -> dict[str, float]:
    """Of a network."""
    X, y = line(100 if quick else 300)
    return sd_of_a_gap(bs.BayesianMLPRegressor(random_state=0).fit(X, y), X)


def coverage(quick: bool) -> dict[str, float]:
    """Of 95 % intervals on held-out rows of four correlated columns, a fifth of whose values are missing."""
    inside = []
    for seed in range(5 if quick else 40):
        source = np.random.default_rng(seed)
        X = source.standard_normal((800, 4)) @ source.standard_normal((4, 4))
        y = X @ source.standard_normal(4) + 0.3 * source.standard_normal(800)
        gaps = np.where(source.random((400, 4)) < 0.2, np.nan, X[400:])
        model = bs.BayesianLinearRegression().fit(X[:400], y[:400])
        low, high = model.predict_distribution(gaps).interval(0.95)
        inside.append((low[:, 0] <= y[400:]) & (y[400:] <= high[:, 0]))
    return {"coverage": float(np.mean(inside))}


def unseen_label(quick: bool) -> dict[str, float]:  # noqa: ARG001
    """Of the encoding by position: an unseen label's sd as a share of the sd that the labels' effects have."""
    source = np.random.default_rng(0)
    codes = source.integers(0, 5, 400)
    frame = pd.DataFrame({"tree": np.array(["ash", "beech", "cedar", "douglas", "elm"])[codes]})
    y = 2.0 * codes + 0.3 * source.standard_normal(400)
    model = bs.BayesianLinearRegression(encoding="ordinal").fit(frame, y)
    row = pd.DataFrame({"tree": ["yew"]})
    mean, sd = model.predict(row, return_std=True)
    return {
        "share of the labels' sd": float(sd[0] / y.std()),
        "distance from the mean label, in sds of the labels": float(abs(mean[0] - y.mean()) / y.std()),
    }


def raw_table(quick: bool) -> dict[str, float]:
    """The estimator's posterior asked with the table that the estimator was fitted to."""
    import arviz

    X, y = load_breast_cancer(return_X_y=True)
    model = bs.BayesianLogisticRegression(standardize=True, random_state=0).fit(X, y)
    differences = np.abs(np.asarray(model.posterior_.predict(X).probs) - model.predict_proba(X))
    X, y = load_diabetes(return_X_y=True, scaled=False)
    regression = bs.BayesianLinearRegression(standardize=True).fit(X, y)
    loo = arviz.loo(regression.posterior_.to_arviz(data=(X, y), draws=200 if quick else 1000, generator=0))
    elpd = loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd
    return {
        "largest difference of a probability": float(differences.max()),
        "LOO log density per row": float(elpd) / len(y),
    }


POINTS: tuple[Point, ...] = (
    Point(
        SECTION,
        "gap-linear",
        "y = 2 x0 + x1 + x2 / 2 + noise of sd 0.03, 300 rows; `BayesianLinearRegression()` predicts a row without x0.",
        linear_gap,
        {"sd": "≥ 1.9", "share of the integral's sd": "≥ 0.98"},
    ),
    Point(
        SECTION,
        "gap-network",
        "The same with `BayesianMLPRegressor()`.",
        network_gap,
        {"sd": "≥ 1.8", "share of the integral's sd": "≥ 0.9"},
    ),
    Point(
        SECTION,
        "gap-coverage",
        "Four correlated columns, 400 rows, 40 times; a fifth of the held-out values missing: 95 % intervals of "
        "`BayesianLinearRegression()`.",
        coverage,
        {"coverage": "≥ 0.93"},
    ),
    Point(
        SECTION,
        "unseen-label",
        'Five labels with the effects 0, 2, 4, 6, 8 by `encoding="ordinal"`; a row has a sixth label.',
        unseen_label,
        {"share of the labels' sd": "≥ 0.98", "distance from the mean label, in sds of the labels": "≤ 0.1"},
    ),
    Point(
        SECTION,
        "raw-table",
        "Breast cancer, standardised: `model.posterior_.predict(X)` beside `model.predict_proba(X)`; ArviZ LOO "
        "of diabetes from `model.posterior_.to_arviz(data=(X, y))`.",
        raw_table,
        {"largest difference of a probability": "≤ 1e-12", "LOO log density per row": "≥ -5.6"},
    ),
)
