"""Sampling is wide where no data are, networks that were trained to one end are not; and what the distance is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bayescope.gallery.network_sine import FITS, SAMPLES, Band, X, Y, band, curve, distance, draw_sine, fit
from bayescope.plots.style import COLOURS, LABELS

QUICK = ("map", "laplace", "sgmcmc", "ensemble", "swag")


@pytest.fixture(scope="module")
def found() -> dict[str, Band]:
    data = curve()
    return {name: band(fit(name, data), SAMPLES.get(name)) for name in QUICK}


def near(place: float) -> np.ndarray:
    return np.abs(X[:, 0] - place) < 0.6


def test_only_sampling_is_wide_in_the_gap(found):
    widths = {name: shown.sd[near(0.0)].mean() for name, shown in found.items()}
    assert widths["sgmcmc"] > 1.5 * widths["laplace"]
    assert widths["laplace"] > 2 * max(widths["ensemble"], widths["swag"])
    assert widths["map"] == 0


def test_on_the_data_they_agree(found):
    rows = near(-3.0) | near(3.0)
    for shown in found.values():
        assert np.abs(shown.mean - found["sgmcmc"].mean)[rows].max() < 0.3


def test_densities_are_those_of_the_intervals(found):
    step = float(Y[1] - Y[0])
    for shown in found.values():
        np.testing.assert_allclose(shown.density.sum(0) * step, 1.0, atol=1e-3)
        inside = (Y[:, None] > shown.low) & (Y[:, None] < shown.high)
        np.testing.assert_allclose((shown.density * inside).sum(0) * step, 0.95, atol=0.04)


def test_the_distance_of_two_gaussians_is_in_closed_form():
    """½ ∫ ∣N(y; 0, 1) − N(y; m, 1)∣ dy = 2 Φ(m/2) − 1."""
    at = np.zeros(1)
    one, other = (Band(at, at, at, at, stats.norm.pdf(Y[:, None], m, 1.0)) for m in (0.0, 1.4))
    assert distance(one, other) == pytest.approx(2 * stats.norm.cdf(0.7) - 1, abs=1e-3)
    assert distance(one, one) == 0


def test_every_fit_has_a_name_and_a_colour():
    assert set(FITS) <= set(LABELS)
    assert len({COLOURS[name] for name in FITS}) == len(FITS)
    assert set(SAMPLES) < set(FITS)


def test_drawn(readable, found):
    """With the quick ones in the places of those that take long."""
    readable(lambda: draw_sine({name: found.get(name, found["sgmcmc"]) for name in FITS}))
