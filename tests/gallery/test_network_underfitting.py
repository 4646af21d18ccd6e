"""The picture's claims: the tangent fits where drawn networks do not, and the loss on the way shows why."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayescope.gallery import networks
from bayescope.gallery.network_underfitting import along_draws, draw_underfitting, fit, losses


@pytest.fixture(scope="module")
def scene():
    rows = networks.gap()
    return fit(rows), rows


def test_drawn_networks_lose_what_the_tangent_keeps(scene):
    found = losses(*scene)
    assert found.sampled > found.linearized + 2.0
    assert found.linearized < found.point + 0.02


def test_both_ways_begin_at_the_mode_and_part(scene):
    tangent, network = along_draws(*scene, torch.linspace(0, 1, 5, dtype=torch.float64))
    assert np.allclose(tangent[:, 0], network[:, 0], atol=1e-10)
    assert np.median(network[:, -1]) > 50
    # On the tangent a draw costs ½ γ nats over all rows on average, and γ is a few of 151 weights.
    assert np.mean(tangent[:, -1] - tangent[:, 0]) < 0.15


def test_a_strong_prior_closes_the_gap(scene):
    weak, strong = (losses(fit(scene[1], precision, hidden=20), scene[1]) for precision in (1.0, 10.0))
    assert strong.sampled - strong.linearized < weak.sampled - weak.linearized


def test_drawn(readable):
    readable(draw_underfitting)
