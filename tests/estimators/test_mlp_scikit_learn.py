"""Scikit-learn's own checks of what an estimator has to do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayescope.estimators import BayesianMLPClassifier, BayesianMLPRegressor

# Of these the prior that is learnt by the evidence could make a difference; a fit with it takes four times as long.
OF_THE_EVIDENCE = {
    "check_fit2d_1feature", "check_fit2d_1sample", "check_fit_idempotent", "check_n_features_in_after_fitting",
    "check_regressors_train", "check_sample_weights_invariance", "check_sample_weight_equivalence_on_dense_data",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The network predicts the same for every row")  # of targets that are noise
@pytest.mark.global_rng  # some of the checks draw from NumPy's own generator
# As small, and trained as little, as the checks of scores allow.
@parametrize_with_checks(
    [
        BayesianMLPClassifier(hidden=(8,), epochs=8, lr=0.1, prior_precision=1.0),
        BayesianMLPRegressor(hidden=(8,), epochs=10, lr=0.1, batch_size=64, prior_precision=1.0),
    ]
)
def test_check_estimator(estimator: Any, check: Any):
    check(estimator)
    if isinstance(estimator, BayesianMLPRegressor) and check.func.__name__ in OF_THE_EVIDENCE:
        check(estimator.set_params(prior_precision="evidence"))
