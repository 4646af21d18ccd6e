"""MAP is sure away from the data, the averages are not, and Laplace and VI are closer to NUTS than MAP is."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bayescope.gallery.surfaces import POSTERIORS, blobs, draw_surfaces, moons, surfaces


@pytest.fixture(scope="module")
def shown():
    return [(scene, surfaces(scene, size=24)) for scene in (moons(), blobs())]


@pytest.fixture(params=[0, 1], ids=["moons", "blobs"])
def found(request, shown):
    return shown[request.param][1]


def test_every_posterior_gives_probabilities(found):
    assert tuple(found) == POSTERIORS
    assert all(p.shape == (24, 24) and (p >= 0).all() and (p <= 1).all() for p in found.values())


def test_map_is_surer_than_every_average(found):
    sure = {name: np.abs(p - 0.5).mean() for name, p in found.items()}
    assert sure["map"] > max(sure[name] for name in ("laplace", "variational", "nuts")) + 0.02


def test_laplace_and_variational_are_closer_to_nuts_than_map(found):
    distance = {name: np.abs(p - found["nuts"]).mean() for name, p in found.items()}
    assert distance["laplace"] < 0.6 * distance["map"]
    assert distance["variational"] < 0.3 * distance["map"]


def test_drawn(readable, shown):
    readable(functools.partial(draw_surfaces, shown))
