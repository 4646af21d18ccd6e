"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import NeuralAdditiveClassifier, NeuralAdditiveRegressor


@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
@parametrize_with_checks(
    [
        NeuralAdditiveClassifier(hidden=3, epochs=6),
        NeuralAdditiveClassifier(hidden=3, epochs=6, posterior="map", share_prior="net", numeric_transform="quantile"),
        NeuralAdditiveRegressor(hidden=3, epochs=6),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
