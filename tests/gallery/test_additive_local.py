"""Reasons with intervals hold the truth, and what does nothing is given nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bayescope.gallery.additive_local import coverage, draw_local, error, explanations, patient, ward


@pytest.fixture(scope="module")
def found():
    return explanations()


def test_contributions_are_closer_to_the_truth_and_covered(found):
    _, parts, _ = ward()
    assert error(found["laplace"], parts) < 0.6 * error(found["map"], parts)
    assert 0.9 < coverage(found["laplace"], parts) <= 1
    assert coverage(found["map"], parts) == 0


def test_what_does_nothing_is_given_nothing(found):
    for name in ("sodium", "weekday"):
        place = found["laplace"].names.index(name)
        assert np.abs(found["laplace"].contributions[:, place]).max() < 0.05
        assert np.abs(found["map"].contributions[:, place]).max() > 0.2


def test_the_patient_is_a_rare_one(found):
    frame, _, died = ward()
    row = patient(frame)
    assert (frame["unit"][row], np.isnan(frame["lactate"][row])) == ("burns", True)
    place = found["laplace"].names.index("unit")
    assert found["laplace"].sds[row, place] > 2 * np.median(found["laplace"].sds[:, place])
    assert 0.08 < died.mean() < 0.15


def test_drawn(readable, found):
    readable(functools.partial(draw_local, found))
