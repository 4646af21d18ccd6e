"""MAP is sure away from the data and averages are not; borders part there; the evidence has a hill."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats
from scipy.interpolate import RegularGridInterpolator

from bayescope.gallery import linear_models as pictures


@pytest.fixture(scope="module")
def shown():
    return [(scene, pictures.surfaces(scene, size=24)) for scene in (pictures.moons(), pictures.blobs())]


@pytest.fixture(params=[0, 1], ids=["moons", "blobs"])
def found(request, shown):
    return shown[request.param][1]


def test_every_posterior_gives_probabilities(found):
    assert tuple(found) == pictures.POSTERIORS
    assert all(p.shape == (24, 24) and (p >= 0).all() and (p <= 1).all() for p in found.values())


def test_map_is_surer_than_every_average(found):
    sure = {name: np.abs(p - 0.5).mean() for name, p in found.items()}
    assert sure["map"] > max(sure[name] for name in ("laplace", "variational", "nuts")) + 0.02


def test_laplace_and_variational_are_closer_to_nuts_than_map(found):
    distance = {name: np.abs(p - found["nuts"]).mean() for name, p in found.items()}
    assert distance["laplace"] < 0.6 * distance["map"]
    assert distance["variational"] < 0.3 * distance["map"]


def test_surfaces_are_drawn(readable, shown):
    readable(functools.partial(pictures.draw_surfaces, shown))


@pytest.fixture(scope="module")
def borders():
    return pictures.Borders(size=60, samples=200)


def test_border_is_where_the_posterior_is_undecided(borders):
    mean, sd = borders.latent(borders.uncertain[0])
    assert (np.abs(mean) < 0.1 * sd).all()


def test_border_is_least_certain_away_from_the_rows(borders):
    X, _ = borders.data
    path, _, sd = borders.uncertain
    distance = np.linalg.norm(path[:, None] - X[None], axis=-1).min(1)
    assert sd[distance > 0.8].min() > 2 * sd[distance < 0.35].mean()


def test_uncertainty_is_how_far_sampled_borders_lie_from_the_border(borders):
    path, _, sd = borders.uncertain
    at = int(sd.argmin())
    tangent = path[at + 1] - path[at - 1]
    across = np.array([-tangent[1], tangent[0]]) / np.hypot(*tangent)
    reach = np.linspace(-0.4, 0.4, 401)
    line = borders.bumps(path[at] + reach[:, None] * across)
    crossing = reach[np.abs(borders.functions(line, 2000)).argmin(1)]
    assert crossing.std() == pytest.approx(sd[at], rel=0.2)


def test_map_is_surer_than_bayes(borders):
    sure = {name: np.abs(p - 0.5) for name, p in borders.surfaces.items()}
    assert sure["map"].mean() > sure["variational"].mean() + 0.05


def test_many_functions_separate_the_rows(borders):
    assert len(borders.separating) > 0.3 * borders.samples
    X, y = borders.data
    first, second = borders.grid
    for f in borders.separating:
        assert ((RegularGridInterpolator((second, first), f)(X[:, ::-1]) > 0) == y).mean() > 0.97


def test_borders_are_drawn(readable):
    readable(functools.partial(pictures.draw_borders, pictures.Borders(size=50, samples=20)))


def test_the_evidence_has_one_hill_near_the_top_of_the_test_rows():
    log_evidence, loss = pictures.evidence_and_loss()
    rises = np.sign(np.diff(log_evidence[2:]))
    assert set(rises) == {1.0, -1.0}
    assert np.abs(np.diff(rises)).sum() == 2
    assert log_evidence.max() - log_evidence[-1] > 5
    assert abs(log_evidence.argmax() - loss.argmin()) <= 1
    assert 0 < log_evidence.argmax() < len(pictures.SIZES) - 1


@pytest.mark.parametrize("size", [5, 11])
def test_the_evidence_is_the_marginal_gaussian(size):
    x, y, _, _ = pictures.curve_rows()
    phi = pictures.bumps(x, size)
    # The intercept's weak prior, N(0, 1e4), is part of the model.
    covariance = phi @ phi.T + 1e4 + pictures.NOISE_SD**2 * np.eye(len(y))
    expected = stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
    assert pictures.evidence_and_loss((size,))[0][0] == pytest.approx(expected, abs=1e-6)


def test_evidence_is_drawn(readable):
    readable(pictures.draw_evidence)
