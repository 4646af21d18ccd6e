"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import BayesianLinearRegression, BayesianLogisticRegression, RadialBasis


# Some of the checks' tables have more columns than rows, and no noise is left to be learnt.
@pytest.mark.filterwarnings("ignore:prior_precision, noise_variance:bayescope.errors.ConvergenceWarning")
@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks(
    [
        BayesianLogisticRegression(),
        BayesianLogisticRegression(posterior="map", prior_precision="evidence", standardize=True),
        BayesianLogisticRegression(link="probit", features="polynomial"),
        BayesianLogisticRegression(features="rbf"),
        # With the weak default of the intercept's prior, a check that weighs classes 10⁷ to 1 takes half a minute.
        BayesianLogisticRegression(posterior="variational", intercept_prior_precision=0.05),
        BayesianLogisticRegression(posterior="mean_field", intercept_prior_precision=0.05),
        BayesianLogisticRegression(posterior="ep", link="probit"),
        BayesianLinearRegression(),
        BayesianLinearRegression(features="rbf", fit_intercept=False),
        RadialBasis(),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
