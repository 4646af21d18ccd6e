"""Points of the benchmark of first answers: logistic regression on real tables, beside plain MAP."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayescope as bs
from bench.first_answer_laplace import FOLDER
from bench.first_answer_points import Point

HEART = "Statlog heart"
TABLES = ("breast_cancer", "iris", "wine", HEART, "digits")
SECTION = "Logistic regression beside MAP"


def beside_map(name: str, quick: bool) -> dict[str, float]:
    """The worst split of five: what the default adds to MAP's test NLL, and how far its accuracy is below."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
    added, lost = [], []
    for train, test in folds[: 1 if quick else 5]:
        found = []
        for options in ({}, {"posterior": "map"}):
            model = bs.BayesianLogisticRegression(prior_precision="evidence", standardize=True, **options)
            log_probs = model.fit(X[train], y[train]).predict_log_proba(X[test])
            nll = -float(log_probs[np.arange(len(test)), y[test]].mean())
            found.append((nll, float((log_probs.argmax(1) == y[test]).mean())))
        added.append(found[0][0] - found[1][0])
        lost.append(found[1][1] - found[0][1])
    return {"NLL above MAP's, worst split": max(added), "accuracy below MAP's, worst split": max(lost)}


def readme(quick: bool) -> dict[str, float]:
    """README's first example on five tables: its test scores less those of scikit-learn's logistic regression."""
    found = {}
    for name in TABLES[: 2 if quick else 5]:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True) if name != HEART else heart()
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
        model = bs.BayesianLogisticRegression(prior_precision="evidence", standardize=True).fit(X_train, y_train)
        plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(X_train, y_train)
        ours, theirs = model.predict_proba(X_test), plain.predict_proba(X_test)
        found[f"{name}: NLL above"] = log_loss(y_test, ours) - log_loss(y_test, theirs)
        found[f"{name}: accuracy below"] = float(
            (theirs.argmax(1) == y_test).mean() - (ours.argmax(1) == y_test).mean()
        )
    return found


def heart() -> tuple[np.ndarray, np.ndarray]:
    """Statlog's heart table: 270 rows of 13 columns."""
    table = np.loadtxt(FOLDER / "tabular" / "heart" / "statlog_heart.dat", skiprows=1)
    return table[:, :-1], (table[:, -1] == 2).astype(int)


def seconds_of_digits(quick: bool) -> dict[str, float]:
    """Seconds of full variational inference of ten classes and 650 weights."""
    X, y = datasets.load_digits(return_X_y=True)
    if quick:
        X, y = X[:300], y[:300]
    begun = time.perf_counter()
    bs.BayesianLogisticRegression(posterior="variational", prior_precision=1.0, standardize=True).fit(X, y)
    return {"seconds": time.perf_counter() - begun}


POINTS: tuple[Point, ...] = (
    Point(
        SECTION,
        "readme",
        "README's first example on five public tables, test scores beside scikit-learn's `LogisticRegression`.",
        readme,
        {f"{name}: {what}": "≤ 0.02" for name in TABLES for what in ("NLL above", "accuracy below")},
        240.0,
    ),
    *(
        Point(
            SECTION,
            f"logistic_{name}",
            f"`BayesianLogisticRegression` on {name}, five splits, prior precision learnt.",
            partial(beside_map, name),
            {"NLL above MAP's, worst split": "≤ 0.01", "accuracy below MAP's, worst split": "≤ 0.01"},
        )
        for name in ("iris", "wine", "breast_cancer")
    ),
    Point(
        SECTION,
        "logistic_digits_variational",
        'Digits, `posterior="variational"`, 650 weights, 1,797 rows.',
        seconds_of_digits,
        {"seconds": "≤ 10"},
    ),
)
