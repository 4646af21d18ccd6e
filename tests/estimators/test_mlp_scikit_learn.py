"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import BayesianMLPClassifier, BayesianMLPRegressor


@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks(
    [BayesianMLPClassifier(hidden=(16,), epochs=40), BayesianMLPRegressor(hidden=(16,), epochs=40)]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
