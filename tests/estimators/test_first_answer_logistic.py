"""The default of logistic regression is as good as the point estimate, on separable tables too, and says what it is."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold

from bayescope.errors import BayescopeWarning
from bayescope.estimators import BayesianLogisticRegression

SPLITS = 3
TABLES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
}


def scores(model: BayesianLogisticRegression, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """NLL and accuracy."""
    log_probs = model.predict_log_proba(X)
    return -float(log_probs[np.arange(len(y)), y].mean()), float((log_probs.argmax(1) == y).mean())


def beside_map(X: np.ndarray, y: np.ndarray, prior_precision: str | float) -> tuple[list[np.ndarray], list[float]]:
    """For each of three splits, what the default adds to MAP's log loss of each row, and its accuracy less MAP's."""
    added, gained = [], []
    for train, test in StratifiedKFold(SPLITS, shuffle=True, random_state=0).split(X, y):
        default, point = (
            BayesianLogisticRegression(prior_precision=prior_precision, **options)
            .fit(X[train], y[train])
            .predict_log_proba(X[test])
            for options in ({}, {"posterior": "map"})
        )
        rows = np.arange(len(test))
        added.append((point - default)[rows, y[test]])
        gained.append(float((default.argmax(1) == y[test]).mean() - (point.argmax(1) == y[test]).mean()))
    return added, gained


def check_beside_map(X: np.ndarray, y: np.ndarray, prior_precision: str | float = "evidence") -> None:
    """The default's log loss is MAP's + .01 at most: in the mean over the splits, and in each to two standard errors.

    No single split of 36 rows can be held to .01: on one of wine, one row costs the default .016 and NUTS still more.
    A precision that is given may be far from what the data say: then the mean has two standard errors, too.
    """
    added, gained = beside_map(X, y, prior_precision)
    rows = np.concatenate(added)
    assert rows.mean() <= 0.01 + (prior_precision != "evidence") * 2.0 * rows.std(ddof=1) / np.sqrt(len(rows))
    for split in added:
        assert split.mean() <= 0.01 + 2.0 * split.std(ddof=1) / np.sqrt(len(split))
    assert np.mean(gained) >= -0.02  # of about 40 rows one is .025
    assert min(gained) * len(y) / SPLITS >= -2.5  # two rows


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("prior_precision", ["evidence", 1.0])
def test_the_default_is_as_good_as_the_point_estimate(name: str, prior_precision: str | float) -> None:
    check_beside_map(*TABLES[name](), prior_precision)


@pytest.mark.parametrize("name", ["glass", "vehicle", "sonar"])
def test_the_default_is_as_good_as_the_point_estimate_on_published_tables(name: str, reference_data: Path) -> None:
    if name == "sonar":
        frame = pd.read_csv(reference_data / "tabular" / "sonar.csv", header=None)
        X, labels = frame.iloc[:, :-1].to_numpy(float), frame.iloc[:, -1]
    else:
        X, labels = (np.loadtxt(reference_data / "uci_classification" / name / f"{part}.txt") for part in "XY")
    some = slice(None, None, 2 if name == "vehicle" else 1)  # of 846 rows
    check_beside_map(X[some], np.unique(labels, return_inverse=True)[1][some])


def test_laplace_of_separable_classes_warns_and_says_what_to_do() -> None:
    X, y = load_wine(return_X_y=True)
    with pytest.warns(BayescopeWarning, match="may be worse than those of its mode.*posterior='auto'"):
        BayesianLogisticRegression(posterior="laplace").fit(X, y)


def test_the_choice_stands_at_the_top_of_the_summary() -> None:
    X, y = load_wine(return_X_y=True)
    model = BayesianLogisticRegression(prior_precision=1.0).fit(X, y)
    assert model.posterior_.record.method == "variational"
    assert re.match("variational, chosen by posterior='auto'", model.posterior_.record.notes["posterior"])
    assert "chosen by posterior='auto'" in "\n".join(model.summary().splitlines()[:5])
    y = (y == 0).astype(int)
    assert BayesianLogisticRegression(prior_precision=1.0).fit(X, y).posterior_.record.method == "ep"


@pytest.mark.parametrize("seed", range(5))
def test_many_rows_take_laplace(seed: int) -> None:
    """Its answer is then that of posterior="laplace", which does not warn."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((3_000, 3)) * 10.0 ** rng.integers(-3, 4, 3)
    y = (X @ rng.standard_normal(3) / X.std() + rng.logistic(size=3_000) > 0).astype(int)
    default, laplace = (BayesianLogisticRegression(**options).fit(X, y) for options in ({}, {"posterior": "laplace"}))
    assert default.posterior_.record.method == "laplace"
    np.testing.assert_array_equal(default.predict_proba(X), laplace.predict_proba(X))


def test_tiny_separable_tables_are_answered_without_a_warning() -> None:
    """Where expectation propagation's evidence has no maximum, the bound has one."""
    scored, methods = [], set()
    for rows, columns, seed in itertools.product((4, 40), (1, 2), range(2)):
        rng = np.random.default_rng([rows, columns, seed])
        X = rng.standard_normal((rows + 1_000, columns)) * 10.0 ** rng.integers(-3, 4, columns)
        f = X / X.std(0) @ rng.standard_normal(columns)
        X[0], f[0] = -X[1], -f[1]  # both classes are there
        y = (f > 0).astype(int)
        default = BayesianLogisticRegression().fit(X[:rows], y[:rows])
        point = BayesianLogisticRegression(posterior="map", prior_precision=default.prior_precision_)
        point.fit(X[:rows], y[:rows])
        assert default.score(X[:rows], y[:rows]) == 1.0
        scored.append([scores(model, X[rows:], y[rows:])[0] for model in (default, point)])
        methods.add(default.posterior_.record.method)
    nll, point_nll = np.mean(scored, 0)
    assert nll <= point_nll + 0.01
    assert methods == {"ep", "variational"}
