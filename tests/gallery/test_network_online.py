"""Learning from the training rows alone raises the evidence, finds the noise and predicts new rows better."""

from __future__ import annotations

import functools

import pytest

from bayescope.gallery import networks
from bayescope.gallery.network_online import classes, curve, draw_online


@pytest.fixture(scope="module")
def shown():
    return curve(), classes()


@pytest.fixture
def regression(shown):
    return shown[0]


def test_the_evidence_is_raised_and_the_best_kept(regression):
    evidence = regression.learnt.trace["log_evidence"]
    assert max(evidence) > evidence[0] + 50
    assert float(regression.learnt.log_evidence()) == pytest.approx(max(evidence), abs=1e-6)


def test_the_noise_is_found(regression):
    assert regression.learnt.trace["noise_variance"][-1] == pytest.approx(networks.NOISE_SD**2, rel=0.4)


@pytest.mark.parametrize("which", [0, 1], ids=["curve", "classes"])
def test_new_rows_are_predicted_better(shown, which):
    learning = shown[which]
    assert networks.test_loss(learning.learnt, learning.rows) < networks.test_loss(learning.fixed, learning.rows) - 0.02


def test_drawn(readable, shown):
    readable(functools.partial(draw_online, shown))
