"""The same bound is reached from every start, and from Laplace's sds first."""

from __future__ import annotations

import functools

import pytest

from bayescope.gallery.network_training import STARTS, draw_training, means, reached, trainings


@pytest.fixture(scope="module")
def found():
    return trainings()


def test_all_starts_lead_to_the_same_bound(found):
    bounds = [float(q.elbo) for q in found.values()]
    assert max(bounds) - min(bounds) < 8.0


def test_laplace_s_sds_are_ahead(found):
    _, warm, laplace = (reached(found[name], -110.0) for name in STARTS)
    assert 2 * laplace < warm


def test_a_window_s_mean():
    assert means([1.0, 2.0, 3.0, 4.0, 5.0, 11.0]).tolist() == pytest.approx([3.0, 5.0])


def test_drawn(readable, found):
    readable(functools.partial(draw_training, found))
