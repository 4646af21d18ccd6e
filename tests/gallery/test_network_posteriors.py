"""Posteriors of one network agree on the rows and differ away from them; sampling is wide there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bayescope.errors import ConvergenceWarning
from bayescope.gallery import linear_models
from bayescope.gallery import network_posteriors as pictures
from bayescope.plots import style


@pytest.fixture(scope="module")
def moons():
    return pictures.moons()


@pytest.fixture(scope="module")
def posteriors(moons):
    return {name: moons[1].fit(name) for name in ("map", "laplace", "mc_dropout", "ensemble", "swag")}


@pytest.fixture(scope="module")
def surfaces(posteriors):
    return {name: pictures.probabilities(q, size=24) for name, q in posteriors.items()}


@pytest.fixture(scope="module")
def few_draws(moons):
    """NUTS with too few draws for its diagnosis to be content, and enough for a distance."""
    with pytest.warns(ConvergenceWarning, match="predictions are not settled"):
        return moons[1].fit("nuts", draws=30, tune=80)


@pytest.mark.parametrize("name", ["map", "laplace", "mc_dropout", "ensemble", "swag"])
def test_each_posterior_knows_the_rows(name, moons, posteriors):
    scene, _ = moons
    p = np.asarray(posteriors[name].predict(scene.X, generator=0).probs)
    assert (p.argmax(1) == scene.y).mean() >= 0.95


def test_an_average_is_less_sure_than_the_mode(surfaces):
    confidence = {name: np.abs(p - 0.5).mean() for name, p in surfaces.items()}
    assert confidence["laplace"] < confidence["ensemble"] - 0.02
    assert max(confidence, key=confidence.__getitem__) == "map"


def test_laplace_is_nearer_to_nuts_than_the_mode(surfaces, few_draws):
    reference = pictures.probabilities(few_draws, size=24)
    away = {name: linear_models.distance(p, reference) for name, p in surfaces.items()}
    assert min(away, key=away.__getitem__) == "laplace"
    assert away["laplace"] < 0.7 * away["map"]


def test_distance_is_the_total_variation():
    p, r = np.array([0.2, 0.9]), np.array([0.5, 0.9])
    both = 0.5 * (np.abs(p - r) + np.abs((1 - p) - (1 - r))).mean()
    assert linear_models.distance(p, r) == pytest.approx(both)
    assert linear_models.distance(p, p) == 0.0


def test_moons_are_drawn(readable, moons, surfaces):
    found = {name: surfaces.get(name, surfaces["laplace"] * 0.99) for name in moons[1].options}
    readable(lambda: pictures.draw_moons(found))


QUICK = ("map", "laplace", "sgmcmc", "ensemble", "swag")


@pytest.fixture(scope="module")
def found():
    problem = pictures.curve()
    return {name: pictures.band(problem.fit(name), pictures.SAMPLES.get(name)) for name in QUICK}


def near(place: float) -> np.ndarray:
    return np.abs(pictures.X[:, 0] - place) < 0.6


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
    step = float(pictures.Y[1] - pictures.Y[0])
    for shown in found.values():
        np.testing.assert_allclose(shown.density.sum(0) * step, 1.0, atol=1e-3)
        inside = (pictures.Y[:, None] > shown.low) & (pictures.Y[:, None] < shown.high)
        np.testing.assert_allclose((shown.density * inside).sum(0) * step, 0.95, atol=0.04)


def test_the_distance_of_two_gaussians_is_in_closed_form():
    """½ ∫ ∣N(y; 0, 1) − N(y; m, 1)∣ dy = 2 Φ(m/2) − 1."""
    at = np.zeros(1)
    one, other = (pictures.Band(at, at, at, at, stats.norm.pdf(pictures.Y[:, None], m, 1.0)) for m in (0.0, 1.4))
    assert pictures.band_distance(one, other) == pytest.approx(2 * stats.norm.cdf(0.7) - 1, abs=1e-3)
    assert pictures.band_distance(one, one) == 0


def test_every_fit_has_a_name_and_a_colour():
    fits = set(pictures.curve().options)
    assert fits <= set(style.LABELS)
    assert len({style.COLOURS[name] for name in fits}) == len(fits)
    assert set(pictures.SAMPLES) < fits


def test_bands_are_drawn(readable, found):
    """With the quick ones in the places of those that take long."""
    readable(lambda: pictures.draw_sine({name: found.get(name, found["sgmcmc"]) for name in pictures.curve().options}))
