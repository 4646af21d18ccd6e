"""No rows have no predictions: every estimator answers with arrays of length 0, whose other axes are as always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bayescope.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    NeuralAdditiveClassifier,
    NeuralAdditiveRegressor,
)

# Networks that are hardly trained predict the same for every row, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:The network predicts:bayescope.errors.ConvergenceWarning")
NETWORK: dict[str, Any] = {"hidden": (3,), "epochs": 2, "random_state": 0}
ADDITIVE: dict[str, Any] = {"hidden": 2, "epochs": 7, "random_state": 0}
CLASSIFIERS = [
    BayesianLogisticRegression(),
    BayesianLogisticRegression(features="rbf", standardize=True, random_state=0),
    BayesianLogisticRegression(posterior="ep", link="probit"),
    BayesianMLPClassifier(**NETWORK),
    BayesianMLPClassifier(posterior="variational", draws=3, **NETWORK),
    BayesianMLPClassifier(posterior="ensemble", members=2, **NETWORK),
    NeuralAdditiveClassifier(**ADDITIVE),
]
REGRESSORS = [
    BayesianLinearRegression(),
    BayesianLinearRegression(standardize=True, encoding="ordinal"),
    BayesianMLPRegressor(**NETWORK),
    NeuralAdditiveRegressor(**ADDITIVE),
]


def frame(rows: int = 40) -> pd.DataFrame:
    """A number with gaps, labels, and a truth value."""
    source = np.random.default_rng(0)
    age = np.where(np.arange(rows) % 9 == 0, np.nan, source.normal(size=rows))
    return pd.DataFrame({"age": age, "ward": source.choice(["a", "b"], rows), "old": source.normal(size=rows) > 0})


TABLES = {"frame": frame(), "array": np.random.default_rng(1).normal(size=(40, 2))}


@pytest.mark.parametrize(("table", "classes"), [("frame", 2), ("array", 2), ("array", 3)])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=str)
def test_classes_of_no_rows(estimator: Any, classes: int, table: str):
    if estimator.posterior == "ep":  # which is for two classes
        classes = 2
    X = TABLES[table]
    model = estimator.fit(X, np.arange(40) % classes)
    none = X[:0]
    assert model.predict(none).shape == (0,)
    assert model.predict_proba(none).shape == (0, classes)
    assert model.predict_log_proba(none).shape == (0, classes)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("estimator", REGRESSORS, ids=str)
def test_numbers_of_no_rows(estimator: Any, table: str):
    X = TABLES[table]
    model = estimator.fit(X, np.sin(np.arange(40.0)))
    mean, sd = model.predict(X[:0], return_std=True)
    assert mean.shape == sd.shape == (0,)


def test_a_tensor_and_other_columns():
    model = BayesianLinearRegression().fit(TABLES["array"], np.arange(40.0))
    assert model.predict(torch.zeros(0, 2)).shape == (0,)
    with pytest.raises(ValueError, match="expecting 2 features"):
        model.predict(np.zeros((0, 3)))
