"""The feature that does nothing is off, and its band says so."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bayescope.gallery.additive_effects import MODELS, TRUTHS, draw_effects, found, truth


@pytest.fixture(scope="module")
def shown():
    return found()


def test_the_fourth_band_covers_zero_everywhere_with_near_zero_width(shown):
    off = shown["laplace"]["x4"]
    assert (off.low <= 0).all()
    assert (off.high >= 0).all()
    assert (off.high - off.low).max() < 0.02


def test_the_plain_model_makes_something_of_nothing(shown):
    assert np.abs(shown["map"]["x4"].mean).max() > 0.3
    assert not shown["map"]["x4"].sd.any()


def test_learnt_precisions_are_closer_to_the_truth(shown):
    errors = {
        name: np.mean([((shown[name][x].mean - truth(x, shown[name][x].grid)) ** 2).mean() for x in TRUTHS]) ** 0.5
        for name in MODELS
    }
    assert errors["laplace"] < 0.85 * errors["map"]


def test_bands_hold_most_of_the_truth(shown):
    inside = [(one.low <= truth(x, one.grid)) & (truth(x, one.grid) <= one.high) for x, one in shown["laplace"].items()]
    assert np.mean(inside) > 0.75


def test_drawn(readable, shown):
    readable(functools.partial(draw_effects, shown))
