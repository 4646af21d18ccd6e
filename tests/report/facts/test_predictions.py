"""What is asked of the model, in blocks, is what the model says of all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bayescope.report import judged


@pytest.mark.parametrize("name", ["logistic", "linear", "additive_classes"])
def test_blocks_say_what_the_whole_says(name, request):
    case = request.getfixturevalue(name)
    told, whole = (
        judged.predictions(case.estimator, case.judged(), block=17),
        case.estimator.predict_distribution(case.X),
    )
    assert told.mean == pytest.approx(whole.mean)
    assert told.epistemic**2 == pytest.approx(whole.epistemic)
    assert told.aleatoric**2 == pytest.approx(whole.aleatoric)
    assert told.log_prob == pytest.approx(whole.log_prob(case.judged().y))


def test_intervals_and_places_are_those_of_the_outcome(linear):
    told = judged.predictions(linear.estimator, linear.judged())
    mean, sd = linear.estimator.predict(linear.X, return_std=True)
    expected = stats.norm.cdf(linear.judged().y, mean, sd)
    assert told.pit_ends == pytest.approx(np.stack([expected, expected], 1), abs=1e-9)
    assert told.interval == pytest.approx(mean[:, None] + sd[:, None] * stats.norm.ppf([0.025, 0.975]), abs=1e-6)
