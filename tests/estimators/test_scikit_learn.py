"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import (
    BayesianGeneralizedLinearModel,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    RadialBasis,
)


# Some of the checks' tables have more columns than rows, and no noise is left to be learnt; others are separable, and
# the evidence has no maximum; one has a constant y.
@pytest.mark.filterwarnings("ignore:prior_precision:bayescope.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:posterior='laplace':bayescope.errors.BayescopeWarning")
@pytest.mark.filterwarnings("ignore:likelihood. the evidence:bayescope.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:y. expected numbers that vary:bayescope.errors.BayescopeWarning")
@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks(
    [
        BayesianLogisticRegression(prior_precision=1.0),
        BayesianLogisticRegression(posterior="laplace"),
        # With the flat prior of the intercept, a check that weighs classes 10⁷ to 1 takes half a minute.
        BayesianLogisticRegression(posterior="variational", prior_precision=1.0, intercept_prior_precision=0.05),
        BayesianLogisticRegression(
            posterior="mean_field", features="polynomial", prior_precision=1.0, intercept_prior_precision=0.05
        ),
        BayesianLogisticRegression(posterior="ep", link="probit", features="rbf", prior_precision=1.0),
        BayesianGeneralizedLinearModel(prior_precision=1.0),
        BayesianLinearRegression(),
        BayesianLinearRegression(features="rbf", fit_intercept=False),
        RadialBasis(),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
