"""The word about weights that are no mode."""

from __future__ import annotations

import warnings

import pytest

from bayescope.errors import ConvergenceWarning
from bayescope.laplace.distance import FAR, Distance

CASES = [(0.0, 0.0, 0), (0.9 * FAR, 0.5, 0), (1.1 * FAR, 0.5, 1), (27 * FAR, 30.0, 0), (33 * FAR, 30.0, 1)]


@pytest.mark.parametrize(("squared", "determined", "far"), CASES)
def test_far_is_a_share_of_what_the_data_determine_and_at_least_of_one(squared, determined, far):
    distance = Distance(squared, determined)
    assert distance.is_far == far
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distance.warn("Do this.", stacklevel=1)
    assert len(caught) == far
    if far:
        assert issubclass(caught[0].category, ConvergenceWarning)
        assert caught[0].filename == __file__
        assert f"{0.5 * squared:.3g} nats. Do this." in str(caught[0].message)
