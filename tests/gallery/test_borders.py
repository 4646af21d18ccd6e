"""Borders part where there are no data, and the uncertainty drawn along the border is that of the sampled ones."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from bayescope.gallery.borders import Borders, draw_borders


@pytest.fixture(scope="module")
def borders():
    return Borders(size=60, samples=200)


def test_border_is_where_the_posterior_is_undecided(borders):
    mean, sd = borders.latent(borders.uncertain.path)
    assert (np.abs(mean) < 0.1 * sd).all()


def test_border_is_least_certain_away_from_the_rows(borders):
    X, _ = borders.data
    border = borders.uncertain
    distance = np.linalg.norm(border.path[:, None] - X[None], axis=-1).min(1)
    assert border.sd[distance > 0.8].min() > 2 * border.sd[distance < 0.35].mean()


def test_uncertainty_is_how_far_sampled_borders_lie_from_the_border(borders):
    border = borders.uncertain
    at = int(border.sd.argmin())
    tangent = border.path[at + 1] - border.path[at - 1]
    across = np.array([-tangent[1], tangent[0]]) / np.hypot(*tangent)
    reach = np.linspace(-0.4, 0.4, 401)
    line = borders.bumps(border.path[at] + reach[:, None] * across)
    crossing = reach[np.abs(borders.functions(line, 2000)).argmin(1)]
    assert crossing.std() == pytest.approx(border.sd[at], rel=0.2)


def test_map_is_surer_than_bayes(borders):
    sure = {name: np.abs(p - 0.5) for name, p in borders.surfaces.items()}
    assert sure["map"].mean() > sure["variational"].mean() + 0.05


def test_many_functions_separate_the_rows(borders):
    assert len(borders.separating) > 0.3 * borders.samples
    X, y = borders.data
    first, second = borders.grid
    for f in borders.separating:
        assert ((RegularGridInterpolator((second, first), f)(X[:, ::-1]) > 0) == y).mean() > 0.97


def test_drawn(readable):
    readable(functools.partial(draw_borders, Borders(size=50, samples=20)))
