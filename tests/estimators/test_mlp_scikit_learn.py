"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import BayesianMLPClassifier, BayesianMLPRegressor


@pytest.mark.filterwarnings("ignore:The network predicts the same for every row")  # of targets that are noise
@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
# As small, and trained as little, as the checks of scores allow; one learns its prior by the evidence, one does not.
@parametrize_with_checks(
    [
        BayesianMLPClassifier(hidden=(8,), epochs=8, lr=0.1, prior_precision=1.0),
        BayesianMLPRegressor(hidden=(4,), epochs=4, lr=0.2, batch_size=64),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
