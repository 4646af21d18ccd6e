"""Near the data the posterior agrees with the mode; away from them it is unsure, and calls that epistemic."""

from __future__ import annotations

import numpy as np
import pytest

from bayescope.gallery import networks
from bayescope.gallery.network_banana import draw_banana, fit, maps, plane


@pytest.fixture(scope="module")
def scene():
    rows = networks.banana()
    q = fit(rows)
    return rows, q, maps(q, size=24)


def test_both_variances_make_up_a_labels(scene):
    _, _, found = scene
    assert np.allclose(found.aleatoric + found.epistemic, found.mean * (1 - found.mean), atol=1e-7)


def test_the_average_is_never_surer_than_the_mode(scene):
    _, _, found = scene
    assert (np.abs(found.mean - 0.5) <= np.abs(found.point - 0.5) + 1e-6).all()


def test_epistemic_variance_is_away_from_the_data(scene):
    rows, _, found = scene
    at = plane(24)
    nearest = (at[:, None] - rows.x).square().sum(-1).sqrt().amin(1).reshape(24, 24).numpy()
    assert found.epistemic[nearest > 2].mean() > 4 * found.epistemic[nearest < 0.5].mean()
    assert found.aleatoric[nearest < 0.5].mean() > 2 * found.aleatoric[nearest > 2].mean()


def test_averaging_predicts_new_rows_better(scene):
    rows, q, _ = scene
    assert networks.test_loss(q, rows) < networks.test_loss(networks.at_mode(q), rows)


def test_drawn(readable):
    readable(draw_banana)
