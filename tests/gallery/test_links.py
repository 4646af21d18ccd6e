"""What the pictures of the links claim, and that they are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.gallery.links import draw_kappa, draw_sigmoid, kappa_error, sigmoid_gap


def test_kappa_is_never_off_by_more_than_the_gap_between_the_links():
    table = kappa_error(np.linspace(-80, 80, 161), np.array([0.0, 0.5, 1.0, 3.0, 10.0, 30.0]))
    gap = sigmoid_gap(np.linspace(-10, 10, 2001))
    largest = np.abs(gap.logistic - gap.probit).max()
    assert np.abs(table.error).max() < largest < 0.018
    # For an sd of 30 the sigmoid is nearly a step, and the error nearly that gap.
    assert np.abs(table.error[-1]).max() > 0.98 * largest


def test_kappa_error_is_odd_and_vanishes_without_variance():
    table = kappa_error(np.linspace(-12, 12, 49), np.array([0.0, 1.0, 4.0]))
    np.testing.assert_allclose(table.error, -table.error[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(table.error[0], 0.0, atol=1e-12)
    assert np.abs(table.error[2]).max() > 0.01


def test_kappa_is_too_cautious_for_wide_latents():
    assert (kappa_error(np.linspace(4, 20, 33), np.array([2.0, 4.0, 8.0])).error < 0).all()


def test_sigmoids_share_value_and_slope_at_zero():
    gap = sigmoid_gap(np.array([-1e-4, 0.0, 1e-4]))
    assert gap.logistic[1] == gap.probit[1] == 0.5
    for link in (gap.logistic, gap.probit):
        assert (link[2] - link[0]) / 2e-4 == pytest.approx(0.25, abs=1e-6)


def test_sigmoids_differ_by_less_than_a_fiftieth():
    gap = sigmoid_gap(np.linspace(-30, 30, 60_001))
    assert 0.0176 < np.abs(gap.logistic - gap.probit).max() < 0.0178


@pytest.mark.parametrize("draw", [draw_kappa, draw_sigmoid])
def test_drawn(draw, readable):
    readable(draw)
