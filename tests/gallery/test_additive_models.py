"""A feature that does nothing is switched off, and reasons with intervals hold the truth."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bayescope.gallery import additive_models as pictures


@pytest.fixture(scope="module")
def shown():
    return pictures.effects()


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
        name: np.mean(
            [((shown[name][x].mean - pictures.truth(x, shown[name][x].grid)) ** 2).mean() for x in pictures.TRUTHS]
        )
        ** 0.5
        for name in pictures.MODELS
    }
    assert errors["laplace"] < 0.85 * errors["map"]


def test_bands_hold_most_of_the_truth(shown):
    inside = [
        (one.low <= pictures.truth(x, one.grid)) & (pictures.truth(x, one.grid) <= one.high)
        for x, one in shown["laplace"].items()
    ]
    assert np.mean(inside) > 0.75


def test_effects_are_drawn(readable, shown):
    readable(functools.partial(pictures.draw_effects, shown))


@pytest.fixture(scope="module")
def found():
    return pictures.explanations()


def test_contributions_are_closer_to_the_truth_and_covered(found):
    (plain, no_intervals), (laplace, coverage) = (pictures.error_and_coverage(found[name]) for name in pictures.MODELS)
    assert laplace < 0.6 * plain
    assert 0.9 < coverage <= 1
    assert no_intervals == 0


def test_what_does_nothing_is_given_nothing(found):
    for name in ("sodium", "weekday"):
        place = found["laplace"].names.index(name)
        assert np.abs(found["laplace"].contributions[:, place]).max() < 0.05
        assert np.abs(found["map"].contributions[:, place]).max() > 0.2


def test_the_patient_is_a_rare_one(found):
    frame, _, died = pictures.ward()
    row = pictures.patient()
    assert (frame["unit"][row], np.isnan(frame["lactate"][row])) == ("burns", True)
    place = found["laplace"].names.index("unit")
    assert found["laplace"].sds[row, place] > 2 * np.median(found["laplace"].sds[:, place])
    assert 0.08 < died.mean() < 0.15


def test_reasons_are_drawn(readable, found):
    readable(functools.partial(pictures.draw_local, found))
