"""The evidence has a hill, and its top is where test data are predicted best."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bayescope.gallery.evidence import NOISE_SD, SIZES, bumps, curves, data, draw_evidence


@pytest.fixture(scope="module")
def found():
    return curves(data())


def test_the_evidence_has_one_hill(found):
    rises = np.sign(np.diff(found.log_evidence[2:]))
    assert set(rises) == {1.0, -1.0}
    assert np.abs(np.diff(rises)).sum() == 2
    assert found.log_evidence.max() - found.log_evidence[-1] > 5


def test_the_evidence_picks_what_test_data_pick(found):
    best, lowest = found.sizes[found.log_evidence.argmax()], found.sizes[found.test_nll.argmin()]
    assert abs(best - lowest) <= 1
    assert SIZES[0] < best < SIZES[-1]


@pytest.mark.parametrize("size", [5, 11])
def test_the_evidence_is_the_marginal_gaussian(size):
    rows = data()
    phi = bumps(rows.x, size)
    # The intercept's weak prior, N(0, 1e4), is part of the model.
    covariance = phi @ phi.T + 1e4 + NOISE_SD**2 * np.eye(len(rows.y))
    expected = stats.multivariate_normal(np.zeros(len(rows.y)), covariance).logpdf(rows.y)
    assert curves(rows, (size,)).log_evidence[0] == pytest.approx(expected, abs=1e-6)


def test_drawn(readable):
    readable(draw_evidence)
