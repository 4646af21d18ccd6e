"""Laplace's error falls as 1/N."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.gallery.rates import COORDINATES, draw_rates, rates


@pytest.mark.parametrize("transform", COORDINATES.values(), ids=COORDINATES)
def test_errors_fall_as_one_over_n(transform):
    found = rates(transform, (100, 200, 500, 1000, 2000, 5000))
    assert found.slope(found.log_evidence) == pytest.approx(-1.0, abs=0.02)
    assert found.slope(found.mean) == pytest.approx(-1.0, abs=0.02)


def test_mean_error_is_that_of_the_mode():
    # Without a transform Laplace's mean is the mode s/N, and the exact mean (1 + s)/(2 + N).
    found = rates(None, (10, 100))
    successes = 0.3 * found.counts
    np.testing.assert_allclose(found.mean, (1 + successes) / (2 + found.counts) - successes / found.counts, rtol=1e-6)


def test_drawn(readable):
    readable(draw_rates)
