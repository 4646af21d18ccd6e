"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, RadialBasis


@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks(
    [
        BayesianLogisticRegression(),
        BayesianLogisticRegression(posterior="map", prior_precision="evidence", standardize=True),
        BayesianLogisticRegression(link="probit", features="polynomial"),
        BayesianLogisticRegression(features="rbf"),
        BayesianLogisticRegression(posterior="variational"),
        BayesianLogisticRegression(posterior="mean_field"),
        BayesianLogisticRegression(posterior="ep", link="probit"),
        BayesianLinearRegression(),
        BayesianLinearRegression(features="rbf", fit_intercept=False),
        RadialBasis(),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
