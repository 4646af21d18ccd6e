"""A fit that fails leaves the estimator as the last one left it: it never answers from parts of two tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bayescope as bs
from bayescope.errors import InputError


@pytest.mark.parametrize("kind", [bs.BayesianLinearRegression, bs.BayesianLogisticRegression])
def test_a_fit_that_fails_changes_no_answer(kind: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), np.repeat([0, 1], 20)
    model = kind(standardize=True).fit(X, y)
    before, names = model.predict_distribution(X).mean, set(vars(model))
    # The inputs' scales are learnt before the prior is looked at.
    with pytest.raises(InputError, match="prior_precision"):
        model.set_params(prior_precision=-1.0).fit(1000.0 * X[:, :1] + 5.0, y)
    assert np.array_equal(model.predict_distribution(X).mean, before)
    assert set(vars(model)) == names


def test_a_first_fit_that_fails_learns_nothing() -> None:
    model = bs.BayesianLogisticRegression(prior_precision=-1.0)
    with pytest.raises(InputError, match="prior_precision"):
        model.fit([[0.0], [1.0]], ["no", "yes"])
    assert not hasattr(model, "classes_")
