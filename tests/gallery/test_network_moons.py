"""All seven posteriors of the network know the rows; they differ in what they make of the rest of the plane."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.errors import ConvergenceWarning
from bayescope.gallery import network_moons
from bayescope.gallery.network_moons import FITS, distance, draw_moons, fit, moons, probabilities


@pytest.fixture(scope="module")
def scene():
    return moons()


@pytest.fixture(scope="module")
def posteriors(scene):
    return {name: fit(name, scene) for name in ("map", "laplace", "mc_dropout", "ensemble", "swag")}


@pytest.fixture(scope="module")
def surfaces(scene, posteriors):
    return {name: probabilities(q, scene, 24) for name, q in posteriors.items()}


@pytest.fixture(scope="module")
def few_draws(scene):
    """NUTS with too few draws for its diagnosis to be content, and enough for a distance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_moons, "DRAWS", 30)
        patch.setattr(network_moons, "TUNE", 80)
        with pytest.warns(ConvergenceWarning, match="predictions are not settled"):
            return fit("nuts", scene)


@pytest.mark.parametrize("name", ["map", "laplace", "mc_dropout", "ensemble", "swag"])
def test_each_posterior_knows_the_rows(name, scene, posteriors):
    p = np.asarray(posteriors[name].predict(scene.X, generator=0).probs)
    assert (p.argmax(1) == scene.y).mean() >= 0.95


def test_an_average_is_less_sure_than_the_mode(surfaces):
    confidence = {name: np.abs(p - 0.5).mean() for name, p in surfaces.items()}
    assert confidence["laplace"] < confidence["ensemble"] - 0.02
    assert max(confidence, key=confidence.__getitem__) == "map"


def test_laplace_is_nearer_to_nuts_than_the_mode(scene, surfaces, few_draws):
    reference = probabilities(few_draws, scene, 24)
    away = {name: distance(p, reference) for name, p in surfaces.items()}
    assert min(away, key=away.__getitem__) == "laplace"
    assert away["laplace"] < 0.7 * away["map"]


def test_distance_is_the_total_variation():
    p, r = np.array([0.2, 0.9]), np.array([0.5, 0.9])
    both = 0.5 * (np.abs(p - r) + np.abs((1 - p) - (1 - r))).mean()
    assert distance(p, r) == pytest.approx(both)
    assert distance(p, p) == 0.0


def test_drawn(readable, surfaces):
    found = {name: surfaces.get(name, surfaces["laplace"] * 0.99) for name in FITS}
    readable(lambda: draw_moons(found))
